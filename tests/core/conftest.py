"""The core under test is a parameter: the Python twin and the compiled one, in one session."""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from tests.core.certificates import CROSSED, TlsPki, core_of
from tests.core.raw_frames import PULL, PUSH

ROUND_ROBIN, FANOUT = 1, 2
FAIR, FILTERED = 1, 2


@pytest.fixture(params=["pure", "native"])
def core(request: pytest.FixtureRequest) -> ModuleType:
    """The module with Pool, Lease, HeldBuffer, Frame, Flusher, Stream, SocketBase."""
    try:
        module = importlib.import_module(f"transfer.transports.core.{request.param}")
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

    def __init__(self, core: ModuleType, pki: TlsPki | None = None) -> None:
        self.core = core
        self.pki = pki  # of TLS under the streams, if there is to be some
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
        """A stream, and the bare socket at its other end; with TLS that of Python's `ssl`."""
        near, far = connected(kind, buffer)
        if self.pki is not None:
            far, options["channel"] = self.pki.wrapped(near, far, self.core)
        far.settimeout(10)
        self._raw.append(far)
        near.setblocking(False)
        return self.stream(near.detach(), **options), far

    def pair(self, kind: str = "unix", buffer: int = 0, **options: Any) -> tuple[Any, Any]:
        """Two streams that are connected."""
        near, far = connected(kind, buffer)
        near.setblocking(False)
        far.setblocking(False)
        ours, theirs = options, options
        if self.pki is not None:
            channels = self.pki.channels(near, far, self.core, self.core)
            ours, theirs = ({**options, "channel": channel} for channel in channels)
        return self.stream(near.detach(), PUSH, **ours), self.stream(far.detach(), PULL, **theirs)

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
    module = next(kind.__module__ for kind in base.__mro__ if kind.__name__ == "SocketBase")
    core_of_base = importlib.import_module(module.rpartition(".")[0])

    class Recording(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.controls: list[tuple[Any, bytes]] = []
            self.losses: list[tuple[Any, BaseException]] = []
            self.general: list[tuple[Any, ...]] = []
            self._here = threading.local()

        def _socket_thread(self) -> Any:
            if not hasattr(self._here, "thread"):
                self._here.thread = core_of_base.SocketThread(self._unfinished)
            return self._here.thread

        def _on_control(self, stream: Any, frame: Any) -> None:
            self.controls.append((stream, frame.bytes))

        def _on_lost(self, stream: Any, error: BaseException) -> None:
            self.losses.append((stream, error))

        def _send_general(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
            self.general.append(("send", data, flags, copy, track))
            return "sent in general"

        def _send_multipart(self, parts: Any, flags: int, copy: bool, track: bool) -> Any:
            self.general.append(("send_multipart", parts, flags, copy, track))
            return "sent in general"

        def _recv_multipart(self, flags: int, copy: bool) -> Any:
            self.general.append(("recv_multipart", flags, copy))
            return ["received", "in general"]

        def _recv_general(self, flags: int, copy: bool, track: bool) -> Any:
            self.general.append(("recv", flags, copy, track))
            return "received in general"

        def _deliver(self, stream: Any, frames: list[Any], flags: int, copy: bool) -> Any:
            return ("delivered", stream, frames, flags, copy)

    return Recording


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TlsPki:
    return TlsPki.made(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def carried() -> str:
    """What is under the streams; modules whose tests hold for TLS too have their own: `BOTH`."""
    return "plain"


def both(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: carried = BOTH: each test of the module runs over plain sockets and over TLS
BOTH = pytest.fixture(params=["plain", "tls"], name="carried")(both)


@pytest.fixture
def kit(core: ModuleType, carried: str, pki: TlsPki) -> Iterator[Kit]:
    made = Kit(core, pki if carried == "tls" else None)
    yield made
    made.close()


@pytest.fixture(params=CROSSED, ids="-".join)
def cores(request: pytest.FixtureRequest) -> tuple[ModuleType, ModuleType]:
    """(of the client, of the server)"""
    client, server = map(core_of, request.param)
    return client, server


@pytest.fixture
def line(cores: tuple[ModuleType, ModuleType], pki: TlsPki) -> Iterator[Callable[..., Any]]:
    """make(kind, buffer) -> (near, far, client's channel, server's channel)"""
    with ExitStack() as stack:

        def make(kind: str = "tcp", buffer: int = 0) -> Any:
            near, far = connected(kind, buffer)
            stack.enter_context(near)
            stack.enter_context(far)
            return near, far, *pki.channels(near, far, *cores)

        yield make
