"""Recovers a run's state from the messages of its topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transfer.json_text import loads
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.row_source import FAILED, OPEN
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import Abort, RowsFrame, TaskBegin, TaskEnd, from_meta, from_table
from transfer.spool.format.stored_arrays import decode, metadata, nbytes_of
from transfer.spool.server.ledger import Run
from transfer.spool.server.run_record import RunRecord
from transfer.transports.errors import ProtocolError

#: in the metadata of the message with a sealed run's index
INDEX = "transfer.index"


def replay(entry: RunRecord, messages: Iterable[Any]) -> list[int]:
    """Replays all messages of a run's topic.

    Returns the offsets of unneeded frames, which a crash may have left.
    """
    run = entry.run
    unneeded: list[int] = []
    aborted = set(entry.aborted)
    for message in messages:
        meta = metadata(message.body)
        if isinstance(meta, dict) and meta.get(INDEX) == 1:
            continue  # the spool ended before the record of this index was stored
        event = from_meta(meta)
        if isinstance(event, TaskBegin):
            run.declare(event.job, run.delivery, run.kind)
            run.begin(event, layouts_of(event))
        elif isinstance(event, RowsFrame):
            if not run.rows(event, message.offset, nbytes_of(message.body)):
                # Its job ended while the frame was being written.
                unneeded.append(message.offset)
        elif isinstance(event, TaskEnd):
            unneeded += run.end(event)
            keep_attempt(run, event)
        elif isinstance(event, Abort):
            aborted.add(event.job)
            unneeded += _abort(run, event.job)
        else:
            arrays, _ = decode(message.body, message.blob)
            table = {name: column.tolist() for name, column in arrays.items()}
            unneeded += run.commit(event.job, from_table(table))
    for job in entry.aborted:
        unneeded += _abort(run, job)
    if run.state == FAILED and not entry.active.keys() <= aborted:
        run.state = OPEN  # another job is declared and has not begun
    return unneeded


def _abort(run: Run, job: str) -> list[int]:
    """As `Run.abort`, also for a job without attempts, since no event records a declaration."""
    run.declare(job, run.delivery, run.kind, "skip")
    return run.abort(job)


def keep_attempt(run: Run, message: TaskEnd) -> None:
    """Records that all of this attempt is on the disk."""
    job = run.jobs.get(message.job)
    attempt = job.attempts.get((message.partition, message.attempt)) if job is not None else None
    if attempt is not None:
        attempt.kept = True


def layouts_of(message: TaskBegin) -> tuple[Layout, ...]:
    """Returns the columns that an attempt announces. Raises ProtocolError."""
    if not message.columns:
        return ()
    try:
        return row_layouts.from_json(loads(message.columns.encode()))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("run", "a beginning without a description of its columns") from error
