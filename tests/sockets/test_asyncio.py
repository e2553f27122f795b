"""transfer.asyncio: the same sockets as coroutines; a cancelled call loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time

import pytest

import transfer
from transfer import DEALER, PAIR, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.asyncio import Context, Poller
from transfer.transports.errors import Again, Broken, Closed, NotSupported

TCP = "tcp://127.0.0.1:0"
#: most coroutines here leave it to the end of their sockets to close them
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def acontext(core):
    made = Context(core=core)
    yield made
    made.destroy(0)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def pair_of(context, bound_type, connected_type, endpoint=TCP, **options):
    bound, connected = context.socket(bound_type, **options), context.socket(connected_type, **options)
    bound.bind(endpoint)
    if connected_type is SUB:
        connected.subscribe(b"")
    connected.connect(bound.last_endpoint)
    bound.wait_for_peers(1, 10)
    connected.wait_for_peers(1, 10)
    return bound, connected


def test_push_pull(acontext, endpoint):
    async def main():
        pull, push = pair_of(acontext, PULL, PUSH, endpoint)

        async def produce():
            for i in range(3000):
                await push.send(b"%d" % i)

        task = asyncio.create_task(produce())
        assert [await pull.recv() for _ in range(3000)] == [b"%d" % i for i in range(3000)]
        await task

    run(main())


def test_waiting_for_peers_leaves_the_loop_alone(acontext):
    async def main():
        with acontext.socket(PULL) as pull, acontext.socket(PUSH) as push:
            pull.bind(TCP)
            with pytest.raises(Again):
                await pull.peers_ready(1, 0.05)
            waiting = asyncio.create_task(pull.peers_ready(1, 20))
            await asyncio.sleep(0)
            push.connect(pull.last_endpoint)  # which only a loop that goes on gets to
            await waiting
            assert len(pull.peers()) == 1

    run(main())


def test_requests(acontext):
    async def main():
        rep, req = pair_of(acontext, REP, REQ)

        async def serve():
            while True:
                await rep.send_multipart([b"re", *await rep.recv_multipart()])

        server = asyncio.create_task(serve())
        for i in range(100):
            await req.send(b"%d" % i)
            assert await req.recv_multipart() == [b"re", b"%d" % i]
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server

    run(main())


def test_every_call_that_may_wait_is_a_coroutine(acontext):
    with acontext.socket(PAIR) as socket:
        calls = [name for name in dir(socket) if name.startswith(("send", "recv", "poll"))]
        assert len(calls) > 15
        plain = [
            name for name in calls
            if callable(getattr(socket, name)) and not inspect.iscoroutinefunction(getattr(socket, name))
        ]  # fmt: skip
        assert plain == [], plain


def test_a_router_answers_with_dicts_of_tensors_and_the_loop_goes_on(acontext):
    np = pytest.importorskip("numpy", reason="pip install tensor-transfer[numpy]")

    async def main():
        router, dealer = pair_of(acontext, ROUTER, DEALER)

        async def serve():
            identity, tensors, meta = await router.recv_tensors_from()
            tracker = await router.send_tensors_to(identity, tensors, meta={"re": meta}, copy=False)
            frames = await router.recv_frames()
            await router.send_frames([(None, None, 0, frames[0]), (None, None, 0, b"frames")])
            return tracker

        server = asyncio.create_task(serve())
        await asyncio.sleep(0.05)  # it waits, and this goes on
        sent = {"x": np.arange(200_000, dtype=np.float32), "y": np.arange(3)}
        await dealer.send_tensors(sent, meta=1)
        back, meta = await dealer.recv_tensors()
        assert meta == {"re": 1} and all(np.array_equal(back[name], sent[name]) for name in sent)
        await dealer.send(b"frames?")
        assert await dealer.recv() == b"frames"
        (await server).wait(10)

    run(main())


@pytest.mark.parametrize(
    ("call", "value"),
    [("send", b"x"), ("send", bytes(1 << 20)), ("send_multipart", [b"x"]), ("send_tensors", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_calls_that_never_wait_leave_the_others_their_turn(acontext, call, value):
    async def main():
        with acontext.socket(PUB) as pub:  # without subscribers each call succeeds at once
            pub.bind(TCP)

            async def publish():
                while True:
                    await getattr(pub, call)(value)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publish(), 0.2)

    run(main())


def test_long_receives_leave_the_others_their_turn(acontext):
    np = pytest.importorskip("numpy", reason="pip install tensor-transfer[numpy]")
    calls, turns = 60, 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main():
        pull, push = pair_of(acontext, PULL, PUSH, sndhwm_bytes=0)
        for _ in range(calls):
            await push.send_tensor(np.zeros(1 << 20, np.uint8), copy=False)
        other = asyncio.create_task(count())
        for _ in range(calls):
            await pull.recv_tensor()
            time.sleep(0.005)  # noqa: ASYNC251 - as the memory of larger ones takes
        other.cancel()

    run(main())
    assert turns > calls // 10


def test_waiting_for_peers_takes_no_thread(acontext):
    async def main():
        sockets = [acontext.socket(PULL) for _ in range(40)]  # more than the loop's executor has threads
        before = threading.active_count()
        waiting = [asyncio.create_task(one.peers_ready(1, 20)) for one in sockets]
        await asyncio.sleep(0.05)
        assert threading.active_count() <= before
        for one in waiting:
            one.cancel()

    run(main())


def test_a_callback_is_for_plain_sockets(acontext):
    with acontext.socket(PULL) as pull, pytest.raises(NotSupported, match="recv_multipart"):
        pull.set_callback(print)


def test_a_cancelled_receive_loses_nothing(acontext):
    async def main():
        pull, push = pair_of(acontext, PULL, PUSH)
        got = []
        for i in range(200):
            task = asyncio.create_task(pull.recv())
            for _ in range(i % 4):
                await asyncio.sleep(0)
            await push.send(b"%d" % i)
            for _ in range(i % 3):
                await asyncio.sleep(0)
            if task.cancel():
                try:
                    got.append(await task)
                except asyncio.CancelledError:
                    pass
            else:
                got.append(task.result())
        while len(got) < 200:
            got.append(await pull.recv())
        assert got == [b"%d" % i for i in range(200)]

    run(main())


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_cancelled_send_is_sent_once_or_not_at_all(acontext, size):
    """It waits for room, and what is cancelled there was not sent."""

    async def main():
        pull, push = pair_of(acontext, PULL, PUSH, sndhwm=2, rcvhwm=2, sndbuf=4096, rcvbuf=4096)
        sent, cancelled = [], []

        async def receive():
            got = []
            while not got or got[-1] != b"end":
                got.append((await pull.recv())[:4].rstrip(b"."))
                await asyncio.sleep(0)
            return got[:-1]

        receiving = asyncio.create_task(receive())
        for i in range(200):
            task = asyncio.create_task(push.send((b"%d" % i).ljust(size, b".")))
            for _ in range(i % 4):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
                sent.append(b"%d" % i)
            except asyncio.CancelledError:
                cancelled.append(b"%d" % i)
        await push.send(b"end")
        assert sent and cancelled
        assert await asyncio.wait_for(receiving, 20) == sent

    run(main())


def test_two_tasks_may_receive(acontext):
    async def main():
        pull, push = pair_of(acontext, PULL, PUSH)
        tasks = [asyncio.create_task(pull.recv()) for _ in range(10)]
        await asyncio.sleep(0.01)
        for i in range(10):
            await push.send(b"%d" % i)
        assert sorted(await asyncio.gather(*tasks)) == [b"%d" % i for i in range(10)]

    run(main())


def test_a_full_socket_waits_and_others_run(acontext):
    async def main():
        pull, push = pair_of(acontext, PULL, PUSH, sndhwm=4, sndbuf=4096, rcvbuf=4096)
        payload = b"x" * 50_000

        async def produce():
            for _ in range(100):
                await push.send(payload)

        task = asyncio.create_task(produce())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        for _ in range(100):
            assert await pull.recv() == payload
        await task

    run(main())


def test_time_outs(acontext):
    async def main():
        pull, _push = pair_of(acontext, PULL, PUSH, rcvtimeo=30)
        with pytest.raises(Again):
            await pull.recv()
        with pytest.raises(Again):
            await pull.recv(transfer.DONTWAIT)
        lonely = acontext.socket(PUSH, sndtimeo=30)
        lonely.bind(TCP)
        with pytest.raises(Again, match="no peer has connected"):
            await lonely.send(b"x")
        lonely.close()

    run(main())


def test_a_send_waits_for_the_first_peer(acontext):
    async def main():
        push = acontext.socket(PUSH)
        push.bind(TCP)
        task = asyncio.create_task(push.send(b"x"))
        await asyncio.sleep(0.01)
        pull = acontext.socket(PULL)
        pull.connect(push.last_endpoint)
        assert await pull.recv() == b"x"
        await task

    run(main())


def test_closing_wakes_who_waits(acontext):
    async def main():
        pull, _push = pair_of(acontext, PULL, PUSH)
        task = asyncio.create_task(pull.recv())
        await asyncio.sleep(0.01)
        pull.close()
        with pytest.raises(Closed):
            await task

    run(main())


def test_a_dead_peer_fails_the_request(acontext):
    async def main():
        rep, req = pair_of(acontext, REP, REQ)
        await req.send(b"x")
        await rep.recv()
        task = asyncio.create_task(req.recv())
        await asyncio.sleep(0.01)
        rep.close(0)
        with pytest.raises(Broken):
            await task

    run(main())


def test_publish(acontext):
    async def main():
        pub, sub = pair_of(acontext, PUB, SUB)
        await pub.send_string("news")
        assert await sub.recv_string() == "news"

    run(main())


def test_router_dealer_json(acontext):
    async def main():
        router, dealer = pair_of(acontext, ROUTER, DEALER)
        await dealer.send_json({"a": 1})
        identity, data = await router.recv_multipart()
        await router.send_multipart([identity, data])
        assert await dealer.recv_json() == {"a": 1}

    run(main())


def test_poll(acontext):
    async def main():
        one, other = pair_of(acontext, PAIR, PAIR)
        assert await one.poll(10) == 0
        assert await one.poll(0, transfer.POLLOUT) == transfer.POLLOUT
        task = asyncio.create_task(one.poll(10_000))
        await asyncio.sleep(0.01)
        await other.send(b"x")
        assert await task == transfer.POLLIN
        poller = Poller()
        poller.register(one, transfer.POLLIN)
        poller.register(other, transfer.POLLIN)
        assert await poller.poll(1000) == [(one, transfer.POLLIN)]
        assert await one.recv() == b"x"
        assert await poller.poll(10) == []

    run(main())


def test_a_socket_serves_one_loop_after_the_other(acontext):
    pull, push = pair_of(acontext, PULL, PUSH)

    async def main():
        task = asyncio.create_task(pull.recv())
        await asyncio.sleep(0.01)
        await push.send(b"x")
        assert await task == b"x"

    run(main())
    run(main())


@pytest.mark.keeps("uvloop keeps a pipe for signals as long as the process lives")
def test_uvloop(acontext):
    uvloop = pytest.importorskip("uvloop")

    async def main():
        pull, push = pair_of(acontext, PULL, PUSH)
        task = asyncio.create_task(pull.recv())
        await asyncio.sleep(0.01)
        await push.send(b"x")
        assert await task == b"x"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
