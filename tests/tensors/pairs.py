"""Sockets for these tests: a pair on a real core, and one without any I/O."""

from __future__ import annotations

import contextlib
import importlib
import socket
from collections import deque
from types import ModuleType
from typing import Any

import pytest

from transfer.lz4_frame import compress
from transfer.tensors import TensorMethods
from transfer.transports.core.pure import Frame
from transfer.transports.core.wire import Flag, SocketType
from transfer.transports.errors import Again, ProtocolError

CORES = ("native", "pure")
ROUND_ROBIN, FAIR = 1, 1
DONTWAIT = 1
TIMEOUT = 10_000  # ms
LZ4 = int(Flag.LZ4)


def load_core(name: str) -> ModuleType:
    """A core by name; skips the test if it was not built."""
    if name == "native":
        pytest.importorskip(
            "transfer.transports.core.native.stream", reason="the compiled core was not built"
        )
    return importlib.import_module(f"transfer.transports.core.{name}")


def compressed(frame: Any) -> Any:
    """The frame with an LZ4 payload, if that pays."""
    flags, sequence, topic, meta, data = frame
    packed = compress(data)
    return frame if packed is None else (flags | LZ4, sequence, topic, meta, packed)


class Pair(contextlib.ExitStack):
    """`sender` (PUSH) and `receiver` (PULL), joined by a socket pair."""

    def __init__(self, core: ModuleType, *, checksum: bool = False, compress: bool = False) -> None:
        super().__init__()
        returned: list[Any] = []

        class CoreSocket(core.SocketBase, TensorMethods):
            def _send_outframes(self, frames: Any, flags: int, track: bool, copy: bool | None) -> Any:
                if compress:
                    frames = [compressed(frame) for frame in frames]
                timeout = 0 if flags & DONTWAIT else TIMEOUT
                return self._send_frames(frames, timeout, hold=copy is False)

            def _send_known(self, tensor: Any, flags: int) -> bool:
                return not compress and super()._send_known(tensor, flags)

            def _recv_frames(self, flags: int, sink: Any) -> Any:
                if returned:
                    return returned.pop()
                return self._recv_message(0 if flags & DONTWAIT else TIMEOUT, sink)[1]

            def _unreceive(self, frames: Any) -> None:
                returned.append(frames)

            def _receive_valid(self, receive: Any, *arguments: Any) -> Any:
                return receive(*arguments)

        self.pool = core.Pool()
        self.flusher = core.Flusher()
        self.callback(self.pool.close)
        self.callback(self.flusher.close)
        ours, theirs = socket.socketpair()
        self.sender = self._socket(CoreSocket, core, SocketType.PUSH, ours, checksum)
        self.receiver = self._socket(CoreSocket, core, SocketType.PULL, theirs, checksum)

    def _socket(
        self, kind: Any, core: ModuleType, role: SocketType, end: socket.socket, checksum: bool
    ) -> Any:
        sends = role is SocketType.PUSH
        made = kind(role, ROUND_ROBIN if sends else 0, 0 if sends else FAIR, self.flusher, self.pool)
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        stream = core.Stream(end.detach(), role, self.flusher, self.pool, checksum=checksum)
        made._attach(stream, sends, not sends)
        self.callback(stream.close)
        self.callback(made._close_core)
        return made


class Loop(TensorMethods):
    """A socket that receives what it sends, without I/O. `messages` holds frames as they travel.

    It keeps the contract of a sink: compressed frames are not shown to it, and if it raises, the
    message stays (a real socket ends the connection after a ProtocolError).
    """

    def __init__(self, *, compress: bool = False) -> None:
        self.messages: deque[list[Any]] = deque()
        self.compress = compress
        self._newest: list[Any] = []

    def _send_known(self, tensor: Any, flags: int) -> bool:
        return False

    def _note_known(self, tensor: Any, flags: int, header: bytes) -> None:
        pass

    def _send_outframes(self, frames: Any, flags: int, track: bool, copy: bool | None) -> None:
        if self.compress:
            frames = [compressed(frame) for frame in frames]
        self.messages.append([(*frame[:4], bytes_of(frame[4])) for frame in frames])

    def _recv_frames(self, flags: int, sink: Any) -> list[Frame]:
        if not self.messages:
            raise Again("nothing there")
        frames = []
        for bits, sequence, topic, meta, data in self.messages[0]:
            place = None
            if not bits & LZ4:
                place = sink(meta, topic, len(data))
            if place is None:
                place = bytearray(data) if meta is not None else bytes(data)
            else:
                memoryview(place).cast("B")[:] = data
            fresh = None if meta is None else bytes(bytearray(meta))
            frames.append(Frame(place, flags=bits, sequence=sequence, topic=topic, meta=fresh))
        self._newest = self.messages.popleft()
        return frames

    def _unreceive(self, frames: list[Frame]) -> None:
        self.messages.appendleft(self._newest)

    def _receive_valid(self, receive: Any, *arguments: Any) -> Any:
        return receive(*arguments)


def refusal(function: Any, *arguments: Any, **options: Any) -> Any:
    """The ProtocolError that a call raises, or None."""
    try:
        function(*arguments, **options)
    except ProtocolError as error:
        return error
    return None


def bytes_of(buffer: Any) -> bytes:
    return bytes(memoryview(buffer).tobytes())
