"""The same for zmq.asyncio."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys

import pytest

from tests.ports import free_port

from .conftest import PATIENCE, keeping

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def run(zmq, aio):
    """run(program): awaits program(context) with a context that is destroyed afterwards."""

    def go(program):
        async def main():
            kept = []
            context = keeping(aio.Context, kept)()
            context.setsockopt(zmq.RCVTIMEO, PATIENCE)
            context.setsockopt(zmq.SNDTIMEO, PATIENCE)
            try:
                await program(context)
            finally:
                context.destroy(linger=0)

        asyncio.run(main())

    return go


async def linked(context, bound_type, connected_type):
    bound, connected = context.socket(bound_type), context.socket(connected_type)
    connected.connect(f"tcp://127.0.0.1:{bound.bind_to_random_port('tcp://127.0.0.1')}")
    return bound, connected


def test_push_pull(zmq, aio, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        assert isinstance(push, aio.Socket) and isinstance(push, zmq.Socket)
        for number in range(100):
            await push.send(b"%d" % number)
        assert [await pull.recv() for _ in range(100)] == [b"%d" % number for number in range(100)]
        await push.send_multipart([b"a", b"b"])
        assert await pull.recv_multipart() == [b"a", b"b"]

    run(program)


def test_request_and_reply(zmq, run):
    async def program(context):
        rep, req = await linked(context, zmq.REP, zmq.REQ)

        async def serve():
            while True:
                await rep.send((await rep.recv()).upper())

        task = asyncio.create_task(serve())
        for _ in range(10):
            await req.send(b"shout")
            assert await req.recv() == b"SHOUT"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(program)


def test_publish_and_subscribe(zmq, run):
    async def program(context):
        pub, sub = await linked(context, zmq.PUB, zmq.SUB)
        sub.subscribe(b"a")
        while not await sub.poll(10):
            await pub.send(b"a?")
        await pub.send_multipart([b"b", b"no"])
        await pub.send_multipart([b"a", b"yes"])
        while (message := await sub.recv_multipart()) == [b"a?"]:
            pass
        assert message == [b"a", b"yes"]

    run(program)


def test_methods_return_futures(zmq, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        receiving = pull.recv()
        assert isinstance(receiving, asyncio.Future) and not receiving.done()
        sending = push.send(b"x")
        assert isinstance(sending, asyncio.Future)
        done, _ = await asyncio.wait([receiving, sending], timeout=5)
        assert done == {receiving, sending}
        assert receiving.result() == b"x"

    run(program)


def test_receives_are_served_in_order(zmq, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        waiting = [pull.recv() for _ in range(5)]
        for number in range(5):
            await push.send(b"%d" % number)
        assert await asyncio.gather(*waiting) == [b"0", b"1", b"2", b"3", b"4"]

    run(program)


def test_a_cancelled_receive_loses_nothing(zmq, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pull.recv(), 0.02)
        await push.send(b"kept")
        assert await pull.recv() == b"kept"

    run(program)


def test_time_outs(zmq, run):
    async def program(context):
        pull = context.socket(zmq.PULL)
        pull.rcvtimeo = 20
        with pytest.raises(zmq.Again):
            await pull.recv()
        with pytest.raises(zmq.Again):
            await pull.recv(zmq.DONTWAIT)
        push = context.socket(zmq.PUSH)
        push.sndtimeo = 20
        with pytest.raises(zmq.Again):
            await push.send(b"nobody")

    run(program)


def test_errors_are_in_the_future(zmq, run):
    async def program(context):
        rep, _ = await linked(context, zmq.REP, zmq.REQ)
        failing = rep.send(b"unasked")
        assert isinstance(failing, asyncio.Future)
        with pytest.raises(zmq.ZMQError) as caught:
            await failing
        assert caught.value.errno == zmq.EFSM

    run(program)


def test_polling(zmq, aio, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        assert await pull.poll(10) == 0
        poller = aio.Poller()
        poller.register(pull, zmq.POLLIN)
        assert await poller.poll(10) == []
        waiting = poller.poll(PATIENCE)
        await push.send(b"x")
        assert await waiting == [(pull, zmq.POLLIN)]
        assert await pull.poll(PATIENCE) == zmq.POLLIN
        assert await pull.poll(0) == zmq.POLLIN
        assert await push.poll(PATIENCE, zmq.POLLOUT) == zmq.POLLOUT

    run(program)


def test_serialisation(zmq, run):
    async def program(context):
        left, right = await linked(context, zmq.PAIR, zmq.PAIR)
        await left.send_json({"a": [1, 2]})
        assert await right.recv_json() == {"a": [1, 2]}
        await left.send_string("ä")
        assert await right.recv_string() == "ä"
        await left.send_serialized([1, 2], lambda numbers: [b"%d" % number for number in numbers])
        assert await right.recv_serialized(lambda parts: [int(part) for part in parts]) == [1, 2]
        buffer = bytearray(5)
        await left.send(b"abc")
        assert await right.recv_into(buffer) == 3

    run(program)


def test_router_and_dealer(zmq, run):
    async def program(context):
        router, dealer = await linked(context, zmq.ROUTER, zmq.DEALER)
        await dealer.send(b"hello")
        identity, body = await router.recv_multipart()
        await router.send_multipart([identity, body * 2])
        assert await dealer.recv() == b"hellohello"

    run(program)


def test_frames_without_copies(zmq, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        await push.send(b"x" * 100_000, copy=False)
        frame = await pull.recv(copy=False)
        assert len(frame.bytes) == 100_000

    run(program)


def test_a_full_queue_waits(zmq, run):
    async def program(context):
        push = context.socket(zmq.PUSH)
        push.bind("tcp://127.0.0.1:*")
        sending = push.send(b"patient")
        await asyncio.sleep(0.02)
        assert not sending.done()
        pull = context.socket(zmq.PULL)
        pull.connect(push.last_endpoint.decode())
        await sending
        assert await pull.recv() == b"patient"

    run(program)


def test_close_cancels(zmq, run):
    async def program(context):
        pull = context.socket(zmq.PULL)
        receiving = pull.recv()
        await asyncio.sleep(0)
        pull.close()
        with pytest.raises(asyncio.CancelledError):
            await receiving

    run(program)


def test_sync_and_async_share_a_socket(zmq, aio):
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")

        async def program():
            shadow = aio.Socket.from_socket(pull)
            push.send(b"x")
            message = await asyncio.wait_for(shadow.recv(), 5)
            return message

        assert asyncio.run(program()) == b"x"


def test_contexts_share(zmq, aio):
    context = zmq.Context()

    async def program():
        shadow = aio.Context(context)
        with shadow.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
            push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
            push.send(b"x")
            assert await asyncio.wait_for(pull.recv(), 5) == b"x"

    asyncio.run(program())
    context.term()
    assert context.closed


def test_contexts_by_number(zmq, aio):
    """The old way, which many programs still use."""
    context = zmq.Context()
    assert aio.Context.shadow(context.underlying).underlying == context.underlying
    assert type(aio.Context.shadow(context.underlying)) is aio.Context
    context.term()


def test_two_parts_for_two_receivers(zmq, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        first, second = pull.recv(), pull.recv()
        await push.send_multipart([b"hi", b"there"])
        assert await asyncio.wait_for(second, 5) == b"there"
        assert first.result() == b"hi"

    run(program)


def test_a_cancelled_json_receive_loses_nothing(zmq, run):
    async def program(context):
        pull, push = await linked(context, zmq.PULL, zmq.PUSH)
        cancelled = pull.recv_json()
        cancelled.cancel()
        await asyncio.sleep(0)
        await push.send_json({"a": 5})
        assert await pull.poll(PATIENCE)
        assert await asyncio.wait_for(pull.recv_json(), 5) == {"a": 5}

    run(program)


def test_polling_plain_sockets_and_files(zmq, aio):
    import os

    async def program(context):
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as target:
            with context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
                push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
                poller = aio.Poller()
                poller.register(pull, zmq.POLLIN)
                poller.register(reader, zmq.POLLIN)
                waiting = poller.poll(PATIENCE)
                assert not waiting.done()
                target.write(b"x")
                target.flush()
                assert await waiting == [(reader, zmq.POLLIN)]
                poller.unregister(reader)
                waiting = poller.poll(PATIENCE)
                push.send(b"x")
                assert await waiting == [(pull, zmq.POLLIN)]
                assert pull.recv() == b"x"

    with zmq.Context() as context:
        asyncio.run(program(context))


def test_several_loops_one_after_the_other(zmq, aio):
    with aio.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")

        async def program():
            receiving = asyncio.ensure_future(pull.recv())
            await push.send(b"x")
            assert await asyncio.wait_for(receiving, 5) == b"x"

        for _ in range(3):
            asyncio.run(program())


def test_polling_a_socket_that_is_closed(zmq, run):
    async def program(context):
        pull = context.socket(zmq.PULL)
        waiting = pull.poll(PATIENCE)
        pull.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert waiting.cancelled()

    run(program)


def test_instances_differ(zmq, aio):
    first, second = zmq.Context.instance(), aio.Context.instance()
    assert first is not second
    assert isinstance(second, aio.Context) and aio.Context.instance() is second
    first.term()
    second.term()


def test_monitors(zmq, aio, run):
    monitor = importlib.import_module(f"{zmq.__name__}.utils.monitor")

    async def program(context):
        pull = context.socket(zmq.PULL)
        watch = pull.get_monitor_socket()
        pull.bind("tcp://127.0.0.1:*")
        event = await monitor.recv_monitor_message(watch)
        assert event["event"] == zmq.EVENT_LISTENING
        pull.disable_monitor()
        watch.close(0)

    run(program)


PENDING = """
import asyncio, {zmq} as zmq, {zmq}.asyncio as aio

context = aio.Context()
loop = asyncio.new_event_loop()

async def client():
    dealer = context.socket(zmq.DEALER)
    dealer.connect("tcp://127.0.0.1:{port}")
    await dealer.send(b"without a peer")
    task = loop.create_task(asyncio.wait_for(dealer.recv(), 20))
    await asyncio.sleep(0.1)
    return dealer, task

dealer, task = loop.run_until_complete(client())
loop.close()
{end}
"""


@pytest.mark.parametrize(
    "end", ["dealer.close(0); context.term(); print('end')", "dealer.linger = 100; print('end')"]
)
def test_a_program_ends_with_a_pending_receive(zmq, end):
    """Its loop is closed: nothing can be cancelled there."""
    program = PENDING.format(port=free_port(), end=end, zmq=zmq.__name__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "Event loop is closed" not in done.stderr
