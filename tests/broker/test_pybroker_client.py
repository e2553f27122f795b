"""PyBroker's client against servers that say nothing, or what no broker says."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from tests.broker.single_front import receive
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.protocols.pybroker import encode_fetch
from transfer.transports.errors import Again, Broken, Closed, ProtocolError


@pytest.fixture
def silent():
    """A server whose answers the test gives: it never answers by itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


def talks_to(server, **options):
    return PyBrokerClient("127.0.0.1", server.getsockname()[1], **options)


def test_nobody_there_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Broken):
        PyBrokerClient("127.0.0.1", port)


def test_an_answer_that_does_not_come_ends_the_wait_and_the_connection(silent):
    with talks_to(silent, timeout=0.05) as pybroker:
        with pytest.raises(Again):
            pybroker.fetch("logs")
        with pytest.raises(Closed):
            pybroker.fetch("logs")


def test_an_answer_longer_than_answers_are_is_refused(silent):
    with talks_to(silent) as pybroker:
        server, _ = silent.accept()
        with server:
            server.sendall(b"\x00\x10\x00\x01")
            with pytest.raises(ProtocolError):
                pybroker.fetch("logs")


def test_a_publish_that_nobody_takes_ends_in_time(silent):
    with talks_to(silent, timeout=0.1) as pybroker:
        with pytest.raises(Again):
            pybroker.publish("logs", bytes(64 << 20))
        with pytest.raises(Closed):
            pybroker.publish("logs", b"")


def test_closing_wakes_who_waits(silent):
    pybroker = talks_to(silent)
    found = []

    def wait():
        try:
            pybroker.fetch("logs")
        except Closed as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    server, _ = silent.accept()
    with server:
        receive(server, len(encode_fetch("logs", 0)))
        pybroker.close()
        waiting.join(10)
    assert len(found) == 1
    pybroker.close()


def test_importing_loads_the_standard_library_alone():
    code = (
        "import sys, transfer.broker.clients.pybroker;"
        "print(sorted({'numpy', 'lz4', 'asyncio', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"
