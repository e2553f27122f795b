"""Sockets over the local transport: every pattern, tensors, views, limits, losses."""

from __future__ import annotations

import gc
import logging
import os
import socket as sockets
import time
from socket import SO_RCVBUF, SO_SNDBUF

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

import transfer
from tests.shm.conftest import eventually, mappings
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import TCP, Thread, pair_of
from transfer import DEALER, PAIR, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.transports.core.wire import BY_REFERENCE, REFERENCE

SIZE = 200_000


def large(number=0, size=SIZE):
    """Bytes that tell whether they are whole."""
    return bytes([number % 256]) * size


def carrier_of(socket, index=0):
    return list(socket._links.state.peers.values())[index].stream.carrier


@pytest.fixture
def other(core):
    """A context of its own for the other side, as another process would have."""
    made = KeepingContext(core=core)
    yield made
    made.destroy(0)


def test_kernel_buffers_are_those_of_the_options(context):
    bound, connected = pair_of(context, PULL, PUSH, bound_options={"rcvbuf": 20_000}, sndbuf=10_000)
    for socket, option, size in ((bound, SO_RCVBUF, 20_000), (connected, SO_SNDBUF, 10_000)):
        [peer] = socket._links.state.peers.values()
        assert peer.stream.carrier is not None
        with sockets.socket(fileno=os.dup(peer.fd)) as connection:
            assert connection.getsockopt(sockets.SOL_SOCKET, option) == 2 * size  # the kernel doubles it


# --- patterns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "connected"),
    [(PULL, PUSH), (PUSH, PULL), (PAIR, PAIR), (SUB, PUB), (PUB, SUB), (DEALER, DEALER)],
)
def test_large_and_small_in_order(context, bound, connected):
    one, two = pair_of(context, bound, connected)
    sender, receiver = (one, two) if bound in (PUSH, PUB, PAIR, DEALER) else (two, one)
    sent = [large(n, SIZE if n % 3 else 10) for n in range(40)]
    for data in sent:
        sender.send(data)
    assert [receiver.recv() for _ in sent] == sent
    for socket in (one, two):
        (peer,) = socket.peers()
        assert peer.transport == "local" and "best that both have" in peer.reason
    assert carrier_of(sender).nbytes > 0 and not carrier_of(sender).refused


def test_requests_and_replies(context):
    rep, req = pair_of(context, REP, REQ)
    for number in range(20):
        req.send(large(number))
        assert rep.recv() == large(number)
        rep.send(large(number + 1))
        assert req.recv() == large(number + 1)


def test_envelopes_of_a_router(context):
    router, dealer = pair_of(context, ROUTER, DEALER)
    dealer.send_multipart([b"", large(1), b"small", large(2)])
    who, *parts = router.recv_multipart()
    assert parts == [b"", large(1), b"small", large(2)]
    router.send_multipart([who, large(3)])
    assert dealer.recv_multipart() == [large(3)]


def test_parts_and_what_lies_between(context):
    pull, push = pair_of(context, PULL, PUSH)
    parts = [large(1), b"", b"x" * 65535, large(2, 65536), b"end"]
    push.send_multipart(parts)
    push.send(large(3), transfer.SNDMORE)
    push.send(b"tail")
    assert pull.recv_multipart() == parts
    assert pull.recv() == large(3) and pull.rcvmore
    assert pull.recv() == b"tail"


def test_topics_and_subscriptions(context):
    pub = context.socket(PUB)
    pub.bind(TCP)
    subs = [context.socket(SUB, rcvtimeo=5000) for _ in range(3)]
    for number, sub in enumerate(subs):
        sub.subscribe(b"%d" % number)
        sub.subscribe(b"all")
        sub.connect(pub.last_endpoint)
    pub.wait_for_peers(3, 10)
    for number in range(3):
        pub.send(b"%d" % number + large(number))
    pub.send(b"all" + large(9))
    for number, sub in enumerate(subs):
        assert sub.recv() == b"%d" % number + large(number)
        assert sub.recv() == b"all" + large(9)


@pytest.mark.parametrize("size", [65_535, 65_536, 1 << 20])
def test_what_is_received_without_a_copy_is_writable_and_lives(context, size):
    pull, push = pair_of(context, PULL, PUSH)
    push.send(large(7, size), copy=False)
    frame = pull.recv(copy=False)
    view = frame.buffer
    assert bytes(frame) == large(7, size) and len(frame) == size
    if size >= 65_536:
        assert not view.readonly
        view[0] = 1
        assert view[0] == 1


