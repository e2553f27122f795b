"""The limit of a message holds for all its frames together, and is known before there is memory for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.raw_frames import EXTENDED, EXTENDED_META, META, MORE, TENSOR, TOPIC, Raw, eventually
from transfer.transports.core.wire import MAX_FRAMES
from transfer.transports.errors import ProtocolError, UsageError

LIMIT = 1_000_000


def received(stream: Any) -> Any:
    return eventually(stream.receive)


@pytest.mark.parametrize("size", [0, 100, 5_000, 100_000])
def test_parts_count_together(kit: Any, size: int) -> None:
    stream, far = kit.raw("tcp", max_message=LIMIT)
    good = [Raw(b"x" * (LIMIT // 2), MORE), Raw(b"x" * (LIMIT // 2 - size), MORE), Raw(b"x" * size)]
    for _ in range(2):  # what the first had does not count for the second
        for frame in good:
            far.sendall(frame.encode())
            stream_fed = stream.receive()
        message = stream_fed or received(stream)
        assert sum(len(frame.data) for frame in message) == LIMIT
        del message, stream_fed
    used = kit.pool.in_use
    far.sendall(good[0].encode())
    far.sendall(Raw(flags=MORE, length=LIMIT // 2 + 1).encode())
    with pytest.raises(ProtocolError) as caught:
        received(stream)
    assert caught.value.reason == "too_large" and "maxmsgsize" in str(caught.value)
    assert kit.pool.in_use <= used + LIMIT, "nothing may be allocated for what is too much"


@pytest.mark.parametrize(
    "extra",
    [Raw(flags=MORE | TOPIC, topic=b"t" * 60_000), Raw(flags=MORE | TENSOR | EXTENDED, meta=EXTENDED_META)],
    ids=["topics", "tensor headers"],
)
def test_topics_and_tensor_headers_count_too(kit: Any, extra: Raw) -> None:
    stream, far = kit.raw(max_message=100_000)
    encoded = extra.encode()
    with pytest.raises(ProtocolError) as caught:
        for _ in range(5_000):
            far.sendall(encoded)
            assert stream.receive() is None
    assert caught.value.reason == "too_large"


def test_a_single_tensor_is_measured_by_its_data(kit: Any) -> None:
    stream, far = kit.raw(max_message=1000)
    far.sendall(Raw(b"x" * 1000, TENSOR | TOPIC, meta=META, topic=b"topic").encode())
    assert len(received(stream)[0]) == 1000


def test_a_message_has_a_number_of_frames_at_most(kit: Any) -> None:
    stream, far = kit.raw()
    some = Raw(flags=MORE).encode() * 1024
    with pytest.raises(ProtocolError) as caught:
        for _ in range(MAX_FRAMES // 1024 + 1):
            far.sendall(some)
            while stream.receive() is not None:
                pass
    assert caught.value.reason == "length"


def test_who_sends_hears_of_too_many_frames(kit: Any) -> None:
    stream, _far = kit.raw()
    with pytest.raises(UsageError, match=str(MAX_FRAMES)):
        stream.send([(0, 0, None, None, b"")] * (MAX_FRAMES + 1))
    assert stream.queued == 0
