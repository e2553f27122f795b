"""The hello: bytes there and back, strict reading, and who may talk to whom."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from transfer.transports.address import POLICIES
from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, TYPES_ON_WIRE, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake import hello as hellos
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.compatibility import compatible
from transfer.transports.handshake.hello import (
    Hello,
    decode_body,
    encode,
    encode_refusal,
    negotiate,
    plain_peer,
)
from transfer.transports.handshake.identity import FEATURES, host_id, make_hello, process_epoch

words = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40)
hello_values = st.builds(
    Hello,
    st.sampled_from(TYPES_ON_WIRE),
    versions=st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))),
    features=st.frozensets(words, max_size=8),
    routing_id=st.binary(max_size=255),
    host_id=texts,
    epoch=texts,
    nonce=st.binary(max_size=16).map(bytes.hex),
    proves=st.booleans(),
    limits=st.dictionaries(words, st.integers(0, 1 << 53), max_size=4),
    offer=st.builds(Offer, st.lists(words, max_size=4).map(tuple), words, st.sampled_from(POLICIES), texts),
    lazy=st.booleans(),
    extra=st.dictionaries(texts, st.integers() | texts | st.lists(st.booleans()), max_size=3),
)


def body(frame: bytes) -> bytes:
    return frame[HEADER_SIZE:]


@given(hello_values)
def test_every_hello_survives_its_bytes(hello):
    frame = encode(hello)
    assert HEADER.unpack_from(frame) == (
        MAGIC, 1, hello.socket_type, Flag.CONTROL, 0, 0, len(frame) - HEADER_SIZE, 0,
    )  # fmt: skip
    assert frame[HEADER_SIZE] == Control.HELLO
    assert decode_body(body(frame), hello.socket_type) == hello


def changed(**fields) -> bytes:
    """A good hello's body with other fields; None leaves one out."""
    good = json.loads(body(encode(make_hello(SocketType.PUSH)))[1:])
    good.update(fields)
    return b"\1" + json.dumps({key: value for key, value in good.items() if value is not None}).encode()


def test_unknown_fields_are_for_later_releases():
    assert decode_body(changed(colour="red"), SocketType.PUSH).socket_type is SocketType.PUSH


def test_what_may_be_missing():
    hello = decode_body(b'\1{"versions":[1,1],"type":4}', SocketType.PUSH)
    assert hello == Hello(SocketType.PUSH, offer=Offer(source=""))


