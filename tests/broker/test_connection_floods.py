"""Floods of connections at every port of a broker with few descriptors: it keeps what good peers publish."""

from __future__ import annotations

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

import transfer
from tests.broker.all_fronts import HERE, zmtp
from tests.broker.broker_with_few_descriptors import security
from tests.security.test_unauthenticated_peers import client_hello
from transfer.broker.clients.abtp import AbtpProducer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.certificates import Authority
from transfer.transports.core.wire import SocketType
from transfer.transports.descriptors import RESERVE
from transfer.transports.errors import Broken
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until

_HERE = Path(__file__).parent
#: bytes of the broker's memory
MOST_OF_A_HANDSHAKE = 64 << 10
#: processes that open the connections
_OPENERS = 4


@contextmanager
def child(*arguments):
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class Publishing(threading.Thread):
    """A good peer that publishes and receives all the while. times: of each round trip, in seconds."""

    def __init__(self, client):
        super().__init__()
        self.times = []
        self.error = None
        self.ended = threading.Event()
        self._client = client

    def run(self):
        try:
            consumer = self._client.consume("good", "readers")
            while not self.ended.wait(0.005):
                begun = time.monotonic()
                self._client.publish("good", b"kept" * 300)
                consumer.ack(consumer.recv(20))
                self.times.append(time.monotonic() - begun)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error


@contextmanager
def limited_broker(tmp_path, descriptors, *, plain=False):
    """(process, ports by name, how a good peer comes in) of a broker."""
    identities, folder = tmp_path / "identities", tmp_path / "data"
    if not plain:
        identities.mkdir()
        authority = Authority(identities)
        for name in ("broker", "good"):
            authority.issue(name)
    good = Security() if plain else security(identities, "good")
    with child(
        _HERE / "broker_with_few_descriptors.py", folder, descriptors, *([] if plain else [identities])
    ) as broker:
        yield broker, json.loads(broker.stdout.readline()), good


def begins(plain):
    """What each connection sends, and then nothing more."""
    if not plain:
        return [b"", client_hello(), b"\x16"]
    hello = encode(make_hello(SocketType.PUSH))
    return [b"", hello[:20], b"TMQP\x02", zmtp()[:64], b"GET / HTTP/1.1\r\n"]


def publish_late(ports, security, topic):
    """Programs that connect during the flood, one at each front."""
    patient = {"security": security, "timeout": 20}
    abtp = f"tcp://{HERE}:{ports['abtp router']}"
    with (
        RqueueClient(HERE, ports["rqueue"], **patient) as rqueue,
        PyBrokerClient(HERE, ports["pybroker"], **patient) as pybroker,
        TtpClient(HERE, ports["ttp"], **patient) as ttp,
        AbtpProducer(abtp, **patient) as producer,
    ):
        rqueue.subscribe(topic)
        rqueue.publish(topic, b"by rqueue")
        assert rqueue.recv().content == b"by rqueue"
        pybroker.publish(topic, b"by PyBroker")
        ttp.publish(topic, b"by TTP", wait=True)
        producer.publish(topic, b"by abtp")
        assert sorted(rqueue.recv().content for _ in range(3)) == [b"by PyBroker", b"by TTP", b"by abtp"]


