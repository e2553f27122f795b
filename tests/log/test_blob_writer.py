"""Blobs that arrive in pieces: whole when they are committed, gone when they are abandoned."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.folders import new_folder
from transfer.log import Log, Retention, holes
from transfer.log.segment_files import BLOBS
from transfer.transports.errors import Closed, LogFull, UsageError

SMALL = 4096
LARGE = 1 << 20


def blocks(folder: Path) -> int:
    """Bytes that the files of blobs take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob(f"*{BLOBS}"))


@pytest.fixture
def punching(tmp_path):
    """Skips where the file system cannot make holes."""
    path = tmp_path / "hole"
    path.write_bytes(bytes(1 << 16))
    try:
        with path.open("r+b") as file:
            holes.punch(file.fileno(), 0, 1 << 16)
    except OSError as error:
        pytest.skip(f"holes in files: {error}")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=200), max_size=4), max_size=6), st.data())
def test_pieces_become_one_blob(pieces, data):
    whole = b"".join(part for piece in pieces for part in piece)
    with new_folder() as folder, Log(folder, fsync="never", segment_bytes=SMALL) as log:
        with log.blob("t", len(whole)) as writer:
            written = 0
            for piece in pieces:
                written += sum(map(len, piece))
                assert writer.write(piece[0] if len(piece) == 1 else piece) == written
                begin = data.draw(st.integers(0, written))
                end = data.draw(st.integers(begin, written))
                assert writer.view(begin, end) == whole[begin:end]
            sequence, offset = writer.commit(bytearray(b"head"))
        log.commit(sequence)
        (message,) = log.read("t", offset)
        assert bytes(message.body) == b"head" and message.blob == whole
        assert writer.view(0, written) == whole


