"""Sessions: one for each consumer, resumed by its id, ended by silence."""

from __future__ import annotations

import itertools

from hypothesis import given, settings, strategies as st

from transfer.broker.core.sessions import ConsumerCapabilities, SessionTable

KEY = ("tenant", "worker")
CAN = ConsumerCapabilities()


def table(timeout=10.0):
    numbers = itertools.count(1)
    return SessionTable(timeout, lambda: f"s{next(numbers)}")


def register(sessions, peer=b"p", now=0.0, key=KEY, **more):
    return sessions.register(key, peer, ("t",), CAN, now, **more)


def test_register_again_takes_the_place():
    sessions = table()
    first = register(sessions).session
    second = register(sessions, b"q")
    assert second.ended is first and not second.resumed
    assert first.peer is None and sessions.of(b"p", "worker") is None
    assert sessions.of(b"q", "worker") is second.session is sessions.live(KEY)
    assert len(sessions) == 1


def test_resume_keeps_the_session_and_changes_the_peer():
    sessions = table()
    first = register(sessions).session
    again = register(sessions, b"q", resume=first.session_id)
    assert again.resumed and again.session is first and again.ended is None
    assert first.peer == b"q" and sessions.of_peer(b"p") == []


def test_resuming_what_has_ended_begins_anew():
    sessions = table()
    first = register(sessions).session
    sessions.end(first)
    again = register(sessions, resume=first.session_id)
    assert not again.resumed and again.session.session_id != first.session_id


def test_who_speaks_for_a_session():
    sessions = table()
    session = register(sessions).session
    assert sessions.of(b"p", "worker") is session
    assert sessions.of(b"stranger", "worker") is None
    assert sessions.of(b"stranger", "worker", session.session_id) is session
    assert sessions.of(b"p", "other", session.session_id) is None
    assert sessions.of(b"p", "worker", "guessed") is None


def test_a_heartbeat_moves_the_deadline_and_the_peer():
    sessions = table()
    session = register(sessions).session
    assert sessions.heartbeat(b"q", "worker", session.session_id, 8.0) is session
    assert session.peer == b"q"
    assert sessions.missed(17.9, 10) == []
    assert sessions.missed(18.0, 10) == [session]


def test_a_heartbeat_of_nobody():
    sessions = table()
    assert sessions.heartbeat(b"p", "worker", "s1", 0.0) is None


def test_one_peer_may_speak_for_several():
    sessions = table()
    one = register(sessions, key=("a", "x")).session
    other = register(sessions, key=("a", "y")).session
    assert sessions.of_peer(b"p") == [one, other]
    sessions.end(one)
    assert sessions.of_peer(b"p") == [other]


def test_restored_sessions_wait_for_their_consumer():
    before, sessions = table(), table()
    session = register(before).session
    sessions.restore(session, 0.0)
    assert sessions.live(KEY) is None and sessions.find(KEY) is session
    assert register(sessions, b"new", 5.0, resume=session.session_id).resumed
    assert sessions.live(KEY) is session


def test_restored_sessions_end_if_nobody_comes():
    sessions = table()
    sessions.restore(register(table()).session, 0.0)
    missed = sessions.missed(10.0, 10)
    for session in missed:
        sessions.end(session)
    assert len(missed) == 1 and len(sessions) == 0 and sessions.next_deadline() is None


STEP = st.tuples(
    st.sampled_from(["register", "resume", "heartbeat", "end", "wait"]),
    st.sampled_from([b"p", b"q"]),
    st.sampled_from(["x", "y"]),
)


@given(st.lists(STEP, max_size=40))
@settings(max_examples=150)
def test_against_a_model(steps):
    """The model: consumer -> (session id, peer, deadline)."""
    sessions, model, now = table(), {}, 0.0
    for what, peer, consumer in steps:
        key, known = ("", consumer), model.get(consumer)
        if what in ("register", "resume"):
            resume = known[0] if known and what == "resume" else None
            done = sessions.register(key, peer, (), CAN, now, resume=resume)
            assert done.resumed == (resume is not None)
            model[consumer] = (done.session.session_id, peer, now + 10.0)
        elif what == "heartbeat" and known:
            assert sessions.heartbeat(peer, consumer, known[0], now) is not None
            model[consumer] = (known[0], peer, now + 10.0)
        elif what == "end" and known:
            sessions.end(sessions.find(key))
            del model[consumer]
        elif what == "wait":
            now += 4.0
            missed = sessions.missed(now, 100)
            assert {one.consumer_id for one in missed} == {c for c, m in model.items() if m[2] <= now}
            for one in missed:
                sessions.end(one)
                del model[one.consumer_id]
        assert {one.consumer_id: (one.session_id, one.peer) for one in sessions} == {
            name: entry[:2] for name, entry in model.items()
        }
        for there in (b"p", b"q"):
            assert {one.consumer_id for one in sessions.of_peer(there)} == {
                name for name, entry in model.items() if entry[1] == there
            }
        assert sessions.next_deadline() == min((entry[2] for entry in model.values()), default=None)
