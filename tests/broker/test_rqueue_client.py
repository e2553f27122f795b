"""rqueue's client against servers that stop in the middle, or say what no broker says."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.broker.single_front import receive
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.protocols.rqueue import encode_notification, encode_subscribe
from transfer.transports.errors import Again, Closed, ProtocolError


@pytest.fixture
def silent():
    """A server that says what the test says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256)) * 4000])
def test_a_message_that_does_not_come_in_time_is_not_lost(silent, content):
    frame = encode_notification("größe", len(content)) + content
    with RqueueClient("127.0.0.1", silent.getsockname()[1]) as queue:
        server, _ = silent.accept()
        with server:
            for cut in (0, 1, 5, 6, 9, 13, len(frame) // 2):
                if cut >= len(frame):
                    continue
                server.sendall(frame[:cut])
                with pytest.raises(Again):
                    queue.recv(0.01)
                sending = threading.Thread(target=server.sendall, args=(frame[cut:] + frame,))
                sending.start()
                assert queue.recv() == queue.recv(5) == ("größe", content)
                sending.join(10)


def test_what_no_broker_says_is_refused(silent):
    with RqueueClient("127.0.0.1", silent.getsockname()[1]) as queue:
        server, _ = silent.accept()
        with server:
            server.sendall(encode_subscribe("a"))
            with pytest.raises(ProtocolError):
                queue.recv()
            with pytest.raises(Closed):
                queue.recv()


def test_closing_wakes_who_waits(silent):
    queue = RqueueClient("127.0.0.1", silent.getsockname()[1])
    found = []

    def wait():
        try:
            queue.recv(float("inf"))
        except Closed as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    server, _ = silent.accept()
    with server:
        queue.subscribe("a")
        receive(server, 7)
        queue.close()
        waiting.join(10)
    assert len(found) == 1
