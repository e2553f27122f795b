"""A pool of threads decodes large messages of abtp: each peer's stay in order, others do not wait."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, deque

import pytest

pytest.importorskip("zmq", reason="pip install 'tensor-transfer[fronts]'")

from hypothesis import given, settings, strategies as st

from tests.broker.in_process_broker import running
from tests.broker.test_direct_delivery import ANYWHERE, consumer, eventually, producer
from transfer.broker.config.settings import FastPath
from transfer.broker.fronts import abtp_request_reader
from transfer.broker.fronts.abtp_request_reader import RequestReader
from transfer.broker.offload_pool import OffloadPool
from transfer.transports.errors import InternalError

CUTOVER = 100


def said(peer, number, large):
    return [b"%d" % peer, b"topic", b"{%d" % number + bytes(CUTOVER if large else 0)]


async def played(messages, threads, read=lambda frames: frames, **limits):
    """(what was done, in its order; what failed). messages: frames."""
    loop, done, failed = asyncio.get_running_loop(), [], []
    pool = OffloadPool(loop, FastPath(cutover=CUTOVER, threads=threads, in_place=False), Counter())
    again = asyncio.Event()
    reader = RequestReader(
        read,
        lambda peer, request: done.append((peer, request)),
        lambda *what: failed.append(what),
        pool,
        again.set,
    )
    waiting = deque(messages)
    try:
        while waiting or reader._queues:
            while waiting and not reader.is_full:
                reader.add(waiting.popleft())
                assert len(reader._queues) <= threads + 1
            assert reader._queued <= abtp_request_reader._MOST_QUEUED
            again.clear()
            if reader._queues:
                await asyncio.wait_for(again.wait(), 20)
    finally:
        pool.close()
    assert reader._queued == reader._queued_bytes == 0 and not reader.is_full
    return done, failed


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([2, 10, 1000]),
)
def test_each_peers_messages_stay_in_their_order(talk, threads, most):
    messages = [said(peer, number, large) for number, (peer, large) in enumerate(talk)]

    def slowly(frames):
        if len(frames[-1]) >= CUTOVER:
            threading.Event().wait(random.random() / 1000)
        return frames

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(abtp_request_reader, "_MOST_QUEUED", most)
        done, failed = asyncio.run(played(messages, threads, slowly))
    assert not failed and sorted(map(repr, messages)) == sorted(repr(request) for _, request in done)
    for peer in {frames[0] for frames in messages}:
        mine = [frames for frames in messages if frames[0] == peer]
        assert [request for one, request in done if one == peer] == mine


def test_small_ones_of_others_do_not_wait_for_a_large_one():
    large, released = said(0, 0, True), threading.Event()

    def read(frames):
        if frames is large:
            assert released.wait(20)
        elif frames[-1] == b"{9":
            released.set()
        return frames

    done, _ = asyncio.run(
        played([large, said(0, 1, False), *(said(1, n, False) for n in range(2, 10))], 1, read)
    )
    assert [request[-1][:2] for _, request in done] == [b"{%d" % n for n in (*range(2, 10), 0, 1)]


def test_what_cannot_be_read_is_told_and_the_next_is_taken():
    def read(frames):
        if frames[-1].startswith(b"{1"):
            raise RuntimeError("a mistake of ours")
        return frames

    messages = [
        said(0, n, large) for n, large in ((10, True), (2, False), (11, False), (3, True), (12, True))
    ]
    done, failed = asyncio.run(played(messages, 1, read))
    assert [isinstance(request, InternalError) for _, request in done] == [True, False, False, True]
    assert [what for _, what, _ in failed] == ["a message"]


@pytest.mark.parametrize("threads", [1, 3])
def test_producers_of_large_and_small_messages(tmp_path, threads):
    """Through a whole broker: all come, each producer's in its order."""
    fast = FastPath(cutover=20_000, threads=threads)
    with running(tmp_path, abtp=ANYWHERE, fast_path=fast) as broker, consumer(broker) as worker:
        makers = [producer(broker) for _ in range(3)]
        for number in range(30):
            for which, maker in enumerate(makers):
                size = 60_000 if (number + which) % 3 == 0 else 10
                maker.publish(f"orders.{which}", [number, "x" * size], wait=False)
        found = {f"orders.{which}": [] for which in range(3)}
        for _ in range(90):
            message = worker.recv(20)
            found[message.topic].append(message.payload[0])
            worker.ack(message)
        assert all(numbers == list(range(30)) for numbers in found.values())
        assert broker.hub.counts["offloaded"] >= 30
        eventually(lambda: not broker.direct.dispatcher.state.messages)
        for maker in makers:
            maker.close()