BAD = [
    {"versions": None}, {"versions": [1]}, {"versions": [2, 1]}, {"versions": [0, 1]}, {"versions": ["1", 1]},
    {"versions": [True, 1]}, {"versions": [1, 1 << 20]}, {"type": None}, {"type": 5}, {"type": "4"},
    {"type": 4.0}, {"features": "all"}, {"features": [1]}, {"features": ["Not a word"]},
    {"features": ["x"] * 65},
    {"id": "xyz"}, {"id": "00" * 256}, {"id": 5}, {"host": 5}, {"host": "x" * 2000}, {"epoch": "line\nbreak"},
    {"nonce": "0"}, {"nonce": "00" * 65}, {"proves": 5}, {"proves": "yes"}, {"limits": []},
    {"limits": {"max_message": -1}},
    {"limits": {"max_message": 1 << 60}}, {"limits": {"max_message": "big"}}, {"limits": {"A b": 1}},
    {"limits": {f"l{i}": 1 for i in range(65)}}, {"transports": {}}, {"transports": ["TCP!"]},
    {"protocol": 1}, {"policy": "always"}, {"lazy": 1}, {"extra": []}, {"source": "\ud800"},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_bad_fields_are_refused(fields):
    with pytest.raises(HandshakeError) as caught:
        decode_body(changed(**fields), SocketType.PUSH)
    assert caught.value.reason == "hello"


@pytest.mark.parametrize(
    "data",
    [b"", b"\1", b"\2{}", b"\1{", b"\1[]", b"\1null", b"\1\xff", b'\1{"type":NaN}', b"\1" + b"[" * 16000,
     b'\1{"type":' + b"9" * 9000 + b"}"],
)  # fmt: skip
def test_bad_json_is_refused(data):
    with pytest.raises(HandshakeError) as caught:
        decode_body(data, SocketType.PUSH)
    assert caught.value.reason == "hello"


@given(st.binary(max_size=200), st.sampled_from(TYPES_ON_WIRE), st.booleans())
def test_fuzz(data, socket_type, as_hello):
    with pytest.raises(HandshakeError):
        decode_body(b"\1" + data if as_hello else data, socket_type)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(sorted(json.loads(body(encode(make_hello(SocketType.PUSH, proves=True)))[1:])))


@given(st.dictionaries(keys, json_values, max_size=4))
def test_fuzz_of_the_fields(fields):
    try:
        hello = decode_body(changed(**fields), SocketType.PUSH)
    except HandshakeError:
        return  # and nothing else may be raised
    assert decode_body(body(encode(hello)), SocketType.PUSH) == hello


def test_a_hello_has_a_limit():
    with pytest.raises(HandshakeError, match="16384"):
        encode(make_hello(SocketType.PUSH, extra={"much": "x" * hellos.MAX_HELLO}))


def test_refusals():
    error = HandshakeError("token", "the peer has another token", hint="give both the same")
    data = body(encode_refusal(SocketType.PULL, error))
    with pytest.raises(HandshakeError) as caught:
        decode_body(data, SocketType.PULL)
    assert caught.value.reason == "token"
    # In the words of the side that reads it, which has the token that was found wrong.
    assert caught.value.message == "the peer refused: this side has another token"
    assert caught.value.hint == "give both sides the same token"  # it does not travel


@pytest.mark.parametrize("fields", [{}, {"reason": 5}, {"reason": "<script>"}, {"reason": "x", "message": 1},
                                    {"message": "a\x1b[31m"}])  # fmt: skip
def test_a_refusals_words_are_not_trusted(fields):
    data = bytes([Control.REFUSED]) + json.dumps(fields).encode()
    with pytest.raises(HandshakeError) as caught:
        decode_body(data, SocketType.PULL)
    assert caught.value.reason == "refused"
    assert str(caught.value).isprintable()


# --- agreement ----------------------------------------------------------------------------------

TALK = {
    ("REQ", "REP"), ("REQ", "ROUTER"), ("REP", "DEALER"), ("DEALER", "DEALER"), ("DEALER", "ROUTER"),
    ("ROUTER", "ROUTER"), ("PUB", "SUB"), ("XPUB", "SUB"), ("PUB", "XSUB"), ("XPUB", "XSUB"),
    ("PUSH", "PULL"), ("PAIR", "PAIR"),
}  # fmt: skip


def test_who_talks_to_whom():
    for one in SocketType:
        for other in SocketType:
            expected = (one.name, other.name) in TALK or (other.name, one.name) in TALK
            assert compatible(one, other) == expected, (one, other)


def reason(local: Hello, remote: Hello) -> str:
    with pytest.raises(HandshakeError) as caught:
        negotiate(local, remote)
    return caught.value.reason


def test_agreement():
    local = make_hello(SocketType.PUSH, features=("crc32", "lz4"))
    remote = make_hello(SocketType.PULL, features=("lz4", "later"))
    agreement = negotiate(local, remote)
    assert (agreement.version, agreement.features, agreement.plain) == (1, {"lz4"}, False)
    assert agreement.remote == remote


def test_types_tokens_versions_and_mirrors():
    push = make_hello(SocketType.PUSH)
    assert reason(push, make_hello(SocketType.SUB)) == "socket_type"
    assert reason(push, make_hello(SocketType.PULL, proves=True)) == "token"
    assert reason(make_hello(SocketType.PUSH, proves=True), make_hello(SocketType.PULL)) == "token"
    pair = make_hello(SocketType.PAIR)
    assert reason(pair, pair) == "self_connect"
    assert reason(Hello(SocketType.PUSH), Hello(SocketType.PULL, versions=(2, 3))) == "version"


def test_the_newest_version_that_both_have():
    agreement = negotiate(Hello(SocketType.PUSH, versions=(1, 3)), Hello(SocketType.PULL, versions=(2, 5)))
    assert agreement.version == 3


def test_that_both_know_a_token_is_not_shown_by_their_hellos():
    """It is agreed that they will prove it; who a peer is, is not known before (tests/security)."""
    both = [make_hello(kind, proves=True) for kind in (SocketType.PUSH, SocketType.PULL)]
    assert not negotiate(*both).authenticated


def test_a_plain_peer():
    agreement = negotiate(make_hello(SocketType.PULL), plain_peer(SocketType.PUSH))
    assert agreement.plain and not agreement.features and agreement.choice.transport == "tcp"
    assert reason(make_hello(SocketType.PULL, proves=True), plain_peer(SocketType.PUSH)) == "token"
    assert reason(make_hello(SocketType.PULL), plain_peer(SocketType.PUB)) == "socket_type"


@given(hello_values, hello_values)
def test_both_sides_decide_alike(one, other):
    outcomes = []
    for local, remote in ((one, other), (other, one)):
        try:
            agreement = negotiate(local, remote)
        except HandshakeError as error:
            outcomes.append(error.reason)
        else:
            outcomes.append((agreement.version, agreement.features, agreement.choice.transport))
    assert outcomes[0] == outcomes[1]


def test_identity():
    one, other = make_hello(SocketType.PUSH), make_hello(SocketType.PUSH)
    assert one.nonce != other.nonce and len(one.nonce) == 32
    assert one.epoch == other.epoch == process_epoch()
    assert one.host_id == host_id()
    assert one.features == FEATURES
