"""An authenticator in a thread, as programs of libzmq have it: it answers what a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

ADDRESS = "inproc://zeromq.zap.01"
#: of a property with the name Hello
METADATA = b"\x05Hello\x00\x00\x00\x05World"

#: (the parts of a request) -> the parts of the reply after its number; None: no reply
Decide = Callable[[list[bytes]], list[bytes] | None]


def accept(request: list[bytes]) -> list[bytes]:
    return [b"200", b"OK", b"someone", METADATA]


def refuse(request: list[bytes]) -> list[bytes]:
    return [b"400", b"no", b"", b""]


class Handler:
    """asked: the requests, without version and number."""

    def __init__(self, zmq: Any, context: Any, decide: Decide = accept, kind: str = "REP") -> None:
        self.asked: list[list[bytes]] = []
        self._zmq, self._context, self._kind, self._decide = zmq, context, kind, decide
        self._end, self._bound = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with self._context.socket(getattr(self._zmq, self._kind)) as socket:
            socket.linger = 0
            socket.bind(ADDRESS)
            self._bound.set()
            while not self._end.is_set():
                if socket.poll(20):
                    self._answer(socket)

    def _answer(self, socket: Any) -> None:
        parts = socket.recv_multipart()
        envelope = parts[: parts.index(b"") + 1] if self._kind == "ROUTER" else []
        version, number, *request = parts[len(envelope) :]
        assert version == b"1.0"
        self.asked.append(request)
        reply = self._decide(request)
        if reply is not None:
            socket.send_multipart([*envelope, version, number, *reply])
        elif self._kind == "REP":
            self._end.set()  # it cannot receive another request before
