"""What the announcement of a payload takes: nothing. Raw programs, written from the protocols' pages,
announce much and send little."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

import transfer
from tests.broker.broker_processes import BrokerProcesses
from tests.broker.in_process_broker import running
from tests.broker.single_front import is_closed, single_front
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.announced import Announced, AnnouncedLimits
from transfer.broker.fronts.native_publisher import NativePublisher
from transfer.broker.fronts.publisher_front import PublishingSettings
from transfer.broker.fronts.pybroker import PyBrokerFront, PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueFront, RqueueSettings
from transfer.broker.fronts.ttp import TtpFront
from transfer.broker.storage.volume import VolumeShare, free_bytes, log_room
from transfer.transports.errors import LogFull

MIB, GIB = 1 << 20, 1 << 30


def pybroker(nbytes, topic=b"logs"):
    return struct.pack(">IBB", 1 + len(topic) + nbytes, 1, len(topic)) + topic


def rqueue(nbytes, topic=b"news"):
    inner = 1 + len(topic) + nbytes
    return struct.pack(">IBIBB", inner + 5, 0, inner, 7, len(topic)) + topic


def ttp(nbytes, topic=b"t", flags=0, number=9):
    return struct.pack(">IHBBQIIQ", 0x544D5150, 2, 3, flags, number, len(topic), 0, nbytes) + topic


PROTOCOLS = {"pybroker": pybroker, "rqueue": rqueue, "ttp": ttp}
FRONTS = {
    "pybroker": lambda hub, lines: PyBrokerFront(hub, lines, PyBrokerSettings()),
    "rqueue": lambda hub, lines: RqueueFront(hub, lines, RqueueSettings()),
    "ttp": TtpFront,
}


def taken(folder: Path) -> int:
    """Bytes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def connect(port):
    return socket.create_connection(("127.0.0.1", port), 10)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("keep", [True, False])
def test_announcements_of_2_gib_take_neither_disk_nor_memory(tmp_path, protocol, keep):
    front = FRONTS[protocol]
    limits = AnnouncedLimits(total=1 << 50, per_connection=1 << 50)
    with (
        single_front(tmp_path, front, durable=lambda name: keep) as broker,
        BrokerThatListens(broker) as listening,
    ):
        broker.hub.announced = Announced(limits)
        broker.hub.store.free = lambda: 1 << 50
        disk, memory = taken(tmp_path), resident()
        peers = [connect(broker.port) for _ in range(10)]
        for peer in peers:
            peer.sendall(PROTOCOLS[protocol](2 * GIB)[:35])
        broker.until(lambda: len(broker.hub._uploads) == 10)
        assert taken(tmp_path) - disk < MIB
        assert resident() - memory < 10 * MIB and listening.largest == 0
        peers[0].sendall(bytes(2 * MIB))
        if keep:
            broker.until(lambda: taken(tmp_path) - disk >= 2 * MIB)
        assert taken(tmp_path) - disk <= 5 * MIB
        for peer in peers:
            peer.close()
        broker.until(lambda: not broker.hub._uploads and taken(tmp_path) - disk < MIB)
        assert broker.call(lambda: broker.hub.announced.nbytes) == 0


class BrokerThatListens:
    """Somebody who subscribes to everything, as the PUB socket does, and gathers what comes."""

    def __init__(self, broker):
        self._broker = broker
        self.largest = 0

    def _made(self):
        hub, loop = self._broker.hub, asyncio.get_running_loop()
        return NativePublisher(hub, loop, self._context, "inproc://announced", 4 * GIB)

    def __enter__(self):
        self._context = transfer.Context()
        self._sub = self._context.socket(transfer.SUB)
        self._pub = self._broker.call(self._made)
        self._sub.connect("inproc://announced")
        self._sub.subscribe(b"")
        self._broker.until(lambda: not self._pub.idle)
        self._broker.call(self._broker.hub.subscribe, self._pub, pattern(Kind.PREFIX, ""))
        return self

    def __exit__(self, *exc):
        self._broker.call(self._broker.hub.leave, self._pub)
        self._pub.socket.close(0)
        self._context.destroy(0)


