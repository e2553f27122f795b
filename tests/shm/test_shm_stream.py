"""Both ends of a carrier without a stream: payloads, loans, invalid messages on the control channel."""

from __future__ import annotations

import array
import gc
import os
import socket
import struct
import threading

import pytest

from tests.conftest import descriptors
from tests.descriptors import no_descriptor_left
from tests.shm.conftest import End, eventually, mappings, message, sent
from transfer.transports.core.wire import BY_REFERENCE, REFERENCE
from transfer.transports.countdown import Countdown
from transfer.transports.errors import Broken, ProtocolError
from transfer.transports.shm import exported_blocks, shm_stream as module
from transfer.transports.shm.blocks import NAME, Blocks
from transfer.transports.shm.memory import make_memfd
from transfer.transports.shm.segments import PAGE

SIZE = 100_000
_SAID = struct.Struct("<BxxxIQQ")


def blocks_of(end: End, core) -> Blocks:
    return end.shared.setdefault(NAME, Blocks(core))


class ReleaseCallback:
    """A `released` that remembers."""

    def __init__(self):
        self.heard = []

    def __call__(self, error):
        self.heard.append(error)


def payload(core, region, text=b"tensor"):
    memoryview(region)[: len(text)] = text
    return region


# --- ordinary memory ----------------------------------------------------------------------------


def test_a_payload_arrives_and_its_slot_is_used_again(ends):
    sender, receiver = ends
    for number in range(200):
        data = bytes([number]) * SIZE
        reference, on_release = sent(sender, data)
        assert on_release is None and len(reference) == REFERENCE.size
        region = receiver.carrier.fetch(reference)
        assert bytes(memoryview(region)) == data
        del region
    assert sender.carrier.nbytes < 10 << 20 and not sender.carrier.refused


def test_small_frames_stay_where_they_are(ends):
    sender, _ = ends
    small, large = message(b"a" * 65535)[0], message(b"b" * 65536)[0]
    placed, _told, saved = sender.carrier.place([small, large, small], False, None, False)
    assert placed[0] is small and placed[2] is small and placed[1][0] == BY_REFERENCE
    assert saved == 65536 - 24
    sender.carrier.take_back(placed)


def test_the_receiver_may_write_and_outlive_everything(ends):
    sender, receiver = ends
    reference, _ = sent(sender, bytearray(SIZE))
    view = memoryview(receiver.carrier.fetch(reference))
    for end in ends:
        end.carrier.close()
        end.carrier.end()
    view[:5] = b"still"
    assert bytes(view[:6]) == b"still\0" and mappings()
    del view
    gc.collect()
    assert eventually(lambda: not mappings())


def test_a_receiver_that_keeps_everything_leaves_the_rest_to_the_connection(ends, caplog):
    sender, receiver = ends
    sender.carrier._arena.limit = 8 << 20
    kept = []
    while (placed := sender.carrier.place(message(bytes(1 << 20)), False, None, False)) is not None:
        kept.append(receiver.carrier.fetch(placed[0][0][4]))
    assert len(kept) == 8  # two segments of 4 MiB
    assert sender.carrier.refused == {"full": 1}
    assert sender.carrier.place(message(bytes(1 << 20)), False, None, False) is None
    assert sender.carrier.refused == {"full": 2}
    assert [record.message for record in caplog.records if "holds all 8 MiB" in record.message] != []
    assert len(caplog.records) == 1
    kept.pop(1)
    reference, _ = sent(sender, b"x" * (1 << 20))
    assert bytes(memoryview(receiver.carrier.fetch(reference))[:3]) == b"xxx"


def test_too_large_a_payload_is_left_to_the_connection(ends):
    sender, _ = ends
    sender.carrier._arena.limit = 1 << 20
    assert sender.carrier.place(message(bytes((1 << 20) + 1)), False, None, False) is None
    assert sender.carrier.refused == {"too_large": 1} and sender.carrier.nbytes == 0


def test_segments_of_other_sizes_are_given_up_and_unmapped_there(ends):
    sender, receiver = ends
    sender.carrier._arena.limit = 12 << 20
    for size in (100_000, 1 << 20, 3 << 20, 7 << 20, 100_000, 5 << 20):
        reference, _ = sent(sender, bytes(size))
        region = receiver.carrier.fetch(reference)
        assert len(region) == size
        del region
    assert sender.carrier.nbytes <= 12 << 20
    assert eventually(lambda: len(receiver.carrier._segments) == len(sender.carrier._arena._segments))


