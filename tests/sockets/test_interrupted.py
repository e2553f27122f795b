"""A signal's handler that raises while a message is received: the message is the next receive's.

A handler runs where the interpreter looks for signals: where a function begins, behind a call, where a loop
goes round. These tests raise at each such point of our code in turn.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import os
import select
import signal
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

import transfer
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import binds, eventually
from transfer.transports import probe
from transfer.transports.errors import Again, Broken
from transfer.transports.shm.shm_stream import ShmStream

_FOLDERS = tuple(os.sep + name + os.sep for name in ("transfer", "transports", "patterns"))
_CALLS = {code for name, code in dis.opmap.items() if name.startswith("CALL") or name == "JUMP_BACKWARD"} - {
    dis.opmap.get("CALL_INTRINSIC_1")
}


@pytest.fixture(params=["tcp", "inproc", "local"])
def endpoint(request, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", "on" if request.param == "local" else "off")
    probe.forget()
    yield f"inproc://{tmp_path.name}" if request.param == "inproc" else "tcp://127.0.0.1:*"
    probe.forget()


class Point:
    """A trace function that raises KeyboardInterrupt at one point; `reached` is False if there are fewer."""

    def __init__(self, number):
        self.left = number
        self.behind = {}
        self.reached = False

    def __call__(self, frame, event, _):
        if not any(map(frame.f_code.co_filename.count, _FOLDERS)) or is_in_del(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        looks = event == "call" and frame.f_lasti <= 0  # a generator that goes on may be one that is closed
        if event == "opcode":
            looks = self.behind.get(frame, False)
            self.behind[frame] = frame.f_code.co_code[frame.f_lasti] in _CALLS
        elif event == "return":  # from Python to Python: the interpreter does not look
            self.behind.pop(frame, None)
            self.behind[frame.f_back] = False
        if looks:
            self.left -= 1
            if self.left < 0 and not self.reached:
                self.reached = True
                raise KeyboardInterrupt
        return self


def is_in_del(frame):
    """There the interpreter drops what a handler raises, whatever we do."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def at_every_point(send, receive, check, meanwhile=lambda: None):
    """Interrupts a receive at its first point, at its second, and so on, until there is none any more."""
    number, point = 0, None
    while point is None or point.reached:
        send(number)
        point, before = Point(number), sys.gettrace()
        sys.settrace(point)
        try:
            got = receive()
        except KeyboardInterrupt:
            got = None
        finally:
            sys.settrace(before)
            point.behind.clear()  # frames hold what they had
        if got is None:
            meanwhile()
        check(number, receive() if got is None else got)
        number += 1
    return number


def arrived(socket):
    """A message is there. The compiled core has not looked at it, where a descriptor tells that it came."""
    if (
        socket.context.core.__name__ == "transfer.transports.core.native"
        and socket.peers()[0].transport != "inproc"
    ):
        assert select.select([socket.fd], [], [], 10)[0]
    else:
        assert socket.poll(10000)


def joined(context, endpoint, there=transfer.PULL, here=transfer.PUSH):
    receiver, sender = (context.socket(kind, rcvtimeo=10000, sndtimeo=10000) for kind in (there, here))
    receiver.bind(endpoint)
    sender.connect(receiver.last_endpoint)
    sender.wait_for_peers(1, 10)
    return receiver, sender


def is_part(number, got):
    assert got == b"%d" % number


_ONE = {
    "recv": is_part,
    "recv_multipart": lambda number, got: is_part(number, *got),
    "recv_frames": lambda number, got: is_part(number, got[0].bytes),
    "recv_string": lambda number, got: is_part(number, got.encode()),
    "recv_json": lambda number, got: is_part(number, b"%d" % got),
}


@pytest.mark.parametrize("how", _ONE)
def test_a_message_of_one_part(context, endpoint, how):
    pull, push = joined(context, endpoint)

    def send(number):
        push.send(b"%d" % number)
        arrived(pull)

    at_every_point(send, getattr(pull, how), _ONE[how])


@pytest.mark.parametrize("kind", ["recv", "recv_multipart"])
def test_a_message_of_several_parts(context, endpoint, kind):
    pull, push = joined(context, endpoint)

    def send(number):
        push.send_multipart([b"%d" % number, bytes(100_000), b""])
        arrived(pull)

    def check(number, first):
        got = first if kind == "recv_multipart" else [first]
        while len(got) < 3:
            got.append(pull.recv())
        assert got == [b"%d" % number, bytes(100_000), b""] and not pull.rcvmore

    at_every_point(send, getattr(pull, kind), check)


def test_the_parts_that_are_left(context, endpoint):
    pull, push = joined(context, endpoint)

    def send(number):
        push.send_multipart([b"first", b"%d" % number, b"last"])
        assert pull.recv() == b"first"

    def check(number, got):
        assert [got, pull.recv()] == [b"%d" % number, b"last"] and not pull.rcvmore

    at_every_point(send, pull.recv, check)


