"""Mistakes of the caller: a typed error that says what to do, and the socket goes on."""

from __future__ import annotations

import numpy
import pytest

from tests.sockets.helpers import TCP, Thread, eventually, pair_of
from transfer import DONTWAIT, PUB, PULL, PUSH, REP, REQ, ROUTER, SNDMORE, SUB
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import (
    AddressError,
    AddressInUse,
    AddressNotAvailable,
    Again,
    Closed,
    NotATensor,
    NotSupported,
    OptionError,
    StateError,
    TensorMismatch,
    Unroutable,
    UsageError,
)


def refused(kind, call, hint=True):
    """The call raises this, and the text says what to do."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    if hint:
        assert caught.value.hint
        assert caught.value.hint in str(caught.value)
    return caught.value


def test_a_wrong_state(context):
    rep, req = pair_of(context, REP, REQ)
    refused(StateError, req.recv)
    refused(StateError, lambda: rep.send(b"nobody asked"))
    req.send(b"first")
    refused(StateError, lambda: req.send(b"second"))
    refused(StateError, lambda: req.send_tensor(numpy.zeros(3)))
    assert rep.recv() == b"first"
    refused(StateError, rep.recv)
    refused(StateError, rep.recv_tensor)
    rep.send(b"answer")
    assert req.recv() == b"answer"  # as if nothing had happened


def test_the_wrong_direction(context):
    refused(NotSupported, context.socket(PUSH).recv, hint=False)
    refused(NotSupported, lambda: context.socket(PULL).send(b"x"), hint=False)
    refused(NotSupported, lambda: context.socket(SUB).send_tensor(numpy.zeros(3)), hint=False)
    refused(NotSupported, lambda: context.socket(PUB).recv_tensor(), hint=False)
    refused(NotSupported, lambda: context.socket(PUSH).subscribe("x"), hint=False)


class NoTensor:
    pass


@pytest.mark.parametrize(
    "what",
    [
        None,
        3,
        "text",
        NoTensor(),
        [1, 2],
        numpy.array([NoTensor()]),
        numpy.array([("a", NoTensor())], "U1,O"),
    ],
    ids=["None", "int", "str", "object", "list", "objects", "record of objects"],
)
def test_what_is_no_tensor(context, what):
    pull, push = pair_of(context, PULL, PUSH)
    with pytest.raises(NotATensor) as caught:
        push.send_tensor(what)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(NotATensor):
        push.send_tensors({"good": numpy.zeros(3), "bad": what})
    push.send(b"nothing of it was sent")
    assert pull.recv() == b"nothing of it was sent"


@pytest.mark.parametrize("what", [None, 3, "text", NoTensor(), [1, 2]], ids=lambda what: type(what).__name__)
def test_what_is_no_message(context, what):
    pull, push = pair_of(context, PULL, PUSH)
    with pytest.raises(TypeError):
        push.send(what)
    push.send(b"good")
    assert pull.recv() == b"good"


def test_a_tensor_that_does_not_fit(context):
    pull, push = pair_of(context, PULL, PUSH)
    sent = numpy.arange(6, dtype="f4").reshape(2, 3)
    push.send_tensor(sent)
    for out in (numpy.zeros(5, "f4"), numpy.zeros((2, 3), "f8"), numpy.zeros((3, 2), "f4")):
        refused(TensorMismatch, lambda out=out: pull.recv_tensor(out=out), hint=False)
    assert (pull.recv_tensor() == sent).all()


@pytest.mark.parametrize("kind", list(SocketType), ids=lambda kind: kind.name)
def test_a_closed_socket(context, kind):
    """It says so before it says that it is the wrong direction, or not its turn."""
    socket = context.socket(kind)
    socket.bind(TCP)
    endpoint = socket.last_endpoint
    socket.close()
    for call in (
        lambda: socket.send(b"x"),
        lambda: socket.send(b"x", SNDMORE),
        lambda: socket.send(b"x", track=True),
        lambda: socket.send_multipart([b"a", b"b"]),
        lambda: socket.send_tensor(numpy.zeros(1)),
        lambda: socket.send_tensors({"x": numpy.zeros(1)}),
        socket.recv,
        lambda: socket.recv(DONTWAIT),
        socket.recv_multipart,
        socket.recv_tensor,
        socket.recv_tensors,
        lambda: socket.recv_into(bytearray(1)),
        socket.subscribe,
        lambda: socket.set_callback(print),
        lambda: socket.bind(TCP),
        lambda: socket.connect(endpoint),
        lambda: socket.unbind(endpoint),
        lambda: socket.poll(0),
        socket.wait_for_peers,
        socket.get_monitor,
        lambda: socket.set("sndhwm", 1),
    ):
        refused(Closed, call, hint=False)
    assert socket.close() == 0


def test_parts_that_are_left_go_with_their_socket(context):
    pull, push = pair_of(context, PULL, PUSH)
    push.send_multipart([b"first", b"left"])
    assert pull.recv() == b"first"
    assert pull.rcvmore
    pull.close()
    for call in (pull.recv, pull.recv_multipart, lambda: pull.poll(0)):
        refused(Closed, call, hint=False)


def test_a_socket_that_is_closing_takes_no_more(context):
    """What comes after `close` began might not be flushed, so it is refused."""
    with context.socket(PULL) as first:
        first.bind(TCP)
        endpoint = first.last_endpoint
    push = context.socket(PUSH, immediate=False, reconnect_ivl=10)
    push.connect(endpoint)
    push.send(b"kept back")
    closing = Thread(push.close, 20_000)
    assert eventually(lambda: push._ending.locked() and push._general_send)
    for call in (
        lambda: push.send(b"late"),
        lambda: push.send(b"late", track=True),
        lambda: push.send_tensor(numpy.zeros(1)),
    ):
        refused(Closed, call, hint=False)
    second = context.socket(PULL, rcvtimeo=20_000)
    second.bind(endpoint)
    assert second.recv() == b"kept back"
    assert closing.finish() == 0


def test_an_endpoint_that_nobody_serves(context):
    push = context.socket(PUSH, sndtimeo=50)
    push.connect("tcp://127.0.0.1:1")
    for call in (
        lambda: push.send(b"x"),
        lambda: push.send_tensor(numpy.zeros(1)),
        lambda: push.wait_for_peers(1, 0.05),
    ):
        error = refused(Again, call)
        assert "no peer listens at tcp://127.0.0.1:1" in str(error)
        assert "tried for" in str(error)


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
def test_an_endpoint_in_use(context, tmp_path, scheme):
    wish = {"tcp": TCP, "ipc": f"ipc://{tmp_path}/s", "inproc": "inproc://name"}[scheme]
    first = context.socket(PULL)
    first.bind(wish)
    second = context.socket(PULL)
    monitor = second.get_monitor()
    error = refused(AddressInUse, lambda: second.bind(first.last_endpoint))
    assert first.last_endpoint.partition("://")[2] in str(error)
    assert monitor.recv(5).kind == "bind_failed"
    second.bind(TCP)  # it is as good as new


def test_endpoints_that_make_no_sense(context):
    socket = context.socket(PULL)
    for endpoint in ("", "tcp://", "tcp://host", "tcp://host:99999", "carrier-pigeon://x", "host:1"):
        refused(AddressError, lambda endpoint=endpoint: socket.bind(endpoint))
        refused(AddressError, lambda endpoint=endpoint: socket.connect(endpoint))
    refused(AddressNotAvailable, lambda: socket.bind("tcp://192.0.2.1:0"))
    refused(AddressError, lambda: socket.unbind("tcp://127.0.0.1:1"))
    refused(AddressError, lambda: socket.disconnect("tcp://127.0.0.1:1"))


def test_options_that_make_no_sense(context):
    socket = context.socket(PUSH)
    refused(OptionError, lambda: socket.set("sndhwn", 1))
    refused(OptionError, lambda: socket.set("sndhwm", "many"))
    refused(OptionError, lambda: socket.set("compression", "zip"))
    refused(UsageError, lambda: context.socket(SUB).unsubscribe("never asked for"), hint=False)


def test_a_name_that_nobody_has(context):
    router = context.socket(ROUTER, router_mandatory=True)
    router.bind(TCP)
    refused(Unroutable, lambda: router.send_multipart([b"nobody", b"x"]), hint=False)
