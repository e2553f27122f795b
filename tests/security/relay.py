"""A relay between two sides: it passes on what they send, records it, and may change it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from transfer.transports.address import Address

#: (from the connecting side, what came) -> what is passed on
Change = Callable[[bool, bytes], bytes]


class Relay:
    """A relay in threads of its own. said: all that each side of each connection has said."""

    def __init__(self, target: Address, change: Change = lambda _connecting, data: data) -> None:
        self._target = target
        self._change = change
        self.said: list[dict[bool, bytearray]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("tcp", "127.0.0.1", self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._target.host, self._target.port))
                self._sockets += near, far
                said = {True: bytearray(), False: bytearray()}
                self.said.append(said)
                for ends, connecting in (((near, far), True), ((far, near), False)):
                    thread = threading.Thread(target=self._pass, args=(*ends, connecting, said[connecting]))
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, connecting: bool, said: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                said += data
                target.sendall(self._change(connecting, data))
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(10)