def test_what_inproc_has_not_given_yet(context):
    pull, push = joined(context, "inproc://interrupted")
    points = at_every_point(lambda number: push.send(memoryview(b"%d" % number)), pull.recv, is_part)
    assert points > 20
    tracker = push.send(b"confirmed", track=True)
    pull.recv()
    tracker.wait_confirmed(10)  # nothing of what was counted is missing


@pytest.mark.parametrize("into", [False, True])
def test_a_tensor(context, endpoint, into):
    pull, push = joined(context, endpoint)
    out = np.zeros(20_000)

    def send(number):
        push.send_tensor(np.full(20_000, number, np.float64))
        arrived(pull)
        out[:] = -1

    def receive():
        return pull.recv_tensor(out=out) if into else pull.recv_tensor()

    def check(number, got):
        assert (got == number).all() and (got is out) == into

    at_every_point(send, receive, check)


def test_a_dict_of_tensors(context, endpoint):
    pull, push = joined(context, endpoint)

    def send(number):
        push.send_tensors({"a": np.full(3, number), "b": np.full(20_000, number)}, meta=number)
        arrived(pull)

    def check(number, got):
        tensors, meta = got
        assert meta == number and all((tensor == number).all() for tensor in tensors.values())

    at_every_point(send, pull.recv_tensors, check)


@pytest.mark.parametrize("endpoint", ["local"], indirect=True)
@pytest.mark.parametrize("lent", [False, True])
def test_memory_that_the_sender_sees_too(context, endpoint, lent):
    """It stays as it is until the message was received: the sender does not use it for another one."""
    pull, push = joined(context, endpoint)
    assert push.peers()[0].transport == "local"
    memory = context.empty(20_000, "float64") if lent else np.zeros(20_000)
    trackers, behind = [], []

    def send(number):
        for tracker in trackers:
            tracker.wait(10)
        memory[:] = number
        trackers.append(push.send_tensor(memory, copy=not lent, track=True))
        arrived(pull)

    def meanwhile():
        if eventually(lambda: trackers[-1].done, 0.02 if lent else 10):
            memory[:] = -1
        if not lent:
            behind.append(push.send_tensor(memory))

    def check(number, got):
        assert (got == number).all()
        while behind:
            behind.pop()
            assert (pull.recv_tensor() == -1).all()

    assert at_every_point(send, pull.recv_tensor, check, meanwhile) > 10


@pytest.mark.parametrize("core", ["native"], indirect=True)  # the twin decodes in Python: it may lose these
@pytest.mark.parametrize("endpoint", ["local"], indirect=True)
def test_memory_that_the_sender_has_just_announced(context, endpoint, monkeypatch):
    """An announcement is read once. It was lost with the handler's exception, and the connection with it."""
    ready = ShmStream._ready

    def late(carrier, events):
        time.sleep(0.02)
        ready(carrier, events)

    monkeypatch.setattr(ShmStream, "_ready", late)
    pairs = []

    def send(number):
        pairs.append(joined(context, endpoint))
        pairs[-1][1].send(number.to_bytes(8, "little") + bytes(100_000))

    def check(number, got):
        assert got[:8] == number.to_bytes(8, "little")
        for socket in pairs.pop():
            socket.close(0)

    at_every_point(send, lambda: pairs[-1][0].recv(), check)


@pytest.mark.parametrize("core", ["native"], indirect=True)  # the twin ends its connection
@pytest.mark.parametrize("endpoint", ["local"], indirect=True)
@pytest.mark.parametrize("lent", [False, True])
def test_a_send_of_shared_memory_is_whole_or_not_at_all(context, endpoint, lent):
    """And the next message comes in any case. The segment was announced twice, which ended the connection."""
    pairs = []

    def begin(number):
        pull, push = joined(context, endpoint)
        memory = context.empty(20_000, "int64") if lent else np.empty(20_000, np.int64)
        memory[:] = number
        pairs.append((pull, push, memory))

    def send():
        if len(pairs) == 1:
            _, push, memory = pairs[0]
            pairs.append(None)
            push.send_tensor(memory, copy=not lent)
        return True

    def check(number, _):
        (pull, push, _), _ = pairs
        push.send_tensor(np.full(20_000, -1))
        got = pull.recv_tensor()
        if (got == number).all():
            got = pull.recv_tensor()
        assert (got == -1).all()
        assert not pull.poll(0) and len(push.peers()) == 1
        pairs.clear()
        push.close(0)
        pull.close(0)

    at_every_point(begin, send, check)


