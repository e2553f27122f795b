"""Blobs that are read in ranges."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.folders import new_folder
from transfer.log import Log
from transfer.log.segment_files import BLOBS
from transfer.transports import core
from transfer.transports.core import crc32c
from transfer.transports.errors import Closed, LogDamaged

DATA = bytes(range(251)) * 4000


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path) as log:
        yield log


def kept(log, topic, *blobs):
    """The offsets of messages that are on the disk."""
    appended = [log.append(topic, b"body", blob=blob) for blob in blobs]
    log.commit()
    return [offset for _, offset in appended]


@given(cuts=st.lists(st.integers(0, len(DATA)), max_size=6))
@settings(max_examples=30, deadline=None)
def test_ranges_are_the_blob(cuts):
    with new_folder() as folder, Log(folder) as log:
        _, offset = kept(log, "t", b"before", DATA)
        reader = log.blob_at("t", offset)
        assert (reader.nbytes, reader.crc) == (len(DATA), crc32c(DATA))
        ends = sorted({0, *cuts, len(DATA)})
        views = [reader.view(begin, end) for begin, end in pairwise(ends)]
        assert b"".join(views) == DATA
        assert all(view.readonly for view in views)


def test_what_has_no_blob(log):
    log.append("t", b"small")
    log.commit()
    assert log.blob_at("t", 0) is None
    assert log.blob_at("t", 1) is None
    assert log.blob_at("u", 0) is None


def test_only_what_is_viewed_is_mapped(log):
    """Nothing stays behind in the books of who has a view."""
    [offset] = kept(log, "t", DATA)
    reader = log.blob_at("t", offset)
    [segment] = log._journal.segments
    view = reader.view(0, 4096)
    assert len(segment._views) == 1
    del view
    gc.collect()
    assert not segment._views


def test_what_is_discarded_is_gone(log):
    first, second = kept(log, "t", DATA, DATA[::-1])
    reader, other = log.blob_at("t", first), log.blob_at("t", second)
    view = reader.view(10, 20)
    log.discard("t", first, first + 1)
    log.commit()
    assert reader.view(0, 10) is None
    assert bytes(view) == DATA[10:20], "who has a view keeps it"
    assert bytes(other.view(0, 10)) == DATA[::-1][:10]


def test_what_compaction_carried_elsewhere(tmp_path):
    with Log(tmp_path, segment_bytes=1 << 16) as log:
        log.acknowledge("old", "g", 0)
        log.acknowledge("t", "g", 0)
        [offset] = kept(log, "t", DATA)
        while len(log._journal.segments) < 3:
            kept(log, "old", *[b"x" * 5000] * 8)
        reader = log.blob_at("t", offset)
        assert bytes(reader.view(0, 9)) == DATA[:9]
        log.acknowledge("old", "g", log.range("old")[1])
        before = reader._place.segment
        assert log.compact(0.9)
        assert before.removed
        assert bytes(reader.view(5, 99)) == DATA[5:99]
        assert reader._place.segment is not before


def test_a_file_that_is_cut_short(tmp_path):
    with Log(tmp_path) as log:
        [offset] = kept(log, "t", DATA)
        reader = log.blob_at("t", offset)
        [blobs] = tmp_path.glob(f"*{BLOBS}")
        with blobs.open("r+b") as file:
            file.truncate(1000)
        assert reader.view(0, 1000) is not None
        assert reader.view(0, len(DATA)) is None


def test_a_record_that_is_damaged(tmp_path):
    with Log(tmp_path) as log:
        [offset] = kept(log, "t", DATA)
        [path] = tmp_path.glob("*.log")
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(data.index(b"body"))
            file.write(b"B")
        with pytest.raises(LogDamaged):
            log.blob_at("t", offset)


def test_a_log_that_is_closed(tmp_path):
    log = Log(tmp_path)
    [offset] = kept(log, "t", DATA)
    reader = log.blob_at("t", offset)
    log.close()
    with pytest.raises(Closed):
        log.blob_at("t", offset)
    with pytest.raises(Closed):
        reader.view(0, 10)


def test_large_ones_are_not_checked_when_nobody_asks(tmp_path):
    """A number as `verify` leaves those of so many bytes to whoever reads them."""
    with Log(tmp_path) as log:
        kept(log, "t", DATA)
    [blobs] = tmp_path.glob(f"*{BLOBS}")
    with blobs.open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    with Log(tmp_path) as log:
        assert len(log.read("t", 0, verify=len(DATA))) == 1
        for verify in (True, len(DATA) + 1):
            with pytest.raises(LogDamaged):
                log.read("t", 0, verify=verify)


@pytest.mark.skipif(
    "pure" in core.Mapping.__module__ and sys.version_info < (3, 13), reason="mmap keeps a descriptor"
)
def test_views_keep_no_descriptor(log):
    offsets = kept(log, "t", *[bytes(5000)] * 50)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    views = [log.read("t", offset, limit=1)[0].blob for offset in offsets]
    assert len(list(descriptors.iterdir())) == before
    assert all(bytes(view) == bytes(5000) and view.readonly for view in views)


def test_views_share_mappings(tmp_path):
    """The system allows some 65,000 to a process: however many views one holds, others get theirs."""
    with Log(tmp_path / "log", segment_bytes=64 << 20) as log:
        offsets = kept(log, "t", *[bytes([number]) * 5000 for number in range(100)])
        maps = Path("/proc/self/maps")
        before = len(maps.read_text().splitlines())
        readers = [log.blob_at("t", offset) for offset in offsets]
        views = [reader.view(0, 5000) for reader in readers for _ in range(50)]
        assert len(maps.read_text().splitlines()) < before + 20
        assert [view[-1] for view in views[::50]] == list(range(100))
        del views
        gc.collect()
        assert not any(segment._mappings for segment in log._journal.segments)


def test_views_beyond_a_mapping_that_is_there(tmp_path, monkeypatch):
    """Blobs of all sizes at all places: within a stretch of the file, across two, larger than both."""
    monkeypatch.setattr("transfer.log.segment._STRETCH", 8192)
    sizes = [5000, 7000, 4096, 20_000, 8192, 16_384, 1, 30_000, 6500]
    blobs = [bytes([number]) * size for number, size in enumerate(sizes)]
    with Log(tmp_path / "log", segment_bytes=16 << 20) as log:
        held = []
        for blob in blobs:
            [offset] = kept(log, "t", blob)
            held.append(log.read("t", offset, limit=1)[0].blob)  # while the file grows
        assert [bytes(view) for view in held] == blobs
        assert all(view.readonly for view in held)
        again = [log.read("t", offset, limit=1)[0].blob for offset in range(len(blobs))]
        assert [bytes(view) for view in again] == blobs
