"""What docs/zmq-compat.md lists as different is so, on both sides."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(30)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plain(zmq, ctx):
    with ctx.socket(zmq.DEALER) as sock:
        yield sock


def result(zmq, call):
    """What `call` returns, or the errno of its ZMQError."""
    try:
        return call()
    except zmq.ZMQError as error:
        return error.errno


def accepted(zmq, call):
    return result(zmq, call) not in (errno.EINVAL, errno.EACCES, errno.ENODEV)


def test_a_poller_with_a_closed_socket(zmq, ctx, ours):
    pull = ctx.socket(zmq.PULL)
    poller = zmq.Poller()
    poller.register(pull, zmq.POLLIN)
    pull.close()
    if ours:
        for call in (lambda: poller.poll(0), lambda: zmq.select([pull], [], [], 0)):
            assert result(zmq, call) == zmq.ENOTSOCK
    else:
        assert {descriptor for descriptor, _ in poller.poll(0)} <= {0}


def test_disconnect_of_a_bound_endpoint(zmq, ctx, ours):
    bound, connected = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    bound.bind("tcp://127.0.0.1:*")
    endpoint = bound.last_endpoint.decode()
    connected.connect(endpoint)
    wrong = errno.ENOENT if ours else None
    assert result(zmq, lambda: bound.disconnect(endpoint)) == wrong
    assert result(zmq, lambda: connected.unbind(endpoint)) == wrong
    if ours:
        bound.unbind(endpoint)
        connected.disconnect(endpoint)
    for call in (bound.unbind, bound.disconnect, connected.unbind, connected.disconnect):
        assert result(zmq, lambda call=call: call(endpoint)) == errno.ENOENT


def test_binding_to_every_interface(zmq, plain, ours):
    assert accepted(zmq, lambda: plain.bind("tcp://*:*")) != ours
    if ours:
        with pytest.raises(zmq.ZMQError, match="TRANSFER_UNAUTHENTICATED=allow"):
            plain.bind("tcp://*:*")


def test_one_variable_gives_the_bind_of_zeromq(zmq, monkeypatch):
    monkeypatch.setenv("TRANSFER_UNAUTHENTICATED", "allow")
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.bind("tcp://*:*")
        assert pull.last_endpoint.startswith(b"tcp://0.0.0.0:")


def test_the_page_begins_with_what_every_program_meets(ours):
    if not ours:
        pytest.skip("the page is about ours")
    begin = (ROOT / "docs/zmq-compat.md").read_text().partition("```")[0]
    assert all(word in begin for word in ("Both ends must", "`TRANSFER_UNAUTHENTICATED=allow`", "ZMTP"))


@pytest.mark.parametrize("port", [0, 99_999])
def test_ports_that_cannot_be_connected_to(zmq, plain, ours, port):
    assert accepted(zmq, lambda: plain.connect(f"tcp://127.0.0.1:{port}")) != ours


def test_parts_without_a_peer(zmq, ctx, ours):
    push = ctx.socket(zmq.PUSH)
    push.sndtimeo = 0
    first = result(zmq, lambda: push.send(b"first", zmq.SNDMORE))
    assert first == (None if ours else zmq.EAGAIN)
    assert result(zmq, lambda: push.send(b"last")) == zmq.EAGAIN


def test_values_that_are_the_default(zmq, plain, ours):
    assert accepted(zmq, lambda: plain.set(zmq.IDENTITY, b"")) == ours
    assert accepted(zmq, lambda: plain.set(zmq.HEARTBEAT_TIMEOUT, -1)) == ours
    assert accepted(zmq, lambda: plain.set(zmq.HWM, 5)) == ours
    for name in ("BUSY_POLL", "IN_BATCH_SIZE", "OUT_BATCH_SIZE", "PRIORITY"):
        assert accepted(zmq, lambda name=name: plain.set(getattr(zmq, name), 1)) == ours


def test_values_that_mean_the_same(zmq, plain, ours):
    plain.maxmsgsize = -5
    plain.heartbeat_ttl = 7
    plain.multicast_loop = plain.loopback_fastpath = 2
    found = (plain.maxmsgsize, plain.heartbeat_ttl, plain.multicast_loop, plain.loopback_fastpath)
    assert found == ((-1, 7, 2, 2) if ours else (-5, 0, 1, 1))


def test_an_identity_in_a_bytearray(zmq, plain, ours):
    if ours:
        plain.identity = bytearray(b"me")
        assert plain.identity == b"me"
    else:
        with pytest.raises(TypeError):
            plain.identity = bytearray(b"me")


def test_events_of_a_connection_at_once(zmq, ctx, ours):
    recv = importlib.import_module(f"{zmq.__name__}.utils.monitor").recv_monitor_message
    pull, push = ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)
    pull.bind("tcp://127.0.0.1:*")
    with push.get_monitor_socket() as watch:
        push.connect(pull.last_endpoint.decode())
        seen = []
        while zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen:
            seen.append(recv(watch)["event"])
        push.disable_monitor()
    assert seen[-2:] == [zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED]
    assert ours or zmq.EVENT_CONNECT_DELAYED in seen
