"""`spark.read` and `spark.readStream.format("transfer")`: reads a run's rows into Spark, without a lease.

Positions are rows in visible order. Spark plans in one process and reads in others, so a partition has all
that
its task needs: the range, the columns, and the run's id, in case another run takes its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from transfer.spark.batches import batches, check_fit, schema_of
from transfer.spark.options import ReadOptions
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.address import RunAddress
from transfer.spool.format.protocol import Acknowledge, AnswerTooLarge, InspectRun, Read
from transfer.spool.format.row_source import OPEN, SEALED
from transfer.spool.format.rows import Layout, choose, from_json, row_bytes
from transfer.transports.errors import Broken, NotSupported, OptionError, UsageError, comes_with

with comes_with("spark", __name__):
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_LIMITS = True
except ImportError:  # PySpark 4.1: all available rows, in one batch

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The base class that 4.2 requires."""

    HAS_LIMITS = False

#: bytes of rows that one task reads by default
PARTITION_BYTES = 64 << 20
#: about how many bytes of rows a task requests at a time; rows at first; the growth of the next request
FETCH_BYTES = 8 << 20
_FIRST_ROWS = 64
_GROWTH = 8


@dataclass
class RowRange(InputPartition):
    """Rows [begin, end) of the run with this id. A plain dataclass: Spark pickles it."""

    begin: int
    end: int
    run_id: str
    layouts: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run as it is planned with. first: the first stored row. row_bytes: about the size of a row."""

    state: str
    kind: str
    first: int
    visible: int
    run_id: str
    layouts: tuple[Layout, ...]
    row_bytes: int
    groups: frozenset[str]


class SparkRunReader(DataSourceReader):
    """Reads all rows of a sealed run, or with the option `open` those visible at planning."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[RowRange]:
        """Plans the tasks. Raises UsageError (not complete), OptionError (no such run or column), Again."""
        options = self._options
        link = _link(options)
        try:
            seen = inspect(link, options.run)
        finally:
            link.close()
        if seen.state != SEALED and not options.open:
            why = "a stream, which is never complete" if seen.kind == "stream" else seen.state
            raise UsageError(
                f"run {options.run} is {why}, and only a sealed run can be read completely",
                hint="Wait until its job is committed, or read the visible rows with the option "
                "open=true; spark.readStream reads a run that grows.",
            )
        if seen.layouts:
            check_fit(self._schema, seen.layouts)
        return ranges(seen, seen.first, seen.visible, options.partitions) or [_nothing(seen)]

    def read(self, partition: RowRange) -> Iterator[RecordBatch]:
        """Reads a partition's rows, in a task."""
        return read(self._options, self._schema, partition)


class RunStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of a run as they become visible, for a group. Offsets are `{"row": n, "run_id": id}`.

    Spark's driver makes it, in a separate process; its tasks use only `read`. Not thread-safe.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if not options.group:
            raise OptionError(
                "a stream needs the option 'group'",
                hint="Give each query a separate group: the spool keeps rows until it has processed them.",
            )
        if options.max_rows_per_trigger and not HAS_LIMITS:
            raise NotSupported("this PySpark has no read limits", hint="use PySpark 4.2 or 4.3")
        self._options = options
        self._schema = schema
        self._link: ReconnectingClient | None = None
        self._seen: PlannedRun | None = None
        self._run_id = ""  # of the run that this query reads; "": not known yet
        self._member = False  # whether the group is known to the spool
        self._target: int | None = None

    # -- called by Spark on the driver's side ------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the start of a new query; its group keeps rows from there on. Raises UsageError: in use."""
        self._join()
        while True:
            answer = self._visible_end()
            row: int = answer["first"] if self._options.starting_offset == "earliest" else answer["visible"]
            self._acknowledge(row)
            if self._visible_end()["first"] <= row:  # else an existing group released rows in between
                return self._offset(row)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch. PySpark 4.1 gives neither start nor limit."""
        begin = self._row(start) if start else 0
        self._resume(begin)
        end = self._visible(begin)
        if self._target is not None:
            end = min(end, self._target)
        if HAS_LIMITS and isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        elif limit is not None and not isinstance(limit, ReadAllAvailable):
            raise NotSupported(f"a run is not read by {type(limit).__name__}", hint="use maxRowsPerTrigger")
        return self._offset(max(begin, end))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        rows = self._options.max_rows_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the newest offset, for the query's progress report."""
        return self._offset(self._visible(0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Excludes rows that become visible from now on."""
        self._target = self._visible(0)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RowRange]:
        """Plans a batch; an empty range has no partition. Raises Broken: these are no rows of this run."""
        begin, stop = self._row(start), self._row(end)
        if begin == stop:
            return []
        self._resume(begin)
        if self._visible(begin) < stop:
            raise self._other(stop)
        return ranges(self._columns(), begin, stop, self._options.partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledges all rows before `end`, which Spark has stored and does not request again."""
        self._acknowledge(self._row(end))

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- called by its tasks -----------------------------------------------------------------------------

    def read(self, partition: RowRange) -> Iterator[RecordBatch]:
        """Reads a partition's rows, in a task."""
        return read(self._options, self._schema, partition)

    # -- internal ----------------------------------------------------------------------------------------

    def _ask(self, request: Any) -> dict[str, Any]:
        if self._link is None:
            self._link = _link(self._options)
        return self._link.ask(request)[1]

    def _visible_end(self) -> dict[str, Any]:
        """Returns the visible end of the run. It is called often, so nothing is counted for it. Raises
        Broken: the name belongs to another run now."""
        answer = self._ask(Read(run=self._options.run, run_id=self._run_id, begin=0, end=0))
        self._run_id = answer["run_id"]
        return answer

    def _offset(self, row: int) -> dict[str, Any]:
        return {"row": row, "run_id": self._run_id}

    def _row(self, offset: dict[str, Any]) -> int:
        """Returns the row of an offset of this query. Raises Broken: it belongs to another run."""
        run_id = offset.get("run_id", "")  # a checkpoint of an earlier release has none
        if run_id and self._run_id and run_id != self._run_id:
            raise _replaced(self._options.run, run_id, self._run_id)
        self._run_id = self._run_id or run_id
        row: int = offset["row"]
        return row

    def _visible(self, begin: int) -> int:
        visible: int = self._visible_end()["visible"]
        if visible < begin:
            raise self._other(begin)
        return visible

    def _columns(self) -> PlannedRun:
        """Returns the run with its columns, which never change once it has rows."""
        if self._seen is None:
            assert self._link is not None
            seen = inspect(self._link, self._options.run)
            if seen.run_id != self._run_id:
                raise _replaced(self._options.run, self._run_id, seen.run_id)
            check_fit(self._schema, seen.layouts)
            self._seen = seen
        return self._seen

    def _resume(self, row: int) -> None:
        """Continues a query at its checkpoint, after a check that it had processed rows of this run."""
        if self._member:
            return
        run, group = self._options.run, self._options.group
        self._visible_end()
        assert self._link is not None
        if group not in inspect(self._link, run).groups:
            if row:
                raise Broken(
                    f"the query is at row {row:,} of run {run}, which its group {group!r} never read",
                    hint="Was the run deleted and written again, or the option 'group' changed? A new run, "
                    "or a new group, needs a new checkpoint.",
                )
            self._join()
        self._member = True

    def _join(self) -> None:
        """Creates the group: opens and leaves it at once, since ranges are read without a lease."""
        options = self._options
        url = str(RunAddress(options.endpoint, options.run))
        client = RunClient(url, timeout=options.connect_timeout)
        try:
            client.open(options.group, columns=[field.name for field in self._schema.fields])
        finally:
            client.close()
        self._member = True

    def _acknowledge(self, row: int) -> None:
        if not self._run_id:
            self._visible_end()
        self._ask(
            Acknowledge(
                run=self._options.run,
                run_id=self._run_id,
                group=self._options.group,
                shard=0,
                shards=1,
                epoch=0,
                row=row,
                steps=[],
            )
        )

    def _other(self, row: int) -> Broken:
        return Broken(
            f"the query is at row {row:,} of run {self._options.run}, which has fewer rows",
            hint="Was it deleted and written again? Begin with a new checkpoint.",
        )


def read_schema(options: ReadOptions) -> StructType:
    """Returns a run's schema. Raises OptionError (no such run), UsageError (no rows), NotATensor, Again."""
    link = _link(options)
    try:
        seen = inspect(link, options.run)
    finally:
        link.close()
    if not seen.layouts:
        about, wait = "has no rows yet, and so no columns", "Wait for its first rows, or name"
        if seen.state != OPEN:
            about, wait = f"is {seen.state} without rows, and so without columns", "For an empty frame name"
        raise UsageError(
            f"run {options.run} {about}",
            hint=f"{wait} the columns yourself: .schema('id long, x array<float>').",
        )
    return schema_of(seen.layouts)


def inspect(link: ReconnectingClient, run: str) -> PlannedRun:
    """Requests all that planning needs. Raises OptionError: there is no such run."""
    _, answer = link.ask(InspectRun(run=run))
    layouts = from_json(answer["columns"])
    return PlannedRun(
        answer["state"],
        answer["kind"],
        answer["first"],
        answer["rows"],
        answer["run_id"],
        layouts,
        # The received count includes rows of lost attempts, and does not survive a spool's restart.
        max(1, row_bytes(layouts), answer["bytes"] // max(1, answer["rows"] + answer["staged_rows"])),
        frozenset(answer["groups"]),
    )


def ranges(seen: PlannedRun, begin: int, end: int, partitions: int = 0) -> list[RowRange]:
    """Splits rows [begin, end) evenly into `partitions` non-empty parts; 0: parts of about 64 MiB."""
    rows = end - begin
    count = min(rows, partitions or -(-rows * seen.row_bytes // PARTITION_BYTES))
    cuts = [begin + rows * number // count for number in range(count)] + [end] if count else []
    return [RowRange(start, stop, seen.run_id, seen.layouts) for start, stop in pairwise(cuts)]


def read(options: ReadOptions, schema: StructType, part: RowRange) -> Iterator[RecordBatch]:
    """Reads a partition's rows. Raises Broken (deleted, or of another run), Again, OptionError."""
    link = _link(options)
    step = _FIRST_ROWS
    begin = part.begin
    columns = [field.name for field in schema.fields]
    layouts = choose(part.layouts, columns) if begin < part.end else ()
    try:
        while begin < part.end:
            end = min(begin + step, part.end)
            request = Read(run=options.run, run_id=part.run_id, begin=begin, end=end, columns=columns)
            try:
                arrays, answer = link.ask(request)
            except AnswerTooLarge as error:
                if step == 1:
                    raise
                step = max(1, min(error.most, step - 1))  # rows are longer here than before
                continue
            rows = answer["count"]
            if not rows:
                raise Broken(f"run {options.run} has no row {begin:,} any more", hint="Read it again.")
            yield from batches(arrays, layouts, schema, rows)
            begin += rows
            # The size of rows is known after reading them.
            nbytes = sum(array.nbytes for array in arrays.values())
            step = max(1, min(step * _GROWTH, FETCH_BYTES * rows // max(1, nbytes)))
    finally:
        link.close()


def _nothing(seen: PlannedRun) -> RowRange:
    """Returns an empty partition: Spark requires at least one."""
    return RowRange(0, 0, seen.run_id, seen.layouts)


def _link(options: ReadOptions) -> ReconnectingClient:
    return ReconnectingClient(options.endpoint, timeout=options.connect_timeout)


def _replaced(run: str, one: str, other: str) -> Broken:
    return Broken(
        f"the query is of two runs named {run}, written one after the other: {one} and {other}",
        hint="Begin with a new checkpoint, at its first row.",
    )
