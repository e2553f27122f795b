"""Parts, frames, trackers and the things that can be made into messages."""

from __future__ import annotations

import array
import struct
import sys

import pytest

pytestmark = pytest.mark.timeout(30)


def _is_twin():
    from transfer.transports import core

    return core.IMPLEMENTATION == "pure"


@pytest.fixture
def pair(zmq, link):
    return link(zmq.PAIR, zmq.PAIR)


def test_multipart(zmq, pair):
    left, right = pair
    left.send_multipart([b"one", b"", b"three"])
    assert right.recv_multipart() == [b"one", b"", b"three"]
    left.send_multipart((b"a", bytearray(b"b"), memoryview(b"c")))
    assert right.recv_multipart() == [b"a", b"b", b"c"]


def test_part_by_part(zmq, pair):
    left, right = pair
    left.send(b"one", zmq.SNDMORE)
    left.send(b"two", flags=zmq.SNDMORE)
    left.send(b"three")
    left.send(b"alone")
    parts = []
    while True:
        parts.append(right.recv())
        if not right.getsockopt(zmq.RCVMORE):
            break
    assert parts == [b"one", b"two", b"three"]
    assert right.recv() == b"alone"
    assert not right.rcvmore


def test_rcvmore_is_a_number(zmq, pair):
    left, right = pair
    left.send_multipart([b"one", b"two"])
    right.recv()
    assert (repr(right.rcvmore), repr(right.RCVMORE)) == ("1", "1")
    right.recv()
    assert (repr(right.rcvmore), repr(right.RCVMORE)) == ("0", "0")


def test_recv_after_recv_multipart_of_mixed(zmq, pair):
    left, right = pair
    left.send_multipart([b"a", b"b"])
    left.send(b"c")
    assert right.recv() == b"a"
    assert right.rcvmore
    assert right.recv_multipart() == [b"b"]
    assert right.recv_multipart() == [b"c"]


def test_a_message_is_whole_or_not_at_all(zmq, pair):
    left, right = pair
    left.send(b"one", zmq.SNDMORE)
    assert right.poll(50) == 0
    left.send(b"two")
    assert right.recv_multipart() == [b"one", b"two"]


def test_buffers(zmq, pair):
    left, right = pair
    for value in (bytearray(b"abc"), memoryview(b"abc"), array.array("B", b"abc")):
        left.send(value)
        assert right.recv() == b"abc"
    left.send(array.array("i", [1, 2]))
    assert right.recv() == struct.pack("ii", 1, 2)


def test_empty(zmq, pair):
    left, right = pair
    left.send(b"")
    assert right.recv() == b""


@pytest.mark.parametrize("size", [1, 65535, 65536, 1_000_000, 5_000_000])
def test_sizes(zmq, pair, size):
    left, right = pair
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for copy in (True, False):
        left.send(message, copy=copy)
        assert right.recv() == message
    left.send(message)
    assert right.recv(copy=False).bytes == message


def test_strings(zmq, pair):
    left, right = pair
    left.send_string("äöü")
    assert right.recv_string() == "äöü"
    left.send_string("äöü", encoding="latin-1")
    assert right.recv_string(encoding="latin-1") == "äöü"
    left.send_unicode("old name")
    assert right.recv_unicode() == "old name"
    left.send_string("a", zmq.SNDMORE)
    left.send_string("b")
    assert right.recv_multipart() == [b"a", b"b"]


def test_json(zmq, pair):
    left, right = pair
    value = {"list": [1, 2.5, None, True], "text": "ä"}
    left.send_json(value)
    assert right.recv_json() == value
    left.send_json({"b": 1, "a": 2}, sort_keys=True)
    assert right.recv() == b'{"a": 2, "b": 1}'
    assert zmq.utils.jsonapi.loads(zmq.utils.jsonapi.dumps(value)) == value


def test_pyobj(zmq, pair, monkeypatch):
    monkeypatch.setenv("MOONCAKE_ALLOW_PICKLE", "1")
    left, right = pair
    left.send_pyobj({1, 2, 3})
    assert right.recv_pyobj() == {1, 2, 3}
    left.send_pyobj((1, "two"), protocol=2)
    assert right.recv_pyobj() == (1, "two")


