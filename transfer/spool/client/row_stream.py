"""`RowStream`: the rows of a run as batches of numpy arrays, in an exact order that can be gone on with."""

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
from transfer.spool.client.plan import Place, Plan
from transfer.spool.client.prefetcher import Over, Prefetcher
from transfer.spool.client.stream_state import STATE_VERSION, check_run, check_state
from transfer.spool.format.row_source import SEALED, RowSource, RunInfo
from transfer.spool.format.rows import OFFSETS, VALID, column_names
from transfer.transports.arguments import patience, whole as number_from
from transfer.transports.errors import OptionError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from transfer.spool.format.rows import Arrays

_log = logging.getLogger("transfer.spool.client")


class RowStream:
    """The rows of a run, batch by batch: each row once in an epoch, in an order that is always the same.

        with RowStream("run://spool:5570/digits", 256, epochs=3, shuffle=7) as stream:
            for batch in stream:            # all epochs; or, epoch by epoch:
                ...                         # for epoch in range(stream.epoch, 3):
                                            #     for batch in stream.one_epoch(): ...

    A batch is a dict of numpy arrays, views of what was received; `transfer.spool.format.rows` tells how
    strings and lists lie in it. Step k of an epoch is the rows from k * world_size * batch_size on, and
    rank r has the r-th `batch_size` of them; so all ranks have equally many steps. The rest of an epoch,
    too few rows for a whole step, is one more step that ranks share evenly; with `drop_last`, or with fewer
    rows than ranks, it is left out and counted. While the run is open a step is handed out as soon as all
    its rows are there.

    `url_or_source`: "run://host:port/NAME", or a source. `batch_size`: rows of a rank in a step; None: about
    4 MiB of rows, the same number at all ranks. `group`: whose position the spool keeps. `epochs`: None reads
    for ever. `shuffle`: the seed of the order, another one in each epoch; the run must be sealed. `columns`:
    those that batches have. `worker`, `workers`: of a rank, for processes that share its steps in turn.
    `lease`: (shard, shards) of the group, by default one for each rank and worker. `prefetch_bytes`: fetched
    ahead at most; one request may be larger. `timeout`: seconds without rows before `Again` is raised, after
    which one may iterate again; None waits for ever.

    **Where it goes on.** `state_dict()` is the position behind the last batch that was handed out: save it
    with the model, and load it into a stream with any number of ranks and any batch size. Without a state
    reading begins at the position that the group acknowledged. `acknowledge()` is for after the checkpoint
    was saved: all before it is done with for good. Until then the group's batches are only leased: who begins
    without a state is given them again, and `redelivered_rows` tells how many. One rank that acknowledges is
    enough.

    Errors: Broken when the run failed, after its last whole step, or when the lease was lost; Again; Closed;
    ProtocolError. Not thread-safe, except that `close` may be called from another thread.
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
        self._plan = Plan(batch, rank, world_size, workers, drop_last, epochs, shuffle, wanted, total)
        self._place = self._marked = Place(0, 0, 0, 0)
        self._prefetcher: Prefetcher | None = None
        self._finalizer: weakref.finalize[..., RowStream] = weakref.finalize(
            self, close_in, os.getpid(), self._source
        )
        #: whether a loop has seen the end
        self.finished = False
        self.batches = 0
        self.rows = 0
        self.bytes = 0
        #: rows at ends of epochs that no rank got
        self.dropped_rows: int
        #: seconds in which the training loop waited for rows
        self.waited_seconds = 0.0
        self.lineage = Lineage()
        self._begin(*(self.info.acknowledged or (0, 0)))
        self._warn_of_nothing(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread and gives the lease back. Idempotent; an iteration elsewhere raises Closed."""
        self._finalizer()

    # --- reading ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Arrays]:
        """The batches of all epochs that are left. Left early, the next iteration goes on.

        Raises UsageError when an iteration has seen the end before.
        """
        self._refuse_anew()
        while not self._at_end():
            batch = self._next()
            if batch is not None:
                yield batch

    def one_epoch(self, epoch: int | None = None) -> Iterator[Arrays]:
        """The batches that are left of the epoch, and when it was read whole those of the next one.

        epoch: only what is left of this one. Raises UsageError after the last epoch.
        """
        self._refuse_anew()
        epoch = self._place.epoch if epoch is None else whole("epoch", epoch)
        while not self._at_end() and self._place.epoch == epoch:
            batch = self._next()
            if batch is not None:
                yield batch

    @property
    def epoch(self) -> int:
        """The epoch of the last batch; before the first one, and when an iteration has ended, of the next."""
        return self._epoch

    @property
    def batch_size(self) -> int:
        """Rows of a rank in a step."""
        return self._plan.batch

    def seek(self, epoch: int) -> None:
        """Goes to the first row of an epoch. Raises UsageError when batches were taken already."""
        self._refuse_late()
        self._begin(number_from(epoch, "epoch"), 0)

    def stands_in(self, epoch: int) -> bool:
        """Whether the steps to come, all workers' together, begin in this epoch."""
        return self._marked.epoch <= epoch <= self._place.epoch

    def _refuse_anew(self) -> None:
        if self.finished:
            raise UsageError(
                f"all epochs of this stream were read ({self._plan.epochs})",
                hint="`epochs=` says how many there are; after a resume `range(stream.epoch, epochs)`.",
            )

    def _at_end(self) -> bool:
        self._epoch = self._place.epoch
        if self._plan.ended(self._place):
            self.finished = True
        return self.finished

    def _next(self) -> Arrays | None:
        """The next batch; None when something else was learned."""
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
        if isinstance(item, Over):
            self._plan.total = item.total
            self._place = self._settle(self._place)
            self._marked = self._plan.settled(self._marked)
            return None
        batch = self._pick(item)
        self._mark(self._place.number)
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

    def _settle(self, place: Place) -> Place:
        """As the plan has it, with the rows counted that are left out on the way."""
        settled = self._plan.settled(place)
        base = place.base
        for _ in range(place.epoch, settled.epoch):
            self.dropped_rows += self._plan.dropped(base)
            base = 0
        if self._plan.epochs is None and self._plan.ended(settled):
            self.dropped_rows += self._plan.dropped(base)  # no epoch has a step: those of the first one
        return settled

    def _mark(self, number: int) -> None:
        """Writes the steps up to this one into the lineage, those of the other workers too."""
        while self._marked.number <= number:
            begin, end = self._plan.rows_of(self._marked)
            self.lineage.add(self._marked.number, self._marked.epoch, begin, end, self._plan.world)
            self._marked = self._plan.after(self._marked, 1)

    def _pick(self, arrays: Arrays) -> Arrays:
        """The columns that were asked for, with the arrays that belong to them."""
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
        """Steps count from this row. number: of the first one; None: as if all before were of this size."""
        if number is None:
            number = -(-row // self._plan.step_rows)
            number += epoch * (self._plan.steps(0) if self._plan.total is not None else 0)
        start = Place(epoch, row, 0, number)
        self._go_to(replace(start, index=self._worker, number=number + self._worker), start)

    def _warn_of_nothing(self, group: str) -> None:
        """A training that gets no rows says why."""
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
                "group %r has done with all epochs of run %r: another group begins anew",
                group,
                self.info.name,
            )

    def _go_to(self, place: Place, marked: Place) -> None:
        """place: of this worker's next step. marked: of the first one that the lineage does not tell of."""
        self.dropped_rows = 0
        self._place = self._settle(place)
        self._marked = self._plan.settled(marked)
        self._epoch = self._place.epoch
        self._told = marked.number  # steps before it the spool was told of
        epoch, row = self.info.delivered or (0, 0)
        behind = (epoch - self._marked.epoch) * self.info.visible + row - self._plan.row(self._marked)
        #: rows, all ranks together, that were sent to the group before, and come again
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
        """The position behind the last batch that was handed out, as plain numbers and strings.

        One of several workers tells where its own next step begins: `merge_states` makes one of all theirs.
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
            "lineage": self.lineage.between(self._told, place.number),
        }
        if plan.workers > 1:
            state |= {"next": list(astuple(place)), "marked": list(astuple(self._marked))}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on at that position, before the first batch was taken.

        Raises OptionError for a state of another run (also one that had this name before) or seed, one that
        this release cannot read, or one of one of several workers that is not this one; UsageError when
        batches were taken already.
        """
        self._refuse_late()
        state = self._checked(state)
        if state["workers"] > 1:
            self._load_worker(state)
        elif self.info.state == SEALED and state["row"] > self.info.visible:
            raise OptionError(f"the state is at row {state['row']:,} of a run of {self.info.visible:,} rows")
        else:
            self._begin(state["epoch"], state["row"], state["step"])
        # Steps that were never acknowledged: the next acknowledgement tells of them.
        self.lineage = Lineage(Lineage(state["lineage"]).since(*(self.info.acknowledged or (0, 0))))
        if self.lineage.records:
            self._told = min(self._told, self.lineage.records[0][0])

    def _load_worker(self, state: Mapping[str, Any]) -> None:
        mine = (self._worker, self._plan.workers, self._plan.batch, self._plan.world)
        its = tuple(state[name] for name in ("worker", "workers", "batch_size", "world_size"))
        if mine != its:
            raise OptionError(
                "the state is one of several workers' (worker, workers, batch_size, world_size): "
                f"{its}, and this is {mine}",
                hint="`merge_states` makes of all workers' states one that fits any number.",
            )
        self._go_to(Place(*state["next"]), Place(*state["marked"]))

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        state = check_state(state)
        for name, mine, its in (
            ("run", self.info.name, state["run"]),
            ("seed of the shuffle", self._plan.seed, state["seed"]),
        ):
            if mine != its:
                raise OptionError(
                    f"the state is one with another {name}: {its!r}, this stream has {mine!r}",
                    hint="Rows would be left out or come twice. Begin without the state to read anew.",
                )
        if not state["run_id"]:
            _log.warning("a state of an earlier release does not say which run %r it is of", self.info.name)
        check_run(self.info.name, self.info.run_id, state["run_id"])
        return state

    def acknowledge(self, state: Mapping[str, Any] | None = None) -> None:
        """Tells the spool that all before a state (default: now) is done with; durable when it returns.

        Call it after the checkpoint with that state was saved: who begins without a state is not given it
        again. Raises UsageError in one of several workers, who knows only its own steps.
        """
        state = self._checked(self.state_dict() if state is None else state)
        if state["workers"] > 1:
            raise UsageError(
                "one of several workers does not know what the others have done",
                hint="Acknowledge where the training loop is: `dataset.acknowledge(loader.state_dict())`.",
            )
        epoch, row, step = state["epoch"], state["row"], state["step"]
        steps = with_seed(self.lineage.between(self._told, step), self._plan.seed)
        self._source.acknowledge(epoch, row, steps)
        self._told = max(self._told, step)
