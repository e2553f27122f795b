"""What goes wrong, goes wrong with pyzmq's classes and numbers."""

from __future__ import annotations

import errno
import threading

import pytest

from .conftest import PATIENCE

pytestmark = pytest.mark.timeout(30)


def caught_errno(zmq, call):
    with pytest.raises(zmq.ZMQError) as caught:
        call()
    assert caught.value.strerror and str(caught.value)
    return caught.value.errno


def test_receiving_times_out(zmq, ctx):
    pull = ctx.socket(zmq.PULL)
    pull.rcvtimeo = 10
    with pytest.raises(zmq.Again) as caught:
        pull.recv()
    assert caught.value.errno == zmq.EAGAIN
    with pytest.raises(zmq.Again):
        pull.recv_multipart(zmq.NOBLOCK)
    with pytest.raises(zmq.Again):
        pull.recv_string(zmq.DONTWAIT)


def test_sending_times_out(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.sndtimeo = 10
    with pytest.raises(zmq.Again):
        push.send(b"nobody")


def test_again_is_a_zmq_error(zmq):
    assert issubclass(zmq.Again, zmq.ZMQError)
    assert issubclass(zmq.ContextTerminated, zmq.ZMQError)
    assert issubclass(zmq.ZMQError, zmq.ZMQBaseError)
    assert issubclass(zmq.ZMQBindError, zmq.ZMQBaseError)
    assert issubclass(zmq.NotDone, zmq.ZMQBaseError)
    assert issubclass(zmq.InterruptedSystemCall, InterruptedError)
    assert zmq.error.ZMQError is zmq.ZMQError


def test_errors_are_made_from_numbers(zmq):
    error = zmq.ZMQError(zmq.EADDRINUSE)
    assert (error.errno, error.strerror, str(error)) == (errno.EADDRINUSE,) + ("Address already in use",) * 2
    assert zmq.ZMQError(11, "mine").strerror == "mine"
    assert zmq.Again().errno == zmq.EAGAIN
    assert str(zmq.Again()) == "Resource temporarily unavailable"
    assert zmq.ContextTerminated().errno == zmq.ETERM
    assert zmq.strerror(zmq.EFSM) == "Operation cannot be accomplished in current state"


def test_req_cannot_send_twice(zmq, link):
    _, req = link(zmq.REP, zmq.REQ)
    req.send(b"one")
    assert caught_errno(zmq, lambda: req.send(b"two")) == zmq.EFSM


def test_req_cannot_receive_first(zmq, link):
    rep, req = link(zmq.REP, zmq.REQ)
    assert caught_errno(zmq, req.recv) == zmq.EFSM
    assert caught_errno(zmq, lambda: rep.send(b"unasked")) == zmq.EFSM


def test_wrong_direction(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    assert caught_errno(zmq, push.recv) == zmq.ENOTSUP
    assert caught_errno(zmq, lambda: pull.send(b"x")) == zmq.ENOTSUP
    pub, sub = link(zmq.PUB, zmq.SUB)
    assert caught_errno(zmq, pub.recv) == zmq.ENOTSUP
    assert caught_errno(zmq, lambda: sub.send(b"x")) == zmq.ENOTSUP


def test_port_in_use(zmq, ctx):
    first, second = ctx.socket(zmq.PULL), ctx.socket(zmq.PULL)
    port = first.bind_to_random_port("tcp://127.0.0.1")
    endpoint = f"tcp://127.0.0.1:{port}"
    with pytest.raises(zmq.ZMQError, match=r"127\.0\.0\.1") as caught:
        second.bind(endpoint)
    assert caught.value.errno == zmq.EADDRINUSE


@pytest.mark.parametrize("endpoint", ["nothing", "tcp://127.0.0.1", "tcp://127.0.0.1:port"])
def test_bad_endpoints(zmq, ctx, endpoint):
    sock = ctx.socket(zmq.PUSH)
    assert caught_errno(zmq, lambda: sock.connect(endpoint)) == zmq.EINVAL
    assert caught_errno(zmq, lambda: sock.bind(endpoint)) in (zmq.EINVAL, errno.ENODEV)


def test_unknown_schemes(zmq, ctx):
    sock = ctx.socket(zmq.PUSH)
    assert caught_errno(zmq, lambda: sock.connect("carrier://pigeon:1")) == zmq.EPROTONOSUPPORT
    assert caught_errno(zmq, lambda: sock.bind("carrier://pigeon:1")) == zmq.EPROTONOSUPPORT


def test_udp_needs_other_socket_types(zmq, ctx):
    sock = ctx.socket(zmq.PULL)
    assert caught_errno(zmq, lambda: sock.connect("udp://127.0.0.1:1")) == zmq.ENOCOMPATPROTO
    assert caught_errno(zmq, lambda: sock.bind("udp://127.0.0.1:1")) == zmq.ENOCOMPATPROTO


def test_the_endpoint_is_in_the_text(zmq, ctx):
    sock = ctx.socket(zmq.PUSH)
    for call, endpoint in (
        (sock.bind, "tcp://1.2.3.4.5:1234567"),
        (sock.connect, "noproc://no/such/file"),
        (sock.bind, "ipc:///no/such/directory/s"),
    ):
        with pytest.raises(zmq.ZMQError) as caught:
            call(endpoint)
        assert endpoint in str(caught.value)
    assert caught_errno(zmq, lambda: sock.connect("noproc://no/such/file")) == zmq.EPROTONOSUPPORT
    assert caught_errno(zmq, lambda: sock.bind("ipc:///no/such/directory/s")) == errno.ENOENT


def test_unknown_interfaces(zmq, ctx):
    sock = ctx.socket(zmq.PUSH)
    assert caught_errno(zmq, lambda: sock.bind("tcp://no_such_interface:1")) in (
        errno.ENODEV,
        zmq.EADDRNOTAVAIL,
    )


def test_disconnecting_from_what_was_not_connected(zmq, ctx):
    sock = ctx.socket(zmq.PUSH)
    assert caught_errno(zmq, lambda: sock.disconnect("tcp://127.0.0.1:1")) == errno.ENOENT
    assert caught_errno(zmq, lambda: sock.unbind("tcp://127.0.0.1:1")) == errno.ENOENT


def test_unknown_socket_types(zmq, ctx):
    assert caught_errno(zmq, lambda: ctx.socket(99)) == zmq.EINVAL


def test_closed_sockets(zmq, ctx):
    sock = ctx.socket(zmq.DEALER)
    sock.close()
    for call in (
        sock.recv,
        lambda: sock.send(b"x"),
        lambda: sock.send_multipart([b"x"]),
        sock.recv_multipart,
        lambda: sock.bind("tcp://127.0.0.1:*"),
        lambda: sock.connect("tcp://127.0.0.1:1"),
        lambda: sock.setsockopt(zmq.LINGER, 1),
        lambda: sock.getsockopt(zmq.LINGER),
    ):
        assert caught_errno(zmq, call) == zmq.ENOTSOCK
    assert caught_errno(zmq, sock.poll) == zmq.ENOTSUP


def test_wrong_types(zmq, ctx):
    sock = ctx.socket(zmq.DEALER)
    with pytest.raises(TypeError, match="send_string"):
        sock.send("text")
    with pytest.raises(TypeError):
        sock.send(5)
    with pytest.raises(TypeError):
        sock.send_multipart([b"ok", "text"])
    with pytest.raises(TypeError):
        sock.send_multipart(b"bytes")
    with pytest.raises(TypeError):
        sock.send_string(b"bytes")


def test_nothing_of_a_bad_multipart_is_sent(zmq, link):
    left, right = link(zmq.PAIR, zmq.PAIR)
    with pytest.raises(TypeError):
        left.send_multipart([b"half", 5])
    left.send(b"whole")
    assert right.recv_multipart() == [b"whole"]


def test_term_wakes_those_who_wait(zmq):
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind_to_random_port("tcp://127.0.0.1")
    caught = []
    waiting = threading.Event()

    def wait():
        waiting.set()
        try:
            pull.recv()
        except zmq.ContextTerminated as error:
            caught.append(error.errno)
        pull.close()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    context.term()
    thread.join(PATIENCE / 1000)
    assert caught == [zmq.ETERM]


def test_a_message_too_long_ends_the_connection(zmq, ctx):
    pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    pull.maxmsgsize = 1000
    pull.rcvtimeo = 200
    push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
    push.send(b"x" * 1000)
    assert len(pull.recv()) == 1000
    push.send(b"x" * 1001)
    with pytest.raises(zmq.Again):
        pull.recv()
