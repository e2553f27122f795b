"""What a lost peer was to have and nobody else gets: it is counted, and nothing of it is copied."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from tests.core.raw_frames import CONTROL, plain, read
from transfer.transports.core.wire import HEADER_SIZE
from transfer.transports.errors import Broken

#: bytes of one payload in a segment of its own
LARGE = 1 << 20
UNLIMITED = {"send_high_water": 0, "send_high_water_bytes": 0}


def peak() -> int:
    """Bytes of memory that this process has had at most since `forget_peak`."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def read_to_the_end(far: socket.socket) -> int:
    """How many bytes still come."""
    count = 0
    while data := far.recv(1 << 20):
        count += len(data)
    return count


def messages(seed: int) -> list[list[tuple[object, ...]]]:
    """Of all kinds: small ones, several parts, topics, large payloads, control frames between them."""
    chance = random.Random(seed)
    sent = []
    for _ in range(300):
        if chance.random() < 0.1:
            sent.append([plain(b"\x06", flags=CONTROL)])
            continue
        sizes = chance.choices((0, 10, 300, 5000, 65_535, 65_536, 90_000), k=chance.choice((1, 1, 2, 4)))
        sent.append([plain(bytes(size), topic=chance.choice((None, b"topic"))) for size in sizes])
    return sent


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_begun_or_counted(kit, seed):
    """Wherever the kernel had no more room: between messages, in a header, in a part."""
    stream, far = kit.raw(buffer=4096, **UNLIMITED)
    starts, at = [], 0
    for frames in messages(seed):
        assert stream.send(frames, force=bool(frames[0][0] & CONTROL))
        if not frames[0][0] & CONTROL:
            starts.append(at)
        at += sum(HEADER_SIZE + len(frame[2] or b"") + len(frame[4]) for frame in frames)
    some = random.Random(seed).randrange(at // 2)
    read(far, some)
    stream.flush()
    count = stream.drop_unsent()
    assert not stream.drop_unsent()
    stream.close()
    arrived = some + read_to_the_end(far)
    assert count == sum(start >= arrived for start in starts) > 0
    assert stream.sent == len(starts)


def test_what_is_dropped_is_not_copied_and_its_owner_is_told(kit):
    stream, _ = kit.raw(buffer=4096, **UNLIMITED)
    stream.send([plain(bytes(1_000_000))])
    data, told = bytearray(LARGE), []
    for _ in range(300):
        assert stream.send([plain(data)], hold=True, released=told.append)
    before = forget_peak()
    assert stream.drop_unsent() == 300
    stream.close()
    kit.flusher.reap()
    assert peak() - before < 100 * LARGE
    assert [type(error) for error in told] == [Broken] * 300
    data.append(1)


def test_a_stream_without_a_descriptor(kit):
    stream = kit.stream(-1)
    stream.send([plain(b"a")])
    stream.send([plain(b"b"), plain(b"c")])
    assert stream.drop_unsent() == 2
    stream.send([plain(b"d")])
    assert stream.drop_unsent() == 1
    assert stream.close() == 0


def test_many_payloads_of_one_piece_of_memory_are_taken_back(kit):
    """Each is copied, whichever copy let others in."""
    stream, _ = kit.raw(buffer=4096, **UNLIMITED)
    stream.send([plain(bytes(1_000_000))])
    data = bytearray(b"a" * (2 * LARGE))
    for number in range(60):
        assert stream.send([plain(memoryview(data)[: (80_000, 2 * LARGE)[number % 2]])], hold=True)
    taken = stream.take_unsent()
    data[:] = bytes(len(data))
    assert [bytes(message[0][4]) for message in taken] == [b"a" * 80_000, b"a" * (2 * LARGE)] * 30
    stream.close()
