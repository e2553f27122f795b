"""What Mooncake's document says of its interface, and no other test here looks at."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time

import pytest

from tests.mooncake.conftest import Inbox
from transfer import StateError
from transfer.transports.errors import AddressInUse, Again, Broken, UsageError

PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO)
from transfer import ZmqInterface

with ZmqInterface() as zi:
    pull, push = zi.create_socket("PULL"), zi.create_socket("PUSH")
    zi.bind(pull, "127.0.0.1:0")
    zi.connect(push, zi.get_bound_endpoint(pull))
    zi.push(push, b"x")
    print(zi._of(push)._socket.peers()[0].transport)
"""


@pytest.mark.parametrize("said", ["tcp", "rdma", "sockets"])
def test_mc_rpc_protocol(said):
    """§5.2. Another word is an error here, and not TCP in silence."""
    environment = {**os.environ, "MC_RPC_PROTOCOL": said}
    environment.pop("TRANSFER_PROTOCOL", None)
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, env=environment
    )
    if said == "sockets":
        assert told.returncode and "MC_RPC_PROTOCOL" in told.stderr
        return
    assert told.stdout.split() == ["tcp"], told.stderr
    assert ("fell back to tcp" in told.stderr) == (said == "rdma")


def test_enable_rdma_is_what_a_host_and_a_port_mean(make):
    """§3.1.2."""
    for config, scheme in (({}, "tcp"), ({"enable_rdma": True}, "rdma")):
        zi = make(config)
        pull = zi.create_socket("PULL")
        zi.bind(pull, "127.0.0.1:0")
        assert zi.get_bound_endpoint(pull).startswith(f"{scheme}://")


def test_sockets_of_two_types_share_an_endpoint(zi):
    """§5.4: a message goes to the one that talks to its sender."""
    pull, rep = zi.create_socket("PULL"), zi.create_socket("REP")
    pulled, asked = Inbox(), Inbox()
    zi.set_pull_callback(pull, pulled)
    zi.set_receive_callback(rep, lambda message: (asked(message), zi.reply(rep, b"ok")))
    zi.bind(pull, "127.0.0.1:0")
    endpoint = zi.get_bound_endpoint(pull)
    assert zi.bind(rep, endpoint)
    push, req = zi.create_socket("PUSH"), zi.create_socket("REQ")
    for client in (push, req):
        zi.connect(client, endpoint)
    assert zi.push(push, b"task") == 0
    assert zi.request(req, b"question") == b"ok"
    assert (pulled.get()["data"], asked.get()["data"]) == (b"task", b"question")
    assert pulled.empty() and asked.empty()
    with pytest.raises(AddressInUse):
        zi.bind(zi.create_socket("PULL"), endpoint)


def test_subscriptions_count(zi, link):
    """§3.1.1, where a set would end them all at once."""
    pub, sub = zi.create_socket("PUB"), zi.create_socket("SUB")
    got = Inbox()
    zi.set_subscribe_callback(sub, got)
    zi.bind(pub, "127.0.0.1:0")
    zi.connect(sub, zi.get_bound_endpoint(pub))
    for _ in range(2):
        zi.subscribe(sub, "sensor.")
    zi.unsubscribe(sub, "sensor.")

    def published(topic):
        deadline = time.monotonic() + 5
        while got.empty() and time.monotonic() < deadline:
            zi.publish(pub, topic, b"x")
            time.sleep(0.01)

    published("sensor.temp")
    assert got.get()["topic"] == "sensor.temp"
    zi.unsubscribe(sub, "sensor.")
    with pytest.raises(UsageError, match="not subscribed"):
        zi.unsubscribe(sub, "sensor.")


def test_a_future_fails_with_what_the_call_raises(make):
    """§5.3.1. Wrong data are a mistake of the program, which the call itself raises."""
    zi = make({"timeout_seconds": 1, "snd_timeout_ms": 200})
    silent = socket.create_server(("127.0.0.1", 0))
    req, rep = zi.create_socket("REQ"), zi.create_socket("REP")
    zi.bind(rep, "127.0.0.1:0")  # it has no callback, and nobody answers

    async def main():
        nobody = zi.create_socket("REQ")
        zi.connect(nobody, f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Again):
            await zi.request_async(nobody, b"x")
        zi.connect(req, zi.get_bound_endpoint(rep))
        with pytest.raises(TypeError):
            zi.request_async(req, 5)
        open_request = zi.request_async(req, b"x")
        await asyncio.sleep(0.3)
        zi.close_socket(rep)
        with pytest.raises((Broken, Again)) as told:
            await open_request
        assert not isinstance(told.value, RuntimeError)

    with silent:
        asyncio.run(main())


def test_why_a_message_was_not_sent_is_in_the_log(make, caplog):
    """§3.2.2: the result has a code and a message; here the code is returned, and the log has the message."""
    zi = make({"snd_timeout_ms": 20})
    push = zi.create_socket("PUSH")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    zi.connect(push, f"127.0.0.1:{port}")
    assert zi.push(push, b"x") < 0
    assert f"PUSH socket {push}: not sent: " in caplog.text


def test_connecting_twice_to_an_endpoint_is_once(zi):
    """§6.1: one connection for each pair."""
    pub, sub = zi.create_socket("PUB"), zi.create_socket("SUB")
    got = Inbox()
    zi.set_subscribe_callback(sub, got)
    zi.subscribe(sub, "")
    zi.bind(pub, "127.0.0.1:0")
    endpoint = zi.get_bound_endpoint(pub)
    for spelled in (endpoint, endpoint.removeprefix("tcp://"), endpoint):
        assert zi.connect(sub, spelled)
    zi._of(pub)._socket.wait_for_peers(1, 5)
    assert len(zi._of(sub)._socket.peers()) == 1
    zi.publish(pub, "t", b"x")
    assert got.get()["data"] == b"x"
    assert got.empty()
    zi.disconnect(sub, endpoint)
    zi.connect(sub, endpoint)


def test_a_bound_pair_with_a_peer_connects_to_no_other(zi):
    """§3.3.5."""
    one, other, third = (zi.create_socket("PAIR") for _ in range(3))
    zi.bind(one, "127.0.0.1:0")
    zi.bind(third, "127.0.0.1:0")
    zi.connect(other, zi.get_bound_endpoint(one))
    zi._of(one)._socket.wait_for_peers(1, 5)
    with pytest.raises(StateError, match="a PAIR has one peer"):
        zi.connect(one, zi.get_bound_endpoint(third))
