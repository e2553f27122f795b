"""What a peer of abtp may do to libzmq: end at any moment, and have another's identity."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import contextmanager

import pytest

from tests.broker.all_fronts import HERE
from tests.broker.in_process_broker import running
from tests.core.raw_frames import eventually
from tests.fuzz.fuzzed_broker import Held, Process
from transfer.broker.clients.abtp import AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.fronts.abtp_peer_names import NameTable
from transfer.broker.protocols.zmtp import GREETING

WHOLE = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
PING = b"\4\7\4PING\0\0"
FLOOD = b"\0\1y" * 300
PATIENCE = 20


def ready(identity=b"", kind=b"DEALER"):
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", kind), (b"Identity", identity)):
        body += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    return bytes([4, len(body)]) + body


def dial(endpoint):
    scheme, _, where = endpoint.partition("://")
    if scheme == "tcp":
        return socket.create_connection((HERE, int(where.rpartition(":")[2])), PATIENCE)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(PATIENCE)
    made.connect(where)
    return made


def greeted(endpoint, identity=b"", kind=b"DEALER"):
    """A plain connection behind its handshake."""
    made = dial(endpoint)
    made.sendall(WHOLE)
    whole = b""
    while len(whole) < GREETING + 2 or len(whole) < GREETING + 2 + whole[GREETING + 1]:
        came = made.recv(1000)
        assert came
        whole += came
    made.sendall(ready(identity, kind))
    return made


@contextmanager
def served(folder, scheme):
    """A broker as a process, which libzmq may abort: (it, where abtp's ROUTER and PUB listen)."""
    ends = [f"tcp://{HERE}:0"] * 2 if scheme == "tcp" else [f"ipc://{folder / name}" for name in ("r", "p")]
    here = f"tcp://{HERE}:0"
    broker = Process(
        folder / "log", "-m", "transfer", "broker", "--data", f"{folder}/data", "--json", "--spool", "off",
        "--http", "0", "--ttp", "0", "--pybroker", "0", "--rqueue", "0", "--requests", here, "--pushes", here,
        "--subscriptions", here, "--abtp", ends[0], "--abtp-pub", ends[1],
    )  # fmt: skip
    try:
        places = json.loads(broker.first)["endpoints"]
        yield broker, places["abtp router"], places["abtp pub"]
    finally:
        broker.close()


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_peers_with_one_identity_flood_and_close(tmp_path, scheme):
    with served(tmp_path, scheme) as (broker, router, pub), AbtpProducer(router, timeout=PATIENCE) as good:
        good.publish("good", b"first")
        before = Held(broker.pid).sockets
        for number in range(40):
            with greeted(router, b"x") as peer:
                peer.sendall(FLOOD * 10 + (PING + FLOOD if number % 2 else b""))
            with greeted(pub, kind=b"SUB") as peer:
                peer.sendall(b"".join(b"\0\3\1%02d" % at for at in range(10)) + PING)
            if number % 8 == 0:
                good.publish("good", number)
        good.publish("good", b"last")
        eventually(lambda: Held(broker.pid).sockets <= before, PATIENCE)
        assert broker.process.poll() is None


@contextmanager
def in_this_process(folder):
    abtp = AbtpEndpoints(f"tcp://{HERE}:0", f"tcp://{HERE}:0")
    with running(folder, native=None, ttp=None, pybroker=None, rqueue=None, abtp=abtp) as broker:
        yield broker, broker.endpoints["abtp router"]


def asked(peer):
    """Sends what the broker refuses, and has its answer."""
    peer.sendall(b"\1\0" + b"\1\x08_control" + b"\0\2{}")
    assert b"_control" in peer.recv(1000)


def test_the_newest_connection_has_the_identity(tmp_path):
    with in_this_process(tmp_path) as (broker, router):
        with greeted(router, b"me") as old:
            asked(old)
            with greeted(router, b"me") as new:
                assert old.recv(1) == b""
                asked(new)
        eventually(lambda: not broker.fronts["abtp"].connections, PATIENCE)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\xff" + bytes(8) + b"\x7f\x01\5", "ZMTP 3"),
        (b"\5hello", "ZMTP 3"),
        (WHOLE[:12] + b"PLAIN".ljust(20, b"\0") + bytes(32), "NULL"),
        (WHOLE + ready(b"\0same"), "zero"),
        (WHOLE + b"\6" + (5000).to_bytes(8, "big"), "4096"),
        (WHOLE + b"\0\1y", "READY"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path, caplog, said, why):
    with in_this_process(tmp_path) as (_, router):
        with dial(router) as peer:
            peer.sendall(said)
            while peer.recv(1000):
                pass
            assert any("abtp refuses" in line and why in line for line in caplog.messages)
        with AbtpProducer(router, timeout=PATIENCE) as good:
            good.publish("good", b"kept")


def test_names_of_one_identity():
    names = NameTable()
    first, before = names.enter(b"me", 1)
    assert before is None and names.newest(b"me") is first
    second, before = names.enter(b"me", 2)
    assert before == 1 and first.name != second.name
    assert [names.identity(one.name) for one in (first, second)] == [b"me", b"me"]
    names.leave(first)
    assert names.newest(b"me") is second
    names.leave(second)
    assert names.newest(b"me") is None


def test_peers_without_an_identity_have_names_too():
    names = NameTable()
    first, second = (names.enter(b"", number)[0] for number in (1, 2))
    assert first.name != second.name
    assert [names.newest(names.identity(one.name)) for one in (first, second)] == [first, second]
    names.leave(first)
    assert names.newest(first.name) is None and names.newest(second.name) is second


def test_bytes_that_wait_for_a_peer():
    named, _ = NameTable().enter(b"", 1)
    named.forwarded += 40  # the handshake's
    assert named.queued_bytes() == 0
    named.sent += 100
    assert named.queued_bytes() == 100
    named.forwarded += 60
    assert named.queued_bytes() == 40
    named.forwarded += 1000  # PONGs are no room for later
    assert named.queued_bytes() == 0
    named.sent += 100
    assert named.queued_bytes() == 100