def test_serialized(zmq, pair):
    left, right = pair
    left.send_serialized([1, 2, 3], lambda numbers: [b"%d" % number for number in numbers])
    assert right.recv_serialized(lambda parts: [int(part) for part in parts]) == [1, 2, 3]


def test_recv_into(zmq, pair):
    left, right = pair
    buffer = bytearray(10)
    left.send(b"abc")
    assert right.recv_into(buffer) == 3
    assert buffer[:3] == b"abc"
    left.send(b"abcdef")
    assert right.recv_into(buffer, nbytes=4) == 6
    assert buffer[:4] == b"abcd"
    numbers = array.array("i", [0, 0])
    left.send(array.array("i", [7, 8]))
    assert right.recv_into(numbers) == 8
    assert list(numbers) == [7, 8]
    with pytest.raises(zmq.Again):
        right.recv_into(buffer, flags=zmq.DONTWAIT)
    with pytest.raises((TypeError, ValueError, BufferError)):
        right.recv_into(b"read-only")
    with pytest.raises(ValueError):
        right.recv_into(buffer, nbytes=-1)
    left.send(b"kept")
    for unfit in (memoryview(buffer)[::2], b"read-only"):
        with pytest.raises((TypeError, ValueError, BufferError)):
            right.recv_into(unfit)
    assert right.recv() == b"kept"
    left.send(b"discarded")
    assert right.recv_into(memoryview(buffer)[:0]) == 9


def test_frames(zmq, pair, ours):
    left, right = pair
    left.send_multipart([b"one", b"two"])
    first, second = right.recv_multipart(copy=False)
    assert isinstance(first, zmq.Frame)
    assert (first.bytes, second.bytes) == (b"one", b"two")
    assert first.more and not second.more
    assert bytes(first) == b"one" and len(first) == 3
    assert bytes(first.buffer) == b"one"
    if not (ours and _is_twin() and sys.version_info < (3, 12)):  # Python code exports no buffers there
        assert memoryview(second).tobytes() == b"two"
    assert zmq.Message is zmq.Frame


def test_frames_are_sent(zmq, pair):
    left, right = pair
    left.send(zmq.Frame(b"made"))
    assert right.recv() == b"made"
    left.send_multipart([zmq.Frame(b"a"), b"b", zmq.Frame(b"c", track=True)])
    assert right.recv_multipart() == [b"a", b"b", b"c"]
    left.send_multipart([b"forward", b"me"])
    right.send_multipart(right.recv_multipart(copy=False), copy=False)
    assert left.recv_multipart() == [b"forward", b"me"]


def test_received_frames_are_writable(zmq, pair):
    left, right = pair
    for size in (3, 100_000):
        left.send(bytes(size))
        view = right.recv(copy=False).buffer
        view[0] = 7
        assert view[0] == 7


def test_how_frames_look(zmq):
    assert str(zmq.Frame(b"")) == "<zmq.Frame(b'')>"
    assert str(zmq.Frame(b"x" * 20)) == "<zmq.Frame(b'xxxxxxxxxxxx'...20B)>"
    assert str(zmq.Frame(b"x" * 2000)) == "<zmq.Frame(b'xxxxxxxxxxxx'...2kB)>"
    assert str(zmq.Frame(b"x" * 2_000_000)) == "<zmq.Frame(b'xxxxxxxxxxxx'...2MB)>"