def test_what_was_never_sent_comes_back(ends):
    sender, _ = ends
    placed, _, _ = sender.carrier.place([*message(b"q" * SIZE), *message(b"small")], False, None, False)
    back = sender.carrier.take_back(placed)
    assert [frame[0] for frame in back] == [0, 0] and back[1][4] == b"small"
    assert bytes(memoryview(back[0][4])) == b"q" * SIZE
    del back
    gc.collect()
    assert all(s.slots.idle for s in sender.carrier._arena._segments.values())


def test_what_was_never_sent_when_it_was_closed_is_gone(ends, core):
    """Another thread closes the socket between the place and the queue."""
    sender, _ = ends
    on_release = ReleaseCallback()
    region = blocks_of(sender, core).allocate(SIZE)
    frames = [*message(bytes(SIZE)), *message(region)]
    placed, released, _ = sender.carrier.place(frames, True, on_release, False)
    sender.carrier.close()
    with pytest.raises(Broken):
        sender.carrier.take_back(placed)
    released(Broken("the queue"))
    assert len(on_release.heard) == 1 and not sender.carrier._lending


def test_nothing_is_made_behind_the_end(ends, caplog):
    """A thread that was about to send when another one closed."""
    sender, _ = ends
    before = descriptors()
    sender.carrier.close()
    assert sender.carrier.place(message(bytes(SIZE)), False, None, False) is None
    assert sender.carrier.nbytes == 0 and not sender.carrier.refused and not caplog.records
    assert descriptors().keys() <= before.keys()


def test_memory_that_is_not_flat_takes_no_place(ends):
    sender, _ = ends
    scattered = memoryview(bytearray(4 * SIZE))[::2]
    with pytest.raises(BufferError):
        sender.carrier.place([*message(bytes(SIZE)), *message(scattered)], False, None, False)
    assert all(s.slots.idle for s in sender.carrier._arena._segments.values())


def test_many_threads_place_and_nothing_is_mixed(ends):
    sender, receiver = ends
    failed = []
    fetching = threading.Lock()  # a socket receives in one thread at a time

    def work(number):
        for turn in range(60):
            data = bytes([number * 16 + turn % 16]) * (SIZE + number * 5000)
            reference, _ = sent(sender, data)
            with fetching:
                region = receiver.carrier.fetch(reference)
            if bytes(memoryview(region)) != data:
                failed.append((number, turn))
            del region

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_idle_segments_are_given_back_on_both_sides(ends):
    sender, receiver = ends
    reference, _ = sent(sender, bytes(SIZE))
    kept = receiver.carrier.fetch(reference)
    del kept
    for _ in range(2):
        sender.carrier.rest()
    assert sender.carrier.nbytes == 0
    assert eventually(lambda: not receiver.carrier._segments and not mappings())
    reference, _ = sent(sender, b"x" * SIZE)
    assert bytes(memoryview(receiver.carrier.fetch(reference))[:3]) == b"xxx"


def test_a_closed_receiver_keeps_only_what_is_seen(ends, core):
    """One view of a block does not keep the segments and the other blocks."""
    sender, receiver = ends
    blocks = blocks_of(sender, core)
    regions = [blocks.allocate(SIZE) for _ in range(2)]
    seen = receiver.carrier.fetch(sent(sender, regions[0], hold=True)[0])
    unread, _ = sent(sender, regions[1], hold=True)
    receiver.carrier.fetch(sent(sender, bytes(SIZE))[0])
    before = mappings()
    receiver.carrier.close()
    assert not receiver.carrier._segments and not receiver.carrier._blocks
    assert mappings() < before
    with pytest.raises(Broken):
        receiver.carrier.fetch(unread)
    assert bytes(memoryview(seen)[:1]) == b"\0"


def test_a_context_that_is_full_leaves_the_rest_to_the_connection(ends, caplog):
    sender, receiver = ends
    sender.shared["local.carriers"].budget.limit = 5 << 20
    kept = []
    while (placed := sender.carrier.place(message(bytes(1 << 20)), False, None, False)) is not None:
        kept.append(receiver.carrier.fetch(placed[0][0][4]))
    assert len(kept) == 4 and sender.carrier.refused == {"crowded": 1}
    assert ["all connections of the context" in record.message for record in caplog.records] == [True]
    sender.carrier.close()
    assert sender.shared["local.carriers"].budget.total == 0


