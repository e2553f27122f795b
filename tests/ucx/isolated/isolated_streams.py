"""Two streams in one process: the contract, bad peers, memory, waking."""

from __future__ import annotations

import gc
import os
import select
import threading
import time

import pytest

from tests.ucx.isolated.ends import kit, meet
from transfer.transports.core.wire import Flag, SocketType
from transfer.transports.errors import Broken, ProtocolError, TensorMismatch
from transfer.transports.sizes import LARGE
from transfer.transports.testing import carrying
from transfer.transports.testing.ends import plain, receive, until
from transfer.transports.ucx import driver
from transfer.transports.ucx.incoming import AHEAD
from transfer.transports.ucx.outgoing import BATCH, GRANT, PAYLOAD, WINDOW
from transfer.transports.ucx.packing import LONGEST, TAKEN, pack

#: UCX opens descriptors as it needs them, and its workers keep them; they are counted below
pytestmark = pytest.mark.keeps("UCX's own descriptors")

CONTRACT = [
    carrying.check_carries,
    carrying.check_copies_what_may_change,
    carrying.check_holds,
    carrying.check_releases_what_was_sent,
    carrying.check_ends,
    carrying.check_ends_without_callers,
    carrying.check_gives_back,
    carrying.check_gives_back_memory,
    carrying.check_subscriptions,
]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, monkeypatch):
    monkeypatch.setattr(carrying, "meet", meet)
    check(None)


def test_a_full_stream_takes_nothing_and_tells_when_there_is_room():
    with kit(send_high_water=8) as made:
        one, other = made.connect()
        room = threading.Event()
        one.on_writable = room.set
        sent = 0
        while one.send(plain(sent.to_bytes(4, "little") + bytes(LARGE))):
            sent += 1
            assert sent < 10_000, "the high-water mark stops nobody"
        assert one.full and one.queued == 8 and one.sent == sent
        assert one._window < 1 << 20 and len(one._ungranted) <= WINDOW
        for number in range(sent):
            assert receive(other)[0].bytes[:4] == number.to_bytes(4, "little")
        until(room.is_set, "the news of room")
        assert one.send(plain(b"room again"))
        assert receive(other)[0].bytes == b"room again"


def test_small_messages_share_a_ucx_message():
    with kit() as made:
        one, other = made.connect()
        for number in range(2000):
            assert one.send(plain(b"%d" % number), force=True)
        assert [receive(other)[0].bytes for _ in range(2000)] == [b"%d" % number for number in range(2000)]
        assert one._posted < 100


def test_control_frames_have_their_own_connection():
    with kit() as made:
        one, other = made.connect()
        assert one.send(plain(b"\x06", flags=int(Flag.CONTROL)), force=True)
        heard = made.control[1][1]
        until(lambda: heard, "the control frame")
        assert bytes(heard[0].data) == b"\x06" and heard[0].flags & Flag.CONTROL
        assert one.sent == 0 and other.receive() is None


def test_credits_tell_what_was_consumed():
    with kit(credits=True) as made:
        one, other = made.connect()
        for _ in range(3):
            one.send(plain(b"x"))
        for _ in range(3):
            receive(other)
        until(lambda: made.control[0][1], "a credit")
        frame = made.control[0][1][-1]
        until(lambda: bytes(made.control[0][1][-1].data)[1:2] == b"\3", "the credit for three")
        assert frame.flags & Flag.CONTROL


def test_nothing_is_taken_in_beyond_the_window_while_nobody_receives():
    with kit(send_high_water=0, send_high_water_bytes=0) as made:
        one, other = made.connect()
        for _ in range(300):
            one.send(plain(bytes(60_000)))
        for _ in range(200):
            one.receive()  # makes progress, for both directions
            with other._port as port, port.lock:
                port.worker.step()
        assert sum(size for size, _ in one._ungranted) == one._window < (1 << 20) + LONGEST
        assert one.queued > 200
        for _ in range(300):
            assert len(receive(other)[0]) == 60_000


