"""`adaptive_hwm`: the limit of a peer's queue follows what the peer takes, and the memory that is free."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, strategies as st

import transfer
from tests.sockets.conftest import KeepingContext, core_module
from transfer.sockets.adaptive_limit import LEAST, AdaptiveLimit
from transfer.sockets.connections import queue_limits
from transfer.transports.errors import Again, OptionError

MOST = 64 << 20
DELAY = 0.5


def simulated(rates, offered, pause=0.1):
    """Limits and longest waits, while a peer takes `rates` bytes a second and a sender offers as many."""
    limit, taken, queued, found = AdaptiveLimit(MOST, 0), 0, 0, []
    for rate, more in zip(rates, offered, strict=True):
        queued += max(0, min(int(more * pause), limit.nbytes - queued))
        gone = min(queued, int(rate * pause))
        queued, taken = queued - gone, taken + gone
        found.append((limit.update(taken, queued, pause, DELAY, MOST), queued))
    return found


@pytest.mark.parametrize("rate", [4 << 20, 20 << 20, 100 << 20])
def test_of_a_slow_peer_it_is_what_the_peer_takes_in_that_time(rate):
    found = simulated([rate] * 300, [1 << 30] * 300)
    wanted = max(LEAST, int(rate * DELAY))
    for limit, queued in found[250:]:
        assert wanted * 0.9 <= limit <= wanted * 1.1 + 1
        assert queued <= limit


def test_a_peer_that_keeps_up_leaves_it_as_it_was():
    assert all(limit == MOST for limit, _ in simulated([1 << 30] * 50, [10 << 20] * 50))


def test_a_peer_that_stops_and_goes_on():
    rates = [100 << 20] * 30 + [0] * 30 + [100 << 20] * 60
    found = simulated(rates, [1 << 30] * len(rates))
    assert found[59][0] == LEAST
    assert found[-1][0] >= 0.9 * (50 << 20)


def test_it_grows_again_when_the_sender_pauses():
    found = simulated([1 << 20] * 60 + [1 << 30] * 20, [1 << 30] * 60 + [0] * 20)
    assert found[59][0] < 2 * LEAST and found[-1][0] == MOST


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.floats(1e-3, 10))),
    st.integers(1, 1 << 62),
)
def test_it_has_bounds(steps, most):
    limit, taken = AdaptiveLimit(most, 0), 0
    for came, queued, seconds in steps:
        taken += came
        assert min(LEAST, most) <= limit.update(taken, queued, seconds, DELAY, most) <= most


def filled(sender, nbytes=1 << 18):
    """Bytes that a PUSH takes without waiting."""
    taken = 0
    while True:
        try:
            sender.send(bytes(nbytes), transfer.DONTWAIT)
        except Again:
            return taken
        taken += nbytes


@pytest.mark.parametrize("core", ["native", "pure"])
def test_a_receiver_that_stops(core):
    """Its queue shrinks to the least, and takes 64 MiB again when the option is off."""
    with KeepingContext(core=core_module(core)) as context:
        pull = context.socket(transfer.PULL)
        pull.bind("tcp://127.0.0.1:0")
        push = context.socket(transfer.PUSH, adaptive_hwm=200, sndhwm=0, linger=0)
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, timeout=10)
        assert push.peers()[0].queue_limit == MOST
        filled(push)
        deadline = time.monotonic() + 10
        while push.peers()[0].queue_limit > LEAST:
            assert time.monotonic() < deadline, push.peers()
            time.sleep(0.05)
        with pytest.raises(Again):
            push.send(b"x", transfer.DONTWAIT)
        while True:  # what was queued is read, and the limit grows
            try:
                pull.recv(transfer.DONTWAIT)
            except Again:
                if not push.peers()[0].queued:
                    break
                time.sleep(0.001)
        deadline = time.monotonic() + 10
        while push.peers()[0].queue_limit < MOST:
            assert time.monotonic() < deadline, push.peers()
            time.sleep(0.05)
        push.adaptive_hwm = 0
        assert filled(push) > MOST
        pull.close(0)


@pytest.mark.parametrize("local", ["off", "on"])
@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "ipc://*", "inproc://a"])
def test_one_that_waits_for_room_goes_on_when_there_is_some(monkeypatch, endpoint, local):
    """A blocked send is woken by a limit that grows."""
    monkeypatch.setenv("TRANSFER_LOCAL", local)
    with transfer.Context() as context:
        pull = context.socket(transfer.PULL)
        pull.bind(endpoint)
        push = context.socket(transfer.PUSH, adaptive_hwm=100, sndtimeo=20_000, linger=0)
        push.connect(pull.last_endpoint)
        total, nbytes = 200, 1 << 20
        sender = threading.Thread(target=lambda: [push.send(bytes(nbytes)) for _ in range(total)])
        sender.start()
        for number in range(total):
            if number < 5:
                time.sleep(0.2)
            assert len(pull.recv()) == nbytes
        sender.join(20)
        assert not sender.is_alive()


def test_all_queues_leave_half_of_the_memory_that_is_free(monkeypatch):
    monkeypatch.setattr(queue_limits, "available_memory", lambda: 40 << 20)
    most = queue_limits.QueueLimits._most
    assert most([0, 0], MOST) == MOST, "nothing waits: nothing is asked"
    assert most([4 << 20, 0], MOST) == 12 << 20
    assert most([LEAST] * 1000, MOST) == max(LEAST, (1020 << 20) // 1000)


@pytest.mark.parametrize("value", [-1, 1.5, "1s", None])
def test_what_it_cannot_be(context, value):
    with pytest.raises(OptionError, match="adaptive_hwm"):
        context.socket(transfer.PUSH).adaptive_hwm = value
