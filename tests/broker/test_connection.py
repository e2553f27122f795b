"""A connection of the broker over real sockets and a real loop, turn by turn in the test's own thread."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
import struct
import time
import zlib

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.stepped_hub import StepsLoop
from transfer.broker.net import connection_group
from transfer.broker.net.connection import LARGEST_FRAME, Connection
from transfer.broker.net.connection_group import ConnectionGroup
from transfer.broker.net.listener import LoopListener
from transfer.transports.core import Pool
from transfer.transports.errors import ProtocolError

HEAD = struct.Struct("<BI")
#: a frame in one piece, one whose payload comes in pieces, one that pauses the line, one that breaks it
WHOLE, PIECES, PAUSE, BAD, ENDS, FAILS = range(6)


class Peer(Connection):
    """Frames of a kind, a length and so many bytes; keeps what it was given, as it was given."""

    def __init__(self, lines, connection):
        self.got = []
        self.ends = []
        self.relieved_times = 0
        self._pieces = []
        super().__init__(lines, connection, "peer")

    def take_frames(self, data):
        at = 0
        while len(data) - at >= HEAD.size and not self.closed and not self.paused:
            kind, size = HEAD.unpack_from(data, at)
            begin = at + HEAD.size
            if kind == PIECES:
                self._pieces = []
                self.expect(size)
                if not size:
                    self.body_ended()
                    at = begin
                    continue
                return begin
            if len(data) < begin + size:
                break
            self.got.append(data[begin : begin + size])
            at = begin + size
            if kind == PAUSE:
                self.pause()
                self._loop.call_later(0.0005, self.resume)
            elif kind == BAD:
                raise ProtocolError("bad", "as the test wishes")
            elif kind == ENDS:
                self.close("a frame said so")
            elif kind == FAILS:
                raise KeyError("a mistake of ours")
        return at

    def body(self, data):
        self._pieces.append(data)

    def body_ended(self):
        self.got.append(self._pieces)

    def refuse(self, error):
        self.write(b"last words")
        self.close(str(error))

    def lost(self, reason):
        self.ends.append(reason)

    def on_drained(self):
        self.relieved_times += 1

    @property
    def frames(self):
        return [b"".join(one) if isinstance(one, list) else bytes(one) for one in self.got]


class Turns(StepsLoop):
    """A loop that is run turn by turn."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.pool = Pool()
        self.lines = ConnectionGroup(self.loop, self.pool)
        self.left = []

    def pair(self, kind=Peer, **sizes):
        """(the broker's end, the other one)"""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        for end in (ours, theirs):
            for option, size in sizes.items():
                end.setsockopt(socket.SOL_SOCKET, getattr(socket, option), size)
        line = kind(self.lines, ours)
        self.left.append((line, theirs))
        return line, theirs

    def close(self):
        for line, theirs in self.left:
            line.close("the test ends")
            theirs.close()
        self.turn()
        self.loop.close()
        self.pool.close()


@pytest.fixture
def turns():
    turns = Turns()
    yield turns
    turns.close()


def frame(kind, data):
    return HEAD.pack(kind, len(data)) + data


def send_all(turns, theirs, data):
    view = memoryview(data)
    while view:
        try:
            view = view[theirs.send(view) :]
        except BlockingIOError:
            turns.turn(0.0002)


def read_all(turns, theirs, nbytes):
    found = bytearray()
    deadline = time.monotonic() + 10
    while len(found) < nbytes:
        try:
            data = theirs.recv(1 << 16)
        except BlockingIOError:
            assert time.monotonic() < deadline
            turns.turn(0.0002)
            continue
        if not data:
            break
        found += data
    return bytes(found)


FRAMES = st.lists(st.tuples(st.sampled_from([WHOLE, PIECES, PAUSE]), st.binary(max_size=40)), max_size=12)


