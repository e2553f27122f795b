"""When two peers come together by the local transport, and when not."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap

import pytest

import transfer
from tests.shm.conftest import eventually
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import TCP, pair_of
from tests.sockets.processes import Program
from transfer import PULL, PUSH
from transfer.transports import probe
from transfer.transports.security.settings import Security
from transfer.transports.shm import unix_listener

ONE_WAY = """
    import sys, transfer
    context = transfer.Context()
    push = context.socket(transfer.PUSH, sndtimeo=10000)
    push.connect(sys.argv[1])
    push.wait_for_peers(1, 10)
    push.send(b"x" * 200000)
    (peer,) = push.peers()
    print(peer.transport, "|", peer.reason, flush=True)
    sys.stdin.readline()  # its peer looks at the connection meanwhile
    push.close(5000)
    context.destroy(0)
"""


#: as another user, after all that is needed was loaded, which that user may not be able to read
WARM = """
    import os, transfer
    with transfer.Context() as context:
        with context.socket(transfer.PULL) as pull, context.socket(transfer.PUSH) as push:
            pull.bind("tcp://127.0.0.1:0")
            push.connect(pull.last_endpoint)
            push.wait_for_peers(1, 10)
            assert push.peers()[0].transport == "local"
            push.send(b"x" * 200000)
            pull.recv()
    os.setgid(65534)
    os.setuid(65534)
"""


def test_chosen_by_itself_on_one_host(context):
    pull, push = pair_of(context, PULL, PUSH)
    for socket in (pull, push):
        (peer,) = socket.peers()
        assert peer.transport == "local" and peer.reason == "the best that both have: local, tcp"


@pytest.mark.parametrize("side", ["connecting", "accepting"])
def test_either_side_may_switch_it_off(context, monkeypatch, side):
    """TRANSFER_LOCAL=off on one side only."""
    with KeepingContext(core=context.core) as other:
        both = [context, other]
        assert "local" in context.offer.transports
        monkeypatch.setenv("TRANSFER_LOCAL", "off")
        probe.forget()
        assert "local" not in other.offer.transports
        here, there = both if side == "accepting" else reversed(both)
        pull, push = there.socket(PULL), here.socket(PUSH)
        pull.bind(TCP)
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        push.send(b"y" * 200_000)
        assert pull.recv() == b"y" * 200_000
        assert push.peers()[0].transport == pull.peers()[0].transport == "tcp"
        for socket in other.kept:
            socket.close(0)


def test_who_names_tcp_gets_tcp(core, monkeypatch):
    monkeypatch.setenv("TRANSFER_PROTOCOL", "tcp")
    with KeepingContext(core=core) as context:
        pull, push = pair_of(context, PULL, PUSH)
        push.send(b"y" * 200_000)
        assert pull.recv() == b"y" * 200_000
        (peer,) = push.peers()
        assert peer.transport == "tcp" and "requested by" in peer.reason
        for socket in context.kept:
            socket.close(0)


def test_a_wish_that_cannot_be_met_still_gets_the_best(context):
    pull = context.socket(PULL)
    pull.bind(TCP)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint.replace("tcp://", "rdma://"))
    push.wait_for_peers(1, 10)
    if "rdma" in context.offer.transports:
        pytest.skip("this machine has a device for RDMA")
    assert push.peers()[0].transport == "local" and "rdma was requested" in push.peers()[0].reason


@pytest.mark.parametrize("step", ["connect", "take"])
def test_where_it_cannot_be_set_up_tcp_goes_on(context, monkeypatch, step):
    """The listener is closed in the middle of the dialogue, on either side of it."""

    def shut(*arguments):
        raise unix_listener.Declined("unreachable", "the listener is closed")

    if step == "connect":
        monkeypatch.setattr("transfer.transports.shm.upgrade.connect", shut)
    else:
        monkeypatch.setattr(unix_listener.UnixListener, "take", shut)
    pull, push = pair_of(context, PULL, PUSH)
    push.send(b"y" * 200_000)
    assert pull.recv() == b"y" * 200_000
    for socket in (pull, push):
        (peer,) = socket.peers()
        assert peer.transport == "tcp" and "local could not be set up" in peer.reason
        assert socket._links.state.counts["fallback:local:tcp:unreachable"] == 1


def test_without_descriptors_tcp_goes_on(context, monkeypatch):
    def none_left(*arguments):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(unix_listener.socket, "socketpair", none_left)
    pull, push = pair_of(context, PULL, PUSH)
    assert push.peers()[0].transport == "tcp"
    push.send(b"y")
    assert pull.recv() == b"y"


def test_under_require_a_closed_listener_is_the_end(context, monkeypatch):
    monkeypatch.setattr("transfer.transports.shm.upgrade.connect", lambda *arguments: _declined())
    pull = context.socket(PULL)
    pull.bind(TCP)
    push = context.socket(PUSH)
    with pytest.raises(transfer.Fatal) as caught:
        push.connect(pull.last_endpoint + "?policy=require")
    assert "the listener is closed" in str(caught.value)


def _declined():
    raise unix_listener.Declined("unreachable", "the listener is closed")


def test_two_processes_of_one_host():
    with transfer.Context() as context, context.socket(PULL, rcvtimeo=10_000) as pull:
        pull.bind(TCP)
        with Program(ONE_WAY, pull.last_endpoint, core="native", TRANSFER_LOCAL="on") as program:
            assert program.line().startswith("local | the best")
            assert pull.recv() == b"x" * 200_000
            assert program.finish()[0] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user")
def test_two_users_of_one_host_use_tcp():
    source = textwrap.dedent(WARM) + textwrap.dedent(ONE_WAY)
    with transfer.Context() as context, context.socket(PULL, rcvtimeo=10_000) as pull:
        pull.bind(TCP)
        with Program(source, pull.last_endpoint, core="native", TRANSFER_LOCAL="on") as program:
            told = program.line()
            assert told.startswith("tcp | ") and "another user" in told
            assert pull.recv() == b"x" * 200_000 and pull.peers()[0].transport == "tcp"
            assert program.finish()[0] == 0


@pytest.fixture
def namespace():
    """A network namespace and a pair of devices to it: its name, and the address on our side."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    name = f"tl{os.getpid()}"
    steps = [
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add 10.231.77.1/30 dev {name}a",
        f"ip link set {name}a up",
        f"ip -n {name} addr add 10.231.77.2/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
    ]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True, timeout=20, check=False)
            if done.returncode:
                pytest.skip(f"{step}: {done.stderr.strip()}")
        yield name, "10.231.77.1"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True, timeout=20, check=False)


