"""Receives the spool's messages. It drops an unreadable message, and only that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transfer.tensors.build import NUMPY
from transfer.transports.errors import Again, Closed, NotSupported, ProtocolError, TensorMismatch

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults


class MessageReceiver:
    """Receives dicts of tensors from a socket. For one thread. take: `take_bundle`, `take_bundle_from`."""

    def __init__(self, socket: Any, take: Callable[..., tuple[Any, ...]], faults: PeerFaults) -> None:
        self._socket = socket
        self._take = take
        self._faults = faults

    def next(self, flags: int = 0) -> tuple[Any, ...] | None:
        """Returns a message; None: it was no dict of tensors that numpy supports. Raises Again, Closed."""
        try:
            found: tuple[Any, ...] = self._socket._receive_valid(self._take, self._socket, flags, NUMPY)
            return found
        except (Again, Closed):
            raise
        except (ProtocolError, TensorMismatch, NotSupported) as error:
            self._faults.warn("a message", error, "a peer")
        except Exception as error:  # noqa: BLE001 - an error for one peer's bytes must not affect others
            self._faults.note("a message", error)
        return None
