"""TLS channels: both cores against each other, and against Python's `ssl`."""

from __future__ import annotations

import gc
import resource
import socket
import ssl
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.conftest import descriptors
from tests.core.certificates import (
    CORES,
    CROSSED,
    PROTOCOL,
    RECORD,
    core_of,
    drained,
    exchanged,
    is_readable,
    sent,
    shake,
    soon,
)
from tests.core.conftest import connected
from tests.core.raw_frames import eventually

# --- good peers ----------------------------------------------------------------------------------


def test_who_is_there_and_bytes_both_ways(line, pki):
    near, far, client, server = line()
    der = ssl.PEM_cert_to_DER_cert(Path(pki.issued.certificate).read_text())
    for channel in (client, server):
        assert channel.done and channel.alpn == PROTOCOL and not channel.pending and not channel.unsent
        assert channel.peer_certificate == channel.own_certificate == der
        channel.ahead()
    assert exchanged((near, client), (far, server), b"there") == b"there"
    assert exchanged((far, server), (near, client), b"back" * 100_000) == b"back" * 100_000


def test_a_handshake_byte_by_byte(cores, pki):
    """And what follows it at once, of which nothing is swallowed."""
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for _ in range(2) for end in socket.socketpair()]
        for end in ends:
            end.setblocking(False)
        near, relay_near, relay_far, far = ends
        client = cores[0].TlsChannel(pki.context(cores[0], server=False), near.fileno(), "127.0.0.1")
        server = cores[1].TlsChannel(pki.context(cores[1], server=True), far.fileno())

        def byte_by_byte():
            for source, target in ((relay_near, relay_far), (relay_far, relay_near)):
                with suppress(BlockingIOError):
                    target.send(source.recv(1))

        shake(client, server, between=byte_by_byte)
        client.send(b"hello")
        client.send(b"message")
        came = bytearray()

        def arrived():
            byte_by_byte()
            with suppress(BlockingIOError):
                came.extend(server.recv(5 - len(came)))
            return len(came) == 5

        soon(arrived)
        assert came == b"hello" and not server.pending, "exactly what was asked for"
        server.ahead()
        came.clear()

        def rest_arrived():
            byte_by_byte()
            came.extend(drained(server, far)[0])
            return came == b"message"

        soon(rest_arrived)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_much_through_tiny_buffers_in_both_directions(line, kind):
    near, far, client, server = line(kind, buffer=1)
    data = bytes(range(251)) * (1200 if kind == "tcp" else 300)
    for channel in (client, server):
        channel.ahead()
    rest = {id(client): memoryview(data), id(server): memoryview(data)}
    came = {id(client): bytearray(), id(server): bytearray()}

    def moved():
        for end, channel in ((near, client), (far, server)):
            rest[id(channel)] = rest[id(channel)][sent(channel, rest[id(channel)]) :]
            channel.flush()
            came[id(channel)] += drained(channel, end, 32 * 1024)[0]
        return all(len(each) == len(data) for each in came.values())

    soon(moved)
    assert all(each == data for each in came.values())


@given(
    parts=st.lists(st.integers(0, 70_000), min_size=1, max_size=8),
    rooms=st.lists(st.sampled_from([1, 5, 100, RECORD - 1, RECORD, 32_768, 33_000, 150_000]), min_size=1),
    pieces=st.lists(st.integers(1, 40_000) | st.just(100), min_size=1),
    gathered=st.booleans(),
)
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("names", CROSSED, ids="-".join)
def test_any_sizes_of_writes_and_reads(names, pki, parts, rooms, pieces, gathered):
    """Ciphertext comes in pieces of any size. What the descriptor does not tell of is `pending`, and that
    only where a read had less room than 32 KiB."""
    near, relay = socket.socketpair()
    given, far = socket.socketpair()
    with near, relay, given, far:
        for end in (near, relay, given, far):
            end.setblocking(False)
        one, other = map(core_of, names)
        client = one.TlsChannel(pki.context(one, server=False), near.fileno(), "127.0.0.1")
        server = other.TlsChannel(pki.context(other, server=True), far.fileno())
        size, room = deque(pieces), deque(rooms)

        def passed():
            for source, target in ((relay, given), (given, relay)):
                with suppress(BlockingIOError):
                    data = source.recv(size[0])
                    size.rotate()
                    assert target.send(data) == len(data)

        shake(client, server, between=passed)
        server.ahead()
        data = b"".join(bytes([number % 256]) * length for number, length in enumerate(parts))
        chunks: deque[bytes] = deque(
            [data] if gathered else [bytes([number % 256]) * length for number, length in enumerate(parts)]
        )
        came = bytearray()

        def moved():
            if chunks:
                taken = 0
                with suppress(BlockingIOError):
                    taken = client.sendmsg((chunks[0][:7], chunks[0][7:]))
                    chunks[0] = chunks[0][taken:]
                if not chunks[0]:
                    chunks.popleft()
            client.flush()
            passed()
            while is_readable(far) or server.pending:
                memory = bytearray(room[0])
                room.rotate()
                try:
                    came.extend(memory[: server.recv_into(memory)])
                except BlockingIOError:
                    break
                assert len(memory) < 32_768 or not server.pending
            return len(came) == len(data) and not chunks

        soon(moved)
        assert came == data


