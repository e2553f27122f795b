"""Peers that lie, die or say nothing; and a stack that is broken."""

from __future__ import annotations

import os
import time
from contextlib import closing

import pytest

from tests.rdma.ends import World, devices, meet
from tests.rdma.fake_driver import FakeDriver
from tests.rdma.raw_peer import RawPeer
from transfer.transports.errors import Broken, ForkedError, ProtocolError, RegistrationError, TransferError
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.rdma import control_messages, failures, probe
from transfer.transports.rdma.eager import BUFFER
from transfer.transports.rdma.port import GRANT
from transfer.transports.testing.ends import plain, receive, until


def end_of(stream) -> BaseException:
    """What ended the stream."""

    def ended():
        try:
            stream.receive()
        except (Broken, ProtocolError):
            return stream.broken
        return None

    return until(ended, "the end")


def regions_of(domain) -> int:
    device = domain.device
    return len(device.driver.regions) if hasattr(device, "driver") else device._regions


@pytest.mark.parametrize("lie", ["key", "address", "length", "rights"])
def test_a_forged_announcement_ends_that_connection_only(made: World, lie: str) -> None:
    hub = made.socket()
    near, far = made.connect(made.socket(), hub)
    with closing(RawPeer(made, hub)) as raw:
        memory = raw.domain.staging.take(1 << 20)
        written = raw.domain.received.take(1 << 20)  # nobody may READ this
        address, rkey, length = memory.address, memory.rkey, 1 << 20
        if lie == "key":
            rkey ^= 0x5A5A00
        elif lie == "address":
            address = 0x1000
        elif lie == "length":
            length = 64 << 20
        else:
            address, rkey = written.address, written.rkey
        in_use = far._port.domain.received.in_use
        raw.announce(address, rkey, length)
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "rendezvous"
        far._port.domain.received.take(1)  # collects what came back
        assert far._port.domain.received.in_use <= in_use + 8192
        near.send(plain(b"others go on"))
        assert receive(far)[0].bytes == b"others go on"


def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated(made: World) -> None:
    hub = made.socket(max_message=1 << 20)
    with closing(RawPeer(made, hub)) as raw:
        registered = raw.victim._port.domain.received.registered
        raw.announce(4096, 1, 1 << 40)
        error = end_of(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "too_large"
        assert raw.victim._port.domain.received.registered == registered


def test_a_peer_that_announces_and_dies(made: World) -> None:
    with closing(RawPeer(made)) as raw:
        received = raw.victim._port.domain.received
        before = received.in_use
        memory = raw.domain.staging.take(32 << 20)
        raw.message(b"first")
        raw.announce(memory.address, memory.rkey, 32 << 20)
        raw.die()
        assert receive(raw.victim)[0].bytes == b"first"
        assert isinstance(end_of(raw.victim), Broken | ProtocolError)
        received.give_back(received.take(1))
        received.give_back(received.take(1))
        assert received.in_use <= before + 4096


def test_a_peer_that_never_says_done(made: World) -> None:
    with closing(RawPeer(made)) as raw:
        raw.victim.rendezvous_timeout = 0.4
        regions = regions_of(raw.victim._port.domain)
        released: list[BaseException | None] = []
        data = bytearray(1 << 20)
        raw.victim.send(plain(data), hold=True, released=released.append)
        assert regions_of(raw.victim._port.domain) == regions + 1
        assert control_messages.decode(raw.hear()).word == control_messages.Word.ASK
        assert isinstance(end_of(raw.victim), Broken)
        assert len(released) == 1 and isinstance(released[0], TransferError)
        assert regions_of(raw.victim._port.domain) == regions
        data.append(1)  # it is ours again


def test_a_slow_peer_is_not_a_silent_one(made: World) -> None:
    with meet(made) as ends:
        near, far = ends.connecting, ends.accepting
        near.send(plain(b"s" * 1_000_000))
        # A second payload that does not fit into what is READ ahead stays announced.
        far._read_ahead = 1 << 40
        near.send(plain(b"t" * 1_000_000))
        for _ in range(3):
            opened = next(reversed(near._open.values()))
            opened.since -= near.rendezvous_timeout
            near._look_after()  # as the reactor does in time: it asks
            until(lambda opened=opened: opened.queried is None, "the answer")
            near._look_after()
            assert near.broken is None
        far._read_ahead = 0
        assert [receive(far)[0].bytes[:1] for _ in range(2)] == [b"s", b"t"]


def test_credits_exceeded(made: World) -> None:
    hub = made.socket()
    near, far = made.connect(made.socket(), hub)
    with closing(RawPeer(made, hub)) as raw:
        for _ in range(GRANT + 1):
            raw.message(b"x")
        for _ in range(200):
            raw.drain()
        time.sleep(0.2)
        error = end_of_after_messages(raw.victim)
        assert isinstance(error, ProtocolError) and error.reason == "credit"
        near.send(plain(b"others go on"))
        assert receive(far)[0].bytes == b"others go on"


def end_of_after_messages(stream) -> BaseException:
    def ended():
        try:
            stream._port.lock.acquire()
            stream._port.progress()
        finally:
            stream._port.lock.release()
        return stream.broken

    return until(ended, "the end")


@pytest.mark.parametrize(
    "data",
    [b"\0" * 64, b"no frame at all, but longer than a header is", bytes(range(100))],
    ids=["zeros", "text", "numbers"],
)
def test_bytes_that_are_no_frame(made: World, data: bytes) -> None:
    with closing(RawPeer(made)) as raw:
        raw.post(data)
        assert isinstance(end_of(raw.victim), ProtocolError)


@pytest.mark.parametrize(
    "word",
    [
        control_messages.encode(control_messages.Word.DONE, 1),
        control_messages.grant(GRANT + 1),
        control_messages.grant((1 << 64) - 1),
        b"\x0b\x09",
        b"\x0b\x02\x01",
    ],
    ids=["done", "grant", "grant-all", "word", "short"],
)
def test_control_messages_that_make_no_sense(made: World, word: bytes) -> None:
    with closing(RawPeer(made)) as raw:
        raw.say(word)
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
        {"buffers": 0},
        {"lid": 1 << 20},
        {"reads": True},
    ],
)
def test_what_a_peer_says_of_itself_is_checked(made: World, said) -> None:
    with pytest.raises(ProtocolError):
        RawPeer(made, said=said)


