"""inproc: by reference where that is safe, credits, limits, and what happens to messages at the end."""

from __future__ import annotations

import gc
import importlib.util
import struct
import threading
import time
import weakref

import pytest

from tests.sockets.conftest import core_module
from transfer.transports import core
from transfer.transports.address import parse
from transfer.transports.connect.connection import ConnectOptions
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.copies import unsent
from transfer.transports.core.wire import Control, Flag, SocketType
from transfer.transports.errors import AddressInUse, Broken, ProtocolError
from transfer.transports.handshake.identity import make_hello
from transfer.transports.inproc import InprocTransport, names_of
from transfer.transports.reactor import Reactor
from transfer.transports.testing.ends import Side, close_all, plain, until


@pytest.fixture(params=["pure", "native"])
def ends(request, monkeypatch):
    """On the queues of each core, although the process uses one of them."""
    used = core_module(request.param)
    monkeypatch.setattr(core, "InprocEnd", used.InprocEnd)
    monkeypatch.setattr(core, "Frame", used.Frame)
    spec = importlib.util.find_spec("transfer.transports.inproc_stream")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    one, other = module.pair(SocketType.PUSH, SocketType.PULL)
    assert isinstance(one, used.InprocEnd)
    yield one, other
    one.close()
    other.close()


def tensor(data, meta=b"m" * 48):
    return [(int(Flag.TENSOR), 0, b"name", meta, data)]


def test_bytes_go_by_reference(ends):
    one, other = ends
    data = b"x" * 100_000
    one.send(plain(data))
    assert other.receive()[0].data is data


def test_other_memory_is_copied_once(ends):
    one, other = ends
    data = bytearray(b"abc")
    one.send(plain(data))
    data.append(1)  # not exported any more
    arrived = other.receive()[0].data
    assert type(arrived) is bytes and arrived == b"abc"


@pytest.mark.parametrize("data", [b"abcd", bytearray(b"abcd"), memoryview(b"abcd")])
@pytest.mark.parametrize("hold", [True, False])
def test_a_tensor_arrives_in_memory_of_its_own(ends, data, hold):
    one, other = ends
    one.send(tensor(data), hold=hold)
    frame = other.receive()[0]
    frame.buffer[0] = 0
    assert bytes(data) == b"abcd"
    assert (frame.topic, frame.meta) == (b"name", b"m" * 48)
    assert frame.flags == Flag.TENSOR | Flag.TOPIC


def test_memory_that_is_held_is_exported_until_it_is_received(ends):
    one, other = ends
    data = bytearray(b"abc")
    released = []
    one.send(plain(data), hold=True, released=released.append)
    with pytest.raises(BufferError):
        data.append(1)
    assert not released
    assert other.receive()[0].data == b"abc"
    gc.collect()
    assert released == [None]
    data.append(1)


def test_held_memory_is_released_when_nobody_is_left(ends):
    one, other = ends
    released = []
    one.send(plain(bytearray(3)), hold=True, released=released.append)
    one.close()
    assert not released, "the other end may still receive it"
    other.close()
    assert len(released) == 1 and isinstance(released[0], Broken)


def test_empty_memory_of_any_shape(ends):
    numpy = pytest.importorskip("numpy")
    one, other = ends
    one.send(plain(numpy.zeros((0, 3))))
    one.send(plain(numpy.arange(6.0).reshape(2, 3)))
    assert other.receive()[0].bytes == b""
    assert other.receive()[0].bytes == numpy.arange(6.0).tobytes()


def test_limits_in_messages_and_bytes(ends):
    one, other = ends
    woken = []
    one.on_writable = lambda: woken.append(1)
    one.send_high_water = 2
    assert one.send(plain(b"1")) and one.send(plain(b"2"))
    assert not one.send(plain(b"3"))
    assert one.queued == 2 and one.queued_bytes == 2
    other.receive()
    assert woken == [1]
    assert one.send(plain(b"3"))
    one.send_high_water, one.send_high_water_bytes = 0, 10
    assert not one.send(plain(b"x" * 20))
    other.receive()
    other.receive()
    assert one.send(plain(b"x" * 20)), "one message is always taken"


