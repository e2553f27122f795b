"""The audit: what is appended stays, what is changed is told, and it goes on either way."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import (
    DAMAGED,
    GENESIS,
    Action,
    AuditWindow,
    check_export,
    decode,
    encode,
    parse_time,
    time_text,
)
from transfer.broker.storage.audit_verification import HEAD, AuditHead, examine
from transfer.transports.errors import Closed, LogDamaged, LogFull, LogInUse, UsageError

NOW = 1_774_051_200_000  # 2026-03-21
DAY = 86_400_000


def action(number=0, **more):
    values = {"actor": "ops@example.com", "operation": "purge", "message_ids": (f"msg-{number}",)}
    return Action(**values | more)


def write(folder, count, *, begin=0):
    with Audit(folder, NOW) as audit:
        return [audit.append(action(number), NOW + number) for number in range(begin, begin + count)]


def ids(events):
    return [event.action.message_ids for event in events if event.action.operation != DAMAGED]


# -- lines -------------------------------------------------------------------------------------------


def test_a_line_is_hashed_as_the_documentation_says():
    _, line = encode(1, time_text(NOW), action(reason="clean-up, agréé"), GENESIS)
    said = json.loads(line)
    hash = said.pop("hash")
    body = json.dumps(said, separators=(",", ":")).encode()
    assert hash == hashlib.sha256(body).hexdigest()
    assert line == body[:-1] + b',"hash":"' + hash.encode() + b'"}\n'
    assert said["time"] == "2026-03-21T00:00:00.000Z" and said["prev_hash"] == GENESIS


texts = st.text(max_size=20)
states = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
actions = st.builds(
    Action, texts, texts, st.lists(texts, max_size=3).map(tuple), texts, states, states
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(0, 10**9), st.integers(0, 4 * 10**12))
def test_a_line_comes_back_as_it_was(one, sequence, time):
    event, line = encode(sequence, time_text(time), one, GENESIS)
    assert line.isascii() and line.count(b"\n") == 1
    assert decode(line) == event
    assert parse_time(event.time) == time


@settings(max_examples=60, deadline=None)
@given(actions, st.data())
def test_each_changed_bit_of_a_line_is_told(one, data):
    _, line = encode(1, time_text(NOW), one, GENESIS)
    bit = data.draw(st.integers(0, 8 * (len(line) - 1) - 1))
    changed = bytearray(line)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LogDamaged):
        decode(bytes(changed))


def test_what_json_cannot_say_is_refused(tmp_path):
    with Audit(tmp_path, NOW) as audit:
        with pytest.raises(UsageError, match="cannot keep 'purge'"):
            audit.append(action(prior_state=float("nan")), NOW)
        audit.append(action(), NOW)
        assert audit.verify().events == 1


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-03-21T00:00:00Z", NOW),
        ("2026-03-21", NOW),
        ("2026-03-21T01:00:00.250+01:00", NOW + 250),
    ],
)
def test_times_are_understood(text, ms):
    assert parse_time(text) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "2026-03-21T00:00:00", "2026-13-01", "1774051200"])
def test_other_times_are_refused(text):
    with pytest.raises(UsageError, match="is no time"):
        parse_time(text)


# -- appending and reading ---------------------------------------------------------------------------


def test_events_stay_and_follow_each_other(tmp_path):
    first = write(tmp_path, 3)
    second = write(tmp_path, 2, begin=3)
    events = first + second
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert [event.prev_hash for event in events] == [GENESIS, *(event.hash for event in events[:-1])]
    with Audit(tmp_path, NOW) as audit:
        assert list(audit.events()) == events
        assert audit.found.whole and audit.found.events == 5
        assert audit.head == AuditHead(1, 5, (tmp_path / "audit.log").stat().st_size, events[-1].hash)


def test_events_are_found_by_what_they_say(tmp_path):
    with Audit(tmp_path, NOW) as audit:
        audit.append(action(1), NOW)
        audit.append(action(2, actor="eve"), NOW + DAY)
        audit.append(action(1, operation="replay"), NOW + 2 * DAY)

        def found(limit=None, **asked):
            return [event.sequence for event in audit.events(AuditWindow(**asked), limit=limit)]

        assert found() == [1, 2, 3]
        assert found(actor="eve") == [2]
        assert found(message_id="msg-1") == [1, 3]
        assert found(operation="replay", message_id="msg-1") == [3]
        assert found(start=NOW + 1) == [2, 3]
        assert found(start=NOW, end=NOW + DAY) == [1]
        assert found(after=2) == [3]
        assert found(limit=2) == [1, 2]


def test_time_never_goes_back(tmp_path):
    write(tmp_path, 3)
    with Audit(tmp_path, NOW - DAY) as audit:
        assert audit.append(action(), NOW - DAY).time == time_text(NOW + 2)


def test_one_process_at_a_time_and_not_after_the_end(tmp_path):
    with Audit(tmp_path, NOW) as audit, pytest.raises(LogInUse):
        Audit(tmp_path, NOW)
    audit.close()
    with pytest.raises(Closed):
        audit.append(action(), NOW)


def test_many_threads_append_while_others_read(tmp_path):
    with Audit(tmp_path, NOW) as audit, ThreadPoolExecutor(6) as threads:
        writers = [
            threads.submit(lambda one=one: [audit.append(action(one), NOW) for _ in range(30)])
            for one in range(4)
        ]
        while not all(writer.done() for writer in writers):
            assert audit.verify().whole and examine(tmp_path).whole
            assert check_export(audit.export())[1] == []
        for writer in writers:
            sequences = [event.sequence for event in writer.result()]
            assert sequences == sorted(sequences)
        assert audit.verify().events == audit.head.sequence == 120


@contextmanager
def files_of_at_most(nbytes):
    """The system refuses to make files longer, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_told_and_nothing_is_kept(tmp_path):
    with Audit(tmp_path, NOW) as audit:
        audit.append(action(1), NOW)
        size = (tmp_path / "audit.log").stat().st_size
        with files_of_at_most(size + 10), pytest.raises(LogFull):
            audit.append(action(2), NOW)
        assert (tmp_path / "audit.log").stat().st_size == size
        audit.append(action(3), NOW)
        assert audit.verify().whole
        assert ids(audit.events()) == [("msg-1",), ("msg-3",)]


