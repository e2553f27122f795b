"""A message that is asked for as something else than it is: it is still unread, by every way.

What the core shows to a sink is refused before it is read. Compressed frames are shown to no sink, and
a ROUTER puts an envelope before a tensor: these are read first and given back.
"""

from __future__ import annotations

import asyncio
import socket
import time

import numpy
import pytest

import transfer.asyncio
from transfer import DEALER, POLLIN, PULL, PUSH, REP, REQ, ROUTER
from transfer.transports.core.wire import HEADER, MAGIC, VERSION, Flag
from transfer.transports.errors import Again, StateError, TensorMismatch, UsageError

from .helpers import TCP, pair_of

TEXT = b"easily compressed " * 1000
WEIGHTS = numpy.zeros((300, 200))
OPTIONS = [{}, {"compression": "lz4"}]


@pytest.fixture(params=OPTIONS, ids=["plain", "lz4"])
def options(request):
    return request.param


def refused(*calls):
    for call in calls:
        with pytest.raises(TensorMismatch):
            call()


def test_each_kind_of_message(context, options):
    pull, push = pair_of(context, PULL, PUSH, **options)
    push.send(TEXT)
    push.send_tensor(WEIGHTS)
    push.send_tensors({"packed": WEIGHTS[:9], "own": WEIGHTS}, meta={"step": 1})
    push.send_tensors({"packed": WEIGHTS[:9]})
    push.send_multipart([TEXT, TEXT])
    refused(pull.recv_tensor, pull.recv_tensors)
    assert pull.poll(0) == pull.events & POLLIN == POLLIN
    assert pull.recv() == TEXT
    small = numpy.zeros((3, 3))
    refused(pull.recv_tensors, lambda: pull.recv_tensor(out=small), lambda: pull.recv_tensor(out=small))
    got = pull.recv_tensor()
    assert numpy.array_equal(got, WEIGHTS)
    got += 1  # it was read twice and is writable all the same
    wrong = {"packed": small, "own": numpy.ones_like(WEIGHTS)}
    refused(pull.recv_tensor, lambda: pull.recv_tensors(out=wrong))
    tensors, meta = pull.recv_tensors()
    assert numpy.array_equal(tensors["own"], WEIGHTS)
    assert numpy.array_equal(tensors["packed"], WEIGHTS[:9])
    assert meta == {"step": 1}
    refused(pull.recv_tensor)
    assert numpy.array_equal(pull.recv_tensors()[0]["packed"], WEIGHTS[:9])
    refused(pull.recv_tensor, pull.recv_tensors)
    assert pull.recv() == TEXT
    assert pull.recv_multipart() == [TEXT]
    with pytest.raises(Again):
        pull.recv(transfer.DONTWAIT)


def test_a_request_and_its_reply(context, options):
    rep, req = pair_of(context, REP, REQ, **options)
    for _ in range(2):
        req.send(TEXT)
        refused(rep.recv_tensor)
        with pytest.raises(StateError):
            rep.send(b"an answer to what was not read")
        assert rep.recv() == TEXT
        rep.send(TEXT)
        refused(req.recv_tensor)
        with pytest.raises(StateError):
            req.send(b"a request while a reply is unread")
        assert req.recv_multipart() == [TEXT]


def test_a_reply_that_was_given_up_is_not_taken_for_the_next(context, options):
    rep, req = pair_of(context, REP, REQ, **options)
    req.req_relaxed = True
    req.send(b"first")
    rep.send(TEXT + rep.recv())
    refused(req.recv_tensor)
    req.send(b"second")
    rep.send(TEXT + rep.recv())
    assert req.recv() == TEXT + b"second"


def test_a_tensor_behind_an_envelope(context, options):
    router, dealer = pair_of(context, ROUTER, DEALER, **options)
    dealer.send_tensor(WEIGHTS)
    refused(router.recv_tensor, router.recv_tensors)
    identity, data = router.recv_multipart()
    assert data == WEIGHTS.tobytes()
    router.send_multipart([identity, TEXT])
    assert dealer.recv() == TEXT


def test_in_an_event_loop(core, options):
    async def main():
        with transfer.asyncio.Context(core=core) as context:
            pull, push = (context.socket(kind, **options) for kind in (PULL, PUSH))
            with pull, push:
                pull.bind(TCP)
                push.connect(pull.last_endpoint)
                await push.send(TEXT)
                with pytest.raises(TensorMismatch):
                    await pull.recv_tensor()
                assert await pull.poll(0) == POLLIN
                assert await pull.recv() == TEXT

    asyncio.run(main())