def test_a_tracker_of_ordinary_memory_is_done_at_once(context):
    """It was copied: the caller may change it, whatever the receiver does."""
    pull, push = pair_of(context, PULL, PUSH)
    data = bytearray(large(1))
    tracker = push.send(data, copy=False, track=True)
    tracker.wait(5)
    data[:] = large(2)
    assert pull.recv() == large(1)
    assert tracker.wait_confirmed(5) is None


def test_lazy_connect(context):
    push = context.socket(PUSH, immediate=False)
    endpoint = _free_endpoint(context)
    push.connect(endpoint)
    for number in range(10):
        push.send(large(number))
    pull = context.socket(PULL, rcvtimeo=10_000)
    pull.bind(endpoint)
    assert [pull.recv() for _ in range(10)] == [large(n) for n in range(10)]
    push.send(large(11))
    assert pull.recv() == large(11) and pull.peers()[0].transport == "local"


def _free_endpoint(context):
    socket = context.socket(PULL)
    socket.bind(TCP)
    endpoint = socket.last_endpoint
    socket.close(0)
    return endpoint


# --- tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "uint8", "complex64"])
def test_tensors_of_any_memory(context, dtype):
    pull, push = pair_of(context, PULL, PUSH)
    made = np.arange(100_000).astype(dtype).reshape(100, 1000)
    for tensor in (made, made.T, made[::2], np.asfortranarray(made)):
        push.send_tensor(tensor)
        got = pull.recv_tensor()
        assert got.dtype == tensor.dtype and (got == tensor).all() and got.flags.writeable


def test_receiving_into_memory_of_ones_own(context):
    pull, push = pair_of(context, PULL, PUSH)
    out = np.zeros((500, 100))
    for number in range(5):
        push.send_tensor(np.full((500, 100), number, float))
        assert pull.recv_tensor(out=out) is out
        assert (out == number).all()
    assert _all_free(carrier_of(push))


def test_a_tensor_that_does_not_fit_stays_unread(context):
    pull, push = pair_of(context, PULL, PUSH)
    push.send_tensor(np.ones((500, 100)))
    with pytest.raises(transfer.TensorMismatch):
        pull.recv_tensor(out=np.zeros((5, 5)))
    assert pull.recv_tensor().sum() == 50_000


def test_several_tensors_in_one_message(context):
    pull, push = pair_of(context, PULL, PUSH)
    sent = {"a": np.ones(100_000), "b": np.arange(10), "c": np.zeros((300, 300), "int16")}
    push.send_tensors(sent, meta={"step": 1}, track=True)
    got, meta = pull.recv_tensors()
    assert meta == {"step": 1} and all((got[name] == sent[name]).all() for name in sent)


def _all_free(carrier):
    gc.collect()
    return eventually(lambda: all(s.slots.idle for s in carrier._arena._segments.values()))


def test_slots_are_used_again_after_the_last_view(context):
    pull, push = pair_of(context, PULL, PUSH)
    for number in range(100):
        push.send_tensor(np.full(1 << 17, number))
        tensor = pull.recv_tensor()
        part = tensor[5:10]
        del tensor
        assert (part == number).all()
    assert carrier_of(push).nbytes < 10 << 20
    del part
    assert _all_free(carrier_of(push))


def test_who_keeps_everything_gets_the_rest_by_the_socket(context, caplog):
    pull, push = pair_of(context, PULL, PUSH)
    carrier_of(push)._arena.limit = 8 << 20
    kept = []
    with caplog.at_level(logging.WARNING, "transfer"):
        for number in range(30):
            push.send_tensor(np.full(1 << 17, number), track=True)
            kept.append(pull.recv_tensor())
    assert [int(tensor[-1]) for tensor in kept] == list(range(30))
    assert all((tensor == number).all() for number, tensor in enumerate(kept))
    assert carrier_of(push).refused["full"] == 22
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == 1
    kept.clear()
    gc.collect()
    push.send_tensor(np.full(1 << 17, 99))
    assert (pull.recv_tensor() == 99).all() and carrier_of(push).refused["full"] == 22


def test_shared_memory_is_in_the_metrics():
    registry = CollectorRegistry()
    context = KeepingContext()
    transfer.metrics.register(context, registry)
    pull, push = pair_of(context, PULL, PUSH)
    carrier_of(push)._arena.limit = 1 << 20
    tensor = context.empty(100_000, "uint8")
    for size in (100_000, 2 << 20):
        push.send(bytes(size), track=True)
        pull.recv()

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    assert value("transfer_local_refused_total", socket="PUSH", reason="too_large") == 1
    assert value("transfer_local_bytes", kind="segments") == carrier_of(push).nbytes > 0
    assert value("transfer_local_bytes", kind="tensors") >= tensor.nbytes
    context.destroy(0)
    assert value("transfer_local_refused_total", socket="PUSH", reason="too_large") == 1
    transfer.metrics.unregister(context, registry)


