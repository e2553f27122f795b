"""poll, Poller, select, proxy, monitors."""

from __future__ import annotations

import importlib
import os
import threading

import pytest

import transfer.asyncio
from transfer import zmq as transfer_zmq
from transfer.transports.errors import NotSupported
from transfer.zmq.proxy import _Flow

from .conftest import PATIENCE

pytestmark = pytest.mark.timeout(30)


def test_poll(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    assert pull.poll(0) == 0
    assert pull.poll(10) == 0
    push.send(b"x")
    assert pull.poll(PATIENCE) == zmq.POLLIN
    assert pull.poll(0, zmq.POLLIN | zmq.POLLOUT) == zmq.POLLIN
    assert push.poll(PATIENCE, zmq.POLLOUT) == zmq.POLLOUT
    pull.recv()
    assert pull.poll(0) == 0


@pytest.mark.parametrize("timeout", [None, -1, 0, 3_600_000])
def test_nothing_to_poll_returns_at_once(zmq, timeout):
    calls = zmq.Poller().poll, lambda timeout: zmq.zmq_poll([], -1 if timeout is None else timeout)
    assert [in_time(call, timeout) for call in calls] == [[], []]
    seconds = timeout if timeout is None else timeout / 1000
    assert in_time(lambda timeout: zmq.select([], [], [], timeout), seconds) == ([], [], [])


def in_time(call, argument):
    """What the call returns within a deadline, or None."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call(argument)), daemon=True)
    thread.start()
    thread.join(PATIENCE / 1000)
    return found[0] if found else None


def test_poller(zmq, link):
    left, right = link(zmq.PAIR, zmq.PAIR)
    poller = zmq.Poller()
    poller.register(left)
    poller.register(right, zmq.POLLIN)
    assert left in poller and right in poller
    assert left.poll(PATIENCE, zmq.POLLOUT)
    assert dict(poller.poll(0)) == {left: zmq.POLLOUT}
    left.send(b"x")
    assert right.poll(PATIENCE)
    assert dict(poller.poll(PATIENCE)) == {left: zmq.POLLOUT, right: zmq.POLLIN}
    poller.modify(left, zmq.POLLIN)
    assert dict(poller.poll()) == {right: zmq.POLLIN}
    right.recv()
    assert poller.poll(10) == []
    poller.unregister(left)
    assert left not in poller
    with pytest.raises(KeyError):
        poller.unregister(left)
    poller.register(right, 0)
    assert right not in poller
    assert poller.poll(10) == []


def test_poller_takes_descriptors(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    reader, writer = os.pipe()
    try:
        poller = zmq.Poller()
        poller.register(pull, zmq.POLLIN)
        poller.register(reader, zmq.POLLIN)
        assert poller.poll(10) == []
        os.write(writer, b"x")
        assert poller.poll(PATIENCE) == [(reader, zmq.POLLIN)]
        push.send(b"x")
        assert pull.poll(PATIENCE)
        assert dict(poller.poll(PATIENCE)) == {reader: zmq.POLLIN, pull: zmq.POLLIN}
    finally:
        os.close(reader)
        os.close(writer)


def test_a_closed_descriptor_is_an_error(zmq):
    reader, writer = os.pipe()
    poller = zmq.Poller()
    poller.register(reader, zmq.POLLIN)
    os.close(reader)
    os.close(writer)
    assert poller.poll(5000) == [(reader, zmq.POLLERR)]


def test_files_are_polled_by_their_descriptors(zmq):
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb") as target:
        poller = zmq.Poller()
        poller.register(source, zmq.POLLIN)
        poller.register(target, zmq.POLLOUT)
        assert poller.poll(1) == [(writer, zmq.POLLOUT)]
        target.write(b"x")
        target.flush()
        assert dict(poller.poll(1)) == {reader: zmq.POLLIN, writer: zmq.POLLOUT}
        assert zmq.select([reader], [], [], 0) == ([reader], [], [])


def test_poller_wakes(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    poller = zmq.Poller()
    poller.register(pull, zmq.POLLIN)
    timer = threading.Timer(0.05, lambda: push.send(b"late"))
    timer.start()
    assert dict(poller.poll(PATIENCE)) == {pull: zmq.POLLIN}
    timer.join()
    assert pull.recv() == b"late"


def test_poll_many_messages_one_by_one(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    poller = zmq.Poller()
    poller.register(pull, zmq.POLLIN)
    for _ in range(100):
        push.send(b"x")
    for _ in range(100):
        assert poller.poll(PATIENCE) == [(pull, zmq.POLLIN)]
        assert pull.recv(zmq.DONTWAIT) == b"x"
    assert poller.poll(10) == []


def test_polling_for_room(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.bind_to_random_port("tcp://127.0.0.1")
    assert push.poll(10, zmq.POLLOUT) == 0
    pull = ctx.socket(zmq.PULL)
    pull.connect(push.last_endpoint.decode())
    assert push.poll(PATIENCE, zmq.POLLOUT) == zmq.POLLOUT


def test_polling_req_and_rep(zmq, link):
    rep, req = link(zmq.REP, zmq.REQ)
    assert req.poll(PATIENCE, zmq.POLLOUT) == zmq.POLLOUT
    assert req.poll(0, zmq.POLLIN) == 0
    assert rep.poll(0, zmq.POLLOUT) == 0
    req.send(b"q")
    assert req.poll(0, zmq.POLLOUT) == 0
    assert rep.poll(PATIENCE) == zmq.POLLIN
    rep.recv()
    assert rep.poll(0, zmq.POLLOUT) == zmq.POLLOUT
    rep.send(b"a")
    assert req.poll(PATIENCE) == zmq.POLLIN
    assert req.recv() == b"a"


def test_select(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    assert push.poll(PATIENCE, zmq.POLLOUT)
    assert zmq.select([pull], [push], [pull, push], timeout=0) == ([], [push], [])
    push.send(b"x")
    assert pull.poll(PATIENCE)
    assert zmq.select([pull], [], [], timeout=5) == ([pull], [], [])


def test_zmq_poll(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    push.send(b"x")
    assert pull.poll(PATIENCE)
    assert zmq.zmq_poll([(pull, zmq.POLLIN)], 0) == [(pull, zmq.POLLIN)]


def test_proxy(zmq):
    context = zmq.Context()
    frontend, backend = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    front = frontend.bind_to_random_port("tcp://127.0.0.1")
    back = backend.bind_to_random_port("tcp://127.0.0.1")
    ended = []

    def run():
        try:
            zmq.proxy(frontend, backend)
        except zmq.ContextTerminated:
            ended.append(True)
        frontend.close(0)
        backend.close(0)

    thread = threading.Thread(target=run)
    thread.start()
    with context.socket(zmq.REP) as rep, context.socket(zmq.REQ) as req:
        rep.connect(f"tcp://127.0.0.1:{back}")
        req.connect(f"tcp://127.0.0.1:{front}")
        for sock in (rep, req):
            sock.rcvtimeo = PATIENCE
        for number in range(3):
            req.send_multipart([b"question", b"%d" % number])
            assert rep.recv_multipart() == [b"question", b"%d" % number]
            rep.send(b"answer")
            assert req.recv() == b"answer"
    context.term()
    thread.join(PATIENCE / 1000)
    assert ended == [True]


def test_a_proxy_refuses_sockets_of_coroutines():
    with transfer.asyncio.Context() as context, context.socket(transfer.PULL) as pull:
        with context.socket(transfer.PUSH) as push, pytest.raises(NotSupported, match="plain Context"):
            transfer_zmq.proxy(pull, push)


def test_a_proxy_whose_context_ends_between_two_calls():
    context = transfer_zmq.Context()
    frontend, backend = context.socket(transfer_zmq.PULL), context.socket(transfer_zmq.PUSH)

    class Target:
        def poll(self, timeout, flags):
            context.term()
            return flags

    with pytest.raises(transfer_zmq.ContextTerminated):
        _Flow(frontend, Target()).carry(None)
    assert frontend.closed and backend.closed


def test_proxy_with_capture(zmq):
    context = zmq.Context()
    frontend, backend, capture = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PUSH))
    front = frontend.bind_to_random_port("tcp://127.0.0.1")
    back = backend.bind_to_random_port("tcp://127.0.0.1")
    capture.bind("inproc://capture")

    def run():
        try:
            zmq.proxy(frontend, backend, capture)
        except zmq.ContextTerminated:
            pass
        for sock in (frontend, backend, capture):
            sock.close(0)

    thread = threading.Thread(target=run)
    with context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull, context.socket(zmq.PULL) as seen:
        pull.rcvtimeo = seen.rcvtimeo = PATIENCE
        push.connect(f"tcp://127.0.0.1:{front}")
        pull.connect(f"tcp://127.0.0.1:{back}")
        seen.connect("inproc://capture")
        thread.start()
        push.send_multipart([b"a", b"b"])
        assert pull.recv_multipart() == [b"a", b"b"]
        assert seen.recv_multipart() == [b"a", b"b"]
    context.term()
    thread.join(PATIENCE / 1000)
    assert not thread.is_alive()


def test_steerable_proxy(zmq):
    context = zmq.Context()
    frontend, backend, control = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PAIR))
    front = frontend.bind_to_random_port("tcp://127.0.0.1")
    back = backend.bind_to_random_port("tcp://127.0.0.1")
    control.bind("inproc://control")

    def run():
        zmq.proxy_steerable(frontend, backend, None, control)
        for sock in (frontend, backend, control):
            sock.close(0)

    thread = threading.Thread(target=run)
    push, pull, steer = (context.socket(kind) for kind in (zmq.PUSH, zmq.PULL, zmq.PAIR))
    with push, pull, steer:
        pull.rcvtimeo = PATIENCE
        steer.connect("inproc://control")
        push.connect(f"tcp://127.0.0.1:{front}")
        pull.connect(f"tcp://127.0.0.1:{back}")
        thread.start()
        push.send(b"one")
        assert pull.recv() == b"one"
        steer.send(b"TERMINATE")
        thread.join(PATIENCE / 1000)
        assert not thread.is_alive()
    context.term()


def test_monitor(zmq, ctx):
    monitor = importlib.import_module(f"{zmq.__name__}.utils.monitor")
    pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    watch = push.get_monitor_socket()
    assert push.get_monitor_socket() is watch
    assert watch.type == zmq.PAIR
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    push.connect(f"tcp://127.0.0.1:{port}")
    seen = []
    while zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen:
        assert watch.poll(PATIENCE)
        event = monitor.recv_monitor_message(watch)
        seen.append(event["event"])
        assert set(event) == {"event", "value", "endpoint"}
        assert event["endpoint"] == f"tcp://127.0.0.1:{port}".encode()
        assert isinstance(event["event"], zmq.Event)
    assert zmq.EVENT_CONNECTED in seen
    pull.close(0)
    while zmq.EVENT_DISCONNECTED not in seen:
        seen.append(monitor.recv_monitor_message(watch)["event"])
    push.disable_monitor()
    watch.close(0)


def test_monitor_of_a_binder(zmq, ctx):
    monitor = importlib.import_module(f"{zmq.__name__}.utils.monitor")
    pull = ctx.socket(zmq.PULL)
    with pull.get_monitor_socket(zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED) as watch:
        pull.bind("tcp://127.0.0.1:*")
        push = ctx.socket(zmq.PUSH)
        push.connect(pull.last_endpoint.decode())
        events = [monitor.recv_monitor_message(watch)["event"] for _ in range(2)]
        assert events == [zmq.EVENT_LISTENING, zmq.EVENT_ACCEPTED]
        pull.disable_monitor()


def test_monitor_by_endpoint(zmq, ctx):
    monitor = importlib.import_module(f"{zmq.__name__}.utils.monitor")
    pull = ctx.socket(zmq.PULL)
    pull.monitor("inproc://watch", zmq.EVENT_ALL)
    watch = ctx.socket(zmq.PAIR)
    watch.connect("inproc://watch")
    pull.bind("tcp://127.0.0.1:*")
    assert monitor.recv_monitor_message(watch)["event"] == zmq.EVENT_LISTENING
    pull.monitor(None, 0)
    while monitor.recv_monitor_message(watch)["event"] != zmq.EVENT_MONITOR_STOPPED:
        pass
