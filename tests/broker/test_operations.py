"""What operators do: exact words, exact targets, and a crash at any moment loses and doubles nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import AuditWindow
from transfer.broker.storage.database import Database
from transfer.broker.storage.dead_letter import Filter, LetterState
from transfer.broker.storage.dead_letter_operations import Operator
from transfer.broker.storage.dead_letter_requests import MAX_IDS
from transfer.broker.storage.dead_letter_table import DeadLetters
from transfer.transports.errors import Closed, InternalError, LogFull, StateError, UsageError

from .test_dead_letters import letter, numbered

NOW = 1_774_051_200_000
WHO = {"actor": "ops@example.com", "reason": "customer-approved"}
TARGET = ("worker-1", "orders.created")


class OperatorStores:
    """An operator with its stores in a folder. published: (message id, replay id) in order."""

    def __init__(self, folder, **more):
        self.published = []
        self.refuses = {}
        self.database = Database(folder / "state.sqlite")
        self.letters = DeadLetters(self.database)
        self.audit = Audit(folder / "audit", NOW)
        self.operator = Operator(self.letters, self.audit, self._publish, clock=lambda: NOW, **more)

    def _publish(self, letter, replay_id):
        error = self.refuses.get(letter.message_id)
        if error is not None:
            raise error
        self.published.append((letter.message_id, replay_id))

    def close(self):
        self.audit.close()
        self.database.close()

    def add(self, *numbers, **more):
        for number in numbers:
            assert self.letters.add(letter(number, **more))

    def replay(self, *ids, target=TARGET, confirm="REPLAY", **more):
        return self.operator.replay(ids, *target, confirm=confirm, **WHO | more)

    def purge(self, *ids, confirm="PURGE", **more):
        return self.operator.purge(ids, confirm=confirm, **WHO | more)

    def audit_events(self):
        """(operation, message ids, what each is now) of every event."""
        return [
            (
                event.action.operation,
                event.action.message_ids,
                [one["state"] for one in event.action.resulting_state],
            )
            for event in self.audit.events()
        ]


@pytest.fixture
def stores(tmp_path):
    one = OperatorStores(tmp_path)
    yield one
    one.close()


def test_a_replay_publishes_removes_and_is_audited(stores):
    stores.add(0, 1, 2)
    outcome = stores.replay("msg-0", "delivery-2", "msg-0")
    assert (outcome.requested, outcome.done, outcome.failures) == (2, ("delivery-0", "delivery-2"), ())
    assert outcome.audited
    assert [id for id, _ in stores.published] == ["msg-0", "msg-2"]
    assert len({replay for _, replay in stores.published}) == 2
    assert numbered(stores.operator.browse(Filter())[0]) == [1]
    (event,) = stores.operator.events()
    assert event.action.message_ids == ("msg-0", "msg-2") and event.action.actor == WHO["actor"]
    assert [one["state"] for one in event.action.prior_state] == ["dead", "dead"]
    assert event.action.prior_state[0]["topic"] == "orders.created"
    assert stores.audit_events() == [("replay", ("msg-0", "msg-2"), ["replayed", "replayed"])]


@pytest.mark.parametrize("word", ["", "replay", "REPLAY ", "PURGE", "yes"])
def test_nothing_happens_without_the_exact_word(stores, word):
    stores.add(0)
    with pytest.raises(UsageError, match="word REPLAY"):
        stores.replay("msg-0", confirm=word)
    with pytest.raises(UsageError, match="word PURGE"):
        stores.purge("msg-0", confirm="REPLAY" if word == "PURGE" else word)
    assert stores.letters.count() == 1 and not stores.published and stores.audit_events() == []


@pytest.mark.parametrize(
    "target",
    [("worker-2", "orders.created"), ("worker-1", "orders.Created"), ("worker-1", "orders.*"), ("", "")],
)
def test_nothing_goes_to_another_target(stores, target):
    stores.add(0)
    (failure,) = stores.replay("msg-0", target=target).failures
    assert (failure.id, failure.code) == ("msg-0", "wrong_target")
    assert stores.letters.count() == 1 and not stores.published and stores.audit_events() == []


@pytest.mark.parametrize(
    "wrong",
    [{"actor": ""}, {"reason": ""}, {"actor": "a\nb"}, {"reason": "x" * 2000}, {"actor": "\ud800"}],
)
def test_who_and_why_have_to_be_said(stores, wrong):
    stores.add(0)
    for call in (stores.replay, stores.purge):
        with pytest.raises(UsageError):
            call("msg-0", **wrong)
        with pytest.raises(UsageError, match="ids"):
            call()
        with pytest.raises(UsageError, match="ids"):
            call(*map(str, range(MAX_IDS + 1)))
    assert stores.letters.count() == 1


def test_each_id_is_told_why_it_failed(stores):
    stores.add(0)
    stores.add(1, delivery_id="one")
    stores.add(1, delivery_id="another")
    stores.add(2, tenant="acme")
    stores.refuses["msg-2"] = LogFull("no room")
    outcome = stores.replay("msg-0", "delivery-0", "msg-1", "msg-2", "msg-9")
    assert {failure.id: failure.code for failure in outcome.failures} == {
        "delivery-0": "repeated",
        "msg-1": "ambiguous",
        "delivery-2": "publish",
        "msg-9": "not_found",
    }
    assert outcome.requested == 5 and outcome.done == ("delivery-0",)
    assert stores.letters.get("delivery-2").state is LetterState.DEAD
    assert stores.purge("msg-2", tenant="").failures[0].code == "not_found"
    assert stores.purge("msg-2", "one", tenant=None).done == ("delivery-2", "one")


def test_a_letter_that_may_have_gone_out_is_in_doubt(stores):
    stores.add(0, 1, 2)
    stores.refuses["msg-0"] = InternalError("the disk failed")
    assert [one.code for one in stores.replay("msg-0", "msg-1").failures] == ["in_doubt"]
    stores.refuses["msg-2"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        stores.replay("msg-2")
    stores.refuses.clear()
    assert [one.code for one in stores.replay("msg-0", "msg-2").failures] == ["in_doubt", "in_doubt"]
    assert stores.replay("msg-0", "msg-2", again=True).done == ("delivery-0", "delivery-2")
    assert stores.audit_events() == [
        ("replay", ("msg-0", "msg-1"), ["in_doubt", "replayed"]),
        ("replay", ("msg-2",), ["in_doubt"]),
        ("replay", ("msg-0", "msg-2"), ["replayed", "replayed"]),
    ]


def test_a_damaged_letter_is_not_published(stores):
    stores.add(0)
    with stores.database.transaction() as connection:
        connection.execute("UPDATE dead_letters SET payload = X'00'")
    assert stores.replay("msg-0").failures[0].code == "damaged"
    assert stores.purge("msg-0").done == ("delivery-0",)


def test_quarantine_by_hand(stores):
    made, audited = stores.operator.dead_letter("msg-0", *TARGET, b"raw", tenant="acme", **WHO)
    assert audited
    (kept,) = stores.operator.inspect("msg-0")
    assert (kept.delivery_id, kept.payload, kept.tenant) == (made.delivery_id, b"raw", "acme")
    with pytest.raises(StateError, match="already"):
        stores.operator.dead_letter("msg-0", *TARGET, b"raw", tenant="acme", **WHO)
    stores.operator.dead_letter("msg-0", *TARGET, b"raw", **WHO)
    for wrong in (("", "a", "b"), ("a", "b\0", "c"), ("a", "b", "c" * 256)):
        with pytest.raises(UsageError):
            stores.operator.dead_letter(*wrong, b"", **WHO)
    assert stores.replay("msg-0", tenant="acme").done == (made.delivery_id,)
    assert [one[0] for one in stores.audit_events()] == ["dead_letter", "dead_letter", "replay"]


def test_pages_of_letters(stores):
    stores.add(*range(5))
    found, after = stores.operator.browse(Filter(), limit=2)
    assert numbered(found) == [0, 1]
    found, after = stores.operator.browse(Filter(), after=after, limit=3)
    assert numbered(found) == [2, 3, 4] and after is None
    for limit in (0, -1, 1001):
        with pytest.raises(UsageError, match="limit"):
            stores.operator.browse(Filter(), limit=limit)


def test_what_cannot_be_audited_now_is_audited_before_the_next_change(tmp_path, stores):
    stores.add(0, 1)
    stores.audit.close()
    with pytest.raises(Closed):
        stores.audit.append(None, NOW)
    assert not stores.purge("msg-0").audited
    with pytest.raises(Closed):
        stores.purge("msg-1")
    assert stores.letters.count() == 1, "nothing more is changed"
    stores.close()
    again = OperatorStores(tmp_path)
    assert again.audit_events() == [("purge", ("msg-0",), ["purged"])]
    assert again.letters.notes() == []
    again.close()


def test_a_crash_after_the_audit_tells_nothing_twice(tmp_path, stores, monkeypatch):
    stores.add(0)
    monkeypatch.setattr(stores.letters, "forget", lambda note: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stores.purge("msg-0")
    stores.close()
    again = OperatorStores(tmp_path)
    assert again.audit_events() == [("purge", ("msg-0",), ["purged"])] and not again.letters.notes()
    again.close()


# -- kill -9 -----------------------------------------------------------------------------------------

_REPLAYS = """
import os, signal, sys
from pathlib import Path
from tests.broker.test_operations import OperatorStores
step, folder = sys.argv[1], Path(sys.argv[2])
stores = OperatorStores(folder)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def publish(letter, replay_id):
    if step == "before publishing" and letter.message_id == "msg-1":
        die()
    with (folder / "published").open("a") as file:
        file.write(replay_id + "\\n")
    if step == "after publishing" and letter.message_id == "msg-1":
        die()

