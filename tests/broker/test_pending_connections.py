"""Those who did not say yet who they are: the rules, on a loop that only remembers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from transfer.broker.net import pending_connections as crowds
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

    def call_later(self, delay, what, guest, word):
        assert delay == 7.0
        timer = Timer()
        self.timers[guest] = (timer, lambda: what(guest, word))
        return timer


@pytest.fixture(autouse=True, scope="module")
def pending_of_their_own():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowds, "PENDING", PendingBudget())
        yield


def crowd_of(most):
    loop, out = Loop(), []

    def put_out(guest, word):
        out.append((guest, word))
        assert crowd.remove(guest)

    crowd = PendingConnections(loop, put_out, patience=7.0, most=most)
    return crowd, loop, out


@given(st.lists(st.integers(0, 9)), st.integers(1, 4))
def test_against_a_list(steps, most):
    """Even: another one comes. Odd: one that is there knows what it wants."""
    crowd, loop, out = crowd_of(most)
    model, gone, number = [], [], 0
    for step in steps:
        if step % 2 == 0:
            number += 1
            crowd.add(number)
            model.append(number)
            if len(model) > most:
                gone.append((model.pop(0), "crowded"))
        elif model:
            guest = model.pop(step % len(model))
            assert crowd.remove(guest) and not crowd.remove(guest)
        assert list(crowd) == model and len(crowd) == len(model) and out == gone
        assert all((guest in crowd) == (guest in model) for guest in range(1, number + 1))
    for guest, (timer, _) in loop.timers.items():
        assert timer.cancelled == (guest not in model)


def test_whoever_takes_too_long():
    crowd, loop, out = crowd_of(4)
    crowd.add("slow")
    loop.timers["slow"][1]()
    assert out == [("slow", "late")] and not len(crowd)


def test_one_who_is_the_only_one_that_may_be_there_makes_room():
    crowd, _, out = crowd_of(1)
    for guest in "abc":
        crowd.add(guest)
    assert out == [("a", "crowded"), ("b", "crowded")] and list(crowd) == ["c"]


def test_the_oldest_makes_room_unless_it_has_shown_meanwhile_what_it_wants():
    out = []

    def put_out(guest, word):
        out.append((guest, word))
        crowd.remove(guest)
        return guest != "quick"

    loop = Loop()
    crowd = PendingConnections(loop, put_out, patience=None, most=9)
    assert not crowd.evict_oldest(), "there is none"
    for guest in ("slow", "quick", "silent"):
        crowd.add(guest)
    assert [crowd.evict_oldest() for _ in range(3)] == [True, False, True]
    assert out == [("slow", "crowded"), ("quick", "crowded"), ("silent", "crowded")]
    assert not loop.timers and not len(crowd)
