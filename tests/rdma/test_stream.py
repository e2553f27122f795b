"""Streams by RDMA: the contract of streams, the rings, payloads that are READ, memory."""

from __future__ import annotations

import gc
import random
import select
import threading
import time

import pytest

from tests.rdma.ends import World, meet
from tests.rdma.null_provider import NullProvider
from transfer.transports import registry
from transfer.transports.core.wire import HEADER_SIZE, Flag, SocketType
from transfer.transports.errors import Broken, ProtocolError, RegistrationError
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.rdma.upgrade import RING
from transfer.transports.sizes import VERY_LARGE
from transfer.transports.testing import carrying, checks, meeting
from transfer.transports.testing.ends import plain, receive, until

CARRYING = [check for check in checks.CHECKS if check.__module__ == carrying.__name__]


@pytest.mark.parametrize("check", [meeting.check_meets, *CARRYING], ids=lambda check: check.__name__)
def test_contract(check, made: World) -> None:
    check(checks.Subject(lambda: registry.open_transport("tcp"), "tcp://127.0.0.1:*", upgrade="rdma"))


def _is_real(made: World) -> bool:
    return "null" not in made.context()["rdma.domains"].get().device.name


def of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


SIZES = (0, 1, 200, 300, RING - HEADER_SIZE - 1, RING - HEADER_SIZE, RING - HEADER_SIZE + 1, 3 * RING)
SIZES += (VERY_LARGE - 1, VERY_LARGE, (1 << 20) - 1, 1 << 20, (3 << 20) + 5, 40 << 20)


@pytest.mark.parametrize("size", sorted(set(SIZES)))
def test_sizes_around_the_ring_and_the_chunk(made: World, size: int) -> None:
    with meet(made) as ends:
        data = of(size)
        for _ in range(3):  # at other places of the ring
            assert ends.connecting.send(plain(data))
            got = until(lambda: (ends.connecting.flush() and False) or ends.accepting.receive(), "it")
            assert got[0].bytes == data
        until(ends.connecting.flush, "the message to leave")
        assert ends.connecting.queued == 0


def test_a_full_stream_takes_nothing_and_has_room_again(made: World) -> None:
    with meet(made, send_high_water=8) as ends:
        sent = 0
        while ends.connecting.send(plain(sent.to_bytes(4, "little") + bytes(60_000))):
            sent += 1
            assert sent < 1000, "the high-water mark stops nobody"
        assert ends.connecting.queued == 8
        for number in range(sent):
            assert receive(ends.accepting)[0].bytes[:4] == number.to_bytes(4, "little")
        until(lambda: ends.connecting.send(plain(b"room again")), "room")
        assert receive(ends.accepting)[0].bytes == b"room again"


def test_payloads_that_are_not_read_count_as_queued(made: World) -> None:
    with meet(made, send_high_water=1000, send_high_water_bytes=4 << 20) as ends:
        sent = 0
        while ends.connecting.send(plain(bytes(1 << 20))):
            sent += 1
        assert sent == ends.connecting.queued == 4
        for _ in range(sent):
            receive(ends.accepting)
        until(lambda: ends.connecting.send(plain(bytes(1 << 20))), "room")
        receive(ends.accepting)
        until(ends.connecting.flush, "the last one to be READ")
        assert ends.connecting.queued == 0


def test_a_payload_counts_once_whether_its_announcement_is_written_or_not(made: World) -> None:
    """The ring has no room for all announcements."""
    size = 1 << 20
    with meet(made, send_high_water=500, send_high_water_bytes=0) as ends:
        payload = bytes(size)
        sent = 0
        while ends.connecting.send(plain(payload)):
            sent += 1
            assert ends.connecting.queued <= sent
            assert ends.connecting.queued_bytes <= sent * (size + HEADER_SIZE)
        assert sent >= ends.connecting.queued == 500
        assert ends.connecting.queued_bytes >= 500 * size
        for _ in range(sent):
            assert len(receive(ends.accepting)[0].data) == size
            ends.connecting.flush()
        until(ends.connecting.flush, "the last one to be READ")
        assert ends.connecting.queued == ends.connecting.queued_bytes == 0


