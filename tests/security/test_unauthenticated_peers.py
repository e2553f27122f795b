"""Those who come and do not say who they are: slowly, many, or without end. Nobody else is kept out."""

from __future__ import annotations

import gc
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.security.conftest import TOKEN
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until

_FLOOD = str(Path(__file__).with_name("flood.py"))


def client_hello() -> bytes:
    """The first bytes of somebody who speaks TLS."""
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = ssl.create_default_context().wrap_bio(came, goes, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        made.do_handshake()
    return goes.read()


def securities(pki):
    return {"tls": pki.security(), "token": Security(token=TOKEN), "nothing": Security()}


@pytest.mark.parametrize("kind", ["tls", "token", "nothing"])
def test_one_byte_after_the_other(pair, pki, kind):
    """The time for a handshake is for all of it, and does not begin anew with each byte."""
    security = securities(pki)[kind]
    server, address = pair.serve(security, timeout=0.5)
    data = client_hello() if kind == "tls" else encode(make_hello(SocketType.PUSH, proves=kind == "token"))
    ended = threading.Event()
    with socket.create_connection((address.host, address.port)) as slow:

        def drip():
            with suppress(OSError):
                for byte in data:
                    if ended.wait(0.02):
                        return
                    slow.sendall(bytes([byte]))

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            pair.meets(server, pair.reach(address, security))
            until(lambda: server.failed, "the end of its time")
            assert thread.is_alive() or kind != "tls", "it was still talking"
        finally:
            ended.set()
            thread.join()
    assert [error.reason for error in server.failed] == ["timeout"] and server.failed[0].hint


def test_silence_inside_tls(pair, pki):
    """The handshake of TLS is over, and no hello comes."""
    server, address = pair.serve(pki.security(clients="token", token=TOKEN), timeout=0.3)
    context = ssl.create_default_context(cafile=pki.authority.path)
    with (
        socket.create_connection((address.host, address.port)) as plain,
        context.wrap_socket(plain, server_hostname=address.host),
    ):
        until(lambda: server.failed, "the end of its time")
    assert server.failed[0].reason == "timeout"


@contextmanager
def flooding(address, count, begins, good=b""):
    """Another process holds so many connections open."""
    process = subprocess.Popen(
        [sys.executable, "-S", _FLOOD, address.host, str(address.port), str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        process.stdin.write("".join(begin.hex() + "\n" for begin in begins) + "-\n" + good.hex() + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def memory() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 12_000:
        pytest.skip(f"a process may have {hard} descriptors here, and 10,000 connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_ten_thousand_that_are_half_open(pair, pki, many_descriptors):
    """A third says nothing, a third begins a record, a third begins with TLS and goes no further."""
    count, security = 10_000, pki.security()
    hello = client_hello()
    server, address = pair.serve(security)
    before = memory()
    with flooding(address, count, [b"\x16", hello[:-1], hello]) as flood:
        until(lambda: len(server.failed) >= count - security.max_unauthenticated, "those who were put out")
        assert flood.stdout.readline() == "open\n"
        each = (memory() - before) / security.max_unauthenticated
        pair.meets(server, pair.reach(address, security))
        reasons = {error.reason for error in server.failed}
    assert reasons == {"crowded"} and all(isinstance(error, HandshakeError) for error in server.failed)
    print(f"an unfinished handshake takes {round(each)} bytes")
    assert each < 96 * 1024
    until(lambda: len(server.failed) == count, "the end of all of them")


def test_no_descriptor_is_left(pair):
    """Strangers have them all: those who came first give theirs, long before their time is over."""
    server, address = pair.serve(Security())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/dev/null") as lowest:
        used = lowest.fileno()
    hello = encode(make_hello(SocketType.PUSH))
    with flooding(address, 200, [b""], hello) as flood:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, hard))
            assert flood.stdout.readline() == "open\n"
            until(lambda: any(isinstance(error, HandshakeError) for error in server.failed), "room")
            flood.stdin.write("\n")
            flood.stdin.flush()
            assert flood.stdout.readline() == "in\n"
            until(lambda: server.connected, "the good peer")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert {error.reason for error in server.failed if isinstance(error, HandshakeError)} == {"crowded"}


def test_a_limit_of_connections(core):
    import transfer

    with (
        transfer.Context(core=core, security=Security(max_connections=2)) as context,
        context.socket(transfer.PULL, rcvtimeo=10_000) as pull,
        transfer.Context(core=core) as others,
    ):
        pull.bind("tcp://127.0.0.1:0")
        ends = [others.socket(transfer.PUSH, linger=0) for _ in range(3)]
        try:
            for end in ends[:2]:
                end.connect(pull.last_endpoint)
                end.wait_for_peers(1, 10)
            ends[2].connect(pull.last_endpoint)
            time.sleep(0.2)  # it is turned away, again and again
            assert len(pull.peers()) == 2
            ends[0].close()
            ends[2].send(b"late")
            assert pull.recv() == b"late"
        finally:
            for end in ends:
                end.close()
