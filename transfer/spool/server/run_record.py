"""A run as the store has it: its books, what readers may see of them, its groups; and its keys in the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from transfer.spool.format.row_source import DAMAGED, OPEN
from transfer.spool.server.group import Group
from transfer.spool.server.ledger import REMEMBERED_JOBS, Run
from transfer.transports.errors import Broken, LogDamaged

_RUN_TOPIC, _LINEAGE_TOPIC = "run/", "lineage/"
#: of a run's state in the log. 1 had neither a number nor the run's id
RUN_VERSION = 2
RUN_KEY, GROUP_KEY = b"run/", b"group/"


class VisibleState(NamedTuple):
    """What readers may see of a run: both are of one moment."""

    rows: int = 0
    state: str = OPEN


@dataclass(slots=True)
class RunRecord:
    """A run with what readers may see of it: `seen`, as it is on the disk. It changes in another thread.

    touched: when it was last written or read; active: the same of its jobs that write; both as `noted` in the
    log, now and then. released: a time, and how many rows a stream without groups had then; they go later.
    number: unlike all others, those of runs that are gone and had this name too; run_id: so too, and unlike
    those of other spools. index: the offset of its
    index, or -1. tidy: what a sealed run does not need was given back. aborted: jobs whose abort a full disk
    did not take. expired: jobs whose staged rows went, and after how many seconds of silence.
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
    sequence: int = 0  # of the record that committed a job last, or deleted the run
    groups: dict[str, Group] = field(default_factory=dict)
    touched: float = 0.0
    damage: str = ""  # what of it is damaged: no row of it is read or written
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
        """Raises LogDamaged, if some of it is damaged."""
        if self.damage:
            raise LogDamaged(
                f"run {self.run.name} is damaged: {self.damage}",
                hint="restore the spool's folder, or write the run again: transfer runs delete makes its "
                "name free; transfer runs salvage copies the other runs",
            )

    def expire(self, job: str, age: float) -> None:
        """Its staged rows go. Of the last such jobs that is known."""
        self.expired[job] = age
        if len(self.expired) > REMEMBERED_JOBS:
            del self.expired[next(iter(self.expired))]

    def check_job(self, job: str) -> None:
        """Raises Broken, if the job's rows went by their age."""
        age = self.expired.get(job)
        if age is not None:
            raise Broken(
                f"what job {job} had sent for run {self.run.name} was removed: nothing more came of it for "
                f"{age:g} s, the age of staged rows",
                hint="write the rows again; a spool whose jobs are silent for longer: transfer serve "
                "--staged-age, a broker's: spool.staged_age",
            )

    @property
    def nbytes(self) -> int:
        """Of all its rows, visible or staged, also those that are not kept any more."""
        return self.run.visible_bytes + self.run.staged_bytes

    def bytes_from(self, row: int) -> int:
        """Of the visible rows from this one on, as far as they are kept: what they have on average."""
        kept = self.rows - max(row, self.first)
        return self.run.visible_bytes * kept // self.rows if kept > 0 else 0

    @property
    def topic(self) -> str:
        return f"{_RUN_TOPIC}{self.number}"

    @property
    def lineage(self) -> str:
        """The topic of what its readers told."""
        return f"{_LINEAGE_TOPIC}{self.number}"


class Booked(NamedTuple):
    """What readers may see of a run when the log has this record on the disk, and what nobody needs then."""

    sequence: int
    entry: RunRecord
    rows: int
    state: str
    unneeded: Sequence[int]


def state_of(entry: RunRecord) -> tuple[bytes, bytes]:
    """The key and the value of what the log keeps of it as state."""
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
    """The run that `state_of` told of, without its rows. Raises LogDamaged: a later release wrote it."""
    told = json.loads(value)
    if told.get("version", 1) > RUN_VERSION:
        raise LogDamaged(
            f"run {told.get('name')!r} was kept by a later release",
            hint="serve this folder with that release",
        )
    run = Run(told["name"], told["delivery"], told["kind"])
    number = int(key[len(RUN_KEY) :])
    # A run of version 1 has one that follows from it: the same at each start.
    run_id = told.get("run_id") or blake2b(f"{number}/{told['created']}".encode(), digest_size=16).hexdigest()
    return RunRecord(
        run,
        number,
        told["created"],
        run_id,
        first=told["first"],
        index=told["index"],
        tidy=told["tidy"],
        aborted=told["aborted"],
        expired=told.get("expired", {}),
        touched=told.get("touched", 0.0),
        active=told.get("active", {}),
        released=tuple(told["released"]) if told.get("released") else None,
    )


def number_of(topic: str) -> int | None:
    """The number of the run that a topic of the log belongs to; None: it is somebody else's."""
    for prefix in (_RUN_TOPIC, _LINEAGE_TOPIC):
        if topic.startswith(prefix):
            return int(topic[len(prefix) :])
    return None


def run_key(entry: RunRecord) -> bytes:
    """The key of its state."""
    return RUN_KEY + str(entry.number).encode()


def run_group_keys(entry: RunRecord, state: Iterable[bytes]) -> list[bytes]:
    """The keys of all its groups."""
    prefix = GROUP_KEY + f"{entry.number}/".encode()
    return [key for key in state if key.startswith(prefix)]


def group_key(entry: RunRecord, group: str) -> bytes:
    """The key of a group's positions."""
    return GROUP_KEY + f"{entry.number}/{group}".encode()
