"""The core under test is a parameter: the Python twin and the compiled one, in one session."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.core.raw import PULL, PUSH

ROUND_ROBIN, FANOUT = 1, 2
FAIR, FILTERED = 1, 2


@pytest.fixture(params=["twin", "native"])
def core(request: pytest.FixtureRequest) -> ModuleType:
    """The module with Pool, Lease, HeldBuffer, Frame, Flusher, Stream, SocketBase."""
    try:
        module = importlib.import_module(f"transports.{request.param}")
        _ = module.SocketBase, module.Stream, module.Flusher
    except (ImportError, AttributeError) as error:
        pytest.skip(f"the {request.param} core is not built: {error}")
    return module


def connected(kind: str = "unix", buffer: int = 0) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets. buffer: kernel buffers in bytes; the system rounds up."""
    if kind == "unix":
        pair = socket.socketpair()
        for one in pair if buffer else ():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        return pair
    with socket.socket() as listener:
        near = socket.socket()
        for one in (listener, near) if buffer else ():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        near.connect(listener.getsockname())
        far, _ = listener.accept()
    for one in (near, far):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


class Kit:
    """Makes connected things of one core and closes them in the right order."""

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        self.flusher = core.Flusher()
        self.pool = core.Pool()
        self._sockets: list[Any] = []
        self._streams: list[Any] = []
        self._raw: list[socket.socket] = []

    def stream(self, fd: int, socket_type: int = PUSH, **options: Any) -> Any:
        stream = self.core.Stream(fd, socket_type, self.flusher, self.pool, **options)
        self._streams.append(stream)
        return stream

    def raw(self, kind: str = "unix", buffer: int = 0, **options: Any) -> tuple[Any, socket.socket]:
        """A stream, and the bare socket at its other end."""
        near, far = connected(kind, buffer)
        far.settimeout(10)
        self._raw.append(far)
        near.setblocking(False)
        return self.stream(near.detach(), **options), far

    def pair(self, kind: str = "unix", buffer: int = 0, **options: Any) -> tuple[Any, Any]:
        """Two streams that are connected."""
        near, far = connected(kind, buffer)
        near.setblocking(False)
        far.setblocking(False)
        return self.stream(near.detach(), PUSH, **options), self.stream(far.detach(), PULL, **options)

    def socket(self, send_mode: int = 0, receive_mode: int = 0, base: type | None = None) -> Any:
        """A SocketBase whose hooks write down what they are told."""
        made = recording(base or self.core.SocketBase)(PUSH, send_mode, receive_mode, self.flusher, self.pool)
        made.send_timeout = made.receive_timeout = 10_000
        self._sockets.append(made)
        return made

    def pusher(self, *streams: Any) -> Any:
        made = self.socket(send_mode=ROUND_ROBIN)
        for stream in streams:
            made._attach(stream, True, False)
        return made

    def puller(self, *streams: Any) -> Any:
        made = self.socket(receive_mode=FAIR)
        for stream in streams:
            made._attach(stream, False, True)
        return made

    def close(self) -> None:
        for made in self._sockets:
            made._close_core()
        for stream in self._streams:
            stream.close()
        self.flusher.close()
        self.pool.close()
        for far in self._raw:
            far.close()


def recording(base: type) -> type:
    class Recording(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.controls: list[tuple[Any, bytes]] = []
            self.losses: list[tuple[Any, BaseException]] = []
            self.general: list[tuple[Any, ...]] = []

        def _on_control(self, stream: Any, frame: Any) -> None:
            self.controls.append((stream, frame.bytes))

        def _on_lost(self, stream: Any, error: BaseException) -> None:
            self.losses.append((stream, error))

        def _send_general(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
            self.general.append(("send", data, flags, copy, track))
            return "sent in general"

        def _recv_general(self, flags: int, copy: bool, track: bool) -> Any:
            self.general.append(("recv", flags, copy, track))
            return "received in general"

        def _deliver(self, stream: Any, frames: list[Any], flags: int, copy: bool) -> Any:
            return ("delivered", stream, frames, flags, copy)

    return Recording


@pytest.fixture
def kit(core: ModuleType) -> Iterator[Kit]:
    made = Kit(core)
    yield made
    made.close()
