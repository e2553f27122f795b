"""TLS channels, and peers that do what they should not; whose certificates are taken; new keys."""

from __future__ import annotations

import errno
import re
import select
import socket
import ssl
import threading
from contextlib import ExitStack, closing, suppress

import pytest

from tests.core.certificates import CORES, PROTOCOL, RECORD, core_of, drained, shake
from tests.core.conftest import connected
from tests.core.openssl import Client
from tests.core.raw_frames import eventually
from transfer.transports.errors import InternalError, SecurityError

# --- new keys ------------------------------------------------------------------------------------


@pytest.fixture(params=CORES)
def renewing(request, pki):
    """(socket of the server, its channel, an OpenSSL client without a certificate), after the handshake."""
    core = core_of(request.param)
    near, far = connected("tcp")
    far.setblocking(False)
    with far, closing(Client(near)) as client:
        channel = core.TlsChannel(pki.context(core, server=True, clients="none"), far.fileno())
        shake(channel, client)
        yield far, channel, client


def test_new_keys_in_the_middle(renewing):
    """Asked for by the peer, again and again, while data goes both ways."""
    far, channel, client = renewing
    channel.ahead()
    came, back = bytearray(), bytearray()
    for number in range(200):
        eventually(client.new_keys)
        data = bytes([number]) * 1000
        assert client.send(data) == 1000
        eventually(lambda: came.extend(drained(channel, far)[0]) or len(came) == 1000 * (number + 1))  # noqa: B023
        assert came[-1000:] == data
        if number % 3:
            assert channel.send(data) == 1000
            eventually(lambda: channel.flush() and not back.extend(client.recv(1000)) and len(back) == 1000)
            assert back == data
            back.clear()


@pytest.mark.parametrize(("asked", "said"), [(True, "new keys"), (False, "bytes")])
def test_new_keys_without_end_while_nobody_is_known(renewing, asked, said):
    """Not a byte of data comes, so nobody would ever have been asked who he is: it is bounded."""
    _, channel, client = renewing
    with pytest.raises(OSError) as caught:
        for _ in range(20_000):
            with suppress(OSError):
                client.new_keys(asked)
            with suppress(BlockingIOError):
                assert not channel.recv(34)
    assert caught.value.errno == errno.EPROTO and said in str(caught.value)


@pytest.mark.parametrize("asked", [True, False])
def test_new_keys_without_end_are_refused(renewing, asked):
    """Also of a peer that is known, or of whom nothing more is asked: each costs more than its bytes."""
    _, channel, client = renewing
    channel.ahead()
    with pytest.raises(OSError, match=r"new keys|without data"):
        for _ in range(10_000):
            with suppress(OSError):
                client.new_keys(asked)
            with suppress(BlockingIOError):
                assert not channel.recv(1 << 16)


def test_new_keys_without_end_do_not_keep_a_reader(renewing):
    """One read comes back, however fast the peer asks; and what is owed to the peer stays little."""
    _, channel, client = renewing
    channel.ahead()
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            with suppress(OSError):
                client.new_keys()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(20):
            with suppress(OSError):  # it may have had enough of the peer by now
                assert not channel.recv(1 << 16)
    finally:
        stop.set()
        thread.join(10)
    assert channel.unsent < 1 << 20


# --- bad peers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("farewell", [True, False], ids=["close_notify", "none"])
def test_the_end(line, farewell):
    """Streams know by themselves whether a message is whole, so the end is the end, said or not."""
    near, far, client, server = line()
    server.ahead()
    client.send(b"last")
    if farewell:
        client.close()
        client.close()
    near.close()
    came, ended = b"", False

    def read():
        nonlocal came, ended
        part, ended = drained(server, far)
        came += part
        return ended

    eventually(read)
    assert came == b"last"
    assert server.recv(100) == b"", "as often as one asks"


def test_the_end_inside_a_record(cores, pki):
    with tampering(cores, pki) as (client, server, far, ciphertext, deliver):
        client.send(b"x" * 1000)
        deliver(ciphertext()[:-1])
        assert drained(server, far) == (b"", False)


class tampering:
    """(client, server, the server's socket, what the client has just sent, deliver it)"""

    def __init__(self, cores, pki):
        self.cores, self.pki = cores, pki

    def __enter__(self):
        self.stack = ExitStack()
        near, seen, given, far = (
            self.stack.enter_context(end) for _ in range(2) for end in socket.socketpair()
        )
        for end in (near, seen, given, far):
            end.setblocking(False)
        one, other = self.cores
        client = one.TlsChannel(self.pki.context(one, server=False), near.fileno(), "127.0.0.1")
        server = other.TlsChannel(self.pki.context(other, server=True), far.fileno())

        def passed():
            for source, target in ((seen, given), (given, seen)):
                with suppress(BlockingIOError):
                    target.send(source.recv(1 << 16))

        shake(client, server, between=passed)
        server.ahead()
        return client, server, far, lambda: seen.recv(1 << 20), given.send

    def __exit__(self, *_):
        self.stack.close()