# --- memory of blocks ---------------------------------------------------------------------------


def test_a_block_is_shared_until_the_receiver_lets_go(ends, core):
    sender, receiver = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    on_release = ReleaseCallback()
    reference, released = sent(sender, region, hold=True, released=on_release)
    released(None)  # the connection has written it
    seen = receiver.carrier.fetch(reference)
    memoryview(seen)[:3] = b"TEN"
    assert bytes(memoryview(region)[:6]) == b"TENsor" and not on_release.heard
    view = memoryview(seen)[10:]
    del seen
    gc.collect()
    assert not on_release.heard
    del view
    gc.collect()
    assert eventually(lambda: on_release.heard == [None])
    assert not sender.carrier.refused and sender.carrier.nbytes == 0


def test_several_receivers_write_to_their_own(ends, core):
    sender, receiver = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    one, other = (
        receiver.carrier.fetch(sent(sender, region, hold=True, released=ReleaseCallback(), several=True)[0])
        for _ in range(2)
    )
    memoryview(one)[:3] = b"one"
    assert bytes(memoryview(other)[:6]) == bytes(memoryview(region)[:6]) == b"tensor"
    assert bytes(memoryview(one)[:6]) == b"onesor"


def test_memory_that_a_receiver_may_write_is_copied_for_the_next(ends, core):
    sender, receiver = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    shared = receiver.carrier.fetch(sent(sender, region, hold=True)[0])
    copied = receiver.carrier.fetch(sent(sender, region, hold=True)[0])
    memoryview(shared)[:3] = b"XYZ"
    assert bytes(memoryview(copied)[:6]) == b"tensor"
    assert sender.carrier.nbytes > 0


def test_parts_of_one_block_go_their_own_ways(ends, core):
    sender, receiver = ends
    region = blocks_of(sender, core).allocate(4 * SIZE)
    whole = memoryview(region)
    parts = [whole[n * SIZE : (n + 1) * SIZE] for n in range(4)]
    for number, part in enumerate(parts):
        part[:1] = bytes([number])
    seen = [receiver.carrier.fetch(sent(sender, part, hold=True)[0]) for part in parts]
    assert [memoryview(each)[0] for each in seen] == [0, 1, 2, 3] and sender.carrier.nbytes == 0
    assert len(receiver.carrier._blocks) == 1


def test_without_hold_a_block_is_copied(ends, core):
    sender, receiver = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    reference, _ = sent(sender, region)
    memoryview(region)[:6] = b"second"
    assert bytes(memoryview(receiver.carrier.fetch(reference))[:6]) == b"tensor"


def test_the_end_of_a_message_is_told_after_its_last_part(ends, core):
    sender, receiver = ends
    blocks = blocks_of(sender, core)
    regions = [blocks.allocate(SIZE) for _ in range(2)]
    on_release = ReleaseCallback()
    frames = [*message(regions[0]), *message(b"small"), *message(regions[1]), *message(bytes(SIZE))]
    placed, released, _ = sender.carrier.place(frames, True, on_release, False)
    seen = [receiver.carrier.fetch(frame[4]) for frame in placed if frame[0] & BY_REFERENCE]
    seen.pop(0)
    gc.collect()
    assert eventually(lambda: len(sender.carrier._lending.numbers()) == 1) and not on_release.heard
    seen.clear()
    gc.collect()
    assert eventually(lambda: not sender.carrier._lending) and not on_release.heard
    released(None)
    assert on_release.heard == [None]


def test_the_first_error_of_a_message_counts_and_is_told_once():
    on_release = ReleaseCallback()
    parts = Countdown(on_release, 3)
    error = Broken("first")
    parts.ended(error)
    parts.ended(Broken("second"))
    parts.ended(None)
    assert on_release.heard == [error]


def test_a_message_that_finds_no_place_is_the_connections_business_alone(ends, core):
    """The loan that was made for its first part is taken back, and no callback comes twice."""
    sender, _ = ends
    sender.carrier._arena.limit = 0
    region = blocks_of(sender, core).allocate(SIZE)
    on_release = ReleaseCallback()
    frames = [*message(region), *message(bytes(SIZE))]
    assert sender.carrier.place(frames, True, on_release, False) is None
    assert not on_release.heard and not sender.carrier._lending
    assert not sender.shared[NAME]._blocks[0].loans


