"""A run as the store has it: its books, what readers may see of them, its groups; and its keys in the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.spool.ledger import Run
from transfer.spool.source import OPEN

_RUN_TOPIC, _LINEAGE_TOPIC = "run/", "lineage/"
RUN_KEY, GROUP_KEY = b"run/", b"group/"


@dataclass(slots=True)
class Group:
    """Readers of a run that share its rows. acknowledged, delivered: (epoch, row); see `RunInfo`.

    before: what was delivered when the first of the readers came that read now, one after the other or
    together; settled: whether it tells of them. It is not when a reader has gone since.
    """

    acknowledged: tuple[int, int] | None = None
    delivered: tuple[int, int] | None = None
    before: tuple[int, int] | None = None
    settled: bool = False


class Seen(NamedTuple):
    """What readers may see of a run: both are of one moment."""

    rows: int = 0
    state: str = OPEN


@dataclass(slots=True)
class Entry:
    """A run with what readers may see of it: `seen`, as it is on the disk. It changes in another thread.

    number: unlike all others, those of runs that are gone and had this name too. index: the offset of its
    index, or -1. tidy: what a sealed run does not need was given back. aborted: jobs whose abort a full disk
    did not take.
    """

    run: Run
    number: int
    created: float
    seen: Seen = field(default_factory=Seen)
    nbytes: int = 0
    first: int = 0  # rows before it were acknowledged by all groups and are not kept
    index: int = -1
    tidy: bool = False
    aborted: list[str] = field(default_factory=list)
    sequence: int = 0  # of the record that committed a job last, or deleted the run
    groups: dict[str, Group] = field(default_factory=dict)
    touched: float = 0.0

    @property
    def rows(self) -> int:
        return self.seen.rows

    @property
    def state(self) -> str:
        return self.seen.state

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
    entry: Entry
    rows: int
    state: str
    unneeded: Sequence[int]


def state_of(entry: Entry) -> tuple[bytes, bytes]:
    """The key and the value of what the log keeps of it as state."""
    run = entry.run
    value = {
        "name": run.name,
        "delivery": run.delivery,
        "kind": run.kind,
        "created": entry.created,
        "first": entry.first,
        "index": entry.index,
        "tidy": entry.tidy,
        "aborted": entry.aborted,
    }
    return run_key(entry), json.dumps(value).encode()


def number_of(topic: str) -> int | None:
    """The number of the run that a topic of the log belongs to; None: it is somebody else's."""
    for prefix in (_RUN_TOPIC, _LINEAGE_TOPIC):
        if topic.startswith(prefix):
            return int(topic[len(prefix) :])
    return None


def run_key(entry: Entry) -> bytes:
    """The key of its state."""
    return RUN_KEY + str(entry.number).encode()


def group_key(entry: Entry, group: str) -> bytes:
    """The key of a group's positions."""
    return GROUP_KEY + f"{entry.number}/{group}".encode()
