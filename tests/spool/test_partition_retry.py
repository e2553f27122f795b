"""delivery=partition: a later try that cuts other partitions is refused, and seals nothing."""

from __future__ import annotations

import pytest

from transfer.spool import Spool
from transfer.spool.format.protocol import AbortJob, Declare
from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.format.run_messages import Winner
from transfer.transports.errors import ProtocolError

from .task_sender import ask, commit, push


@pytest.fixture(params=["running", "restarted"])
def spools(request, tmp_path):
    """Gives the spool; after a call of `again`, where the parameter says so, the next one on its folder."""

    class Spools:
        now = Spool(tmp_path)

        def again(self):
            if request.param == "restarted":
                self.now.close()
                self.now = Spool(tmp_path)

    spools = Spools()
    yield spools
    spools.now.close()


def send(spools, job, partition, sizes, *, first=0, attempt=None, kind="batch"):
    number = partition if attempt is None else attempt
    endpoint = spools.now.endpoint
    return push(endpoint, "run", job, partition, number, first, sizes, delivery="partition", kind=kind)


def state_of(spools):
    return spools.now.store.entry("run").seen


def fail(spools, job):
    ask(spools.now.endpoint, AbortJob(run="run", job=job))
    assert state_of(spools).state == FAILED


def test_larger_partitions_are_refused_at_their_end(spools):
    """Of 1,000 rows 600 were sealed."""
    send(spools, "first", 0, [100])
    fail(spools, "first")
    spools.again()
    winner = send(spools, "second", 1, [500], first=500)
    with pytest.raises(ProtocolError, match="100 rows") as caught:
        send(spools, "second", 0, [500])
    assert caught.value.reason == "recut" and "runs delete" in caught.value.hint
    spools.again()
    with pytest.raises(ProtocolError) as caught:  # a writer that goes on all the same
        commit(spools.now.endpoint, "run", "second", [Winner(0, 0, 1, 500, 4000, 7), winner])
    assert caught.value.reason == "recut"
    assert state_of(spools) == (100, OPEN)
    fail(spools, "second")


def test_smaller_partitions_are_refused_at_the_commit(spools):
    """125 of 1,000 rows were doubled: the first try's partition 7 was sealed with those of the second."""
    send(spools, "first", 7, [125], first=875)
    fail(spools, "first")
    spools.again()
    winners = [send(spools, "second", number, [250], first=250 * number) for number in range(4)]
    spools.again()
    with pytest.raises(ProtocolError, match="125 rows of partition 7") as caught:
        commit(spools.now.endpoint, "run", "second", winners)
    assert caught.value.reason == "recut" and "runs delete" in caught.value.hint
    assert state_of(spools) == (125, OPEN)  # no reader saw a row twice
    fail(spools, "second")
    assert state_of(spools) == (125, FAILED)


def test_the_same_rows_in_another_order_are_another_cut(spools):
    send(spools, "first", 0, [3, 5])
    spools.again()
    with pytest.raises(ProtocolError, match="recut"):
        send(spools, "first", 0, [5, 3], attempt=1)


def test_the_same_partitions_again_complete_the_run(spools):
    """Also those without rows, of which a later try may have none."""
    send(spools, "first", 0, [3, 5])
    send(spools, "first", 2, [])
    fail(spools, "first")
    spools.again()
    winners = [send(spools, "second", 0, [3, 5], attempt=9), send(spools, "second", 1, [4], first=8)]
    spools.again()
    assert state_of(spools) == (8, OPEN)  # until it is known that the second try has the first one's plan
    commit(spools.now.endpoint, "run", "second", winners)
    assert state_of(spools) == (12, SEALED)
    assert commit(spools.now.endpoint, "run", "second", winners)["done"]


def test_a_streams_batch_is_compared_with_its_own_first_try(spools):
    winner = send(spools, "query/0", 0, [4], kind="stream")
    commit(spools.now.endpoint, "run", "query/0", [winner])
    send(spools, "query/1", 0, [3], first=4, kind="stream")
    spools.again()
    with pytest.raises(ProtocolError, match="recut"):
        send(spools, "query/1", 0, [5], first=4, attempt=8, kind="stream")
    other = send(spools, "query/1", 1, [2], first=7, kind="stream")
    with pytest.raises(ProtocolError, match="3 rows of partition 0"):
        commit(spools.now.endpoint, "run", "query/1", [other])
    again = send(spools, "query/1", 0, [3], first=4, attempt=9, kind="stream")
    commit(spools.now.endpoint, "run", "query/1", [again, other])
    assert state_of(spools) == (9, OPEN)


def test_a_commit_of_a_partition_that_never_came(spools):
    ask(spools.now.endpoint, Declare(run="run", job="first", delivery="partition", kind="batch"))
    winner = send(spools, "first", 0, [3])
    spools.again()
    with pytest.raises(ProtocolError, match="lost_rows"):
        commit(spools.now.endpoint, "run", "first", [winner, Winner(1, 1, 1, 3, 24, 7)])
    assert state_of(spools) == (3, OPEN)