@given(FRAMES, st.lists(st.integers(1, 60), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_split_gives_the_same_frames(frames, cuts):
    turns = Turns()
    try:
        line, theirs = turns.pair()
        data = b"".join(frame(*one) for one in frames)
        at = 0
        for size in itertools.chain(cuts, itertools.repeat(len(data) + 1)):
            theirs.sendall(data[at : at + size])
            at += size
            turns.turn()
            if at >= len(data):
                break
        turns.until(lambda: len(line.got) == len(frames))
        assert line.frames == [data for _, data in frames]
        assert not line.closed
    finally:
        turns.close()


def test_a_burst_is_kept_in_order_while_it_is_paused(turns):
    line, theirs = turns.pair()
    frames = [
        (PAUSE if n % 97 == 0 else PIECES if n % 7 == 0 else WHOLE, b"%d" % n * 50) for n in range(5000)
    ]
    send_all(turns, theirs, b"".join(frame(*one) for one in frames))
    turns.until(lambda: len(line.got) == len(frames))
    assert line.frames == [data for _, data in frames]


def test_nothing_is_read_while_it_is_paused_twice(turns):
    line, theirs = turns.pair()
    line.pause()
    line.pause()
    theirs.sendall(frame(WHOLE, b"one"))
    line.resume()
    turns.turn(0.01)
    assert (line.got, line.paused) == ([], True)
    line.resume()
    turns.until(lambda: line.got)
    assert line.frames == [b"one"]


def test_bytes_that_are_held_never_change(turns):
    """The arena is used again and again: not where somebody has a view."""
    line, theirs = turns.pair()
    sums = []
    for n in range(300):
        data = n.to_bytes(4, "little") * (2000 + 37 * n)
        sums.append(zlib.crc32(data))
        send_all(turns, theirs, frame(PIECES if n % 3 else WHOLE, data))
    turns.until(lambda: len(line.got) == 300)
    assert [zlib.crc32(data) for data in line.frames] == sums


def test_a_tiny_send_buffer_loses_nothing(turns):
    line, theirs = turns.pair(SO_SNDBUF=1, SO_RCVBUF=1)
    parts = [bytes([n % 251]) * (n * 13 % 5000) for n in range(700)] + [b"x" * 600_000]
    for part in parts:
        line.write(memoryview(part) if len(part) % 2 else part)
    expected = b"".join(parts)
    assert line.queued > 600_000
    assert read_all(turns, theirs, len(expected)) == expected
    turns.until(lambda: line.relieved_times)
    assert line.queued == 0


def test_what_is_written_when_relieved_goes_out_too(turns):
    class Refills(Peer):
        def on_drained(self):
            super().on_drained()
            if self.relieved_times < 50:
                self.write(b"%04d" % self.relieved_times * 200_000)

    line, theirs = turns.pair(Refills)
    line.write(b"0000" * 200_000)
    expected = b"".join(b"%04d" % n * 200_000 for n in range(50))
    assert read_all(turns, theirs, len(expected)) == expected


def test_last_words_are_sent(turns):
    line, theirs = turns.pair()
    theirs.sendall(frame(WHOLE, b"good") + frame(BAD, b"bad") + frame(WHOLE, b"never"))
    turns.until(lambda: line.closed)
    assert read_all(turns, theirs, 100) == b"last words"
    assert line.frames == [b"good", b"bad"]
    assert line.ends == ["bad: as the test wishes"]


def test_a_frame_that_is_too_long_is_refused(turns):
    line, theirs = turns.pair()
    head = HEAD.pack(WHOLE, 2 * LARGEST_FRAME)
    try:
        send_all(turns, theirs, head + bytes(LARGEST_FRAME + (2 << 20)))
    except (BrokenPipeError, ConnectionResetError):
        pass
    turns.until(lambda: line.closed)
    assert line.got == []
    assert "size" in line.ends[0]


def test_closing_in_a_callback_ends_it_once(turns):
    line, theirs = turns.pair()
    theirs.sendall(frame(WHOLE, b"1") + frame(ENDS, b"2") + frame(WHOLE, b"3"))
    turns.until(lambda: line.closed)
    line.close("again")
    line.write(b"to nobody")
    line.pause()
    line.resume()
    turns.turn(0.01)
    assert (line.frames, line.ends, line.queued) == ([b"1", b"2"], ["a frame said so"], 0)


def test_a_mistake_of_ours_ends_one_connection_only(turns, caplog):
    line, theirs = turns.pair()
    other, others = turns.pair()
    theirs.sendall(frame(FAILS, b""))
    turns.until(lambda: line.closed)
    assert line.ends == ["the broker has failed"]
    assert "KeyError" in caplog.text
    others.sendall(frame(WHOLE, b"alive"))
    turns.until(lambda: other.got)
    assert other.frames == [b"alive"]


def test_a_mistake_while_it_writes_leaves_others_their_turn(turns, caplog):
    class Fails(Peer):
        def on_drained(self):
            raise KeyError("in on_drained")

    line, _ = turns.pair(Fails)
    other, others = turns.pair()
    line.write(b"a")
    other.write(b"b")
    assert read_all(turns, others, 1) == b"b"
    assert line.closed
    other.write(b"c")
    assert read_all(turns, others, 1) == b"c"
    assert "in on_drained" in caplog.text


@pytest.mark.parametrize("point", ["idle", "head", "frame", "payload", "queued", "paused"])
def test_a_peer_that_goes_is_noticed(turns, point):
    line, theirs = turns.pair()
    sent = {"head": b"\0", "frame": HEAD.pack(WHOLE, 9) + b"12", "payload": HEAD.pack(PIECES, 9) + b"12"}
    theirs.sendall(sent.get(point, b""))
    turns.turn(0.005)
    if point == "queued":
        for _ in range(64):
            line.write(bytes(100_000))
    if point == "paused":
        line.pause()
    theirs.close()
    if point == "paused":
        turns.turn(0.005)
        assert not line.closed
        line.resume()
    turns.until(lambda: line.closed)
    assert len(line.ends) == 1
    assert line.queued == 0


def test_the_descriptor_is_closed_once(turns):
    """A number that was closed is somebody else's at once: nobody may close it again."""
    line, theirs = turns.pair()
    number = line._socket.fileno()
    theirs.close()
    turns.until(lambda: line.closed)
    other = socket.socket()
    with other:
        assert other.fileno() == number, "the lowest free number"
        line.close("again")
        line.flush()
        turns.turn(0.005)
        assert other.fileno() == number
        assert other.getsockname() is not None


def test_idle_connections_cost_little(turns):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 6000), hard))
    try:
        before = _resident()
        pairs = [turns.pair() for _ in range(2000)]
        for _, theirs in pairs:
            theirs.send(frame(WHOLE, b"hello"))
        turns.until(lambda: all(line.got for line, _ in pairs))
        each = (_resident() - before) / len(pairs)
        print(f"{each:.0f} bytes for each idle connection, both ends")
        assert each < 20_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_front_that_fails_leaves_the_listener_alive(turns, caplog):
    taken = []

    def accepted(connection, peer):
        if not taken:
            taken.append(None)
            raise KeyError("a mistake of ours")
        taken.append(connection)

    listener = LoopListener(turns.loop, "127.0.0.1", 0, accepted)
    with socket.create_connection(("127.0.0.1", listener.port)) as first:
        turns.until(lambda: taken)
        assert first.recv(1) == b"", "it is ended"
        with socket.create_connection(("127.0.0.1", listener.port)):
            turns.until(lambda: len(taken) == 2)
            taken[1].close()
    listener.close()
    listener.close()
    assert "KeyError" in caplog.text


