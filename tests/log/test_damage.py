"""Damage is no larger than what is damaged: the rest is served, nothing is deleted, no number used again."""

from __future__ import annotations

import random
import shutil

import pytest

from transfer.log import Log, Retention
from transfer.log.damage import repair_bit
from transfer.log.format import NAME
from transfer.log.record import RecordFlag, RecordKind, encode, scan, state_of
from transfer.log.segment_files import BLOBS, INDEX, REMOVED, SUFFIX
from transfer.log.state import topic_key
from transfer.transports.errors import LogDamaged, LogFull, NotSupported

SMALL = 4096


def write(folder, count=40, *, close=True):
    """Messages of two topics, some with blobs, a group and state; all of it synced."""
    log = Log(folder, segment_bytes=1 << 20)
    for number in range(count):
        log.append("a", b"a%d;" % number * 20, blob=b"b%d;" % number * 50 if number % 2 else None)
        log.append("b", b"b%d;" % number * 3)
        log.commit(log.put(b"key", b"%d" % number))
    log.acknowledge("a", "g", min(count, 7))
    log.commit(log.append("b", b"last")[0])
    if close:
        log.close()
    return log


def content(log, *, damaged=()):
    """All that a log has; of messages that are damaged, None."""
    found = {}
    for topic in log.topics:
        begin, end = log.range(topic)
        for offset in range(begin, end):
            if (topic, offset) in damaged:
                with pytest.raises(LogDamaged):
                    log.read(topic, offset, limit=1)
                continue
            (one,) = log.read(topic, offset, limit=1)
            assert one.offset == offset
            blob = None if one.blob is None else bytes(one.blob)
            found[topic, offset] = bytes(one.body), blob
    return found, log.get(b"key"), log.groups("a")


def only(folder, suffix=SUFFIX):
    (path,) = folder.glob(f"*{suffix}")
    return path


def records(path):
    return list(scan(memoryview(path.read_bytes()), int(path.stem)))


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("closed", [True, False])
def test_one_wrong_bit_of_any_record_is_put_right(tmp_path, closed):
    write(tmp_path / "log", 8)
    with Log(tmp_path / "log", segment_bytes=1 << 20) as log:
        whole = content(log)
    if not closed:  # as after a kill
        only(tmp_path / "log", INDEX).unlink()
    path = only(tmp_path / "log")
    every = [one for one in records(path) if one.kind != RecordKind.OPENED]
    chance = random.Random(3)
    for one in every[: None if closed else -2]:  # nothing else says that the last ones were synced
        copy = shutil.copytree(tmp_path / "log", tmp_path / "copy")
        data = bytearray(path.read_bytes())
        data[chance.randrange(one.position, one.end)] ^= 1 << chance.randrange(8)
        (copy / path.name).write_bytes(data)
        for _ in range(2):
            with Log(copy, segment_bytes=1 << 20) as log:
                assert content(log) == whole and not log.damage and not log.cut, one
        shutil.rmtree(copy)