def test_damage_that_the_disk_has_no_room_for_is_named_later(tmp_path):
    with Audit(tmp_path, NOW) as audit:
        audit.append(action(1), NOW)
        os.truncate(tmp_path / "audit.log", 0)
        for _ in range(2):
            with files_of_at_most(100), pytest.raises(LogFull):
                audit.append(action(2), NOW)
        audit.append(action(3), NOW)
        assert not audit.verify().unnamed
        assert ids(audit.events()) == [("msg-3",)]


# -- crashes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_torn_tail_is_removed(tmp_path, cut):
    write(tmp_path, 2)
    _, line = encode(3, time_text(NOW + 9), action(9), "0" * 64)
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(line[:cut])
    with Audit(tmp_path, NOW) as audit:
        assert audit.found.whole and audit.found.torn == cut
        audit.append(action(3), NOW)
        assert audit.verify().whole
        assert ids(audit.events()) == [("msg-0",), ("msg-1",), ("msg-3",)]


@pytest.mark.parametrize("zeros", [slice(0, 100), slice(40, 90)])
def test_a_tail_that_lost_sectors_is_removed(tmp_path, zeros):
    """Its end is there: sectors reach the disk in any order."""
    write(tmp_path, 2)
    _, line = encode(3, time_text(NOW + 9), action(9), "0" * 64)
    head = AuditHead(1, 3, 999, "0" * 64).encode()
    for name, data in (("audit.log", line), (HEAD, head)):
        torn = bytearray(data)
        torn[zeros] = bytes(len(torn[zeros]))
        with (tmp_path / name).open("ab") as file:
            file.write(torn)
    with Audit(tmp_path, NOW) as audit:
        assert audit.found.whole and audit.found.torn == len(line)
        audit.append(action(3), NOW)
        assert audit.verify().whole
        assert ids(audit.events()) == [("msg-0",), ("msg-1",), ("msg-3",)]


def test_an_event_without_its_head_is_taken(tmp_path):
    events = write(tmp_path, 2)
    _, line = encode(3, time_text(NOW + 9), action(9), events[-1].hash)
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(line)
    with (tmp_path / HEAD).open("ab") as file:
        file.write(b"1 3 99")  # torn
    with Audit(tmp_path, NOW) as audit:
        assert audit.found.whole and audit.head.sequence == 3
    assert examine(tmp_path).whole
    assert write(tmp_path, 1)[0].sequence == 4


_APPENDS = """
import sys
from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import Action
with Audit(sys.argv[1], 0) as audit:
    for number in range(100_000):
        event = audit.append(Action("a", "purge", (str(number),), "x" * 200), 0)
        sys.stdout.write(f"{event.sequence}\\n")
        sys.stdout.flush()
"""


def test_what_was_told_as_kept_is_there_after_kill_9(tmp_path):
    told = 0
    for wanted in (5, 40):
        with subprocess.Popen(
            [sys.executable, "-c", _APPENDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(wanted):
                told = int(process.stdout.readline())
            process.kill()
            rest = process.stdout.read().splitlines(keepends=True)
        told = max([told, *(int(line) for line in rest if line.endswith("\n"))])
        verdict = examine(tmp_path)
        assert verdict.whole and told <= verdict.head.sequence <= told + 1
        with Audit(tmp_path, 0) as audit:
            assert audit.found.whole
            assert [event.sequence for event in audit.events()] == list(range(1, audit.head.sequence + 1))
