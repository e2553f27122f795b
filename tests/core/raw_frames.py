"""Frames built and taken apart by hand, so that no core is judged by itself."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

HEADER = struct.Struct("<IIBBQIQI")
MAGIC = 0x5A4D5121
TENSOR, TOPIC, ACK, CONTROL, MORE, CRC, EXTENDED, LZ4 = 1, 2, 4, 8, 16, 32, 64, 128
PUSH, PULL = 4, 5
META = struct.pack("<II4qB7x", 9, 1, 2, 0, 0, 0, 0)
EXTENDED_META = struct.pack("<I", 24) + bytes(range(20))


@dataclass
class Raw:
    """One frame as it stands on the wire."""

    data: bytes = b""
    flags: int = 0
    sequence: int = 1
    meta: bytes = b""
    topic: bytes = b""
    checksum: int | None = None  # None: the right one
    magic: int = MAGIC
    version: int = 1
    socket_type: int = PUSH
    topic_length: int | None = None
    length: int | None = None

    def encode(self) -> bytes:
        check = self.checksum
        if check is None:
            check = zlib.crc32(self.meta + self.topic + self.data) if self.flags & CRC else 0
        topic_length = len(self.topic) if self.topic_length is None else self.topic_length
        length = len(self.data) if self.length is None else self.length
        head = HEADER.pack(
            self.magic, self.version, self.socket_type, self.flags, self.sequence, topic_length, length, check
        )
        return head + self.meta + self.topic + self.data


def decode(data: bytes) -> list[Raw]:
    """All frames in `data`, which must end with a whole one."""
    frames, at = [], 0
    while at < len(data):
        magic, version, kind, flags, sequence, topic_length, length, check = HEADER.unpack_from(data, at)
        assert (magic, version) == (MAGIC, 1)
        at += HEADER.size
        meta_length = 0
        if flags & EXTENDED:
            (meta_length,) = struct.unpack_from("<I", data, at)
        elif flags & TENSOR:
            meta_length = 48
        meta, at = data[at : at + meta_length], at + meta_length
        topic, at = data[at : at + topic_length], at + topic_length
        payload, at = data[at : at + length], at + length
        assert len(payload) == length, "the bytes end inside a frame"
        frames.append(Raw(payload, flags, sequence, meta, topic, check, socket_type=kind))
    return frames


def read(sock: socket.socket, nbytes: int, timeout: float = 10.0) -> bytes:
    """Exactly `nbytes` from a socket."""
    sock.settimeout(timeout)
    data = bytearray()
    while len(data) < nbytes:
        part = sock.recv(min(1 << 20, nbytes - len(data)))
        assert part, f"the stream ended after {len(data)} of {nbytes} bytes"
        data += part
    return bytes(data)


def read_frame(sock: socket.socket, timeout: float = 10.0) -> Raw:
    """The next frame from a socket (no extended tensor header)."""
    head = read(sock, HEADER.size, timeout)
    _, _, _, flags, _, topic_length, length, _ = HEADER.unpack(head)
    rest = read(sock, (48 if flags & TENSOR else 0) + topic_length + length, timeout)
    return decode(head + rest)[0]


def eventually(condition: Callable[[], object], timeout: float = 10.0) -> object:
    """Waits until the condition holds and returns its value; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)
    return value


def plain(data: object, **changes: object) -> tuple[object, ...]:
    """An OutFrame of nothing but data, unless changed."""
    frame = {"flags": 0, "sequence": 0, "topic": None, "meta": None, "data": data} | changes
    return tuple(frame.values())
