"""Sessions of consumers are written behind: many in one transaction, and of each consumer only the newest."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from transfer.broker.core.sessions import Session
from transfer.broker.storage.database import Database
from transfer.broker.storage.session_writer import SessionWriter
from transfer.broker.storage.sessions import Sessions


class LaterThread:
    """A thread that does its work when the test says so."""

    def __init__(self):
        self.work = []

    def do(self, work, done=None):
        self.work.append((work, done))

    def step(self):
        work, done = self.work.pop(0)
        work()
        if done is not None:
            done(None)


def session(consumer, number):
    return Session("", f"c{consumer}", f"s{number}", None, ("t",))


@pytest.fixture
def sessions(tmp_path):
    database = Database(tmp_path / "state.db")
    yield Sessions(database)
    database.close()


STEPS = st.lists(st.tuples(st.sampled_from(["keep", "remove", "step"]), st.integers(0, 3)), max_size=30)


@given(STEPS)
def test_what_is_written_against_a_model(tmp_path_factory, steps):
    database = Database(tmp_path_factory.mktemp("state") / "state.db")
    thread, model = LaterThread(), {}
    writer = SessionWriter(thread, Sessions(database))
    for number, (step, consumer) in enumerate(steps):
        if step == "keep":
            model[consumer] = session(consumer, number)
            writer.keep(model[consumer])
        elif step == "remove" and consumer in model:
            writer.remove(model.pop(consumer))
        elif thread.work:
            thread.step()
    writer.close()
    while thread.work:
        thread.step()
    found = {(one.consumer_id, one.session_id) for one in Sessions(database).load()}
    assert found == {(one.consumer_id, one.session_id) for one in model.values()}
    database.close()


def test_consumers_that_register_again_and_again_wait_once_each(sessions):
    """Each registration was a transaction of its own: a flood of them held up dead letters for a minute, and
    the broker's end for 40 s."""
    thread = LaterThread()
    writer = SessionWriter(thread, sessions)
    for number in range(10_000):
        writer.keep(session(number % 1000, number))
        if number >= 1000:
            writer.remove(session(number % 1000, number))
            writer.keep(session(number % 1000, number))
    assert len(thread.work) == 1
    thread.step()
    assert len(thread.work) == 1, "and others have their turn between the batches"
    writer.close()
    while thread.work:
        assert len(thread.work) <= 2
        thread.step()
    assert sorted(one.session_id for one in sessions.load()) == sorted(f"s{n}" for n in range(9000, 10_000))