def test_another_size_of_buffers_is_declined(made: World) -> None:
    with pytest.raises(Declined) as declined:
        RawPeer(made, said={"buffer": BUFFER * 2})
    assert declined.value.reason == "buffer"


def test_no_memory_for_what_was_announced_ends_the_connection(fake: World) -> None:
    assert isinstance(fake.driver, FakeDriver)
    with meet(fake) as ends:
        ends.connecting.send(plain(b"x" * (16 << 20)))
        fake.driver.refuses = RegistrationError("memlock", "no")
        assert isinstance(end_of(ends.accepting), RegistrationError)
        fake.driver.refuses = None
    one, other = fake.sockets
    with pytest.raises(Declined) as declined:
        fake.connect(one, other)
    assert declined.value.reason == "memlock"


def test_a_device_that_never_answers_is_not_asked_again(fake: World) -> None:
    assert isinstance(fake.driver, FakeDriver)
    one, other = fake.socket(), fake.socket()
    near, far = fake.connect(one, other)
    fake.driver.down = True
    near.send(plain(b"lost"))
    until(near.flush, "the failure")
    assert isinstance(end_of(near), Broken)
    fake.driver.down = False
    far.close()
    with pytest.raises(Declined) as declined:
        fake.connect(one, other)
    assert declined.value.reason == "unreachable"


@pytest.mark.parametrize("phase", ["announced", "reading", "read"])
def test_memory_comes_back_whenever_a_peer_dies(fake: World, phase: str) -> None:
    driver = fake.driver
    assert isinstance(driver, FakeDriver)
    with meet(fake) as ends:
        regions = len(driver.regions)
        data, released = bytearray(8 << 20), []
        if phase == "reading":
            driver.held_reads = []
        ends.connecting.send(plain(data), hold=True, released=released.append)
        if phase != "announced":
            with ends.accepting._lock:
                ends.accepting._port.progress()
        ends.accepting.close()
        until(lambda: released, "the memory")
        assert len(driver.regions) <= regions + 2  # slabs for what was READ
        data.append(1)
        if driver.held_reads:
            driver.resume()


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