def test_a_leaving_sender_has_everything_collected():
    with kit(send_high_water=0, send_high_water_bytes=0) as made:
        one, other = made.connect()
        for number in range(100):
            one.send(plain(number.to_bytes(4, "little") + bytes(50_000)))
        one.send(plain(bytes(3 << 20)))
        until(one.flush, "the peer to take in everything, though it does not receive")
        assert one.close() == 0
        for number in range(100):
            assert receive(other)[0].bytes[:4] == number.to_bytes(4, "little")
        assert len(receive(other)[0]) == 3 << 20


def test_close_tells_how_many_the_peer_did_not_take():
    with kit(send_high_water=0, send_high_water_bytes=0) as made:
        one, _ = made.connect()
        for _ in range(50):
            one.send(plain(bytes(1 << 20)))
        assert one.close() == 50


def test_a_sleeping_receiver_is_woken_by_the_descriptor():
    with kit() as made:
        one, other = made.connect()
        one.send(plain(b"first"))
        assert receive(other)[0].bytes == b"first"
        quiet = time.monotonic() + 10
        while other.receive() is None and select.select(other.wait_fds, [], [], 0)[0]:
            assert time.monotonic() < quiet, "the descriptor tells of nothing, on and on"
        for data in (b"second", bytes(1 << 20)):
            one.send(plain(data))
            deadline = time.monotonic() + 10
            while (message := other.receive()) is None:
                assert time.monotonic() < deadline
                # The sender's half of a rendezvous is the reactor's.
                assert select.select(other.wait_fds, [], [], 10)[0], "the descriptor does not tell"
            assert message[0].bytes == data


def test_progress_by_one_stream_wakes_the_receiver_of_another():
    with kit() as made:
        (one, other), (three, four) = made.connect(), made.connect()
        for a, b in ((one, other), (three, four)):
            a.send(plain(b"hello"))
            assert receive(b)[0].bytes == b"hello"
        woken = threading.Event()
        four.on_readable = woken.set
        three.send(plain(b"for four"))
        time.sleep(0.05)
        until(lambda: other.flush() and woken.is_set(), "the wake-up")  # which makes progress for all
        assert receive(four)[0].bytes == b"for four"


def test_idle_streams_make_no_progress_calls():
    with kit() as made:
        one, other = made.connect()
        one.send(plain(bytes(1 << 20)))
        assert len(receive(other)[0]) == 1 << 20
        until(one.flush, "all to be taken in")
        assert other.receive() is None and one.receive() is None
        before = time.process_time()
        time.sleep(2)
        assert time.process_time() - before < 0.02 * 2  # one core's percent, and what a busy machine adds


# -- into the caller's memory --------------------------------------------------------------------


def drive(one, other, sink):
    """What a receiving call does: receives until the message is there."""
    deadline = time.monotonic() + 10
    while (message := other.receive(sink)) is None:
        assert time.monotonic() < deadline
        select.select(other.wait_fds, [], [], 0.01)
    return message


def test_a_sink_gets_the_payload_where_it_wants_it():
    with kit() as made:
        one, other = made.connect()
        data = os.urandom(2 << 20)
        out = bytearray(2 << 20)
        one.send(plain(data))
        [frame] = drive(one, other, lambda meta, topic, nbytes: out)
        assert other.placed and frame.data is out and out == data
        one.send(plain(data))
        [frame] = receive(other)
        assert not other.placed and frame.bytes == data


def test_a_sink_that_refuses_leaves_the_message_unread():
    with kit() as made:
        one, other = made.connect()
        data = os.urandom(1 << 20)
        one.send(plain(data))

        def refuse(meta, topic, nbytes):
            raise TensorMismatch("no")

        with pytest.raises(TensorMismatch):
            drive(one, other, refuse)
        assert other.broken is None
        assert receive(other)[0].bytes == data


