"""Data sets, streams of rows and spools: no wrong argument is taken in silence, hangs, or raises an error
without what to do."""

from __future__ import annotations

import pytest

from tests.arguments.wrong_calls import Case, outcome
from tests.cli.run_writer import send_run
from transfer.spool import RowStream, Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.client.run_client import RunClient
from transfer.torch import RunDataset, ShardedStream, StreamDataset
from transfer.transports.errors import AddressError, Again, Closed, OptionError, UsageError

NOWHERE = "run://127.0.0.1:1/one"
#: seconds: 1 << 70 of them never end
ENDLESS = "timeout: None huge"
READING = {
    "batch_size": 4, "group": "g", "epochs": 1, "shuffle": None, "columns": ["x"], "drop_last": False,
    "rank": 0, "world_size": 1, "prefetch_bytes": 1 << 20, "timeout": 0.2,
}  # fmt: skip
TAKEN = (
    "batch_size: None huge", "group: text", "epochs: None huge", "shuffle: None", "columns: None",
    "world_size: huge", "drop_last", "verify", "prefetch_bytes: huge", ENDLESS,
    "lease: None", "seat: None", "source: None",
)  # fmt: skip


def assert_refused(*cases):
    """Each ends with an error of ours, in time."""
    found = []
    for case in cases:
        for what, arguments in case.wrong():
            ended = outcome(case.call, arguments)
            if not isinstance(ended, UsageError):
                found.append(f"{what}: {ended!r:.150}")
    assert not found, "\n".join(["not refused as they should be:", *found])


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path / "spool", "tcp://127.0.0.1:0") as one:
        send_run(one.url("one"), [list(range(20))])
        yield one


def test_options_of_data_sets():
    run = {"url": NOWHERE, **READING, "seat": None, "source": None}
    sharded = {"url": NOWHERE, **READING, "mesh": None, "mesh_dim": None}
    assert_refused(
        Case("RunDataset", RunDataset, run, TAKEN),
        Case("StreamDataset", StreamDataset, {"endpoint": NOWHERE, **READING, "seat": None}, TAKEN),
        Case(
            "StreamDataset that listens",
            StreamDataset,
            {"endpoint": "tcp://127.0.0.1:0", "batch_size": 4, "columns": None, "drop_last": False,
             "timeout": 0.2, "verify": True, "source": None},
            TAKEN,
        ),
        Case("ShardedStream", ShardedStream, sharded, (*TAKEN, "mesh_dim", "mesh: None")),
    )  # fmt: skip


def test_options_of_streams_and_clients(spool):
    more = {"worker": 0, "workers": 1, "lease": None}
    assert_refused(
        Case(
            "RowStream",
            RowStream,
            {"url_or_source": spool.url("one"), **READING, **more},
            (*TAKEN, "workers: huge"),
        ),
        Case("RunClient", RunClient, {"url": spool.url("one"), "timeout": 0.2}, ("timeout: huge",)),
        Case("SpoolAdmin", SpoolAdmin, {"address": spool.url(), "timeout": 0.2}, ("timeout: huge",)),
    )


def test_options_of_a_spool(tmp_path):
    good = {
        "folder": tmp_path / "a", "endpoint": "tcp://127.0.0.1:0", "rows_endpoint": None,
        "retention_bytes": None, "retention_age": None, "ages": None, "metrics_port": None, "security": None,
    }  # fmt: skip
    takes = ("folder: text", "rows_endpoint: None", "retention_bytes: None huge", "retention_age: None huge",
             "ages: None", "metrics_port: None", "security: None")  # fmt: skip
    assert_refused(Case("Spool", Spool, good, takes))


