"""Memory that is sent while it is filled: only what is there goes to the wire, and nothing stops there."""

from __future__ import annotations

import importlib
import select
import threading

import numpy
import pytest

from tests.core.conftest import BOTH
from tests.core.raw_frames import CRC, plain, read, read_frame
from transfer.transports.errors import Again, Broken

carried = BOTH
SIZE = 3 << 20


@pytest.fixture
def core():
    """The twin has none: what is filled is sent when it is full."""
    return importlib.import_module("transfer.transports.core.native")


class Source:
    """Memory that holds wrong bytes until it is filled, step by step or by `finish`."""

    def __init__(self, steps: int = 8, nbytes: int = SIZE) -> None:
        from transfer.transports.core.native.filling import Filling

        self.data = numpy.random.default_rng(1).integers(0, 256, nbytes, "u1")
        self.memory = numpy.zeros(nbytes, "u1")
        self.ends = [nbytes * step // steps for step in range(1, steps + 1)]
        self.begin = self.finished = 0
        self.error: Exception | None = None
        self.filling = Filling(self.memory, self.finish)

    def step(self) -> int:
        begin, self.begin = self.begin, self.ends.pop(0)
        self.memory[begin : self.begin] = self.data[begin : self.begin]
        self.filling.advance(self.begin)
        return self.begin

    def finish(self, filling) -> None:
        self.finished += 1
        assert filling is self.filling
        while self.ends:
            if self.error is not None:
                raise self.error
            self.step()
        filling.advance(len(self.memory))


def silent(far) -> bool:
    pending = getattr(far, "pending", None)
    return not (pending and pending()) and not select.select([far], [], [], 0.05)[0]


def test_what_is_there_is_written(kit):
    stream, far = kit.raw()
    source = Source()
    assert stream.send([plain(source.filling)], hold=True) and not source.finished
    read(far, 34)
    assert silent(far)
    done = 0
    while source.ends:
        end = source.step()
        assert read(far, end - done) == source.data[done:end].tobytes()
        done = end
        assert silent(far)
    assert stream.queued == stream.queued_bytes == 0 and stream.sent_bytes == SIZE
    assert source.finished == 0


def test_messages_behind_it_wait(kit):
    stream, far = kit.raw()
    source, other = Source(), Source()
    informed = []
    stream.send([plain(b"before")])
    stream.send([plain(source.filling)], hold=True, released=informed.append)
    stream.send([plain(b"behind")])
    stream.send([plain(other.filling)], hold=True, released=informed.append)
    stream.send([plain(b"last")])
    assert read_frame(far).data == b"before"
    other.filling.complete()
    read(far, 34)
    assert silent(far) and informed == []
    thread = threading.Thread(target=source.filling.complete)
    thread.start()
    assert read(far, SIZE) == source.data.tobytes()
    assert read_frame(far).data == b"behind"
    assert read_frame(far).data == other.data.tobytes()
    assert read_frame(far).data == b"last"
    thread.join(10)
    stream.flush()
    kit.flusher.reap()
    assert informed == [None, None]


def test_to_two_peers(kit):
    """A slow one and a fast one."""
    ends = [kit.raw() for _ in range(2)]
    source = Source()
    for stream, _ in ends:
        stream.send([plain(source.filling)], hold=True)
    for _, far in ends:
        read(far, 34)
    first = source.step()
    assert read(ends[0][1], first) == source.data[:first].tobytes()
    source.filling.complete()
    for stream, far in ends:
        begin = first if far is ends[0][1] else 0
        thread = threading.Thread(target=stream.flush)
        thread.start()
        assert read(far, SIZE - begin) == source.data[begin:].tobytes()
        thread.join(10)


def test_whoever_needs_all_of_it_waits(kit):
    source = Source()
    assert bytes(source.filling) == source.data.tobytes() and source.finished == 1
    for options in ({}, {"hold": True, "flags": CRC}):
        stream, far = kit.raw()
        source = Source()
        got = []
        thread = threading.Thread(target=lambda far=far, got=got: got.append(read_frame(far).data))
        thread.start()
        flags = options.pop("flags", 0)
        stream.send([(flags, 0, None, None, source.filling)], **options)
        while not stream.flush():
            pass
        thread.join(10)
        assert got == [source.data.tobytes()] and source.finished == 1
    small = Source(nbytes=1000)
    stream, far = kit.raw()
    stream.send([plain(small.filling)], hold=True)
    assert read_frame(far).data == small.data.tobytes()


def test_unsent_messages_are_filled_first(kit):
    stream, far = kit.raw(buffer=4096)
    stream.send([plain(b"x" * (1 << 20))])  # the kernel is full
    source = Source()
    informed = []
    stream.send([plain(source.filling)], hold=True, released=informed.append)
    far.close()
    while stream.broken is None:
        stream.flush()
    [[frame]] = stream.take_unsent()
    assert bytes(frame[4]) == source.data.tobytes() and source.finished == 1
    assert [type(one) for one in informed] == [Broken]


def test_what_cannot_be_filled_ends_its_connection(kit):
    stream, far = kit.raw()
    source, other = Source(), Source()
    informed = []
    stream.send([plain(source.filling)], hold=True, released=informed.append)
    stream.send([plain(other.filling)], hold=True, released=informed.append)
    first = source.step()
    read(far, 34 + first)
    source.error = RuntimeError("the GPU is gone")
    with pytest.raises(RuntimeError, match="the GPU is gone"):
        source.filling.complete()
    assert isinstance(stream.broken, Broken) and "gone" in str(stream.broken.__cause__)
    try:
        assert far.recv(1) == b""
    except OSError:
        pass  # of TLS: no farewell came
    other.error = RuntimeError("gone, too")
    assert stream.take_unsent() == []
    assert [type(one) for one in informed] == [Broken, Broken]


def test_a_stream_that_closes(kit):
    stream, _ = kit.raw()
    source = Source()
    stream.send([plain(source.filling)], hold=True)
    source.step()
    stream.close()
    source.filling.complete()
    assert not source.ends


def test_a_peer_that_reads_slowly(kit):
    stream, far = kit.raw("tcp", buffer=8192)
    source = Source(steps=50)
    stream.send([plain(source.filling)], hold=True)
    thread = threading.Thread(target=source.filling.complete)
    thread.start()
    assert read_frame(far).data == source.data.tobytes()
    thread.join(10)
    assert not thread.is_alive()


class Sink:
    """Memory for the next payloads, and the reports while they come."""

    def __init__(self, error: Exception | None = None) -> None:
        self.memory = numpy.zeros(SIZE * 4, "u1")
        self.informed: list[int] = []
        self.error = error

    def __call__(self, meta, topic, nbytes):
        self.informed = []
        return self.memory[:nbytes]

    def landed(self, nbytes: int) -> None:
        self.informed.append(nbytes)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("a GPU")])
