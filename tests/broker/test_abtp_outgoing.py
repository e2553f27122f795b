"""Large messages for abtp's consumers are packed in a pool of threads, and nothing overtakes them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

pytest.importorskip("zmq", reason="pip install 'tensor-transfer[fronts]'")

from tests.broker.http_requests import until
from tests.broker.in_process_broker import running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints, FastPath
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.delivery.delivery_sink import Sent
from transfer.broker.fronts.abtp_sender import AbtpOutgoing
from transfer.broker.offload_pool import OffloadPool
from transfer.broker.protocols.abtp_media import Lz4

WHERE = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
CUTOVER = 2000


class Peers:
    """What peers were sent, in its order; answers: what becomes of the next ones, YES when none is left."""

    def __init__(self):
        self.sent, self.failed, self.answers = [], [], []
        self.ready = threading.Event()

    def send(self, frames):
        self.sent.append(frames)
        return self.answers.pop(0) if self.answers else Sent.YES

    def packed(self, *frames):
        assert self.ready.wait(20)
        return list(frames)


def played(scene, **settings):
    """What peers are sent in a scene, which is called with them and an Outgoing."""
    peers = Peers()

    async def run():
        pool = OffloadPool(asyncio.get_running_loop(), FastPath(cutover=CUTOVER, **settings), Counter())
        outgoing = AbtpOutgoing(peers.send, pool)
        scene(peers, outgoing)
        peers.ready.set()
        while outgoing._waiting:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        pool.close()

    asyncio.run(asyncio.wait_for(run(), 20))
    return peers


def test_what_is_behind_a_large_one_waits_for_it_and_other_peers_do_not():
    def scene(peers, outgoing):
        assert outgoing.send([b"a", b"0"], peers.failed.append) is Sent.YES
        for number in (b"1", b"2"):
            packed = lambda number=number: peers.packed(b"a", number)  # noqa: E731
            assert outgoing.pack(b"a", packed, peers.failed.append) is Sent.YES
        assert outgoing.send([b"a", b"3"], peers.failed.append) is Sent.YES
        assert outgoing.send([b"b", b"4"], peers.failed.append) is Sent.YES
        assert peers.sent == [[b"a", b"0"], [b"b", b"4"]]

    peers = played(scene)
    assert peers.sent[2:] == [[b"a", b"1"], [b"a", b"2"], [b"a", b"3"]] and peers.failed == []


def test_what_cannot_be_sent_later_is_told():
    def scene(peers, outgoing):
        outgoing.pack(b"a", lambda: peers.packed(b"a", b"1"), lambda sent: peers.failed.append(("1", sent)))
        outgoing.pack(b"a", lambda: 1 // 0, lambda sent: peers.failed.append(("2", sent)))
        outgoing.send([b"a", b"3"], lambda sent: peers.failed.append(("3", sent)))
        outgoing.send([b"a", b"4"], lambda sent: peers.failed.append(("4", sent)))
        peers.answers = [Sent.BUSY, Sent.YES, Sent.GONE]

    peers = played(scene, in_place=False)
    assert peers.sent == [[b"a", b"1"], [b"a", b"3"], [b"a", b"4"]]
    assert peers.failed == [("1", Sent.BUSY), ("2", Sent.FAILED), ("4", Sent.GONE)]


def packing(broker):
    able = ConsumerCapabilities(supports_ack=True, max_inflight=100, supports_compression=("lz4",))
    return AbtpConsumer("worker", ["t.*"], broker.endpoints["abtp router"], capabilities=able)


def test_messages_come_packed_and_in_their_order(tmp_path):
    payloads = [bytes([number]) * (5000 if number % 3 == 0 else 50) for number in range(30)]
    with (
        running(tmp_path, abtp=WHERE, fast_path=FastPath(cutover=CUTOVER)) as broker,
        packing(broker) as worker,
        AbtpProducer(broker.endpoints["abtp router"]) as producer,
    ):
        for payload in payloads:
            producer.publish("t.a", payload, wait=False)
        got = [worker.recv() for _ in payloads]
        assert [one.payload for one in got] == payloads
        for one in got:
            worker.ack(one, confirm=True)
        assert broker.hub.counts["offloaded"] == 20, "each large one was read there and packed there"
        assert not broker.hub.direct.dispatcher.state.messages


@pytest.mark.parametrize("in_place", [True, False])
def test_one_that_cannot_be_packed_there(tmp_path, monkeypatch, in_place):
    compress = Lz4.compress

    def breaks_offloaded(self, data):
        if threading.current_thread().name.startswith("transfer-broker-offload"):
            raise MemoryError("no room there")
        return compress(self, data)

    monkeypatch.setattr(Lz4, "compress", breaks_offloaded)
    with (
        running(tmp_path, abtp=WHERE, fast_path=FastPath(cutover=CUTOVER, in_place=in_place)) as broker,
        packing(broker) as worker,
        AbtpProducer(broker.endpoints["abtp router"]) as producer,
    ):
        producer.publish("t.a", bytes(5000), message_id="large")
        producer.publish("t.a", b"small", message_id="small")
        if in_place:
            assert worker.recv().payload == bytes(5000)
        assert worker.recv().payload == b"small"
        until(lambda: broker.letters.count(), 0 if in_place else 1)
        for one in broker.letters.all():
            assert (one.message_id, one.reason) == ("large", "the message could not be encoded")
            assert one.payload == bytes(5000)