def test_payloads_of_one_message_are_one_message(made: World) -> None:
    payload, parts = bytes(300_000), 6
    message = [(0, 0, None, None, payload)] * parts
    with meet(made, send_high_water=3, send_high_water_bytes=0) as ends:
        for number in range(1, 4):
            assert ends.connecting.send(message)
            assert ends.connecting.queued == number
        assert not ends.connecting.send(message)
        got = receive(ends.accepting)
        assert [frame.bytes for frame in got] == [payload] * parts
        until(lambda: ends.connecting.flush() or ends.connecting.queued < 3, "room")
        for _ in range(2):
            assert len(receive(ends.accepting)) == parts
        until(ends.connecting.flush, "all to be READ")
        assert ends.connecting.queued == 0


def test_a_sender_without_room_for_this_message_sleeps(made: World) -> None:
    """The queue has fewer bytes than the limit, and too many for one more."""
    with meet(made, send_high_water_bytes=2 << 20) as ends:
        while ends.connecting.send(plain(bytes(600_000))):
            pass
        room = ends.connecting.room_fileno()
        for _ in range(3):
            assert not ends.connecting.send(plain(bytes(600_000)))
        assert not select.select([room], [], [], 0.1)[0], "what a sender polls is readable at once"
        receive(ends.accepting)
        until(lambda: ends.connecting.send(plain(bytes(600_000))), "room")


