"""Rows that change on their way from the spool are asked for again, and never handed out."""

from __future__ import annotations

import numpy as np
import pytest

from transfer.spool import RowStream, Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.format.protocol import Explain, Read
from transfer.spool.format.run_messages import checksum, checksum_in_slices
from transfer.spool.server.answer_queue import whole
from transfer.transports.errors import ProtocolError

from .task_sender import RAGGED, SMALL, WIDE, agrees, ask, write


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path) as spool:
        yield spool


@pytest.fixture
def faulty(spool, monkeypatch):
    """Changes one bit of so many answers with rows; the changes that it has made."""
    answer = spool._handler.readers._rows._answer
    left, changed = [0], []

    def send(identity, arrays, meta):
        if left[0] and arrays:
            left[0] -= 1
            name = sorted(arrays)[len(changed) % len(arrays)]
            arrays = dict(arrays)
            copy = np.array(arrays[name])
            copy.reshape(-1).view(np.uint8)[-1] ^= 1
            arrays[name] = copy
            changed.append(name)
        return answer(identity, arrays, meta)

    monkeypatch.setattr(spool._handler.readers._rows, "_answer", send)
    monkeypatch.setattr(spool._handler, "_answer", send)

    def change(count):
        left[0] = count
        return changed

    return change


@pytest.mark.parametrize("layouts", [SMALL, WIDE, RAGGED])
@pytest.mark.parametrize("shuffle", [None, 3])
def test_a_trainer_asks_once_more(spool, faulty, layouts, shuffle):
    write(spool.endpoint, "run", [[100, 50], [50]], layouts)
    changed = faulty(1)
    with RowStream(spool.url("run"), 20, shuffle=shuffle, timeout=10.0) as stream:
        ids = [one for batch in stream for one in agrees(batch, layouts)]
    assert len(changed) == 1
    assert sorted(ids) == list(range(200))


def test_a_trainer_is_told_of_the_second_time(spool, faulty):
    write(spool.endpoint, "run", [[100]])
    faulty(1 << 20)
    with (
        RowStream(spool.url("run"), 20, timeout=10.0) as stream,
        pytest.raises(ProtocolError, match="corrupted in transit") as caught,
    ):
        list(stream)
    assert caught.value.reason == "checksum"


def test_a_read_asks_once_more(spool, faulty):
    """As Spark reads."""
    write(spool.endpoint, "run", [[100]])
    changed = faulty(1)
    arrays, meta = ask(spool.endpoint, Read(run="run", begin=3, end=90))
    assert agrees(arrays) == list(range(3, 90))
    assert meta["crc"] == checksum(arrays)
    assert len(changed) == 1
    faulty(2)
    with pytest.raises(ProtocolError, match="corrupted in transit"):
        ask(spool.endpoint, Read(run="run", begin=0, end=5))


def test_the_origin_of_rows_has_one_too(spool, faulty):
    write(spool.endpoint, "run", [[10]])
    request = Explain(run="run", epoch=0, seed=None, begin=0, end=10)
    assert ask(spool.endpoint, request)[0]["row"].tolist() == list(range(10))
    faulty(2)
    with pytest.raises(ProtocolError, match="corrupted in transit"):
        ask(spool.endpoint, request)


def test_rows_without_a_checksum_are_not_taken(spool, monkeypatch):
    write(spool.endpoint, "run", [[10]])
    answer = spool._handler.readers._rows._answer

    def without(identity, arrays, meta):
        return answer(identity, arrays, {name: value for name, value in meta.items() if name != "crc"})

    monkeypatch.setattr(spool._handler.readers._rows, "_answer", without)
    with pytest.raises(ProtocolError, match="corrupted in transit"):
        ask(spool.endpoint, Read(run="run", begin=0, end=5))


def test_slices_make_the_same_sum(monkeypatch):
    monkeypatch.setattr("transfer.spool.format.run_messages._SLICE", 1000)
    columns = {
        "b": np.arange(5000, dtype=np.int32).reshape(-1, 5),
        "a": np.zeros((3, 0), np.uint8),
        "c": np.ones(7, bool),
    }
    assert whole(checksum_in_slices(columns)) == checksum(columns)
    assert sum(1 for _ in checksum_in_slices(columns)) == 20


def test_operators_see_whole_answers(spool, faulty):
    write(spool.endpoint, "run", [[10]])
    faulty(1)
    with SpoolAdmin(spool.url()) as admin:
        assert [run["rows"] for run in admin.overview()["runs"]] == [10]
