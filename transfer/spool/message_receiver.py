"""Receives the spool's messages: one that cannot be read is dropped, and stops no others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import transfer
from transports.errors import Again, Closed, NotSupported, ProtocolError, TensorMismatch

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults


class MessageReceiver:
    """Dicts of tensors at one socket. For one thread. receive: the method of the socket that receives one."""

    def __init__(self, socket: Any, receive: Callable[[int], tuple[Any, ...]], faults: PeerFaults) -> None:
        self._socket = socket
        self._receive = receive
        self._faults = faults
        self._failed = False

    def next(self, flags: int = 0) -> tuple[Any, ...] | None:
        """What was received; None: it was no dict of tensors that numpy knows. Raises Again, Closed."""
        try:
            found = self._receive(flags)
        except (Again, Closed):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a peer's bytes raise, others are served
            if isinstance(error, ProtocolError | TensorMismatch | NotSupported):
                self._faults.warn("a message", error, "a peer")
            else:
                self._faults.note("a message", error)
            # These are still unread, and so is whatever raises twice in a row.
            unread = self._failed or isinstance(error, TensorMismatch | NotSupported)
            self._failed = not unread
            if unread:
                with suppress(Again):
                    self._socket.recv_multipart(transfer.DONTWAIT)
            return None
        self._failed = False
        return found