def test_more_than_one_wrong_bit_is_not_guessed():
    data = bytearray(b"".join(encode(RecordKind.MESSAGE, 0, 1, 5, 3, 0, 0, b"body" * 20)))
    for bit in (3, 77, 400):
        wrong = data.copy()
        wrong[bit // 8] ^= 1 << bit % 8
        assert repair_bit(bytes(wrong), 5) == data
        assert repair_bit(bytes(wrong), 6) is None
        wrong[60] ^= 6
        assert repair_bit(bytes(wrong), 5) is None
    assert repair_bit(bytes(700), 5) is None and repair_bit(b"", 5) is None


@pytest.mark.parametrize("part", ["body", "place of the blob"])
def test_a_damaged_message_with_a_blob_is_told_and_the_rest_is_served(tmp_path, part):
    write(tmp_path)
    path = only(tmp_path)
    one = next(one for one in records(path) if one.flags == RecordFlag.HAS_BLOB and one.offset == 21)
    overwrite(path, one.end - 50 if part == "body" else one.position + 60, b"damaged")
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        assert [(damage.topic, damage.begin, damage.end) for damage in log.damage] == [("a", 21, 22)]
        found, key, groups = content(log, damaged={("a", 21)})
        assert len(found) == 80 and key == b"39" and groups == {"g": 7}
        assert len(log.verify().damages) == 1
        assert log.append("a", b"next")[1] == 40


@pytest.mark.parametrize("how", ["missing", "cut"])
@pytest.mark.parametrize("closed", [True, False])
def test_blobs_that_their_file_lacks_are_told_by_the_start(tmp_path, caplog, how, closed):
    """In the last segment and the one before. What was discarded is not missed; nothing new takes the place
    of what is lost, and the next start tells the same."""
    log = Log(tmp_path, segment_bytes=1 << 20)
    for number in range(6):
        log.append("a", b"%d" % number, blob=b"%d" % number * 300_000 if number != 3 else None)
        log.append("b", b"b", blob=b"small")
        if number == 2:
            log.append("roll", bytes(1 << 20))
    log.discard("a", 0, 1)
    for value in (b"1", b"2"):  # the second says that all before it was synced
        log.commit(log.put(b"key", value))
    folder = tmp_path if closed else shutil.copytree(tmp_path, tmp_path / "crashed")
    log.close()
    for path in folder.glob(f"*{BLOBS}"):
        if how == "missing":
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.truncate(1000)
    b = [("b", 0, 6)] if how == "missing" else [("b", 0, 3), ("b", 4, 6)]
    for _ in range(2):
        caplog.clear()
        with Log(folder, segment_bytes=1 << 20) as log:
            told = [(one.topic, one.begin, one.end) for one in log.damage]
            assert told == [("a", 1, 3), ("a", 4, 6), *b]
            assert sum("are lost" in record.message for record in caplog.records) == len(told)
            with pytest.raises(LogDamaged):
                log.read("a", 1, limit=1)
            assert bytes(log.read("a", 3, limit=1)[0].body) == b"3"
    with Log(folder, segment_bytes=1 << 20) as log:
        log.commit(log.append("a", b"", blob=b"new" * 1000)[0])
        for offset in (4, 5):
            with pytest.raises(LogDamaged):
                log.read("a", offset, limit=1)
        assert bytes(log.read("a", 6, limit=1)[0].blob) == b"new" * 1000


def test_of_a_damaged_head_the_message_is_lost_when_nothing_else_can_be(tmp_path):
    write(tmp_path)
    path = only(tmp_path)
    one = next(one for one in records(path) if one.topic == 1 and one.offset == 21)
    overwrite(path, one.position, bytes(60))
    with pytest.raises(LogDamaged, match="damaged at byte"):
        Log(tmp_path, segment_bytes=1 << 20)
    end = 40
    for _ in range(3):
        with Log(tmp_path, segment_bytes=1 << 20, damaged="serve") as log:
            assert ("a", 21, 22) in [(damage.topic, damage.begin, damage.end) for damage in log.damage]
            found, key, groups = content(log, damaged={("a", 21)})
            assert len(found) == 40 + end and key == b"39" and groups == {"g": 7}
            assert log.append("a", b"next")[1] == end
            end += 1


def test_state_that_nothing_tells_of_again_is_not_guessed(tmp_path):
    write(tmp_path)
    path = only(tmp_path)
    one = next(one for one in records(path) if one.kind == RecordKind.STATE and b"key20" in bytes(one.body))
    overwrite(path, one.end - 2, b"XX")
    before = path.read_bytes()
    for how in ("refuse", "serve"):
        with pytest.raises(LogDamaged, match="its content is unknown"):
            Log(tmp_path, segment_bytes=1 << 20, damaged=how)
    assert path.read_bytes() == before


def test_a_group_whose_topic_is_lost_is_named(tmp_path):
    write(tmp_path)
    path = only(tmp_path)
    one = next(
        one for one in records(path) if one.kind == RecordKind.STATE and state_of(one.body)[0] == topic_key(1)
    )
    overwrite(path, one.position + 8, bytes(one.end - one.position - 8))
    before = path.read_bytes()
    for how in ("refuse", "serve"):
        with pytest.raises(LogDamaged, match="topic number 1 is lost, but not that of its group 'g'"):
            Log(tmp_path, segment_bytes=1 << 20, damaged=how)
    assert path.read_bytes() == before


def many_segments(folder):
    with Log(folder, segment_bytes=SMALL) as log:
        for number in range(100):
            log.append("early", b"%d" % number)
        for number in range(60):
            log.append("t", b"%03d" % number * 30, blob=b"%03d" % number * 40)
            log.put(b"key", b"%d" % number)
        for number in range(100):
            log.append("late", b"%d" % number)
        log.acknowledge("t", "g", 3)
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_the_state_of_a_new_segment_is_found_in_the_one_before(tmp_path):
    paths = many_segments(tmp_path)
    (*_, one), opened = (
        [one for one in records(paths[-1]) if one.flags & RecordFlag.SNAPSHOT],
        next(one for one in records(paths[-1]) if one.kind == RecordKind.OPENED),
    )
    assert opened.position > one.position
    overwrite(paths[-1], one.position + 8, bytes(one.end - one.position - 8))
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.get(b"key") == b"59" and log.groups("t") == {"g": 3}
        assert {topic: log.range(topic)[1] for topic in log.topics} == {"early": 100, "t": 60, "late": 100}


def test_a_missing_segment_is_named_and_the_rest_is_served(tmp_path, caplog):
    paths = many_segments(tmp_path)
    at = next(at for at, path in enumerate(paths) if b"030" * 30 in path.read_bytes())
    lost = [one.offset for one in records(paths[at]) if one.kind == RecordKind.MESSAGE]
    blobs = paths[at].with_suffix(BLOBS)
    kept = blobs.read_bytes()
    paths[at].unlink()
    with pytest.raises(LogDamaged, match="missing") as refused:
        Log(tmp_path, segment_bytes=SMALL)
    assert "serve" in refused.value.hint and blobs.read_bytes() == kept
    for begun in range(2):
        with Log(tmp_path, segment_bytes=SMALL, damaged="serve") as log:
            assert any(paths[at].name in damage.text for damage in log.damage)
            assert any(damage.topic == "t" and damage.begin == lost[0] for damage in log.damage)
            found, key, _ = content(log, damaged={("t", offset) for offset in lost})
            assert len(found) == 260 + begun - len(lost) and key == b"59"
            assert log.append("t", b"next")[1] == 60 + begun
            assert log.quarantined >= len(kept)
    assert (tmp_path / "quarantine" / blobs.name).read_bytes() == kept
    assert "is moved to" in caplog.text


@pytest.mark.parametrize("how", ["missing", "empty", "zeros", "last"])
def test_without_its_last_segment_a_log_is_not_opened_and_nothing_is_deleted(tmp_path, how):
    if how == "last":
        many_segments(tmp_path)
        for path in tmp_path.glob(f"*{INDEX}"):
            path.unlink()
    else:
        write(tmp_path, 3)
    path = max(tmp_path.glob(f"*{SUFFIX}"))
    blobs = {one.name: one.read_bytes() for one in tmp_path.glob(f"*{BLOBS}")}
    path.unlink() if how in ("missing", "last") else path.write_bytes(bytes(1000 * (how == "zeros")))
    for _ in range(2):
        with pytest.raises(LogDamaged, match=r"lost|no record|damaged"):
            Log(tmp_path, damaged="serve")
    assert {one.name: one.read_bytes() for one in tmp_path.glob(f"*{BLOBS}")} == blobs
    assert how in ("missing", "last") or path.exists()


def test_without_any_file_of_its_segments_a_log_does_not_begin_again(tmp_path):
    with Log(tmp_path) as log:
        log.commit(log.append("t", b"one")[0])
    for path in [*tmp_path.glob(f"*{SUFFIX}"), *tmp_path.glob(f"*{INDEX}")]:
        path.unlink()
    with pytest.raises(LogDamaged, match="lost all segments"):
        Log(tmp_path, damaged="serve")


def test_all_that_a_segment_begins_with_may_be_torn(tmp_path):
    """It is written in one go, so its last record says of none before it that it was synced."""
    log = Log(tmp_path, segment_bytes=SMALL)
    for number in range(40):
        log.put(b"key %d" % number, b"value" * 100)
    log.commit()
    before = set(tmp_path.iterdir())
    with log._journal as journal:
        new, beginning = journal._create(0, limited=False)
        new.write(0, bytes(8192) + beginning.data[8192:])
        new.close()
    log.close()
    assert len(set(tmp_path.iterdir()) - before) <= 2
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.get(b"key 39") == b"value" * 100
        assert not new.path.exists()


def test_a_removal_that_a_crash_interrupts_leaves_nothing_in_quarantine(tmp_path, monkeypatch):
    retention = Retention(acknowledged=True)
    log = Log(tmp_path, segment_bytes=SMALL, retention=retention)
    for number in range(100):
        log.append("t", b"%d" % number * 40, blob=b"blob")
    log.commit(log.acknowledge("t", "g", 90))
    with monkeypatch.context() as patch:
        patch.setattr("transfer.log.segment.finish_removals", lambda folder: None)
        assert log.collect() > 2
    log.close()
    assert list(tmp_path.glob(f"*{REMOVED}"))
    with Log(tmp_path, segment_bytes=SMALL, retention=retention) as log:
        assert not log.damage and not log.quarantined
    assert not list(tmp_path.glob(f"*{REMOVED}"))
    assert len(list(tmp_path.glob(f"*{BLOBS}"))) <= len(list(tmp_path.glob(f"*{SUFFIX}")))


def test_repair_deletes_nothing(tmp_path):
    paths = many_segments(tmp_path)
    kept = {path.name: path.read_bytes() for path in paths[2:-1]}
    paths[1].unlink()
    with Log(tmp_path, segment_bytes=SMALL, repair=True) as log:
        assert log.quarantined >= sum(map(len, kept.values()))
    for name, data in kept.items():
        assert (tmp_path / "quarantine" / name).read_bytes() == data


def test_a_newer_format_is_refused(tmp_path):
    Log(tmp_path).close()
    assert (tmp_path / NAME).read_text() == "transfer log, format 1\n"
    (tmp_path / NAME).write_text("transfer log, format 2\n")
    with pytest.raises(NotSupported, match="format 2"):
        Log(tmp_path)
    (tmp_path / NAME).write_text("something else")
    with pytest.raises(LogDamaged, match="does not name"):
        Log(tmp_path)
    (tmp_path / NAME).unlink()  # of a log that ended before it was written
    Log(tmp_path).close()
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_a_commit_may_wait_for_ever(tmp_path, monkeypatch, timeout):
    """While another one syncs, the wait is one that the system knows."""
    with Log(tmp_path) as log:
        sequence, _ = log.append("t", b"one")
        journal = log._journal
        journal._busy = True

        def other(seconds):
            assert seconds <= 3600
            journal._busy = False
            return True

        monkeypatch.setattr(journal.lock, "wait", other)
        log.commit(sequence, timeout=timeout)


def test_a_log_that_has_no_room_to_begin_leaves_no_format(tmp_path, monkeypatch):
    def full(*_):
        raise LogFull("full")

    with monkeypatch.context() as patch:
        patch.setattr("transfer.log.segment.reserve", full)
        with pytest.raises(LogFull):
            Log(tmp_path)
    Log(tmp_path).close()
