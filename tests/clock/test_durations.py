"""Retention, delays, leases, the spool's ages, certificates: the wall clock is set a day forward and back.

What is kept for a time is kept for that time. Certificates alone are good by the wall clock.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager

import pytest

import transfer
from tests.broker.secure_peers import Identities
from tests.clock.test_wall_clock import DAY, Wall, pytestmark as needs_a_compiler
from tests.core.raw_frames import eventually
from tests.fuzz.fuzzed_broker import Process, serving
from tests.spool.task_sender import write
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.clients.registry import look_up
from transfer.broker.clients.rqueue import RqueueClient
from transfer.spool.client.admin import SpoolAdmin
from transfer.transports.errors import Again, Broken, HandshakeError
from transfer.transports.security.settings import Security

pytestmark = needs_a_compiler


@pytest.fixture
def wall(tmp_path):
    return Wall(tmp_path)


@contextmanager
def broker_of(wall, folder, *options, **environment):
    with serving(folder, *options, **wall.environment, **environment) as broker:
        yield broker
        assert broker.process.end() == 0
        assert not broker.errors()


def requests_of(broker):
    return broker.places["endpoints"]["requests"]


_KEEPS = """
import sys
from transfer.log import Log, Retention
with Log(sys.argv[1], segment_bytes=1 << 16, retention=Retention(age=float(sys.argv[2]))) as log:
    for _ in range(50):
        log.append("kept", bytes(10_000))
    log.commit()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(log.collect(), flush=True)
"""


@contextmanager
def log_of(wall, tmp_path, age):
    """A process with some segments of a log; it says how many go when it is asked."""
    process = Process(tmp_path / "errors", "-c", _KEEPS, str(tmp_path / "log"), str(age), **wall.environment)
    try:
        yield process
    finally:
        process.close()


def test_retention_by_age_keeps_what_is_young(wall, tmp_path):
    with log_of(wall, tmp_path, DAY / 2) as log:
        for shift in (DAY, 0, -DAY, 0):
            wall.shift(shift)
            assert log.asked() == 0


def test_retention_by_age_removes_what_is_old_behind_a_clock_that_was_set_back(wall, tmp_path):
    with log_of(wall, tmp_path, 0.5) as log:
        wall.shift(-DAY)
        eventually(log.asked, 20)


def test_delayed_messages_wait_as_long_as_they_say(wall, tmp_path):
    with broker_of(wall, tmp_path / "data") as broker, ExitStack() as stack:
        router = broker.places["endpoints"]["abtp router"]
        consumer = stack.enter_context(AbtpConsumer("consumer", ["a"], router))
        producer = stack.enter_context(AbtpProducer(router))
        direct = {"delivery_mode": "direct"}
        producer.publish("a", "in an hour", headers=direct | {"delay_ms": 3_600_000})
        producer.publish("a", "lives an hour", headers=direct | {"ttl_ms": 3_600_000, "delay_ms": 2000})
        producer.publish("a", "soon", headers=direct | {"delay_ms": 4000})
        for shift in (DAY, -DAY, 0):
            wall.shift(shift)
            time.sleep(0.5)
        wall.shift(DAY)
        assert [consumer.recv(20).payload for _ in range(2)] == ["lives an hour", "soon"]
        with pytest.raises(Again):
            consumer.recv(0.5)


def test_a_name_stays_registered_for_its_lease(wall, tmp_path):
    with broker_of(wall, tmp_path / "data") as broker, transfer.Context() as context:
        registry = "registry://" + requests_of(broker).removeprefix("tcp://")
        with context.socket(transfer.PULL) as pull:
            pull.bind("tcp://127.0.0.1:0")
            pull.announce(f"{registry}/name")
            eventually(lambda: look_up(f"{registry}/name", context), 20)
            for shift in (DAY, 0, -DAY, 0):
                wall.shift(shift)
                time.sleep(0.2)
                assert len(look_up(f"{registry}/name", context)) == 1
        eventually(lambda: not look_up(f"{registry}/name", context), 60)


def test_the_spool_keeps_what_is_young(wall, tmp_path):
    ages = {"UNREAD_AGE": "43200", "RETENTION_AGE": "43200", "STAGED_AGE": "43200", "GROUP_AGE": "43200"}
    options = {f"TRANSFER_BROKER__SPOOL__{name}": value for name, value in ages.items()}
    with broker_of(wall, tmp_path / "data", **options) as broker:
        write(broker.places["endpoints"]["spool"], "run", [[8]])
        url = "run" + broker.places["endpoints"]["spool"].removeprefix("tcp")
        with SpoolAdmin(url) as admin:
            for shift in (DAY, 0, -DAY, 0):
                wall.shift(shift)
                time.sleep(0.5)
                assert [run["name"] for run in admin.overview()["runs"]] == ["run"]
    with broker_of(wall, tmp_path / "data", **options) as broker:
        with SpoolAdmin("run" + broker.places["endpoints"]["spool"].removeprefix("tcp")) as admin:
            assert [run["name"] for run in admin.overview()["runs"]] == ["run"]


def test_certificates_are_good_by_the_wall_clock(wall, tmp_path):
    """Who is connected stays; a new one is let in when the clock is right again."""
    identities = Identities(tmp_path)
    served, shown = identities.server, identities.client
    environment = {"TRANSFER_TLS_CA": identities.authority.path, "TRANSFER_TLS_CERT": served.certificate}
    environment["TRANSFER_TLS_KEY"] = served.key
    security = Security(certificate=shown.certificate, key=shown.key, authority=identities.authority.path)
    with broker_of(wall, tmp_path / "data", **environment) as broker:

        def client():
            return RqueueClient("127.0.0.1", broker.places["ports"]["rqueue"], security=security, timeout=10)

        with client() as first:
            first.subscribe("topic")
            first.publish("topic", b"let in")
            assert bytes(first.recv(20).content) == b"let in"
            wall.shift(-20 * 365 * DAY)  # before the certificate begins
            with pytest.raises((Broken, HandshakeError)), client() as second:
                second.subscribe("topic")
                second.recv(20)
            first.publish("topic", b"still here")
            assert bytes(first.recv(20).content) == b"still here"
            wall.shift(0)
            with client() as third:
                third.publish("topic", b"let in")
                assert bytes(first.recv(20).content) == b"let in"
