"""What a reader needs of a spool: a run's description, its rows by position, and acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from transfer.spool.format.rows import choose
from transfer.transports.errors import Broken, UsageError

if TYPE_CHECKING:
    from transfer.spool.format.protocol import Fetch
    from transfer.spool.format.rows import Arrays, Layout

OPEN, SEALED, FAILED = "open", "sealed", "failed"
#: the state of a run of which the spool's folder has lost something
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run, as it is when it is opened.

    state: "open" (more rows may arrive), "sealed" (complete), "failed" (no more rows). visible: rows that can
    be read. layouts: its columns, which an open run without rows does not have yet. acknowledged, delivered:
    (epoch, row) before which the group has acknowledged, and up to which rows had been sent to it before its
    present readers connected; None: never. run_id: 128 random bits as hexadecimal digits, made with the run;
    a run that is deleted and written again has another one.
    """

    name: str
    state: str
    visible: int
    layouts: tuple[Layout, ...]
    acknowledged: tuple[int, int] | None = None
    delivered: tuple[int, int] | None = None
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a fetch: `count` rows as writable arrays, and the state of the run at that moment.

    With fewer rows than requested, the run is over and has no more.
    """

    arrays: Arrays
    count: int
    visible: int
    state: str


@dataclass(frozen=True, slots=True)
class ShardLease:
    """The shards for which a position is acknowledged: `count` of a group from `shard` on, of `shards`."""

    run_id: str
    group: str
    shard: int
    shards: int
    count: int = 1


def check_opening(
    run: str, state: str, layouts: Sequence[Layout], columns: Sequence[str] | None, *, shuffled: bool
) -> None:
    """Checks that a run can be read in this way. layouts: empty if they are unknown yet.

    Raises OptionError (it has no such column), UsageError, Broken (it has no order to shuffle).
    """
    if layouts:
        choose(layouts, columns)
    if shuffled and state == OPEN:
        raise UsageError(
            f"run {run!r} is still being written and cannot be shuffled: the order is one of all its rows",
            hint="Wait until Spark's job is done, or read without `shuffle`.",
        )
    if shuffled and state == FAILED:
        raise Broken(
            f"run {run!r} failed and cannot be shuffled",
            hint="Read its rows without `shuffle`, or write it again under another name.",
        )


class RowSource(Protocol):
    """A reader of one run. Not thread-safe, except that another thread may call `close`."""

    def open(
        self,
        group: str,
        shard: int = 0,
        shards: int = 1,
        *,
        columns: Sequence[str] | None = None,
        shuffled: bool = False,
    ) -> RunInfo:
        """Takes the lease of this shard of the group, which lasts until `close` or the reader's end.

        Raises OptionError (no such run within the source's timeout), UsageError (another reader has the
        lease), Again (no spool answers), and as `check_opening`: then the group is not made.
        """

    def request(self, fetch: Fetch) -> None:
        """Requests rows. Answers arrive in the order of the requests; a lost one is requested again."""

    def collect(self, timeout: float | None) -> Rows:
        """Returns the answer to the oldest request. Raises Again after so many seconds (the request stays),
        Broken (the lease is lost, or the run is gone), Closed."""

    def acknowledge(self, epoch: int, row: int, steps: list[list[int]]) -> None:
        """Acknowledges all rows before this one for the group, as far as its shards were sent them: durable
        when it returns. steps: lineage records."""

    def acknowledge_for(self, lease: ShardLease, epoch: int, row: int, steps: list[list[int]]) -> None:
        """Acknowledges for readers in other processes; this one need not be open."""

    def close(self, used: tuple[int, int] | None = None) -> None:
        """Releases the lease. Idempotent; a `collect` in another thread raises Closed. used: (epoch, row)
        before which all rows of the shard were used; None: unknown."""