def test_a_loan_that_was_never_sent_comes_back(ends, core):
    """As a copy: who hears that it was not sent may change his memory."""
    sender, _ = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    on_release, said = ReleaseCallback(), bytes(region)
    placed, released, _ = sender.carrier.place(message(region), True, on_release, False)
    back = sender.carrier.take_back(placed)
    released(Broken("the queue"))
    memoryview(region)[:] = bytes(SIZE)
    assert back[0][4] == said != bytes(SIZE)
    assert len(on_release.heard) == 1 and isinstance(on_release.heard[0], Broken)


def test_loans_end_when_the_peer_is_gone(ends, core):
    sender, receiver = ends
    region = blocks_of(sender, core).allocate(SIZE)
    on_release = ReleaseCallback()
    sent(sender, region, hold=True, released=on_release)[1](None)
    receiver.carrier.end()
    assert not eventually(lambda: on_release.heard, 0.1), "what it never saw may still go to another peer"
    sender.carrier.close()
    assert eventually(lambda: on_release.heard == [None])


def test_a_receiver_without_its_context_still_holds_what_it_sees(ends, core):
    """Else the sender would write to memory that somebody looks at."""
    sender, receiver = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    on_release = ReleaseCallback()
    reference, released = sent(sender, region, hold=True, released=on_release)
    released(None)
    seen = receiver.carrier.fetch(reference)
    receiver.carrier.close()
    receiver.carrier.end()
    assert not eventually(lambda: on_release.heard, 0.3)
    assert bytes(memoryview(seen)[:6]) == b"tensor"
    del seen
    gc.collect()
    assert eventually(lambda: on_release.heard == [None])


def test_a_sender_without_its_context_says_that_the_memory_is_still_seen(ends, core):
    sender, receiver = ends
    region = payload(core, blocks_of(sender, core).allocate(SIZE))
    on_release = ReleaseCallback()
    reference, released = sent(sender, region, hold=True, released=on_release)
    released(None)
    seen = receiver.carrier.fetch(reference)
    sender.carrier.end()
    assert len(on_release.heard) == 1 and isinstance(on_release.heard[0], Broken)
    assert bytes(memoryview(seen)[:6]) == b"tensor"


def test_views_that_die_in_a_forked_child_are_not_given_back(ends, core):
    sender, receiver = ends
    on_release = ReleaseCallback()
    region = blocks_of(sender, core).allocate(SIZE)
    reference, released = sent(sender, region, hold=True, released=on_release)
    released(None)
    seen = [receiver.carrier.fetch(reference), receiver.carrier.fetch(sent(sender, bytes(SIZE))[0])]
    child = os.fork()
    if not child:
        seen.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert not eventually(lambda: on_release.heard, 0.3)
    assert not all(s.slots.idle for s in sender.carrier._arena._segments.values())
    seen.clear()
    gc.collect()
    assert eventually(lambda: on_release.heard == [None])


def test_more_blocks_than_descriptors_are_announced_in_turn(ends, core, monkeypatch):
    monkeypatch.setattr(exported_blocks, "MOST_BLOCKS", 4)
    sender, receiver = ends
    blocks = blocks_of(sender, core)
    regions = [payload(core, blocks.allocate(SIZE), b"%6d" % n) for n in range(10)]
    for turn in range(2):
        for number, region in enumerate(regions):
            seen = receiver.carrier.fetch(sent(sender, region, hold=True)[0])
            assert bytes(memoryview(seen)[:6]) == b"%6d" % number, turn
            del seen
            gc.collect()
            assert eventually(lambda: not sender.carrier._lending)
    assert sender.carrier.nbytes == 0
    assert eventually(lambda: len(receiver.carrier._blocks) <= 4)
    kept = [receiver.carrier.fetch(sent(sender, region, hold=True)[0]) for region in regions]
    assert sender.carrier.nbytes > 0  # the fifth had to be copied
    assert [bytes(memoryview(each)[:6]) for each in kept] == [b"%6d" % n for n in range(10)]


def test_a_block_that_is_given_up_is_unmapped_by_the_receiver(ends, core, monkeypatch):
    monkeypatch.setattr("transfer.transports.shm.blocks.KEPT", 0)
    sender, receiver = ends
    before = descriptors()
    region = blocks_of(sender, core).allocate(SIZE)
    del_me = receiver.carrier.fetch(sent(sender, region, hold=True)[0])
    assert len(receiver.carrier._blocks) == 1
    del del_me, region
    gc.collect()
    assert eventually(lambda: not receiver.carrier._blocks and not mappings())
    assert eventually(lambda: descriptors().keys() == before.keys())


