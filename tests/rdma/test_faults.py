"""Peers that lie, die or say nothing; and a stack that is broken."""

from __future__ import annotations

import os
import select
import time
from contextlib import closing

import pytest

from tests.rdma.ends import World, devices, meet
from tests.rdma.null_provider import NullProvider
from tests.rdma.raw_peer import PAYLOAD, RING, RawPeer, frame
from transfer.transports.errors import Broken, ForkedError, ProtocolError, TransferError
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.rdma import failures, probe
from transfer.transports.testing.ends import plain, receive, until


def end_of(stream) -> BaseException:
    """What ends the stream; what it has before is read."""

    def ended():
        try:
            while stream.receive() is not None:
                pass
        except (Broken, ProtocolError) as error:
            return error
        return None

    return until(ended, "the end")


@pytest.mark.parametrize("lie", ["key", "address", "length", "domain"])
def test_a_forged_announcement_ends_that_connection_only(made: World, lie: str) -> None:
    hub = made.socket()
    near, far = made.connect(made.socket(), hub)
    received = hub.shared["rdma.domains"].get().received
    with closing(RawPeer(made, hub)) as raw:
        foreign = raw.domain.staging.take(PAYLOAD)  # not of this queue pair's domain
        address, rkey, length = raw.payload, raw.pair.rkey, PAYLOAD
        if lie == "key":
            rkey ^= 0x5A5A00
        elif lie == "address":
            address = 0x1000
        elif lie == "length":
            length = 64 << 20
        else:
            address, rkey = foreign.address, foreign.slab.region.rkey
        in_use = received.in_use
        raw.announce(address, rkey, length)
        error = end_of(raw.victim)
        assert isinstance(error, Broken) and "refused" in str(error)
        raw.victim.close()
        received.take(1)  # collects what came back
        assert received.in_use <= in_use + 8192
        near.send(plain(b"others go on"))
        assert receive(far)[0].bytes == b"others go on"


@pytest.mark.parametrize(
    "announced",
    [(4096, 1, 0, 1), ((1 << 64) - 4096, 1, 8192, 1), (4096, 1, 100, 2), (4096, 1, 100, 0)],
    ids=["nothing", "beyond the memory", "number", "number before"],
)
def test_announcements_that_make_no_sense(made: World, announced: tuple[int, int, int, int]) -> None:
    with closing(RawPeer(made)) as raw:
        raw.announce(*announced)
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "rendezvous"


def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated(made: World) -> None:
    hub = made.socket(max_message=1 << 20)
    with closing(RawPeer(made, hub)) as raw:
        received = hub.shared["rdma.domains"].get().received
        raw.announce(4096, 1, 1 << 40)
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "too_large"
        assert received.registered == 0


def test_an_announcement_behind_another_is_checked_when_its_turn_comes(made: World) -> None:
    hub = made.socket(max_message=1 << 20)
    with closing(RawPeer(made, hub)) as raw:
        raw.announce(raw.payload, raw.pair.rkey, PAYLOAD)
        raw.announce(4096, 1, 1 << 40)
        assert len(receive(raw.victim)[0]) == PAYLOAD
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "too_large"


def test_a_peer_that_announces_and_dies(made: World) -> None:
    hub = made.socket()
    with closing(RawPeer(made, hub)) as raw:
        received = hub.shared["rdma.domains"].get().received
        raw.message(b"first")
        raw.announce(raw.payload, raw.pair.rkey, PAYLOAD)
        raw.die()
        first = []
        error = None
        while error is None:
            try:
                first += raw.victim.receive() or ()
            except (Broken, ProtocolError) as ended:
                error = ended
        assert [frame.bytes for frame in first[:1]] == [b"first"]
        raw.victim.close()
        received.give_back(received.take(1))
        received.give_back(received.take(1))
        assert received.in_use <= 4096