UNFIT = {
    "in pieces": (lambda: memoryview(bytearray(20))[::2], 0),
    "in columns": (lambda: numpy.zeros((4, 5), order="F"), 0),
    "a part of rows": (lambda: numpy.zeros((4, 5))[:, 1:], 0),
    "read-only": (lambda: b"0123456789", 0),
    "more bytes than there are": (lambda: bytearray(10), 11),
    "less than none": (lambda: bytearray(10), -1),
}


@pytest.mark.parametrize("case", UNFIT)
def test_memory_that_cannot_take_a_message_leaves_it_unread(context, case):
    make, nbytes = UNFIT[case]
    pull, push = pair_of(context, PULL, PUSH)
    push.send(b"abc")
    assert pull.poll(5000)
    with pytest.raises(UsageError):
        pull.recv_into(make(), nbytes=nbytes)
    assert pull.recv() == b"abc"


def test_the_same_for_a_coroutine(core):
    async def run():
        with transfer.asyncio.Context(core=core) as context:
            pull, push = context.socket(PULL), context.socket(PUSH)
            pull.bind(TCP)
            push.connect(pull.last_endpoint)
            await push.send(b"abc")
            for make, nbytes in UNFIT.values():
                with pytest.raises(UsageError):
                    await pull.recv_into(make(), nbytes=nbytes)
            target = bytearray(3)
            assert await pull.recv_into(target) == 3
            assert target == b"abc"
            pull.close()
            push.close()

    asyncio.run(run())


# -- several peers ---------------------------------------------------------------------------------

CALLS = {
    "recv": lambda pull: pull.recv(transfer.DONTWAIT),
    "recv_multipart": lambda pull: pull.recv_multipart(transfer.DONTWAIT)[0],
    "recv_string": lambda pull: pull.recv_string(transfer.DONTWAIT).encode(),
    "recv_into": lambda pull: pull.recv_into(memoryview(INTO), flags=transfer.DONTWAIT) and bytes(INTO),
    "a copy": lambda pull: pull.recv(transfer.DONTWAIT, copy=False).bytes,
}
INTO = bytearray(7)


@pytest.mark.parametrize("call", CALLS)
def test_the_next_receive_gives_the_message_that_was_refused(context, call):
    pull, first = pair_of(context, PULL, PUSH)
    second = context.socket(PUSH)
    second.connect(pull.last_endpoint)
    pull.wait_for_peers(2, 10)
    for sender in (first, second):
        sender.send_tensors({"w": WEIGHTS[:2]})
    first.send(b"refused")
    second.send_tensors({"w": WEIGHTS})
    kept = 0
    for _ in range(4):
        try:
            assert pull.poll(5000)
            pull.recv_tensors()
            kept += 1
        except TensorMismatch:
            assert CALLS[call](pull) == b"refused"
    assert kept == 3


def head_of(flags, data, length=None):
    return HEADER.pack(MAGIC, VERSION, int(PUSH), flags, 1, 0, len(data) if length is None else length, 0)


BEGINNINGS = {
    "a part": (head_of(Flag.MORE, b"a") + b"a", head_of(0, b"b") + b"b", [b"a", b"b"]),
    "a large part": (
        head_of(Flag.MORE, bytes(99_000)) + bytes(99_000),
        head_of(0, b"b") + b"b",
        [bytes(99_000), b"b"],
    ),
    "half a large part": (head_of(0, b"", 99_000) + bytes(5000), bytes(94_000), [bytes(99_000)]),
}


@pytest.mark.parametrize("case", BEGINNINGS)
@pytest.mark.parametrize("out", [None, {"w": numpy.zeros_like(WEIGHTS)}], ids=["new", "out"])
def test_a_message_is_refused_when_it_is_whole(context, case, out):
    """Else a program that drops what was refused drops another peer's: the rest of that one is not there."""
    beginning, rest, whole = BEGINNINGS[case]
    pull = context.socket(PULL)
    pull.bind(TCP)
    host, port = pull.last_endpoint.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(head_of(0, b"hello") + b"hello")  # a peer without a hello begins with a message
        assert pull.poll(5000)
        assert pull.recv() == b"hello"
        stranger.sendall(beginning)
        time.sleep(0.05)  # where it is refused at once, it is refused now
        with pytest.raises(Again):
            pull.recv_tensors(transfer.DONTWAIT, out=out)
        push = context.socket(PUSH)
        push.connect(pull.last_endpoint)
        push.send_tensors({"w": WEIGHTS})
        assert pull.poll(5000)
        tensors, _ = pull.recv_tensors(out=out)
        assert numpy.array_equal(tensors["w"], WEIGHTS)
        push.send(b"another")
        stranger.sendall(rest)
        pull.rcvtimeo = 5000
        for _ in range(2):
            with pytest.raises(TensorMismatch):
                pull.recv_tensors(out=out)
            refused_now = pull.recv_multipart()
            assert refused_now in (whole, [b"another"])
            whole = [b"another"] if refused_now == whole else whole