@pytest.mark.parametrize("core", ["native"], indirect=True)  # the twin may send twice
@pytest.mark.parametrize(("endpoint", "sends"), [("tcp", False), ("local", True)], indirect=["endpoint"])
def test_the_end_of_a_connection_is_handled_whole(context, endpoint, sends, core):
    """Whoever was interrupted in the middle of it never connected again. Here the main thread finds it, since
    the reactor is busy."""
    kinds = (transfer.PULL, transfer.PUSH) if sends else (transfer.PUSH, transfer.PULL)
    pairs = []

    def begin(_):
        with KeepingContext(core=core) as others:
            other, mine = others.socket(kinds[0]), context.socket(kinds[1], reconnect_ivl=10)
            other.bind(endpoint)
            mine.connect(other.last_endpoint)
            mine.wait_for_peers(1, 10)
            pairs.append((other.last_endpoint, mine))
            context.reactor.call_soon(time.sleep, 0.03)
            other.close(0)

    def finds():
        mine = pairs[-1][1]
        mine.sndtimeo = mine.rcvtimeo = 20
        with suppress(Again, Broken):
            mine.send(b"lost") if sends else mine.recv()
        return True

    def check(number, _):
        place, mine = pairs.pop()
        mine.sndtimeo = mine.rcvtimeo = 10000
        with KeepingContext(core=core) as others:
            other = others.socket(kinds[0], rcvtimeo=10000)
            assert eventually(lambda: binds(other, place))
            mine.wait_for_peers(1, 10)
            sender, receiver = (mine, other) if sends else (other, mine)
            sender.send(b"%d" % number)
            got = receiver.recv()
            is_part(number, receiver.recv() if got == b"lost" else got)
        mine.close(0)

    assert at_every_point(begin, finds, check) > 1


@pytest.mark.parametrize("here", [transfer.REQ, transfer.DEALER])
def test_a_request_and_its_reply(context, endpoint, here):
    rep, req = joined(context, endpoint, transfer.REP, here)
    envelope = [b""] if here is transfer.DEALER else []

    def ask(number):
        req.send_multipart([*envelope, b"%d" % number])
        arrived(rep)

    def check(number, got):
        is_part(number, got)
        rep.send(b"reply")
        assert req.recv_multipart() == [*envelope, b"reply"]

    at_every_point(ask, rep.recv, check)

    def answer(number):
        req.send_multipart([*envelope, b"request"])
        rep.recv()
        rep.send(b"%d" % number)
        arrived(req)

    at_every_point(answer, req.recv_multipart, lambda number, got: is_part(number, got[-1]))


def test_what_a_router_puts_before_it(context, endpoint):
    router, dealer = joined(context, endpoint, transfer.ROUTER, transfer.DEALER)

    def send(number):
        dealer.send(b"%d" % number)
        arrived(router)

    def check(number, got):
        assert len(got) == 2 and got[0]
        is_part(number, got[1])

    at_every_point(send, router.recv_multipart, check)


class Shot:
    """An argument that sends this process a signal when its truth is asked for, in C: the handler runs when
    the call lets it."""

    _raise = getattr(ctypes.CDLL(None), "raise")
    _raise.restype = ctypes.c_bool
    __bool__ = staticmethod(functools.partial(_raise, signal.SIGUSR1))  # Python 3.14 would bind a bare one


def test_a_message_that_lies_ready(context, endpoint):
    """A signal that came before it was taken."""
    pull, push = joined(context, endpoint)

    def handler(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for number in range(3):
            push.send(b"%d" % number)
        assert pull.recv() == b"0"  # and the others were read with it
        for number in (1, 2):
            got = None
            with pytest.raises(KeyboardInterrupt):
                got = pull.recv(0, Shot())
                eventually(lambda: False, 0.1)  # at the latest here
            assert (pull.recv() if got is None else got.bytes) == b"%d" % number
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_second_handler_raises_while_the_first_exception_is_handled(context, endpoint):
    if context.core.__name__.endswith("pure"):
        pytest.skip("the pure core keeps a message over one interruption of its receive")
    pull, push = context.socket(transfer.PULL, rcvtimeo=1000), context.socket(transfer.PUSH)
    pull.bind(endpoint)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    left = 0

    def handler(*_):
        nonlocal left
        if left > 0:
            left -= 1
            signal.setitimer(signal.ITIMER_REAL, 0.00002 + 0.00003 * (left % 2))
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    interrupted = 0
    try:
        for number in range(1000):
            push.send_multipart([b"%d" % number, b""])
            message = None
            try:
                left = 2
                signal.setitimer(signal.ITIMER_REAL, 0.000001 * (1 + number % 40))
                message = pull.recv_frames()  # `recv_multipart` has a gap of nanoseconds: docs/patterns.md
                left = 0
            except KeyboardInterrupt:
                left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            interrupted += message is None
            assert (message or pull.recv_frames())[0].bytes == b"%d" % number
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 100
