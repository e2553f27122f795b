"""`RowStream`: the rows of a run as batches of numpy arrays, in an exact order that can be resumed."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, Self

from transfer.spool.client.lineage import Lineage, with_seed
from transfer.spool.client.open import (
    check_group,
    checked_numbers,
    checked_pair,
    close_in,
    open_source,
    sensible_batch,
    whole,
)
from transfer.spool.client.plan import StreamPlace, StreamPlan
from transfer.spool.client.prefetcher import Prefetcher, RunEnd
from transfer.spool.client.stream_state import STATE_VERSION, check_run, check_state
from transfer.spool.format.row_source import SEALED, RowSource, RunInfo
from transfer.spool.format.rows import OFFSETS, VALID, column_names
from transfer.transports.arguments import patience, whole as number_from
from transfer.transports.errors import OptionError, UsageError

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays

_log = logging.getLogger("transfer.spool.client")


class RowStream:
    """The rows of a run, batch by batch: each row once in an epoch, in an order that is always the same.

        with RowStream("run://spool:5570/digits", 256, epochs=3, shuffle=7) as stream:
            for batch in stream:            # all epochs; or, epoch by epoch:
                ...                         # for epoch in range(stream.epoch, 3):
                                            #     for batch in stream.one_epoch(): ...

    A batch is a dict of numpy arrays, views of received memory; `transfer.spool.format.rows` describes how
    strings and lists are stored. Step k of an epoch is the rows from k * world_size * batch_size on, and rank
    r has the r-th `batch_size` of them; so all ranks have equally many steps. The rest of an epoch, too few
    rows for a full step, is one more step that ranks share evenly. With `drop_last`, or with fewer rows than
    ranks, it is dropped and counted. While the run is open, a step is returned as soon as all its rows are
    visible.

    Args:
        url_or_source: "run://host:port/NAME", or a source.
        batch_size: rows of a rank in a step; None: about 4 MiB of rows, all columns counted, the same number
            on all ranks. A batch of more than 1 GiB is joined of several answers, in twice its memory.
        group: the group whose position the spool keeps. Groups read a run independently.
        epochs: None reads without end. One iteration goes through all that are left.
        shuffle: the seed of the order, which differs in each epoch; the run must be sealed. None: the order
            in which rows became visible.
        columns: the columns of a batch, which alone the spool sends; None: all.
        drop_last: drops the rest of an epoch that does not fill a step.
        rank, world_size: of this reader among those that divide each step.
        worker, workers: of a rank, for processes that share its steps in turn.
        lease: (shard, shards) of the group, by default one for each rank and worker.
        prefetch_bytes: the most that is fetched ahead; one request may be larger.
        timeout: seconds without rows after which `Again` is raised; iterating again continues. None waits
            without limit.

    **Resuming.** `state_dict()` is the position after the last returned batch: save it with the model, and
    load it into a stream with any number of ranks and any batch size. Without a state, reading begins at the
    position that the group acknowledged. Call `acknowledge()` after the checkpoint is saved: rows before it
    are not delivered again. Until then the group's batches are only leased: a reader without a state gets
    them again, and `redelivered_rows` counts them. One rank that acknowledges is enough.

    Raises:
        Broken: the run failed (after its last full step), or the lease was lost.
        Again, Closed, ProtocolError: see above.

    Not thread-safe, except that another thread may call `close`.
    """

    def __init__(
        self,
        url_or_source: str | RowSource,
        batch_size: int | None,
        *,
        group: str = "default",
        epochs: int | None = 1,
        shuffle: int | None = None,
        columns: Sequence[str] | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        worker: int = 0,
        workers: int = 1,
        lease: tuple[int, int] | None = None,
        prefetch_bytes: int = 32 << 20,
        timeout: float | None = 600.0,
    ) -> None:
        check_group(group)
        batch_size, epochs, shuffle, rank, world_size = checked_numbers(
            batch_size, epochs, shuffle, rank, world_size
        )
        worker, workers = whole("worker", worker), whole("workers", workers)
        if not 0 <= worker < workers:
            raise OptionError(f"worker is from 0 to workers - 1, not {worker} of {workers}")
        self._columns = column_names(columns)
        if self._columns == ():
            raise OptionError("columns names none", hint="Leave it out for all of the run's columns.")
        self._timeout = timeout = patience(timeout)
        self._limit = number_from(prefetch_bytes, "prefetch_bytes", 1)
        lease = checked_pair("lease", lease)
        self._worker = worker
        self._source = open_source(url_or_source, timeout)
        try:
            shard, shards = lease or (rank * workers + worker, world_size * workers)
            #: the run as it was when it was opened
            self.info: RunInfo = self._source.open(
                group, shard, shards, columns=self._columns, shuffled=shuffle is not None
            )
            batch = batch_size if batch_size is not None else sensible_batch(self._source, self.info, timeout)
        except BaseException:
            self._source.close()
            raise
        total = self.info.visible if self.info.state == SEALED else None
        wanted = None if self._columns is None else list(self._columns)
        self._plan = StreamPlan(batch, rank, world_size, workers, drop_last, epochs, shuffle, wanted, total)
        self._place = self._marked = StreamPlace(0, 0, 0, 0)
        self._prefetcher: Prefetcher | None = None
        self._finalizer: weakref.finalize[..., RowStream] = weakref.finalize(
            self, close_in, os.getpid(), self._source
        )
        #: whether an iteration has seen the end
        self.finished = False
        self.batches = 0
        self.rows = 0
        self.bytes = 0
        #: rows at the ends of epochs that no rank got
        self.dropped_rows: int
        #: seconds for which the training loop waited for rows
        self.waited_seconds = 0.0
        self.lineage = Lineage()
        self._begin(*(self.info.acknowledged or (0, 0)))
        self._warn_if_no_rows(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread and releases the lease. Idempotent. Iterations in other threads raise Closed."""
        self._finalizer()

    # --- reading ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Arrays]:
        """Yields the batches of all remaining epochs. If it is left early, the next iteration continues.

        Raises UsageError if an iteration has seen the end before.
        """
        self._check_not_finished()
        while not self._at_end():
            batch = self._next()
            if batch is not None:
                yield batch

    def one_epoch(self, epoch: int | None = None) -> Iterator[Arrays]:
        """Yields the remaining batches of the epoch; when it is complete, those of the next one.

        epoch: yields only the rest of this one. Raises UsageError after the last epoch.
        """
        self._check_not_finished()
        epoch = self._place.epoch if epoch is None else whole("epoch", epoch)
        while not self._at_end() and self._place.epoch == epoch:
            batch = self._next()
            if batch is not None:
                yield batch

    @property
    def epoch(self) -> int:
        """The epoch of the last batch; before the first one, and after an iteration, of the next."""
        return self._epoch

    @property
    def batch_size(self) -> int:
        """Rows of a rank in a step."""
        return self._plan.batch

    def seek(self, epoch: int) -> None:
        """Moves to the first row of an epoch. Raises UsageError after the first batch."""
        self._refuse_late()
        self._begin(number_from(epoch, "epoch"), 0)

    def stands_in(self, epoch: int) -> bool:
        """Whether the remaining steps, of all workers, begin in this epoch."""
        return self._marked.epoch <= epoch <= self._place.epoch

    def _check_not_finished(self) -> None:
        if self.finished:
            raise UsageError(
                f"all epochs of this stream were read ({self._plan.epochs})",
                hint="`epochs=` sets their number; after a resume `range(stream.epoch, epochs)`.",
            )

    def _at_end(self) -> bool:
        self._epoch = self._place.epoch
        if self._plan.ended(self._place):
            self.finished = True
        return self.finished

    def _next(self) -> Arrays | None:
        """Returns the next batch, or None when only the run's state has changed."""
        prefetcher = self._prefetcher or self._start()
        try:
            return self._take(prefetcher)
        finally:
            prefetcher.used = self._place.epoch, self._plan.row(self._place)

    def _take(self, prefetcher: Prefetcher) -> Arrays | None:
        began = time.monotonic()
        try:
            item = prefetcher.take(self._timeout)
        finally:
            self.waited_seconds += time.monotonic() - began
        if isinstance(item, RunEnd):
            self._plan.total = item.total
            self._place = self._settle(self._place)
            self._marked = self._plan.settled(self._marked)
            return None
        batch = self._pick(item)
        self._record_lineage(self._place.number)
        self._epoch = self._place.epoch
        begin, end = self._plan.rows_of(self._place)
        first, last = ((self._plan.rank + n) * (end - begin) // self._plan.world for n in (0, 1))
        place = replace(
            self._place,
            index=self._place.index + self._plan.workers,
            number=self._place.number + self._plan.workers,
        )
        self._place = self._settle(place)
        self.batches += 1
        self.rows += last - first
        self.bytes += sum(array.nbytes for array in batch.values())
        return batch

    def _settle(self, place: StreamPlace) -> StreamPlace:
        """Settles a place by the plan, and counts the rows that are dropped on the way."""
        settled = self._plan.settled(place)
        base = place.base
        for _ in range(place.epoch, settled.epoch):
            self.dropped_rows += self._plan.dropped(base)
            base = 0
        if self._plan.epochs is None and self._plan.ended(settled):
            self.dropped_rows += self._plan.dropped(base)  # no epoch has a step: count those of the first one
        return settled

    def _record_lineage(self, number: int) -> None:
        """Records the steps up to this one in the lineage, including those of other workers."""
        while self._marked.number <= number:
            begin, end = self._plan.rows_of(self._marked)
            self.lineage.add(self._marked.number, self._marked.epoch, begin, end, self._plan.world)
            self._marked = self._plan.after(self._marked, 1)

    def _pick(self, arrays: Arrays) -> Arrays:
        """Returns the requested columns, with the arrays that belong to them."""
        if self._columns is None:
            return arrays
        picked: Arrays = {}
        for column in self._columns:
            if column not in arrays:
                raise OptionError(
                    f"run {self.info.name!r} has no column {column!r}",
                    hint=f"It has: {', '.join(sorted(arrays))}.",
                )
            for name in (column, column + OFFSETS, column + VALID):
                if name in arrays:
                    picked[name] = arrays[name]
        return picked

    # --- beginning -------------------------------------------------------------------------------

    def _begin(self, epoch: int, row: int, number: int | None = None) -> None:
        """Counts steps from this row on. number: of the first one; None: as if all before had this size."""
        if number is None:
            number = -(-row // self._plan.step_rows)
            number += epoch * (self._plan.steps(0) if self._plan.total is not None else 0)
        start = StreamPlace(epoch, row, 0, number)
        self._go_to(replace(start, index=self._worker, number=number + self._worker), start)

    def _warn_if_no_rows(self, group: str) -> None:
        """Logs why a training gets no rows."""
        total = self._plan.total
        if total and not self._plan.steps(0):
            _log.warning(
                "run %r has %d rows, too few for a step of %d: no rank gets any",
                self.info.name,
                total,
                self._plan.step_rows if self._plan.drop_last else self._plan.world,
            )
        elif self.info.acknowledged is not None and self._plan.ended(self._place):
            _log.warning(
                "group %r has acknowledged all epochs of run %r: a new group starts from the beginning",
                group,
                self.info.name,
            )

    def _go_to(self, place: StreamPlace, marked: StreamPlace) -> None:
        """place: of this worker's next step. marked: of the first step that the lineage does not have."""
        self.dropped_rows = 0
        self._place = self._settle(place)
        self._marked = self._plan.settled(marked)
        self._epoch = self._place.epoch
        self._reported = marked.number  # the spool has the lineage of the steps before it
        epoch, row = self.info.delivered or (0, 0)
        behind = (epoch - self._marked.epoch) * self.info.visible + row - self._plan.row(self._marked)
        #: rows, all ranks together, that the spool had sent to the group before, those fetched ahead
        #: included, and sends again
        self.redelivered_rows = max(0, behind)

    def _start(self) -> Prefetcher:
        self._prefetcher = Prefetcher(
            self._source,
            replace(self._plan),
            self._place,
            self.info.layouts,
            state=self.info.state,
            visible=self.info.visible,
            limit=self._limit,
            name=self.info.name,
        )
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, self._prefetcher.close)
        return self._prefetcher

    def _refuse_late(self) -> None:
        if self._prefetcher is not None:
            raise UsageError(
                "this stream has begun already", hint="Load a state before the first batch is taken."
            )

    # --- position --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last returned batch, as plain numbers and strings.

        For one of several workers it is where this worker's next step begins; `merge_states` combines them.
        """
        plan, place = self._plan, self._place
        state = {
            "version": STATE_VERSION,
            "run": self.info.name,
            "run_id": self.info.run_id,
            "seed": plan.seed,
            "epoch": place.epoch,
            "row": plan.row(place),
            "step": place.number,
            "batch_size": plan.batch,
            "world_size": plan.world,
            "worker": self._worker,
            "workers": plan.workers,
            "lineage": self.lineage.between(self._reported, place.number),
        }
        if plan.workers > 1:
            state |= {"next": list(astuple(place)), "marked": list(astuple(self._marked))}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at that position. Call it before the first batch.

        Raises OptionError for a state of another run (also one with the same name) or seed, one that this
        release cannot read, or one of another worker; UsageError after the first batch.
        """
        self._refuse_late()
        state = self._checked(state)
        if state["workers"] > 1:
            self._load_worker(state)
        elif self.info.state == SEALED and state["row"] > self.info.visible:
            raise OptionError(f"the state is at row {state['row']:,} of a run of {self.info.visible:,} rows")
        else:
            self._begin(state["epoch"], state["row"], state["step"])
        # Steps that were never acknowledged: the next acknowledgement reports them.
        self.lineage = Lineage(Lineage(state["lineage"]).since(*(self.info.acknowledged or (0, 0))))
        if self.lineage.records:
            self._reported = min(self._reported, self.lineage.records[0][0])

    def _load_worker(self, state: Mapping[str, Any]) -> None:
        mine = (self._worker, self._plan.workers, self._plan.batch, self._plan.world)
        its = tuple(state[name] for name in ("worker", "workers", "batch_size", "world_size"))
        if mine != its:
            raise OptionError(
                "the state is one of several workers' (worker, workers, batch_size, world_size): "
                f"{its}, and this is {mine}",
                hint="`merge_states` makes of all workers' states one that fits any number.",
            )
        self._go_to(StreamPlace(*state["next"]), StreamPlace(*state["marked"]))

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        state = check_state(state)
        for name, mine, its in (
            ("run", self.info.name, state["run"]),
            ("seed of the shuffle", self._plan.seed, state["seed"]),
        ):
            if mine != its:
                raise OptionError(
                    f"the state is one with another {name}: {its!r}, this stream has {mine!r}",
                    hint="Rows would be missed or read twice. Start without the state to read all.",
                )
        if not state["run_id"]:
            _log.warning("a state of an earlier release has no id of its run %r", self.info.name)
        check_run(self.info.name, self.info.run_id, state["run_id"])
        return state

    def acknowledge(self, state: Mapping[str, Any] | None = None) -> None:
        """Acknowledges all steps before a state (default: now) to the spool; durable when it returns.

        Call it after the checkpoint with that state is saved: a reader that begins without a state does not
        get these rows again. Raises UsageError in one of several workers, which knows only its own steps.
        """
        state = self._checked(self.state_dict() if state is None else state)
        if state["workers"] > 1:
            raise UsageError(
                "one of several workers does not know what the others have done",
                hint="Acknowledge where the training loop is: `dataset.acknowledge(loader.state_dict())`.",
            )
        epoch, row, step = state["epoch"], state["row"], state["step"]
        steps = with_seed(self.lineage.between(self._reported, step), self._plan.seed)
        self._source.acknowledge(epoch, row, steps)
        self._reported = max(self._reported, step)
