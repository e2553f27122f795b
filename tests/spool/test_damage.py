"""A spool of which a part is damaged serves the runs that are whole, and names the others."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from transfer.cli.runs import app
from transfer.log.record import RecordKind, scan
from transfer.log.segment_files import BLOBS, SUFFIX
from transfer.spool import Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.format.protocol import Acknowledge, OpenRun, Read
from transfer.transports.errors import LogDamaged, LogInUse, UsageError

from .task_sender import WIDE, Task, agrees, ask, push, write

SIZES = [[8, 8], [8, 8]]


@pytest.fixture
def folder(tmp_path):
    """Three sealed runs."""
    with Spool(tmp_path / "spool") as spool:
        for name in ("one", "two", "three"):
            write(spool.endpoint, name, SIZES, WIDE)
    return tmp_path / "spool"


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def damage(folder, what):
    """Of run "two": a row in a blob, a frame's record, or the beginning of its records."""
    (path,) = folder.glob(f"*{SUFFIX}")
    with path.open("rb") as file:
        records = list(scan(memoryview(file.read()), int(path.stem)))
    frames = [one for one in records if one.kind == RecordKind.MESSAGE and b'"two"' in bytes(one.body)]
    frames = [one for one in frames if one.flags] if what != "beginning" else frames
    if what == "rows":
        (blobs,) = folder.glob(f"*{BLOBS}")
        overwrite(blobs, int.from_bytes(frames[2].body[8:16], "little") + 30_000, b"damaged")
    else:
        overwrite(path, frames[2 if what == "record" else 0].position + 60, b"damaged")


def contents(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def verified(folder, *more):
    """And nothing was changed, whatever a start would put right."""
    before = contents(folder)
    found = CliRunner().invoke(app, ["verify", str(folder), *more])
    assert contents(folder) == before
    return found


def states(endpoint):
    with SpoolAdmin(endpoint.replace("tcp://", "run://")) as admin:
        return {run["name"]: (run["state"], bool(run["damage"])) for run in admin.overview()["runs"]}


def rows_of(endpoint, run):
    arrays, _ = ask(endpoint, Read(run=run, begin=0, end=100))
    return agrees(arrays, WIDE)


WHOLE = ("sealed", False)


@pytest.mark.parametrize("what", ["rows", "record"])
def test_the_runs_that_are_whole_are_served_and_the_other_is_named(folder, tmp_path, what):
    damage(folder, what)
    run = CliRunner()
    with Spool(folder) as spool:
        for name in ("one", "three"):
            assert rows_of(spool.endpoint, name) == list(range(32))
        found = run.invoke(app, ["verify", spool.endpoint.replace("tcp://", ""), "--json"])
        shown = {one["name"]: one for one in map(json.loads, found.output.splitlines())}
        assert found.exit_code == 1
        assert {name: bool(one["damage"]) for name, one in shown.items()} == {
            "one": False, "two": True, "three": False
        }  # fmt: skip
        assert states(spool.endpoint) == {"one": WHOLE, "two": ("damaged", True), "three": WHOLE}
        for request in (
            Read(run="two", begin=0, end=1),
            OpenRun(run="two", group="g", shard=0, shards=1, token="t"),
        ):
            with pytest.raises(LogDamaged, match="run two is damaged"):
                ask(spool.endpoint, request)
        with pytest.raises(LogDamaged, match="run two is damaged"):
            write(spool.endpoint, "two", SIZES, WIDE)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    found = run.invoke(app, ["salvage", str(folder), "--out", str(tmp_path / "new")])
    assert found.exit_code == 1 and "two" in found.output
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("spool", "new")] == []
    with Spool(tmp_path / "new") as spool:
        assert states(spool.endpoint) == {"one": WHOLE, "three": WHOLE}
        for name in ("one", "three"):
            assert rows_of(spool.endpoint, name) == list(range(32))
        write(spool.endpoint, "two", SIZES, WIDE)
        assert rows_of(spool.endpoint, "two") == list(range(32))
    found = run.invoke(app, ["verify", str(tmp_path / "new")])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("lost", [False, True])
def test_who_comes_upon_the_damage_is_answered_as_all_are_later(folder, lost):
    damage(folder, "rows")
    if lost:
        (blobs,) = folder.glob(f"*{BLOBS}")
        blobs.unlink()
    with Spool(folder) as spool:
        answers = []
        for _ in range(2):
            with pytest.raises(LogDamaged, match="run two is damaged") as raised:
                ask(spool.endpoint, Read(run="two", begin=0, end=100))
            answers.append((str(raised.value), raised.value.hint))
        assert answers[0] == answers[1] and "transfer runs salvage" in answers[0][1]


def test_a_start_marks_the_runs_whose_file_of_rows_is_missing(folder):
    (blobs,) = folder.glob(f"*{BLOBS}")
    blobs.unlink()
    with Spool(folder) as spool:
        assert {state for state, _ in states(spool.endpoint).values()} == {"damaged"}


def test_what_cannot_be_opened_is_salvaged_up_to_the_damage(folder, tmp_path, caplog):
    """Here the word that "three" is sealed."""
    (path,) = folder.glob(f"*{SUFFIX}")
    records = list(scan(memoryview(path.read_bytes()), int(path.stem)))
    last = next(
        one for one in reversed(records) if one.kind == RecordKind.STATE and b'"three"' in bytes(one.body)
    )
    overwrite(path, last.position + 60, b"damaged")
    before = path.read_bytes()
    with pytest.raises(LogDamaged, match="its content is unknown"):
        Spool(folder)
    found = CliRunner().invoke(app, ["salvage", str(folder), "--out", str(tmp_path / "new")])
    assert found.exit_code == 1
    assert path.read_bytes() == before
    assert "quarantine" not in caplog.text, "it is that of a copy, which is not there any more"
    with Spool(tmp_path / "new") as spool:
        assert rows_of(spool.endpoint, "one") == rows_of(spool.endpoint, "two") == list(range(32))