def flood(tmp_path, descriptors, connections, *, plain=False):
    """(ports, round trips): the broker's ports and a good peer's round trips during the flood."""
    with ExitStack() as stack:
        broker, ports, good_one = stack.enter_context(limited_broker(tmp_path, descriptors, plain=plain))
        context = stack.enter_context(transfer.Context(security=good_one))
        requests = f"tcp://127.0.0.1:{ports['requests']}"
        good = stack.enter_context(BrokerClient(requests, context=context))
        floods = [
            stack.enter_context(
                child(_HERE / "connection_flood.py", connections // _OPENERS, *ports.values())
            )
            for _ in range(_OPENERS)
        ]
        for opener in floods:  # their start would hold up the good peer, which is in this process
            assert opener.stdout.readline() == "ready\n"
        publishing = Publishing(good)
        publishing.start()
        try:
            for opener in floods:
                opener.stdin.write(",".join(begin.hex() for begin in begins(plain)) + "\n")
                opener.stdin.flush()
            for opener in floods:
                assert opener.stdout.readline() == "open\n"
            most = descriptors - min(RESERVE, descriptors // 8)
            until(lambda: len(os.listdir(f"/proc/{broker.pid}/fd")) <= most, "descriptors for files")
            good.publish("large", bytes(1 << 20))  # its file is made now
            with BrokerClient(requests, context=context) as late:
                late.publish("good", b"of one who came late")
            for attempt in range(5):
                try:
                    publish_late(ports, good_one, f"late{attempt}")
                    break
                except Broken:  # before its first frame it was the oldest of those without a certificate
                    if not plain or attempt == 4:
                        raise
        finally:
            publishing.ended.set()
            publishing.join()
        if publishing.error is not None:
            raise publishing.error
        assert broker.poll() is None
    return ports, publishing.times


plain = pytest.mark.parametrize("plain", [False, True], ids=["tls", "plain"])


@plain
def test_no_message_of_a_good_peer_is_lost(tmp_path, plain):
    ports, times = flood(tmp_path, descriptors=256, connections=600, plain=plain)
    assert len(ports) == 11 and times


def resident(pid):
    """Bytes of memory that this process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def ports_to_measure():
    quick, others = ("http",), ("ttp", "pybroker", "rqueue", "abtp router", "abtp pub", "requests", "spool")
    return [*quick, *(pytest.param(port, marks=pytest.mark.slow) for port in others)]


def says_hello(end, _):
    """What TLS begins with; the broker answers with its certificate."""
    end.sendall(_hello())


_hello = cache(client_hello)  # its making reads all certificates of this machine


def shows_half_a_certificate(end, context):
    """All but the rest of what the certificate's record announces."""
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(came, goes, server_hostname=HERE)
    while True:
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            break
        end.sendall(goes.read())
        came.write(end.recv(1 << 16))
    last = goes.read()
    end.sendall(last[: len(last) - 8192])


@pytest.mark.parametrize("port", ports_to_measure())
@pytest.mark.parametrize("says", [says_hello, shows_half_a_certificate])
def test_an_unfinished_handshake_takes_little_memory(tmp_path, port, says):
    count = 500
    with ExitStack() as stack:
        broker, ports, _ = stack.enter_context(limited_broker(tmp_path, 4096))
        authority = Authority.opened(tmp_path / "identities")
        large = authority.issue("large", hosts=tuple(f"{number:058}.example" for number in range(300)))
        context = ssl.create_default_context(cafile=authority.path)
        context.load_cert_chain(large.certificate, large.key)
        ends = []
        for number in range(count + 100):
            if number == 100:  # what the first ones need stays
                before = resident(broker.pid)
            ends.append(stack.enter_context(socket.create_connection((HERE, ports[port]), 20)))
            says(ends[-1], context)
        if says is says_hello:
            for end in ends:
                assert end.recv(1), "the broker's part of the handshake"
        each = (resident(broker.pid) - before) / count
    print(f"an unfinished handshake at {port} takes {each / 1024:.0f} KiB")
    assert each <= MOST_OF_A_HANDSHAKE


@pytest.mark.slow
@plain
def test_ten_thousand_connections(tmp_path, plain):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 12_000:
        pytest.skip(f"a process may have {hard} descriptors here")
    # which raises for what is not kept
    ports, times = flood(tmp_path, descriptors=4096, connections=10_000, plain=plain)
    assert len(ports) == 11 and times
    times.sort()
    print(
        f"{len(times)} round trips, {times[len(times) // 2] * 1e3:.1f} ms, at most {times[-1] * 1e3:.0f} ms"
    )
