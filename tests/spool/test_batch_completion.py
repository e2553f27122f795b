"""A batch that one job has completed takes no rows of another; the same job may ask again."""

from __future__ import annotations

import pytest

from transfer.spool import Spool
from transfer.spool.format.protocol import CommitJob, Declare
from transfer.spool.format.row_source import SEALED
from transfer.spool.format.run_messages import Winner
from transfer.transports.errors import UsageError

from .task_sender import ask, commit, push


@pytest.fixture(params=["running", "restarted"])
def spool(request, tmp_path):
    """A spool with the complete run `run` of job `first`."""
    with Spool(tmp_path) as spool:
        winner = push(spool.endpoint, "run", "first", 0, 0, 0, [3])
        commit(spool.endpoint, "run", "first", [winner])
        if request.param == "running":
            yield spool
            return
    with Spool(tmp_path) as spool:
        yield spool


def declare(spool, job, **options):
    options = {"delivery": "committed", "kind": "batch"} | options
    return ask(spool.endpoint, Declare(run="run", job=job, **options))[1]


@pytest.mark.parametrize("task", [False, True])
def test_another_job_is_refused(spool, task):
    with pytest.raises(UsageError, match="run run is complete, with 3 rows of another job") as caught:
        declare(spool, "second", task=task)
    assert "if_complete=skip" in caught.value.hint and "runs delete" in caught.value.hint
    assert declare(spool, "second", task=task, if_complete="skip")["done"]


def test_the_same_job_may_ask_again(spool):
    """Its answer was lost, or a task is tried again after the commit."""
    assert declare(spool, "first", task=True)["done"]
    again = commit(spool.endpoint, "run", "first", [Winner(0, 0, 1, 3, 24, 1)])
    assert (again["rows"], again["done"]) == (3, True)


def test_the_commit_of_another_job_is_refused(spool):
    with pytest.raises(UsageError, match="run run is complete"):
        commit(spool.endpoint, "run", "second", [])
    assert ask(spool.endpoint, CommitJob(run="run", job="second", if_complete="skip"), _no_winners())[1][
        "done"
    ]


def test_of_two_jobs_side_by_side_the_later_is_refused(tmp_path):
    with Spool(tmp_path) as spool:
        winners = {
            job: push(spool.endpoint, "run", job, 0, 0, 0, [rows]) for job, rows in {"a": 3, "b": 5}.items()
        }
        commit(spool.endpoint, "run", "a", [winners["a"]])
        with pytest.raises(UsageError, match="with 3 rows of another job"):
            commit(spool.endpoint, "run", "b", [winners["b"]])
        assert spool.store.entry("run").seen == (3, SEALED)


def _no_winners():
    import numpy as np

    from transfer.spool.format.run_messages import to_table

    return {name: np.array(column, np.int64) for name, column in to_table([]).items()}
