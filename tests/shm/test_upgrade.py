"""The dialogue about a faster transport: each step, each refusal, and whatever else a peer may say."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, Control, SocketType
from transfer.transports.errors import HandshakeError, InternalError, ProtocolError
from transfer.transports.handshake.hello import frame
from transfer.transports.handshake.upgrade import (
    MAX_STEP,
    Declined,
    Dialogue,
    Upgrade,
    encode,
    number_of,
    text_of,
)

STEPS = ("offer", "accept", "finish")


class Recording(Upgrade):
    """Does nothing, remembers it, and fails at one step if told to."""

    def __init__(self, connecting, fails=None, error=None):
        self.connecting, self.fails, self.error = connecting, fails, error
        self.said = []

    def _step(self, name, content=None):
        self.said.append((name, content))
        if name == self.fails:
            raise self.error
        return {"from": name}

    def offer(self):
        return self._step("offer")

    def accept(self, offer):
        return self._step("accept", offer)

    def finish(self, answer):
        self._step("finish", answer)

    def made(self, fd, channel=None):
        raise AssertionError

    def close(self):
        raise AssertionError


def deliver(data, dialogue, most=1 << 20):
    """Feeds as a connection would; what is left when it has ended."""
    while data and dialogue.outcome is None:
        part = data[: min(most, dialogue.wants)]
        dialogue.feed(part)
        data = data[len(part) :]
    return data


def talk(one, other, most=1 << 20):
    one.begin()
    other.begin()
    while one.output or other.output:
        for here, there in ((one, other), (other, one)):
            data = bytes(here.output)
            here.output.clear()
            assert not deliver(data, there, most)


def both(fails=None, error=None):
    accepting = Dialogue(Recording(False, fails, error), SocketType.PULL)
    return accepting, Dialogue(Recording(True, fails, error), SocketType.PUSH)


@pytest.mark.parametrize("most", [1, 5, 34, 1 << 20])
def test_three_steps_and_both_agree(most):
    accepting, connecting = both()
    talk(accepting, connecting, most)
    assert accepting.outcome is True and connecting.outcome is True
    assert accepting.upgrade.said == [("offer", None), ("finish", {"from": "accept"})]
    assert connecting.upgrade.said == [("accept", {"from": "offer"})]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Declined("memlock", "too little"), "memlock"),
        (ProtocolError("upgrade", "too little"), "upgrade"),
        (InternalError("too little"), "failed"),
    ],
)
def test_a_refusal_at_any_step_is_known_to_both(step, error, word):
    accepting, connecting = both(step, error)
    talk(accepting, connecting)
    for side in (accepting, connecting):
        assert isinstance(side.outcome, Declined) and side.outcome.reason == word
        assert "too little" in str(side.outcome)
    steps = [name for side in (accepting, connecting) for name, _ in side.upgrade.said]
    assert set(steps) == set(STEPS[: STEPS.index(step) + 1])


@pytest.mark.parametrize("reason", [None, 5, "", "x" * 65, "bad\nword", ["a"], "Word", "w ord", "wörd"])
def test_whatever_reason_a_peer_gives_the_word_is_one(reason):
    _, connecting = both()
    said = {} if reason is None else {"reason": reason, "message": reason}
    deliver(encode(SocketType.PULL, "decline", said), connecting)
    assert connecting.outcome.reason == "peer"
    assert "\n" not in str(connecting.outcome)


@pytest.mark.parametrize("step", ["accept", "ready", "hello", "", "OFFER"])
def test_a_step_out_of_turn_ends_the_connection(step):
    _, connecting = both()
    with pytest.raises(HandshakeError) as caught:
        deliver(encode(SocketType.PULL, step, {}), connecting)
    assert caught.value.reason == "upgrade" and not connecting.upgrade.said


def test_an_offer_twice_ends_the_connection():
    _, connecting = both()
    offer = encode(SocketType.PULL, "offer", {})
    deliver(offer, connecting)
    with pytest.raises(HandshakeError):
        deliver(offer, connecting)


def _header(length, magic=MAGIC, version=1, flags=8, topic=0):
    return HEADER.pack(magic, version, 5, flags, 0, topic, length, 0)


@pytest.mark.parametrize(
    "header",
    [
        _header(0),
        _header(1),
        _header(MAX_STEP + 2),
        _header(1 << 63),
        _header(50, magic=1),
        _header(50, version=2),
        _header(50, flags=0),
        _header(50, flags=9),
        _header(50, topic=3),
    ],
)
def test_a_header_that_is_none_is_refused_before_its_body_comes(header):
    _, connecting = both()
    with pytest.raises(HandshakeError) as caught:
        deliver(header, connecting)
    assert caught.value.reason == "upgrade"


def _body(data, kind=Control.UPGRADE):
    return frame(SocketType.PULL, bytes([kind]) + data)


@pytest.mark.parametrize(
    "data",
    [
        _body(b"{"),
        _body(b"[]"),
        _body(b"5"),
        _body(b"{}"),
        _body(b'{"step":5}'),
        _body(b"\xff\xfe"),
        _body(b"[" * 10_000),
        _body(b'{"step":"offer"}', Control.HELLO),
        _body(b'{"step":"offer"}', 200),
    ],
)
def test_a_body_that_is_no_step_is_refused(data):
    _, connecting = both()
    with pytest.raises(HandshakeError) as caught:
        deliver(data, connecting)
    assert caught.value.reason == "upgrade" and not connecting.upgrade.said


def test_a_step_that_would_be_too_long_is_not_sent():
    with pytest.raises(HandshakeError):
        encode(SocketType.PULL, "offer", {"x": "y" * MAX_STEP})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
VALUES = (None, True, -1, 1 << 70, 1e300, "", "text", "\n", "x" * 2000, [], {}, ["a", {"b": []}])


def said(random):
    """A step, a good one or nearly, or anything."""
    if random.random() < 0.2:
        return random.randbytes(random.randrange(60))
    content = {key: random.choice(VALUES) for key in random.sample(["reason", "message", "token", "step"], 2)}
    if random.random() < 0.8:
        content["step"] = random.choice(["offer", "accept", "ready", "decline", "other"])
    return _body(json.dumps(content).encode())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_but_a_refusal_comes_of_any_bytes(seed):
    random = Random(seed)
    ends = set()
    for turn in range(2000):
        data = bytearray(b"".join(said(random) for _ in range(random.randrange(1, 4))))
        for _ in range(random.choice([0, 0, 1, 3])):
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
        dialogue = Dialogue(Recording(connecting=turn % 2 == 0), SocketType.PUSH)
        dialogue.begin()
        try:
            deliver(bytes(data), dialogue, random.choice([1, 17, 4096]))
        except HandshakeError as error:
            ends.add(error.reason)
        ends.add(type(dialogue.outcome))
        assert dialogue.outcome in (None, True) or isinstance(dialogue.outcome, Declined)
        assert dialogue.wants <= max(HEADER_SIZE, MAX_STEP + 1)
        steps = [name for name, _ in dialogue.upgrade.said]
        assert steps in ([], ["offer"], ["accept"], ["offer", "finish"])
    assert ends == {"upgrade", bool, Declined, type(None)}


@settings(deadline=None)
@given(JSON)
def test_what_a_peer_says_is_read_strictly(value):
    for read in (lambda c: text_of(c, "x", 10), lambda c: number_of(c, "x", 10)):
        try:
            found = read({"x": value})
        except ProtocolError:
            continue
        assert found is value and (0 < len(found) <= 10 if isinstance(found, str) else 0 <= found <= 10)
    with pytest.raises(ProtocolError):
        text_of({}, "x")
