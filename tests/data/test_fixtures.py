"""Folders that an earlier version wrote: this one opens them and finds all that they hold."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.broker.in_process_broker import running
from tests.spool.task_sender import RAGGED, SMALL, WIDE, agrees, ask
from transfer.broker.clients.native import BrokerClient
from transfer.broker.storage.audit import Audit
from transfer.broker.storage.folder_check import check
from transfer.broker.storage.folder_parts import AUDIT
from transfer.log import Log
from transfer.spool import Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.format.protocol import Read

HERE = Path(__file__).parent


@pytest.fixture
def unpacked(tmp_path):
    """unpacked(name): a folder with what lies in the fixture."""

    def unpack(name):
        with tarfile.open(HERE / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name

    return unpack


def bodies(log, topic, offset=0):
    return [(one.offset, bytes(one.body)) for one in log.read(topic, offset)]


def test_fixtures_are_small():
    for path in HERE.glob("*.tar.gz"):
        assert path.stat().st_size < 64 << 10, path


def test_a_log_of_format_1(unpacked):
    folder = unpacked("log-1")
    assert (folder / "FORMAT").read_text() == "transfer log, format 1\n"
    for _ in range(2):
        with Log(folder, segment_bytes=4096) as log:
            assert not log.damage and not log.cut and log.verify().whole
            (held,) = log.read("held", 0)
            assert (bytes(held.body), bytes(held.blob), log.groups("held")) == (
                b"carried",
                b"its blob",
                {"slow": 0},
            )
            begin, end = log.range("many")
            assert end == 100 and begin > 0 and log.groups("many") == {"fast": 100}
            assert bodies(log, "many", begin) == [(at, b"%d" % at) for at in range(begin, 100)]
            assert [log.get(b"key/%d" % at) for at in range(3)] == [b"value 99", b"value 97", b"value 98"]
            found = log.read("blobs", 0)
            assert [one.discarded for one in found] == [False, True, True, False, False]
            assert bytes(found[4].blob) == b"blob 4;" * 2000 and bytes(found[1].body) == b"body 1"
            assert "gone" not in log.topics


def test_a_spool_of_format_1(unpacked):
    with Spool(unpacked("spool-1")) as spool:
        url = spool.endpoint.replace("tcp://", "run://")
        with SpoolAdmin(url) as admin:
            runs = {run["name"]: run for run in admin.overview()["runs"]}
            assert {name: (run["state"], run["rows"], run["damage"]) for name, run in runs.items()} == {
                "sealed": ("sealed", 24, ""), "read": ("sealed", 20, ""), "stream": ("open", 10, "")
            }  # fmt: skip
            assert admin.inspect("read")["groups"]["g"]["acknowledged"] == [0, 8]
            assert [(one.first, one.steps, one.rows) for one in admin.lineage("read", "g")] == [(0, 2, 4)]
            assert not any(admin.verify(run) for run in runs.values())
        for name, layouts, rows in (("sealed", WIDE, 24), ("read", RAGGED, 20), ("stream", SMALL, 10)):
            arrays, _ = ask(spool.endpoint, Read(run=name, begin=0, end=100))
            assert agrees(arrays, layouts) == list(range(rows))


def test_a_broker_of_format_1(unpacked):
    folder = unpacked("broker-1")
    report = check(folder)
    assert report.whole, report
    with Audit(folder / AUDIT, 1_900_000_000_000) as audit:
        events = [event.action.operation for event in audit.events()]
        assert "purge" in events and not audit.found.problems
    with running(folder) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        letters = sorted((letter.topic, letter.last_error) for letter in broker.letters.all())
        assert letters == [("large", "too large"), ("t", "it cannot be read")]
        consumer = client.consume("t", "g")
        assert [bytes(consumer.recv().data) for _ in range(3)] == [b"message %d" % at for at in (3, 4, 5)]
        consumer = client.consume("large", "h", begin="old")
        assert bytes(consumer.recv().data) == b"large;" * 20_000
    assert not shutil.rmtree(folder)
