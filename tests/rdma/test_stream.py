"""Streams over queue pairs: the contract of streams, eager and rendezvous, credits, memory."""

from __future__ import annotations

import select
import threading

import pytest

from tests.rdma.ends import World, meet
from transfer.transports.core.wire import HEADER_SIZE, Flag, SocketType
from transfer.transports.errors import Broken, ProtocolError, RegistrationError, UsageError
from transfer.transports.rdma import port as port_module
from transfer.transports.rdma.eager import BUFFER
from transfer.transports.rdma.port import GRANT
from transfer.transports.rdma.rendezvous import WINDOW
from transfer.transports.testing import carrying
from transfer.transports.testing.ends import plain, receive, until

CHECKS = [
    carrying.check_carries,
    carrying.check_copies_what_may_change,
    carrying.check_holds,
    carrying.check_ends,
    carrying.check_gives_back,
    carrying.check_gives_back_memory,
    carrying.check_subscriptions,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, made: World, monkeypatch) -> None:
    monkeypatch.setattr(carrying, "meet", lambda subject, **options: meet(made, **options))
    check(None)


def test_a_full_stream_takes_nothing_and_tells_when_it_has_room(made: World) -> None:
    with meet(made, send_high_water=8) as ends:
        room = threading.Event()
        ends.connecting.on_writable = room.set
        sent = 0
        while ends.connecting.send(plain(sent.to_bytes(4, "little") + bytes(64 << 10))):
            sent += 1
            assert sent < 1000, "the high-water mark stops nobody"
        assert ends.connecting.full and ends.connecting.queued <= 8
        for number in range(sent):
            assert receive(ends.accepting)[0].bytes[:4] == number.to_bytes(4, "little")
        assert room.wait(20) and not ends.connecting.full
        assert ends.connecting.send(plain(b"room again"))
        assert receive(ends.accepting)[0].bytes == b"room again"


