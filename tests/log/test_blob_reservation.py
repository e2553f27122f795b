"""Blobs whose room is reserved as they arrive: an announcement takes nothing."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.log.test_blob_writer import LARGE, SMALL, blocks
from transfer.log import Log, Retention
from transfer.transports.errors import LogFull

HUGE = 64 << 30


def arriving(log, nbytes=HUGE):
    return log.blob("t", nbytes, arriving=True)


def test_an_announcement_reserves_nothing_and_bytes_about_twice_as_much(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        before = log.disk_bytes
        writers = [arriving(log) for _ in range(40)]
        assert blocks(tmp_path) == 0 and log.disk_bytes < before + (64 << 10)
        for sent in range(1, 33):
            writers[0].write(bytes(LARGE))
            assert sent * LARGE <= blocks(tmp_path) <= 2 * sent * LARGE + (256 << 10)
        assert log.disk_bytes <= before + 65 * LARGE
        for writer in writers:
            writer.abandon()
        assert blocks(tmp_path) <= 64 << 10 and log.disk_bytes <= before + (128 << 10)
        log.append("t", b"", blob=b"x" * LARGE)
        log.commit()
        assert log.read("t", 0)[0].blob == b"x" * LARGE


def test_places_are_used_again_and_segments_do_not_follow_announcements(tmp_path):
    with Log(tmp_path, segment_bytes=SMALL) as log:
        log.append("t", b"", blob=b"kept")
        for _ in range(200):
            arriving(log).abandon()
            log.append("t", b"", blob=b"x" * 100)
        held = [arriving(log) for _ in range(10)]
        log.append("t", b"", blob=b"y" * 100)
        log.commit()
        assert max(path.stat().st_size for path in tmp_path.glob("*.blobs")) < 11 * HUGE
        assert len(list(tmp_path.glob("*.blobs"))) < 20
        assert [bytes(one.blob) for one in log.read("t", 200)] == [b"x" * 100, b"y" * 100]
        assert [writer.abandon() for writer in held] == [None] * 10


@pytest.mark.parametrize("between", [False, True])
def test_what_is_committed_may_be_less_and_lies_in_one_piece(tmp_path, between):
    payload = os.urandom(3 * LARGE + 17)
    with Log(tmp_path) as log:
        writer = arriving(log)
        for begin in range(0, len(payload), 100_000):
            writer.write(memoryview(payload)[begin : begin + 100_000])
            if between:
                log.append("t", b"", blob=b"between")
        log.commit(writer.commit(b"body")[0])
        log.append("t", b"", blob=b"behind" * 100)
        log.commit()
        end = log.range("t")[1]
        (message, behind) = log.read("t", end - 2, nbytes=1 << 30)
        assert bytes(message.blob) == payload and behind.blob == b"behind" * 100
        assert blocks(tmp_path) <= (64 << 20) + len(payload) + (64 << 10)
    with Log(tmp_path) as log:
        (message, behind) = log.read("t", end - 2, nbytes=1 << 30)
        assert bytes(message.blob) == payload and behind.blob == b"behind" * 100
        assert log.verify().blobs == log.range("t")[1]


def test_a_crash_in_the_middle_leaves_nothing_behind(tmp_path):
    def die():
        log = Log(tmp_path)
        first, second = arriving(log, 2 << 30), arriving(log, 2 << 30)
        first.write(bytes(20 * LARGE))
        log.append("t", b"", blob=b"kept" * 20_000)
        second.write(bytes(20 * LARGE))
        log.commit()
        assert blocks(tmp_path) > 40 * LARGE
        os._exit(0)

    if not (child := os.fork()):
        try:
            die()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with Log(tmp_path) as log:
        assert blocks(tmp_path) < 256 << 10
        assert log.disk_bytes < (64 << 20) + (256 << 10)
        assert log.read("t", 0)[0].blob == b"kept" * 20_000
        with arriving(log, LARGE) as writer:
            writer.write(b"z" * LARGE)
            log.commit(writer.commit()[0])
        assert log.read("t", 1)[0].blob == b"z" * LARGE


def test_a_piece_for_which_there_is_no_room_can_be_tried_again(tmp_path):
    limits = {"segment_bytes": SMALL, "retention": Retention(bytes=3 * LARGE)}
    with Log(tmp_path, **limits) as log:
        log.acknowledge("t", "g", 0)
        log.append("t", b"", blob=bytes(LARGE))
        with pytest.raises(LogFull):
            log.blob("t", 4 * LARGE)
        writer = arriving(log, 4 * LARGE)
        writer.write(b"1" * LARGE)
        again = partial(writer.write, b"2" * LARGE)
        with pytest.raises(LogFull):
            again()
        assert writer.written == LARGE
        log._journal.room.retention = Retention(bytes=8 * LARGE)
        assert again() == 2 * LARGE
        log.commit(writer.commit()[0])
        assert log.read("t", 1)[0].blob == b"1" * LARGE + b"2" * LARGE
