"""The parts of a broker's folder: one that is lost is missed, and a check changes none of them."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from tests.log.test_read_only import contents
from transfer.broker.storage.audit import HEAD
from transfer.broker.storage.folder_check import check
from transfer.broker.storage.folder_parts import AUDIT, LOG, STATE, forget_lost
from transfer.cli import run
from transfer.transports.errors import LogDamaged, LogInUse


@pytest.fixture
def folder(tmp_path):
    with running(tmp_path):
        pass
    return tmp_path


def problems(folder):
    """Of each part, by a check that changes nothing."""
    before = contents(folder)
    report = check(folder)
    assert contents(folder) == before
    return {part.name: part.problems for part in report.parts if part.problems}


def lose(folder, how):
    for path in folder.glob(f"{STATE}*"):
        path.unlink()
    if how == "empty":
        (folder / STATE).touch()


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_lost_database_is_no_new_one(folder, how):
    lose(folder, how)
    assert "dead letters" in problems(folder)["state"][0]
    before = contents(folder)
    with pytest.raises(LogDamaged, match=r"state\.db is missing or empty.*forget-lost"):
        running(folder).__enter__()
    assert contents(folder).keys() >= before.keys()
    assert not (folder / STATE).exists() or not (folder / STATE).stat().st_size
    assert "dead letters" in problems(folder)["state"][0]


def test_one_can_go_on_without_what_is_lost(folder, capsys):
    assert run(["broker", "forget-lost", str(folder)]) == 0
    assert "nothing is lost" in capsys.readouterr().out
    lose(folder, "gone")
    assert run(["broker", "check", str(folder)]) == 1
    assert run(["broker", "forget-lost", str(folder)]) == 0
    assert "starts without: state.db" in capsys.readouterr().out
    with running(folder):
        pass
    assert not problems(folder)
    lose(folder, "gone")  # the new one is missed as well
    assert problems(folder)["state"]


def test_a_lost_audit_is_named_in_the_new_one(folder, caplog):
    for path in (folder / AUDIT).iterdir():
        path.unlink()
    (folder / AUDIT).rmdir()
    assert "the whole audit is missing" in problems(folder)["audit"][0]
    with running(folder) as broker:
        assert "the whole audit is missing" in caplog.text
        assert broker.audit.head.sequence == 1
    assert (folder / AUDIT / HEAD).exists()


def test_a_folder_of_an_older_version_has_nothing_to_miss(folder):
    with running(folder) as broker:
        log = broker.hub.store.log
        log.commit(log.remove(b"broker/parts"))
    lose(folder, "gone")
    assert not problems(folder)
    with running(folder):
        pass
    lose(folder, "gone")
    assert problems(folder)


def test_a_running_brokers_folder_is_not_checked_nor_changed(folder):
    with running(folder):
        with pytest.raises(LogInUse, match="a broker runs on"):
            check(folder)
        with pytest.raises(LogInUse):
            forget_lost(folder)


def test_a_check_changes_nothing_behind_a_kill(folder, tmp_path_factory):
    import shutil

    copy = tmp_path_factory.mktemp("killed") / "data"
    with running(folder) as broker:
        broker.letters.payloads.folder.mkdir(exist_ok=True)
        shutil.copytree(folder, copy)
    assert (copy / f"{STATE}-wal").exists()
    assert not problems(copy)
    assert (copy / LOG).is_dir()
