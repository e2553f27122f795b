"""The names of new folders are on the disk before anything in them counts."""

from __future__ import annotations

import os

import pytest

from tests.broker.in_process_broker import running
from transfer.log import Log
from transfer.spool.server.store import SpoolStore


@pytest.fixture
def synced(monkeypatch):
    """The paths that were synced, and whose names."""
    found = []
    real = os.fsync

    def fsync(fd):
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def spool(folder):
    SpoolStore(folder).close()


def log(folder):
    Log(folder).close()


def broker(folder):
    with running(folder):
        pass


@pytest.mark.parametrize("made", [log, spool, broker])
def test_all_levels_that_are_made_are_synced(tmp_path, synced, made):
    (tmp_path / "other").touch()
    folder = tmp_path / "one" / "two" / "three"
    made(folder)
    assert {str(one) for one in (tmp_path, tmp_path / "one", tmp_path / "one" / "two")} <= set(synced)
    if made is broker:
        assert str(folder) in synced  # for the log and the audit


def test_a_folder_that_a_crash_left_empty_is_synced_too(tmp_path, synced):
    (tmp_path / "log").mkdir()
    log(tmp_path / "log")
    assert str(tmp_path) in synced
    synced.clear()
    log(tmp_path / "log")
    assert str(tmp_path) not in synced
