"""A run in the store: its state, what is visible of it, its groups; and its keys in the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from transfer.spool.format.row_source import DAMAGED, OPEN
from transfer.spool.server.group import ReaderGroup
from transfer.spool.server.ledger import REMEMBERED_JOBS, Run
from transfer.transports.errors import Broken, LogDamaged

_RUN_TOPIC, _LINEAGE_TOPIC = "run/", "lineage/"
#: versions of a run's state in the log. 1 had neither a number nor the run's id
RUN_VERSION = 2
RUN_KEY, GROUP_KEY = b"run/", b"group/"


class VisibleState(NamedTuple):
    """What readers may see of a run at one moment."""

    rows: int = 0
    state: str = OPEN


@dataclass(slots=True)
class RunRecord:
    """A run with what readers may see of it: `seen`, as it is on the disk. It changes in another thread.

    touched: when it was last written or read; active: the same for the jobs that write it; the log gets both
    now and then. released: a time, and how many rows a stream without groups had then, which are removed
    later.
    number: unique among all runs of this spool, also deleted ones of this name; run_id: unique among spools,
    too.
    index: the offset of its index, or -1. tidy: the space of data that a sealed run does not need is freed.
    aborted: jobs whose abort a full disk refused. expired: jobs whose staged rows were removed, and after how
    many seconds of silence.
    """

    run: Run
    number: int
    created: float
    run_id: str
    seen: VisibleState = field(default_factory=VisibleState)
    first: int = 0  # rows before it were acknowledged by all groups and are not kept
    index: int = -1
    tidy: bool = False
    aborted: list[str] = field(default_factory=list)
    expired: dict[str, float] = field(default_factory=dict)
    sequence: int = 0  # of the last record that committed a job, or of the deletion
    groups: dict[str, ReaderGroup] = field(default_factory=dict)
    touched: float = 0.0
    damage: str = ""  # the damage: no row of it is read or written
    active: dict[str, float] = field(default_factory=dict)
    noted: tuple[float, dict[str, float]] = (0.0, {})
    released: tuple[float, int] | None = None

    @property
    def rows(self) -> int:
        return self.seen.rows

    @property
    def state(self) -> str:
        return DAMAGED if self.damage else self.seen.state

    def check_whole(self) -> None:
        """Raises LogDamaged if some of it is damaged."""
        if self.damage:
            raise LogDamaged(
                f"run {self.run.name} is damaged: {self.damage}",
                hint="restore the spool's folder, or write the run again: transfer runs delete makes its "
                "name free; transfer runs salvage copies the other runs",
            )

    def expire(self, job: str, age: float) -> None:
        """Removes a job's staged rows. Only the last such jobs are remembered."""
        self.expired[job] = age
        if len(self.expired) > REMEMBERED_JOBS:
            del self.expired[next(iter(self.expired))]

    def check_job(self, job: str) -> None:
        """Raises Broken if the job's rows were removed by their age."""
        age = self.expired.get(job)
        if age is not None:
            raise Broken(
                f"what job {job} had sent for run {self.run.name} was removed: nothing more arrived for "
                f"{age:g} s, the age of staged rows",
                hint="write the rows again; a spool whose jobs are silent for longer: transfer serve "
                "--staged-age, a broker's: spool.staged_age",
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all its rows, visible or staged, including deleted ones."""
        return self.run.visible_bytes + self.run.staged_bytes

    def bytes_from(self, row: int) -> int:
        """Bytes of the visible rows from this one on that are still stored, by their average."""
        kept = self.rows - max(row, self.first)
        return self.run.visible_bytes * kept // self.rows if kept > 0 else 0

    @property
    def topic(self) -> str:
        return f"{_RUN_TOPIC}{self.number}"

    @property
    def lineage(self) -> str:
        """The topic of its readers' lineage."""
        return f"{_LINEAGE_TOPIC}{self.number}"


class PendingState(NamedTuple):
    """What is visible of a run when this record is on the disk, and which frames are unneeded then."""

    sequence: int
    entry: RunRecord
    rows: int
    state: str
    unneeded: Sequence[int]


def state_of(entry: RunRecord) -> tuple[bytes, bytes]:
    """Returns the key and the value of the run's state in the log."""
    run = entry.run
    value = {
        "version": RUN_VERSION,
        "name": run.name,
        "run_id": entry.run_id,
        "delivery": run.delivery,
        "kind": run.kind,
        "created": entry.created,
        "first": entry.first,
        "index": entry.index,
        "tidy": entry.tidy,
        "aborted": entry.aborted,
        "expired": entry.expired,
        "touched": entry.touched,
        "active": entry.active,
        "released": entry.released,
    }
    return run_key(entry), json.dumps(value).encode()


def entry_of(key: bytes, value: bytes) -> RunRecord:
    """Returns the run of a stored state, without its rows. Raises LogDamaged: a later release wrote it."""
    kept = json.loads(value)
    if kept.get("version", 1) > RUN_VERSION:
        raise LogDamaged(
            f"run {kept.get('name')!r} was kept by a later release",
            hint="serve this folder with that release",
        )
    run = Run(kept["name"], kept["delivery"], kept["kind"])
    number = int(key[len(RUN_KEY) :])
    # A run of version 1 has an id that follows from it, so that it is the same at each start.
    run_id = kept.get("run_id") or blake2b(f"{number}/{kept['created']}".encode(), digest_size=16).hexdigest()
    return RunRecord(
        run,
        number,
        kept["created"],
        run_id,
        first=kept["first"],
        index=kept["index"],
        tidy=kept["tidy"],
        aborted=kept["aborted"],
        expired=kept.get("expired", {}),
        touched=kept.get("touched", 0.0),
        active=kept.get("active", {}),
        released=tuple(kept["released"]) if kept.get("released") else None,
    )


def number_of(topic: str) -> int | None:
    """Returns the number of the run that owns a topic of the log; None: no run owns it."""
    for prefix in (_RUN_TOPIC, _LINEAGE_TOPIC):
        if topic.startswith(prefix):
            return int(topic[len(prefix) :])
    return None


def run_key(entry: RunRecord) -> bytes:
    """Returns the key of its state."""
    return RUN_KEY + str(entry.number).encode()


def run_group_keys(entry: RunRecord, state: Iterable[bytes]) -> list[bytes]:
    """Returns the keys of all its groups."""
    prefix = GROUP_KEY + f"{entry.number}/".encode()
    return [key for key in state if key.startswith(prefix)]


def group_key(entry: RunRecord, group: str) -> bytes:
    """Returns the key of a group's positions."""
    return GROUP_KEY + f"{entry.number}/{group}".encode()
