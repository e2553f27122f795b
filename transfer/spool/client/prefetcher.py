"""Fetches batches ahead of the training loop, in a separate thread."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.spool.client.plan import RowRequest, StreamPlace, StreamPlan
from transfer.spool.format import rows as tables
from transfer.spool.format.protocol import MAX_ROWS, MAX_TIMES
from transfer.spool.format.row_source import FAILED, OPEN, Rows, RowSource
from transfer.spool.format.rows import Layout
from transfer.transports.errors import Again, Broken, Closed, ProtocolError, unraised
from transfer.transports.waiters import Waiters

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays

#: bytes of one request
CHUNK_BYTES = 4 << 20
#: bytes that a batch takes in this process in addition to its rows
BATCH_BYTES = 1024
#: requests under way
MOST_ASKS = 8
#: how many of them may be for rows that are not visible yet
WAITING_ASKS = 2
#: seconds after which a wait for rows checks whether there is room for one more request
_SLICE = 0.1
#: seconds within which a thread must end
_END = 10.0


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Reported once, between batches: the run is over and has so many rows."""

    total: int


class Prefetcher:
    """The batches of a plan from a place on, fetched ahead up to a number of bytes.

    From the first `take` until `close`, only its thread uses the source. Any thread may call `take` and
    `close`; a finalizer may call `close`.
    """

    def __init__(
        self,
        source: RowSource,
        plan: StreamPlan,
        place: StreamPlace,
        layouts: Sequence[Layout],
        *,
        state: str,
        visible: int,
        limit: int,
        name: str,
    ) -> None:
        self._source = source
        self._plan = plan
        self._place = place
        self._layouts = tables.choose(layouts, plan.columns) if layouts else ()
        self._visible = visible
        self._failed = False
        if state != OPEN:
            self._record_end(state, visible)
        self._place = plan.settled(place)
        self._limit = limit
        self._name = name
        self._row_bytes = dense_bytes(self._layouts)
        self._asks: deque[RowRequest] = deque()
        self._lock = threading.RLock()
        self._changed = Waiters(self._lock)
        self._ready: deque[tuple[Arrays | RunEnd, int]] = deque()
        self._held = 0  # bytes of chunks with a batch that was not taken yet
        self._error: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        #: (epoch, row): the training loop has taken all rows of this reader before it
        self.used: tuple[int, int] | None = None

    def take(self, timeout: float | None) -> Arrays | RunEnd:
        """Returns the next batch, or a RunEnd when the run is over.

        Raises Again after so many seconds, Closed, and the source's error after all batches before it.
        """
        with self._lock:
            self._start()
        if not self._changed.wait_for(self._has_outcome, timeout):
            raise Again(
                f"no rows of run {self._name!r} arrived for {timeout:g} s",
                hint="Does Spark still write it? A longer `timeout` waits longer; nothing is lost.",
            )
        with self._lock:
            if self._closed:
                raise Closed("the stream of rows was closed")
            if not self._ready:
                assert self._error is not None
                raise unraised(self._error)
            item, released = self._ready.popleft()
            if released:
                self._held -= released
                self._changed.notify_all()
            return item

    def close(self) -> None:
        """Ends the thread and closes the source. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self._source.close(self.used)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END)
        self._ready.clear()

    def _has_outcome(self) -> bool:
        return bool(self._ready or self._error or self._closed)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="transfer-prefetch", daemon=True)
            self._thread.start()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._turn():
                pass
        except BaseException as caught:  # noqa: BLE001 - `take` raises it
            error = caught
        with self._lock:
            self._error = error
            self._changed.notify_all()

    def _turn(self) -> bool:
        """Sends requests while there is room, and takes one answer. False when the work is done."""
        if self._closed:
            return False
        while not self._plan.ended(self._place) and self._has_room():
            ask = self._plan.ask(self._place, self._chunk(), self._visible)
            self._source.request(ask.fetch)
            self._asks.append(ask)
            self._place = self._plan.after(self._place, ask.times * self._plan.workers)
        if self._asks:
            try:
                answer = self._source.collect(_SLICE)
            except Again:
                return True
            self._process_answer(self._asks.popleft(), answer)
        elif not self._plan.ended(self._place):
            self._changed.wait_for(lambda: self._closed or self._has_room(), _END)
        elif self._failed:
            raise Broken(
                f"run {self._name!r} failed after {self._visible:,} rows; no more will arrive",
                hint="All full steps were returned. The error of Spark's job has the cause.",
            )
        else:
            return False
        return True

    def _has_room(self) -> bool:
        """Whether one more request may be sent."""
        if len(self._asks) >= MOST_ASKS:
            return False
        if self._plan.total is None:
            waiting = sum(ask.fetch.need > self._visible for ask in self._asks)
            if waiting >= WAITING_ASKS:
                return False
        if self._row_bytes is None:
            return not self._asks  # the first answer shows how large rows are
        if not self._asks and not self._held:
            return True
        steps = sum(ask.times for ask in self._asks) + self._chunk()
        return self._held + steps * self._step_bytes() <= self._limit

    def _chunk(self) -> int:
        """Returns the number of steps of one request."""
        if self._row_bytes is None:
            return 1
        size = min(CHUNK_BYTES, self._limit // 4)
        return max(1, min(MAX_TIMES, MAX_ROWS // self._plan.batch, int(size / self._step_bytes())))

    def _step_bytes(self) -> float:
        return self._plan.batch * (self._row_bytes or 0.0) + BATCH_BYTES

    def _record_end(self, state: str, visible: int) -> None:
        """Records that the run is over. A failed one has no shorter last step, and no further epoch."""
        self._plan.total = visible
        if state == FAILED:
            self._failed = True
            self._plan.drop_last, self._plan.epochs = True, self._place.epoch + 1

    def _process_answer(self, ask: RowRequest, answer: Rows) -> None:
        self._visible = max(self._visible, answer.visible)
        items: list[tuple[Arrays | RunEnd, int]] = []
        if self._plan.total is None and answer.state != OPEN:
            self._record_end(answer.state, answer.visible)
            self._rewind([ask, *self._asks])
            if not self._failed:
                items.append((RunEnd(answer.visible), 0))
        complete = self._plan.complete(ask)
        rows, expected = ask.fetch.rows, complete * ask.fetch.rows
        if answer.count < expected or (complete == ask.times and answer.count != expected):
            raise ProtocolError("run", f"the spool gave {answer.count:,} rows where {expected:,} were due")
        size = sum(array.nbytes for array in answer.arrays.values())
        if answer.count:
            self._layouts = self._layouts or tables.layouts_of(answer.arrays)
            self._row_bytes = size / answer.count
        size += complete * BATCH_BYTES
        for number in range(complete):
            batch = tables.cut(answer.arrays, self._layouts, number * rows, (number + 1) * rows)
            items.append((batch, size if number == complete - 1 else 0))
        with self._lock:
            self._held += size if complete else 0
            self._ready.extend(items)
            self._changed.notify_all()

    def _rewind(self, asks: Sequence[RowRequest]) -> None:
        """Continues after the last full step that was requested before the run's end was known."""
        for ask in asks:
            complete = self._plan.complete(ask)
            if complete < ask.times:
                self._place = self._plan.after(ask.place, complete * self._plan.workers)
                return
        self._place = self._plan.settled(self._place)


def dense_bytes(layouts: Sequence[Layout]) -> float | None:
    """Returns the bytes of a row, or None if rows differ or nothing is known."""
    import numpy as np

    total = 0
    for layout in layouts:
        try:
            total += np.dtype(layout.dtype).itemsize * math.prod(layout.shape) + layout.nulls
        except TypeError:  # a type of a library that is not imported
            return None
        if layout.kind != "dense":
            return None
    return float(total) or None
