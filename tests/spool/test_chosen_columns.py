"""The spool answers with the columns that are asked for, and with no others."""

from __future__ import annotations

import numpy as np
import pytest

from transfer.spool import RowStream, Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import Fetch, Read
from transfer.spool.format.rows import Layout
from transfer.transports.errors import OptionError, UsageError

from .task_sender import RAGGED, WIDE, ask, frame, write


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        yield spool


def fetch(columns, *, seed=None, rows=20):
    return Fetch(epoch=0, seed=seed, begin=0, rows=rows, stride=rows, times=1, need=rows, columns=columns)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["text"], {"text", "text.offsets", "text.valid"}),
        (["tokens.offsets", "id"], {"id", "tokens", "tokens.offsets"}),
    ],
)
def test_a_fetch_brings_the_arrays_of_its_columns(spool, seed, columns, names):
    write(spool.endpoint, "run", [[20, 20]], RAGGED)
    client = RunClient(spool.url("run"), timeout=10.0)
    try:
        client.open("group")
        client.request(fetch(columns, seed=seed))
        client.request(fetch(None, seed=seed))
        some, whole = client.collect(10.0), client.collect(10.0)
    finally:
        client.close()
    assert (some.count, whole.count) == (20, 20)
    assert some.arrays.keys() == names
    for name in names:
        np.testing.assert_array_equal(some.arrays[name], whole.arrays[name])


def test_a_read_brings_them_too(spool):
    write(spool.endpoint, "run", [[20]], RAGGED)
    arrays, told = ask(spool.endpoint, Read(run="run", begin=2, end=9, columns=["id"]))
    assert told["count"] == 7 and {*arrays} == {"id"}


def test_who_is_refused_has_made_no_group(spool):
    """A stream would keep its rows for it."""
    write(spool.endpoint, "run", [[20]], RAGGED)
    write(spool.endpoint, "grows", [[20]], kind="stream")
    with pytest.raises(OptionError, match=r"no column 'x'[\s\S]*It has: id, tokens, text\."):
        RowStream(spool.url("run"), 8, columns=("x",), timeout=10.0)
    with pytest.raises(UsageError, match="cannot be shuffled"):
        RowStream(spool.url("grows"), 8, shuffle=3, timeout=10.0)
    with SpoolAdmin(spool.url()) as admin:
        assert [run["groups"] for run in admin.overview()["runs"]] == [{}, {}]
        with RowStream(spool.url("grows"), 8, columns=("id",), timeout=10.0):
            assert [*admin.groups("grows")] == ["default"]


def test_what_no_spool_takes_is_the_callers_mistake(spool):
    """And is not sent."""
    with SpoolAdmin(spool.url()) as admin:
        for ask_for in (lambda: admin.inspect(""), lambda: admin.groups("r" * 256), lambda: admin.inspect(5)):
            with pytest.raises(UsageError, match="no valid request"):
                ask_for()
        write(spool.endpoint, "run", [[20]])
        with pytest.raises(UsageError, match="1 to 1024"):
            RowStream(spool.url("run"), 8, group="😀" * 255, timeout=10.0)
        assert admin.inspect("run")["groups"] == {}


def test_a_column_that_the_run_has_not_is_refused_with_those_that_it_has(spool):
    write(spool.endpoint, "run", [[20]], RAGGED)
    with pytest.raises(UsageError, match=r"no column 'x'[\s\S]*It has: id, tokens, text\."):
        ask(spool.endpoint, Read(run="run", begin=0, end=1, columns=["id", "x"]))
    with pytest.raises(OptionError, match=r"no column 'x'[\s\S]*It has: id, tokens, text\."):
        RowStream(spool.url("run"), 4, columns=("id", "x"))
    with pytest.raises(OptionError, match="columns names none"):
        RowStream(spool.url("run"), 4, columns=())


@pytest.mark.parametrize("shuffle", [None, 5])
def test_a_stream_is_sent_its_columns_alone(spool, monkeypatch, shuffle):
    """In the order that the whole rows have: another choice of columns does not shuffle otherwise."""
    write(spool.endpoint, "run", [[100, 100], [100]], WIDE)
    sent = []
    answer = spool._handler.readers._rows._answer

    def noting(identity, arrays, meta):
        sent.append(arrays)
        return answer(identity, arrays, meta)

    monkeypatch.setattr(spool._handler.readers._rows, "_answer", noting)
    with RowStream(spool.url("run"), 32, columns=("id",), shuffle=shuffle, group="a") as stream:
        ids = np.concatenate([batch["id"] for batch in stream])
    assert {name for arrays in sent for name in arrays} == {"id"}
    assert sum(array.nbytes for arrays in sent for array in arrays.values()) == 300 * 8
    with RowStream(spool.url("run"), 32, shuffle=shuffle, group="b") as stream:
        assert np.concatenate([batch["id"] for batch in stream]).tolist() == ids.tolist()


def test_limits_count_the_chosen_columns(spool, monkeypatch):
    monkeypatch.setattr("transfer.spool.server.answers.MAX_ANSWER", 1000)
    write(spool.endpoint, "run", [[100]], (Layout("id", "dense", "int64"), WIDE[1]))
    assert ask(spool.endpoint, Read(run="run", begin=0, end=100, columns=["id"]))[1]["count"] == 100
    assert frame(0, 1, WIDE).keys() == {"id", "wide"}