def test_the_report_of_what_was_taken(made: World) -> None:
    """What an honest peer finds in its memory."""
    with closing(RawPeer(made)) as raw:
        message = frame(bytes(1000))
        for _ in range(64 * 1024 // len(message) + 1):
            raw.post(message)
            assert len(receive(raw.victim)[0]) == 1000
        consumed, posted, fetched = until(lambda: raw.reported()[0] and raw.reported(), "a report")
        assert raw.written - 65536 <= consumed <= raw.written and posted in (32, 64) and not fetched
        raw.announce(raw.payload, raw.pair.rkey, PAYLOAD)
        receive(raw.victim)
        until(lambda: raw.reported()[2] == 1, "the report of the READ")


@pytest.mark.parametrize("count", [1, 1 << 18, (1 << 18) + 1, 1 << 31])
def test_bytes_for_which_there_is_no_room(made: World, count: int) -> None:
    """In the immediate data, where nothing was written."""
    hub = made.socket()
    near, far = made.connect(made.socket(), hub)
    with closing(RawPeer(made, hub)) as raw:
        for _ in range(2 if count <= raw.offer["ring"] else 1):
            raw.pair.write(raw.offer["address"], b"", immediate=count)
        if count == 1:
            assert raw.victim.receive() is None  # two bytes of a header
        else:
            error = end_of(raw.victim)
            assert isinstance(error, ProtocolError)
        near.send(plain(b"others go on"))
        assert receive(far)[0].bytes == b"others go on"


ASK, ROOM, FETCHED = 0xFE000001, 0xFE000002, 0xFF000000


@pytest.mark.parametrize(
    "said",
    [(1, 0, 0), (0, 1, 0), (0, 0, 1), ((1 << 64) - 1, 0, 0), (1 << 20, 40, 0)],
    ids=["consumed", "posted", "fetched", "negative", "all"],
)
def test_reports_that_cannot_be_true(made: World, said: tuple[int, int, int]) -> None:
    """Before anything was sent."""
    with closing(RawPeer(made)) as raw:
        raw.report(*said, immediate=ROOM)
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "rendezvous"


def test_a_report_that_comes_late(made: World) -> None:
    """Verbs do not promise the order in which WRITEs are placed: the larger counts hold."""
    with closing(RawPeer(made)) as raw:
        for number in range(3):
            raw.victim.send(plain(bytes(1000)))
            raw.report(1034 * (number + 1), number + 1, 0, immediate=ROOM)
        raw.report(1034, 1, 0, immediate=ROOM)
        assert raw.victim.receive() is None
        sent = 0
        while raw.victim.send(plain(bytes(1000))):
            sent += 1
            raw.message(b"%d" % sent)
            assert receive(raw.victim)[0].bytes == b"%d" % sent
            if sent == 50:
                break
        assert sent == 50 and raw.victim.broken is None


def test_a_payload_read_before_its_announcement_was_written(made: World) -> None:
    """Its memory must not be given back: it is READ later."""
    with closing(RawPeer(made)) as raw:
        while raw.victim.send(plain(bytes(100))):  # until the ring is full
            pass
        raw.victim.send_high_water = 0
        released: list[BaseException | None] = []
        raw.victim.send(plain(bytes(1 << 20)), hold=True, released=released.append)
        raw.pair.write(raw.offer["address"], b"", immediate=FETCHED + 1)
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and not released
        raw.victim.close()
        assert len(released) == 1 and released[0] is not None


def test_immediate_data_brings_the_count_of_payloads(made: World) -> None:
    """Without a report, which may be placed later."""
    with closing(RawPeer(made)) as raw:
        released: list[BaseException | None] = []
        for number in (1, 2):
            raw.victim.send(plain(bytes(1 << 20)), hold=True, released=released.append)
            raw.pair.write(raw.offer["address"], b"", immediate=FETCHED + number)
            until(lambda number=number: raw.victim.receive() or len(released) == number, "the release")
        assert released == [None, None]


def test_counts_that_a_report_has_overtaken(made: World) -> None:
    """The report is read in memory, before the completions that brought the counts are looked at."""
    with closing(RawPeer(made)) as raw:
        released: list[BaseException | None] = []
        for _ in range(3):
            raw.victim.send(plain(bytes(1 << 20)), hold=True, released=released.append)
        raw.report(0, 0, 2)
        until(lambda: raw.victim.flush() or len(released) == 2 or raw.victim.receive(), "two releases")
        for number in (1, 2, 3):
            raw.pair.write(raw.offer["address"], b"", immediate=FETCHED + number)
        until(lambda: raw.victim.receive() or len(released) == 3, "the third release")
        assert released == [None] * 3 and raw.victim.broken is None


@pytest.mark.parametrize(
    "immediate", [0, 0xFDFFFFFF, 0xFE000000, FETCHED + 1, 0xFFFFFFFF, ASK, ROOM, FETCHED]
)
def test_immediate_data_without_a_cause(made: World, immediate: int) -> None:
    """Asking and answering is allowed at any time, and nothing else."""
    with closing(RawPeer(made)) as raw:
        raw.pair.write(raw.offer["address"], b"", immediate=immediate)
        if immediate not in (ASK, ROOM, FETCHED):
            assert isinstance(end_of(raw.victim), ProtocolError)
            return
        raw.message(b"goes on")
        assert receive(raw.victim)[0].bytes == b"goes on"


def test_a_peer_that_never_takes_anything(made: World) -> None:
    """Its ring and its receives end, and this side waits; it has the bytes when it looks."""
    with closing(RawPeer(made)) as raw:
        sent = 0
        while raw.victim.send(plain(bytes(100))):
            sent += 1
        assert 32 <= sent < 3000 and not raw.victim.flush()
        raw.die()
        until(lambda: raw.victim.broken or raw.victim.flush(), "the end")
        assert isinstance(end_of(raw.victim), Broken)


def test_more_writes_than_receives(made: World) -> None:
    """Beyond its receives the peer's device waits for them: nothing is lost, no other connection waits."""
    with closing(RawPeer(made)) as raw:
        for number in range(60):
            raw.message(b"%d" % number)
        assert [receive(raw.victim)[0].bytes for _ in range(60)] == [b"%d" % n for n in range(60)]


@pytest.mark.parametrize(
    "data",
    [b"\0" * 64, b"no frame at all, but longer than a header is", bytes(range(100))],
    ids=["zeros", "text", "numbers"],
)
def test_bytes_that_are_no_frame(made: World, data: bytes) -> None:
    with closing(RawPeer(made)) as raw:
        raw.post(data)
        assert isinstance(end_of(raw.victim), ProtocolError)


def test_bytes_on_the_tcp_connection(made: World) -> None:
    with closing(RawPeer(made)) as raw:
        raw.connection.setblocking(True)
        raw.connection.sendall(frame(b"here?"))
        assert isinstance(end_of(raw.victim), ProtocolError)


@pytest.mark.parametrize(
    "said",
    [
        {"gid": "no address"},
        {"gid": None},
        {"number": -1},
        {"number": 1 << 24},
        {"mtu": 1000},
        {"psn": "7"},
        {"lid": 1 << 20},
        {"reads": True},
        {"ring": 0},
        {"ring": RING + 1},
        {"ring": 8192},
        {"ring": 1 << 40},
        {"rkey": 1 << 32},
        {"address": -1},
    ],
)
def test_what_a_peer_says_of_itself_is_checked(made: World, said) -> None:
    with pytest.raises(ProtocolError):
        RawPeer(made, said=said)


@pytest.mark.parametrize("said", [{"address": 4096}, {"rkey": 1}])
def test_a_ring_that_is_not_the_peers(made: World, said) -> None:
    """Its device refuses the first bytes, and the connection ends."""
    with closing(RawPeer(made, said=said)) as raw:
        raw.victim.send(plain(b"into nothing"))
        assert isinstance(end_of(raw.victim), Broken)


def test_a_device_that_never_answers_is_not_asked_again(null: NullProvider, over_null: World) -> None:
    one, other = over_null.socket(), over_null.socket()
    near, far = over_null.connect(one, other)
    null.fault("status=12:write")
    near.send(plain(b"lost"))
    error = end_of(near)
    assert isinstance(error, Broken) and "does not answer" in str(error)
    far.close()
    with pytest.raises(Declined) as declined:
        over_null.connect(one, other)
    assert declined.value.reason == "unreachable"


@pytest.mark.parametrize("phase", ["announced", "reading", "read"])
def test_memory_comes_back_whenever_a_peer_ends(null: NullProvider, over_null: World, phase: str) -> None:
    with meet(over_null) as ends:
        data, released = bytearray(8 << 20), []
        if phase == "reading":
            null.fault("late=1000000:read")
        ends.connecting.send(plain(data), hold=True, released=released.append)
        if phase != "announced":
            ends.accepting.receive()
        ends.accepting.close()
        until(lambda: released or (end_of(ends.connecting) and ends.connecting.close() == 0), "the memory")
        assert len(released) == 1
        data.append(1)


def test_use_after_fork_is_refused_and_the_parent_goes_on(made: World) -> None:
    with meet(made) as ends:
        ends.connecting.send(plain(b"before"))
        read, write = os.pipe()
        pid = os.fork()
        if not pid:  # the child
            found = b"nothing"
            try:
                ends.connecting.send(plain(b"from the child"))
            except ForkedError:
                found = b"refused"
            except TransferError as error:
                found = repr(error).encode()
            ends.connecting.close()
            import gc

            gc.collect()
            os.write(write, found)
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 100) == b"refused"
        os.close(read)
        os.close(write)
        ends.connecting.send(plain(b"after", b"x" * 100_000))
        assert receive(ends.accepting)[0].bytes == b"before"
        assert len(receive(ends.accepting)) == 2


