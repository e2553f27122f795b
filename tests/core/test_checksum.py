"""CRC-32C by the compiled core, with and without the processor's instruction, and by the twin."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize(
    ("data", "value"),
    [
        # RFC 3720, appendix B.4, as numbers
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_known_values(core, data, value, software):
    assert core.crc32c(data, software=software) == value


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 8))
def test_all_ways_agree_and_it_can_be_continued(data, cut, shift):
    from transfer.transports.core import native, pure

    data = memoryview(data)[shift:]
    whole = pure.crc32c(data)
    assert native.crc32c(data) == native.crc32c(data, software=True) == whole
    for module in (native, pure):
        assert module.crc32c(data[cut:], module.crc32c(data[:cut])) == whole
    assert native.crc32c(data[cut:], native.crc32c(data[:cut], software=True), software=True) == whole


@pytest.mark.parametrize("size", [3071, 3072, 3073, 3080, 6144, 6143, 9216 + 1024, 100_003])
@pytest.mark.parametrize("begin", [0, 1, 5])
def test_parts_that_are_summed_at_the_same_time(size, begin):
    from transfer.transports.core import native

    data = memoryview(random.Random(size).randbytes(size + begin))[begin:]
    for value in (0, 1, 0xFFFFFFFF, 0x12345678):
        assert native.crc32c(data, value) == native.crc32c(data, value, software=True)


def test_large_ones_and_what_is_not_contiguous(core):
    large = bytearray(b"transfer" * 5_000)
    assert core.crc32c(large) == core.crc32c(bytes(large)) == core.crc32c(memoryview(large), software=True)
    with pytest.raises((BufferError, TypeError)):
        core.crc32c(memoryview(large)[::2])
    with pytest.raises(TypeError):
        core.crc32c("text")
