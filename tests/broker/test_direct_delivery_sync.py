"""Nothing is sent to a consumer of direct delivery that a crash could take back."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
import zmq

from tests.broker.broker_processes import BrokerProcesses
from transfer.broker.clients.abtp import AbtpConsumer
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.dispatcher_actions import Admitted, Register
from transfer.broker.core.dispatcher_events import MessageInfo
from transfer.broker.core.message import Front, Message
from transfer.broker.core.routes import RouteTable
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.delivery.delivery_sink import Sent
from transfer.broker.delivery.dispatcher_driver import DispatcherDriver
from transfer.broker.storage.store import Store
from transfer.log import Log
from transfer.transports.errors import InternalError


class Disk:
    """Durability whose syncs the test makes. waiting: (sequence, what is called when that is synced)."""

    def __init__(self, store):
        self.full, self.failure, self.waiting = "", None, []
        self._store = store

    def keep_now(self, topic, message, on_kept):
        self.when_kept(self._store.append(topic, message), on_kept)
        return True

    def when_kept(self, sequence, on_kept, nbytes=0):
        self.waiting.append((sequence, on_kept))

    def sync(self, sequence, error=None):
        """All up to this record is on the disk, or the log has failed."""
        due = [on_kept for at, on_kept in self.waiting if at <= sequence]
        self.waiting = [one for one in self.waiting if one[0] > sequence]
        for on_kept in due:
            if on_kept is not None:
                on_kept(error)


def nothing(*words):
    """Takes what the driver wants kept elsewhere."""


class Driver:
    """A `DispatcherDriver` over a log, on a loop that the test turns; `sent`: message ids that went out."""

    def __init__(self, folder):
        self.sent, self.answers, self.on_kept = [], [], []
        self.loop = asyncio.new_event_loop()
        self.log = Log(folder)
        store = Store(self.log, lambda name: True, most=10)
        self.disk = Disk(store)
        hub = SimpleNamespace(
            store=store, counts=Counter(), durability=self.disk, keep_now=self.disk.keep_now
        )
        quiet = SimpleNamespace(do=nothing, load=list, update=nothing, tell=nothing, named=lambda prefix: ())
        self.direct = DispatcherDriver(self.loop, hub, RouteTable(), Rules(), quiet, quiet, quiet, quiet)
        self.direct.attach(self)

    def close(self):
        self.direct.close()
        self.loop.close()
        self.log.close()

    def dispatch(self, action, message):
        self.sent.append(message.headers["message_id"])
        return Sent.YES

    def answer(self, peer, reply):
        self.answers.append(reply)

    def turn(self):
        self.loop.run_until_complete(asyncio.sleep(0))

    def publish(self, name):
        message = Message("t", (b"payload",), Front.ABTP, headers={"message_id": name})
        verdict = self.direct.publish_direct(message, MessageInfo("", "t", name, "p"), self.on_kept.append)
        assert isinstance(verdict, Admitted)


@pytest.fixture
def driver(tmp_path):
    made = Driver(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("acknowledges", [True, False])
def test_nothing_is_sent_before_its_record_and_its_acceptance_are_synced(driver, acknowledges):
    driver.direct.request(
        b"w",
        Register("w", subscriptions=("t",), capabilities=ConsumerCapabilities(supports_ack=acknowledges)),
    )
    driver.publish("first")
    kept = driver.disk.waiting[-1][0]  # the message's own record
    driver.turn()
    accepted = driver.disk.waiting[-1][0]  # what direct delivery notes of it
    assert kept < accepted and driver.sent == []
    driver.disk.sync(kept)
    assert driver.sent == [] and driver.on_kept == []
    driver.publish("second")
    driver.turn()
    driver.disk.sync(accepted)
    assert driver.sent == ["first"] and driver.on_kept == [None]
    driver.disk.sync(driver.disk.waiting[-1][0])
    assert driver.sent == ["first", "second"] and driver.on_kept == [None, None]


def test_what_its_session_lost_meanwhile_goes_to_the_next_one_alone(driver):
    ask = Register("w", subscriptions=("t",), capabilities=ConsumerCapabilities(supports_ack=True))
    driver.direct.request(b"old", ask)
    driver.publish("m")
    driver.direct.request(b"new", ask)  # the old session ends, and the message is tried again
    driver.turn()
    driver.disk.sync(driver.disk.waiting[-1][0])
    assert driver.sent == ["m"]


def test_a_log_that_fails_sends_nothing_and_the_producer_hears_of_it(driver):
    driver.direct.request(b"w", Register("w", subscriptions=("t",)))
    driver.publish("m")
    driver.turn()
    failed = InternalError("no disk")
    driver.disk.sync(driver.disk.waiting[-1][0], failed)
    assert driver.sent == [] and driver.on_kept == [failed]


def test_a_message_that_a_consumer_received_is_there_after_the_broker_is_killed(tmp_path):
    with BrokerProcesses("tcp://127.0.0.1:0") as serving, zmq.Context() as context:
        for number in range(2):
            folder = tmp_path / str(number)
            endpoints, _ = serving.start(folder)
            with AbtpConsumer("worker", ["orders.*"], endpoints["abtp router"]) as worker:
                socket = context.socket(zmq.DEALER)
                socket.setsockopt(zmq.LINGER, 0)
                socket.connect(endpoints["abtp router"])
                socket.send_multipart([b"orders.new", json.dumps({"n": number}).encode()])
                first = worker.recv(10)
                serving.kill()
                session = worker.session_id
                socket.close()
            endpoints, _ = serving.start(folder)
            with AbtpConsumer("worker", ["orders.*"], endpoints["abtp router"], session_id=session) as worker:
                again = worker.recv(10)
                assert (again.message_id, again.payload) == (first.message_id, {"n": number})
                assert again.attempt == first.attempt + 1
                worker.ack(again, confirm=True)
            serving.kill()
