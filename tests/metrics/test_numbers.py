"""What happens to sockets is what a scrape tells: counts, drops, peers, waiting, ends."""

from __future__ import annotations

import gc
import socket as plain
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

import transfer
from transfer.metrics import prometheus as metrics


def eventually(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until it holds; what the reactor does takes a moment."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def pair(context, one, other):
    """Two connected sockets over TCP, with time-outs."""
    bound, connected = context.socket(one), context.socket(other)
    for made in (bound, connected):
        made.sndtimeo = made.rcvtimeo = 20_000
        made.linger = 0
    bound.bind("tcp://127.0.0.1:0")
    connected.connect(bound.last_endpoint)
    return bound, connected


def test_messages_and_bytes_are_counted_on_both_sides(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    for _ in range(50):
        push.send(b"x" * 100)
    for _ in range(50):
        pull.recv()
    assert sample("transfer_messages_sent_total", socket="PUSH") == 50
    assert sample("transfer_bytes_sent_total", socket="PUSH") == 5000
    assert sample("transfer_messages_received_total", socket="PULL") == 50
    assert sample("transfer_bytes_received_total", socket="PULL") == 5000
    assert sample("transfer_sockets", socket="PULL") == 1
    assert sample("transfer_connections_total", socket="PULL") == 1
    assert sample("transfer_core_info", implementation=context.core.IMPLEMENTATION) == 1


def test_what_is_sent_again_is_counted_once(context, sample):
    """Messages taken from callers: neither `resend` nor a queue that moves takes one again."""
    first, push = pair(context, transfer.PULL, transfer.PUSH)
    push.resend = True
    push.wait_for_peers(1)
    for _ in range(20):
        push.send(b"x" * 100)
    eventually(lambda: not push.peers()[0].queued)
    first.close(0)
    eventually(lambda: sample("transfer_resent_total", socket="PUSH") == 20)
    second = context.socket(transfer.PULL)
    second.rcvtimeo = 20_000
    second.bind("tcp://127.0.0.1:0")
    push.connect(second.last_endpoint)
    assert [second.recv() for _ in range(20)] == [b"x" * 100] * 20
    assert sample("transfer_messages_sent_total", socket="PUSH") == 20
    assert sample("transfer_bytes_sent_total", socket="PUSH") == 2000


def test_what_is_sent_before_there_is_a_peer_is_counted_once(context, sample):
    push, pull = context.socket(transfer.PUSH, immediate=False), context.socket(transfer.PULL)
    push.sndtimeo = pull.rcvtimeo = 20_000
    push.connect("inproc://later")  # the connection brings a stream of its own
    for _ in range(20):
        push.send(b"x")
    pull.bind("inproc://later")
    assert [pull.recv() for _ in range(20)] == [b"x"] * 20
    assert sample("transfer_messages_sent_total", socket="PUSH") == 20
    assert sample("transfer_bytes_sent_total", socket="PUSH") == 20


def test_the_newest_message_is_counted_when_it_goes(context, sample):
    push, pull = context.socket(transfer.PUSH, conflate=True, immediate=True), context.socket(transfer.PULL)
    pull.rcvtimeo = 20_000
    pull.bind("tcp://127.0.0.1:0")
    for number in range(3):  # each in the place of the one before
        push.send(b"%d" % number)
    push.connect(pull.last_endpoint)
    assert pull.recv() == b"2"
    eventually(lambda: sample("transfer_messages_sent_total", socket="PUSH") == 1)
    assert sample("transfer_drops_total", socket="PUSH", reason="conflated") == 2


def test_peers_are_named_by_endpoint_or_host_with_their_transport(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    push.send(b"x")
    pull.recv()
    assert sample("transfer_peers", socket="PUSH", peer=pull.last_endpoint, transport="tcp") == 1
    assert sample("transfer_peers", socket="PULL", peer="127.0.0.1", transport="tcp") == 1


def test_a_peer_with_an_identity_is_named_by_it(context, sample):
    router, dealer = context.socket(transfer.ROUTER), context.socket(transfer.DEALER)
    router.linger = dealer.linger = 0
    router.rcvtimeo = dealer.sndtimeo = 20_000
    dealer.routing_id = b"worker-7"
    router.bind("tcp://127.0.0.1:0")
    dealer.connect(router.last_endpoint)
    dealer.send(b"x")
    assert router.recv_multipart() == [b"worker-7", b"x"]
    assert sample("transfer_peers", socket="ROUTER", peer="worker-7", transport="tcp") == 1


def test_a_publisher_counts_what_nobody_wanted(context, sample):
    publisher = context.socket(transfer.PUB)
    publisher.bind("tcp://127.0.0.1:0")
    for _ in range(3):
        publisher.send(b"news")
    assert sample("transfer_drops_total", socket="PUB", reason="no_peer") == 3


def test_a_full_subscriber_is_counted(context, sample):
    publisher, subscriber = pair(context, transfer.PUB, transfer.SUB)
    publisher.sndhwm = 1
    publisher.sndhwm_bytes = 1 << 20
    publisher.sndbuf = 4096
    subscriber.subscribe(b"")
    publisher.wait_for_peers(1, timeout=20)
    data, sent = bytes(1 << 20), 0
    while not sample("transfer_drops_total", socket="PUB", reason="full"):
        publisher.send(data)
        sent += 1
        assert sent < 200, "nobody reads, and nothing is dropped"
    dropped = sample("transfer_drops_total", socket="PUB", reason="full")
    subscriber.rcvtimeo = 2000
    arrived = 0
    with pytest.raises(transfer.Again):
        while True:
            assert subscriber.recv() == data
            arrived += 1
    assert arrived + dropped == sent
    assert not sample("transfer_drops_total", socket="PUB", reason="no_peer")


def test_totals_stay_when_peers_and_sockets_end(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    push.send(b"12345")
    assert pull.recv() == b"12345"
    waited = sample("transfer_peer_receive_wait_seconds_total", socket="PULL", peer="127.0.0.1")
    push.close()
    pull.close()
    assert sample("transfer_messages_sent_total", socket="PUSH") == 1
    assert sample("transfer_bytes_received_total", socket="PULL") == 5
    assert sample("transfer_peer_receive_wait_seconds_total", socket="PULL", peer="127.0.0.1") >= waited
    assert not sample("transfer_sockets", socket="PULL")
    assert not sample("transfer_peers", socket="PULL", peer="127.0.0.1", transport="tcp")


def test_a_receiver_that_waited_is_told_by_peer(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    push.wait_for_peers(1, timeout=20)
    pull.rcvtimeo = 100
    with pytest.raises(transfer.Again):
        pull.recv()
    push.send(b"x")
    pull.rcvtimeo = 20_000
    pull.recv()
    assert sample("transfer_receive_wait_seconds_total", socket="PULL") > 0


def test_a_sender_that_was_blocked_is_told_by_peer(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    push.sndhwm = 1
    push.wait_for_peers(1, timeout=20)
    push.sndtimeo = 50
    data = bytes(64 << 20)  # more than the system takes, so that it stays blocked
    with pytest.raises(transfer.Again):
        for _ in range(2):
            push.send(data)
    assert sample("transfer_send_blocked_seconds_total", socket="PUSH") > 0
    assert sample("transfer_queue_messages", socket="PUSH") >= 1
    assert sample("transfer_queue_bytes", socket="PUSH") > 0
    assert not sample("transfer_messages_received_total", socket=pull.type.name)


def test_the_round_trips_of_requests_are_a_histogram(context, sample):
    replier, requester = pair(context, transfer.REP, transfer.REQ)
    before = time.monotonic()
    turns = ((requester.send, requester.recv), (requester.send, requester.recv_multipart))
    for ask, take in (*turns, (lambda part: requester.send_multipart([part, part]), requester.recv)):
        ask(b"?")
        replier.recv_multipart()
        replier.send(b"!")
        take()
    for _ in range(2):
        assert sample("transfer_request_seconds_count") == 3
        assert 0 < sample("transfer_request_seconds_sum") <= time.monotonic() - before
        assert sample("transfer_request_seconds_bucket", le="+Inf") == 3
        requester.close()


def test_garbage_is_counted_by_reason(context, sample, registry):
    pull = context.socket(transfer.PULL)
    pull.bind("tcp://127.0.0.1:0")
    host, port = pull.last_endpoint.removeprefix("tcp://").split(":")
    with plain.create_connection((host, int(port)), timeout=20) as intruder:
        intruder.sendall(b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: a browser\r\n\r\n")
        eventually(lambda: sample("transfer_handshake_failures_total", reason="magic"))
    families = [family for family in registry.collect() if family.name == "transfer_handshake_failures"]
    counts = {s.labels["reason"]: s.value for s in families[0].samples if s.value}
    assert counts == {"magic": 1}
    assert not sample("transfer_connections_total", socket="PULL")


def test_unconfirmed_messages_are_counted_when_the_peer_goes(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    for _ in range(10):
        push.send(b"x")
    pull.recv()
    # The connection ends under it, as if the process had been killed: nothing is said.
    for peer in list(pull._links.state.peers.values()):
        ended = plain.socket(fileno=peer.stream.fd)
        ended.setsockopt(plain.SOL_SOCKET, plain.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        ended.shutdown(plain.SHUT_RDWR)
        ended.detach()
    eventually(lambda: sample("transfer_disconnections_total", socket="PUSH"))
    lost = sample("transfer_unconfirmed_total", socket="PUSH")
    assert lost is not None
    assert 0 < lost <= 10


def test_reconnects_are_counted(context, sample):
    push = context.socket(transfer.PUSH)
    push.reconnect_ivl, push.reconnect_ivl_max = 1, 5
    with plain.socket() as taken:  # a port that no peer listens at
        taken.bind(("127.0.0.1", 0))
        push.connect(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        eventually(lambda: (sample("transfer_reconnects_total", socket="PUSH") or 0) >= 2)
        assert not sample("transfer_connections_total", socket="PUSH")


def test_pool_use_is_told(context, sample):
    pull, push = pair(context, transfer.PULL, transfer.PUSH)
    push.send(bytes(1 << 20), copy=False)
    frame = pull.recv(copy=False)
    assert sample("transfer_pool_bytes", state="in_use") >= 1 << 20
    del frame
    gc.collect()
    assert sample("transfer_pool_bytes", state="in_use") < 1 << 20


def test_two_contexts_in_one_registry_are_summed():
    registry = CollectorRegistry()
    with transfer.Context() as one, transfer.Context() as other:
        for context in (one, other):
            metrics.register(context, registry)
            metrics.register(context, registry)  # twice is fine
        sockets = [one.socket(transfer.PULL), other.socket(transfer.PULL)]
        assert registry.get_sample_value("transfer_sockets", {"socket": "PULL"}) == 2
        for context in (one, other):
            context.destroy(0)
            metrics.unregister(context, registry)
            metrics.unregister(context, registry)
    assert all(socket.closed for socket in sockets)
    assert not registry.get_sample_value("transfer_sockets", {"socket": "PULL"})


def test_a_forgotten_context_keeps_its_totals():
    registry = CollectorRegistry()
    context = transfer.Context()
    metrics.register(context, registry)
    publisher = context.socket(transfer.PUB)
    publisher.send(b"x")
    publisher.close()
    del publisher, context
    gc.collect()
    assert registry.get_sample_value("transfer_drops_total", {"socket": "PUB", "reason": "no_peer"}) == 1


def test_a_scrape_may_come_at_any_moment(context, registry):
    """Scrapes while sockets come and go neither fail nor count down."""
    import threading

    stop = threading.Event()
    seen: list[float] = []
    failures: list[BaseException] = []

    def scrape() -> None:
        while not stop.is_set():
            try:
                seen.append(
                    registry.get_sample_value("transfer_messages_sent_total", {"socket": "PUSH"}) or 0
                )
            except BaseException as error:
                failures.append(error)
                raise

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for _ in range(20):
            pull, push = pair(context, transfer.PULL, transfer.PUSH)
            push.send(b"x")
            pull.recv()
            push.close()
            pull.close()
    finally:
        stop.set()
        thread.join(20)
    assert not failures
    assert registry.get_sample_value("transfer_messages_sent_total", {"socket": "PUSH"}) == 20
