"""Makes the fixtures of this version's formats: `python -m tests.data.make_fixtures`, where `tests` lies.

One that was released is never made again: a new format gets a number and a fixture of its own.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import time
from pathlib import Path

from tests.broker.in_process_broker import running
from tests.spool.task_sender import RAGGED, WIDE, ask, write
from transfer.broker.clients.native import BrokerClient
from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import Action
from transfer.broker.storage.folder_parts import AUDIT
from transfer.log import Log
from transfer.log.segment_files import BLOBS, SUFFIX
from transfer.spool import Spool
from transfer.spool.format.protocol import Acknowledge, OpenRun

HERE = Path(__file__).parent
#: bytes of room that a file keeps behind what it holds
_ROOM = 4096


def log(folder: Path) -> None:
    """Several segments; topics, groups, state, a carried message, discarded blobs, a topic that is gone."""
    with Log(folder, segment_bytes=4096) as log:
        log.acknowledge("held", "slow", 0)
        log.append("held", b"carried", blob=b"its blob")
        for number in range(100):
            log.append("many", b"%d" % number)
            log.put(b"key/%d" % (number % 3), b"value %d" % number)
        log.acknowledge("many", "fast", 100)
        log.compact(share=0.5)
        for number in range(5):
            log.append("blobs", b"body %d" % number, blob=b"blob %d;" % number * 2000)
        log.discard("blobs", 1, 3)
        log.append("gone", b"nobody reads it")
        log.commit(log.drop("gone"))


def spool(folder: Path) -> None:
    """A sealed run, one with a group's positions and lineage, one a stream."""
    with Spool(folder) as spool:
        write(spool.endpoint, "sealed", [[8, 8], [8]], WIDE)
        write(spool.endpoint, "read", [[10, 10]], RAGGED)
        write(spool.endpoint, "stream", [[5], [5]], kind="stream")
        _, opened = ask(spool.endpoint, OpenRun(run="read", group="g", shard=0, shards=1, token="t"))
        ask(
            spool.endpoint,
            Acknowledge(
                run="read", run_id=opened["run_id"], group="g", epoch=0, row=8,
                steps=[[0, 2, 0, 0, 4, 1]], shard=0, count=1, shards=1,
            ),
        )  # fmt: skip


def broker(folder: Path) -> None:
    """Messages, a large one among them, a group that has acknowledged some, a dead letter, the audit."""
    with running(folder) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("t", "g")
        for number in range(6):
            client.publish("t", b"message %d" % number)
        client.publish("large", b"large;" * 20_000)
        messages = [consumer.recv() for _ in range(6)]
        consumer.nack(messages[1], "it cannot be read", retry=False)
        consumer.ack(messages[0], messages[2], wait=True)
        other = client.consume("large", "g", begin="old")
        other.nack(other.recv(), "too large", retry=False)
        other.flush()
        deadline = time.monotonic() + 20
        while sum(1 for _ in broker.letters.all()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    with Audit(folder / AUDIT, 1_800_000_000_000) as audit:
        action = Action(actor="ops@example.com", operation="purge", message_ids=("msg-1",), reason="fixture")
        audit.append(action, 1_800_000_000_000)


def trim(folder: Path) -> None:
    """Without the room that is reserved behind what the last files hold."""
    for suffix in (SUFFIX, BLOBS):
        for path in sorted(folder.rglob(f"*{suffix}")):
            data = path.read_bytes()
            held = len(data.rstrip(b"\0"))
            if held + _ROOM < len(data):
                with path.open("r+b") as file:
                    file.truncate(held + _ROOM)


def pack(folder: Path, name: str) -> Path:
    """All files of a folder, as NAME.tar.gz; the same bytes for the same files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False)
    target = HERE / f"{name}.tar.gz"
    target.write_bytes(gzip.compress(data.getvalue(), mtime=0))
    return target


FIXTURES = {"log-1": log, "spool-1": spool, "broker-1": broker}


def main() -> None:
    for name, make in FIXTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / "data")
            trim(Path(folder) / "data")
            target = pack(Path(folder) / "data", name)
            print(target, target.stat().st_size)


if __name__ == "__main__":
    main()
