"""Heads of requests that have no end: how much of them is read, and how many connections may have one."""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import ExitStack, suppress

import pytest

from tests.broker import test_connection_floods as floods
from tests.broker.all_fronts import dial
from tests.broker.in_process_broker import running
from tests.broker.secure_peers import dial as dial_secured, is_disconnected, refused, secure, until
from transfer.broker.http import server
from transfer.broker.http.request_head_limit import AT_ONCE, MOST, MOST_HEADERS

WHOLE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
NONE = {"native": None, "pybroker": None, "rqueue": None}
#: bytes of the broker's memory, TLS included
MOST_OF_A_HEAD = 96 << 10


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running(tmp_path_factory.mktemp("data"), http=0, **NONE) as broker:
        yield broker


def headers(size):
    """Lines of so many bytes together, of which aiohttp takes each."""
    whole, rest = divmod(size, 4000)
    sizes = [4000] * whole + [rest] * bool(rest)
    return b"".join(b"X: ".ljust(each - 2, b"a") + b"\r\n" for each in sizes)


def statuses(connection):
    """What it is answered until it ends."""
    said = b""
    with suppress(ConnectionError):
        while more := connection.recv(65536):
            said += more
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+)", said)]


def test_a_head_that_is_whole_has_a_limit(broker):
    for size, wanted in ((MOST - 100, 200), (MOST + 1, 431), (AT_ONCE, 431)):
        with dial(broker, "http") as connection:
            connection.sendall(WHOLE + headers(size - len(WHOLE)) + b"Connection: close\r\n\r\n")
            assert statuses(connection) == [wanted], size


def test_a_head_without_end_ends_its_connection(broker):
    sent = 0
    with dial(broker, "http") as connection:
        connection.sendall(WHOLE)
        with suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(headers(4000))
                sent += 1
        assert sent < 1000, "it takes all"
        assert statuses(connection) in ([431], [])  # the answer is lost where more came behind it


def test_a_later_head_has_the_same_limit(broker):
    with dial(broker, "http") as connection:
        connection.sendall(WHOLE + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(WHOLE + headers(MOST))
        assert statuses(connection) == [431]


def test_a_head_behind_another_request_has_a_limit(broker):
    """The end of one and the beginning of the next come at once."""
    with dial(broker, "http") as connection:
        connection.sendall(WHOLE + b"\r\n" + WHOLE + headers(MOST // 2))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(headers(MOST + 1))
        assert statuses(connection) == [431]


def test_trailers_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_LINGERING", 60.0)  # they are waited for
    with running(tmp_path, http=0, handshake_timeout=600.0, **NONE) as broker:
        with dial(broker, "http") as connection:
            connection.sendall(CHUNKED)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(headers(MOST + 1))
            assert statuses(connection) == []
        with dial(broker, "http") as connection:
            connection.sendall(CHUNKED + headers(1000) + b"\r\n" + WHOLE + b"Connection: close\r\n\r\n")
            assert statuses(connection) == [200, 200]


def test_the_number_of_headers_has_a_limit(broker):
    for count, wanted in ((MOST_HEADERS - 2, 200), (MOST_HEADERS, 400)):
        with dial(broker, "http") as connection:
            connection.sendall(WHOLE + b"X: a\r\n" * count + b"Connection: close\r\n\r\n")
            assert statuses(connection) == [wanted]


def test_no_other_protocol_is_spoken(broker):
    """Else aiohttp would keep what follows until the request is answered."""
    with dial(broker, "http") as connection:
        connection.sendall(WHOLE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert statuses(connection) == [400]


def test_many_requests_at_once_are_all_answered(broker):
    """More bytes of them than one head may have, and more than are kept while one is answered."""
    count = 400
    with dial(broker, "http") as connection:
        one = WHOLE + headers(1000) + b"\r\n"
        connection.sendall(one * (count - 1) + WHOLE + b"Connection: close\r\n\r\n")
        assert statuses(connection) == [200] * count


def test_who_asks_on_and_reads_no_answer_is_not_read(broker):
    one, most = WHOLE + headers(8000) + b"\r\n", 256 << 20
    with dial(broker, "http") as connection:
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(most // len(one)):
                connection.sendall(one)


@pytest.mark.parametrize("size", [MOST + 1, 1 << 20])
def test_a_body_is_no_head(broker, size):
    head = b"POST /api/admin/dlq/purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with dial(broker, "http") as connection:
        connection.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(b"{}".ljust(size))
        assert statuses(connection) == [400]


def test_a_later_head_has_a_limit_in_time(tmp_path, monkeypatch):
    """However often a byte of it comes."""
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.3)
    with running(tmp_path, http=0, **NONE) as broker, dial(broker, "http") as connection:
        connection.sendall(WHOLE + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        connection.settimeout(0.02)
        for _ in range(1000):
            with suppress(ConnectionError):
                connection.sendall(b"a")
            with suppress(TimeoutError):
                assert connection.recv(1) == b""
                return
        pytest.fail("it is still open")


def test_who_shows_a_certificate_is_not_put_out_by_those_who_say_nothing(tmp_path, identities):
    security = identities.of_broker(max_unauthenticated=3)
    with secure(tmp_path, identities, security=security) as broker, ExitStack() as stack:

        def come(issued):
            return stack.enter_context(dial_secured(broker, "http", identities, issued))

        good = come(identities.client)
        good.sendall(WHOLE[:10])
        silent = [come(None) for _ in range(5)]
        until(lambda: refused(broker, "http").get("crowded", 0) >= 2)
        assert is_disconnected(silent[0])
        good.sendall(WHOLE[10:] + b"\r\n")
        assert good.recv(65536).startswith(b"HTTP/1.1 200")


LINES = b"".join(b"X-%d: ".ljust(250, b"a") % number + b"\r\n" for number in range(MOST_HEADERS - 2))


@pytest.mark.parametrize("head", [WHOLE + LINES, WHOLE + headers(480_000)], ids=["all it may", "without end"])
def test_an_unfinished_head_takes_little_memory(tmp_path, head):
    """aiohttp keeps all of it twice."""
    count, context = 100, ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as stack:
        broker, ports, _ = stack.enter_context(floods.limited_broker(tmp_path, 4096))

        def come(data):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", ports["http"]), 20))
            connection = stack.enter_context(context.wrap_socket(plain))
            with suppress(OSError):  # it is ended
                connection.sendall(data)
            return connection

        def resident():
            """When the broker has read all that came before."""
            assert come(WHOLE + b"\r\n").recv(65536).startswith(b"HTTP/1.1 200")
            return floods.resident(broker.pid)

        for _ in range(50):  # what the first ones need stays
            come(WHOLE + LINES)
        before = resident()
        for _ in range(count):
            come(head)
        each = (resident() - before) / count
    print(f"an unfinished head takes {each / 1024:.0f} KiB")
    assert each <= MOST_OF_A_HEAD