def test_small_messages_are_copied_anyway(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.connect("tcp://127.0.0.1:1")
    tracker = push.send(b"small", copy=False, track=True)
    assert tracker is zmq._FINISHED_TRACKER and tracker.done
    memory = bytearray(b"small")
    push.send(memory, copy=False)
    memory.extend(b"free to change")
    push.close(0)


def test_trackers_of_frames(zmq):
    assert zmq.Frame(b"copied", track=True).tracker.done
    frame = zmq.Frame(b"shared", copy=False, track=True)
    watching = zmq.MessageTracker(frame)
    assert not frame.tracker.done and not watching.done
    with pytest.raises(zmq.NotDone):
        watching.wait(0.01)
    del frame
    watching.wait(5)
    assert watching.done
    with pytest.raises(ValueError):
        zmq.MessageTracker(zmq.Frame(b"untracked"))


def test_a_frame_without_tracker_cannot_be_tracked(zmq, pair):
    left, _ = pair
    with pytest.raises(ValueError):
        left.send(zmq.Frame(b"untracked"), copy=False, track=True)


def test_a_frame_is_sent_many_times(zmq, pair):
    left, right = pair
    frame = zmq.Frame(b"message" * 20_000, copy=False, track=True)
    for copy in (False, True, False):
        left.send(frame, copy=copy)
        assert right.recv() == b"message" * 20_000
    assert frame.bytes == b"message" * 20_000


def test_frame_of_text_is_refused(zmq):
    with pytest.raises(TypeError):
        zmq.Frame("text")
    assert zmq.Frame().bytes == b""
    assert len(zmq.Frame(bytearray(b"abc"))) == 3


def test_trackers(zmq, pair):
    left, right = pair
    big = b"x" * 1_000_000
    assert left.send(b"small") is None
    tracker = left.send(big, copy=False, track=True)
    assert isinstance(tracker, zmq.MessageTracker)
    right.recv()
    right.recv()
    tracker.wait(5)
    assert tracker.done
    frame = zmq.Frame(big, track=True)
    assert isinstance(frame.tracker, zmq.MessageTracker)
    tracker = left.send(frame, copy=False, track=True)
    del frame
    assert right.recv(copy=False).bytes == big
    tracker.wait(5)
    assert zmq.MessageTracker(tracker).done


def test_a_tracker_that_is_not_done(zmq, ctx):
    push = ctx.socket(zmq.PUSH)
    push.connect("tcp://127.0.0.1:1")
    tracker = push.send(bytearray(1_000_000), copy=False, track=True)
    assert not tracker.done
    with pytest.raises(zmq.NotDone):
        tracker.wait(0.01)
    with pytest.raises(zmq.NotDone):
        zmq.MessageTracker(tracker).wait(timeout=0.01)
    push.close(0)


def test_tracking_multipart(zmq, pair):
    left, right = pair
    tracker = left.send_multipart([b"a" * 100_000, b"b" * 100_000], copy=False, track=True)
    assert [len(part) for part in right.recv_multipart()] == [100_000, 100_000]
    tracker.wait(5)
    assert tracker.done


def test_z85(zmq):
    import importlib

    z85 = importlib.import_module(f"{zmq.__name__}.utils.z85")
    raw = bytes.fromhex("864FD26FB559F75B")
    assert z85.encode(raw) == b"HelloWorld"
    assert z85.decode(b"HelloWorld") == z85.decode("HelloWorld") == raw
    with pytest.raises(ValueError):
        z85.encode(b"abc")


def test_a_first_part_without_room_is_refused_and_none_is_lost(zmq, ctx, link):
    lonely = ctx.socket(zmq.PUSH)
    lonely.bind("tcp://127.0.0.1:*")
    with pytest.raises(zmq.Again):
        lonely.send(b"one", zmq.SNDMORE | zmq.NOBLOCK)
    pull = ctx.socket(zmq.PULL)
    pull.connect(lonely.last_endpoint.decode())
    assert lonely.poll(5000, zmq.POLLOUT)
    for part in (b"one", b"two"):
        lonely.send(part, zmq.SNDMORE | zmq.NOBLOCK)
    lonely.send(b"three", zmq.NOBLOCK)
    assert pull.recv_multipart() == [b"one", b"two", b"three"]


def test_memory_with_gaps_receives_nothing(zmq, pair):
    left, right = pair
    left.send(b"whole")
    with pytest.raises(BufferError):
        right.recv_into(memoryview(bytearray(10))[::2])
    assert right.recv() == b"whole"
