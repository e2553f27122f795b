"""What health checks are answered, and how a broker ends that has something on its way."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress

import pytest

from tests.broker.http_requests import ask, until
from tests.broker.in_process_broker import running
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.protocols.pybroker import MAX_ANSWER, encode_fetch
from transfer.broker.protocols.rqueue import encode_publish
from transfer.transports.errors import AddressError, AddressInUse, InternalError


def told(port, path):
    status, text = ask(port, path)
    return status, json.loads(text)


def test_all_is_well(tmp_path):
    with running(tmp_path, http=0) as broker:
        assert told(broker.ports["http"], "/livez") == (200, {"status": "ok"})
        assert told(broker.ports["http"], "/readyz") == (200, {"status": "ok"})


def test_http_may_be_off_or_elsewhere(tmp_path):
    with running(tmp_path) as broker:
        assert "http" not in broker.ports and broker.endpoints_of("http") == []
    with running(tmp_path, http=0, http_host="127.0.0.2") as broker:
        assert broker.endpoints_of("http") == [f"http://127.0.0.2:{broker.ports['http']}"]
        with socket.create_connection(("127.0.0.2", broker.ports["http"]), 20):
            pass


def test_places_that_cannot_be_had_are_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(AddressInUse, match=f"{port} for HTTP: Address already in use"),
            running(tmp_path, http=port),
        ):
            pass
    with (
        pytest.raises(AddressError, match="for HTTP"),
        running(tmp_path, http=0, http_host="no.such.host.invalid"),
    ):
        pass


def test_a_log_that_failed_is_not_alive(tmp_path):
    with running(tmp_path, http=0) as broker:
        broker.hub.durability.failure = InternalError("the disk is gone")
        assert told(broker.ports["http"], "/livez")[0] == 503
        problems = ["the log has failed: the disk is gone"]
        assert told(broker.ports["http"], "/readyz") == (503, {"status": "failing", "problems": problems})


def test_a_full_log_is_alive_and_not_ready(tmp_path):
    with running(tmp_path, http=0) as broker:
        broker.hub.durability.full = "no room"
        assert told(broker.ports["http"], "/livez")[0] == 200
        (problem,) = told(broker.ports["http"], "/readyz")[1]["problems"]
        assert problem.startswith("the log is full, so publishers wait: no room; no group holds it")


def test_one_that_is_being_stopped_is_not_ready_and_lets_nobody_in(tmp_path):
    with running(tmp_path, http=0) as broker, RqueueClient("127.0.0.1", broker.ports["rqueue"]) as client:
        client.subscribe("t")
        client.publish("t", b"before")
        assert client.recv().content == b"before"
        broker.drain()
        broker.drain()
        assert broker.drained.wait(20)
        assert told(broker.ports["http"], "/livez")[0] == 200
        assert told(broker.ports["http"], "/readyz") == (
            503,
            {"status": "failing", "problems": ["it is being stopped"]},
        )
        for name in ("ttp", "pybroker", "rqueue"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", broker.ports[name]), 20)
        client.publish("t", b"after")  # who is there may go on
        assert client.recv().content == b"after"


def test_a_message_on_its_way_comes_to_its_end(tmp_path):
    size = 1 << 20
    with running(tmp_path) as broker:
        with socket.create_connection(("127.0.0.1", broker.ports["rqueue"]), 20) as peer:
            peer.sendall(encode_publish("t", size) + bytes(size // 2))
            until(lambda: broker.hub.busy, True)
            broker.drain()
            until(lambda: broker.draining, True)
            assert not broker.drained.wait(0.3)
            peer.sendall(os.urandom(size - size // 2))
            assert broker.drained.wait(20)
        broker.close()
        broker.drain()  # nothing happens any more


def test_bytes_for_a_slow_reader_are_waited_for(tmp_path):
    with running(tmp_path) as broker, socket.socket() as slow:
        with PyBrokerClient("127.0.0.1", broker.ports["pybroker"]) as client:
            client.publish("t", os.urandom(MAX_ANSWER))
            until(lambda: len(client.fetch("t", 0)), MAX_ANSWER)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", broker.ports["pybroker"]))
        slow.sendall(encode_fetch("t", 0) * 16)  # more than the system holds
        until(lambda: any(line.queued for line in list(broker._lines.blocked)), True)
        broker.drain()
        assert not broker.drained.wait(0.3)
        slow.settimeout(0.05)
        deadline = time.monotonic() + 20
        while not broker.drained.is_set():
            assert time.monotonic() < deadline
            with suppress(TimeoutError):
                slow.recv(1 << 20)