stores.operator._publish = publish
if step == "before the audit":
    stores.audit.append = die
if step == "after the audit":
    stores.letters.forget = die
stores.replay("msg-0", "msg-1", "msg-2")
"""


def killed(folder, step):
    stores = OperatorStores(folder)
    stores.add(0, 1, 2)
    stores.close()
    done = subprocess.run([sys.executable, "-c", _REPLAYS, step, str(folder)], timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    published = folder / "published"
    return published.read_text().splitlines() if published.exists() else []


@pytest.mark.parametrize("step", ["before publishing", "after publishing"])
def test_killed_while_publishing(tmp_path, step):
    out = killed(tmp_path, step)
    stores = OperatorStores(tmp_path)
    try:
        assert len(out) == (1 if step == "before publishing" else 2)
        found, _ = stores.operator.browse(Filter())
        assert [one.state for one in found] == [LetterState.IN_DOUBT] * 3, "nothing is lost"
        assert {one.code for one in stores.replay("msg-0", "msg-1", "msg-2").failures} == {"in_doubt"}
        assert [one[0] for one in stores.audit_events()] == ["replay_interrupted"] * 3
        assert next(stores.audit.events(AuditWindow())).action.actor == WHO["actor"]
    finally:
        stores.close()


@pytest.mark.parametrize("step", ["before the audit", "after the audit"])
def test_killed_around_the_audit(tmp_path, step):
    assert len(killed(tmp_path, step)) == 3
    stores = OperatorStores(tmp_path)
    try:
        assert stores.letters.count() == 0
        assert stores.audit_events() == [("replay", ("msg-0", "msg-1", "msg-2"), ["replayed"] * 3)]
        assert stores.audit.verify().whole
    finally:
        stores.close()
