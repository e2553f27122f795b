"""LZ4 for frames: only when it pays, and never more memory than was promised."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.tensors.pairs import refusal
from transfer.lz4_frame import (
    MIN_SIZE,
    WORTHWHILE,
    compress,
    content_size,
    decompress,
    decompress_writable,
)
from transfer.transports.errors import NotSupported, ProtocolError


@given(st.binary(max_size=64), st.integers(1, 5000))
def test_round_trip(piece: bytes, times: int) -> None:
    data = piece * times
    packed = compress(data)
    if packed is None:
        assert len(data) < MIN_SIZE or len(lz4.frame.compress(data)) > WORTHWHILE * len(data) - 16
        return
    assert len(packed) < WORTHWHILE * len(data)
    assert content_size(packed) == len(data)
    assert decompress(packed, len(data)) == data
    assert lz4.frame.decompress(packed) == data
    writable = decompress_writable(memoryview(packed), len(data))
    assert type(writable) is bytearray
    assert writable == data


def test_only_when_it_pays() -> None:
    assert compress(b"a" * (MIN_SIZE - 1)) is None
    assert compress(b"a" * MIN_SIZE) is not None
    assert compress(b"a" * 5000, threshold=5001) is None
    assert compress(os.urandom(5000)) is None
    assert compress(os.urandom(1 << 20)) is None
    assert compress(b"") is None
    assert compress(b"", threshold=0) is None


def test_a_sample_decides_for_large_data(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = lz4.frame.compress
    monkeypatch.setattr(
        lz4.frame, "compress", lambda data, **o: (sizes.append(len(data)), original(data, **o))[1]
    )
    assert compress(os.urandom(10 << 20)) is None
    assert sizes == [3 * 4096]


def test_any_contiguous_buffer() -> None:
    array = np.zeros((100, 100), "f8")
    packed = compress(array)
    assert packed is not None
    assert decompress(packed, array.nbytes) == bytes(array.nbytes)


def test_a_limit_is_a_limit() -> None:
    packed = compress(bytes(10_000))
    assert packed is not None
    assert len(decompress(packed, 10_000)) == 10_000
    with pytest.raises(ProtocolError, match="at most 9999") as caught:
        decompress(packed, 9_999)
    assert caught.value.reason == "compression"


GOOD = lz4.frame.compress(bytes(10_000), store_size=True)


def with_size(size: int) -> bytes:
    return GOOD[:6] + struct.pack("<Q", size) + GOOD[14:]


@pytest.mark.parametrize(
    "data",
    [
        b"", GOOD[:10], GOOD[:20], GOOD[:-1], GOOD + b"x", GOOD + GOOD, b"x" + GOOD[1:], os.urandom(100),
        lz4.frame.compress(bytes(10_000), store_size=False),
        with_size(9_999), with_size(10_001), with_size(0), with_size(1 << 62), with_size((1 << 64) - 1),
        lz4.frame.compress(bytes(1 << 20), store_size=True)[:6] + struct.pack("<Q", 100) + GOOD[14:],
    ],
    ids=lambda data: f"{len(data)} bytes",
)  # fmt: skip
def test_broken_frames_and_bombs(data: bytes) -> None:
    error = refusal(decompress, data, 1 << 63)
    assert error is not None
    assert error.reason == "compression"


def test_a_bomb_takes_no_memory() -> None:
    """In a process that may not have it."""
    bomb = lz4.frame.compress(bytes(2 << 30), store_size=True)
    code = (
        "import resource, sys; from transfer.lz4_frame import decompress; import lz4.frame\n"
        "from transfer.transports.errors import ProtocolError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "data = sys.stdin.buffer.read()\n"
        "try: decompress(data, 1 << 20)\n"
        "except ProtocolError as error: print(error.reason)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input=bomb, capture_output=True, timeout=60, check=True
    )
    assert run.stdout.strip() == b"compression"


@given(st.binary(max_size=200), st.integers(0, 200))
def test_garbage(garbage: bytes, at: int) -> None:
    for data in (garbage, GOOD[:15] + garbage, GOOD[:at] + garbage):
        error = refusal(decompress, data, 20_000)
        assert error is None or error.reason == "compression"


def test_without_the_library_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import transfer.lz4_frame as module

    assert module.available()
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    assert not module.available()
    for call in (lambda: compress(bytes(1000)), lambda: decompress(GOOD, 10_000)):
        with pytest.raises(NotSupported, match=r"pip install .*\[lz4\]"):
            call()
