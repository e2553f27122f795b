"""A run's books, found again from the messages of its topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transfer.json_text import loads
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.row_source import FAILED, OPEN
from transfer.spool.format.rows import Layout
from transfer.spool.format.run_messages import Abort, Begin, End, Rows, from_meta, from_table
from transfer.spool.format.stored_arrays import decode, metadata, nbytes_of
from transfer.spool.server.ledger import Run
from transfer.spool.server.run_record import RunRecord
from transfer.transports.errors import ProtocolError

#: in the metadata of the message that has a sealed run's index
INDEX = "transfer.index"


def replay(entry: RunRecord, messages: Iterable[Any]) -> list[int]:
    """The books, from all messages of its topic.

    The offsets of frames that nobody needs: a crash may have come before they were discarded.
    """
    run = entry.run
    unneeded: list[int] = []
    aborted = set(entry.aborted)
    for message in messages:
        meta = metadata(message.body)
        if isinstance(meta, dict) and meta.get(INDEX) == 1:
            continue  # the spool ended before the word was kept that there is an index
        event = from_meta(meta)
        if isinstance(event, Begin):
            run.declare(event.job, run.delivery, run.kind)
            run.begin(event, layouts_of(event))
        elif isinstance(event, Rows):
            if not run.rows(event, message.offset, nbytes_of(message.body)):
                # Its job ended while it was written.
                unneeded.append(message.offset)
        elif isinstance(event, End):
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
        run.state = OPEN  # another job has declared itself and not begun
    return unneeded


def _abort(run: Run, job: str) -> list[int]:
    """As `Run.abort`, also of a job that no attempt had begun for: no event says that it was declared."""
    run.declare(job, run.delivery, run.kind, "skip")
    return run.abort(job)


def keep_attempt(run: Run, message: End) -> None:
    """All of this attempt is on the disk."""
    job = run.jobs.get(message.job)
    attempt = job.attempts.get((message.partition, message.attempt)) if job is not None else None
    if attempt is not None:
        attempt.kept = True


def layouts_of(message: Begin) -> tuple[Layout, ...]:
    """The columns that an attempt tells of. Raises ProtocolError."""
    if not message.columns:
        return ()
    try:
        return row_layouts.from_json(loads(message.columns.encode()))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("run", "a beginning without a description of its columns") from error