# --- tensors that are shared from birth ---------------------------------------------------------------


def test_one_receiver_sees_the_same_memory_until_it_lets_go(context, other):
    pull, push = other.socket(PULL), context.socket(PUSH)
    pull.bind(TCP)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    tensor = context.empty((1000, 100))
    tensor[:] = 1
    tracker = push.send_tensor(tensor)
    got = pull.recv_tensor()
    assert (got == 1).all() and not tracker.done
    got[0, 0] = 5
    assert tensor[0, 0] == 5 and carrier_of(push).nbytes == 0
    view = got[5:]
    del got
    gc.collect()
    assert not tracker.done
    del view
    gc.collect()
    tracker.wait(5)
    tensor[:] = 2
    tracker = push.send_tensor(tensor)
    assert (pull.recv_tensor() == 2).all()
    tracker.wait(5)


def test_several_subscribers_have_copies_on_write(context, other):
    pub = context.socket(PUB)
    pub.bind(TCP)
    subs = [other.socket(SUB, rcvtimeo=5000) for _ in range(3)]
    for sub in subs:
        sub.subscribe(b"")
        sub.connect(pub.last_endpoint)
    pub.wait_for_peers(3, 10)
    tensor = context.empty(100_000)
    tensor[:] = 1
    tracker = pub.send_tensor(tensor, topic=b"t")
    got = [sub.recv_tensor() for sub in subs]
    for number, each in enumerate(got):
        each[:] = number + 10
    assert [float(each[0]) for each in got] == [10, 11, 12] and (tensor == 1).all()
    assert not tracker.done
    del each
    got.pop()
    got.pop()
    gc.collect()
    assert not tracker.done
    got.clear()
    gc.collect()
    tracker.wait(5)
    assert all(carrier_of(pub, n).nbytes == 0 for n in range(3))


def test_sent_to_two_at_once_neither_sees_the_others_writes(context, other):
    push = context.socket(PUSH)
    push.bind(TCP)
    pulls = [other.socket(PULL, rcvtimeo=5000) for _ in range(2)]
    for pull in pulls:
        pull.connect(push.last_endpoint)
    push.wait_for_peers(2, 10)
    tensor = context.empty(100_000)
    tensor[:] = 1
    trackers = [push.send_tensor(tensor) for _ in pulls]
    one, two = (pull.recv_tensor() for pull in pulls)
    one[:] = 5
    assert (two == 1).all()
    two[:] = 6
    assert (one == 5).all()
    del one, two
    gc.collect()
    for tracker in trackers:
        tracker.wait(5)


def test_views_outlive_sockets_and_contexts_of_both_sides(core):
    contexts = [KeepingContext(core=core) for _ in range(2)]
    pull, push = (context.socket(kind) for context, kind in zip(contexts, (PULL, PUSH), strict=True))
    pull.bind(TCP)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    tensor = contexts[1].empty(100_000)
    tensor[:] = 3
    tracker = push.send_tensor(tensor)
    push.send_tensor(np.full(100_000, 4.0))
    shared, copied = pull.recv_tensor(), pull.recv_tensor()
    contexts[0].destroy(0)
    gc.collect()
    assert not eventually(lambda: tracker.done, 0.3)
    contexts[1].destroy(0)
    assert tracker.done  # nobody is left who could tell
    assert (shared == 3).all() and (copied == 4).all() and (tensor == 3).all()
    copied[:] = 5
    tensor[0] = 7
    del tensor
    gc.collect()
    assert shared[0] == 7 and (shared[1:] == 3).all()


@pytest.mark.parametrize("pause", [0, 0.1])
def test_views_outlive_the_connection_alone(context, other, pause):
    """Also where each side has seen the other's end before its own."""
    pull, push = other.socket(PULL), context.socket(PUSH)
    pull.bind(TCP)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    tensor = context.empty(100_000)
    tensor[:] = 3
    tracker = push.send_tensor(tensor)
    got = pull.recv_tensor()
    push.close(0)
    time.sleep(pause)
    pull.close(0)
    assert not eventually(lambda: tracker.done, 0.3) and (got == 3).all()
    del got
    gc.collect()
    assert eventually(lambda: tracker.done)
    with_nothing = context.shared["local.carriers"], other.shared["local.carriers"]
    assert eventually(lambda: not any(carriers._living for carriers in with_nothing))