def test_the_probe_says_what_is_wrong(tmp_path, monkeypatch) -> None:
    found = probe.probe(tmp_path / "nothing")
    assert not found.usable and found.word == "no_device" and found.hint
    ports = tmp_path / "dev0" / "ports" / "1"
    (ports / "gids").mkdir(parents=True)
    (ports / "state").write_text("1: DOWN")
    assert probe.probe(tmp_path).word == "link"
    (ports / "state").write_text("4: ACTIVE")
    (ports / "gids" / "0").write_text("fe80:0000:0000:0000:0000:0000:0000:0001")
    monkeypatch.setattr(failures, "may_lock", lambda: False)
    monkeypatch.setattr(probe.resource, "getrlimit", lambda _: (65536, 65536))
    found = probe.probe(tmp_path)
    assert found.word == "memlock" and "64 KiB" in found.reason and found.details["route"]


@pytest.mark.skipif(bool(devices()), reason="there is a device")
def test_nothing_is_loaded_where_there_is_no_device() -> None:
    import subprocess
    import sys

    code = (
        "import sys, logging; from transfer.transports.rdma.probe import probe; assert not probe().usable; "
        "assert not logging.root.handlers; "
        "assert not [name for name in sys.modules if name.startswith('pyverbs') or name.endswith('.verbs')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def used_while_asleep(stream, seconds: float = 0.5) -> float:
    """Processor time while a program waits for this stream's descriptor."""
    poller = select.poll()
    poller.register(stream.fileno(), select.POLLIN)
    before, until_then = time.process_time(), time.monotonic() + seconds
    while (left := until_then - time.monotonic()) > 0:
        poller.poll(left * 1000)
        assert stream.receive() is None
    return time.process_time() - before


@pytest.mark.parametrize("behind", [1, 300])
def test_a_payload_that_does_not_come_costs_no_processor(
    null: NullProvider, over_null: World, behind: int
) -> None:
    """With more behind it than is read ahead: a receive looked again and again, without an end."""
    with meet(over_null, send_high_water=0) as ends:
        null.fault("lose:read")
        ends.connecting.send(plain(bytes(1 << 20)))
        for _ in range(behind):
            ends.connecting.send(plain(bytes(2000)))
        ends.connecting.flush()
        assert ends.accepting.receive() is None
        assert used_while_asleep(ends.accepting) < 0.1


def test_small_messages_behind_a_late_payload(null: NullProvider, over_null: World) -> None:
    """What came while it was awaited raised no event of its own."""
    with meet(over_null, send_high_water=0) as ends:
        for round_ in range(20):
            null.fault(f"late={round_ + 1}:read")
            ends.connecting.send(plain(bytes(1 << 20)))
            for number in range(200):
                ends.connecting.send(plain(b"%d" % number + bytes(1000)))
            poller, got = select.poll(), []
            poller.register(ends.accepting.fileno(), select.POLLIN)
            while len(got) < 201:
                message = ends.accepting.receive()
                if message is not None:
                    got.append(len(message[0]))
                else:
                    assert poller.poll(10_000), f"asleep after {len(got)} messages"
            assert got[0] == 1 << 20


@pytest.mark.parametrize("payload", [100, 1 << 20], ids=["full", "announced"])
def test_a_byte_on_the_tcp_connection_ends_a_sender_that_reads_nothing(made: World, payload: int) -> None:
    """Its waits for room returned at once, again and again."""
    with closing(RawPeer(made)) as raw:
        while raw.victim.send(plain(bytes(payload))) and payload == 100:
            pass
        raw.connection.setblocking(True)
        raw.connection.sendall(b"?")
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.2
        with pytest.raises((Broken, ProtocolError)):
            until(lambda: raw.victim.receive() or (raw.victim.send(plain(b"x")) and None), "the end")
