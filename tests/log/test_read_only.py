"""A look at a log's folder: what a start would find, and nothing is changed."""

from __future__ import annotations

import os
import shutil

import pytest

from transfer.log import Log
from transfer.log.read_only import inspect
from transfer.log.record import RecordKind, scan
from transfer.log.segment_files import REMOVED, SUFFIX, path_of, segments_in
from transfer.transports.errors import LogDamaged, LogInUse


def contents(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def fill(folder):
    with Log(folder, segment_bytes=1 << 16) as log:
        for number in range(2000):
            log.append(
                "t", b"message %d" % number * 10, blob=b"blob %d" % number * 30 if not number % 9 else None
            )
        log.put(b"key", b"value")
        log.commit()


def crashed(log, folder):
    """The folder as a kill leaves it, with what the process had written."""
    log.commit()
    shutil.copytree(log.folder, folder)
    return folder


def look_at(folder):
    """And nothing was changed."""
    before = contents(folder)
    found = inspect(folder)
    assert contents(folder) == before
    return found


def test_a_whole_log_is_looked_at_as_it_is(tmp_path):
    fill(tmp_path)
    told = []
    found = inspect(tmp_path, told.append)
    with Log(tmp_path) as log:
        verified = log.verify()
    assert not found.damages and found.state[b"key"] == b"value"
    assert found.verified.blobs == verified.blobs == 223
    assert found.verified.records <= verified.records and told[-1] == found.verified.nbytes
    look_at(tmp_path)


def test_nothing_is_changed_behind_a_crash(tmp_path):
    with Log(tmp_path / "log", segment_bytes=1 << 16) as log:
        for number in range(1500):
            log.append("t", b"message %d" % number * 10, blob=b"blob" * number if not number % 50 else None)
        folder = crashed(log, tmp_path / "crashed")
    last = path_of(folder, segments_in(folder)[-1])
    with last.open("r+b") as file:  # a record that was on its way
        end = max(one.end for one in scan(memoryview(last.read_bytes()), int(last.stem)))
        file.seek(end)
        file.write(b"torn" * 20)
    for path in folder.glob("*.index"):
        path.unlink()
    first = segments_in(folder)[0]
    path_of(folder, first).rename(path_of(folder, first, REMOVED))
    path_of(folder, 7, ".index.new").write_bytes(b"new")
    found = look_at(folder)
    assert not [text for text in found.damages if "lost" not in text]
    with Log(folder, damaged="serve") as log:
        assert [one.text for one in log.damage] == list(found.damages)
    assert not path_of(folder, first, REMOVED).exists()


@pytest.mark.parametrize("bits", [1, 8])
def test_damage_is_told_and_stays(tmp_path, bits):
    fill(tmp_path)
    path = path_of(tmp_path, segments_in(tmp_path)[-1])
    data = bytearray(path.read_bytes())
    record = next(
        one for one in scan(memoryview(bytes(data)), int(path.stem)) if one.kind == RecordKind.MESSAGE
    )
    data[record.position + 40] ^= (1 << bits) - 1
    path.write_bytes(data)
    found = look_at(tmp_path)
    text = found.damages[0]
    assert ("wrong bit" in text) == (bits == 1) and path.name in text
    with Log(tmp_path, damaged="serve") as log:
        assert len(log.damage) == (bits > 1)
    assert bool(look_at(tmp_path).damages) == (bits > 1)


def test_files_of_no_segment_stay_where_they_are(tmp_path):
    fill(tmp_path)
    path = path_of(tmp_path, segments_in(tmp_path)[0])
    path.unlink()
    found = look_at(tmp_path)
    assert any("goes into quarantine" in text for text in found.damages)
    assert not (tmp_path / "quarantine").exists()


def test_a_log_that_lost_its_last_segment_cannot_be_looked_at(tmp_path):
    fill(tmp_path)
    path_of(tmp_path, segments_in(tmp_path)[-1]).unlink()
    before = contents(tmp_path)
    with pytest.raises(LogDamaged):
        inspect(tmp_path)
    assert contents(tmp_path) == before


def test_nobody_looks_while_it_is_open_and_several_may_together(tmp_path):
    with Log(tmp_path), pytest.raises(LogInUse):
        inspect(tmp_path)
    os.chmod(tmp_path / "LOCK", 0o440)
    assert not look_at(tmp_path).damages


def test_a_folder_without_a_segment_is_nothing(tmp_path):
    assert inspect(tmp_path).verified.records == 0
    assert not list(tmp_path.glob(f"*{SUFFIX}")) and not list(tmp_path.iterdir())