def test_memory_of_another_context_and_plain_copies(context, other):
    pull, push = pair_of(context, PULL, PUSH)
    tensor = other.empty(100_000)
    tensor[:] = 8
    push.send_tensor(tensor)
    assert (pull.recv_tensor() == 8).all() and carrier_of(push).nbytes > 0


def test_an_array_that_dies_in_flight_is_kept(context):
    pull, push = pair_of(context, PULL, PUSH)
    for number in range(20):
        tensor = context.empty(100_000)
        tensor[:] = number
        push.send_tensor(tensor)
        del tensor
        gc.collect()
    for number in range(20):
        assert (pull.recv_tensor() == number).all()


def test_empty_over_tcp_is_a_tensor_like_any_other(context, monkeypatch):
    from transfer.transports import probe

    tensor = context.empty((10, 10_000), "int32")
    tensor[:] = 4
    monkeypatch.setenv("TRANSFER_LOCAL", "off")
    probe.forget()
    with KeepingContext(core=context.core) as plain:
        pull, push = pair_of(plain, PULL, PUSH)
        push.send_tensor(tensor)
        got = pull.recv_tensor()
        assert got.dtype == "int32" and (got == 4).all() and pull.peers()[0].transport == "tcp"
        mine = plain.empty((300, 300))
        mine[:] = 6
        push.send_tensor(mine).wait(5)  # a tracker, whatever carries it
        assert (pull.recv_tensor() == 6).all()
        small = plain.empty(5)
        assert small.shape == (5,)
        for socket in plain.kept:
            socket.close(0)


# --- limits, losses -------------------------------------------------------------------------------------


def test_a_payload_above_the_limit_ends_the_connection(context):
    pull, push = pair_of(context, PULL, PUSH, bound_options={"maxmsgsize": 100_000})
    monitor = pull.get_monitor()
    push.send(large(1, 90_000))
    assert pull.recv() == large(1, 90_000)
    push.send(large(2, 100_001))
    pull.rcvtimeo = 300
    with pytest.raises(transfer.Again):
        pull.recv()
    assert eventually(lambda: pull._links.state.counts.get("protocol:too_large"))
    assert any(event.reason == "too_large" for event in iter(lambda: monitor.recv(1), None))
    monitor.close()


def _is_stuck(push):
    if push.peers()[0].queued < 100:
        return False
    time.sleep(0.05)  # for the flusher
    return push.peers()[0].queued >= 100


def test_what_was_not_sent_goes_to_another_peer(context, other):
    push = context.socket(PUSH, sndbuf=4096)
    push.bind(TCP)
    first = other.socket(PULL, rcvbuf=4096)
    first.connect(push.last_endpoint)
    push.wait_for_peers(1, 10)
    tensor = context.empty(100_000, "uint8")
    tensor[:] = 9
    total = 0
    while not _is_stuck(push):  # until the kernel takes no more
        push.send(large(total, 70_000), transfer.DONTWAIT)
        total += 1
        assert total < 20_000
    tracker = push.send_tensor(tensor)
    (peer,) = push.peers()
    assert peer.queued > 50
    first.close(0)
    second = other.socket(PULL, rcvtimeo=10_000)
    second.connect(push.last_endpoint)
    numbers, tensors = [], 0
    while not tensors:
        parts = second.recv_multipart(copy=False)
        data = bytes(parts[0])
        if len(data) == 100_000:
            assert data == b"\x09" * 100_000
            tensors += 1
        else:
            assert data == large(data[0], 70_000)
            numbers.append(data[0])
    assert len(numbers) >= peer.queued - 1
    expected = [n % 256 for n in range(total)][-len(numbers) :]
    assert numbers == expected
    del parts
    gc.collect()
    tracker.wait(5)


def test_a_peer_that_comes_back_gets_shared_memory_again(context, other):
    pull = other.socket(PULL, rcvtimeo=10_000)
    pull.bind(TCP)
    endpoint = pull.last_endpoint
    push = context.socket(PUSH, reconnect_ivl=10)
    push.connect(endpoint)
    push.wait_for_peers(1, 10)
    for turn in range(3):
        push.send(large(turn))
        assert pull.recv() == large(turn) and push.peers()[0].transport == "local"
        pull.close(0)
        assert eventually(lambda: not push.peers())
        pull = other.socket(PULL, rcvtimeo=10_000)
        assert eventually(lambda new=pull: _binds(new, endpoint))
        push.wait_for_peers(1, 10)
    assert eventually(lambda: len(context.shared["local.carriers"]._living) == 1)


