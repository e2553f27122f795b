"""Dead letters keep all of a message, whatever becomes of the log, and whenever a crash comes."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import transfer
from tests.broker.http_requests import ask, get_json, until
from tests.broker.in_process_broker import running
from transfer.broker import server
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.core.dispatcher_events import (
    Accepted,
    DispatcherState,
    End,
    Finished,
    LogPosition,
    MessageInfo,
)
from transfer.broker.core.message import Front
from transfer.broker.storage import dead_letter_payloads as payloads
from transfer.broker.storage.database import Database, row_check
from transfer.broker.storage.dead_letter import DeadLetter, Filter, PayloadFile
from transfer.broker.storage.dead_letter_table import SCHEMA, STORE, DeadLetters
from transfer.broker.storage.dead_letter_writer import finish_dead_lettered
from transfer.broker.storage.folder_check import check
from transfer.log import Log
from transfer.tensors.build import NUMPY, recipe_for
from transfer.transports.errors import LogDamaged, LogFull, StateError

from .test_dead_letters import letter

LARGE = bytes(range(256)) * 400
WHO = {"actor": "me", "reason": "why"}


@pytest.fixture
def letters(tmp_path):
    database = Database(tmp_path / "state.db")
    yield DeadLetters(database)
    database.close()


def whole():
    return [LARGE]


def large_letter(number, **more):
    return letter(number, **{"payload": b"", "payload_bytes": len(LARGE)} | more)


def files(folder):
    return sorted((folder / "letters").glob("*"))


def operate(broker, what, **body):
    path = f"/api/admin/dlq/{what}"
    status, text = ask(broker.ports["http"], path, method="POST", body=WHO | body)
    assert status == 200, text
    return json.loads(text)


def replay(broker, *ids, consumer="billing", topic="orders"):
    return operate(broker, "replay", ids=ids, target_consumer=consumer, target_topic=topic, confirm="REPLAY")


def inspected(broker, id):
    (found,) = get_json(broker.ports["http"], f"admin/dlq/inspect?id={id}")["letters"]
    return found


def die(broker, consumer, message):
    before = broker.letters.count()
    consumer.nack(message, "cannot", retry=False)
    until(broker.letters.count, before + 1)


# -- the files -------------------------------------------------------------------------------------------


def test_a_large_payload_is_a_file_until_its_letter_goes(tmp_path, letters):
    parts = [LARGE[:1000], memoryview(LARGE)[1000:]]
    assert letters.add(large_letter(0, front=Front.TTP, head=b"\0head"), large=lambda: parts)
    assert not letters.add(large_letter(0), large=lambda: [b"other"]) and len(files(tmp_path)) == 1
    kept = letters.get("delivery-0")
    assert (kept.payload_bytes, kept.front, kept.head) == (len(LARGE), Front.TTP, b"\0head")
    assert letters.problem(kept) == "" and letters.begin(kept, 5) == LARGE[:5]
    view = letters.payloads.view(kept.payload, kept.payload_bytes)
    assert b"".join(letters.payloads.pieces(kept.payload, kept.payload_bytes)) == view == LARGE
    letters.begin_replay(["delivery-0"], "who")
    with pytest.raises(StateError):
        letters.remove(["delivery-0"], "note")
    assert len(files(tmp_path)) == 1, "it is still there"
    letters.end_replay(["delivery-0"], {}, "note")
    assert files(tmp_path) == [] and view == LARGE


def test_a_letter_that_is_not_added_leaves_no_file(tmp_path, letters, monkeypatch):
    monkeypatch.setattr(letters, "has", lambda _: False)  # as if another came in between
    assert letters.add(letter(0))
    assert not letters.add(large_letter(0), large=whole)
    with pytest.raises(LogDamaged, match="only 5 bytes"):
        letters.add(large_letter(1), large=lambda: [b"short"])
    assert files(tmp_path) == [] and letters.get("delivery-0").payload == b"body 0"


@pytest.mark.parametrize("damage", ["changed", "short", "gone"])
def test_a_damaged_file_is_told(tmp_path, letters, damage):
    letters.add(large_letter(0), large=whole)
    letters.add(large_letter(1), large=whole)
    path = tmp_path / "letters" / letters.get("delivery-0").payload.name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(LARGE[:-1] + (b"x" if damage == "changed" else b""))
    assert [bool(letters.problem(one)) for one in letters.all()] == [True, False]
    assert [letters.checked(one).damaged for one in letters.all()] == [True, False]
    if damage != "changed":
        with pytest.raises(LogDamaged):
            letters.payloads.view(letters.get("delivery-0").payload, len(LARGE))
    letters.remove(["delivery-0"], "note")
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    "change", ["file = 'other.payload'", "file_check = 1", "front = 3", "head = X'00'", "head_check = NULL"]
)
def test_a_changed_row_is_told(letters, change):
    letters.add(large_letter(0, front=Front.NATIVE, head=b"head"), large=whole)
    with letters._database.transaction() as connection:
        connection.execute(f"UPDATE dead_letters SET {change}")
    assert letters.get("delivery-0").damaged


def test_a_name_leads_nowhere_else(tmp_path, letters):
    (tmp_path / "mine").write_bytes(LARGE)
    with pytest.raises(LogDamaged, match="is missing"):
        letters.payloads.check(PayloadFile("../mine", 0), len(LARGE))
    letters.payloads.remove(["../mine", ""])
    assert (tmp_path / "mine").exists()


def test_what_a_crash_left_is_removed_unless_something_is_missing(tmp_path, letters):
    letters.add(large_letter(0), large=whole)
    letters.payloads.write(whole, len(LARGE))
    (tmp_path / "letters" / "mine.txt").touch()
    assert letters.sweep() == 1 and letters.sweep() == 0
    assert len(files(tmp_path)) == 2
    letters.payloads.write(whole, len(LARGE))
    (tmp_path / "letters" / letters.get("delivery-0").payload.name).unlink()
    assert letters.sweep() == 0, "it may be the one that is missed"


def test_a_database_of_the_first_version_opens(tmp_path):
    old = {
        "delivery_id": "d", "message_id": "m", "tenant": "", "consumer": "c", "topic": "t",
        "original_topic": "t", "reason": "r", "last_error": "", "attempts": 1, "first_ms": 2, "last_ms": 3,
        "payload_bytes": 4, "headers": '{"a":1}', "log_topic": None, "log_offset": None,
    }  # fmt: skip
    check = row_check(*(old[name] for name in sorted(old)))
    row = old | {"fields_check": check, "payload": b"body", "payload_check": row_check(b"body")}
    row |= {"state": "dead", "replay": ""}
    database = Database(tmp_path / "state.db")
    database.prepare(STORE, SCHEMA[:5])
    with database.transaction() as connection:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO dead_letters ({names}) VALUES ({marks})", tuple(row.values()))
    database.close()
    database = Database(tmp_path / "state.db")
    letters = DeadLetters(database)
    found = letters.get("d")
    assert (found.damaged, found.payload, found.headers) == (False, b"body", {"a": 1})
    assert (found.front, found.head) == (None, b"")
    letters.add(large_letter(0), large=whole)
    with database.transaction() as connection:
        connection.execute("UPDATE dead_letters SET attempts = 2 WHERE delivery_id = 'd'")
    assert [one.damaged for one in letters.all()] == [True, False]
    database.close()


# -- a broker --------------------------------------------------------------------------------------------


@pytest.fixture
def small_segments(monkeypatch):
    """Retention takes whole segments."""
    monkeypatch.setattr(server, "Log", functools.partial(Log, segment_bytes=64 << 10))


def taken_by_retention(broker, client, topic="orders"):
    """Publishes until the topic's first message is gone from the log."""
    for _ in range(100):
        client.publish_many("others", [bytes(30_000)] * 10)
        if broker.hub.store.log.range(f"topic/{topic}")[0]:
            return
    raise AssertionError("retention takes nothing")


