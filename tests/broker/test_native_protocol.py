"""The heads between programs and the broker: vectors of the document, and bad ones."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.broker.vectors import vectors
from transfer.broker.protocols.native import (
    LARGEST_HEAD,
    MOST,
    Head,
    Join,
    Op,
    decode,
    decode_deliveries,
    decode_join,
    decode_nack,
    decode_words,
    encode,
    encode_deliveries,
    encode_join,
    encode_nack,
)
from transfer.broker.protocols.native_batch import encode_several
from transfer.transports.errors import ProtocolError

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocols" / "native.md").read_text()
VECTORS = {
    "PUBLISH number 7": encode(Op.PUBLISH, 7, b"logs"),
    "ACK of consumer 3": encode(Op.ACK, 3, encode_deliveries([(5, 1, 0)])),
    "SEVERAL: that PUBLISH": encode_several(
        Op.SEVERAL, [(encode(Op.PUBLISH, 7, b"logs"), 1), (encode(Op.ALIVE, 0), 0)]
    ),
    "KEPT: numbers": encode(Op.KEPT, 7, count=3),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_document_tells_the_bytes(name):
    assert [data for what, data in vectors("native").items() if what.startswith(name)] == [VECTORS[name]]


@pytest.mark.parametrize("op", list(Op))
def test_the_document_names_each_op(op):
    assert re.search(rf"^\| {op.value} {op.name} \|", DOCUMENT, re.MULTILINE)


@given(st.sampled_from(Op), st.integers(0, 2**63 - 1), st.integers(0, MOST), st.binary(max_size=64))
def test_a_head_comes_back(op, number, count, body):
    assert decode(encode(op, number, body, count)) == Head(op, number, count, body)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "head"),
        (bytes(15), "head"),
        (bytes(LARGEST_HEAD + 1), "head"),
        (b"\x02\x01" + bytes(14), "version"),
        (b"\x01\x63" + bytes(14), "op"),
        (struct.pack("<BBHIQ", 1, 1, 0, 2**32 - 1, 0), "count"),
    ],
)
def test_a_bad_head_is_refused(data, reason):
    with pytest.raises(ProtocolError) as caught:
        decode(data)
    assert caught.value.reason == reason


@given(st.binary(max_size=64))
def test_any_bytes_are_a_head_or_refused(data):
    try:
        head = decode(data)
    except ProtocolError as error:
        refused = error.reason
    else:
        again = encode(head.op, head.number, head.body, head.amount)
        assert (again[:2], again[4:]) == (data[:2], data[4:])
        return
    assert refused in ("head", "version", "number", "op", "count")


def test_deliveries_have_to_be_whole():
    head = decode(encode(Op.ACK, 1, encode_deliveries([(1, 2, 0), (3, 4, 0)]), 2))
    assert [tuple(one) for one in decode_deliveries(head)] == [(1, 2, 0), (3, 4, 0)]
    with pytest.raises(ProtocolError):
        decode_deliveries(head._replace(amount=3))


def test_a_reason_travels_with_a_refusal():
    head = decode(encode(Op.NACK, 1, encode_nack((9, 2), "no room: ü", retry=True)))
    assert decode_nack(head) == (9, 2, True, "no room: ü")
    with pytest.raises(ProtocolError):
        decode_nack(head._replace(body=b"short"))


def test_a_wish_to_join_is_checked():
    join = Join("orders", "workers", 10, "old", 2.5)
    assert decode_join(decode(encode(Op.JOIN, 1, encode_join(join)))) == join
    for bad in (
        b"{}",
        b"[]",
        b"{",
        b'{"topic": "", "group": "g"}',
        b'{"topic": "t", "group": "g", "window": 0}',
        b'{"topic": "t", "group": "g", "window": true}',
        b'{"topic": "t", "group": "g", "begin": "middle"}',
        b'{"topic": "t", "group": "g", "timeout": -1}',
        b'{"topic": "t", "group": "g", "more": 1}',
        b'{"topic": "' + b"x" * 256 + b'", "group": "g"}',
    ):
        with pytest.raises(ProtocolError):
            decode_join(decode(encode(Op.JOIN, 1, bad)))


@pytest.mark.parametrize(
    "text",
    [b'{"group": "\\ud800"}', b'{"\\uDFFF": 1}', b'{"group": "\xff"}', b'{"timeout":NaN}', b'{"a":1e999}'],
)
def test_words_that_are_no_text_are_refused(text):
    """Half a surrogate pair: as a group's name no metric, log or answer could be written any more."""
    with pytest.raises(ProtocolError, match="not JSON"):
        decode_words(Head(Op.JOIN, 1, 1, text))


def test_a_surrogate_pair_is_one_character():
    assert decode_words(Head(Op.JOIN, 1, 1, b'{"group": "\\ud83d\\ude00"}')) == {"group": "\U0001f600"}
