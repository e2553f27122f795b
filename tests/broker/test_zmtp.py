"""The beginning of a connection of ZeroMQ."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from transfer.broker.protocols.zmtp import (
    GREETING,
    IDENTITY,
    LONGEST_READY,
    check_greeting,
    read_ready,
    write_ready,
)
from transfer.transports.errors import ProtocolError

WHOLE = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
identities = st.binary(max_size=255).filter(lambda one: not one.startswith(b"\0"))


@given(
    identities,
    st.dictionaries(
        st.binary(max_size=30).filter(lambda name: name != IDENTITY), st.binary(max_size=50), max_size=9
    ),
    st.binary(),
)
def test_ready_is_read_as_it_was_written(identity, others, behind):
    properties = {**others, IDENTITY: identity}
    frame = write_ready(properties)
    assert read_ready(memoryview(frame + behind)) == (len(frame), properties)
    for size in range(len(frame)):
        assert read_ready(memoryview(frame[:size])) is None


@given(st.binary(max_size=300), st.sampled_from([b"", b"\4", b"\4\x20\5READY", b"\6"]))
def test_any_bytes_are_ready_or_refused(data, begin):
    with suppress(ProtocolError):
        read = read_ready(memoryview(begin + data))
        assert read is None or read[0] <= LONGEST_READY


@given(st.integers(0, GREETING - 1), st.integers(0, 255))
def test_each_beginning_of_a_greeting_is_judged_alike(at, other):
    """A byte that makes a whole greeting wrong is seen when it comes."""
    data = WHOLE[:at] + bytes([other]) + WHOLE[at + 1 :]

    def is_good(begin):
        try:
            check_greeting(begin)
        except ProtocolError:
            return False
        return True

    assert [is_good(data[:size]) for size in range(1, GREETING + 1)] == [
        size <= at or is_good(data) for size in range(1, GREETING + 1)
    ]


@pytest.mark.parametrize(
    "body",
    [b"\5ERROR\0", b"\5READY\x08Identity\0\0\0\5me", b"\5READY\1", b"\5READY" + bytes(LONGEST_READY),
     b"\5READY" + 2 * b"\1a\0\0\0\0",
     b"\5READY\x08Identity\0\0\0\1\0", b"\5READY\x08Identity\0\0\1\0" + bytes([1] * 256)],
)  # fmt: skip
def test_what_is_no_ready(body):
    with pytest.raises(ProtocolError):
        read_ready(memoryview(b"\6" + len(body).to_bytes(8, "big") + body))