def test_others_append_while_it_arrives_and_it_is_there_after_a_restart(tmp_path):
    blob = os.urandom(LARGE)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        writer = log.blob("t", LARGE)
        for begin in range(0, LARGE, LARGE // 16):
            writer.write(memoryview(blob)[begin : begin + LARGE // 16])
            log.append("t", b"%d" % begin * 100, blob=b"another's")
            writer.sync()
        log.commit()
        assert [bytes(one.blob) for one in log.read("t", 0, nbytes=1 << 24)] == [b"another's"] * 16
        sequence, offset = writer.commit(bytearray(b"head"))
        assert offset == 16
        log.commit(sequence)
        writer.abandon()  # too late
        with pytest.raises(Closed):
            writer.write(b"more")
        with pytest.raises(Closed):
            writer.commit()
        assert log.read("t", 16, nbytes=1 << 24)[0].blob == blob
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.read("t", 16, nbytes=1 << 24)[0].blob == blob and log.verify().blobs == 17


def test_its_segment_stays_until_it_ends(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("t", "g", 0)
        writer = log.blob("t", 10_000)
        for _ in range(100):
            log.append("t", bytes(200))
        log.acknowledge("t", "g", 100)
        log.commit()
        assert log.collect() == 0 and log.compact(1.0) == 0
        writer.write(bytes(10_000))
        log.commit(writer.commit()[0])
        assert log.read("t", 100)[0].blob == bytes(10_000)
        assert log.collect() == 0
        log.acknowledge("t", "g", 101)
        assert log.collect() > 0


@pytest.mark.parametrize("how", ["abandon", "with", "dropped"])
def test_what_is_abandoned_is_given_back(tmp_path, punching, how):
    with Log(tmp_path / "log", segment_bytes=1 << 18) as log:
        log.append("t", b"stays", blob=b"x" * LARGE)
        log.commit()
        before, told = blocks(log.folder), log.disk_bytes
        if how == "with":
            with pytest.raises(ValueError, match="caller's"), log.blob("t", LARGE) as writer:
                writer.write(bytes(LARGE // 2))
                raise ValueError("the caller's")
        else:
            writer = log.blob("t", LARGE)
            writer.write(bytes(LARGE // 2))
            if how == "dropped":
                log.drop("t")
            writer.abandon()
            writer.abandon()
        assert blocks(log.folder) <= before + 8192 and log.disk_bytes <= told + 8192
        assert log.range("t") == ((0, 0) if how == "dropped" else (0, 1))
        log.append("t", b"goes on", blob=b"y" * LARGE)
        log.commit()
        assert log.read("t", log.range("t")[1] - 1)[0].blob == b"y" * LARGE


def test_what_is_abandoned_is_given_back_when_nobody_views_it(tmp_path, punching):
    with Log(tmp_path / "log", segment_bytes=SMALL) as log:
        writer = log.blob("t", LARGE)
        writer.write(b"z" * LARGE)
        view = writer.view(LARGE // 2, LARGE)
        writer.abandon()
        assert view == b"z" * (LARGE // 2) and blocks(log.folder) >= LARGE
        del view
        gc.collect()
        log.collect()
        assert blocks(log.folder) < 16 << 10 and log.disk_bytes < 64 << 10


def test_closing_the_log_abandons_them(tmp_path, monkeypatch):
    log = Log(tmp_path, segment_bytes=SMALL)
    writers = [log.blob("t", 1000) for _ in range(3)]
    writers[0].write(bytes(10))
    log.append("t", b"one")
    log.close()
    for writer in writers:
        for call in (lambda: writer.write(b"x"), writer.commit):  # noqa: B023 - called at once
            with pytest.raises(Closed):
                call()
        with pytest.raises(Closed):
            writer.view(0, writer.written) if writer.written else log.blob("t", 1)
        writer.abandon()
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.range("t") == (0, 1)


def test_closing_waits_for_a_piece_that_is_being_written(tmp_path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    real = os.pwrite

    def slow(fd, data, position):
        if len(data) == 100_000:
            writing.set()
            go_on.wait(10)
        return real(fd, data, position)

    log = Log(tmp_path, segment_bytes=SMALL)
    monkeypatch.setattr(os, "pwrite", slow)
    writer = log.blob("t", 200_000)
    piece = threading.Thread(target=writer.write, args=(bytes(100_000),))
    piece.start()
    assert writing.wait(10)
    closer = threading.Thread(target=log.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive()
    go_on.set()
    piece.join(10)
    closer.join(10)
    assert writer.written == 100_000
    with pytest.raises(Closed):
        writer.commit()


def test_a_crash_before_it_is_committed_leaves_nothing_of_it(tmp_path):
    with Log(tmp_path / "log", segment_bytes=1 << 16) as log:
        log.append("t", b"one", blob=b"1" * 10_000)
        writer = log.blob("t", 10_000)
        writer.write(b"2" * 9000)
        log.commit()
        shutil.copytree(log.folder, tmp_path / "crashed")
    with Log(tmp_path / "crashed", segment_bytes=1 << 16) as log:
        assert log.cut == 0 and log.range("t") == (0, 1)
        log.append("t", b"two", blob=b"3" * 10_000)
        log.commit()
        assert [bytes(one.blob) for one in log.read("t", 0)] == [b"1" * 10_000, b"3" * 10_000]


def test_the_limit_of_bytes_holds_and_room_that_was_not_named_is_free_again(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL, retention=Retention(bytes=100_000)) as log:
        log.acknowledge("t", "g", 0)
        writer = log.blob("t", 80_000)
        with pytest.raises(LogFull):
            log.blob("t", 80_000)
        writer.abandon()
        writer = log.blob("t", 60_000)
        writer.write(bytes(60_000))
        writer.commit()


def test_what_a_writer_cannot(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        with pytest.raises(UsageError):
            log.blob("t", -1)
        with pytest.raises(UsageError):
            log.blob("", 1)
        writer = log.blob("t", 10)
        with pytest.raises(UsageError):
            writer.write(bytes(11))
        writer.write(bytes(9))
        for call in (
            writer.commit, lambda: writer.write([b"1", b"2"]), lambda: writer.view(0, 10),
            lambda: writer.view(-1, 5), lambda: writer.view(5, 4),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                call()
        writer.write(b"1")
        assert writer.commit()[1] == 0


def test_a_forked_child_leaves_it_alone(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        writer = log.blob("t", 10)
        child = os.fork()
        if not child:
            code = 1
            try:
                writer.abandon()
                code = 42
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        writer.write(bytes(10))
        assert writer.commit()[1] == 0


def test_the_memory_does_not_grow_with_the_blob(tmp_path):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    piece = memoryview(os.urandom(1 << 20))
    with Log(tmp_path, segment_bytes=SMALL) as log:
        writer = log.blob("t", 64 << 20)
        before = resident()
        for number in range(64):
            writer.write(piece)
            assert writer.view(number << 20, (number << 20) + 100) == piece[:100]
        log.commit(writer.commit()[0])
        assert resident() - before < 16 << 20
        assert log.verify().whole
