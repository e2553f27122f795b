"""An audit that somebody or something damaged: the first bad line is told, and it goes on."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from tests.log.page_cache import PageCache
from transfer.broker.storage.audit import Audit, export
from transfer.broker.storage.audit_chain import (
    DAMAGED,
    GENESIS,
    SEGMENT,
    Action,
    AuditWindow,
    Chain,
    check_export,
    encode,
    time_text,
)
from transfer.broker.storage.audit_verification import HEAD, AuditHead, examine
from transfer.transports.errors import InternalError

from .test_audit import NOW, action, ids, write

DAY = 86_400_000


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """fresh() gives a new folder with an audit of five events."""
    original = tmp_path_factory.mktemp("audit") / "original"
    write(original, 5)
    return lambda: shutil.copytree(original, tmp_path_factory.mktemp("audit") / "copy")


def lines_of(folder, name="audit.log"):
    return (folder / name).read_bytes().splitlines(keepends=True)


def put_lines(folder, lines, name="audit.log"):
    (folder / name).write_bytes(b"".join(lines))


def goes_on(folder, count):
    """Opens a damaged audit: the next event names it, others follow, and nothing that is there is changed."""
    before = {path.name: path.read_bytes() for path in folder.glob("audit.*log")}
    with Audit(folder, NOW + DAY) as audit:
        problems = audit.found.problems
        assert problems and audit.found.unnamed == problems
        assert audit.append(action(99), NOW + DAY).sequence == audit.head.sequence
        assert ids(audit.events())[-1] == ("msg-99",)
        (first,) = audit.events(AuditWindow(operation=DAMAGED))
        said = {(one["file"], one["line"]) for one in first.action.prior_state["problems"]}
        assert said == {(problem.file, problem.line) for problem in problems}
    for name, data in before.items():
        assert (folder / name).read_bytes().startswith(data), "evidence was changed"
    with Audit(folder, NOW + DAY) as audit:
        assert not audit.found.unnamed, "one event for one damage"
        assert len(ids(audit.events())) >= count
    assert set(os.listdir(folder)) == {"audit.log", HEAD}
    return problems


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_first_changed_line_is_told(fresh, data):
    folder = fresh()
    lines = lines_of(folder)
    line = data.draw(st.integers(0, 4))
    bit = data.draw(st.integers(0, 8 * len(lines[line]) - 1))
    changed = bytearray(lines[line])
    changed[bit // 8] ^= 1 << bit % 8
    put_lines(folder, [*lines[:line], bytes(changed), *lines[line + 1 :]])
    problems = goes_on(folder, 3)  # if a line's end changed, two lines are one
    assert (problems[0].file, problems[0].line) == ("audit.log", line + 1)
    assert not examine(folder).whole, "damage is never forgotten"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 4))
def test_a_removed_line_is_told_where_it_was(fresh, line):
    folder = fresh()
    lines = lines_of(folder)
    put_lines(folder, lines[:line] + lines[line + 1 :])
    assert goes_on(folder, 4)[0].line == line + 1
    assert not examine(folder).whole


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_cut_off_tail_is_told(fresh, data):
    folder = fresh()
    whole = (folder / "audit.log").read_bytes()
    left = data.draw(st.integers(0, len(whole) - 1))
    (folder / "audit.log").write_bytes(whole[:left])
    problems = goes_on(folder, whole[:left].count(b"\n"))
    last = whole[:left].count(b"\n") + 1
    # Without its newline alone, the last line counts as an event, and the head tells of those behind it.
    only_newline = whole[left : left + 1] == b"\n" and left + 1 < len(whole)
    assert [problem.line for problem in problems] == [last, last + 1][: 1 + only_newline]
    assert all("cut off" in problem.text for problem in problems)


def test_a_line_that_was_changed_with_its_hash_is_told(tmp_path):
    events = write(tmp_path, 3)
    lines = lines_of(tmp_path)
    for number, wrong in ((1, 3), (2, 3)):  # the one behind tells of it, and the head of the last
        event = events[number]
        _, forged = encode(event.sequence, event.time, action(9), event.prev_hash)
        put_lines(tmp_path, [*lines[:number], forged, *lines[number + 1 :]])
        assert examine(tmp_path).problems[0].line == wrong
    for wrong in (3, 4):  # the event that names the last one follows the true one: the next start sees that
        with Audit(tmp_path, NOW) as audit:
            assert audit.found.unnamed[0].line == wrong
    assert not examine(tmp_path).unnamed


def test_removed_files_are_told(tmp_path):
    write(tmp_path, 3)
    (tmp_path / "audit.log").unlink()
    (problem,) = goes_on(tmp_path, 0)
    assert (problem.file, problem.line) == ("audit.log", 1) and "events up to 3" in problem.text


def test_a_head_that_is_missing_changed_or_set_back_is_told(tmp_path):
    for number, change in enumerate(
        (
            lambda lines: None,
            lambda lines: [*lines[:-1], lines[-1].replace(b" 4 ", b" 5 ")],
            lambda lines: lines[:2],
        )
    ):
        folder = tmp_path / str(number)
        write(folder, 4)
        lines = change(lines_of(folder, HEAD))
        if lines is None:
            (folder / HEAD).unlink()
        else:
            put_lines(folder, lines, HEAD)
        goes_on(folder, 4)


def test_damage_that_grows_is_told_again(tmp_path):
    write(tmp_path, 4)
    for number in (3, 1):
        lines = lines_of(tmp_path)
        put_lines(
            tmp_path, [*lines[:number], lines[number].replace(b"purge", b"forge"), *lines[number + 1 :]]
        )
        with Audit(tmp_path, NOW) as audit:
            assert audit.found.unnamed[0].line == number + 1
    with Audit(tmp_path, NOW) as audit:
        assert not audit.found.unnamed and audit.head.segment == 1
        assert [problem.line for problem in audit.found.problems] == [2, 4]


def test_a_file_that_is_truncated_while_open_is_noticed(tmp_path):
    with Audit(tmp_path, NOW) as audit:
        for number in range(3):
            audit.append(action(number), NOW)
        os.truncate(tmp_path / "audit.log", 100)
        assert audit.append(action(3), NOW).sequence == 5  # 4 tells of the damage
        assert "cut off" in audit.found.problems[0].text
        (tmp_path / "audit.log").unlink()
        audit.append(action(4), NOW)
        verdict = audit.verify()
        assert not verdict.unnamed and not verdict.whole
        assert ids(audit.events()) == [("msg-4",)]


def test_files_that_earlier_versions_began_continue_the_chain(tmp_path):
    """They began a new file after damage, and its first event named it."""
    write(tmp_path, 3)
    lines = lines_of(tmp_path)
    put_lines(tmp_path, [lines[0], lines[1].replace(b"purge", b"forge"), lines[2]])
    last = examine(tmp_path).head
    problem = {"file": "audit.log", "line": 2, "problem": "its hash is not that of its content"}
    begun = Action(
        "broker", SEGMENT, (), "why", {"files": {}, "problems": [problem]}, {"file": "audit.2.log"}
    )
    event, line = encode(4, time_text(NOW + 9), begun, last.hash)
    put_lines(tmp_path, [line], "audit.2.log")
    with (tmp_path / HEAD).open("ab") as file:
        file.write(AuditHead(2, 4, len(line), event.hash).encode())
    verdict = examine(tmp_path)
    assert [(one.file, one.line) for one in verdict.problems] == [("audit.log", 2)]
    assert not verdict.unnamed and verdict.head == AuditHead(2, 4, len(line), event.hash)
    with Audit(tmp_path, NOW) as audit:
        assert audit.append(action(5), NOW).sequence == 5
        assert audit.verify().problems == verdict.problems
    assert len(lines_of(tmp_path, "audit.2.log")) == 2 and len(exported(tmp_path)) == 7


def test_a_file_that_an_earlier_version_had_no_time_to_begin(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "audit.2.log").touch()
    with Audit(tmp_path, NOW) as audit:
        assert audit.append(action(1), NOW).sequence == 2
        assert audit.verify().whole and audit.head.segment == 2
        assert [event.sequence for event in audit.events()] == [1, 2]


def test_files_of_other_names_are_none_of_it(tmp_path):
    write(tmp_path, 1)
    for name in ("audit.02.log", "audit.0.log", "audit.12345.log", "audit.x.log", "audit.-3.log"):
        (tmp_path / name).touch()
    assert examine(tmp_path).whole


# -- exports -----------------------------------------------------------------------------------------


def exported(folder, *span):
    return list(export(folder, *span))


def test_an_export_can_be_checked_again(tmp_path):
    write(tmp_path, 5)
    assert check_export(exported(tmp_path)) == (5, [])
    part = exported(tmp_path, NOW + 1, NOW + 3)
    assert check_export(part) == (2, [])
    assert [json.loads(line)["sequence"] for line in part[1:-1]] == [2, 3]
    assert check_export(exported(tmp_path, NOW + DAY)) == (0, [])
    assert check_export(exported(tmp_path / "nothing")) == (0, [])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_an_export_that_was_changed_is_told(fresh, data):
    lines = exported(fresh(), NOW + 1)
    line = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["remove", "flip", "cut"]))
    if kind == "remove":
        del lines[line]
    elif kind == "cut":
        lines = lines[:line]
    else:
        changed = bytearray(lines[line])
        bit = data.draw(st.integers(0, 8 * len(changed) - 9))
        changed[bit // 8] ^= 1 << bit % 8
        lines[line] = bytes(changed)
    assert check_export(lines)[1]


def test_a_chain_takes_the_line_behind_damage_at_its_word():
    chain = Chain()
    _, first = encode(1, time_text(NOW), action(), GENESIS)
    assert chain.follow(b"no line\n")[0] is None
    event, problem = chain.follow(first)
    assert event is not None and event.sequence == 1 and not problem
    assert "prev_hash" in chain.follow(encode(2, time_text(NOW), action(), GENESIS)[1])[1]


def test_an_event_whose_sync_failed_is_written_again(tmp_path, monkeypatch):
    """The broker was killed before it could take the event back; the next one goes on behind it."""
    cache = PageCache(monkeypatch)
    event = replace(action(1), reason="x" * 9000)
    with Audit(tmp_path, NOW) as audit:
        audit.append(event, NOW)
        cache.fails = True
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", lambda fd, size: None)
            with pytest.raises(InternalError):
                audit.append(event, NOW)
    with Audit(tmp_path, NOW) as audit:
        audit.append(event, NOW)
        cache.cut_power(tmp_path)
        assert not audit.verify().problems
        assert len(list(audit.events())) == 3
