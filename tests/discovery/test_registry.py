"""Programs that announce themselves to a broker, and those who follow them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager

import pytest

import transfer
from tests.broker.in_process_broker import ANYWHERE
from tests.discovery.waits import PATIENCE, drain, until
from tests.ports import free_port
from tests.sockets.conftest import KeepingContext
from tests.sockets.processes import Program
from transfer import PULL, PUSH
from transfer.broker.clients.registry import RegisteredName, look_up, reachable
from transfer.broker.clients.registry_connection import RegistryConnection
from transfer.broker.core.registry_types import Member, Registering
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.protocols.native import Op, encode
from transfer.broker.protocols.native_registry import encode_registering
from transfer.broker.server import Broker
from transfer.transports.address import Address, parse
from transfer.transports.errors import AddressError, Again, OptionError, ProtocolError, UsageError


class Service:
    """A broker that can be stopped and started again at its address."""

    def __init__(self, folder):
        self._folder = folder
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.name = self.endpoint.replace("tcp", "registry") + "/trainers"
        self.start()

    def start(self):
        from dataclasses import replace

        self.broker = Broker(self._folder, replace(ANYWHERE, native=NativeSettings(self.endpoint, "", "")))
        self.books = self.broker.fronts["native"].registry

    def stop(self):
        self.broker.close()


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def context():
    with KeepingContext() as made:
        yield made
        made.destroy(0)


#: a PULL that announces itself and tells each message that it receives
POD = """
    import sys, transfer
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        pull.announce(sys.argv[1], lease=float(sys.argv[2])).wait(20)
        print(pull.last_endpoint, flush=True)
        for number in range(int(sys.argv[3])):
            pull.recv()
        sys.stdin.read()
