"""The broker that is closed, fails, or is failed by others in the middle of its work."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.broker.in_process_broker import running
from tests.broker.stepped_hub import EVERYTHING, ControlledSubscriber, Publisher, stepped_hub
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.storage.folder_parts import LOG
from transfer.broker.storage.store import Store
from transfer.log import Log, Retention
from transfer.transports.errors import Again, Broken, Closed, InternalError, UsageError


def test_one_who_cannot_be_told_keeps_nobody_from_being_told(tmp_path, caplog):
    def fails(error):
        raise KeyError("a mistake of ours")

    with stepped_hub(tmp_path) as stepped:
        answers = []
        for told in (answers.append, fails, answers.append):
            stepped.publish("t", b"x", told)
        stepped.until(lambda: len(answers) == 2)
        assert answers == [None, None]
        stepped.kept("t", b"y")
        assert stepped.store.topic("t").kept == 4
    assert "KeyError" in caplog.text


def test_a_full_log_holds_messages_in_order(tmp_path):
    with stepped_hub(tmp_path, segment_bytes=4096, retention=Retention(bytes=16_384)) as stepped:
        subscriber, publisher, answers = ControlledSubscriber(auto=True), Publisher(), []
        stepped.hub.subscribe(subscriber, EVERYTHING)
        sent = [n.to_bytes(2, "big") * 300 for n in range(60)]
        stepped.kept("t", b"first")
        stepped.log.acknowledge("topic/t", "holds", 0)
        for payload in sent:
            stepped.publish("t", payload, answers.append)
            stepped.hub.apply_backpressure(publisher)
        assert publisher.paused > 0
        assert stepped.hub.durability.full
        stepped.log.leave("topic/t", "holds")

        def all_told():
            stepped.hub.tick(0.0)
            return len(answers) == len(sent)

        stepped.until(all_told)
        stepped.until(lambda: not publisher.paused)
        assert answers == [None] * len(sent)
        assert subscriber.received == [b"first", *sent]
        assert not stepped.hub.durability.full


def test_a_payload_that_never_fits_is_refused(tmp_path):
    """It would be waited for for ever, and all behind it."""
    with stepped_hub(tmp_path, room=100_000) as stepped:
        with pytest.raises(UsageError, match="100000"):
            stepped.publish("t", bytes(60_000))
        with pytest.raises(UsageError, match="100000"):
            stepped.begin("t", 60_000)
        stepped.kept("t", b"others go on")


@pytest.mark.parametrize("closed_by", ["broker", "client"])
def test_closing_under_load(tmp_path, closed_by):
    """Whatever is on its way: what was acknowledged is there, and nobody waits for ever."""
    kept, failures = [], []

    def publish(name, make):
        try:
            with make() as client:
                clients.append(client)
                for n in range(100_000):
                    client.publish("t", b"%s/%d" % (name, n) + bytes(n % 7 * 20_000), wait=True)
                    kept.append(b"%s/%d" % (name, n))
        except (Again, Broken, Closed):
            return
        except BaseException as error:  # noqa: BLE001 - the test fails by it
            failures.append(error)

    clients = []
    with running(tmp_path) as broker:
        makers = [
            (b"native", lambda: BrokerClient(broker.endpoints["requests"], timeout=5)),
            (b"own2", lambda: BrokerClient(broker.endpoints["requests"], timeout=5)),
            (b"ttp", lambda: TtpClient("127.0.0.1", broker.ports["ttp"], timeout=5)),
        ]
        threads = [threading.Thread(target=publish, args=each) for each in makers]
        for thread in threads:
            thread.start()
        pause = threading.Event()
        while len(kept) < 100:
            assert not failures
            pause.wait(0.005)
        if closed_by == "client":
            for client in clients[:2]:
                client.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not failures, failures
    with Log(tmp_path / LOG) as log:
        store = Store(log, lambda name: True, most=10)
        found, offset = set(), 0
        while messages := store.read(store.topic("t"), offset):
            found.update(bytes(one.payload).rstrip(b"\0") for one in messages)
            offset = messages[-1].offset + 1
        del messages
    assert found.issuperset(kept)


_FAILING = """
import os, sys, threading
from pathlib import Path
from tests.broker.in_process_broker import running
from transfer.broker.clients.native import BrokerClient
from transfer.transports.errors import InternalError, TransferError

def fails(*arguments):
    raise OSError(5, "the disk is broken")

def main():
    with running(Path(sys.argv[1])) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("t", "g")
        client.publish("t", b"kept")
        message = consumer.recv()
        os.fdatasync = os.fsync = fails
        for _ in range(2):
            try:
                client.publish("t", b"lost")
            except InternalError as error:
                print("told", "broken" in str(error), type(error).__name__)
        try:
            client.publish("t", bytes(100_000))
        except InternalError:
            print("large told")
        print("failure", type(broker.failure).__name__)
        try:
            consumer.ack(message, wait=True) if len(sys.argv) > 2 else None
        except TransferError as error:
            print("ack", type(error).__name__)
        os.fdatasync = os.fsync = lambda fd: None
    print("closed", threading.active_count())

main()
"""


def test_a_disk_that_fails_is_told(tmp_path):
    """Nothing is called kept any more, and the broker can be closed."""
    done = subprocess.run(
        [sys.executable, "-c", _FAILING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "told True InDoubt", "told True InternalError", "large told", "failure InternalError", "closed 1"
    ], done.stderr  # fmt: skip
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        message = client.consume("t", "g").recv()
        assert bytes(message.data) == b"kept"


def test_a_failed_log_lets_publishers_go(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        publisher, answers = Publisher(), []
        stepped.publish("t", bytes(65 << 20), answers.append)
        stepped.hub.apply_backpressure(publisher)
        assert publisher.paused == 1
        stepped.hub.durability.failed(InternalError("the disk is broken"))
        assert publisher.paused == 0
        assert isinstance(answers[0], InternalError)
        stepped.turn(0.5)
        assert len(answers) == 1, "told once"
        stepped.hub.apply_backpressure(publisher)
        assert publisher.paused == 0


def test_starting_and_closing_at_once(tmp_path):
    for _ in range(3):
        with running(tmp_path) as broker:
            assert broker.failure is None
        broker.close()
