"""Sockets that follow `dns://`: pods come and go, and no message is lost in silence."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import transfer
import transfer.asyncio
import transfer.zmq
from tests.discovery.waits import PATIENCE, Pods, drain, hosts, until
from transfer import DEALER, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.metrics.counters import socket_counts
from transfer.metrics.prometheus import FAMILIES
from transfer.sockets.connections import directory_connector
from transfer.transports.errors import AddressError, Again, Broken

NAME = "pods.test"

pytestmark = pytest.mark.usefixtures("quick")
both_cores = pytest.mark.parametrize("core", ["pure", "native"], indirect=True)


def put(names, *numbers):
    names.put(NAME, [f"127.0.0.{number}" for number in numbers])


@pytest.fixture
def pods(context):
    return Pods(context, PULL)


@pytest.fixture
def push(context, names, pods):
    """A PUSH that follows the pods 2 and 3."""
    pods.start(2, 3)
    put(names, 2, 3)
    socket = context.socket(PUSH, sndtimeo=10_000)
    socket.connect(f"dns://{NAME}:{pods.port}")
    socket.wait_for_peers(2, PATIENCE)
    return socket


def events(monitor):
    """Those so far."""
    found = []
    while True:
        try:
            found.append(monitor.recv(0))
        except Again:
            return found


@both_cores
def test_a_new_pod_gets_work_and_one_that_left_does_not(names, pods, push):
    monitor = push.get_monitor()
    pods.start(4)
    put(names, 2, 3, 4)
    push.wait_for_peers(3, PATIENCE)
    for number in range(30):
        push.send(b"%d" % number)
    assert [len(drain(pods[number])) for number in (2, 3, 4)] == [10, 10, 10]
    put(names, 3, 4)
    until(lambda: hosts(push) == [3, 4])
    for number in range(10):
        push.send(b"%d" % number)
    assert [len(drain(pods[number])) for number in (2, 3, 4)] == [0, 5, 5]
    where = f"tcp://127.0.0.%d:{pods.port}"
    told = [(event.kind, event.peer) for event in events(monitor) if event.kind.startswith("member")]
    assert told == [
        ("member_added", where % 4), ("member_retired", where % 2), ("member_removed", where % 2)
    ]  # fmt: skip
    counts = push._links.state.counts
    assert (counts["member:added"], counts["member:retired"], counts["member:removed"]) == (3, 1, 1)
    assert not counts.get("unconfirmed")


@both_cores
def test_a_pod_that_drains_keeps_what_it_has_and_gets_nothing_new(names, pods, push):
    """It left the name service, and works on: its connection stays until all is confirmed."""
    for number in range(10):
        push.send(b"%d" % number)
    until(lambda: not any(peer.queued for peer in push.peers()))
    put(names, 3)
    until(lambda: push._links.state.counts.get("member:retired"))
    for number in range(10, 20):
        push.send(b"%d" % number)
    assert hosts(push) == [2, 3], "what it has is not confirmed"
    assert len(drain(pods[3])) == 15
    assert len(drain(pods[2])) == 5
    until(lambda: hosts(push) == [3])
    assert not push._links.state.counts.get("unconfirmed") and not push._links.state.counts.get(
        "redistributed"
    )


@both_cores
def test_a_pod_that_comes_back_gets_work_by_the_same_connection(names, pods, push):
    push.send(b"a")
    push.send(b"b")
    put(names, 3)
    until(lambda: push._links.state.counts.get("member:retired"))
    put(names, 2, 3)
    until(lambda: push._links.state.counts.get("member:restored"))
    for number in range(10):
        push.send(b"%d" % number)
    assert [len(drain(pods[number])) for number in (2, 3)] == [6, 6]
    assert push._links.state.counts["connected"] == 2
    pods.stop(2)
    until(lambda: hosts(push) == [3])
    pods.start(2)
    until(lambda: hosts(push) == [2, 3], "it is tried again, as one that is listed")


@pytest.mark.parametrize("resend", [False, True])
def test_of_a_pod_that_dies_everything_is_counted_or_sent_again(context, names, pods, push, resend):
    push.resend = resend
    for number in range(40):
        push.send(b"%d" % number)
    put(names, 3)
    until(lambda: push._links.state.counts.get("member:retired"))
    pods.stop(2)
    until(lambda: hosts(push) == [3])
    received = {int(data) for data in drain(pods[3])}
    unconfirmed = push._links.state.counts.get("unconfirmed", 0)
    assert len(received) + unconfirmed >= 40
    assert (received == set(range(40))) == resend


def test_an_empty_answer_drops_nobody(names, pods, push):
    """As of a headless service whose pods are all not ready: it has no name then."""
    put(names)
    looked = push._links.state.counts["looked_up:done"]
    until(lambda: push._links.state.counts["looked_up:done"] >= looked + 2)
    for number in range(10):
        push.send(b"%d" % number)
    assert [len(drain(pods[number])) for number in (2, 3)] == [5, 5]
    pods.stop(2)
    until(lambda: push._links.state.counts.get("member:removed"), "who is not there is not tried any more")
    assert hosts(push) == [3]
    put(names, 3)
    push.send(b"x")
    assert pods[3].recv() == b"x"


@pytest.mark.parametrize("mode", ["servfail", "silent"])
def test_while_the_name_server_fails_all_goes_on(names, pods, push, mode):
    names.mode = mode
    until(lambda: push._links.state.counts.get("looked_up:failed"))
    pods.stop(2)
    until(lambda: hosts(push) == [3])
    pods.start(2)
    until(lambda: hosts(push) == [2, 3], "those that are known are tried again all the same")
    for number in range(10):
        push.send(b"%d" % number)
    assert sum(len(drain(pods[number])) for number in (2, 3)) == 10
    names.mode = ""
    pods.start(4)
    put(names, 2, 3, 4)
    push.wait_for_peers(3, PATIENCE)


def test_nobody_is_there_yet(context, names, pods):
    push = context.socket(PUSH, sndtimeo=300)
    push.connect(f"dns://{NAME}:{pods.port}")
    until(lambda: push._links.state.counts.get("looked_up:done"))
    with pytest.raises(Again, match=r"no peer is listed for dns://pods\.test"):
        push.send(b"x")
    push.sndtimeo = 10_000
    pods.start(2)
    put(names, 2)
    push.send(b"x")
    assert pods[2].recv() == b"x"


def test_disconnect_ends_all_of_them(names, pods, push):
    with pytest.raises(AddressError, match="is not connected"):
        push.disconnect(f"tcp://127.0.0.2:{pods.port}")
    push.disconnect(f"dns://{NAME}:{pods.port}")
    assert push.peers() == [] and push._links.state.endpoints == []
    asked = len(names.asked)
    pods.start(4)
    put(names, 2, 3, 4)
    until(lambda: not any(one.name == "transfer-discovery" for one in threading.enumerate()))
    assert push.peers() == [] and len(names.asked) <= asked + 1


def test_it_can_be_connected_to_only(context):
    socket = context.socket(PULL)
    for endpoint in ("dns://pods.test:5590", "registry://127.0.0.1:5580/pods"):
        with pytest.raises(AddressError, match="can be connected to, not bound"):
            socket.bind(endpoint)


@both_cores
def test_a_publisher_follows_its_subscribers(context, names):
    pods = Pods(context, SUB)
    pods.start(2, 3)
    for number in (2, 3):
        pods[number].subscribe(b"")
    put(names, 2)
    pub = context.socket(PUB)
    pub.connect(f"dns://{NAME}:{pods.port}")
    pub.wait_for_peers(1, PATIENCE)
    pub.send(b"one")
    put(names, 2, 3)
    pub.wait_for_peers(2, PATIENCE)
    pub.send(b"two")
    put(names, 3)
    until(lambda: pub._links.state.counts.get("member:retired"))
    pub.send(b"three")
    assert drain(pods[2]) == [b"one", b"two"]
    assert drain(pods[3]) == [b"two", b"three"]
    until(lambda: hosts(pub) == [3])


def test_a_subscriber_follows_publishers(context, names):
    pods = Pods(context, PUB)
    pods.start(2, 3)
    put(names, 2)
    sub = context.socket(SUB, rcvtimeo=10_000)
    sub.subscribe(b"")
    sub.connect(f"dns://{NAME}:{pods.port}")
    sub.wait_for_peers(1, PATIENCE)
    put(names, 2, 3)
    sub.wait_for_peers(2, PATIENCE)
    pods[2].wait_for_peers(1, PATIENCE)
    pods[3].wait_for_peers(1, PATIENCE)
    for number in (2, 3):
        pods[number].send(b"%d" % number)
    assert {sub.recv(), sub.recv()} == {b"2", b"3"}
    put(names, 3)
    until(lambda: sub._links.state.counts.get("member:retired"))
    pods[2].send(b"last")
    assert sub.recv() == b"last", "what it still says is heard"
    pods.stop(2)
    until(lambda: hosts(sub) == [3] and sub._links.state.counts.get("member:removed"))


def test_a_puller_follows_pushers(context, names):
    pods = Pods(context, PUSH)
    pods.start(2, 3)
    put(names, 2, 3)
    pull = context.socket(PULL, rcvtimeo=10_000)
    pull.connect(f"dns://{NAME}:{pods.port}")
    pull.wait_for_peers(2, PATIENCE)
    put(names, 3)
    until(lambda: pull._links.state.counts.get("member:retired"))
    for number in range(10):
        pods[2].send(b"%d" % number)
    assert [pull.recv() for _ in range(10)] == [b"%d" % number for number in range(10)]
    pods.stop(2)
    until(lambda: pull._links.state.counts.get("member:removed"))


@pytest.mark.parametrize("kind", [REQ, DEALER])
def test_requests_go_on_while_pods_change(context, names, monkeypatch, kind):
    pods = Pods(context, REP if kind == REQ else ROUTER)
    pods.start(2, 3)
    put(names, 2)
    asks = context.socket(kind, rcvtimeo=10_000, sndtimeo=10_000)
    asks.connect(f"dns://{NAME}:{pods.port}")
    asks.wait_for_peers(1, PATIENCE)

    def ask(number):
        asks.send(b"question")
        parts = pods[number].recv_multipart()
        pods[number].send_multipart([*parts[:-1], b"%d" % number])
        return asks.recv()

    assert ask(2) == b"2"
    put(names, 3)
    until(lambda: asks._links.state.counts.get("member:retired"))
    if kind == DEALER:  # which has no way to tell what is still to be answered
        monkeypatch.setattr(directory_connector, "QUIET", 0.2)
    until(lambda: hosts(asks) == [3])
    assert ask(3) == b"3"


@both_cores
def test_a_request_is_answered_by_a_pod_that_left_meanwhile(context, names):
    pods = Pods(context, REP)
    pods.start(2, 3)
    put(names, 2)
    asks = context.socket(REQ, rcvtimeo=10_000)
    asks.connect(f"dns://{NAME}:{pods.port}")
    asks.wait_for_peers(1, PATIENCE)
    asks.send(b"question")
    assert pods[2].recv() == b"question"
    put(names, 3)
    until(lambda: asks._links.state.counts.get("member:retired"))
    until(lambda: hosts(asks) == [2, 3])
    time.sleep(0.3)  # looks at its connections some times
    pods[2].send(b"answer")
    assert asks.recv() == b"answer"
    until(lambda: hosts(asks) == [3])


def test_as_a_program_of_pyzmq(names):
    """Its sockets queue for an endpoint that is not there yet."""
    context = transfer.zmq.Context()
    try:
        pods = Pods(context, transfer.zmq.PULL)
        push = context.socket(transfer.zmq.PUSH)
        push.connect(f"dns://{NAME}:{pods.port}")
        for number in range(20):
            push.send(b"%d" % number)
        pods.start(2)
        put(names, 2)
        assert [pods[2].recv() for _ in range(20)] == [b"%d" % number for number in range(20)]
        pods.stop(2)
        until(lambda: not any(peer.transport for peer in push.peers()))
        push.send(b"later")
        pods.start(2)
        assert pods[2].recv() == b"later"
    finally:
        context.destroy(0)


def test_with_asyncio(names, core):
    async def main():
        with transfer.asyncio.Context(core=core) as context, context.socket(PUSH) as push:
            with transfer.Context(core=core) as other:
                pods = Pods(other, PULL)
                pods.start(2)
                put(names, 2)
                push.connect(f"dns://{NAME}:{pods.port}")
                await asyncio.wait_for(push.send(b"x"), PATIENCE)
                assert await asyncio.to_thread(pods[2].recv) == b"x"
                pods.stop(2)

    asyncio.run(main())


def test_what_is_counted_has_names(names, pods, push):
    put(names, 3)
    until(lambda: push._links.state.counts.get("member:removed"))
    found = {key for key, _ in socket_counts(push) if key[0].startswith("transfer_discovery")}
    assert ("transfer_discovery_changes_total", ("retired",)) in found
    assert ("transfer_discovery_lookups_total", ("done",)) in found
    assert {name for name, _ in found} <= set(FAMILIES)
    assert push._links.state.followed == 1


def test_a_policy_is_that_of_every_connection(context, names, pods):
    pods.start(2)
    put(names, 2)
    push = context.socket(PUSH)
    with pytest.raises(Again, match="no handshake"):
        push.handshake_ivl = 500
        push.connect(f"dns://nobody.test:{pods.port}?policy=require")
    push.connect(f"dns://{NAME}:{pods.port}?policy=prefer")
    push.wait_for_peers(1, PATIENCE)
    assert push.peers()[0].endpoint.endswith("?policy=prefer")


def test_closing_in_the_middle_of_everything(context, names, pods):
    pods.start(2, 3)
    put(names, 2, 3)
    for _ in range(20):
        with context.socket(PUSH) as push:
            push.connect(f"dns://{NAME}:{pods.port}")


def test_a_pod_that_refuses_is_why_nobody_is_there(context, names, pods):
    put(names, 2)
    push = context.socket(PUSH, sndtimeo=300)
    push.connect(f"dns://{NAME}:{pods.port}")
    until(lambda: isinstance(push._links.state.endpoints[0].error, Broken))
    with pytest.raises(Again, match="Connection refused"):
        push.send(b"x")


def test_one_that_cannot_be_followed_does_not_hold_up_others(names, pods, push, monkeypatch):
    """As with certificates that are being renewed; the next answer tries it again."""
    real, refused = push._links._reach, []

    def reach(socket, record):
        if record.address.host == "127.0.0.4" and len(refused) < 3:
            refused.append(record)
            raise Broken("not now")
        real(socket, record)

    monkeypatch.setattr(push._links, "_reach", reach)
    pods.start(4, 5)
    put(names, 2, 3, 4, 5)
    until(lambda: hosts(push) == [2, 3, 4, 5])
    assert len(refused) == 3 and not set(refused) & set(push._links.state.endpoints)
