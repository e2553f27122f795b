"""Reading and keeping counts, without sockets."""

from __future__ import annotations

from bisect import bisect_left
from types import SimpleNamespace

import pytest

from transfer.metrics.counters import MAX_PEERS, OTHER_PEERS, LatencyCounts, Tally, peer_name
from transfer.transports.handshake.identity import one_time_identity
from transfer.transports.req_rep_turn import Turn


def peer(address: str = "", endpoint: str = "", identity: bytes = b"", connects: bool = False):
    stream = SimpleNamespace(blocked_ns=10**9, waited_ns=2 * 10**9, dropped=3, queued=0, queued_bytes=0)
    agreement = SimpleNamespace(
        remote=SimpleNamespace(routing_id=identity), choice=SimpleNamespace(transport="tcp")
    )
    source = SimpleNamespace(connector=object() if connects else None)
    return SimpleNamespace(
        address=address, endpoint=endpoint, agreement=agreement, source=source, stream=stream, unconfirmed=0
    )


def test_names_of_peers_do_not_change_with_their_port():
    assert peer_name(peer("10.0.0.7:40312")) == "10.0.0.7"
    assert peer_name(peer("[::1]:40312")) == "[::1]"
    assert peer_name(peer("10.0.0.7:5555", "tcp://node7:5555", connects=True)) == "tcp://node7:5555"
    assert peer_name(peer("10.0.0.7:40312", identity=b"rank-3")) == "rank-3"
    assert peer_name(peer("", "ipc:///tmp/q")) == "ipc:///tmp/q"
    assert peer_name(peer("1.2.3.4:5", identity=b"\xff\x00")) == "\\xff\x00"


def test_the_number_of_names_is_limited_and_names_are_kept():
    tally = Tally()
    first = [tally.name_of(peer(f"10.0.{i >> 8}.{i & 255}:1")) for i in range(MAX_PEERS)]
    assert len(set(first)) == MAX_PEERS
    assert tally.name_of(peer("10.9.9.9:1")) == OTHER_PEERS
    assert tally.name_of(peer("10.0.0.0:2")) == first[0]


def test_identities_of_one_connection_are_no_names():
    tally = Tally()
    names = {tally.name_of(peer("10.0.0.7:1", identity=one_time_identity())) for _ in range(MAX_PEERS + 1)}
    assert names == {"10.0.0.7"}
    assert tally.name_of(peer("10.0.0.7:1", identity=b"trainer-1")) == "trainer-1"


def test_ended_peers_add_up():
    tally = Tally()
    for _ in range(2):
        tally.peer_ended("PULL", peer("10.0.0.7:40312"))
    ended = tally.ended()
    assert ended["transfer_peer_send_blocked_seconds_total", ("PULL", "10.0.0.7")] == 2
    assert ended["transfer_peer_receive_wait_seconds_total", ("PULL", "10.0.0.7")] == 4
    assert ended["transfer_drops_total", ("PULL", "full")] == 6


@pytest.fixture(params=["native", "pure"])
def turn(request):
    """The state of a REQ, which counts its round trips, of both cores."""
    if request.param == "pure":
        return Turn()
    name = "transfer.transports.core.native.req_rep_turn"
    return pytest.importorskip(name, reason="the core is not built").Turn()


def test_every_round_trip_falls_into_its_bucket(turn):
    took = [0, 15_999, 16_000, 16_001, 1_000_000, 10**9, 20 * 10**9]
    turn.requested_ns = 12345
    for nanoseconds in took:
        turn.answered(turn.requested_ns + nanoseconds)
    counts = LatencyCounts()
    counts.merge(turn)
    wanted = [0] * (len(Turn.BOUNDS) + 1)
    for nanoseconds in took:
        wanted[bisect_left(Turn.BOUNDS, nanoseconds)] += 1
    assert counts.counts == wanted
    assert counts.total_ns == sum(took)