def test_another_network_namespace_is_another_host(namespace):
    """As in containers: one machine, and no abstract socket in common."""
    name, address = namespace
    strangers = Security(unauthenticated=True)
    with transfer.Context(security=strangers) as context, context.socket(PULL, rcvtimeo=10_000) as pull:
        pull.bind(f"tcp://{address}:0")
        source = textwrap.dedent(ONE_WAY)
        enter = ["import os, ctypes", f"fd = os.open('/var/run/netns/{name}', os.O_RDONLY)",
                 "assert ctypes.CDLL(None).setns(fd, 0) == 0", "os.close(fd)"]  # fmt: skip
        with Program("\n".join([*enter, source]), pull.last_endpoint, core="native") as program:
            assert program.line().endswith("tcp; not local: the peer has another network namespace")
            assert pull.recv() == b"x" * 200_000 and pull.peers()[0].transport == "tcp"
            assert program.finish()[0] == 0


#: in a namespace of its own, of the kind that is told
APART = """
    import ctypes, os, sys
    if ctypes.CDLL(None, use_errno=True).unshare(int(sys.argv[2])):
        print("none", flush=True)
        os._exit(0)
    if int(sys.argv[2]) & 0x20000000 and os.fork():
        os.wait()
        os._exit(0)
"""
MOUNTS, PROCESSES, NAMES = 0x20000, 0x20000000, 0x4000000 | 0x8000000


@pytest.mark.skipif(os.getuid() != 0, reason="only root may leave a namespace")
@pytest.mark.parametrize("kind", [MOUNTS, PROCESSES, NAMES])
def test_namespaces_that_do_not_part_the_two(kind):
    """Containers with the host's network: neither files nor process ids are needed."""
    source = textwrap.dedent(APART) + textwrap.dedent(ONE_WAY)
    with transfer.Context() as context, context.socket(PULL, rcvtimeo=10_000) as pull:
        pull.bind(TCP)
        with Program(source, pull.last_endpoint, kind, core="native", TRANSFER_LOCAL="on") as program:
            told = program.line()
            if told == "none":
                pytest.skip("this system makes no such namespace")
            assert told.startswith("local | ")
            assert pull.recv() == b"x" * 200_000 and pull.peers()[0].transport == "local"
            assert program.finish()[0] == 0


def test_a_user_namespace_parts_the_two():
    """Its users have other numbers, or none."""
    source = textwrap.dedent(APART) + textwrap.dedent(ONE_WAY)
    with transfer.Context() as context, context.socket(PULL, rcvtimeo=10_000) as pull:
        pull.bind(TCP)
        with Program(source, pull.last_endpoint, 0x10000000, core="native", TRANSFER_LOCAL="on") as program:
            told = program.line()
            if told == "none":
                pytest.skip("this system makes no such namespace")
            assert told.startswith("tcp | ") and "another user" in told
            assert pull.recv() == b"x" * 200_000 and pull.peers()[0].transport == "tcp"
            assert program.finish()[0] == 0


def test_plain_peers_are_served_by_tcp(context):
    """Who says no hello never hears of it."""
    import socket as plain

    pull = context.socket(PULL, rcvtimeo=10_000)
    pull.bind(TCP)
    host, _, port = pull.last_endpoint.removeprefix("tcp://").partition(":")
    from transfer.transports.core.wire import HEADER, MAGIC, SocketType

    with plain.create_connection((host, int(port))) as connection:
        connection.sendall(HEADER.pack(MAGIC, 1, SocketType.PUSH, 0, 1, 0, 100_000, 0) + b"p" * 100_000)
        assert pull.recv() == b"p" * 100_000
        assert pull.peers()[0].transport == "tcp"
    assert eventually(lambda: not pull.poll(5) and not pull.peers())