def test_a_sink_is_informed_what_has_come(kit, error):
    stream, far = kit.pair()
    pull = kit.puller(far)
    sink = Sink(error)
    data = numpy.random.default_rng(2).integers(0, 256, len(sink.memory), "u1")
    for nbytes in (len(data), 1 << 20, len(data)):
        thread = threading.Thread(target=send_all, args=(stream, data[:nbytes]))
        thread.start()
        _, [frame] = pull._recv_message(10_000, sink)
        thread.join(10)
        assert frame.data.tobytes() == data[:nbytes].tobytes()
        if error is None:
            assert sink.informed == sorted(set(sink.informed)) and sink.informed[-1] == nbytes
            assert len(sink.informed) == (3 if nbytes == len(data) else 1)
        else:
            assert len(sink.informed) == 1


def send_all(stream, data) -> None:
    assert stream.send([plain(data)], hold=True)
    while not stream.flush():
        pass


def test_a_call_that_ends_before_the_message(kit):
    """The rest is read into other memory, and no more is reported."""
    stream, far = kit.pair()
    pull = kit.puller(far)
    sink, source = Sink(), Source()
    stream.send([plain(source.filling)], hold=True)
    source.step()
    with pytest.raises(Again):
        pull._recv_message(50, sink)
    informed = list(sink.informed)
    thread = threading.Thread(target=source.filling.complete)
    thread.start()
    _, [frame] = pull._recv_message(10_000)
    thread.join(10)
    assert bytes(frame.data) == source.data.tobytes() and sink.informed == informed
