"""`EagerReader`: batches of tensors directly from a PULL socket, each row exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from transfer.spool.client.open import checked_numbers
from transfer.spool.format.rows import column_names
from transfer.torch.run_reader import MessageSource, RunReader, SocketSource
from transfer.torch.slicer import Batch, Slicer
from transfer.transports.arguments import patience, wrong
from transfer.transports.errors import (
    Again,
    OptionError,
    ProtocolError,
    TransferError,
    UsageError,
    comes_with,
)

with comes_with("torch", __name__):
    import torch
    from torch.utils.data import get_worker_info


@dataclass(slots=True)
class RunSummary:
    """The counts of one run. `rows` are those given to the training loop, `sent_rows` those that Spark sent
    by
    its own count: the two are equal, or the iteration has raised. Bytes are those of the columns."""

    run: str = ""
    rows: int = 0
    sent_rows: int = 0
    frames: int = 0
    batches: int = 0
    nbytes: int = 0
    partitions: int = 0
    attempts: int = 0
    duplicate_rows: int = 0
    stray_frames: int = 0
    dropped_rows: int = 0
    seconds: float = 0.0
    transports: str = ""
    peers: dict[str, str] = field(default_factory=dict)


class EagerReader:
    """Reads the rows of a Spark write with delivery "eager", for a `StreamDataset` without a spool.

    Not thread-safe, except that another thread may call `close`.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:0",
        *,
        batch_size: int | None = None,
        columns: Sequence[str] | None = None,
        drop_last: bool = False,
        timeout: float | None = 600.0,
        verify: bool = True,
        source: MessageSource | None = None,
    ) -> None:
        batch_size = checked_numbers(batch_size, None, None, 0, 1)[0]
        self._columns = column_names(columns)
        self._drop_last = drop_last
        self._slicer = Slicer(batch_size) if batch_size is not None else None
        timeout = patience(timeout)
        if source is not None and not callable(getattr(source, "receive", None)):
            raise wrong("source", source, "a source of messages, or None for a new socket")
        self._source = source if source is not None else SocketSource(endpoint)
        self._reader = RunReader(self._source, timeout=timeout, verify=verify)
        self._current = RunSummary()
        self._began = 0.0
        #: summaries of the runs that were read completely, oldest first
        self.runs: list[RunSummary] = []
        self.endpoint = self._source.endpoint

    def close(self) -> None:
        """Stops listening. Tasks that still send fail; an iteration in another thread raises Closed."""
        self._source.close()

    @property
    def progress(self) -> RunSummary:
        """The counts of the current run; any thread may read it."""
        return self._current

    def __iter__(self) -> Iterator[Any]:
        """Yields batches of the current or the next run; ends when the run is complete."""
        if get_worker_info() is not None:
            raise UsageError(
                "a StreamDataset owns a socket and cannot be read in a DataLoader's worker process",
                hint="Use num_workers=0: rows arrive decoded, so workers have nothing to do.",
            )
        while True:
            try:
                batch = self._next_batch()
            except Again:
                raise  # the next iteration continues the run
            except TransferError:
                self._reset()
                raise
            if batch is None:
                return
            yield batch

    def _next_batch(self) -> Any:
        """Returns a full batch; at the end of the run the rest, then None."""
        while True:
            batch = self._slicer.take() if self._slicer is not None else None
            if batch is not None:
                return self._hand_out(batch)
            if self._reader.ledger is not None and self._reader.ledger.complete and self._began:
                return self._last_batch()
            arrays = self._reader.read()
            self._began = self._began or time.monotonic()
            if arrays is None:
                continue
            frame = {name: torch.from_numpy(array) for name, array in arrays.items()}
            self._current.frames += 1
            self._current.nbytes += sum(array.nbytes for array in arrays.values())
            if self._slicer is None:
                return self._hand_out(frame)
            self._slicer.push(frame)

    def _last_batch(self) -> Any:
        rest = self._slicer.rest() if self._slicer is not None else None
        if rest is not None and not self._drop_last:
            return self._hand_out(rest)
        if rest is not None:
            self._current.dropped_rows = len(next(iter(rest.values())))
        self._check_counts()
        return None

    def _hand_out(self, batch: Batch) -> Any:
        self._current.batches += 1
        self._current.rows += len(next(iter(batch.values())))
        if self._columns is None:
            return batch
        missing = [name for name in self._columns if name not in batch]
        if missing:
            raise OptionError(
                f"the run has no column {missing[0]!r}", hint=f"It has: {', '.join(sorted(batch))}."
            )
        return tuple(batch[name] for name in self._columns)

    def _check_counts(self) -> None:
        """Compares the rows that the training loop got with those that Spark reports as sent."""
        ledger, summary = self._reader.ledger, self._current
        assert ledger is not None
        summary.run = ledger.run
        summary.sent_rows = ledger.committed_rows
        summary.partitions = ledger.partitions_ended
        summary.attempts = ledger.counts.attempts
        summary.duplicate_rows = ledger.counts.duplicate_rows
        summary.stray_frames = ledger.counts.stray_frames
        summary.transports = self._reader.transports
        summary.peers = self._reader.peers
        summary.seconds = time.monotonic() - self._began
        self._reset()
        if summary.rows + summary.dropped_rows != summary.sent_rows:
            reason = "lost_rows" if summary.rows < summary.sent_rows else "doubled_rows"
            raise ProtocolError(
                reason, f"run {summary.run}: {summary.sent_rows:,} rows sent, {summary.rows:,} handed out"
            )
        self.runs.append(summary)

    def _reset(self) -> None:
        if self._slicer is not None:
            self._slicer.clear()
        self._current = RunSummary()
        self._began = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Returns the names of the runs that were read completely, so that a restored trainer skips them.

        It has no position inside a run: Spark fails a run that a crash interrupted, and delivers it from the
        first row when it is written again.
        """
        return {"version": 1, "committed": self._reader.committed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state. Raises OptionError for a state that this release cannot read."""
        if state.get("version") != 1:
            raise OptionError(f"a StreamDataset state of version {state.get('version')!r} is unknown")
        self._reader.remember([str(run) for run in state["committed"]])
