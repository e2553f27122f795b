"""Bad input at every front of a whole broker: it costs nothing, ends its connection, hurts nobody else."""

from __future__ import annotations

import contextlib
import struct
import time

import pytest

from tests.broker.all_fronts import all_fronts, clients, dial, serves, zmtp
from tests.broker.http_requests import ask
from tests.core.raw_frames import Raw
from tests.faults.raw_peer import is_closed, raw_peer, reset
from transfer.broker.fronts.pybroker import PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueSettings
from transfer.broker.protocols.pybroker import encode_publish as encode_file
from transfer.broker.protocols.rqueue import encode_publish, encode_subscribe
from transfer.broker.protocols.ttp import EOF, encode_head
from transfer.transports.core.wire import SocketType

HUGE = 1 << 50
#: bytes that the process may grow by while lengths are announced that nobody sends
LITTLE = 64 << 20
LIMITS = {
    "pybroker_limits": PyBrokerSettings(max_payload=1 << 20),
    "rqueue_limits": RqueueSettings(max_payload=1 << 20),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with all_fronts(tmp_path_factory.mktemp("data"), **LIMITS) as broker:
        yield broker
        assert serves(broker)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


#: what each front is told, where the length in front of it cannot be
TOO_LONG = {
    "ttp": encode_head(3, b"t", b"", HUGE),
    "ttp chunk": encode_head(4, b"t") + encode_head(5, b"", b"", HUGE, EOF),
    "ttp meta": encode_head(4, b"t", b'{"nbytes":%d}' % HUGE) + encode_head(5, b"", b"", HUGE),
    "pybroker": encode_file("t", 1 << 30),
    "pybroker header": b"\xff\xff\xff\xff\x01\x01t",
    "rqueue": encode_publish("t", 1 << 30),
    "rqueue header": b"\xff\xff\xff\xff\x01",
    "abtp router": zmtp() + b"\x02" + struct.pack(">Q", HUGE),
    "abtp router command": zmtp() + b"\x06" + struct.pack(">Q", HUGE),
    "abtp pub": zmtp(b"SUB") + b"\x02" + struct.pack(">Q", HUGE),
}


@pytest.mark.parametrize("case", TOO_LONG)
def test_a_length_that_cannot_be_costs_nothing(broker, case):
    front = " ".join(word for word in case.split() if word not in ("chunk", "meta", "header", "command"))
    before = resident()
    connections = [dial(broker, front) for _ in range(20)]
    for connection in connections:
        connection.sendall(TOO_LONG[case])
    for connection in connections:
        with connection:
            assert is_closed(connection)
    assert resident() - before < LITTLE


@pytest.mark.parametrize(
    ("socket", "kind"),
    [("requests", SocketType.DEALER), ("requests", SocketType.REQ), ("pushes", SocketType.PUSH),
     ("subscriptions", SocketType.SUB)],
)  # fmt: skip
def test_own_sockets_end_who_announces_too_much(broker, socket, kind):
    before = resident()
    for flags, words in ((0, {"length": HUGE}), (2, {"topic_length": (1 << 32) - 1, "length": HUGE})):
        with raw_peer(broker.endpoints[socket], kind) as peer:
            peer.sendall(Raw(socket_type=kind, flags=flags, **words).encode())
            assert is_closed(peer)
    assert resident() - before < LITTLE


def test_a_body_that_http_announces_is_not_waited_for(broker):
    before = resident()
    path = b"POST /api/admin/dlq/purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    for size in (HUGE, 1 << 30):
        with dial(broker, "http") as peer:
            peer.sendall(path + b"Content-Length: %d\r\n\r\n" % size)
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    peer.sendall(bytes(100_000))
            assert peer.recv(12) == b"HTTP/1.1 413"
    assert resident() - before < LITTLE


#: bytes that are none of the protocol: a wrong mark, a type that is none, another protocol
STRANGE = {
    "ttp": [b"\0" * 64, b"XXXX" * 16, encode_head(0), encode_head(99), encode_head(3)[:4] + b"\x09" * 60],
    "pybroker": [b"\x00\x00\x00\x05\x09abcd", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64],
    "rqueue": [b"\x00\x00\x00\x02\x09", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64],
    # What does not begin so is an old ZeroMQ to libzmq.
    "abtp router": [zmtp(b"NONE"), zmtp().replace(b"NULL", b"NEWS"), b"\xff" * 128],
    "abtp pub": [zmtp(b"PULL"), b"\xff" * 128],
    "requests": [b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64, b"\xff" * 128, Raw(magic=1).encode()],
    "pushes": [b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64, Raw(version=9).encode()],
    "subscriptions": [b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64, Raw(socket_type=99).encode()],
    "http": [b"\x16\x03\x01" + b"\0" * 64, b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
             b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"],
}  # fmt: skip


@pytest.mark.parametrize("front", STRANGE)
def test_what_is_none_of_the_protocol_ends_its_connection(broker, front):
    for data in STRANGE[front]:
        with dial(broker, front) as peer:
            with contextlib.suppress(ConnectionError):
                peer.sendall(data)
            assert is_closed(peer), data


#: whole messages of which a part is sent
WHOLE = {
    "ttp": encode_head(3, b"cut.short", b"meta", 1000) + bytes(1000),
    "pybroker": encode_file("cut.short", 1000) + bytes(1000),
    "rqueue": encode_subscribe("x") + encode_publish("cut.short", 1000) + bytes(1000),
    "abtp router": zmtp() + b"\x01\x00\x01\x09cut.short\x02" + struct.pack(">Q", 1000) + bytes(1000),
    "requests": Raw(bytes(1000), socket_type=int(SocketType.DEALER)).encode(),
    "pushes": Raw(b"cut.short", 16).encode() + Raw(bytes(1000), sequence=2).encode(),
    "subscriptions": Raw(b"\1x", 8, socket_type=int(SocketType.SUB)).encode(),
    "http": b"POST /api/admin/dlq/purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    + bytes(100),
}
_KINDS = {"requests": SocketType.DEALER, "pushes": SocketType.PUSH, "subscriptions": SocketType.SUB}


@pytest.mark.parametrize("end", ["closed", "reset"])
@pytest.mark.parametrize("front", WHOLE)
def test_a_message_that_is_cut_off_is_nothing(broker, front, end):
    data = WHOLE[front]
    for size in {1, 4, len(data) // 2, len(data) - 1}:
        if front in _KINDS:
            with raw_peer(broker.endpoints[front], _KINDS[front]) as peer:
                peer.sendall(data[:size])
                reset(peer) if end == "reset" else peer.close()
            continue
        peer = dial(broker, front)
        peer.sendall(data[:size])
        reset(peer) if end == "reset" else peer.close()
    deadline = time.monotonic() + 10
    while any(one.connections for one in broker.fronts.values()):
        assert time.monotonic() < deadline, {name: one.connections for name, one in broker.fronts.items()}
        time.sleep(0.01)
    assert "cut.short" not in broker.hub.store.topics


#: names that lead out of a folder, where names are paths
OUTSIDE = ["../outside", "../../outside", "/outside", "a/../../../outside", "..", "."]


def test_no_name_leaves_the_folder(tmp_path):
    data = tmp_path / "inside" / "data"
    with all_fronts(data) as broker, clients(broker) as publish:
        for topic in OUTSIDE:
            for front, say in publish.items():
                if front == "abtp" and (topic.startswith(".") or ".." in topic):
                    with pytest.raises(Exception, match="invalid_topic"):
                        say(topic, b"x")
                else:
                    say(topic, b"x")
            body = {
                "id": topic,
                "consumer": topic,
                "topic": topic,
                "payload": "x",
                "actor": "me",
                "reason": "x",
            }
            assert ask(broker.ports["http"], "/api/admin/dlq/dead-letter", method="POST", body=body)[0] in (
                201,
                400,
            )
            status, page = ask(broker.ports["http"], f"/{topic}")
            assert status == 404 or (status == 200 and "<title>Broker" in page)
        assert serves(broker)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in data.parent.iterdir()] == ["data"]
    assert sorted(path.name for path in data.iterdir() if not path.name.startswith("state.db")) == [
        "audit",
        "log",
    ]
    with all_fronts(data) as broker:  # and they are there
        assert set(OUTSIDE) <= set(broker.hub.store.topics)