def test_a_waiting_thread_is_woken(ends):
    one, other = ends
    told = []
    other.on_readable = lambda: told.append(1)
    one.send(plain(b"1"))
    one.send(plain(b"2"))
    assert told == [1, 1]
    one.close()
    assert told == [1, 1, 1]


def test_frames_have_the_numbers_of_their_messages(ends):
    one, other = ends
    for _ in range(3):
        one.send(plain(b"c", flags=int(Flag.CONTROL)), force=True)
        one.send(plain(b"first part", b"last part"))
    one.send([(0, 77, None, None, b"numbered")])
    messages = [other.receive() for _ in range(7)]
    numbers = [frames[-1].sequence for frames in messages if not frames[0].flags & Flag.CONTROL]
    assert numbers == [1, 2, 3, 77]
    assert [frame.more for frame in messages[1]] == [True, False]


def test_what_was_consumed_is_counted(ends):
    one, other = ends
    one.send(plain(b"a", b"bc"))
    assert (one.sent, one.sent_bytes, one.queued_bytes) == (1, 3, 3)
    taken = other.take()
    assert other.take() is taken, "until it is stored"
    assert (one.queued, one.queued_bytes, other.received) == (0, 0, 0)
    other.handed = None
    other.consume(taken)
    assert (other.received, other.received_bytes, other.consumed) == (1, 3, 1)
    assert min(one.last_sent_ns, other.last_received_ns) > 0


def test_credits(ends):
    one, other = ends
    other.credits = True
    told = []
    one.on_readable = lambda: told.append(1)
    for _ in range(3):
        one.send(plain(b"x"))
        other.receive()
    assert told == [1], "told once until it was looked at"
    frame = one.receive()[0]
    assert frame.flags == Flag.CONTROL
    assert struct.unpack("<BQ", frame.data) == (Control.CREDIT, 3)
    assert one.receive() is None


def test_a_message_that_is_too_large(ends):
    one, other = ends
    other.max_message = 10
    one.send(plain(b"x" * 11))
    with pytest.raises(ProtocolError) as caught:
        other.receive()
    assert caught.value.reason == "too_large"
    assert other.received == 0
    with pytest.raises(Broken):
        one.send(plain(b"x"))


def test_what_the_other_end_did_not_take_is_given_back(ends):
    one, other = ends
    released = []
    one.send(plain(b"taken"))
    one.send(plain(b"c", flags=int(Flag.CONTROL)), force=True)
    one.send(plain(bytearray(b"left"), b"more"), hold=True, released=released.append)
    assert one.take_unsent() == []
    assert other.receive()[0].data == b"taken"
    other.close()
    with pytest.raises(Broken):
        one.send(plain(b"x"))
    back = one.take_unsent()
    assert [[bytes(frame[4]) for frame in message] for message in back] == [[b"left", b"more"]]
    assert [frame[1] for frame in back[0]] == [0, 0], "another stream numbers it anew"
    assert one.queued == one.queued_bytes == 0
    assert len(released) == 1


def test_what_is_given_back_is_nobody_elses(ends):
    one, other = ends
    data = bytearray(b"a" * 100_000)

    def free(error):
        data[:] = bytes(len(data))

    one.send(plain(data, b"bytes"), hold=True, released=free)
    other.close()
    (message,) = one.take_unsent()
    data.append(1)
    assert len(data) == 100_001
    assert [bytes(frame[4]) for frame in message] == [b"a" * 100_000, b"bytes"]


def test_what_only_a_device_can_read_counts_as_sent():
    class OnDevice:
        """No host memory behind it."""

    first, last = plain(b"first"), plain(bytearray(b"last"))
    kept = unsent([first, plain(OnDevice()), last, plain(b"end")])
    assert kept == [plain(b"last"), plain(b"end")]


