"""Rows that one answer cannot hold are fetched in several, and joined at the reader."""

from __future__ import annotations

from itertools import chain

import pytest

from transfer.spool import RowStream, Spool
from transfer.spool.client.run_client import RunClient, split
from transfer.spool.format.protocol import AnswerTooLarge, Fetch, Read, raised, refusal

from .task_sender import RAGGED, SMALL, WIDE, agrees, ask, write

#: of one answer, for these tests: 16 rows of WIDE
LIMIT = 1 << 17


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setattr("transfer.spool.server.answers.MAX_ANSWER", LIMIT)
    with Spool(tmp_path / "spool") as spool:
        yield spool


@pytest.mark.parametrize("shuffle", [None, 5])
@pytest.mark.parametrize("layouts", [WIDE, RAGGED, SMALL])
def test_a_batch_larger_than_an_answer(spool, monkeypatch, layouts, shuffle):
    if layouts is not WIDE:
        monkeypatch.setattr("transfer.spool.server.answers.MAX_ANSWER", 500)
    write(spool.endpoint, "run", [[40, 60], [100]], layouts)
    with RowStream(spool.url("run"), 150, shuffle=shuffle) as stream:
        batches = [agrees(batch, layouts) for batch in stream]
    assert [len(batch) for batch in batches] == [150, 50]
    assert sorted([*chain.from_iterable(batches)]) == list(range(200))
    if shuffle is None:
        assert [*chain.from_iterable(batches)] == list(range(200))


def test_answers_to_later_requests_wait_for_it_and_an_end_that_comes_meanwhile(spool):
    write(spool.endpoint, "run", [[100]], WIDE)
    client = RunClient(spool.url("run"), timeout=10.0)
    try:
        client.open("group")
        for begin, rows in ((0, 90), (90, 4), (94, 200)):
            client.request(Fetch(epoch=0, seed=None, begin=begin, rows=rows, stride=0, times=1, need=begin))
        found = [client.collect(10.0) for _ in range(3)]
    finally:
        client.close()
    assert [rows.count for rows in found] == [90, 4, 6]
    assert [*chain.from_iterable(agrees(rows.arrays, WIDE) for rows in found)] == list(range(100))


@pytest.mark.parametrize("times", [1, 3, 10])
@pytest.mark.parametrize("most", [1, 2, 7, 29, 10**9])
def test_parts_are_the_same_rows_in_their_order(times, most):
    whole = Fetch(
        epoch=1, seed=4, begin=5, rows=7, stride=20, times=times, need=0, columns=["id"], next=(2, 9)
    )

    def rows_of(fetch):
        return [fetch.begin + i * fetch.stride + row for i in range(fetch.times) for row in range(fetch.rows)]

    parts = split(whole, most)
    assert len(parts) > 1 and [*chain.from_iterable(map(rows_of, parts))] == rows_of(whole)
    assert [part.next for part in parts] == [None] * (len(parts) - 1) + [(2, 9)]
    assert {(part.epoch, part.seed, *part.columns) for part in parts} == {(1, 4, "id")}


def test_the_refusal_says_how_many_rows_may_be_asked_for(spool):
    write(spool.endpoint, "run", [[100]], WIDE)
    with pytest.raises(AnswerTooLarge, match="100 rows") as caught:
        ask(spool.endpoint, Read(run="run", begin=0, end=100))
    assert 1 <= caught.value.most <= 16
    assert agrees(ask(spool.endpoint, Read(run="run", begin=0, end=caught.value.most))[0], WIDE)
    again = raised(refusal(caught.value))
    assert isinstance(again, AnswerTooLarge) and again.most == caught.value.most