@pytest.mark.parametrize("name", CORES)
def test_a_flipped_bit_is_never_delivered(name, pki):
    """In any byte of a record, its head too: nothing of it comes out, and the connection is over."""
    cores = (core_of(name),) * 2
    with tampering(cores, pki) as (client, *_, ciphertext, _deliver):
        client.send(b"secret")
        length = len(ciphertext())
    for at in range(length):
        with tampering(cores, pki) as (client, server, _far, ciphertext, deliver):
            client.send(b"before")
            deliver(ciphertext())
            client.send(b"secret")
            changed = bytearray(ciphertext())
            changed[at] ^= 1 << at % 8
            deliver(changed)
            came = b""
            with suppress(BlockingIOError):
                came = server.recv(100)
            assert came == b"before"
            failures = []
            for _ in range(2):
                try:
                    assert not server.recv(100), f"byte {at}"
                except BlockingIOError:
                    assert at in (3, 4), "only a longer length makes it wait"
                    break
                except OSError as error:
                    failures.append(error)
            else:
                assert [error.errno for error in failures] == [errno.EPROTO] * 2
                with pytest.raises(OSError):
                    server.send(b"more")


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("way", ["again", "left out", "exchanged"])
def test_records_come_once_and_in_their_order(name, way, pki):
    cores = (core_of(name),) * 2
    with tampering(cores, pki) as (client, server, _far, ciphertext, deliver):
        records = []
        for data in (b"one", b"two"):
            client.send(data)
            records.append(ciphertext())
        one, two = records
        for record in {"again": (one, one), "left out": (two,), "exchanged": (two, one)}[way]:
            deliver(record)
        came = bytearray()
        with pytest.raises(OSError) as caught:
            for _ in range(3):
                came += server.recv(1000)
        assert caught.value.errno == errno.EPROTO
        assert came == (b"one" if way == "again" else b"")


STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "our own frames": bytes.fromhex("21514d5a01000000") + bytes(40),
    "zeros": bytes(100),
    "a record that is too large": b"\x16\x03\x01" + (RECORD + 257).to_bytes(2, "big") + bytes(RECORD),
    "SSL 2": b"\x80\x2e\x01\x00\x02" + bytes(100),
    "a record of no known type": b"\x19\x03\x03\x00\x10" + bytes(16),
    "data first": b"\x17\x03\x03\x00\x20" + bytes(32),
    "a hello that is garbage": b"\x16\x03\x01\x00\x30\x01\x00\x00\x2c" + bytes(44),
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
}


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("side", ["client", "server"])
def test_who_speaks_something_else(name, data, side, pki):
    core = core_of(name)
    near, far = connected("tcp")
    with near, far:
        far.setblocking(False)
        server = side == "server"
        channel = core.TlsChannel(
            pki.context(core, server=server), far.fileno(), "" if server else "127.0.0.1"
        )
        near.sendall(data)
        with pytest.raises(OSError) as caught:
            eventually(channel.handshake)
        assert caught.value.errno == errno.EPROTO and caught.value.strerror
        for again in (channel.handshake, lambda: channel.recv(10), lambda: channel.send(b"x")):
            with pytest.raises(OSError):
                again()


