"""Messages that cannot be read are dropped, and those of others are received, whatever the order."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import numpy as np
import pytest

import transfer
from tests.core.raw_frames import Raw
from tests.faults.raw_peer import raw_peer
from transfer.peer_faults import PeerFaults
from transfer.spool.server.message_receiver import MessageReceiver
from transfer.tensors.bundle_arrival import take_bundle, take_bundle_from
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again

COUNT = 40
LARGE = np.zeros(100_000)
BAD = {
    "bytes": lambda sock: sock.send(b"no tensor"),
    "large bytes": lambda sock: sock.send(LARGE.tobytes()),
    "a tensor": lambda sock: sock.send_tensor(np.zeros(3)),
    "a large tensor": lambda sock: sock.send_tensor(LARGE),
}


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_no_message_of_another_peer_is_dropped(bad, routed):
    kinds = (transfer.ROUTER, transfer.DEALER) if routed else (transfer.PULL, transfer.PUSH)
    take = take_bundle_from if routed else take_bundle
    faults = PeerFaults(logging.getLogger("transfer.spool"))
    with transfer.Context() as context, context.socket(kinds[0]) as sock:
        sock.bind("tcp://127.0.0.1:0")
        receiver = MessageReceiver(sock, take, faults)
        with context.socket(kinds[1]) as good, context.socket(kinds[1]) as other:
            for peer in (other, good):
                peer.connect(sock.last_endpoint)
                peer.wait_for_peers(1, timeout=10)
            for number in range(COUNT):
                BAD[bad](other)
                good.send_tensors({"x": np.arange(3)}, meta=number)
            sock.rcvtimeo = 10_000
            found = []
            for _ in range(2 * COUNT):
                received = receiver.next()
                if received is not None:
                    found.append(received[-1])
            with pytest.raises(Again):
                receiver.next(transfer.DONTWAIT)
    assert found == list(range(COUNT))
    assert faults.count == COUNT


@pytest.mark.parametrize("routed", [False, True])
def test_a_message_of_which_only_the_beginning_is_there_costs_no_other(routed):
    """It shows that it is no dict of tensors before it can be taken."""
    kinds = (transfer.ROUTER, SocketType.DEALER) if routed else (transfer.PULL, SocketType.PUSH)
    faults = PeerFaults(logging.getLogger("transfer.spool"))
    with transfer.Context() as context, context.socket(kinds[0]) as sock, ExitStack() as stack:
        sock.bind("tcp://127.0.0.1:0")
        sock.rcvtimeo = 10_000
        receiver = MessageReceiver(sock, take_bundle_from if routed else take_bundle, faults)
        other = stack.enter_context(raw_peer(sock.last_endpoint, kinds[1]))
        whole = Raw(socket_type=kinds[1], data=bytes(1 << 20)).encode()
        good = stack.enter_context(context.socket(kinds[1]))
        good.connect(sock.last_endpoint)
        good.wait_for_peers(1, timeout=10)
        other.sendall(whole[:1000])
        for number in range(COUNT):
            good.send_tensors({"x": np.arange(3)}, meta=number)
        assert [receiver.next()[-1] for _ in range(COUNT)] == list(range(COUNT))
        other.sendall(whole[1000:])
        assert receiver.next() is None and faults.count == 1