def test_one_thread_reads_while_another_writes(line):
    """Both directions are full all the time."""
    near, far, client, server = line()
    total = 24 << 20
    failures: list[BaseException] = []
    block = bytes(range(256)) * 1024

    def writing(end, channel):
        try:
            left = total
            while left:
                taken = sent(channel, memoryview(block)[: min(left, len(block))])
                left -= taken
                if not taken:
                    threading.Event().wait(0.0005)
            eventually(channel.flush)
        except (OSError, AssertionError) as error:
            failures.append(error)

    def reading(end, channel):
        try:
            count = 0
            memory = bytearray(1 << 18)
            while count < total and not failures:
                if not is_readable(end):
                    threading.Event().wait(0.0005)
                    continue
                with suppress(BlockingIOError):
                    got = channel.recv_into(memory)
                    at = count % 256
                    assert memory[:256] == (block[at:] + block)[: min(256, got)] or got < 256
                    count += got
        except (OSError, AssertionError) as error:
            failures.append(error)

    for channel in (client, server):
        channel.ahead()
    threads = [
        threading.Thread(target=work, args=end)
        for work in (writing, reading)
        for end in ((near, client), (far, server))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("side", ["client", "server"])
def test_pythons_own_sockets_as_the_peer(name, side, pki):
    core = core_of(name)
    near, far = connected("tcp")
    data = bytes(range(256)) * 20_000
    failures = []

    def peer():
        try:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side == "client" else ssl.PROTOCOL_TLS_CLIENT)
            made.load_cert_chain(pki.issued.certificate, pki.issued.key)
            made.load_verify_locations(pki.authority.path)
            made.verify_mode = ssl.CERT_REQUIRED
            made.set_alpn_protocols([PROTOCOL])
            host = None if side == "client" else "127.0.0.1"
            with made.wrap_socket(far, server_side=side == "client", server_hostname=host) as end:
                assert end.version() == "TLSv1.3" and end.selected_alpn_protocol() == PROTOCOL
                left = len(data)
                while left:
                    part = end.recv(100_000)
                    assert part == data[len(data) - left :][: len(part)]
                    left -= len(part)
                end.sendall(data)
                end.unwrap()
        except (OSError, AssertionError) as error:
            failures.append(error)

    thread = threading.Thread(target=peer)
    thread.start()
    with near:
        near.setblocking(False)
        is_client = side == "client"
        context = pki.context(core, server=not is_client)
        channel = core.TlsChannel(context, near.fileno(), "127.0.0.1" if is_client else "")
        shake(channel)
        channel.ahead()
        rest = memoryview(data)
        while rest and not failures:
            rest = rest[sent(channel, rest) :]
        eventually(channel.flush)
        came, ended = bytearray(), False
        while not ended and not failures:
            with suppress(BlockingIOError):  # the descriptor does not tell of a farewell behind data
                part = channel.recv(1 << 16)
                ended = not part
                came += part
        channel.close()
        thread.join(20)
    assert not failures and came == data


# --- nothing is left -----------------------------------------------------------------------------


def test_no_stream_is_made_of_a_channel_that_has_more_than_the_handshake(core, kit, pki):
    """What was half made called a method that it did not have yet, and the process died; each one also took a
    reference that was not its own from the flusher."""
    for _ in range(5):
        near, far = connected("unix")
        with near, far:
            client, server = pki.channels(near, far, core, core)
            client.send(b"x" * 20_000)
            server.recv(30)
            with pytest.raises(OSError, match="more than its part"):
                kit.stream(far.fileno(), channel=server)
            gc.collect()
            client.close(), server.close()
    near, far = connected("unix")
    with near:
        kit.stream(far.detach()).close()  # the flusher is there


@pytest.mark.parametrize("name", CORES)
def test_a_thousand_connections_leave_nothing(name, pki):
    """Half of them end in the middle of their handshake."""
    core = core_of(name)
    contexts = pki.context(core, server=False), pki.context(core, server=True)

    def once(number):
        near, far = connected("unix")
        with near, far:
            for end in (near, far):
                end.setblocking(False)
            client = core.TlsChannel(contexts[0], near.fileno(), "127.0.0.1")
            server = core.TlsChannel(contexts[1], far.fileno())
            if number % 2:
                client.handshake()
                server.handshake()
                return
            shake(client, server)
            client.send(b"x" * 20_000)
            server.recv(30)
            client.close()

    for number in range(100):
        once(number)
    gc.collect()
    before, memory = len(descriptors()), _memory()
    for number in range(1000):
        once(number)
    gc.collect()
    assert len(descriptors()) == before
    assert _memory() - memory < 6 << 20, "each connection has some 50 KiB while it is"


def _memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
