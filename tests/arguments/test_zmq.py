"""A wrong argument in `transfer.zmq` is a TypeError as in pyzmq, and an error of ours with what to do."""

from __future__ import annotations

import pytest

from tests.arguments.wrong_calls import Case, outcome
from transfer import zmq
from transfer.transports.errors import ZMQBaseError

pyzmq = pytest.importorskip("zmq")


@pytest.fixture
def sockets():
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.bind("inproc://wrong")
        push.connect("inproc://wrong")
        push.linger = 0
        yield pull, push


#: calls that took a wrong argument in silence, or raised what no pyzmq program expects
RAISES = {
    "poll": lambda pull, push: pull.poll("x"),
    "poll's flags": lambda pull, push: pull.poll(1, "x"),
    "close": lambda pull, push: push.close("x"),
    "destroy": lambda pull, push: push.context.destroy("x"),
    "flags of send": lambda pull, push: push.send(b"x", "x"),
    "flags of recv": lambda pull, push: pull.recv("x"),
    "recv_into": lambda pull, push: pull.recv_into("x"),
    "send_json": lambda pull, push: push.send_json(object()),
    "parts": lambda pull, push: push.send_multipart("x"),
    "proxy": lambda pull, push: zmq.proxy(1, 2),
    "device": lambda pull, push: zmq.device(1, 2, 3),
    "select": lambda pull, push: zmq.select("x", [], []),
    "zmq_poll": lambda pull, push: zmq.zmq_poll("x"),
    "zmq_poll of a number": lambda pull, push: zmq.zmq_poll([(object(), 1)], 0),
    "frame": lambda pull, push: zmq.Frame(3),
    "context": lambda pull, push: zmq.Context("x"),
    "bind": lambda pull, push: pull.bind(3),
    "register": lambda pull, push: zmq.Poller().register("x"),
}


@pytest.mark.parametrize("call", RAISES)
def test_wrong_calls(sockets, call):
    """TypeError, which pyzmq raises of nearly all of them, and an error of ours with what to do."""
    with pytest.raises(TypeError) as caught:
        RAISES[call](*sockets)
    assert isinstance(caught.value, ZMQBaseError)
    assert caught.value.hint


def test_every_wrong_kind(sockets):
    pull, push = sockets
    cases = [
        Case("send", push.send, {"data": b"x", "flags": 1}, ("data: None",)),
        Case("send_string", push.send_string, {"u": "x", "flags": 1}, ("u: text",)),
        Case("poll", pull.poll, {"timeout": 0, "flags": 1}, ("timeout: None -1 huge",)),
        Case("recv", pull.recv, {"flags": 1}),
        Case("recv_multipart", pull.recv_multipart, {"flags": 1}),
        Case("send_multipart", push.send_multipart, {"msg_parts": [b"x"], "flags": 1}),
        Case(
            "recv_into",
            pull_into(pull),
            {"buffer": bytearray(9), "nbytes": 0, "flags": 1},
            ("nbytes: -1",),  # ValueError, as pyzmq's
        ),
        Case(
            "Frame",
            zmq.Frame,
            {"data": b"x", "copy_threshold": None},
            ("data: None", "copy_threshold: None"),
        ),
        Case("register", zmq.Poller().register, {"socket": pull, "flags": 1}),
        Case("zmq_poll", zmq.zmq_poll, {"sockets": [], "timeout": 0}, ("timeout: None -1 huge",)),
        Case("close", push.close, {"linger": 0}, ("linger: None -1 huge",)),
    ]
    push.send(b"x")
    raw = [f"{what}: {ended!r:.120}" for what, ended in ends(cases) if not isinstance(ended, ZMQBaseError)]
    assert not raw, "\n".join(raw)


def pull_into(pull):
    return lambda buffer, nbytes, flags: pull.recv_into(buffer, nbytes=nbytes, flags=flags)


def ends(cases):
    for case in cases:
        for what, arguments in case.wrong():
            yield what, outcome(case.call, arguments)
