"""Sockets over ucx://: patterns, tensors, trackers, closing, the environment, fork."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time

import numpy as np
import pytest

import transfer
import transfer.asyncio
from transfer.transports.errors import ForkedError
from transfer.transports.ucx import driver

pytestmark = [
    pytest.mark.keeps("UCX's own descriptors"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # the context ends them
]


@pytest.fixture
def context():
    with transfer.Context() as made:
        yield made


def connected(context, one, other, **options):
    """(connecting, bound) sockets of these types over UCX."""
    bound, connecting = context.socket(other, **options), context.socket(one, **options)
    bound.rcvtimeo = connecting.rcvtimeo = 20_000
    bound.sndtimeo = connecting.sndtimeo = 20_000
    bound.bind("ucx://127.0.0.1:0")
    if one == transfer.SUB:
        connecting.subscribe(b"")
    connecting.connect(bound.last_endpoint)
    connecting.wait_for_peers(1)
    bound.wait_for_peers(1)
    for socket in (connecting, bound):
        [peer] = socket.peers()
        assert peer.transport == "ucx" and peer.device == "ucx", peer.reason
    return connecting, bound


def test_push_pull_of_all_sizes(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    for size in (0, 1, 100, 4096, 65535, 65536, 65537, 1 << 20, 10 << 20):
        data = os.urandom(size)
        push.send(data)
        assert pull.recv() == data
    push.send_multipart([b"a", bytes(100_000), b"", bytes(200_000), b"z"])
    assert [len(part) for part in pull.recv_multipart()] == [1, 100_000, 0, 200_000, 1]


def test_a_message_that_was_only_polled_for_is_not_consumed(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    polled = push.send(b"polled for", track=True)
    assert pull.poll(20_000)
    with pytest.raises(transfer.Again):
        polled.wait_confirmed(0.2)
    assert pull.peers()[0].received == 0
    assert pull.recv() == b"polled for"
    polled.wait_confirmed(20)
    assert pull.peers()[0].received == 1


def test_many_messages_stay_in_order(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    count = 20_000

    def send():
        for number in range(count):
            push.send(
                number.to_bytes(4, "little") + bytes((number % 7 and 50) or 70_000 * (number % 1000 == 0))
            )

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(count):
        assert pull.recv()[:4] == number.to_bytes(4, "little")
    sender.join()


def test_request_and_reply(context):
    req, rep = connected(context, transfer.REQ, transfer.REP)

    def answer():
        for _ in range(200):
            rep.send(rep.recv())

    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(200):
        data = bytes(number * 1000)
        req.send(data)
        assert req.recv() == data
    thread.join()


def test_publish_and_subscribe(context):
    sub, pub = connected(context, transfer.SUB, transfer.PUB)
    pub.send(b"one")
    pub.send(b"two")
    assert [sub.recv(), sub.recv()] == [b"one", b"two"]


def test_router_and_dealers(context):
    router = context.socket(transfer.ROUTER)
    router.rcvtimeo = 20_000
    router.bind("ucx://127.0.0.1:0")
    dealers = []
    for number in range(3):
        dealer = context.socket(transfer.DEALER, routing_id=b"dealer %d" % number)
        dealer.rcvtimeo = 20_000
        dealer.connect(router.last_endpoint)
        dealer.wait_for_peers(1)
        dealers.append(dealer)
    for dealer in dealers:
        dealer.send(b"hello")
    for _ in dealers:
        identity, data = router.recv_multipart()
        assert data == b"hello"
        router.send_multipart([identity, bytes(300_000)])
    for dealer in dealers:
        assert len(dealer.recv()) == 300_000
    assert {peer.transport for peer in router.peers()} == {"ucx"}


def test_both_ways_at_once_with_full_queues(context):
    """Each side sends until it is full before it receives anything: nobody waits for ever."""
    one, other = connected(context, transfer.PAIR, transfer.PAIR)
    for socket in (one, other):
        socket.hwm = 0
        socket.sndhwm_bytes = 0
        for _ in range(40):
            socket.send(bytes(1 << 20))
        for _ in range(3000):
            socket.send(bytes(1000))
    for socket in (one, other):
        for size in [1 << 20] * 40 + [1000] * 3000:
            assert len(socket.recv()) == size


def test_tensors(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    for array in (
        np.arange(10.0),
        np.arange(1 << 18).reshape(512, -1),
        np.asfortranarray(np.ones((300, 500))),
    ):
        push.send_tensor(array)
        got = pull.recv_tensor()
        assert got.flags.writeable and np.array_equal(got, array)
        out = np.empty_like(array)
        push.send_tensor(array)
        assert pull.recv_tensor(out=out) is out and np.array_equal(out, array)
    push.send_tensors({"a": np.ones(5), "b": np.ones(50_000)}, meta={"step": 1})
    tensors, meta = pull.recv_tensors()
    assert meta == {"step": 1} and tensors["b"].sum() == 50_000
    push.send_tensor(np.ones(100_000))
    with pytest.raises(transfer.TensorMismatch):
        pull.recv_tensor(out=np.empty(7))
    assert pull.recv_tensor().sum() == 100_000


def test_a_tensor_arrives_in_the_callers_memory_without_a_copy(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    [stream] = pull._streams()
    out = np.zeros(1 << 18)
    for number in range(3):
        push.send_tensor(np.full(1 << 18, float(number)))
        assert pull.recv_tensor(out=out) is out
        assert (out == number).all() and stream.placed
    push.send_tensor(np.zeros(1 << 17))
    with pytest.raises(transfer.TensorMismatch):
        pull.recv_tensor(out=out)
    assert (out == 2).all() and pull.recv_tensor().shape == (1 << 17,)


def test_memory_that_was_sent_may_change_at_once(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    array = np.ones(1 << 20)
    push.send_tensor(array)
    array[:] = 2
    assert (pull.recv_tensor() == 1).all()


def test_trackers(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    array = np.ones(1 << 20)
    tracker = push.send_tensor(array, copy=False, track=True)
    assert not tracker.confirmed
    assert pull.recv_tensor().sum() == 1 << 20
    tracker.wait(10)
    tracker.wait_confirmed(10)
    small = push.send(b"x", track=True)
    pull.recv()
    small.wait_confirmed(10)
    assert push.peers()[0].confirmed == 2


def test_close_waits_until_the_peer_has_everything_though_it_does_not_receive(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    for number in range(200):
        push.send(number.to_bytes(4, "little") + bytes(30_000))
    push.linger = 10_000
    assert push.close() == 0
    for number in range(200):
        assert pull.recv()[:4] == number.to_bytes(4, "little")


def test_a_peer_that_closes_is_noticed_and_comes_back(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    endpoint = pull.last_endpoint
    push.send(b"before")
    assert pull.recv() == b"before"
    pull.close()
    again = context.socket(transfer.PULL)
    again.rcvtimeo = 20_000
    again.bind(endpoint)
    push.send(b"after")
    assert again.recv() == b"after"
    assert push.peers()[0].transport == "ucx"


def test_a_blocked_sender_goes_on_when_there_is_room(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    push.hwm = 5
    done = threading.Event()

    def send():
        for _ in range(200):
            push.send(bytes(200_000))
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.3)
    assert not done.is_set()
    for _ in range(200):
        pull.recv()
    thread.join(20)
    assert done.is_set()


def test_asyncio():
    async def run():
        context = transfer.asyncio.Context()
        push, pull = context.socket(transfer.PUSH), context.socket(transfer.PULL)
        pull.bind("ucx://127.0.0.1:0")
        push.connect(pull.last_endpoint)

        async def send():
            for number in range(300):
                await push.send(b"%d" % number + bytes(number * 500))

        task = asyncio.ensure_future(send())
        for number in range(300):
            data = await asyncio.wait_for(pull.recv(), 20)
            assert data == b"%d" % number + bytes(number * 500)
        await task
        push.close()
        pull.close()
        context.term()

    asyncio.run(run())


def test_poll_tells_of_messages(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    assert pull.poll(50) == 0
    timer = threading.Timer(0.1, push.send, (bytes(500_000),))
    timer.start()
    assert pull.poll(20_000)
    assert len(pull.recv()) == 500_000
    timer.join()


def test_many_sockets_come_and_go():
    for _ in range(5):
        with transfer.Context() as context:
            push, pull = connected(context, transfer.PUSH, transfer.PULL)
            push.send(bytes(1 << 20))
            pull.recv()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with transfer.Context() as context:
            push, pull = connected(context, transfer.PUSH, transfer.PULL)
            push.send(bytes(1 << 20))
            push.send(bytes(1 << 20))
            pull.recv()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_child_of_fork_is_refused_and_the_parent_unharmed(context):
    push, pull = connected(context, transfer.PUSH, transfer.PULL)
    push.send(b"one")
    assert pull.recv() == b"one"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                driver.fabric()
            except ForkedError:
                code = 2
            try:
                push.send(b"from the child")
            except ForkedError:
                code += 40
        finally:
            import gc

            del push, pull
            gc.collect()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    for size in (10, 1 << 20):
        push.send(bytes(size))
        assert len(pull.recv()) == size


def test_the_environment_is_as_it_was():
    assert driver.loaded() is not None
    ours = {name for name in os.environ if name.startswith("UCX_")}
    assert ours == {"UCX_TLS", "UCX_LOG_LEVEL"}
    assert not logging.getLogger().handlers or all(
        "ucx" not in type(handler).__module__ for handler in logging.getLogger().handlers
    )