@pytest.mark.parametrize(
    "size", [0, 1, BUFFER - HEADER_SIZE, BUFFER - HEADER_SIZE + 1, 1 << 20, (3 << 20) + 5]
)
def test_sizes_around_the_buffer_and_the_chunk(made: World, size: int) -> None:
    with meet(made) as ends:
        data = bytes(index % 251 for index in range(1000)) * (size // 1000 + 1)
        data = data[:size]
        assert ends.connecting.send(plain(data))
        assert receive(ends.accepting)[0].bytes == data
        until(ends.connecting.flush, "the message to leave")
        assert ends.connecting.queued == 0


def test_a_topic_longer_than_a_buffer(made: World) -> None:
    with meet(made) as ends:
        topic = b"t" * 60_000
        for data in (b"small", b"l" * 100_000):
            ends.connecting.send([(0, 0, topic, None, data)])
            [frame] = receive(ends.accepting)
            assert frame.topic == topic and frame.bytes == data


def test_many_small_ones_keep_their_order_and_come_back_as_credits(made: World) -> None:
    count = 20 * GRANT
    with meet(made, send_high_water=0) as ends:
        for number in range(count):
            ends.connecting.send(plain(b"%d" % number))
        for number in range(count):
            assert receive(ends.accepting)[0].bytes == b"%d" % number
        until(ends.connecting.flush, "all to leave")
    assert getattr(made.driver, "posted_out", 0) == 0


def test_what_waits_for_credit_shares_buffers(fake: World) -> None:
    with meet(fake, send_high_water=0) as ends:
        for number in range(GRANT + 1000):
            ends.connecting.send(plain(b"%d" % number))
        used = ends.connecting._credits.used
        assert used == GRANT
        for number in range(GRANT + 1000):
            assert receive(ends.accepting)[0].bytes == b"%d" % number
        assert ends.connecting._credits.used < used + 20


def test_announcements_behind_many_unread_payloads_share_buffers(fake: World) -> None:
    """And what stands behind them keeps its place."""
    count = 20 * WINDOW
    with meet(fake, send_high_water=0, send_high_water_bytes=0) as ends:
        for number in range(count):
            ends.connecting.send(plain(bytes([number]) * 20_000))
        ends.connecting.send(plain(b"the last"))
        assert ends.connecting._credits.used == 4 * WINDOW
        for number in range(count):
            assert receive(ends.accepting)[0].bytes == bytes([number]) * 20_000
        assert receive(ends.accepting)[0].bytes == b"the last"
        assert ends.connecting._credits.used < 5 * WINDOW
        until(ends.connecting.flush, "all to be READ")


def test_parts_of_one_message_beyond_all_credits(made: World) -> None:
    """Buffers of a message that is not complete go back: else it could never be."""
    with meet(made) as ends:
        parts = [bytes([number % 256]) * 5000 for number in range(4 * GRANT)]
        ends.connecting.send(plain(*parts))
        assert [frame.bytes for frame in receive(ends.accepting)] == parts


def test_a_message_waits_behind_a_large_one(made: World) -> None:
    with meet(made) as ends:
        for message in (b"a", b"b" * 5_000_000, b"c"):
            ends.connecting.send(plain(message))
        assert [receive(ends.accepting)[0].bytes[:1] for _ in range(3)] == [b"a", b"b", b"c"]


def test_received_tensors_are_writable_and_own_their_memory(made: World) -> None:
    header = bytes(48)
    with meet(made) as ends:
        frames = []
        for size in (100, 100_000):
            ends.connecting.send([(int(Flag.TENSOR), 0, None, header, b"\1" * size)])
            frames += receive(ends.accepting)
        for frame in frames:
            memoryview(frame.data)[:] = b"\2" * len(frame)
    for frame in frames:  # the connection is gone
        assert frame.bytes == b"\2" * len(frame) and frame.meta == header


def test_a_slab_is_used_again_when_the_last_view_is_gone(made: World) -> None:
    with meet(made) as ends:
        received = ends.accepting._port.domain.received
        before = received.registered
        for _ in range(20):
            ends.connecting.send(plain(b"x" * 3_000_000))
            receive(ends.accepting)
        assert received.registered <= before + (8 << 20)


def test_sending_from_a_region_registers_nothing(made: World) -> None:
    data = bytearray(b"r" * 3_000_000)
    one, other = made.socket(), made.socket()
    near, far = made.connect(one, other)
    handle = one.shared["rdma.domains"].register(data)
    sources = near._port.domain.sources
    for begin, end in ((0, len(data)), (1_000_000, 2_000_000)):
        with memoryview(data)[begin:end] as part:
            near.send(plain(part), hold=True)
            assert receive(far)[0].bytes == bytes(part)
            until(near.flush, "the memory to be ours again")
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


def test_a_region_that_is_closed_under_way_lives_until_it_is_done(fake: World) -> None:
    data = bytearray(b"r" * 3_000_000)
    one, other = fake.socket(), fake.socket()
    near, far = fake.connect(one, other)
    handle = one.shared["rdma.domains"].register(data)
    near.send(plain(data), hold=True)
    handle.close()
    assert receive(far)[0].bytes == data
    until(near.flush, "the message to be read")
    data.append(1)


def test_regions_overlap_and_are_counted(fake: World) -> None:
    data = bytearray(1 << 20)
    domains = fake.socket().shared["rdma.domains"]
    first, again = domains.register(data), domains.register(data)
    part = domains.register(memoryview(data)[4096:8192])
    regions = domains.get().regions
    assert len(regions) == 2
    first.close()
    assert regions.find(part.address, 100) is not None
    again.close()
    part.close()


def test_a_failed_registration_is_told_where_it_happened(fake: World) -> None:
    with meet(fake) as ends:
        fake.driver.refuses = RegistrationError("memlock", "no more memory may be locked", hint="ulimit -l")
        with pytest.raises(RegistrationError, match="ulimit"):
            ends.connecting.send(plain(b"x" * 3_000_000))
        fake.driver.refuses = None
        assert ends.connecting.sent == 0
        ends.connecting.send(plain(b"after"))
        assert receive(ends.accepting)[0].bytes == b"after"


def test_what_cannot_travel_is_refused_and_takes_nothing(made: World) -> None:
    with meet(made) as ends:
        with pytest.raises(UsageError):
            ends.connecting.send([(int(Flag.TENSOR), 0, None, None, b"without a header")])
        with pytest.raises(TypeError):
            ends.connecting.send(plain("text"))
        ends.connecting.send(plain(b"after"))
        assert receive(ends.accepting)[0].bytes == b"after"


def test_a_sleeping_receiver_is_woken_by_its_descriptor(made: World) -> None:
    with meet(made) as ends:
        for size in (10, 3_000_000):
            assert ends.accepting.receive() is None
            poller = select.poll()
            poller.register(ends.accepting.wait_fds[0], select.POLLIN)
            timer = threading.Timer(0.05, ends.connecting.send, (plain(b"w" * size),))
            timer.start()
            while (message := ends.accepting.receive()) is None:
                assert poller.poll(20_000), "nothing woke the receiver"
            timer.join()
            assert len(message[0]) == size
        for _ in range(3):
            assert ends.accepting.receive() is None
        assert not poller.poll(50), "nothing is there, and the descriptor is readable"


def test_streams_of_a_socket_share_a_channel_and_are_told_of_each_other(made: World) -> None:
    hub, first, second = made.socket(), made.socket(), made.socket()
    one, hub_one = made.connect(first, hub)
    two, hub_two = made.connect(second, hub)
    assert hub_one.wait_fds == hub_two.wait_fds
    told = []
    hub_two.on_readable = lambda: told.append(2)
    two.send(plain(b"from two"))
    one.send(plain(b"from one"))
    assert receive(hub_one)[0].bytes == b"from one"
    until(lambda: hub_one.receive() or told, "the other stream to be told")
    assert receive(hub_two)[0].bytes == b"from two"
    one.close()
    two.send(plain(b"more"))
    assert receive(hub_two)[0].bytes == b"more"


def test_a_socket_with_many_peers_opens_more_ports(fake: World, monkeypatch) -> None:
    monkeypatch.setattr(port_module, "PEERS", 2)
    monkeypatch.setattr(port_module, "PORTS", 2)
    hub, others = fake.socket(), [fake.socket() for _ in range(5)]
    pairs = [fake.connect(other, hub) for other in others[:4]]
    assert len({there.wait_fds for _, there in pairs}) == 2
    from transfer.transports.handshake.upgrade import Declined

    with pytest.raises(Declined) as refused:
        fake.connect(others[4], hub)
    assert refused.value.reason == "rdma-full"
    pairs[0][1].close()
    fake.connect(others[4], hub)


def test_consumed_messages_are_told(made: World) -> None:
    with meet(made, kinds=(SocketType.PUSH, SocketType.PULL), credits=True) as ends:
        for _ in range(200):
            ends.connecting.send(plain(b"x"))
        for _ in range(200):
            receive(ends.accepting)

        assert ends.accepting.receive() is None

        def told() -> bool:
            return any(data[1:9] == (200).to_bytes(8, "little") for _, data in made.controls)

        until(told, "the last count")


def test_what_was_said_before_the_end_is_told_before_the_end(made: World) -> None:
    """The last credit and the end may come together: whoever is woken by the end counts what was lost."""
    with meet(made) as ends:
        stream = ends.connecting
        made.reactor.unregister(stream.fd)  # it is read here
        ends.accepting.send([(int(Flag.CONTROL), 0, None, None, b"\x06last")], force=True)
        until(ends.accepting.flush, "the last word to leave")
        ends.accepting.close()
        end = select.poll()
        end.register(stream.fd, select.POLLRDHUP)
        until(lambda: end.poll(0), "the last word and the end")
        woken: list[bool] = []
        stream.on_readable = lambda: woken.append(True)
        assert [frame.bytes for frame in stream.control_ready()] == [b"\x06last"]
        assert not woken and stream.broken is None
        with pytest.raises(Broken):
            stream.control_ready()
        assert woken and stream.broken is not None


def test_control_frames_overtake_payloads(made: World) -> None:
    with meet(made) as ends:
        ends.connecting.send([(int(Flag.CONTROL), 0, None, None, b"\x06beat")], force=True)
        until(lambda: made.controls, "the heartbeat")
        assert made.controls == [(ends.accepting, b"\x06beat")]
        assert ends.connecting.sent == 0


def test_closing_ends_in_the_right_order(fake: World) -> None:
    with meet(fake) as ends:
        ends.connecting.send(plain(b"x" * 100_000))
        receive(ends.accepting)
    fake.close()
    order = fake.driver.order
    assert not fake.driver.regions and not fake.driver.pairs
    last_pair = len(order) - 1 - order[::-1].index("pair")
    assert last_pair < order.index("shared") < order.index("queue") < order.index("device")


def test_the_end_of_one_side_is_the_end_of_the_other(made: World) -> None:
    with meet(made) as ends:
        ends.connecting.send(plain(b"last"))
        until(ends.connecting.flush, "the last one to leave")
        ends.connecting.close()
        until(lambda: made.ended, "the end")
        assert receive(ends.accepting)[0].bytes == b"last"
        with pytest.raises(Broken):
            ends.accepting.receive()
        with pytest.raises(Broken):
            ends.accepting.send(plain(b"nobody"))


def parts(*sizes: int, topic: bytes | None = None) -> list[tuple[int, int, bytes | None, None, bytes]]:
    return [(0, 0, topic, None, bytes(size)) for size in sizes]


@pytest.mark.parametrize(
    "message",
    [parts(*[4 << 10] * 26), parts(60_000, 60_000), parts(*[0] * 30, topic=bytes(4000))],
    ids=["in buffers", "announced", "topics"],
)
def test_the_limit_of_a_message_is_for_all_its_parts(made: World, message: list) -> None:
    limit = 100_000
    with meet(made, max_message=limit) as ends:
        for _ in range(2):  # what the first had does not count for the second
            ends.connecting.send(parts(50_000, 40_000, 10_000))
            assert sum(map(len, receive(ends.accepting))) == limit
        ends.connecting.send(message)
        with pytest.raises(ProtocolError) as caught:
            receive(ends.accepting)
        assert caught.value.reason == "too_large"