def test_what_is_given_back_to_a_peer_that_does_not_read_is_said_later(ends, core, monkeypatch):
    sender, receiver = ends
    monkeypatch.setattr(sender.carrier, "_ready", lambda events: None)
    sender.reactor.unregister(sender.carrier._control.fd)
    blocks = blocks_of(sender, core)
    region = blocks.allocate(64 * 65536)
    on_release = ReleaseCallback()
    count = 0
    while not receiver.carrier._control.waiting:
        for number in range(64):
            part = memoryview(region)[number * 65536 : (number + 1) * 65536]
            with sender.carrier._lock:  # a new share, though the last one was not heard to be over
                for block in blocks._blocks:
                    block.loans.clear()
            monkeypatch.setattr(blocks, "give_back", lambda loan: None)
            reference, released = sent(sender, part, hold=True, released=on_release)
            released(None)
            receiver.carrier.fetch(reference)
            count += 1
        assert count < 10_000
    sender.carrier._pump()
    assert eventually(lambda: sender.carrier._pump() or len(on_release.heard) == count)
    assert set(on_release.heard) == {None}


# --- what a bad peer says -------------------------------------------------------------------------


def say(end, data, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    end.control.sendmsg([data], rights)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 1),
        (b"x", 0),
        (b"x" * 25, 0),
        (b"x" * 5000, 0),
        (_SAID.pack(0, 1, 1, 1), 0),
        (_SAID.pack(13, 1, 1, 1), 0),
        (_SAID.pack(11, 1, 1, 1), 1),
        (_SAID.pack(11, 1, 1, 1) + bytes(8), 0),
        (_SAID.pack(12, 1, 1, 1) + bytes(8), 0),
        (_SAID.pack(12, 1, 1, 1) + bytes(7), 1),
        (_SAID.pack(12, 1, 1, 1) + bytes(8), 2),
        (_SAID.pack(12, 1, 1, 1) + bytes(8 * 33), 33),
        (_SAID.pack(6, 1, 1, 1) + bytes(144), 0),
        (_SAID.pack(7, 1, 1, 1), 0),
        (_SAID.pack(7, 1, 1, 1) + bytes(143), 0),
        (_SAID.pack(7, 1, 1, 1) + bytes(144), 0),
        (_SAID.pack(8, 1, 1, 1), 1),
        (_SAID.pack(1, 1, PAGE * 2, PAGE), 0),
        (_SAID.pack(1, 1, PAGE * 2, PAGE), 2),
        (_SAID.pack(3, 1, PAGE, 0), 0),
        (_SAID.pack(4, 1, 1, 0), 1),
        (_SAID.pack(2, 1, 0, 0), 1),
        (_SAID.pack(5, 1, 0, 0), 4),
    ],
    ids=lambda value: str(value)[:60].replace("\\", ""),
)
def test_garbage_on_the_control_channel_is_an_error_of_that_connection(ends, data, count):
    bad, good = ends
    failed = []
    good.carrier.watch(failed.append)
    before = len(descriptors())
    fds = [make_memfd(PAGE * 2) for _ in range(count)]
    say(bad, data or b"x", fds)
    for fd in fds:
        os.close(fd)
    assert eventually(lambda: failed)
    assert isinstance(failed[0], ProtocolError) and failed[0].reason == "control_channel"
    assert eventually(lambda: len(descriptors()) <= before) and not mappings()
    later = []
    good.carrier.watch(later.append)
    assert later == failed[:1]


@pytest.mark.parametrize("kind", [1, 3])
def test_an_announcement_of_no_memory_is_refused(ends, kind):
    bad, good = ends
    failed = []
    good.carrier.watch(failed.append)
    fd = os.open("/dev/null", os.O_RDWR)
    say(bad, _SAID.pack(kind, 7, PAGE * 2, PAGE), [fd])
    os.close(fd)
    assert eventually(lambda: failed) and failed[0].reason == "descriptor"
    assert not mappings()