@pytest.mark.parametrize("nbytes", [800, 200_000])
def test_a_tensor_is_replayed_after_retention_took_it(tmp_path, small_segments, nbytes):
    array = np.arange(nbytes // 8, dtype=np.float64).reshape(2, -1)
    with (
        running(tmp_path, http=0, retention_bytes=1 << 20) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
        transfer.Context() as context,
        context.socket(transfer.PUSH) as push,
    ):
        billing = client.consume("orders", "billing", begin="old")
        push.connect(broker.endpoints["pushes"])
        push.send_tensor(array, topic="orders")
        push.send_tensor(array, topic="orders")
        die(broker, billing, billing.recv())
        billing.ack(billing.recv(), wait=True)
        taken_by_retention(broker, client)
        assert inspected(broker, "orders/billing/0")["front"] == "native"
        assert replay(broker, "orders/billing/0")["replayed"] == 1
        again = billing.recv()
        tensor = NUMPY.build(recipe_for(again.parts[0].meta), bytes(again.data))
        assert again.offset == 2 and tensor.dtype == array.dtype
        np.testing.assert_array_equal(tensor, array)
        billing.ack(again, wait=True)
        assert broker.letters.count() == 0 and files(tmp_path) == []


def test_what_ttp_said_of_a_message_is_kept(tmp_path):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        billing = client.consume("orders", "billing", begin="old")
        with TtpClient("127.0.0.1", broker.ports["ttp"]) as ttp:
            ttp.publish("orders", LARGE, {"message_id": "m1", "mine": 1}, wait=True)
        die(broker, billing, billing.recv())
        assert replay(broker, "m1")["replayed"] == 1
        assert bytes(billing.recv().data) == LARGE
        first, again = broker.hub.store.read(broker.hub.store.topics["orders"], 0)
        assert (again.front, again.head, again.headers["mine"]) == (Front.TTP, first.head, 1)
        assert first.head and again.payload == first.payload
        del first, again


def test_a_large_one_of_direct_delivery_is_replayed_with_its_envelope(tmp_path, small_segments):
    pytest.importorskip("zmq", reason="pip install 'tensor-transfer[fronts]'")
    from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer

    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with running(tmp_path, http=0, abtp=where, retention_bytes=1 << 20) as broker:
        router = broker.endpoints["abtp router"]
        with (
            AbtpConsumer("worker", ["orders.*"], router) as worker,
            AbtpProducer(router, producer_id="shop") as producer,
            BrokerClient(broker.endpoints["requests"]) as client,
        ):
            producer.publish("orders.new", LARGE, message_id="m1", headers={"mine": 1})
            worker.nack(worker.recv(), "cannot", terminal=True, confirm=True)
            until(broker.letters.count, 1)
            producer.publish("orders.new", b"", message_id="m2")
            worker.ack(worker.recv(), confirm=True)
            taken_by_retention(broker, client, "orders.new")
            assert replay(broker, "m1", consumer="worker", topic="orders.new")["replayed"] == 1
            again = worker.recv()
            assert (again.message_id, again.producer_id, again.payload) == ("m1", "shop", LARGE)
            assert again.headers["mine"] == 1 and again.headers["replay_id"].endswith(":direct/1")
            worker.ack(again, confirm=True)
        assert files(tmp_path) == []


def test_damage_is_told_to_operators_and_by_check(tmp_path):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        billing = client.consume("orders", "billing", begin="old")
        client.publish_many("orders", [LARGE, LARGE])
        for _ in range(2):
            die(broker, billing, billing.recv())
        path, _ = files(tmp_path)
        path.write_bytes(LARGE[:-1] + b"x")
        names = ["orders/billing/0", "orders/billing/1"]
        told = {name: inspected(broker, name) for name in names}
        (bad,) = (name for name in names if told[name]["damaged"])
        assert all(one["payload_cut"] and one["payload_bytes"] == len(LARGE) for one in told.values())
        assert [one["error"] for one in replay(broker, *names)["failures"]] == ["damaged"]
        assert bytes(billing.recv().data) == LARGE
    parts = {part.name: part.problems for part in check(tmp_path).parts}
    assert [one.partition(": ")[0] for one in parts.pop("letters")] == [bad]
    assert not any(parts.values())
    with running(tmp_path, http=0) as broker:
        assert operate(broker, "purge", ids=[bad], confirm="PURGE")["purged"] == 1
        assert files(tmp_path) == []


def test_a_payload_that_the_log_has_no_more_is_told_to_be_lost(tmp_path):
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        billing = client.consume("orders", "billing", begin="old")
        client.publish("orders", LARGE)
        message = billing.recv()
        (blobs,) = (tmp_path / "log").glob("*.blobs")
        with blobs.open("r+b") as file:
            file.seek(file.read().index(LARGE[:256]) + 1000)
            file.write(b"damage")
        die(broker, billing, message)
        told = inspected(broker, "orders/billing/0")
        assert (told["payload"], told["payload_bytes"], told["payload_cut"]) == ("", len(LARGE), True)
        assert "is damaged" in told["last_error"] and not told["damaged"]
        (failure,) = replay(broker, "orders/billing/0")["failures"]
        assert failure["error"] == "publish" and "is lost" in failure["message"]
        assert files(tmp_path) == [] and broker.letters.count() == 1


def test_a_large_letter_of_a_group_that_is_not_there_costs_nothing(tmp_path):
    with running(tmp_path, http=0) as broker:
        broker.letters.add(large_letter(0, consumer="billing", topic="orders"), large=whole)
        (failure,) = replay(broker, "delivery-0")["failures"]
        assert "has no group" in failure["message"] and broker.letters.count() == 1
        assert broker.hub.store.log.range("topic/orders") == (0, 0)


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    write, full = payloads._write, [True, True]

    def sometimes(fd, parts, nbytes):
        if full:
            os.write(fd, b"a beginning")
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, parts, nbytes)

    monkeypatch.setattr(payloads, "_write", sometimes)
    with pytest.raises(LogFull):
        payloads.LetterPayloads(tmp_path / "letters").write(whole, len(LARGE))
    assert files(tmp_path) == []
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        billing = client.consume("orders", "billing", begin="old")
        client.publish("orders", LARGE)
        die(broker, billing, billing.recv())
        assert not full and len(files(tmp_path)) == 1
        until(lambda: get_json(broker.ports["http"], "groups")["groups"][0]["lag"], 0)