def test_methods(spool):
    with RowStream(spool.url("one"), 4, timeout=5) as stream:
        assert_refused(
            Case("seek", stream.seek, {"epoch": 0}, ("epoch: huge",)),
            Case(
                "one_epoch",
                lambda epoch: list(stream.one_epoch(epoch)),
                {"epoch": 5},
                ("epoch: None huge -1",),
            ),
            Case("acknowledge", stream.acknowledge, {"state": None}, ("state: None",)),
            Case("load_state_dict", stream.load_state_dict, {"state": stream.state_dict()}),
        )
    with SpoolAdmin(spool.url(), timeout=5) as admin:
        assert_refused(
            Case("inspect", admin.inspect, {"run": "one"}),
            Case("delete", admin.delete, {"run": "none"}, ("force", "run_id: text")),
            Case("groups", admin.groups, {"run": "one"}),
            Case("forget_group", admin.forget_group, {"run": "one", "group": "none"}, ("force",)),
            Case("lineage", admin.lineage, {"run": "one", "group": "default"}),
            Case("step", admin.step, {"run": "one", "group": "default", "number": 0}),
        )
    dataset = RunDataset(spool.url("one"), 4, timeout=5)
    assert_refused(
        Case("set_epoch", dataset.set_epoch, {"epoch": 0}),
        Case("load_state_dict", dataset.load_state_dict, {"state": {}}),
        Case("acknowledge", dataset.acknowledge, {"state": None}, ("state: None",)),
    )
    dataset.close()


#: by address: what the hint says
ADDRESSES = {
    "run:/127.0.0.1:1/one": "did you mean run://127.0.0.1:1/one?",
    "rnu://127.0.0.1:1/one": "did you mean run://127.0.0.1:1/one?",
    "run//127.0.0.1:1/one": "did you mean run://127.0.0.1:1/one?",
    "run://127.0.0.1:x/one": "1 to 65535",
    "run://127.0.0.1:0/one": "1 to 65535",
    "run://127.0.0.1:1": "run://HOST:PORT/NAME",
    "run://": "run://HOST:PORT/NAME",
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_wrong_addresses(url):
    for call in (RunDataset, StreamDataset, RowStream, RunClient):
        with pytest.raises(AddressError) as caught:
            call(url, **({} if call is RunClient else {"batch_size": 4}), timeout=5)
        assert ADDRESSES[url] in caught.value.hint, call


@pytest.mark.parametrize(
    ("url", "why"),
    [("run://no-such-host.invalid:1/one", "cannot be found"), (NOWHERE, "Connection refused")],
)
def test_why_no_spool_answers(url, why):
    with pytest.raises(Again, match=why):
        RowStream(url, 4, timeout=1)


def test_misspelt_options():
    with pytest.raises(OptionError, match="no option 'epoch'") as caught:
        StreamDataset(NOWHERE, 4, epoch=3)
    assert "'epochs'" in caught.value.hint


def test_after_close_and_twice(spool):
    url = spool.url("one")
    stream, client, admin = RowStream(url, 4), RunClient(url), SpoolAdmin(url)
    waiting = StreamDataset()
    for one in (stream, client, admin, waiting):
        one.close()
        one.close()
    calls = (
        lambda: next(iter(stream)),
        stream.acknowledge,
        lambda: client.open("g"),
        admin.overview,
        lambda: admin.inspect("one"),
        lambda: next(iter(waiting)),
    )
    for call in calls:
        with pytest.raises(Closed):
            call()


def test_in_the_wrong_order(spool):
    with RowStream(spool.url("one"), 4, timeout=20) as stream:
        next(iter(stream))
        for call in (lambda: stream.seek(0), lambda: stream.load_state_dict(stream.state_dict())):
            with pytest.raises(UsageError, match="begun already"):
                call()
    client = RunClient(spool.url("one"))
    for call in (lambda: client.acknowledge(0, 0, []), lambda: client.collect(1)):
        with pytest.raises(UsageError, match=r"not open|no request is open"):
            call()
    client.close()
    with pytest.raises(UsageError, match="has read nothing"):
        RunDataset(spool.url("one"), 4).acknowledge()


@pytest.mark.parametrize(
    "wrong",
    [{"endpoint": "tpc://127.0.0.1:0"}, {"ages": 3}, {"metrics_port": "x"}, {"rows_endpoint": "x"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_spool_leaves_nothing(tmp_path, wrong):
    with pytest.raises(UsageError):
        Spool(tmp_path / "spool", **wrong)
    assert not list(tmp_path.iterdir())