@pytest.mark.parametrize("kind", [1, 3])
def test_an_announcement_twice_is_refused(ends, kind):
    bad, good = ends
    failed = []
    good.carrier.watch(failed.append)
    for _ in range(2):
        fd = make_memfd(PAGE * 2)
        say(bad, _SAID.pack(kind, 7, PAGE * 2, PAGE), [fd])
        os.close(fd)
    assert eventually(lambda: failed) and failed[0].reason == "control_channel"


def test_a_flood_of_announcements_is_refused(ends, monkeypatch):
    monkeypatch.setattr(module, "MOST_SEGMENTS", 5)
    bad, good = ends
    failed = []
    good.carrier.watch(failed.append)
    for number in range(6):
        fd = make_memfd(PAGE * 2)
        say(bad, _SAID.pack(1, number, PAGE * 2, PAGE), [fd])
        os.close(fd)
    assert eventually(lambda: failed) and failed[0].reason == "control_channel"


def test_what_is_let_go_and_was_never_there_does_no_harm(ends):
    bad, good = ends
    failed = []
    good.carrier.watch(failed.append)
    for kind in (2, 4, 5):
        say(bad, _SAID.pack(kind, 4242, 4242, 0))
    reference, _ = sent(bad, bytes(SIZE))
    assert len(good.carrier.fetch(reference)) == SIZE and not failed


@pytest.mark.parametrize(
    "reference",
    [
        (99, 0, PAGE, 10),
        (1, 0, 0, 10),
        (1, 0, PAGE + 1, 10),
        (1, 0, PAGE, 0),
        (1, 0, PAGE, 1 << 40),
        (1, 0, 1 << 60, 10),
        (99, 1, 0, 10),
        (99, 2, 0, 10),
        (1, 3, PAGE, 10),
        (1, 255, PAGE, 10),
        (1, 1 << 8, PAGE, 10),
        (1, 5 << 8 | 1, 0, 1 << 40),
        (1, 5 << 8 | 2, 1 << 60, 10),
    ],
)
def test_a_reference_to_nothing_is_refused(ends, core, reference):
    bad, good = ends
    segment, _ = sent(bad, bytes(SIZE))
    region = blocks_of(bad, core).allocate(SIZE)
    block, _ = sent(bad, region, hold=True)
    assert len(good.carrier.fetch(segment)) == len(good.carrier.fetch(block)) == SIZE
    with pytest.raises(ProtocolError) as caught:
        good.carrier.fetch(REFERENCE.pack(*reference))
    assert caught.value.reason == "reference"


def test_a_reference_to_what_is_in_use_is_refused(ends, core):
    bad, good = ends
    region = blocks_of(bad, core).allocate(SIZE)
    for reference in (sent(bad, bytes(SIZE))[0], sent(bad, region, hold=True)[0]):
        seen = good.carrier.fetch(reference)
        with pytest.raises(ProtocolError) as caught:
            good.carrier.fetch(reference)
        assert caught.value.reason == "reference"
        del seen


def test_a_peer_that_frees_what_it_was_not_given_harms_no_process(ends):
    sender, receiver = ends
    placed, _, _ = sender.carrier.place(message(b"z" * SIZE), False, None, False)
    receiver.carrier._pump()
    receiver.carrier._segments[1]._slots.free(0)
    back = sender.carrier.take_back(placed)
    assert bytes(memoryview(back[0][4])) == b"z" * SIZE


@pytest.mark.parametrize("core", ["native"], indirect=True)  # the twin maps by Python, which copies each
@pytest.mark.parametrize("kind", [1, 3])
def test_a_descriptor_for_which_there_is_no_room_does_not_end_the_connection(ends, kind):
    """Two segments, or blocks, are announced while the process has no descriptor left."""
    sender, receiver = ends
    failed = []
    receiver.carrier.watch(failed.append)
    fds = [make_memfd(PAGE * 2) for _ in range(2)]
    known = receiver.carrier._segments if kind == 1 else receiver.carrier._blocks
    with no_descriptor_left():
        for number, fd in enumerate(fds):
            say(sender, _SAID.pack(kind, number, PAGE * 2, PAGE if kind == 1 else 0), [fd])
            assert eventually(lambda number=number: number in known or failed)
    for fd in fds:
        os.close(fd)
    assert not failed
    if kind == 3:  # several receivers may write there, each to its own
        one, other = (receiver.carrier.fetch(REFERENCE.pack(0, 2 | share << 8, 0, PAGE)) for share in (1, 2))
        memoryview(one)[:3] = b"one"
        assert bytes(memoryview(other)[:3]) == bytes(3)
