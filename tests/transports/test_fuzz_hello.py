"""Kept beginnings of connections, each with what becomes of it; and fresh ones by seed."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from tests.transports import fuzz_hello

CORPUS = json.loads((Path(__file__).parent / "corpus" / "hellos.json").read_text())
ROLES = ("parsed", "accepting", "connecting")


def bytes_of(pieces: list[str | list[str | int]]) -> bytes:
    """Latin-1 texts, and [text, times]."""
    whole = (piece if isinstance(piece, str) else piece[0] * piece[1] for piece in pieces)
    return "".join(whole).encode("latin-1")


@pytest.fixture
def measured():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", CORPUS)
def test_kept_inputs(name, measured):
    entry = CORPUS[name]
    data = bytes_of(entry["bytes"])
    for piece in (1, 34):
        found = fuzz_hello.judge(entry["local"], data, piece)
        assert found == {role: entry[role] for role in ROLES}


def test_every_reason_has_an_input_on_each_side():
    """But for those that only the one who connects, or only the one who accepts, can see, and those of an
    authenticator (tests/security/test_mechanisms.py)."""
    asked = {"credentials", "denied_300", "denied_400", "denied_500"}
    accepting = {entry["accepting"].split(",")[0] for entry in CORPUS.values()}
    connecting = {entry["connecting"].split(",")[0] for entry in CORPUS.values()}
    assert fuzz_hello.ALLOWED - accepting == asked | {"no_hello"}
    assert fuzz_hello.ALLOWED - connecting == asked
    assert {"more", "plain PUSH", "agreed PUSH"} <= accepting
    assert {"more", "agreed PUSH"} <= connecting


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_fresh_inputs(first):
    for seed in range(first, first + 500):
        fuzz_hello.judge(*fuzz_hello.case(seed))


def test_fresh_inputs_take_little_memory(measured):
    for seed in range(3000, 3200):
        fuzz_hello.judge(*fuzz_hello.case(seed))


def test_the_judge_sees_what_must_not_happen(monkeypatch, measured):
    """The oracle is no stub: a parser with a fault does not pass."""
    name, data, piece = "pull", bytes_of(CORPUS["a hello as it should be"]["bytes"]), 34
    fuzz_hello.judge(name, data, piece)
    real = fuzz_hello.decode_body

    def greedy(body, kind):
        assert bytes(2 << 20)
        return real(body, kind)

    def wrong(body, kind):
        raise KeyError("versions")

    for faulty, error in ((greedy, AssertionError), (wrong, KeyError)):
        monkeypatch.setattr(fuzz_hello, "decode_body", faulty)
        with pytest.raises(error):
            fuzz_hello.judge(name, data, piece)
    monkeypatch.setattr(fuzz_hello, "decode_body", real)
    monkeypatch.setattr(fuzz_hello.Handshake, "feed", lambda side, taken: side.fail("whatever", "why"))
    with pytest.raises(AssertionError, match="whatever"):
        fuzz_hello.judge(name, data, piece)
