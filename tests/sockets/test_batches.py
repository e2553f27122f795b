"""send_many and recv_many: many small messages in one call."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
from hypothesis import given, strategies as st

import transfer
import transfer.asyncio
import transfer.zmq
from tests.sockets.helpers import eventually, pair_of
from transfer.transports.errors import Again, ArgumentError, StateError


def received(socket, count, most=7):
    found = []
    while len(found) < count:
        batch = socket.recv_many(most)
        assert 1 <= len(batch) <= most
        found += batch
    return found


def test_all_messages_in_order(context):
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    messages = [b"%d" % number for number in range(500)]
    assert push.send_many(messages) == 500
    assert received(pull, 500) == messages
    assert (push.messages_sent, pull.messages_received) == (500, 500)
    assert push.bytes_sent == pull.bytes_received == sum(map(len, messages))


def test_messages_of_all_kinds(context):
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    assert push.send_many(iter([b"a", bytearray(b"b"), memoryview(b"c"), b"d" * 200_000, b""])) == 5
    push.send_multipart([b"e", b"f"])
    assert received(pull, 6) == [b"a", b"b", b"c", b"d" * 200_000, b"", [b"e", b"f"]]
    assert push.send_many([]) == 0


def test_what_has_no_room(context):
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL, sndhwm=10)
    messages = [b"x" * 50_000] * 1000
    sent = push.send_many(messages, transfer.DONTWAIT)
    assert 10 <= sent < 1000
    with pytest.raises(Again):
        push.send_many(messages, transfer.DONTWAIT)
    assert received(pull, sent) == messages[:sent]


@pytest.mark.parametrize("protocol", ["auto", "tcp"])
@given(
    st.lists(st.lists(st.sampled_from([0, 1, 63, 64, 1000, 9_000, 70_000]), max_size=120), max_size=8),
    st.sampled_from([0, 1, 7, 1000]),
)
def test_batches_of_all_sizes(protocol, batches, mark):
    """Whatever fits into a write, or below the high-water mark: all arrive, once, and are counted."""
    with transfer.Context(protocol=protocol) as context:
        push, pull = pair_of(context, transfer.PUSH, transfer.PULL, sndhwm=mark)
        sent = [[bytes([number % 251]) * size for number, size in enumerate(sizes)] for sizes in batches]
        reader = threading.Thread(target=lambda: found.extend(received(pull, sum(map(len, sent)))))
        found = []
        reader.start()
        for batch in sent:
            assert push.send_many(batch) == len(batch)
        reader.join(30)
        assert found == [message for batch in sent for message in batch]
        assert push.messages_sent == pull.messages_received == len(found)
        assert push.bytes_sent == pull.bytes_received == sum(map(len, found))
        eventually(lambda: push.peers()[0].queued == 0)


def test_nothing_is_there(context):
    _, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    with pytest.raises(Again):
        pull.recv_many(5, transfer.DONTWAIT)
    with pytest.raises(ArgumentError):
        pull.recv_many(0)


def test_a_subscriber_gets_what_it_wants(context):
    pub, sub = pair_of(context, transfer.PUB, transfer.SUB)
    sub.subscribe(b"a")
    sub.unsubscribe(b"")
    assert eventually(lambda: not pub.subscribers(b"b") and pub.subscribers(b"a"))
    assert pub.send_many([b"a1", b"b1", b"a2"]) == 3
    assert received(sub, 2) == [b"a1", b"a2"]


def test_a_req_sends_one(context):
    req, rep = pair_of(context, transfer.REQ, transfer.REP)
    with pytest.raises(StateError):
        req.send_many([b"one", b"two"])
    assert rep.recv_many(5) == [b"one"]


def test_a_handler_that_raises_during_the_wait(context):
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)

    def handler(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            pull.recv_many(3)
    finally:
        signal.signal(signal.SIGALRM, before)
    push.send_many([b"1", b"2"])
    assert received(pull, 2) == [b"1", b"2"]


def test_in_a_loop_of_asyncio():
    async def main():
        with transfer.asyncio.Context() as context:
            push, pull = context.socket(transfer.PUSH, sndhwm=5), context.socket(transfer.PULL)
            pull.bind("tcp://127.0.0.1:0")
            push.connect(pull.last_endpoint)
            messages = [b"x" * 100_000 + b"%d" % number for number in range(200)]
            sending = asyncio.ensure_future(push.send_many(messages))
            found = []
            while len(found) < 200:
                found += await asyncio.wait_for(pull.recv_many(9), 20)
            assert await sending == 200 and found == messages

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"x", bytearray(b"x"), bytearray(20_000), memoryview(b"x")])
def test_what_is_no_bytes_in_a_loop_of_asyncio(data):
    """A small bytearray was sent by the coroutine of that name, for which nothing waited."""

    async def main():
        with transfer.asyncio.Context() as context:
            push, pull = context.socket(transfer.PUSH), context.socket(transfer.PULL)
            pull.bind("tcp://127.0.0.1:0")
            push.connect(pull.last_endpoint)
            await push.send(data)
            assert await asyncio.wait_for(pull.recv(), 20) == bytes(data)

    asyncio.run(main())


def test_pyzmqs_sockets_have_them_too():
    with transfer.zmq.Context() as context, context.socket(transfer.zmq.PUSH) as push:
        with context.socket(transfer.zmq.PULL) as pull:
            push.bind("inproc://many")
            pull.connect("inproc://many")
            assert push.send_many([b"a", transfer.zmq.Frame(b"b")]) == 2
            assert received(pull, 2) == [b"a", b"b"]
