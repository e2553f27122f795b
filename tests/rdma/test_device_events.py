"""A device that goes, a link that goes down, and connections that break while others go on."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

import transfer
from tests.rdma.ends import World
from tests.rdma.null_provider import NullProvider
from tests.sockets.helpers import eventually
from transfer.transports.errors import Broken
from transfer.transports.testing.ends import plain, receive, until


def test_a_device_that_goes_ends_its_connections_at_once(null: NullProvider, over_null: World) -> None:
    """Also one that has nothing to send."""
    hub = over_null.socket()
    near, far = over_null.connect(over_null.socket(), hub)
    idle = over_null.connect(over_null.socket(), hub)
    near.send(plain(b"before"))
    assert receive(far)[0].bytes == b"before"
    null.fault("goes")
    try:
        near.send(plain(b"after"))
    except Broken:
        pass
    for stream in (near, far, *idle):
        until(lambda stream=stream: stream in over_null.lost, "the end")


def test_sockets_return_by_tcp(null: NullProvider, caplog: pytest.LogCaptureFixture) -> None:
    with (
        transfer.Context(protocol="rdma", policy="prefer") as context,
        context.socket(transfer.PULL, rcvtimeo=20_000) as pull,
        context.socket(transfer.PUSH, sndtimeo=20_000, resend=True) as push,
    ):
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.send(b"before")
        assert pull.recv() == b"before"
        assert [peer.transport for peer in push.peers()] == ["rdma"]
        with caplog.at_level(logging.WARNING, "transfer"):
            null.fault("goes")
            wanted = [b"after %d" % number for number in range(20)]
            for message in wanted:
                push.send(message)
            got = []  # what was not confirmed when the device went is sent again
            while wanted[-1] not in got:
                got.append(pull.recv())
        assert [message for message in dict.fromkeys(got) if message != b"before"] == wanted
        assert eventually(lambda: [peer.transport for peer in push.peers()] == ["tcp"])
    assert sum("the RDMA device null0 is gone" in record.message for record in caplog.records) == 1


def test_a_link_that_goes_down_and_returns_is_logged(
    null: NullProvider, over_null: World, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = over_null.connect(over_null.socket(), over_null.socket())
    for fault, words in (("down", "the link of null0 port 1 is down"), ("up", "port 1 is up again")):
        with caplog.at_level(logging.WARNING, "transfer"):
            null.fault(fault)
            near.send(plain(fault.encode()))
            assert eventually(lambda words=words: words in caplog.text)
    got = []
    while len(got) < 2:
        near.flush()  # the provider has no thread: its sender tries again when it polls
        got += far.receive() or ()
    assert [frame.bytes for frame in got] == [b"down", b"up"]


def test_connections_made_while_the_link_is_down_go_by_tcp(null: NullProvider) -> None:
    def connects_by() -> str:
        with context.socket(transfer.PUSH) as push:
            push.connect(pull.last_endpoint)
            push.wait_for_peers(1, 10)
            return push.peers()[0].transport

    with (
        transfer.Context(protocol="rdma", policy="prefer") as context,
        context.socket(transfer.PULL) as pull,
    ):
        pull.bind("tcp://127.0.0.1:0")
        assert connects_by() == "rdma"
        null.fault("down")
        assert connects_by() == "tcp"
        null.fault("up")
        assert connects_by() == "rdma"


def test_completions_are_spread_over_the_vectors_of_the_device(over_null: World) -> None:
    device = over_null.context()["rdma.domains"].get().device
    channels = [device.channel(64 << 10) for _ in range(6)]
    vectors = [channel.vector for channel in channels]
    for channel in channels:
        channel.close()
    assert sorted(vectors) == [0, 0, 1, 1, 2, 2], "the null provider has three"


def test_connections_come_and_go_beside_others(made: World) -> None:
    hub = made.socket()
    near, far = made.connect(made.socket(), hub)
    for round_ in range(12):
        there, here = made.connect(made.socket(), hub)
        for _ in range(30):
            there.send(plain(b"unread"))
        here.close()
        there.close()
        near.send(plain(b"%d" % round_))
        assert receive(far)[0].bytes == b"%d" % round_


def test_a_payload_of_which_nothing_more_comes_is_stalled(null: NullProvider) -> None:
    """The completion of its second chunk is lost."""
    with (
        transfer.Context(protocol="rdma", policy="require") as context,
        context.socket(transfer.PUSH, linger=0, heartbeat_ivl=100) as push,
        context.socket(transfer.PULL, rcvtimeo=50, frame_timeout=1000) as pull,
    ):
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        null.fault("lose:read", 1, -1)
        push.send(bytes(3 << 20))

        def stalled() -> bool:
            with suppress(transfer.Again):
                pull.recv()
            return "protocol:stalled" in pull._links.state.counts

        assert eventually(stalled)