def test_messages_of_a_closed_sender_stay_with_the_receiver(ends):
    one, other = ends
    one.send(plain(b"last"))
    one.close()
    assert one.take_unsent() == []
    assert other.receive()[0].data == b"last"
    with pytest.raises(Broken):
        other.receive()


def test_names_belong_to_a_context():
    one, other = Reactor(), Reactor()
    side = Side()
    acceptors = [
        serve(
            reactor, InprocTransport(), parse("inproc://same"), hello=lambda: make_hello(SocketType.PULL),
            on_connected=side.connected.append, on_failed=side.refused,
        )
        for reactor in (one, other)
    ]  # fmt: skip
    with pytest.raises(AddressInUse):
        serve(
            one, InprocTransport(), parse("inproc://same"), hello=lambda: make_hello(SocketType.PULL),
            on_connected=side.connected.append, on_failed=side.refused,
        )  # fmt: skip
    for acceptor in acceptors:
        acceptor.close()
        acceptor.close()
    one.close()
    other.close()


def test_who_waits_in_vain_is_forgotten():
    reactor = Reactor()
    for _ in range(100):
        side = Side()
        connector = reach(
            reactor, InprocTransport(), parse("inproc://nobody"), hello=lambda: make_hello(SocketType.PUSH),
            on_connected=side.connected.append, on_failed=side.refused,
        )  # fmt: skip
        connector.close()
    names = names_of(reactor)
    done = threading.Event()
    reactor.call_soon(done.set)
    assert done.wait(10)
    assert not names._waiting
    reactor.close()


def test_names_go_with_their_context():
    reactor = Reactor()
    names = weakref.ref(names_of(reactor))
    assert names() is not None
    reactor.close()
    del reactor
    gc.collect()
    assert names() is None


def test_bound_after_many_wait():
    reactor = Reactor()
    here, there = Side(), Side()
    connectors = [
        reach(
            reactor, InprocTransport(), parse("inproc://late"), hello=lambda: make_hello(SocketType.PUSH),
            on_connected=here.connected.append, on_failed=here.refused,
        )
        for _ in range(10)
    ]  # fmt: skip
    until(lambda: len(names_of(reactor)._waiting.get("late", ())) == 10, "all of them to wait")
    acceptor = serve(
        reactor, InprocTransport(), parse("inproc://late"), hello=lambda: make_hello(SocketType.PULL),
        on_connected=there.connected.append, on_failed=there.refused,
    )  # fmt: skip
    until(lambda: len(here.connected) == len(there.connected) == 10, "all of them")
    assert not here.failed and not there.failed
    for each in (*connectors, acceptor):
        each.close()
    reactor.close()
    close_all(here, there)


def test_pauses_are_short_again_after_a_connection_that_stood():
    reactor = Reactor()
    here, there, pauses = Side(), Side(), []
    acceptor = serve(
        reactor, InprocTransport(), parse("inproc://well"), hello=lambda: make_hello(SocketType.PULL),
        on_connected=there.connected.append, on_failed=there.refused,
    )  # fmt: skip
    connector = reach(
        reactor, InprocTransport(), parse("inproc://well"), hello=lambda: make_hello(SocketType.PUSH),
        on_connected=here.connected.append, on_failed=here.refused, on_retried=pauses.append,
        options=ConnectOptions(reconnect_first=0.001, reconnect_limit=0.2),
    )  # fmt: skip
    for losses in range(1, 11):
        until(lambda: len(here.connected) == losses, "a connection")  # noqa: B023 - used at once
        if losses == 10:
            time.sleep(0.25)  # longer than the limit
        connector.lost()
    until(lambda: len(pauses) == 10, "the last retry")
    assert pauses[-1] <= 0.001
    connector.close()
    acceptor.close()
    reactor.close()
    close_all(here, there)
