"""Those who did not say yet who they are: the rules, on a loop that only remembers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from transfer.broker.net import pending_connections
from transfer.broker.net.pending_connections import PendingConnections
from transfer.transports.connect.pending import PendingBudget


class Timer:
    def __init__(self):
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class Loop:
    """call_later, and nothing that ever comes by itself."""

    def __init__(self):
        self.timers = {}

    def call_later(self, delay, what, connection, word):
        assert delay == 7.0
        timer = Timer()
        self.timers[connection] = (timer, lambda: what(connection, word))
        return timer


@pytest.fixture(autouse=True, scope="module")
def pending_of_their_own():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_connections, "PENDING", PendingBudget())
        yield


def pending_of(most):
    loop, out = Loop(), []

    def put_out(connection, word):
        out.append((connection, word))
        assert pending.remove(connection)

    pending = PendingConnections(loop, put_out, patience=7.0, most=most)
    return pending, loop, out


@given(st.lists(st.integers(0, 9)), st.integers(1, 4))
def test_against_a_list(steps, most):
    """Even: another one comes. Odd: one that is there knows what it wants."""
    pending, loop, out = pending_of(most)
    model, gone, number = [], [], 0
    for step in steps:
        if step % 2 == 0:
            number += 1
            pending.add(number)
            model.append(number)
            if len(model) > most:
                gone.append((model.pop(0), "crowded"))
        elif model:
            connection = model.pop(step % len(model))
            assert pending.remove(connection) and not pending.remove(connection)
        assert list(pending) == model and len(pending) == len(model) and out == gone
        assert all((connection in pending) == (connection in model) for connection in range(1, number + 1))
    for connection, (timer, _) in loop.timers.items():
        assert timer.cancelled == (connection not in model)


def test_a_connection_that_takes_too_long():
    pending, loop, out = pending_of(4)
    pending.add("slow")
    loop.timers["slow"][1]()
    assert out == [("slow", "late")] and not len(pending)


def test_one_who_is_the_only_one_that_may_be_there_makes_room():
    pending, _, out = pending_of(1)
    for connection in "abc":
        pending.add(connection)
    assert out == [("a", "crowded"), ("b", "crowded")] and list(pending) == ["c"]


def test_the_oldest_makes_room_unless_it_has_shown_meanwhile_what_it_wants():
    out = []

    def put_out(connection, word):
        out.append((connection, word))
        pending.remove(connection)
        return connection != "quick"

    loop = Loop()
    pending = PendingConnections(loop, put_out, patience=None, most=9)
    assert not pending.evict_oldest(), "there is none"
    for connection in ("slow", "quick", "silent"):
        pending.add(connection)
    assert [pending.evict_oldest() for _ in range(3)] == [True, False, True]
    assert out == [("slow", "crowded"), ("quick", "crowded"), ("silent", "crowded")]
    assert not loop.timers and not len(pending)
