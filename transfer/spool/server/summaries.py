"""Summaries of runs for clients, and the parser of a commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transfer.spool.format.run_messages import WINNER_COLUMNS, Winner, from_table
from transfer.spool.server.group import ReaderGroup
from transfer.spool.server.run_record import RunRecord
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array


def summary(entry: RunRecord, now: float) -> dict[str, Any]:
    """Returns a run's summary, with its groups. now: of the store's clock."""
    run = entry.run
    return {
        "name": run.name,
        "run_id": entry.run_id,
        "state": entry.state,
        "damage": entry.damage,
        "kind": run.kind,
        "delivery": run.delivery,
        "rows": entry.rows,
        "first": entry.first,
        "frames": len(run.visible.ends),
        "partitions": len(set(zip(run.visible.jobs, run.visible.partitions, strict=True))),
        "bytes": entry.nbytes,
        "kept_bytes": entry.bytes_from(0),
        "staged_bytes": run.staged_bytes,
        "idle": max(0.0, now - entry.touched),
        "staged_rows": sum(a.rows for job in run.jobs.values() for a in job.attempts.values()),
        "stray_frames": run.strays,
        "created": entry.created,
        "groups": {
            name: {
                "acknowledged": group.acknowledged,
                "delivered": group.delivered,
                "shards": group.shards,
                "absent": group.absent,
                "idle": max(0.0, now - group.used),
                "held_bytes": _held(entry, group),
                "given_up": group.given_up,
            }
            for name, group in entry.groups.items()
        },
    }


def jobs_of(entry: RunRecord) -> dict[str, Any]:
    """Returns the jobs that write to a run now."""
    return {
        name: {
            "attempts": len(job.attempts),
            "ended": sum(attempt.ended is not None for attempt in job.attempts.values()),
            "rows": sum(attempt.rows for attempt in job.attempts.values()),
        }
        for name, job in entry.run.jobs.items()
    }


def _held(entry: RunRecord, group: ReaderGroup) -> int:
    """Returns the bytes that a stream keeps for this group. A batch keeps all rows anyway."""
    if entry.run.kind != "stream" or group.given_up:
        return 0
    return entry.bytes_from(group.acknowledged[1] if group.acknowledged is not None else 0)


def winners_of(arrays: Mapping[str, Array]) -> list[Winner]:
    """Parses the table of a commit. Raises ProtocolError."""
    for name in WINNER_COLUMNS:
        column = arrays.get(name)
        if column is None or column.ndim != 1 or column.dtype != "int64" or (column < 0).any():
            raise ProtocolError("run", "a commit arrived without its table of partitions")
    return from_table({name: column.tolist() for name, column in arrays.items()})