"""


@contextmanager
def pod(service, lease=2.0, messages=0):
    with Program(POD, service.name, lease, messages, core="native") as program:
        program.endpoint = program.line()
        yield program


def follow(context, service, count=0):
    push = context.socket(PUSH, sndtimeo=10_000)
    push.connect(service.name)
    push.wait_for_peers(count, PATIENCE)
    return push


def announced(context, service, **more):
    pull = context.socket(PULL, rcvtimeo=10_000)
    pull.bind("tcp://127.0.0.1:0")
    pull.announce(service.name, **more).wait(PATIENCE)
    return pull


def names(socket):
    return {peer.endpoint for peer in socket.peers()}


def test_who_announces_himself_gets_work_until_he_closes(context, service):
    push = follow(context, service)
    pulls = [announced(context, service), announced(context, service)]
    push.wait_for_peers(2, PATIENCE)
    for number in range(10):
        push.send(b"%d" % number)
    assert [len(drain(pull)) for pull in pulls] == [5, 5]
    pulls[0].close()
    until(lambda: names(push) == {pulls[1].last_endpoint} and len(service.books) == 1)
    push.send(b"x")
    assert pulls[1].recv() == b"x"
    assert not push._links.state.counts.get("unconfirmed")


def test_who_gives_his_name_back_works_on_what_he_has(context, service):
    """How a pod drains: first nobody new, then the rest."""
    pull = announced(context, service)
    push = follow(context, service, 1)
    for number in range(10):
        push.send(b"%d" % number)
    [registration] = pull._announced
    registration.close()
    until(lambda: push._links.state.counts.get("member:retired"))
    with pytest.raises(Again):
        push.send(b"new", transfer.DONTWAIT)
    assert len(drain(pull)) == 10
    until(lambda: push.peers() == [])
    assert not push._links.state.counts.get("unconfirmed")


def test_a_pod_that_is_killed_gets_nothing_and_is_forgotten(context, service):
    push = follow(context, service)
    push.resend = True
    pull = announced(context, service)
    with pod(service, lease=60) as program:
        push.wait_for_peers(2, PATIENCE)
        for number in range(50):
            push.send(b"%d" % number)
        program.kill()
        until(lambda: names(push) == {pull.last_endpoint})
        until(lambda: len(service.books) == 1, "its lease has a minute left, but its connection ended")
        for number in range(50, 60):
            push.send(b"%d" % number)
    received = sorted({int(data) for data in drain(pull)})
    assert received == list(range(60)), "what the dead one had came again"


def test_a_pod_that_hangs_is_forgotten_when_its_lease_is_over(context, service):
    push = follow(context, service)
    with pod(service, lease=1.0, messages=4) as program:
        push.wait_for_peers(1, PATIENCE)
        program.process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: len(service.books) == 0)
            until(lambda: push._links.state.counts.get("member:retired"))
            with pytest.raises(Again):
                push.send(b"x", transfer.DONTWAIT)
        finally:
            program.process.send_signal(signal.SIGCONT)
        push.send(b"y")  # it registers again by itself
        assert len(service.books) == 1


def test_a_restart_of_the_broker_drops_nobody(context, service):
    pulls = [announced(context, service, lease=1.0) for _ in range(2)]
    push = follow(context, service, 2)
    service.stop()
    until(lambda: push._links.state.counts.get("looked_up:failed"))
    for number in range(10):
        push.send(b"%d" % number)
    assert [len(drain(pull)) for pull in pulls] == [5, 5]
    service.start()
    until(lambda: len(service.books) == 2)
    until(lambda: push._links.state.followed == 2)
    for number in range(10):
        push.send(b"%d" % number)
    assert sorted(len(drain(pull)) for pull in pulls) == [5, 5]
    assert push._links.state.counts["connected"] == 2 and not push._links.state.counts.get("member:retired")
    pulls[0].close()
    until(lambda: names(push) == {pulls[1].last_endpoint})


def test_two_who_follow_one_name_and_two_names_of_one_program(context, service):
    pushes = [follow(context, service), follow(context, service)]
    other = context.socket(PUSH)
    other.connect(service.name.replace("trainers", "workers"))
    pull = announced(context, service)
    pull.announce(service.name.replace("trainers", "workers")).wait(PATIENCE)
    for push in (*pushes, other):
        push.wait_for_peers(1, PATIENCE)
        push.disconnect(push.last_endpoint)
    until(lambda: service.books.watchers == 0)
    assert len(service.books) == 2
    pull.close()
    until(lambda: len(service.books) == service.books.names == 0)


def test_of_two_programs_the_later_has_the_endpoint(service):
    endpoint = "tcp://10.0.0.7:5590"
    with RegisteredName(service.name, endpoint, lease=1.0) as old:
        old.wait(PATIENCE)
        with RegisteredName(service.name, endpoint, lease=1.0, metadata={"gpu": "h100"}) as new:
            new.wait(PATIENCE)
            until(lambda: old.failure)
            with pytest.raises(UsageError, match="began later"):
                old.wait(PATIENCE)
            [member] = look_up(service.name)
            assert member.endpoint == endpoint and member.metadata == (("gpu", "h100"),)
        until(lambda: old.registered, "its place is free again")
    assert look_up(service.name) == []


def test_a_broker_that_comes_later(context, tmp_path):
    port = free_port()
    name = f"registry://127.0.0.1:{port}/trainers"
    registration = RegisteredName(name, "tcp://10.0.0.7:5590", context=context)
    with pytest.raises(Again, match="not registered"):
        registration.wait(0.2)
    push = context.socket(PUSH)
    push.connect(name)
    until(lambda: push._links.state.counts.get("looked_up:failed"))
    service = Service.__new__(Service)
    service._folder, service.endpoint = tmp_path, f"tcp://127.0.0.1:{port}"
    service.start()
    try:
        registration.wait(PATIENCE)
        until(lambda: push._links.state.followed == 1)
        registration.close()
    finally:
        service.stop()


def test_a_thousand_members(context, service):
    """One program that registers them all, and two that follow: what changes is gathered."""
    link = RegistryConnection(parse(service.endpoint), context)
    link.open()
    directories = []
    try:
        for _ in range(2):
            push = context.socket(PUSH)
            push.immediate = True
            push.reconnect_ivl = push.reconnect_ivl_max = 60_000
            directories.append(push)
        for number in range(1000):
            member = Member(f"tcp://127.0.{number // 250 + 1}.{number % 250 + 1}:1", 1)
            link.send(encode_registering(number, Registering("trainers", 30.0, member)))
        until(lambda: len(service.books) == 1000)
        for push in directories:
            push.connect(service.name)
        until(lambda: all(push._links.state.followed == 1000 for push in directories))
        for number in range(0, 1000, 2):
            link.send(encode(Op.UNREGISTER, number))
        until(lambda: all(push._links.state.followed == 500 for push in directories))
        link.close()
        until(lambda: all(push._links.state.followed == 0 for push in directories))
    finally:
        link.close()


def test_more_than_one_program_may_have_is_refused(context, service):
    link = RegistryConnection(parse(service.endpoint), context)
    link.open()
    try:
        for number in range(1001):
            member = Member(f"tcp://127.0.{number // 250 + 1}.{number % 250 + 1}:1", 1)
            link.send(encode_registering(number, Registering("trainers", 30.0, member)))
        with pytest.raises(UsageError, match="one program may have"):
            while link.receive(PATIENCE):
                pass
        link.send(encode(Op.RENEW, 5000))
        with pytest.raises(UsageError, match="has ended"):
            while link.receive(PATIENCE):
                pass
    finally:
        link.close()


def test_a_follower_says_when_the_broker_is_away(context):
    push = context.socket(PUSH, sndtimeo=100)
    push.connect(f"registry://127.0.0.1:{free_port()}/trainers")
    until(lambda: push._links.state.counts.get("looked_up:failed"))
    with pytest.raises(Again, match=r"no peer listens at registry://.*"):
        push.send(b"x")


def test_what_cannot_be_announced_is_said_at_once(context, service):
    pull = context.socket(PULL)
    with pytest.raises(UsageError, match="nothing is bound"):
        pull.announce(service.name)
    pull.bind("tcp://127.0.0.1:0")
    for wrong, error in (
        ("tcp://127.0.0.1:5580", AddressError),
        ("registry://127.0.0.1:5580", AddressError),
    ):
        with pytest.raises(error):
            pull.announce(wrong)
    with pytest.raises(AddressError, match="cannot be announced"):
        pull.announce(service.name, "ipc:///tmp/x")
    with pytest.raises(OptionError, match="lease"):
        pull.announce(service.name, lease=0.5)
    with pytest.raises(ProtocolError, match="metadata"):
        pull.announce(service.name, metadata={"a": "b" * 2000})


def test_a_wildcard_is_announced_as_others_reach_it(monkeypatch):
    broker = Address("tcp", "127.0.0.1", 5580)
    assert reachable("tcp://0.0.0.0:5590", broker) == "tcp://127.0.0.1:5590"
    assert reachable("tcp://10.0.0.7:5590", broker) == "tcp://10.0.0.7:5590"
    assert reachable("rdma://10.0.0.7:5590", broker) == "tcp://10.0.0.7:5590"
    assert reachable("tcp://0.0.0.0:5590", broker, "node7:1234") == "tcp://node7:1234"
    monkeypatch.setenv("TRANSFER_ADVERTISE", "fd00::7")
    assert reachable("tcp://0.0.0.0:5590", broker) == "tcp://[fd00::7]:5590"
    assert reachable("tcp://0.0.0.0:5590", broker, "node7") == "tcp://node7:5590"


def test_the_commands(service, tmp_path):
    """`transfer pull --announce`, `transfer push --connect registry://`."""
    import subprocess
    import sys

    def start(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "transfer", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip

    pull = start("pull", "--bind", "tcp://127.0.0.1:0", "--announce", service.name, "-n", "2", "-t", "30")
    push = start("push", "--connect", service.name, "-d", "one", "-d", "two", "--confirm", "-t", "30")
    said, errors = pull.communicate(timeout=40)
    assert said.split() == ["one", "two"], errors
    assert push.wait(20) == 0, push.communicate()
    push.communicate()


def test_a_forked_child_leaves_the_announcement_alone(context, service):
    announced(context, service)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.2)
    assert len(look_up(service.name)) == 1