def _binds(socket, endpoint):
    try:
        socket.bind(endpoint)
    except transfer.AddressInUse:
        return False
    return True


def test_many_connections_come_and_go_and_leave_nothing(context, other):
    pull = other.socket(PULL, rcvtimeo=10_000)
    pull.bind(TCP)
    before = None
    for turn in range(15):
        push = context.socket(PUSH)
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        push.send_tensor(np.ones(100_000))
        assert pull.recv_tensor().sum() == 100_000
        push.close(1000)
        assert eventually(lambda: not pull.peers())
        gc.collect()
        found = len(os.listdir("/proc/self/fd")), mappings()
        if turn == 4:
            before = found
    assert eventually(lambda: (len(os.listdir("/proc/self/fd")), mappings()) <= before)


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_garbage_on_a_control_channel_ends_that_connection_only(context, other, side):
    pull = other.socket(PULL, rcvtimeo=5000)
    pull.bind(TCP)
    good, bad = (context.socket(PUSH) for _ in range(2))
    for push in (bad, good):
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        push.send(large(1))
        assert pull.recv() == large(1)
    victim = pull if side == "receiver" else bad
    speaker = carrier_of(bad) if side == "receiver" else carrier_of(pull, 0)
    speaker._control._socket.send(b"garbage")
    assert eventually(lambda: victim._links.state.counts.get("protocol:control_channel") == 1)
    for number in range(5):
        good.send(large(number))
        assert pull.recv() == large(number)
    # and the one that was ended comes back
    bad.wait_for_peers(1, 10)
    assert eventually(lambda: len(pull.peers()) == 2)


def test_a_forged_reference_ends_that_connection_only(context, other, core):
    pull = other.socket(PULL, rcvtimeo=5000)
    pull.bind(TCP)
    bad, good = (context.socket(PUSH) for _ in range(2))
    for push in (bad, good):
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
    for reference in [(5, 0, 4096, 100_000), (1, 0, 4096, 1 << 30), (1, 1, 0, 70_000)]:
        stream = next(iter(bad._links.state.peers.values())).stream
        stream.send([(BY_REFERENCE, 0, None, None, REFERENCE.pack(*reference))])
        stream.flush()
        good.send(large(3))
        assert pull.recv() == large(3)
        assert eventually(lambda: pull.poll(5) or _protocol_errors(pull)) == {"protocol:reference": 1}
        pull._links.state.counts.clear()
        assert eventually(lambda: len(bad.peers()) == 1 and len(pull.peers()) == 2)


def _protocol_errors(socket):
    return {word: count for word, count in socket._links.state.counts.items() if word.startswith("protocol:")}


def test_many_threads_send_tensors(context, other):
    pull = other.socket(PULL, rcvtimeo=20_000)
    pull.bind(TCP)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)

    def send(number):
        shared = context.empty(30_000)
        for turn in range(20):
            push.send_tensor(np.full(30_000, number * 100 + turn, "float32"))
            shared[:] = number * 100 + turn + 0.5
            push.send_tensor(shared).wait(20)

    threads = [Thread(send, number) for number in range(4)]
    got = []
    for _ in range(160):
        tensor = pull.recv_tensor()
        assert (tensor == tensor[0]).all()
        got.append(float(tensor[0]))
        del tensor
    for thread in threads:
        thread.finish()
    assert sorted(got) == sorted(n * 100 + t + half for n in range(4) for t in range(20) for half in (0, 0.5))


def test_context_manager_and_fork(context, other):
    """The child has copies of everything, and ends: nothing of it reaches the parent."""
    pull, push = other.socket(PULL, rcvtimeo=5000), context.socket(PUSH)
    pull.bind(TCP)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    tensor = context.empty(100_000)
    tensor[:] = 1
    tracker = push.send_tensor(tensor)
    push.send(large(3))
    shared, copied = pull.recv_tensor(), pull.recv(copy=False)
    child = os.fork()
    if not child:
        try:
            del shared, copied, tensor
            gc.collect()
            try:
                push.send(large(1))
            except transfer.ForkedError:
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not eventually(lambda: tracker.done, 0.3)
    for number in range(100):  # none of them lands in the slot that is in use
        push.send(large(number))
        assert pull.recv() == large(number)
    assert bytes(copied) == large(3) and (shared == 1).all()
    del shared
    gc.collect()
    tracker.wait(5)