def cut(hello, size):
    """A ClientHello in records of so many bytes."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def announced(count):
    """A record with the head of a ClientHello that is so many bytes long, and no more."""
    return b"\x16\x03\x01\x00\x04\x01" + count.to_bytes(3, "big")


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_a_client_hello_in_pieces_is_refused(name, size, pki):
    """Each piece of it is a record of its own; OpenSSL takes what the first one announces."""
    assert "one record" in refusal(core_of(name), pki, cut(client_hello(), size))


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("count", [5, 1 << 14, 131_000, (1 << 24) - 1])
def test_a_client_hello_that_is_announced_only_is_refused(name, count, pki):
    assert "one record" in refusal(core_of(name), pki, announced(count))


@pytest.mark.parametrize("name", CORES)
def test_a_client_hello_that_fills_its_record_is_served(name, pki):
    core, context = core_of(name), ssl.create_default_context()
    context.set_alpn_protocols([PROTOCOL, *(f"{number:0250}" for number in range(60))])
    near, far = connected("tcp")
    with near, far:
        far.setblocking(False)
        channel = core.TlsChannel(pki.context(core, server=True), far.fileno())
        hello = client_hello(context)
        assert 15_000 < len(hello) < 16 << 10
        near.settimeout(10)
        near.sendall(hello)
        eventually(lambda: channel.handshake() or select.select([near], [], [], 0)[0])
        assert near.recv(3) == b"\x16\x03\x03", "its ServerHello"


@pytest.mark.parametrize("name", CORES)
def test_certificates_without_end(name, pki):
    """They come encrypted: OpenSSL takes what they announce."""
    large = pki.authority.issue("large", hosts=tuple(f"{number:060}.example" for number in range(1200)))
    core, sent = core_of(name), 0
    context = ssl.create_default_context(cafile=pki.authority.path)
    context.load_cert_chain(large.certificate, large.key)
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(came, goes, server_hostname="127.0.0.1")
    near, far = connected("tcp")
    with near, far:
        for end in (near, far):
            end.setblocking(False)
        server = core.TlsChannel(pki.context(core, server=True, protocols=()), far.fileno())

        def over():
            nonlocal sent
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            waiting = goes.read()
            for at in range(0, len(waiting), 1000):
                sent += near.send(waiting[at : at + 1000])
                server.handshake()
            with suppress(BlockingIOError):
                came.write(near.recv(1 << 16))

        with pytest.raises(OSError) as caught:
            eventually(over)
        assert caught.value.errno == errno.EPROTO
        assert re.search("excessive message size|handshake of more than 65536", caught.value.strerror)
        assert sent <= (24 << 10 if name == "native" else 68 << 10)


def client_hello(context=None):
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        (context or ssl.create_default_context()).wrap_bio(came, goes, server_hostname="here").do_handshake()
    return goes.read()


def refusal(core, pki, data):
    """What is said to a client that sends this."""
    near, far = connected("tcp")
    with near, far:
        far.setblocking(False)
        channel = core.TlsChannel(pki.context(core, server=True), far.fileno())
        near.sendall(data)
        with pytest.raises(OSError) as caught:
            eventually(channel.handshake)
        assert caught.value.errno == errno.EPROTO
        return caught.value.strerror


@pytest.mark.parametrize("name", CORES)
def test_the_peer_ends_in_the_handshake(name, pki):
    core = core_of(name)
    near, far = connected("tcp")
    with far:
        far.setblocking(False)
        channel = core.TlsChannel(pki.context(core, server=True), far.fileno())
        assert not channel.handshake()
        near.close()
        with pytest.raises(OSError) as caught:
            eventually(channel.handshake)
        assert caught.value.errno == errno.ECONNRESET


# --- whose certificate ---------------------------------------------------------------------------


def met(core, pki, hosts, expected, **changed):
    """Raises what the client finds wrong with a server whose certificate is for `hosts`."""
    near, far = connected("tcp")
    with near, far:
        for end in (near, far):
            end.setblocking(False)
        issued = pki.authority.issue("other", hosts=hosts)
        server = core.TlsChannel(
            pki.context(core, server=True, certificate=issued.certificate, key=issued.key), far.fileno()
        )
        client = core.TlsChannel(pki.context(core, server=False, **changed), near.fileno(), expected)
        shake(client, server)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (("127.0.0.1",), "127.0.0.1"),
        (("::1",), "::1"),
        (("broker.example",), "broker.example"),
        (("*.pods.example",), "one.pods.example"),
        (("fe80::1",), "fe80::1%lo"),
    ],
)
def test_names_that_fit(name, hosts, expected, pki):
    met(core_of(name), pki, hosts, expected)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (("127.0.0.1",), "127.0.0.2"),
        (("127.0.0.1",), "localhost"),
        (("localhost",), "127.0.0.1"),
        (("::1",), "::2"),
        (("fe80::2",), "fe80::1%lo"),
        (("broker.example",), "fe80::1%lo"),
        (("broker.example",), "worker.example"),
        (("broker.example",), "example"),
        (("example",), "broker.example"),
        (("*.pods.example",), "one.two.pods.example"),
        (("*.example",), "pods.example.org"),
        (("b*r.pods.example",), "broker.pods.example"),
        (("broker.example",), ".example"),
        (("broker.example",), "broker.example\0.org"),
        (("broker.example",), "broker.example\0"),
        (("broker.example",), "x" * 300),
        (("broker.example",), "ä" * 300),
        (("broker.example",), "0x7f.1"),
        (("broker.example",), "127.1"),
    ],
)
def test_names_that_do_not_fit(name, hosts, expected, pki):
    """Refused by whoever looks at the certificate, or before: as an error with a text."""
    with pytest.raises((OSError, SecurityError)) as caught:
        met(core_of(name), pki, hosts, expected)
    assert str(caught.value)


@pytest.mark.parametrize("name", CORES)
def test_a_client_has_to_say_whom_it_expects(name, pki):
    core = core_of(name)
    with pytest.raises(InternalError):
        core.TlsChannel(pki.context(core, server=False), 0)
