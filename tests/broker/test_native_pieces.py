"""What is said of large messages: the vectors of the document, and bad words."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.broker.vectors import vectors
from transfer.broker.protocols.native import Op, decode, encode
from transfer.broker.protocols.native_pieces import (
    Begin,
    Part,
    Place,
    decode_begin,
    decode_grant,
    decode_place,
    encode_begin,
    encode_grant,
    encode_place,
    pack_parts,
    unpack_parts,
)
from transfer.transports.errors import ProtocolError

TENSOR = Part(1, bytes(48), 100)
VECTORS = {
    "BEGIN of message 7": encode_begin(7, Begin(b"logs", 16 << 20, b"")),
    "GRANT for message 7": encode_grant(7, 4 << 20),
    "FETCH of consumer 3": encode_place(Op.FETCH, 3, Place(5, 1, 16 << 20)),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_document_tells_the_bytes(name):
    assert [data for what, data in vectors("native").items() if what.startswith(name)] == [VECTORS[name]]


PARTS = st.lists(
    st.one_of(
        st.builds(Part, st.just(0), st.just(b""), st.integers(0, 1 << 60)),
        st.builds(Part, st.just(1), st.binary(min_size=48, max_size=48), st.integers(0, 1 << 60)),
    ),
    min_size=1,
    max_size=5,
)


@given(PARTS)
def test_parts_come_back(parts):
    again = unpack_parts(pack_parts(parts))
    assert again == ([] if len(parts) == 1 and not parts[0].meta else parts)


@given(PARTS, st.binary(max_size=300))
def test_a_begin_comes_back(parts, topic):
    nbytes = sum(part.nbytes for part in parts)
    begin = Begin(topic, nbytes, pack_parts(parts))
    if not nbytes or nbytes >> 63:
        return
    assert decode_begin(decode(encode_begin(1, begin))) == begin


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=9))
def test_places_and_grants_come_back(offset, attempt, position, rest):
    place = Place(offset, attempt, position)
    assert decode_place(decode(encode_place(Op.OFFER, 1, place, rest))) == (place, rest)
    assert decode_grant(decode(encode_grant(1, position))) == position


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (Begin(b"t", 0, b""), "length"),
        (Begin(b"t", 99, pack_parts([TENSOR])), "parts"),
        (Begin(b"t", 100, pack_parts([TENSOR])[:-1]), "parts"),
        (Begin(b"t", 100, pack_parts([TENSOR])[:11]), "parts"),
        (Begin(b"t", 100, pack_parts([Part(1, bytes(47), 100)])), "parts"),
        (Begin(b"t", 100, pack_parts([Part(0, bytes(48), 100)])), "parts"),
        (Begin(b"t", 100, pack_parts([Part(65, bytes(48), 100)])), "parts"),
        (Begin(b"t", 100, pack_parts([Part(129, bytes(48), 100)])), "parts"),
        (Begin(b"t", 100, pack_parts([Part(16, b"", 50), Part(0, b"", 50)])), "parts"),
    ],
)
def test_a_bad_begin_is_refused(begin, reason):
    with pytest.raises(ProtocolError) as caught:
        decode_begin(decode(encode_begin(1, begin)))
    assert caught.value.reason == reason


@pytest.mark.parametrize("read", [decode_begin, decode_grant, decode_place])
@given(body=st.binary(max_size=64))
def test_any_body_is_read_or_refused(read, body):
    try:
        read(decode(encode(Op.BEGIN, 1, body)))
    except ProtocolError as error:
        refused = error.reason
    else:
        return
    assert refused in ("begin", "length", "parts", "grant", "place")
