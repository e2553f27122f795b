"""The golden frames: our bytes are those of `tests/data/wire`, and those are read as what they are."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import lz4.frame
import numpy as np
import pytest

from tests.tensors.pairs import CORES, bytes_of, load_core
from tests.tensors.vectors import FOLDER, HELLO, VECTORS, Vector, path_of, read
from transfer.lz4_frame import decompress
from transfer.tensors.build import NUMPY, recipe_for
from transfer.tensors.bundle_arrival import BundleArrival
from transfer.transports.core.wire import HEADER, HEADER_SIZE, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake import hello

STREAMED = [name for name, vector in VECTORS.items() if vector.frames]


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> ModuleType:
    return load_core(request.param)


class Wire:
    """A stream of a core, and the bare socket at its other end."""

    def __init__(self, core: ModuleType, vector: Vector) -> None:
        self.pool = core.Pool()
        self.flusher = core.Flusher()
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.settimeout(10)
        self.stream = core.Stream(
            near.detach(), int(vector.socket_type), self.flusher, self.pool, checksum=vector.checksum
        )

    def close(self) -> None:
        self.stream.close()
        self.far.close()
        self.flusher.close()
        self.pool.close()


@pytest.fixture
def wire(core: ModuleType) -> Iterator[Any]:
    made: list[Wire] = []
    yield lambda vector: made.append(Wire(core, vector)) or made[-1]
    for one in made:
        one.close()


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_writes_the_golden_bytes(wire: Any, name: str) -> None:
    golden = read(name)
    line = wire(VECTORS[name])
    assert line.stream.send(VECTORS[name].frames, hold=True)
    written = b""
    while len(written) < len(golden):
        line.stream.flush()
        written += line.far.recv(1 << 20)
    assert written == golden


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_reads_the_golden_bytes(wire: Any, name: str) -> None:
    vector = VECTORS[name]
    line = wire(Vector(""))
    line.far.sendall(read(name))
    frames = None
    while frames is None:
        frames = line.stream.receive()
    assert len(frames) == len(vector.frames)
    for frame, (flags, sequence, topic, meta, data) in zip(frames, vector.frames, strict=True):
        assert frame.flags & flags == flags
        assert (frame.sequence, frame.topic, frame.meta) == (sequence, topic, meta)
        assert bytes_of(frame.buffer) == bytes_of(data)
    if isinstance(vector.tensors, dict):
        tensors, metadata = BundleArrival(NUMPY, None).finish(frames)
        assert metadata == {"epoch": 3}
        assert all(np.array_equal(tensors[key], value) for key, value in vector.tensors.items())
    elif vector.tensors is not None:
        got = NUMPY.build(recipe_for(frames[0].meta), frames[0].data)
        assert got.dtype == vector.tensors.dtype
        assert np.array_equal(got, vector.tensors)


@pytest.mark.parametrize("name", VECTORS)
def test_the_golden_bytes_by_hand(name: str) -> None:
    """Taken apart with nothing but the specification."""
    data, at, more = read(name), 0, True
    while at < len(data):
        assert more, "a frame behind the last of the message"
        magic, version, kind, flags, _, topic, length, checksum = HEADER.unpack_from(data, at)
        assert (magic, version) == (0x5A4D5121, 1)
        assert data[at : at + 4] == b"!QMZ"
        assert kind in set(SocketType)
        at += HEADER_SIZE
        meta = 0
        if flags & Flag.TENSOR:
            meta = struct.unpack_from("<I", data, at)[0] if flags & Flag.EXTENDED else 48
        rest = data[at : at + meta + topic + length]
        assert len(rest) == meta + topic + length
        assert checksum == (zlib.crc32(rest) if flags & Flag.CRC else 0)
        at += len(rest)
        more = bool(flags & Flag.MORE)
    assert not more


def test_hello() -> None:
    assert VECTORS["hello"].raw == read("hello")
    assert hello.decode_body(read("hello")[HEADER_SIZE:], SocketType.PUSH) == HELLO
    assert VECTORS["refused"].raw == read("refused")
    with pytest.raises(HandshakeError, match="PULL cannot talk to PULL"):
        hello.decode_body(read("refused")[HEADER_SIZE:], SocketType.PULL)


def test_a_compressed_frame() -> None:
    """Compressors may differ in their bytes, so that this one is only read."""
    data = read("compressed")
    _, _, _, flags, _, _, length, _ = HEADER.unpack_from(data)
    assert flags == Flag.LZ4
    assert length == len(data) - HEADER_SIZE
    content = decompress(data[HEADER_SIZE:], 1 << 20)
    assert content == b"transfer" * 200
    assert lz4.frame.get_frame_info(data[HEADER_SIZE:])["content_size"] == len(content)


def test_there_is_no_golden_file_too_many() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == {*VECTORS, "compressed"}
    assert all(path_of(name).read_text().startswith("# ") for name in VECTORS)
