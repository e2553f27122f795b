"""A run's id: runs of one name, one after the other, are not mixed."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from transfer.spool import RowStream, Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.client.connection import SpoolConnection
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import AbortJob, Declare, DeleteRun, Fetch, Read
from transfer.transports.errors import Again, Broken, OptionError, UsageError

from .task_sender import ask, write

DATA = Path(__file__).parents[1] / "data/spool"


def fetch(begin, rows):
    return Fetch(epoch=0, seed=None, begin=begin, rows=rows, stride=rows, times=1, need=begin + rows)


def run_id(spool, run="run"):
    return ask(spool.endpoint, Read(run=run, begin=0, end=0))[1]["run_id"]


def write_again(spool, rows=20):
    """The run is deleted, and another one of its name is written; the ids of both."""
    before = run_id(spool)
    ask(spool.endpoint, DeleteRun(run="run", force=True))
    write(spool.endpoint, "run", [[rows]])
    return before, run_id(spool)


def test_a_run_keeps_its_id_until_it_is_deleted(tmp_path):
    with Spool(tmp_path) as spool:
        declare = Declare(run="run", job="first", delivery="committed", kind="batch")
        ask(spool.endpoint, declare)
        made = run_id(spool)
        assert len(bytes.fromhex(made)) == 16
        ask(spool.endpoint, AbortJob(run="run", job="first"))
        write(spool.endpoint, "run", [[20]])
        write(spool.endpoint, "other", [[20]])
        assert run_id(spool) == made != run_id(spool, "other")
    with Spool(tmp_path) as spool, SpoolAdmin(spool.url()) as admin:
        found = {run["name"]: run["run_id"] for run in admin.overview()["runs"]}
        assert found["run"] == admin.inspect("run")["run_id"] == made
        before, now = write_again(spool)
        assert before == made != now


def test_a_reader_that_comes_back_is_not_given_another_run(tmp_path):
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[20]])
        endpoint = spool.endpoint
        reader = RunClient(spool.url("run"), timeout=20)
        opened = reader.open("group")
        reader.request(fetch(0, 5))
        assert reader.collect(20).count == 5
    with Spool(tmp_path, endpoint) as spool:
        before, now = write_again(spool)
        assert opened.run_id == before
        reader.request(fetch(5, 5))
        with pytest.raises(Broken, match=f"run, {before}, was deleted: run is {now} now"):
            reader.collect(20)
        with pytest.raises(Broken, match=f"run, {before}, was deleted: run is {now} now"):
            reader.acknowledge(0, 5, [])
        reader.close()


@pytest.mark.parametrize("again", [True, False])
def test_a_reader_with_a_lease_hears_which_run_was_deleted(tmp_path, again):
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[20]])
        before = run_id(spool)
        reader = RunClient(spool.url("run"), timeout=20)
        reader.open("group")
        if again:
            now = f"run is {write_again(spool)[1]} now"
        else:
            ask(spool.endpoint, DeleteRun(run="run", force=True))
            now = "no run has that name now"
        reader.request(fetch(0, 10))
        with pytest.raises(Broken, match=f"run, {before}, was deleted: {now}"):
            reader.collect(20)
        reader.close()


def test_a_reader_whose_run_is_gone_does_not_wait_for_another(tmp_path):
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[20]])
        endpoint = spool.endpoint
        reader = RunClient(spool.url("run"), timeout=3600)
        reader.open("group")
    with Spool(tmp_path, endpoint) as spool:
        ask(spool.endpoint, DeleteRun(run="run", force=True))
        reader.request(fetch(5, 5))
        with pytest.raises(Broken, match="no run has that name now"):
            reader.collect(60)
        reader.close()


@pytest.mark.parametrize("deleted", [False, True])
def test_a_reader_that_comes_back_waits_for_a_late_answer(tmp_path, monkeypatch, deleted):
    late, hold = [], True
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[20]])
        reader = RunClient(spool.url("run"), timeout=20)
        reader.open("group")
        reader._link.disconnect()
        reader.request(fetch(0, 10))
        answer = spool._handler._responder._answer

        def held(identity, arrays, meta):
            if hold and "layouts" in meta:
                return late.append((identity, arrays, meta))
            return answer(identity, arrays, meta)

        monkeypatch.setattr(spool._handler._responder, "_answer", held)
        for _ in range(2):
            with pytest.raises(Again):
                reader.collect(0.5)
        assert len(late) == 1
        if deleted:
            write_again(spool)
        hold = False
        answer(*late[0])
        if deleted:
            with pytest.raises(Broken, match="was deleted"):
                reader.collect(20)
        else:
            assert reader.collect(20).count == 10
        reader.close()


def test_a_state_of_another_run_is_refused(tmp_path):
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[20]])
        with RowStream(spool.url("run"), 4) as stream:
            next(iter(stream))
            state = stream.state_dict()
        before, now = write_again(spool)
        with RowStream(spool.url("run"), 4) as stream:
            for use in (stream.load_state_dict, stream.acknowledge):
                with pytest.raises(OptionError, match=f"{before}, and this one is {now}"):
                    use(state)


def test_ranks_are_not_given_two_runs(tmp_path, monkeypatch):
    """As long as one reads a run that was deleted, the others do not begin with the next one."""
    monkeypatch.setattr("transfer.spool.client.run_client._LEASE_PATIENCE", 0.1)
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[20]])
        first = RunClient(spool.url("run"), timeout=20)
        first.open("group", 0, 2)
        before, now = write_again(spool)
        second = RunClient(spool.url("run"), timeout=20)
        with pytest.raises(UsageError, match=f"shard 0 of 2 of {before}, deleted"):
            second.open("group", 1, 2)
        first.close()
        assert second.open("group", 1, 2).run_id == now
        second.close()


def test_what_is_asked_of_a_run_is_not_done_to_another(tmp_path):
    with Spool(tmp_path) as spool, SpoolAdmin(spool.url()) as admin:
        write(spool.endpoint, "run", [[20]])
        with RowStream(spool.url("run"), 4, group="group") as stream:
            next(iter(stream))
            stream.acknowledge()
        (steps,) = admin.lineage("run", "group")
        assert steps.run_id == run_id(spool)
        (table,) = admin.explain("run", [steps])
        assert set(table["run_id"].tolist()) == {steps.run_id}
        before, now = write_again(spool)
        with pytest.raises(Broken, match=before):
            list(admin.explain("run", [steps]))
        with pytest.raises(Broken, match=now):
            admin.delete("run", run_id=before)
        with pytest.raises(Broken, match=now):
            ask(spool.endpoint, Read(run="run", run_id=before, begin=0, end=5))
        assert admin.delete("run", run_id=now)[0] == 20


@pytest.mark.parametrize("version", [1, 2])
def test_folders_of_each_version_are_read(tmp_path, version):
    """Also those without ids, which are given some that stay."""
    with tarfile.open(DATA / f"version-{version}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = []
    for _ in range(2):
        with Spool(tmp_path) as spool, SpoolAdmin(spool.url()) as admin:
            found.append({run["name"]: run["run_id"] for run in admin.overview()["runs"]})
            with RowStream(spool.url("digits"), 4, group="a", shuffle=7) as stream:
                assert stream.info.acknowledged == (0, 4) and stream.info.run_id == found[-1]["digits"]
                assert sum(len(batch["id"]) for batch in stream) == 6
    if version > 1:
        assert found[0] == {
            "digits": "f53f962ee107eea19007e27f86b464e2",
            "stream": "337913ad5a69aa2b562cdb2e6965ea82",
        }
    assert found[0] == found[1] and len(set(found[0].values())) == 2
    assert all(len(bytes.fromhex(one)) == 16 for one in found[0].values())


def test_an_end_whose_answer_was_lost_is_asked_for_again(tmp_path, monkeypatch):
    """It is done by then; and no run that was written meanwhile goes in its place."""
    receive, between = SpoolConnection.receive, []

    def lose(line, timeout):
        answer = receive(line, timeout)
        if between and "run_id" not in answer[1]:  # not of the look at the run
            between.pop()()
            raise Broken("the spool closed the connection")
        return answer

    with Spool(tmp_path) as spool, SpoolAdmin(spool.url()) as admin:
        write(spool.endpoint, "run", [[20]])
        with RowStream(spool.url("run"), 8, group="g", timeout=20) as rows:
            next(iter(rows))
        monkeypatch.setattr(SpoolConnection, "receive", lose)
        between.append(lambda: None)
        assert admin.forget_group("run", "g") == 0
        assert not between
        between.append(lambda: write(spool.endpoint, "run", [[5]]))
        assert admin.delete("run") == (0, 0)
        assert [run["rows"] for run in admin.overview()["runs"]] == [5]
        for call in (lambda: admin.forget_group("run", "g"), lambda: admin.delete("run", run_id="other")):
            with pytest.raises((OptionError, Broken)):
                call()