def test_by_the_brokers_own_protocol_too(tmp_path):
    limits = AnnouncedLimits(per_connection=6 * GIB)
    with running(tmp_path, announced=limits, retention_bytes=None) as broker, transfer.Context() as context:
        broker.hub.store.free = lambda: 1 << 50
        disk = taken(tmp_path)
        with context.socket(transfer.DEALER) as dealer:
            dealer.connect(broker.endpoints["requests"])
            for number in range(5):
                head = struct.pack("<BBHIQ", 1, 9, 0, 1, number)
                dealer.send(head + struct.pack("<QHH", 2 * GIB, 4, 0) + b"logs")
            answers = [dealer.recv_multipart()[0] for _ in range(5)]
        assert sorted(bytes(answer)[1] for answer in answers) == [18, 18, 24, 24, 24]  # REFUSED, GRANT
        assert taken(tmp_path) - disk < MIB


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_that_announce_stay_within_the_budget_and_another_still_gets_through(tmp_path, protocol):
    announce = PROTOCOLS[protocol]
    with single_front(tmp_path, FRONTS[protocol]) as broker:
        broker.hub.announced = Announced(AnnouncedLimits(per_connection=GIB, total=4 * GIB))
        broker.hub.store.free = lambda: 1 << 50
        peers = []
        for _ in range(12):
            peers.append(connect(broker.port))
            peers[-1].sendall(announce(GIB))
            assert broker.call(lambda: broker.hub.announced.nbytes) <= 4 * GIB
        broker.until(lambda: broker.front.counters["refused"] == 8)
        for passage in broker.hub._uploads:  # as if they had sent nothing for so long
            passage._pace = (broker._loop.time() - 5, GIB)
        payload = os.urandom(4 * MIB)
        good = connect(broker.port)
        good.sendall(announce(len(payload)) + payload)
        topic = {"pybroker": "logs", "rqueue": "news", "ttp": "t"}[protocol]
        broker.until(lambda: b"".join(broker.hub.stream(topic, 0, 1 << 30)) == payload)
        assert broker.hub.counts["revoked"] == 1
        good.close()
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_does_not_fit_is_refused_at_once(tmp_path, protocol):
    announce = PROTOCOLS[protocol]
    with single_front(tmp_path, FRONTS[protocol]) as broker:
        broker.hub.store.free = lambda: GIB
        with connect(broker.port) as peer:
            peer.sendall(announce(GIB + 1))
            if protocol == "ttp":
                head = struct.unpack(">IHBBQIIQ", peer.recv(32, socket.MSG_WAITALL))
                assert head[2] == 8 and head[4] == 9
                assert json.loads(peer.recv(head[7], socket.MSG_WAITALL))["code"] == "full"
            else:
                assert is_closed(peer) and broker.front.counters["refused"] == 1
        assert broker.call(lambda: broker.hub.announced.nbytes) == 0
        with connect(broker.port) as peer:
            peer.sendall(announce(GIB - 1))
            broker.until(lambda: broker.hub.announced.nbytes == GIB - 1)


@pytest.mark.parametrize("protocol", ["pybroker", "rqueue"])
def test_who_stalls_is_dropped_and_its_share_is_free(tmp_path, protocol):
    with single_front(tmp_path, FRONTS[protocol]) as broker, connect(broker.port) as peer:
        peer.sendall(PROTOCOLS[protocol](2 * MIB) + b"begun")
        broker.until(lambda: broker.hub.announced.nbytes == 2 * MIB - 5)
        broker.tick(PublishingSettings().stall_timeout + 1)
        assert is_closed(peer) and broker.front.counters["stalled"] == 1
        broker.until(lambda: broker.hub.announced.nbytes == 0)


def test_a_full_size_payload_arrives_whole(tmp_path):
    piece, nbytes = os.urandom(MIB), 256 * MIB
    with single_front(tmp_path, FRONTS["pybroker"]) as broker, connect(broker.port) as peer:
        sender = threading.Thread(target=lambda: [peer.sendall(piece) for _ in range(nbytes // MIB)])
        peer.sendall(pybroker(nbytes))
        sender.start()
        sender.join(60)
        broker.until(lambda: broker.hub.store.topic("logs").kept == 1)
        for at in (0, 100 * MIB, nbytes - MIB):
            assert b"".join(broker.call(broker.hub.stream, "logs", at, MIB)) == piece
        assert taken(tmp_path) <= nbytes + 3 * (64 << 20)


def test_a_killed_broker_leaves_nothing_of_a_payload_behind(tmp_path):
    with BrokerProcesses() as program:
        _, ports = program.start(tmp_path)
        with connect(ports["pybroker"]) as peer, connect(ports["ttp"]) as other:
            peer.sendall(pybroker(GIB) + bytes(30 * MIB))
            other.sendall(ttp(GIB) + bytes(30 * MIB))
            deadline = time.monotonic() + 10
            while taken(tmp_path / "log") < (64 << 20) + 40 * MIB:
                assert time.monotonic() < deadline
            program.kill()
        program.start(tmp_path)
        assert taken(tmp_path / "log") <= (64 << 20) + MIB


def test_the_limits_are_of_each_and_of_all():
    announced = Announced(AnnouncedLimits(per_connection=10, total=15))
    first = announced.add("a", 8)
    with pytest.raises(LogFull, match="per_connection"):
        announced.add("a", 3)
    second = announced.add("b", 7)
    with pytest.raises(LogFull, match="all publishers together"):
        announced.add("c", 1)
    first.arrived(8)
    announced.add("a", 8).end()
    second.end()
    second.end()
    assert announced.nbytes == 0


def test_a_share_of_the_volume_counts_what_the_log_takes_already(tmp_path):
    log = tmp_path / "log"
    room = log_room(VolumeShare(50), log)
    assert abs(room - free_bytes(tmp_path) // 2) < 1 << 30
    assert log_room(None, log) is None and log_room(7, log) == 7
    with running(tmp_path) as broker:
        assert broker.hub.store.log._journal.room.retention.bytes is not None
    with running(tmp_path, retention_bytes=None) as broker:
        assert broker.hub.store.log._journal.room.retention.bytes is None
