"""The pure parts of the rdma transport, against models."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, strategies as st

from transfer.transports.core.wire import HEADER_SIZE, REFERENCE, Flag, SocketType
from transfer.transports.errors import (
    DeviceError,
    OptionError,
    OutOfDescriptors,
    ProtocolError,
    RegistrationError,
)
from transfer.transports.rdma import control_messages, eager, failures
from transfer.transports.rdma.credits import ReceivingCredits, SendingCredits
from transfer.transports.rdma.device_selection import (
    Device,
    DevicePort,
    Gid,
    Wishes,
    choose,
    choose_gid,
    look,
    wishes_of,
)
from transfer.transports.rdma.failures import Circumstances, mapping_of, registration_cause
from transfer.transports.rdma.memory import choose_way
from transfer.transports.rdma.rendezvous import (
    MAX_OPEN,
    Reading,
    RendezvousAnnouncement,
    RendezvousOffer,
    Window,
)

# --- credits -----------------------------------------------------------------------------------


@given(
    st.integers(1, 40),
    st.integers(1, 10),
    st.lists(st.sampled_from(["send", "arrive", "consume", "tell", "hear", "old"]), max_size=300),
)
def test_credits_never_exceed_posted_buffers(buffers: int, step: int, moves: list[str]) -> None:
    sender, receiver = SendingCredits(buffers), ReceivingCredits(buffers)
    on_the_way = unread = 0
    told: list[int] = []
    last = 0
    for move in moves:
        if move == "send" and sender.left:
            sender.use()
            on_the_way += 1
        elif move == "arrive" and on_the_way:
            receiver.arrive()
            on_the_way -= 1
            unread += 1
        elif move == "consume" and unread:
            receiver.give_back()
            unread -= 1
        elif move == "tell" and (total := receiver.due(step)) is not None:
            told.append(total)
        elif move == "hear" and told:
            last = told.pop(0)
            sender.grant(last)
        elif move == "old" and last:
            assert sender.grant(last) == 0
        assert on_the_way + unread + sender.left <= buffers
        assert sender.used <= receiver.granted


def test_all_credits_come_back_in_steps() -> None:
    sender, receiver = SendingCredits(8), ReceivingCredits(8)
    for _ in range(1000):
        sender.use()
        receiver.arrive()
        receiver.give_back()
        if (total := receiver.due(2)) is not None:
            sender.grant(total)
        assert sender.left


def test_credits_that_were_not_granted_are_refused() -> None:
    receiver = ReceivingCredits(2)
    receiver.arrive()
    receiver.arrive()
    with pytest.raises(ProtocolError, match="credit"):
        receiver.arrive()
    sender = SendingCredits(2)
    with pytest.raises(ProtocolError, match="credit"):
        sender.grant(3)


# --- rendezvous --------------------------------------------------------------------------------


def announced(rkey: int = 1, number: int = 1, address: int = 4096, length: int = 10) -> bytes:
    return REFERENCE.pack(rkey, number, address, length)


@pytest.mark.parametrize(
    "reference",
    [
        announced(length=0),
        announced(length=1001),
        announced(number=2),
        announced(number=0),
        announced(address=(1 << 64) - 5),
    ],
    ids=["empty", "too-large", "number", "zero", "wraps"],
)
def test_announcements_that_make_no_sense(reference: bytes) -> None:
    with pytest.raises(ProtocolError):
        RendezvousOffer(1000).take(reference)


def test_announcements_are_counted_and_limited() -> None:
    book = RendezvousOffer(1000)
    for number in range(1, MAX_OPEN + 1):
        book.take(announced(number=number))
    with pytest.raises(ProtocolError, match="open"):
        book.take(announced(number=MAX_OPEN + 1))
    book.done(5)
    assert 5 not in book and 6 in book
    with pytest.raises(ProtocolError):
        book.take(announced(number=5))
    book.take(announced(number=MAX_OPEN + 1))


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_the_window_reads_everything_once_and_in_order(lengths, chunk, limit, random) -> None:
    window = Window(limit, chunk)
    readings = [
        Reading(RendezvousAnnouncement(1, index + 1, 4096, length), None)
        for index, length in enumerate(lengths)
    ]
    for reading in readings:
        window.add(reading)
    asked: list[tuple[int, int, int]] = []
    under_way, done = [], []
    while window.first is not None or under_way:
        assert window.under_way == len(under_way) <= limit
        if window.first is not None and (not under_way or random.random() < 0.6):
            taken = window.take()
            assert 0 < taken.length <= chunk
            asked.append((readings.index(taken.reading), taken.offset, taken.length))
            under_way.append(taken)
        else:
            taken = under_way.pop(random.randrange(len(under_way)))
            if window.arrived(taken):
                done.append(taken.reading)
    assert asked == sorted(asked)
    assert sorted(readings.index(one) for one in done) == list(range(len(readings)))
    for index, length in enumerate(lengths):
        assert sum(size for which, _, size in asked if which == index) == length


# --- the eager stream --------------------------------------------------------------------------

FRAMES = st.tuples(
    st.binary(max_size=9000),
    st.none() | st.binary(max_size=300) | st.just(b"t" * 20_000),
    st.none() | st.just(bytes(48)),
    st.booleans(),
)


@given(st.lists(FRAMES, max_size=20), st.integers(1, 5))
def test_frames_pass_through_buffers_of_any_fill(frames, at_once) -> None:
    waiting, splitter = eager.WaitingSend(), eager.Splitter(1 << 20)
    out: list[eager.Unit] = []
    buffer = memoryview(bytearray(eager.BUFFER))
    gone = []
    for begin in range(0, len(frames), at_once):
        for index, (data, topic, meta, crc) in enumerate(frames[begin : begin + at_once], begin):
            flags = int(Flag.CRC if crc else 0) | int(Flag.TENSOR if meta else 0)
            waiting.add(eager.encode(SocketType.PUSH, flags, index + 1, topic, meta, data, False), index)
        while waiting:
            used, marks = waiting.fill(buffer)
            assert 0 < used <= eager.BUFFER
            gone += marks
            out += splitter.feed(buffer[:used])
            buffer[:used] = b"\xff" * used  # what was taken is a copy
    assert gone == list(range(len(frames)))
    assert not splitter.inside
    assert [(unit.frame.bytes, unit.frame.topic, unit.frame.meta) for unit in out] == [
        (data, topic, meta) for data, topic, meta, _ in frames
    ]


def test_frames_that_fit_are_not_cut() -> None:
    waiting = eager.WaitingSend()
    for size in (5000, 5000, 3000):
        waiting.add(b"x" * size)
    buffer = memoryview(bytearray(eager.BUFFER))
    assert [waiting.fill(buffer)[0] for _ in range(2)] == [5000, 8000]


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    try:
        eager.Splitter(1 << 20).feed(memoryview(data))
    except ProtocolError:
        pass


def test_bad_frames_in_the_eager_stream() -> None:
    good = bytearray(eager.encode(SocketType.PUSH, int(Flag.CRC), 1, None, None, b"data", False))
    good[-1] ^= 1
    with pytest.raises(ProtocolError, match="checksum"):
        eager.Splitter(100).feed(memoryview(good))
    large = eager.encode(SocketType.PUSH, 0, 1, None, None, bytes(200_000), False)[:HEADER_SIZE]
    with pytest.raises(ProtocolError, match="length"):
        eager.Splitter(1 << 20).feed(memoryview(large))
    with pytest.raises(ProtocolError, match="too_large"):
        eager.Splitter(100).feed(memoryview(large))


# --- control messages -----------------------------------------------------------------------


def test_control_messages() -> None:
    assert control_messages.decode(control_messages.grant(7)) == (control_messages.Word.GRANT, (7,))
    assert control_messages.decode(control_messages.encode(control_messages.Word.DONE, 1, 2, 3)) == (
        control_messages.Word.DONE,
        (1, 2, 3),
    )
    assert control_messages.decode(control_messages.encode(control_messages.Word.ASK, 9)) == (
        control_messages.Word.ASK,
        (9,),
    )
    assert control_messages.is_ours(control_messages.grant(1)) and not control_messages.is_ours(b"\x06")


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_a_control_message_or_an_error(data: bytes) -> None:
    try:
        said = control_messages.decode(data)
    except ProtocolError:
        return
    again = (
        control_messages.grant(*said.numbers)
        if said.word == 1
        else control_messages.encode(said.word, *said.numbers)
    )
    assert again[1:] == data[1:]


# --- memory ------------------------------------------------------------------------------------


def test_ways_of_a_payload() -> None:
    assert choose_way(1 << 30, registered=True, kept=True) == "region"
    assert choose_way(1 << 30, registered=True, kept=False) == "copy"
    assert choose_way(1000, registered=False, kept=True) == "copy"
    assert choose_way(1 << 30, registered=False, kept=True) == "register"


@pytest.mark.parametrize(
    ("number", "now", "reason"),
    [
        (errno.ENOMEM, Circumstances(limit=65536), "memlock"),
        (errno.ENOMEM, Circumstances(limit=1 << 30, pinned=1 << 30), "memlock"),
        (errno.ENOMEM, Circumstances(limit=65536, locked=True), "memory"),
        (errno.ENOMEM, Circumstances(limit=-1), "memory"),
        (errno.ENOMEM, Circumstances(limit=-1, regions=10, max_regions=10), "keys"),
        (errno.EFAULT, Circumstances(mapped=False), "address"),
        (errno.EFAULT, Circumstances(writable=False), "read_only"),
        (errno.EPERM, Circumstances(), "permission"),
        (errno.EFAULT, Circumstances(device_memory=True), "peermem"),
        (errno.EOPNOTSUPP, Circumstances(), "unsupported"),
        (0, Circumstances(), "register"),
    ],
)
def test_causes_of_a_failed_registration(number: int, now: Circumstances, reason: str) -> None:
    assert registration_cause(number, 1 << 20, now)[0] == reason
    error = failures.registration_failed(
        ValueError("native"), number, device="mlx5_0", address=0x1000, size=1 << 20, now=now
    )
    assert isinstance(error, RegistrationError)
    assert "1 MiB" in str(error) and "mlx5_0" in str(error) and error.hint
    assert error.reason == reason


def test_no_descriptors_are_told_as_such() -> None:
    made = failures.registration_failed(
        ValueError(), errno.EMFILE, device="d", address=0, size=1, now=Circumstances()
    )
    assert isinstance(made, OutOfDescriptors)


MAPS = """\
00001000-00003000 rw-p 00000000 00:00 0
00003000-00004000 r--p 00000000 00:00 0 /some file
00008000-00009000 rw-p 00000000 00:00 0
"""


def test_what_lies_at_an_address() -> None:
    assert mapping_of(MAPS, 0x1800, 0x800) == (True, True)
    assert mapping_of(MAPS, 0x1800, 0x2000) == (True, False)
    assert mapping_of(MAPS, 0x3000, 0x2000)[0] is False
    assert mapping_of(MAPS, 0x5000, 1)[0] is False


def test_missing_libraries_are_told_apart() -> None:
    for text, reason in (
        ("No module named 'pyverbs'", "no_pyverbs"),
        ("libibverbs.so.1: cannot open shared object file", "library"),
        ("libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found", "version"),
    ):
        assert failures.import_failed(ImportError(text)).reason == reason


# --- devices -----------------------------------------------------------------------------------


def gid(index: int, text: str, kind: str = "RoCE v2") -> Gid:
    return Gid(index, text, kind, "eth0")


V4, V4_OLD = gid(3, "::ffff:10.0.0.1"), gid(2, "::ffff:10.0.0.1", "IB/RoCE v1")
V6, LINK = gid(5, "2001:db8::1"), gid(1, "fe80::1")


def test_gids_by_default() -> None:
    roce = DevicePort(1, True, "Ethernet", 100, (V4_OLD, LINK, V6, V4))
    assert choose_gid(roce) == V4
    assert choose_gid(DevicePort(1, True, "Ethernet", 100, (V4_OLD, LINK, V6))) == V6
    assert choose_gid(DevicePort(1, True, "Ethernet", 100, (V4_OLD, LINK))) == LINK
    assert choose_gid(roce, 2) == V4_OLD
    assert choose_gid(roce, 9) is None
    ib = DevicePort(1, True, "InfiniBand", 100, (gid(0, "fe80::5", ""), gid(1, "::ffff:1.2.3.4", "")))
    assert choose_gid(ib).index == 0


def test_devices_by_default_and_by_name() -> None:
    slow = Device("a", (DevicePort(1, True, "Ethernet", 25, (V4,)),))
    fast = Device(
        "b", (DevicePort(1, False, "Ethernet", 400, (V4,)), DevicePort(2, True, "Ethernet", 200, (V6,)))
    )
    down = Device("c", (DevicePort(1, False, "InfiniBand", 400, (LINK,)),))
    every = [slow, fast, down]
    assert (choose(every, Wishes()).device, choose(every, Wishes()).port) == ("b", 2)
    assert choose(every, Wishes(devices=("nope", "a", "b"))).device == "a"
    assert choose(every, Wishes(port=1)).device == "a"
    assert choose(every, Wishes(mtu=1024)).mtu == 1024
    for wishes, reason in (
        (Wishes(devices=("nope",)), "no_device"),
        (Wishes(devices=("c",)), "link"),
        (Wishes(port=7), "link"),
        (Wishes(gid_index=77), "no_gid"),
    ):
        with pytest.raises(DeviceError) as refused:
            choose(every, wishes)
        assert refused.value.reason == reason and refused.value.hint
    with pytest.raises(DeviceError):
        choose([], Wishes())


def test_wishes_of_the_environment() -> None:
    said = {"MC_RDMA_DEVICES": " a , b", "MC_IB_PORT": "2", "MC_GID_INDEX": "3", "MC_MTU": "1024"}
    assert wishes_of(said) == Wishes(("a", "b"), 2, 3, 1024)
    assert wishes_of({}) == Wishes()
    for bad in ({"MC_MTU": "1000"}, {"MC_GID_INDEX": "x"}, {"MC_IB_PORT": "-1"}):
        with pytest.raises(OptionError):
            wishes_of(bad)


def test_devices_are_read_from_the_system(tmp_path) -> None:
    ports = tmp_path / "mlx5_0" / "ports" / "1"
    for name, text in {
        "state": "4: ACTIVE",
        "rate": "100 Gb/sec (4X EDR)",
        "link_layer": "Ethernet",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a4d:0001",
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gid_attrs/types/0": "RoCE v2",
        "gid_attrs/types/1": "RoCE v2",
        "gid_attrs/ndevs/1": "eth0",
    }.items():
        (ports / name).parent.mkdir(parents=True, exist_ok=True)
        (ports / name).write_text(text + "\n")
    [device] = look(tmp_path)
    assert device.name == "mlx5_0" and device.ports[0].rate == 100 and len(device.ports[0].gids) == 2
    route = choose([device], Wishes())
    assert route.gid_index == 1 and "10.77.0.1" in str(route)
    assert look(tmp_path / "nothing") == []
