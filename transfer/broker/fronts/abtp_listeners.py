"""Where abtp's ZeroMQ sockets listen."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from transports.address import parse
from transports.errors import AddressError, AddressInUse, TransferError
from transports.ipc import IpcTransport

if TYPE_CHECKING:
    from transports.base import Listener


class AbtpListeners:
    """Binds, and owns the listeners of files: libzmq listens before a file's mode could be changed.

    allowed: see AbtpFront.
    """

    def __init__(self, allowed: Callable[[str, str], object] | None) -> None:
        self._allowed = allowed
        self._files: list[Listener] = []

    def bind(self, socket: zmq.Socket[bytes], endpoint: str) -> str:
        """The endpoint with the real port. Raises AddressInUse, AddressError, and what `allowed` raises."""
        if endpoint.startswith("ipc://") and not (address := parse(endpoint)).is_abstract:
            listener = IpcTransport().listen(address)
            self._files.append(listener)
            socket.setsockopt(zmq.USE_FD, os.dup(listener.fileno()))  # which libzmq closes
            endpoint = str(listener.address)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise _address_error(endpoint, error) from error
        bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if self._allowed is not None and bound.startswith("tcp://"):
            self._allowed(bound.removeprefix("tcp://").rpartition(":")[0].strip("[]"), bound)
        return bound

    def close(self) -> None:
        """Removes the files, behind the sockets' end. Idempotent."""
        while self._files:
            self._files.pop().close()


def _address_error(endpoint: str, error: zmq.ZMQError) -> TransferError:
    if error.errno == zmq.EADDRINUSE:
        return AddressInUse(f"{endpoint}: {error}", hint="end who has it, or name another port")
    return AddressError(f"{endpoint}: {error}", hint="tcp://host:port of this machine")