def test_memory_of_a_sink_is_left_alone_after_its_call():
    with kit() as made:
        one, other = made.connect()
        data = os.urandom(8 << 20)
        out = bytearray(8 << 20)
        one.send(plain(data))
        with one._port as port, port.lock:  # the sender cannot go on
            until(lambda: port.worker.step() or len(one._requests) == 2, "the announcement")
            deadline = time.monotonic() + 10
            while not other.sinking:
                port.worker.step() if other._unpacker.awaited is None else None
                assert other.receive(lambda *_: out) is None
                assert time.monotonic() < deadline
        other.leave_sink()
        assert other._arriving[0].memory is not out
        out[:] = bytes(len(out))
        assert receive(other)[0].bytes == data
        assert not any(out)


def test_what_others_completed_leaves_the_memory_of_a_sink_too():
    """The call ended at the moment when somebody else's progress completed the message."""
    with kit() as made:
        one, other = made.connect()
        data = os.urandom(1 << 20)
        out = bytearray(1 << 20)
        one.send(plain(data))
        message = drive(one, other, lambda *_: out)
        other._unpacker.messages.append(message)
        other._sunk = out
        assert other.sinking
        other.leave_sink()
        assert not other.sinking
        out[:] = bytes(len(out))
        [frame] = other.receive(lambda *_: pytest.fail("asked for what is here"))
        assert not other.placed and frame.bytes == data


def test_payloads_and_small_messages_stay_in_order():
    with kit() as made:
        one, other = made.connect()
        sent = [os.urandom(size) for size in (1 << 20, 10, 1 << 20, 70_000, 3, 1 << 20)]
        for data in sent:
            one.send(plain(data))
        got = []

        def received():
            with one._port as port, port.lock:
                port.worker.step()
            while (message := other.receive()) is not None:
                got.append(message[0].bytes)
            assert other._arriving_bytes <= AHEAD
            return len(got) == len(sent)

        until(received, "all messages")
        assert got == sent
        until(lambda: one.flush() or other.receive(), "the peer to hear that all were taken in")
        assert one._posted == other._taken and not one._ungranted


def test_what_was_not_taken_in_is_counted_while_others_are_under_way():
    """A batch that is here does not count before the payload in front of it."""
    with kit() as made:
        one, other = made.connect()
        for _ in range(3):
            one.send(plain(os.urandom(1 << 20)))
        with one._port as port, port.lock:  # the sender cannot go on
            deadline = time.monotonic() + 10
            while len(other._arriving) < 2:
                port.worker.step() if not other._arriving else None
                assert other.receive() is None
                assert time.monotonic() < deadline
            assert other._taken == 1 and other._arriving[0].behind >= 1
        assert one.close() == 3


# -- bad peers -------------------------------------------------------------------------------------


def say(stream, kind, data):
    """Something that no honest peer sends."""
    with stream._port, stream._port.lock:
        request = stream._endpoint.send(data, stream._to[kind])
    return request, data


def header(size):
    data = bytes(size) if size < LARGE else b""
    return TAKEN.pack(0) + pack((0, 0, None, None, data), int(SocketType.PAIR), 1, False, False, size)


def refused(one, other):
    """Makes progress on both sides; whether the receiver has refused what came."""
    with one._port as port, port.lock:
        port.worker.step()
    try:
        other.receive()  # what stood before the nonsense is good
    except ProtocolError:
        return True
    return False


FORGED = {
    "too short for a batch": [(BATCH, b"1234")],
    "too long for a batch": [(BATCH, bytes(LONGEST + 1))],
    "no frame": [(BATCH, TAKEN.pack(0) + b"x" * 100)],
    "a frame longer than its batch": [(BATCH, header(1000)[:-1])],
    "bytes behind the last frame": [(BATCH, header(10) + b"rest")],
    "a shorter payload than announced": [(BATCH, header(1 << 20)), (PAYLOAD, bytes(1 << 19))],
    "a longer payload than announced": [(BATCH, header(1 << 20)), (PAYLOAD, bytes(1 << 21))],
    "a batch in the place of a payload": [(BATCH, header(1 << 20)), (BATCH, header(10)), (PAYLOAD, b"x")],
    "a payload behind bytes": [(BATCH, header(1 << 20) + b"x")],
    "beyond maxmsgsize": [(BATCH, header(1 << 33))],
    "a grant for what was never sent": [(BATCH, TAKEN.pack(99))],
}