def test_bytes_in_both_directions_at_once(made: World) -> None:
    """Both sides find no room, and each has to look at what the other one sent."""
    count, data = 300, of(20_000)
    with meet(made, send_high_water=0, send_high_water_bytes=0) as ends:
        got = {}

        def run(stream) -> None:
            for number in range(count):
                stream.send(plain(number.to_bytes(4, "little") + data))
            got[stream] = [receive(stream)[0].bytes for _ in range(count)]
            until(stream.flush, "all to leave")

        threads = [threading.Thread(target=run, args=(end,)) for end in (ends.connecting, ends.accepting)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        wanted = [number.to_bytes(4, "little") + data for number in range(count)]
        assert list(got.values()) == [wanted, wanted]


@pytest.mark.parametrize("seed", range(2))
def test_any_messages_in_any_order_arrive_as_they_were(made: World, seed: int) -> None:
    """Small ones, such as fill the ring, and payloads that are READ, while another thread receives."""
    choose = random.Random(seed)
    sizes = [choose.choice((0, 7, 500, 9_000, 70_000, 300_000, 2_000_000)) for _ in range(200)]
    with meet(made, send_high_water=choose.choice((0, 3, 100)), send_high_water_bytes=32 << 20) as ends:

        def send() -> None:
            for number, size in enumerate(sizes):
                message = plain(number.to_bytes(4, "little"), *(of(size) for _ in range(number % 3)))
                until(lambda message=message: ends.connecting.send(message), "room")

        sender = threading.Thread(target=send)
        sender.start()
        for number, size in enumerate(sizes):
            first, *others = receive(ends.accepting)
            assert first.bytes == number.to_bytes(4, "little")
            assert [frame.bytes for frame in others] == [of(size)] * (number % 3)
        sender.join(20)


def test_a_topic_longer_than_any_buffer(made: World) -> None:
    with meet(made) as ends:
        topic = b"t" * 60_000
        for data in (b"small", b"l" * 400_000):
            ends.connecting.send([(0, 0, topic, None, data)])
            [frame] = receive(ends.accepting)
            assert frame.topic == topic and frame.bytes == data


def test_many_small_ones_keep_their_order(made: World) -> None:
    """More than a ring holds; few enough for a machine that is emulated by a busy one."""
    count, filling = 8_000, bytes(100)
    with meet(made, send_high_water=0) as ends:
        for number in range(count):
            ends.connecting.send(plain(b"%d" % number + filling))
        for number in range(count):
            assert receive(ends.accepting)[0].bytes == b"%d" % number + filling
        until(ends.connecting.flush, "all to leave")


def test_a_message_waits_behind_a_large_one(made: World) -> None:
    with meet(made) as ends:
        for message in (b"a", b"b" * 5_000_000, b"c"):
            ends.connecting.send(plain(message))
        assert [receive(ends.accepting)[0].bytes[:1] for _ in range(3)] == [b"a", b"b", b"c"]


def test_received_tensors_are_writable_and_own_their_memory(made: World) -> None:
    header = bytes(48)
    with meet(made) as ends:
        frames = []
        for size in (100, 100_000, 1_000_000):
            ends.connecting.send([(int(Flag.TENSOR), 0, None, header, b"\1" * size)])
            frames += receive(ends.accepting)
        for frame in frames:
            memoryview(frame.data)[:] = b"\2" * len(frame)
    for frame in frames:  # the connection is gone
        assert frame.bytes == b"\2" * len(frame) and frame.meta == header


def test_a_slab_is_used_again_when_the_last_view_is_gone(made: World) -> None:
    one, other = made.socket(), made.socket()
    near, far = made.connect(one, other)
    received = other.shared["rdma.domains"].get().received
    for _ in range(20):
        near.send(plain(b"x" * 3_000_000))
        receive(far)
    assert received.registered <= 8 << 20


def test_sending_from_a_region_registers_nothing(made: World) -> None:
    data = bytearray(b"r" * 3_000_000)
    one, other = made.socket(), made.socket()
    near, far = made.connect(one, other)
    domains = one.shared["rdma.domains"]
    handle = domains.register(data)
    sources = domains.get().sources
    for begin, end in ((0, len(data)), (1_000_000, 2_000_000)):
        with memoryview(data)[begin:end] as part:
            near.send(plain(part), hold=True)
            assert receive(far)[0].bytes == bytes(part)
            until(lambda: near.receive() or near.flush(), "the memory to be ours again")
    assert sources.registrations == 0
    with pytest.raises(BufferError):
        data.append(1)
    near.send(plain(bytes(data)))
    assert sources.registrations == 1
    receive(far)
    until(near.flush, "the memory to be ours again")
    handle.close()
    handle.close()
    data.append(1)


def test_a_region_that_is_closed_under_way_lives_until_it_is_read(made: World) -> None:
    data = bytearray(b"r" * 3_000_000)
    one, other = made.socket(), made.socket()
    near, far = made.connect(one, other)
    handle = one.shared["rdma.domains"].register(data)
    near.send(plain(data), hold=True)
    handle.close()
    with pytest.raises(BufferError):
        data.append(1)
    assert receive(far)[0].bytes == data
    until(near.flush, "the message to be read")

    def is_free() -> bool:
        assert near.receive() is None  # which notices it, unless the reactor does at this moment
        try:
            data.append(1)
        except BufferError:
            return False
        return True

    until(is_free, "the region to be given up")


def test_held_memory_is_given_back_when_it_was_read(made: World) -> None:
    ended: list[BaseException | None] = []
    with meet(made) as ends:
        ends.connecting.send(plain(bytes(1 << 20), bytes(2 << 20)), hold=True, released=ended.append)
        assert not ends.connecting.receive() and not ended
        receive(ends.accepting)
        until(lambda: ends.connecting.receive() or ended, "the news")
        ends.connecting.send(plain(bytes(1 << 20)), hold=True, released=ended.append)
        ends.connecting.close()
    assert ended[0] is None and isinstance(ended[1], Broken) and len(ended) == 2


def test_regions_overlap_and_are_counted(made: World) -> None:
    data = bytearray(1 << 20)
    domains = made.socket().shared["rdma.domains"]
    first, again = domains.register(data), domains.register(data)
    part = domains.register(memoryview(data)[4096:8192])
    regions = domains.get().regions
    assert len(regions) == 2
    first.close()
    assert regions.find(part.address, 100) is not None
    again.close()
    part.close()


def test_a_failed_registration_raises_where_it_happened(null: NullProvider, over_null: World) -> None:
    """For a reason that stays, as of memory that is not mapped."""
    with meet(over_null) as ends:
        null.fault("register=14")
        with pytest.raises(RegistrationError, match="could not be registered"):
            ends.connecting.send(plain(b"x" * 3_000_000))
        null.fault("clear")
        assert ends.connecting.sent == 0
        for message in (b"after", b"a" * 3_000_000):
            ends.connecting.send(plain(message))
            assert receive(ends.accepting)[0].bytes == message


@pytest.mark.parametrize("kept", [True, False])
def test_what_cannot_be_registered_goes_through_the_ring(
    null: NullProvider, over_null: World, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with meet(over_null) as ends:
        null.fault("memlock=1000000")
        for number in range(3):
            data = bytearray(of((2 << 20) + number))
            assert ends.connecting.send(plain(data), hold=kept)
            got = until(lambda: (ends.connecting.flush() and False) or ends.accepting.receive(), "it")
            assert got[0].bytes == data
        assert ends.connecting.carrier.refused.total() == 3
    assert sum("through the ring" in record.message for record in caplog.records) == 1


def test_no_memory_for_a_payload_ends_the_connection(null: NullProvider, over_null: World) -> None:
    one, other = over_null.socket(), over_null.socket()
    near, far = over_null.connect(one, other)
    near.send(plain(b"x" * 3_000_000))
    null.fault("register=12")
    with pytest.raises(Broken, match="registered"):
        receive(far)
    null.fault("clear")
    [given_up] = other.shared["rdma.given_up"].values()
    assert "registered" in given_up.text


def test_what_cannot_travel_is_refused_and_takes_nothing(made: World) -> None:
    with meet(made) as ends:
        with pytest.raises(TypeError):
            ends.connecting.send(plain("text"))
        with pytest.raises(TypeError):  # the payload before it was placed already
            ends.connecting.send(plain(bytes(1 << 20), "text"))
        for message in (b"after", b"a" * 3_000_000):
            ends.connecting.send(plain(message))
            assert receive(ends.accepting)[0].bytes == message


def test_a_sleeping_receiver_is_woken_by_its_descriptor(made: World) -> None:
    with meet(made) as ends:
        poller = select.poll()
        poller.register(ends.accepting.fileno(), select.POLLIN)
        for size in (10, 3_000_000, 20, 400_000):
            assert ends.accepting.receive() is None
            timer = threading.Timer(0.05, ends.connecting.send, (plain(b"w" * size),))
            timer.start()
            while (message := ends.accepting.receive()) is None:
                assert poller.poll(20_000), "nothing woke the receiver"
            timer.join()
            assert len(message[0]) == size
        for _ in range(3):
            assert ends.accepting.receive() is None
        assert not poller.poll(50), "nothing is there, and the descriptor is readable"


def test_a_sleeping_sender_continues_when_there_is_room(made: World) -> None:
    """By the flusher, while no thread reads at the sender's end. It pauses after each 4 MiB."""
    count = 100 if _is_real(made) else 600
    with meet(made, send_high_water=0, send_high_water_bytes=0) as ends:
        for number in range(count):
            ends.connecting.send(plain(number.to_bytes(4, "little") + bytes(20_000)))
        for number in range(count):
            assert receive(ends.accepting)[0].bytes[:4] == number.to_bytes(4, "little")


def test_an_idle_connection_costs_nothing(made: World) -> None:
    with meet(made) as ends:
        ends.connecting.send(plain(b"x"))
        receive(ends.accepting)
        until(ends.connecting.flush, "it to leave")
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.05


def test_consumed_messages_are_counted_to_the_sender(made: World) -> None:
    with meet(made, kinds=(SocketType.PUSH, SocketType.PULL), credits=True) as ends:
        for _ in range(200):
            ends.connecting.send(plain(b"x"))
        for _ in range(200):
            receive(ends.accepting)
        assert ends.accepting.receive() is None
        credit = until(ends.connecting.receive, "the count")
        while credit[0].bytes[1:9] != (200).to_bytes(8, "little"):
            credit = until(ends.connecting.receive, "the last count")


def test_the_last_credit_comes_before_the_end(made: World) -> None:
    """The last credit and the end may come together: whoever is woken by the end counts what was lost."""
    with meet(made) as ends:
        ends.accepting.send([(int(Flag.CONTROL), 0, None, None, b"\x06last")], force=True)
        until(ends.accepting.flush, "the last word to leave")
        ends.accepting.close()
        [frame] = receive(ends.connecting)
        assert frame.bytes == b"\x06last" and ends.connecting.broken is None
        with pytest.raises(Broken):
            receive(ends.connecting)
        assert ends.connecting.broken is not None


def test_the_end_of_one_side_is_the_end_of_the_other(made: World) -> None:
    with meet(made) as ends:
        ends.connecting.send(plain(b"last"))
        until(ends.connecting.flush, "the last one to leave")
        ends.connecting.close()
        assert receive(ends.accepting)[0].bytes == b"last"
        with pytest.raises(Broken):
            receive(ends.accepting)
        with pytest.raises(Broken):
            ends.accepting.send(plain(b"too late"))


def test_closing_from_another_thread_ends_a_receive(made: World) -> None:
    for _ in range(20):
        with meet(made) as ends:
            stop = threading.Event()

            def read(stream=ends.accepting, stop=stop) -> None:
                while not stop.is_set():
                    try:
                        stream.receive()
                    except Broken:
                        return

            reader = threading.Thread(target=read)
            reader.start()
            for size in (10, 3_000_000):
                ends.connecting.send(plain(b"x" * size))
            time.sleep(0.005)
            ends.accepting.close()
            reader.join(10)
            stop.set()
            assert not reader.is_alive()


def parts(*sizes: int, topic: bytes | None = None) -> list[tuple[int, int, bytes | None, None, bytes]]:
    return [(0, 0, topic, None, bytes(size)) for size in sizes]


@pytest.mark.parametrize(
    "message",
    [parts(*[40 << 10] * 26), parts(600_000, 600_000), parts(*[0] * 30, topic=bytes(40000))],
    ids=["in the ring", "announced", "topics"],
)
def test_the_limit_of_a_message_is_for_all_its_parts(made: World, message: list) -> None:
    limit = 1_000_000
    with meet(made, max_message=limit) as ends:
        for _ in range(2):  # what the first had does not count for the second
            ends.connecting.send(parts(500_000, 400_000, 100_000))
            assert sum(map(len, receive(ends.accepting))) == limit
        ends.connecting.send(message)
        with pytest.raises(ProtocolError) as caught:
            receive(ends.accepting)
        assert caught.value.reason == "too_large"


def test_a_stream_that_is_collected_unclosed_gives_all_back(null: NullProvider, over_null: World) -> None:
    one, other = over_null.socket(), over_null.socket()
    near, far = over_null.connect(one, other)
    domain = one.shared["rdma.domains"].get()
    data = bytearray(1 << 20)
    released: list[BaseException | None] = []
    near.send(plain(data), hold=True, released=released.append)
    near.peer = [near]  # only the collector finds it
    over_null.streams.remove(near)
    watched = list(domain.on_lost)
    del near
    gc.collect()
    assert len(released) == 1 and isinstance(released[0], Broken)
    data.append(1)
    assert len(domain.on_lost) == len(watched) - 1
    with pytest.raises((Broken, ProtocolError)):
        until(lambda: far.receive() and None, "the end")


def test_closing_while_payloads_are_read(null: NullProvider, over_null: World) -> None:
    """Their memory returns when the queue pair has ended."""
    for _ in range(5):
        one, other = over_null.socket(), over_null.socket()
        near, far = over_null.connect(one, other)
        null.fault("late=100000:read")
        for _ in range(4):
            near.send(plain(bytes(1 << 20)))
        assert far.receive() is None
        far.close()
        near.close()
        null.fault("clear")
        received = other.shared["rdma.domains"].get().received
        received.give_back(received.take(1))
        assert received.take(1) and received.in_use <= 2 * 4096


def test_queue_pairs_have_the_class_of_the_environment(
    null: NullProvider, over_null: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_IB_TC", "106")
    monkeypatch.setenv("MC_IB_SL", "3")
    over_null.connect(over_null.socket(), over_null.socket())
    assert (null.count("traffic_class"), null.count("service_level")) == (106, 3)
    monkeypatch.setenv("MC_PKEY_INDEX", "1")
    with pytest.raises(Declined, match="Invalid argument"):
        over_null.connect(over_null.socket(), over_null.socket())


def test_an_error_of_one_send_leaves_the_next_one_as_it_was(made: World) -> None:
    """A part that cannot be sent comes behind one that was placed for READs."""
    strided = memoryview(bytearray(200))[::2]
    with meet(made) as ends:
        for _ in range(3):
            with pytest.raises(BufferError):
                ends.connecting.send(plain(bytes(1 << 20), strided))
            ends.connecting.send(plain(b"l" * (1 << 20)))
            assert receive(ends.accepting)[0].bytes == b"l" * (1 << 20)


def test_an_error_of_a_callback_takes_no_message_back(made: World) -> None:
    """Ctrl-C in the callback of an owner: the message is queued, and its memory is not used again."""

    def interrupted(_: BaseException | None) -> None:
        raise KeyboardInterrupt

    with meet(made) as ends:
        with pytest.raises(KeyboardInterrupt):
            ends.connecting.send(plain(bytearray(b"f" * (1 << 20))), released=interrupted)
        ends.connecting.send(plain(bytearray(b"s" * (1 << 20))))
        assert [receive(ends.accepting)[0].bytes[:1] for _ in range(2)] == [b"f", b"s"]


def test_many_large_ones_with_a_reader_in_another_thread(made: World) -> None:
    """Counts of what was READ come by reports and by immediate data, in any order."""
    count, size = 40 if _is_real(made) else 1500, 300_000
    with meet(made, send_high_water=0, send_high_water_bytes=0) as ends:

        def send() -> None:
            data = bytes(size)
            for number in range(count):
                while not ends.connecting.send([(0, 0, None, None, data)]):
                    ends.connecting.flush()
                if number % 7 == 0:
                    ends.connecting.receive()

        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(count):
            assert len(receive(ends.accepting)[0].bytes) == size
        sender.join(30)
        until(ends.connecting.flush, "all to be READ")


def test_a_sender_that_is_full_learns_that_the_peer_is_gone(made: World) -> None:
    """Nothing waits in its queue: only payloads that are not READ."""
    with meet(made, send_high_water=2) as ends:
        while ends.connecting.send(plain(bytes(1 << 20))):
            pass
        ends.accepting.close()
        with pytest.raises(Broken):
            until(lambda: ends.connecting.send(plain(bytes(1 << 20))) and False, "the end")


def test_a_ring_has_room_that_kept_registrations_take(null: NullProvider, over_null: World) -> None:
    shared = over_null.context()
    asked: list[int] = []

    def reclaim() -> bool:
        asked.append(1)
        null.fault("clear")
        return True

    shared["rdma.domains"].get().device.reclaim = reclaim
    one, other = over_null.socket(shared=shared), over_null.socket()
    other.shared["rdma.domains"].get()
    null.fault("register=12", count=100)
    over_null.connect(one, one)
    assert asked
