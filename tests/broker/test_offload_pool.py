"""A pool of threads decodes large messages; if that fails, the loop does. Their order stays."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from tests.broker.http_requests import get_json, until
from tests.broker.in_process_broker import running
from transfer.broker.config.settings import AbtpEndpoints, FastPath
from transfer.broker.offload_pool import OffloadPool
from transfer.transports.errors import InternalError, UsageError

HERE = threading.current_thread


def answers(settings, *works, closed=False):
    """What each piece of work came to, and what was counted."""

    async def run():
        counts = Counter()
        pool = OffloadPool(asyncio.get_running_loop(), settings, counts)
        if closed:
            pool.close()
        ends = [asyncio.get_running_loop().create_future() for _ in works]
        for work, end in zip(works, ends, strict=True):
            pool.run(work, end.set_result)
        try:
            return await asyncio.wait_for(asyncio.gather(*ends), 20), counts
        finally:
            pool.close()

    return asyncio.run(run())


def breaks_offloaded():
    if HERE().name.startswith("transfer-broker-offload"):
        raise MemoryError("no room there")
    return "in place"


def refuses():
    raise UsageError("not so")


def test_work_is_done_on_another_thread_in_its_order():
    told, counts = answers(FastPath(), lambda: HERE().name, lambda: 2)
    assert told[0].startswith("transfer-broker-offload") and told[1] == 2
    assert counts == {"offloaded": 2}


def test_what_the_work_refuses_is_its_answer():
    (told,), counts = answers(FastPath(), refuses)
    assert isinstance(told, UsageError) and counts == {"offloaded": 1}


def test_the_loop_does_it_when_the_thread_cannot():
    assert answers(FastPath(), breaks_offloaded) == (["in place"], {"offload_in_place": 1})
    assert answers(FastPath(), lambda: HERE().name, closed=True) == ([HERE().name], {"offload_in_place": 1})
    (told,), _ = answers(FastPath(), refuses, closed=True)
    assert isinstance(told, UsageError)
    (told,), _ = answers(FastPath(), lambda: 1 // 0)
    assert isinstance(told, InternalError)


def test_it_is_refused_where_the_loop_may_not():
    (told,), counts = answers(FastPath(in_place=False), breaks_offloaded)
    assert isinstance(told, InternalError) and counts == {"offload_failed": 1}


def test_only_large_ones_go_there():
    pool = OffloadPool(asyncio.new_event_loop(), FastPath(cutover=100), Counter())
    assert [pool.takes(99), pool.takes(100)] == [False, True]
    pool.close()
    pool._loop.close()


def test_large_messages_of_abtp_come_in_their_order(tmp_path):
    pytest.importorskip("zmq", reason="pip install 'tensor-transfer[fronts]'")
    from transfer.broker.clients.abtp import AbtpProducer

    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    payloads = [bytes([number]) * (5000 if number % 3 else 50) for number in range(30)]
    with (
        running(tmp_path, http=0, abtp=where, fast_path=FastPath(cutover=2000)) as broker,
        AbtpProducer(broker.endpoints["abtp router"]) as producer,
    ):
        headers = {"delivery_mode": "fanout"}
        for number, payload in enumerate(payloads):
            producer.publish("t", payload, headers=headers, compress=number % 2 == 0, wait=False)
        producer.publish("t", payloads[0], headers=headers)
        events = get_json(broker.ports["http"], "overview")["events"]
        assert events["offloaded"] == 10, "those that are large as they came, compressed or not"
        until(lambda: get_json(broker.ports["http"], "topics?contains=t")["topics"][0]["end"], 31)
        kept = broker.hub.store.read(broker.hub.store.topics["t"], 0)
        assert [bytes(one.payload) for one in kept] == [*payloads, payloads[0]]