def test_verify_changes_nothing_in_a_folder_that_a_crash_left(folder, tmp_path):
    """A torn tail, frames that are not needed any more, no index."""
    with Spool(folder) as spool:
        task = Task("four", "job", 0, 0, 0, [8, 8], WIDE)
        spool.store.declare("four", "job", "partition", "batch")
        for again in (task, Task("four", "job", 0, 1, 0, [8, 8], WIDE)):
            sequences = [spool.store.receive(*message) for message in again.messages]
        spool.store.log.commit(sequences[-1])
        shutil.copytree(folder, tmp_path / "left")
    left = tmp_path / "left"
    for path in left.glob("*.index"):
        path.unlink()
    last = max(left.glob(f"*{SUFFIX}"))
    end = max(one.end for one in scan(memoryview(last.read_bytes()), int(last.stem)))
    overwrite(last, end, b"torn" * 9)
    found = verified(left, "--json")
    shown = {one["name"]: (one["rows"], one["damage"]) for one in map(json.loads, found.output.splitlines())}
    assert found.exit_code == 0, found.output
    assert shown == {"one": (32, ""), "two": (32, ""), "three": (32, ""), "four": (16, "")}
    damage(left, "rows")
    found = verified(left, "--json")
    shown = {one["name"]: bool(one["damage"]) for one in map(json.loads, found.output.splitlines())}
    assert found.exit_code == 1
    assert shown == {"one": False, "two": True, "three": False, "four": False}


@pytest.mark.parametrize("command", [["verify"], ["salvage", "--out", "new"]], ids=lambda one: one[0])
def test_a_folder_that_is_no_spool_is_refused_and_left_alone(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.log").write_text("mine")
    for name in ("plain", "plain/notes.log"):
        found = CliRunner().invoke(app, [*command, name])
        assert isinstance(found.exception, UsageError) and "is no folder of a spool" in str(found.exception)
        assert "transfer serve --spool" in found.exception.hint
    assert [path.name for path in tmp_path.rglob("*")] == ["plain", "notes.log"]


@pytest.mark.parametrize("command", [["verify"], ["salvage", "--out", "new"]], ids=lambda one: one[0])
def test_a_folder_on_which_a_spool_runs_is_refused(folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    with Spool(folder):
        found = CliRunner().invoke(app, [*command, "spool"])
    assert isinstance(found.exception, LogInUse) and "end it first" in found.exception.hint
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]


def test_a_run_whose_staged_rows_are_damaged_is_left_out(folder, tmp_path):
    """Its commit would show them."""
    with Spool(folder) as spool:
        push(spool.endpoint, "four", "job", 0, 0, 0, [8, 8], WIDE)
    (blobs,) = folder.glob(f"*{BLOBS}")
    overwrite(blobs, len(blobs.read_bytes().rstrip(b"\0")) - 1000, b"damaged")
    for command in (["verify", folder], ["salvage", folder, "--out", tmp_path / "new"]):
        found = CliRunner().invoke(app, [*map(str, command), "--json"])
        shown = {one["name"]: bool(one["damage"]) for one in map(json.loads, found.output.splitlines())}
        assert found.exit_code == 1, found.exception
        assert shown == {"one": False, "two": False, "three": False, "four": True}
    assert verified(tmp_path / "new").exit_code == 0


def test_a_copy_that_a_killed_salvage_left_is_named(folder, tmp_path):
    (path,) = folder.glob(f"*{SUFFIX}")
    records = list(scan(memoryview(path.read_bytes()), int(path.stem)))
    overwrite(path, [one for one in records if one.kind == RecordKind.STATE][-1].position + 60, b"damaged")
    (tmp_path / "new.copy").mkdir()
    found = CliRunner().invoke(app, ["salvage", str(folder), "--out", str(tmp_path / "new")])
    assert isinstance(found.exception, UsageError) and "new.copy exists" in str(found.exception)
    assert "delete it" in found.exception.hint and (tmp_path / "new.copy").exists()
    (tmp_path / "new.copy").rmdir()
    found = CliRunner().invoke(app, ["salvage", str(folder), "--out", str(tmp_path / "new")])
    assert found.exit_code == 1 and "copy omits its later part" in found.output
    assert not (tmp_path / "new.copy").exists()


def test_groups_and_lineage_are_salvaged(folder, tmp_path):
    with Spool(folder) as spool:
        _, opened = ask(spool.endpoint, OpenRun(run="one", group="g", shard=0, shards=1, token="t"))
        request = Acknowledge(
            run="one", run_id=opened["run_id"], group="g", epoch=0, row=8, steps=[[0, 1, 0, 0, 8, 1, 0]],
            shard=0, count=1, shards=1,
        )  # fmt: skip
        ask(spool.endpoint, request)
    found = CliRunner().invoke(app, ["salvage", str(folder), "--out", str(tmp_path / "new"), "--json"])
    assert found.exit_code == 0, found.output
    with Spool(tmp_path / "new") as spool, SpoolAdmin(spool.endpoint.replace("tcp://", "run://")) as admin:
        assert admin.inspect("one")["groups"]["g"]["acknowledged"] == [0, 8]
        assert [one.rows for one in admin.lineage("one", "g")] == [8]
    found = CliRunner().invoke(app, ["salvage", str(folder), "--out", str(tmp_path / "new")])
    assert found.exit_code and "not empty" in str(found.exception)
