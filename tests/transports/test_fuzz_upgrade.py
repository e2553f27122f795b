"""Kept dialogues about a faster transport, each with its end; and fresh ones by seed."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from tests.transports import fuzz_upgrade
from tests.transports.fuzz_upgrade import GOOD, HELLO, step
from transfer.transports.core.wire import HEADER, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.hello import frame
from transfer.transports.handshake.upgrade import MAX_STEP, Dialogue, Made

PUSH = SocketType.PUSH
A, C = "accepting", "connecting"
OFFER, ACCEPT, READY = step("offer", GOOD), step("accept", GOOD), step("ready", {})
DECLINE = step("decline", {"reason": "memlock", "message": "no"})
PLAIN = HEADER.pack(MAGIC, VERSION, PUSH, 0, 1, 0, 5, 0) + b"plain"


def raw(body: bytes, kind: int = Control.UPGRADE) -> bytes:
    return frame(PUSH, bytes([kind]) + body)


def header(length: int, flags: int = int(Flag.CONTROL), topic: int = 0, magic: int = MAGIC) -> bytes:
    return HEADER.pack(magic, VERSION, PUSH, flags, 0, topic, length, 0)


def named(**values: object) -> bytes:
    return step("offer", {**GOOD, **values})


def nested(levels: int) -> bytes:
    return raw(b'{"step":"accept","a":' + b"[" * levels + b"]" * levels + b"}")


#: name: (role, our part, what the peer says behind its hello, how it ends)
CASES = {
    "as it should be, accepting": (A, "strict", ACCEPT, "upgraded, 0 left"),
    "as it should be, connecting": (C, "strict", OFFER + READY, "upgraded, 0 left"),
    "what follows is somebody else's": (A, "strict", ACCEPT + PLAIN, f"upgraded, {len(PLAIN)} left"),
    "what follows a decline, too": (A, "strict", DECLINE + PLAIN, f"declined, {len(PLAIN)} left"),
    "silence": (A, "strict", b"", "more, 0 left"),
    "silence after the offer": (C, "strict", OFFER, "more, 0 left"),
    "half a header": (A, "strict", ACCEPT[:20], "more, 0 left"),
    "half a body": (A, "strict", ACCEPT[:-1], "more, 0 left"),
    "it declines instead of accepting": (A, "strict", DECLINE, "declined, 0 left"),
    "it declines instead of offering": (C, "strict", DECLINE, "declined, 0 left"),
    "it declines at last": (C, "strict", OFFER + DECLINE, "declined, 0 left"),
    "it declines without a reason": (A, "strict", step("decline", {}), "declined, 0 left"),
    "an empty reason": (A, "strict", step("decline", {"reason": ""}), "declined, 0 left"),
    "a reason that is a list": (A, "strict", step("decline", {"reason": ["a"]}), "declined, 0 left"),
    "a reason of two lines": (A, "strict", step("decline", {"reason": "a\nb"}), "declined, 0 left"),
    "a message of 16 KB": (A, "strict", step("decline", {"message": "x" * 16000}), "declined, 0 left"),
    "it declines under require": (A, "require", DECLINE, "policy, 0 left"),
    "we decline, accepting": (A, "declines", ACCEPT, "declined, 0 left"),
    "we decline, connecting": (C, "declines", OFFER, "declined, 0 left"),
    "we decline under require": (C, "require", named(number=-1), "policy, 0 left"),
    "we fail": (C, "fails", OFFER, "declined, 0 left"),
    "we cannot begin, accepting": (A, "none", b"", "declined, 0 left"),
    "we cannot begin, connecting": (C, "none", OFFER, "declined, 0 left"),
    "our offer is too long": (A, "large", b"", "upgrade, 0 left"),
    "our answer is too long": (C, "large", OFFER, "upgrade, 0 left"),
    "our error says what the peer said": (C, "echoes", named(name="\x1b[2J\ud800"), "declined, 0 left"),
    "no number": (C, "strict", named(number="7"), "declined, 0 left"),
    "a number that is true": (C, "strict", named(number=True), "declined, 0 left"),
    "a number too large": (C, "strict", named(number=1 << 200), "declined, 0 left"),
    "a name that cannot be printed": (C, "strict", named(name="a\0b"), "declined, 0 left"),
    "a name too long": (C, "strict", named(name="n" * 101), "declined, 0 left"),
    "a token that is none": (C, "strict", named(token="zz"), "declined, 0 left"),
    "nothing in it": (C, "strict", step("offer", {}), "declined, 0 left"),
    "ready at once": (C, "strict", READY, "upgrade, 0 left"),
    "ready instead of accepting": (A, "strict", READY, "upgrade, 0 left"),
    "an offer to who offers": (A, "strict", OFFER, "upgrade, 0 left"),
    "the offer twice": (C, "strict", OFFER + OFFER, "upgrade, 0 left"),
    "a step of a later version": (A, "strict", step("later", {}), "upgrade, 0 left"),
    "a hello again": (A, "strict", HELLO, "upgrade, 0 left"),
    "a credit": (A, "strict", raw(b"12345678", Control.CREDIT), "upgrade, 0 left"),
    "a message": (A, "strict", PLAIN, "upgrade, 5 left"),
    "a message, connecting": (C, "strict", OFFER + PLAIN, "upgrade, 5 left"),
    "nothing but a kind": (A, "strict", header(1) + b"\x0a", "upgrade, 1 left"),
    "an empty frame": (A, "strict", header(0), "upgrade, 0 left"),
    "a topic": (A, "strict", header(20, topic=3) + b"abc", "upgrade, 3 left"),
    "other flags": (A, "strict", header(20, flags=int(Flag.CONTROL | Flag.MORE)), "upgrade, 0 left"),
    "another magic": (A, "strict", header(20, magic=MAGIC + 1), "upgrade, 0 left"),
    "a length of 2^63": (A, "strict", header(1 << 63), "upgrade, 0 left"),
    "a byte more than may be": (A, "strict", header(MAX_STEP + 2), "upgrade, 0 left"),
    "no JSON": (A, "strict", raw(b"{"), "upgrade, 0 left"),
    "no UTF-8": (A, "strict", raw(b'{"step":"\xff"}'), "upgrade, 0 left"),
    "a list": (A, "strict", raw(b"[1]"), "upgrade, 0 left"),
    "no step": (A, "strict", raw(b"{}"), "upgrade, 0 left"),
    "a step that is a number": (A, "strict", raw(b'{"step":1}'), "upgrade, 0 left"),
    "32 levels": (A, "strict", nested(31), "declined, 0 left"),
    "33 levels": (A, "strict", nested(32), "upgrade, 0 left"),
    "nested too deep": (A, "strict", raw(b"[" * MAX_STEP), "upgrade, 0 left"),
    "a number of 5000 digits": (A, "strict", raw(b'{"a":' + b"9" * 5000 + b"}"), "upgrade, 0 left"),
    "two steps in one": (A, "strict", raw(b'{"step":"ready","step":"decline"}'), "declined, 0 left"),
    "as many objects as fit": (
        A, "strict", raw(b'{"step":"later","a":[' + b",".join([b"{}"] * 5400) + b"]}"),
        "upgrade, 0 left",
    ),
}  # fmt: skip


@pytest.fixture
def measured():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", CASES)
def test_kept_dialogues(name, measured):
    role, part, data, end = CASES[name]
    for piece in (1, 34):
        assert fuzz_upgrade.judge(role, part, data, piece) == end


def test_a_reason_of_the_peers_is_a_word_for_counters():
    """A peer cannot put whatever it likes into the names of counters."""
    for reason, word in (
        ("memlock", "memlock"),
        ("", "peer"),
        ("a b", "peer"),
        ("x" * 64, "peer"),
        (1, "peer"),
    ):
        dialogue = Dialogue(fuzz_upgrade.Part("strict", False), PUSH)
        data = step("decline", {"reason": reason, "message": "\x1b[2J"})
        dialogue.feed(data[:34])
        dialogue.feed(data[34:])
        assert dialogue.outcome.reason == word
        assert str(dialogue.outcome) == "the peer: no"


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_fresh_dialogues(first):
    for seed in range(first, first + 500):
        fuzz_upgrade.judge(*fuzz_upgrade.case(seed))


def test_fresh_dialogues_take_little_memory(measured):
    for seed in range(3000, 3200):
        fuzz_upgrade.judge(*fuzz_upgrade.case(seed))


def test_the_judge_sees_what_must_not_happen(monkeypatch, measured):
    """The oracle is no stub: dialogues with a fault do not pass."""
    good = "accepting", "strict", ACCEPT, 34
    fuzz_upgrade.judge(*good)
    real = Dialogue._step

    def trusting(self, name, content):
        self.outcome = True

    def greedy(self, name, content):
        assert bytes(2 << 20)
        real(self, name, content)

    def wrong(self, name, content):
        raise KeyError(name)

    def unknown(self, name, content):
        raise HandshakeError("whatever", "why")

    for faulty, case, error in (
        (trusting, ("accepting", "strict", OFFER, 34), AssertionError),
        (greedy, good, AssertionError),
        (wrong, good, KeyError),
        (unknown, good, AssertionError),
    ):
        monkeypatch.setattr(Dialogue, "_step", faulty)
        with pytest.raises(error):
            fuzz_upgrade.judge(*case)
    monkeypatch.setattr(Dialogue, "_step", real)
    monkeypatch.setattr(fuzz_upgrade.Part, "made", lambda part, fd, channel: Made(fd, carrier="made"))
    with pytest.raises(AssertionError, match="given back"):
        fuzz_upgrade.judge(*good)
    assert json.loads(ACCEPT[35:])["step"] == "accept"