class Slow(Peer):
    """Says when it is given something, which takes it a second."""

    clock = 0.0

    def take_frames(self, data):
        self.heard_by.append(self)
        Slow.clock += 1.0
        return super().take_frames(data)


def test_all_else_has_its_turn_while_many_connections_have_something_to_read(turns, monkeypatch):
    monkeypatch.setattr(connection_group, "monotonic", lambda: Slow.clock)
    pairs = [turns.pair(Slow) for _ in range(4)]
    lines = [line for line, _ in pairs]
    heard = []
    for line, theirs in pairs:
        line.heard_by = heard
        theirs.sendall(frame(WHOLE, b"first"))
    heard_when_it_had_its_turn = []

    def all_else():
        heard_when_it_had_its_turn.append(len(heard))
        if len(heard) < len(pairs) + 1:
            turns.loop.call_soon(all_else)

    turns.loop.call_soon(all_else)
    turns.turn()
    pairs[lines.index(heard[0])][1].sendall(frame(WHOLE, b"second"))
    turns.until(lambda: len(heard) == len(pairs) + 1)
    assert set(heard[:-1]) == set(lines) and heard[-1] is heard[0]  # who has more waits for the others
    assert set(heard_when_it_had_its_turn) >= set(range(1, len(pairs) + 1))