#: a broker that is killed behind the file of the first letter, and in front of its row
_DIES = """
import os, signal, sys
from pathlib import Path
from tests.broker.broker_processes import serve
from transfer.broker.storage import dead_letter_table as dead_letters
dead_letters.insert = lambda connection, letter: os.kill(os.getpid(), signal.SIGKILL)
serve(sys.argv[1])
"""


def test_killed_between_the_file_and_the_row(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _DIES, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        endpoints = json.loads(process.stdout.readline())["endpoints"]
        with BrokerClient(endpoints["requests"]) as client:
            billing = client.consume("orders", "billing", begin="old")
            client.publish("orders", LARGE)
            billing.nack(billing.recv(), "cannot", retry=False)
            assert process.wait(20) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert len(files(tmp_path)) == 1
    with running(tmp_path, http=0) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert files(tmp_path) == [] and broker.letters.count() == 0
        billing = client.consume("orders", "billing")
        message = billing.recv()
        assert bytes(message.data) == LARGE, "it comes again"
        die(broker, billing, message)
        (found,) = broker.letters.all()
        assert isinstance(found, DeadLetter) and broker.letters.problem(found) == ""
        assert [one.delivery_id for one in broker.letters.page(Filter())] == ["orders/billing/0"]
        assert len(files(tmp_path)) == 1


def test_what_has_a_letter_is_finished_behind_a_crash(letters):
    """Direct delivery keeps the letter first; `tests/crash/direct_programs.py` has the crashes."""
    for number, name in (
        (2, "direct/2"),
        (3, "direct/3"),
        (4, "direct/g/4"),
        (9, "direct/9"),
        (5, "orders/g/5"),
    ):
        letters.add(letter(number, delivery_id=name))
    books = DispatcherState()
    for number in range(1, 6):
        message_id = f"msg-{number}" if number != 3 else "another, which has this number by a lost log"
        facts = MessageInfo("", "orders", message_id, "maker")
        books.apply(Accepted(number, "worker", facts, LogPosition("broker/m/orders", number)))
    assert finish_dead_lettered(books, letters) == [Finished(2, End.DEAD_LETTERED)]
    assert sorted(books.messages) == [1, 3, 4, 5]
    assert books.next_number == 10
