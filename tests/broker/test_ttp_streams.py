"""Streams of TTP through the broker: gathered or passed on, refused, given up."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.broker.single_front import is_closed
from tests.broker.ttp_peers import SETTINGS, answered_later, serving, subscribed_to_all
from transfer.broker.protocols.ttp import (
    EOF,
    HEADER_SIZE,
    LZ4,
    WANTED,
    TtpKind,
    encode_head,
)


def test_a_gathered_stream_arrives_as_it_was_cut_and_is_one_message_to_others(tmp_path):
    frames = [
        (4, LZ4, 6, b"t", b'{"a":1}', b""),
        (5, LZ4, 6, b"", b'{"part":0}', b"one"),
        (5, 0x20, 6, b"t", b"", b""),
        (5, EOF | LZ4, 6, b"", b"", bytes(70_000)),
    ]
    with serving(tmp_path, 2, durable=True) as (broker, publisher, subscriber):
        recorder = subscribed_to_all(broker)
        subscriber.subscribe(b"t")
        for kind, flags, number, topic, meta, data in frames:
            publisher.send(kind, topic, meta, data, flags, number)
            publisher.send(3, b"else")  # other frames may stand between them
        found = []
        while len(found) < len(frames):
            frame = subscriber.read()
            found += [frame] if frame[3] != b"else" else []
        assert found == frames
        broker.until(lambda: ("t", b"one" + bytes(70_000)) in recorder.received)
        assert broker.front.shared.gathered == 0 and not broker.front.shared.used


def test_interleaved_streams_of_one_publisher_are_published_as_they_end(tmp_path):
    with serving(tmp_path, 1) as (broker, publisher):
        recorder = subscribed_to_all(broker)
        publisher.send(4, b"a", number=1, flags=WANTED)
        publisher.send(4, b"b", number=2)
        for number in (1, 2, 1, 2):
            publisher.send(5, data=b"%d" % number, number=number)
        publisher.send(5, flags=EOF, number=2)
        assert publisher.ask(5, flags=EOF, number=1)[:3] == (6, 0, 1)
        assert publisher.ask(4, b"empty", flags=EOF | WANTED, number=1)[:3] == (6, 0, 1)
        assert broker.call(lambda: recorder.received) == [("b", b"22"), ("a", b"11"), ("empty", b"")]


def test_a_stream_id_of_two_publishers_is_two_to_subscribers(tmp_path):
    with serving(tmp_path, 3) as (_broker, one, other, subscriber):
        subscriber.subscribe(b"*")
        one.send(4, b"a", b'{"nbytes":65536}', number=6)
        one.send(5, data=b"begun", number=6)
        assert subscriber.read()[:4] == (4, 0, 6, b"a") and subscriber.read()[2] == 6
        other.send(4, b"b", number=6)
        other.send(5, data=b"whole", flags=EOF, number=6)
        _, _, fresh, topic, _, _ = subscriber.read()
        assert fresh != 6 and topic == b"b"
        assert subscriber.read()[2::3] == (fresh, b"whole")
        one.send(5, data=bytes(65531), flags=EOF, number=6)
        rest = [subscriber.read()]
        while not rest[-1][1] & EOF:
            rest.append(subscriber.read())
        assert {frame[2] for frame in rest} == {6} and sum(len(frame[5]) for frame in rest) == 65531


def test_a_stream_whose_publisher_goes_or_gives_up_ends_with_an_error(tmp_path):
    with serving(tmp_path, 3) as (broker, going, giving, subscriber):
        subscriber.subscribe(b"t")
        for one in (going, giving):
            one.send(4, b"t", number=6)
            one.send(5, data=b"begun", number=6)
            assert one.alive()
        begun = [subscriber.read() for _ in range(4)]
        first, second = begun[0][2], begun[2][2]
        assert first == 6 != second
        going.socket.close()
        assert subscriber.refused() == (first, "broken_off")
        giving.send(8, number=6)
        assert subscriber.refused() == (second, "broken_off")
        giving.send(4, b"t", number=6)
        giving.send(4, b"t", number=6)  # gives up the one before
        giving.send(5, data=b"last", number=6, flags=EOF)
        assert subscriber.read()[0] == 4 and subscriber.refused() == (6, "broken_off")
        assert [subscriber.read()[0], subscriber.read()[5]] == [4, b"last"]
        broker.until(lambda: broker.front.connections == 2)
        assert broker.front.shared.gathered == 0 and not broker.front.shared.used
        assert subscriber.alive()


@pytest.mark.parametrize("begin", [(3, b"", 100_000), (4, b"", 5 << 20), (5, b"", 5 << 20)])
def test_a_large_message_whose_publisher_goes_ends_those_who_wait_for_the_rest(tmp_path, begin):
    kind, meta, size = begin
    with serving(tmp_path, 3) as (broker, going, subscriber, other):
        subscriber.subscribe(b"t")
        going.socket.sendall(encode_head(kind, b"t", meta, size))
        assert subscriber.exactly(HEADER_SIZE + 1 + len(meta))
        going.socket.close()
        assert is_closed(subscriber.socket)
        assert other.alive()
        broker.until(lambda: broker.front.connections == 1 and not broker.front.shared.used)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(5, b"", b"", b"data", 0)], "control"),
        ([(4, b"", b"", b"", 0)], "usage"),
        ([(4, b"\xff", b"", b"", 0)], "topic"),
        ([(4, b"t", b"", b"", 0), (5, b"", b"", bytes(2_000_001), 0)], "too_large"),
        ([(4, b"t", b"", b"", 0), (5, b"\xff", b"", b"x", 0)], "topic"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_once_and_the_rest_of_it_passed_over(tmp_path, frames, code):
    settings = replace(SETTINGS, max_data=2_000_000, max_memory=4_000_000)
    if code == "too_large":  # of the stream, not of a frame
        frames = [frames[0], *((5, b"", b"", bytes(1_500_000), 0) for _ in range(2))]
    with serving(tmp_path, 1, durable=True, settings=settings) as (broker, peer):
        for kind, topic, meta, data, flags in frames:
            peer.send(kind, topic, meta, data, flags, 6)
        assert peer.refused() == (6, code)
        if frames[0][0] == TtpKind.META and not frames[-1][4] & EOF:
            peer.send(5, data=bytes(70_000), number=6)
            peer.send(5, flags=EOF, number=6)
        assert peer.alive()
        assert broker.front.shared.gathered == 0 and not broker.front.shared.used
        peer.send(5, flags=EOF, number=6)
        assert peer.refused() == (6, "control")


def test_streams_are_limited_in_number_and_together(tmp_path):
    with serving(tmp_path, 2, durable=True) as (broker, one, other):
        for number in range(3):
            one.send(4, b"t", number=number)
        assert one.ask(4, b"t", number=3) and one.alive()
        one.send(5, data=bytes(90_000), number=0)
        assert one.alive()
        other.send(4, b"t", number=0)
        other.send(5, data=bytes(90_000), number=0)
        assert other.refused() == (0, "no_memory")
        assert broker.front.shared.gathered < 100_000
        one.send(5, flags=EOF, number=0)
        one.send(4, b"t", number=3)
        assert one.alive()


def test_many_empty_chunks_are_not_for_nothing(tmp_path):
    with serving(tmp_path, 1, durable=True) as (_broker, peer):
        peer.send(4, b"t", number=1)
        peer.socket.sendall(encode_head(5, stream_id=1) * 7000)
        assert peer.refused() == (1, "too_large")
        assert peer.alive()


def test_a_stream_that_stalls_is_given_up_though_its_publisher_lives(tmp_path):
    with serving(tmp_path, 1) as (broker, publisher):
        publisher.send(4, b"t", number=6)
        publisher.send(5, data=b"x", number=6)
        assert publisher.alive()
        broker.call(lambda: answered_later(broker, publisher, 61))
        broker.tick(61)
        assert publisher.refused() == (6, "stalled")
        assert broker.front.shared.gathered == 0 and broker.front.counters["stalled"] == 1
        assert publisher.alive()


def steps_of(call):
    """How many steps of the interpreter a call takes: its work, which no clock disturbs."""
    steps, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def steps_to_close(folder, connections, streams):
    """For each stream, of so many connections with so many streams each, which end together."""
    settings = replace(SETTINGS, max_streams=1000, max_memory=1 << 30)
    with serving(folder, connections, durable=True, settings=settings) as (broker, *peers):
        for peer in peers:
            peer.socket.sendall(b"".join(encode_head(4, b"t", b"", 1, 0, n) + b"x" for n in range(streams)))
            assert peer.alive()
        assert len(broker.hub._uploads) == connections * streams
        steps = broker.call(steps_of, broker.front.close)
        assert not broker.hub._uploads and not broker.front.shared.gathered
    return steps / (connections * streams)


def test_streams_whose_publishers_go_cost_as_much_each_however_many_there_are(tmp_path):
    few = steps_to_close(tmp_path / "few", 4, 20)
    assert steps_to_close(tmp_path / "connections", 60, 20) < 1.5 * few
    assert steps_to_close(tmp_path / "streams", 4, 160) < 1.5 * few


@pytest.mark.parametrize("durable", [True, False])
def test_an_open_stream_costs_memory_though_nothing_comes_of_it(tmp_path, durable):
    settings = replace(SETTINGS, max_streams=1000)
    with serving(tmp_path, 2, durable=durable, settings=settings) as (broker, one, other):
        one.socket.sendall(b"".join(encode_head(4, b"t", stream_id=n) for n in range(100)))
        assert one.refused()[1] == "no_memory"
        assert other.ask(4, b"t", number=1)[0] == TtpKind.ERROR
        one.socket.close()
        broker.until(lambda: not broker.front.shared.gathered)
        other.send(4, b"t", number=2)
        assert other.alive()
