"""A topic without its messages: offsets and groups go on, and the room comes back."""

from __future__ import annotations

import shutil

import pytest

from transfer.log import Log
from transfer.log.record import scan
from transfer.transports.errors import UsageError


def test_offsets_and_groups_go_on_behind_a_purge_and_a_restart(tmp_path):
    with Log(tmp_path) as log:
        log.append_many("t", [b"1", b"2", b"3"])
        log.append("other", b"stays")
        log.acknowledge("t", "g", 1)
        assert log.purge("t") is not None and log.purge("nothing") is None
        assert log.range("t") == (3, 3) and log.groups("t") == {"g": 3} and log.read("t", 0) == []
        assert log.append("t", b"4")[1] == 3
        log.commit()
    with Log(tmp_path) as log:
        assert log.range("t") == (3, 4) and log.groups("t") == {"g": 3}
        assert [bytes(one.body) for one in log.read("t", 0)] == [b"4"]
        assert bytes(log.read("other", 0)[0].body) == b"stays"


def test_a_purge_gives_its_room_back(tmp_path):
    with Log(tmp_path, segment_bytes=1 << 16) as log:
        log.append("other", b"stays")
        for _ in range(40):
            log.append("t", bytes(10_000))
        log.append("t", blob=bytes(1 << 20))
        before = log.disk_bytes
        log.commit(log.purge("t"))
        log.compact()
        log.commit()
        log.collect()
        assert log.disk_bytes < before // 4
        assert bytes(log.read("other", 0)[0].body) == b"stays"


def test_a_topic_may_begin_at_a_later_offset(tmp_path):
    with Log(tmp_path) as log:
        assert log.begin("t", 7) and not log.begin("t", 9)
        assert log.append("t", b"x")[1] == 7
        with pytest.raises(UsageError):
            log.begin("", 1)
        log.commit()
    with Log(tmp_path) as log:
        assert log.range("t") == (7, 8)


def test_a_crash_in_a_purge_leaves_the_topic_as_it_was_or_purged(tmp_path):
    folder = tmp_path / "log"
    with Log(folder) as log:
        log.append_many("t", [b"1", b"2", b"3"])
        for group in "abc":
            log.acknowledge("t", group, 1)
        log.commit()
        begin = log.append("t", b"4")[0]
        log.commit(log.purge("t"))
        (file,) = folder.glob("*.log")
        image = file.read_bytes()
    records = [one for one in scan(memoryview(image), 0) if one.sequence >= begin]
    seen = set()
    for number, record in enumerate(records):
        crashed = tmp_path / f"crashed{number}"
        crashed.mkdir()
        (crashed / file.name).write_bytes(image[: record.end].ljust(len(image), b"\0"))
        for _ in range(2):  # and once more, of what that left
            with Log(crashed) as log:
                low, end = log.range("t")
                assert (low, end) in ((0, 4), (4, 4))
                seen.add((low, end))
                expected = {1} if low == 0 else {4}
                assert set(log.groups("t").values()) <= expected
                assert log.topics.count("t") == 1
        with Log(crashed) as log:
            assert log.append("t", b"5")[1] == 4
        shutil.rmtree(crashed)
    assert seen == {(0, 4), (4, 4)}