@pytest.mark.parametrize("said", FORGED.values(), ids=FORGED)
def test_what_makes_no_sense_ends_that_connection_only(said):
    with kit(max_message=1 << 32) as made:
        (one, other), (three, four) = made.connect(), made.connect()
        kept = [say(one, kind, data) for kind, data in said]

        until(lambda: refused(one, other), "the error")
        assert isinstance(other.broken, ProtocolError)
        with pytest.raises(ProtocolError):
            other.send(plain(b"x"))
        three.send(plain(b"others go on"))
        assert receive(four)[0].bytes == b"others go on"
        assert kept


def test_a_forged_grant_message_ends_the_connection():
    with kit() as made:
        one, other = made.connect()
        other.send(plain(b"x"))
        kept = [say(one, GRANT, b"short"), say(one, GRANT, TAKEN.pack(1 << 60))]
        until(lambda: other.flush() and other.broken, "the error")
        assert isinstance(other.broken, ProtocolError) and kept


def test_a_shorter_payload_shows_nobody_elses_memory():
    """The lease is not handed out when less arrives than was announced."""
    with kit() as made:
        one, other = made.connect()
        secret = made.pool.lease(1 << 20)
        memoryview(secret)[:] = b"S" * (1 << 20)
        del secret
        kept = [say(one, BATCH, header(1 << 20)), say(one, PAYLOAD, bytes(1 << 19))]
        until(lambda: refused(one, other), "the error")
        assert "announced" in str(other.broken)
        assert kept


def test_an_announced_payload_that_never_comes():
    with kit() as made:
        one, other = made.connect()
        kept = say(one, BATCH, header(1 << 20))
        until(lambda: not refused(one, other) and other._unpacker.awaited, "the announcement")
        one.close()
        until(lambda: other.broken, "the end")
        with pytest.raises(Broken):
            other.receive()
        assert kept


def test_late_messages_for_a_closed_stream_are_thrown_away():
    with kit() as made:
        one, other = made.connect()
        one.send(plain(b"never received"))
        port = other._port
        time.sleep(0.05)
        other.close()
        five, six = made.connect()
        with port, port.lock:
            port._sweep()
            found = [port.worker.find(tag) for tag in other._from]
        assert found == [None] * 3
        five.send(plain(b"later"))
        assert receive(six)[0].bytes == b"later"


# -- the end ---------------------------------------------------------------------------------------


def test_a_cancelled_request_is_an_error():
    with kit() as made:
        one, _ = made.connect()
        told = []
        data = bytes(4 << 20)
        assert one.send(plain(data), hold=True, released=told.append)
        [(request, _, _), (payload, _, _)] = (
            list(one._requests)[-2:] if len(one._requests) > 1 else [(None, 0, 0), one._requests[0]]
        )
        assert not payload.completed
        one.close()
        assert payload.completed
        assert isinstance(driver.failure(payload), Broken)
        assert len(told) == 1 and isinstance(told[0], Broken)
        del request


def test_held_memory_stays_exported_until_it_was_sent_or_the_stream_ended():
    with kit() as made:
        one, other = made.connect()
        data = bytearray(4 << 20)
        told = []
        one.send(plain(data), hold=True, released=told.append)
        with pytest.raises(BufferError):
            data.append(1)
        assert len(receive(other)[0]) == 4 << 20
        until(lambda: one.flush() and told, "the release")
        assert told == [None]
        gc.collect()
        data.append(1)


def test_descriptors_and_memory_stay_flat_over_connections():
    counts = []
    with kit() as made:
        for _ in range(30):
            counts.append(len(os.listdir("/proc/self/fd")))
            one, other = made.connect()
            one.send(plain(bytes(100_000)))
            receive(other)
            one.send(plain(b"left"))
            for stream in (one, other):
                made.reactor.unregister(stream.fd)
                stream.close()
                made.streams.remove(stream)
            made.watched.clear()
        assert counts[-1] <= counts[5] + 2, counts
        assert all(not around.own["ucx"].streams for around in made.around)
        assert all(not around.own["ucx"]._pending for around in made.around)
        assert made.pool.in_use == 0
