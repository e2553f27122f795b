"""The store of dead letters: nothing lost, nothing doubled, a changed bit told."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.storage.database import Database
from transfer.broker.storage.dead_letter import DeadLetter, Filter, LetterState, Reference
from transfer.broker.storage.dead_letter_table import DeadLetters, insert
from transfer.transports.errors import StateError, TransferError, UsageError


@pytest.fixture
def database(tmp_path):
    with_file = Database(tmp_path / "state.sqlite")
    yield with_file
    with_file.close()


@pytest.fixture
def letters(database):
    return DeadLetters(database)


def letter(number=0, **more):
    values = {
        "delivery_id": f"delivery-{number}",
        "message_id": f"msg-{number}",
        "consumer": "worker-1",
        "topic": "orders.created",
        "reason": "attempts exhausted",
        "payload": b"body %d" % number,
    }
    return DeadLetter(**values | more)


def numbered(found):
    return [int(one.message_id.removeprefix("msg-")) for one in found]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
stored = st.builds(
    DeadLetter,
    delivery_id=texts,
    message_id=texts,
    consumer=texts,
    topic=texts.filter(bool),
    reason=texts,
    payload=st.binary(max_size=40) | st.builds(Reference, texts, st.integers(0, 2**62)),
    tenant=texts,
    original_topic=texts,
    attempts=st.integers(0, 1000),
    last_error=texts,
    first_ms=st.integers(0, 2**50),
    last_ms=st.integers(0, 2**50),
    headers=st.dictionaries(texts, st.none() | st.integers() | texts, max_size=3),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(stored, max_size=5))
def test_letters_come_back_as_they_were_and_once(tmp_path_factory, given):
    database = Database(tmp_path_factory.mktemp("letters") / "state.sqlite")
    try:
        letters = DeadLetters(database)
        model = {}
        for one in given:
            assert letters.add(one) == (one.delivery_id not in model)
            model.setdefault(one.delivery_id, one)
            assert not letters.add(one), "the same delivery again"
        assert letters.count() == len(model)
        for id, one in model.items():
            got = letters.get(id)
            assert (got.message_id, got.payload, got.headers) == (one.message_id, one.payload, one.headers)
            assert (got.attempts, got.first_ms, got.last_error) == (
                one.attempts,
                one.first_ms,
                one.last_error,
            )
            assert got.original_topic == (one.original_topic or one.topic)
            assert not got.damaged and got.state is LetterState.DEAD
    finally:
        database.close()


def test_letters_outlive_the_process(tmp_path):
    for _ in range(2):
        database = Database(tmp_path / "state.sqlite")
        letters = DeadLetters(database)
        letters.add(letter(1))
        assert letters.count() == 1
        database.close()


def test_pages_go_on_where_the_last_one_ended(letters):
    for number in range(7):
        letters.add(letter(number, consumer=f"worker-{number % 2}"))
    first = letters.page(Filter(), limit=3)
    letters.remove([first[0].delivery_id], "note")
    assert numbered(first) == [0, 1, 2]
    assert numbered(letters.page(Filter(), after=first[-1].number, limit=3)) == [3, 4, 5]
    assert numbered(letters.page(Filter(consumer="worker-1"), after=first[-1].number)) == [3, 5]
    assert all(one.payload is None and one.payload_bytes == 6 for one in first)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, [0, 1, 2]),
        ({"tenant": ""}, [0, 1]),
        ({"tenant": "acme"}, [2]),
        ({"topic": "orders.created", "reason": "ttl"}, [1]),
        ({"message_id": "msg-2"}, [2]),
        ({"state": LetterState.IN_DOUBT}, []),
        ({"consumer": "worker-1' OR 1 --"}, []),
    ],
)
def test_letters_are_found_by_what_they_are(letters, asked, wanted):
    letters.add(letter(0))
    letters.add(letter(1, reason="ttl"))
    letters.add(letter(2, tenant="acme", topic="a"))
    assert numbered(letters.page(Filter(**asked))) == wanted
    assert letters.count(Filter(**asked)) == len(wanted)


def test_an_id_is_a_deliverys_or_else_a_messages(letters):
    letters.add(letter(0, delivery_id="a"))
    letters.add(letter(0, delivery_id="b", tenant="acme"))
    letters.add(letter(1, delivery_id="msg-0"))
    assert [one.delivery_id for one in letters.find("a")] == ["a"]
    assert [one.delivery_id for one in letters.find("msg-0")] == ["msg-0"]
    assert [one.delivery_id for one in letters.find("msg-0", "acme")] == ["b"]
    assert letters.find("c") == [] and letters.get("c") is None


def test_a_replay_holds_its_letters(letters):
    for number in range(3):
        letters.add(letter(number))
    letters.begin_replay(["delivery-0", "delivery-1"], "who")
    assert (
        letters.get("delivery-0").state is LetterState.REPLAYING and letters.get("delivery-0").replay == "who"
    )
    with pytest.raises(StateError, match="delivery-1"):
        letters.begin_replay(["delivery-2", "delivery-1"], "who else")
    assert letters.get("delivery-2").state is LetterState.DEAD, "all or nothing"
    with pytest.raises(StateError):
        letters.remove(["delivery-2", "delivery-0"], "note")
    letters.end_replay(["delivery-0"], {"delivery-1": LetterState.IN_DOUBT}, "what was done")
    assert numbered(letters.page(Filter())) == [1, 2]
    assert letters.get("delivery-1").state is LetterState.IN_DOUBT and not letters.get("delivery-1").replay
    (note,) = letters.notes()
    assert note.content == "what was done"
    letters.forget(note)
    assert letters.notes() == []


def test_an_engine_adds_in_its_own_transaction(database, letters):
    with pytest.raises(ZeroDivisionError), database.transaction() as connection:
        assert insert(connection, letter(0))
        raise ZeroDivisionError
    assert letters.count() == 0
    with pytest.raises(UsageError, match="was not read"):
        letters.add(letter(1, payload=None))


@pytest.mark.parametrize(
    "change",
    [
        "payload = X'00'",
        "payload = 5",
        "topic = 'orders.forged'",
        "consumer = CAST(X'FFFE' AS TEXT)",
        "attempts = 7",
        "headers = '{'",
        "log_topic = 'rows'",
        "state = 'deaf'",
        "fields_check = 1",
    ],
)
def test_a_changed_row_is_told_and_the_others_are_served(tmp_path, database, letters, change):
    letters.add(letter(0))
    letters.add(letter(1))
    beside = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    beside.execute(f"UPDATE dead_letters SET {change} WHERE delivery_id = 'delivery-0'")
    beside.close()
    assert letters.get("delivery-0").damaged
    assert not letters.get("delivery-1").damaged
    assert numbered(letters.page(Filter())) == [0, 1]
    assert letters.count() == 2
    letters.remove(["delivery-0"], "note")
    assert letters.count() == 1


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_flipped_bit_of_the_file_never_goes_unnoticed_into_a_letter(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("letters") / "state.sqlite"
    database = Database(path)
    written = {f"delivery-{number}": letter(number, payload=b"x" * 300) for number in range(8)}
    for one in written.values():
        DeadLetters(database).add(one)
    database.close()
    content = bytearray(path.read_bytes())
    page = data.draw(st.integers(0, len(content) // 4096 - 1))
    bit = data.draw(st.integers(0, 8 * 4096 - 1)) + 8 * 4096 * page
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    try:
        database = Database(path)
    except TransferError:
        return  # noticed, and told
    try:
        letters = DeadLetters(database)
        found = [one for id in written for one in letters.find(id)] + letters.page(Filter())
    except TransferError:
        return
    finally:
        database.close()
    for one in found:
        original = written.get(one.delivery_id)
        fields = ("message_id", "consumer", "topic", "reason", "attempts", "headers", "payload_bytes")
        assert one.damaged or all(
            getattr(one, name) == (300 if name == "payload_bytes" else getattr(original, name))
            for name in fields
        )
        assert one.damaged or one.payload in (None, original.payload)
