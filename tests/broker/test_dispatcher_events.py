"""The dispatcher's events as bytes, and the state that they give."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.simulated_dispatcher import SimulatedDispatcher, replay
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Admitted,
    KeepSession,
)
from transfer.broker.core.dispatcher_events import (
    Accepted,
    Dispatched,
    DispatcherState,
    End,
    Finished,
    LogPosition,
    MessageInfo,
    Moved,
    Returned,
    decode,
    encode,
)
from transfer.transports.errors import LogDamaged

TEXTS = st.text(max_size=8)
NUMBERS = st.integers(0, 2**64 - 1)
FACTS = st.builds(MessageInfo, TEXTS, TEXTS, TEXTS, TEXTS, NUMBERS, TEXTS, NUMBERS, NUMBERS, st.booleans())
REFS = st.builds(LogPosition, TEXTS, NUMBERS)
ATTEMPTS = st.integers(0, 2**32 - 1)
EVENTS = st.one_of(
    st.builds(Accepted, NUMBERS, TEXTS, FACTS, REFS, ATTEMPTS, TEXTS, TEXTS),
    st.builds(Dispatched, NUMBERS, ATTEMPTS, TEXTS, TEXTS),
    st.builds(Returned, NUMBERS, ATTEMPTS, TEXTS),
    st.builds(Moved, NUMBERS, TEXTS),
    st.builds(Finished, NUMBERS, st.sampled_from(End)),
)


@given(EVENTS, st.data())
@settings(max_examples=200)
def test_events_read_back(event, data):
    raw = encode(event)
    assert decode(raw) == event and decode(memoryview(raw)) == event
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(LogDamaged):
        decode(raw[:cut])
    with pytest.raises(LogDamaged):
        decode(raw + b"\0")


@given(st.binary(max_size=60))
@settings(max_examples=100)
def test_other_bytes_are_damage(raw):
    try:
        event = decode(raw)
    except LogDamaged:
        return
    assert encode(event) == raw or isinstance(event, Accepted)  # `pinned` may be any byte but 0


def test_an_unknown_version_is_damage():
    raw = bytearray(encode(Moved(1, "x")))
    raw[0] = 2
    with pytest.raises(LogDamaged, match="version 2"):
        decode(raw)


def test_numbers_are_never_given_twice():
    sim = SimulatedDispatcher()
    sim.register()
    sim.publish()
    sim.ask(Ack("m", "w"))
    books = replay(sim.dispatcher.state.snapshot())
    assert books == sim.dispatcher.state == DispatcherState({}, 2)


def test_restored_sessions_keep_their_routes():
    before = SimulatedDispatcher()
    before.register()
    [kept] = before.of(KeepSession)
    sim = SimulatedDispatcher()
    sim.dispatcher.restore([kept.session], sim.now)
    verdict = sim.publish()
    assert isinstance(verdict, Admitted) and not verdict.live and sim.sent == []
    assert sim.register(peer=b"again", session_id=kept.session.session_id).status == "resumed"
    assert sim.sent == [("w", "m", 1)]
