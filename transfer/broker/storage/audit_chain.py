"""The lines of the audit chain: their content, their hashes, and the check of their order.

A line is one JSON object in ASCII, without white space, its keys in this order: sequence, time, actor,
operation, message_ids, reason, prior_state, resulting_state, prev_hash, hash. `hash` is the SHA-256, in
lower-case hex, over the bytes of the same line without the member `hash`, which is the last:

    {"sequence":7, ... ,"prev_hash":"9f…"}           these bytes are hashed
    {"sequence":7, ... ,"prev_hash":"9f…","hash":"3c…"}\\n    this is the line

`prev_hash` is the hash of the line before; the first line has 64 zeros. This module does no I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from transfer.transports.errors import LogDamaged, UsageError

#: values that JSON can hold
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

#: the hash before the first line
GENESIS = "0" * 64
#: the operation of an event that names damage; in earlier versions it began a new file
DAMAGED, SEGMENT = "audit.damaged", "audit.segment"
_HASH_BYTES = len(',"hash":""}') + 64
_KEYS = (
    "sequence", "time", "actor", "operation", "message_ids", "reason", "prior_state", "resulting_state",
    "prev_hash", "hash",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """An event before it is in the chain: who did what to which messages, and why."""

    actor: str
    operation: str
    message_ids: tuple[str, ...] = ()
    reason: str = ""
    prior_state: Json = None
    resulting_state: Json = None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A line of the chain. time: RFC 3339 in UTC with milliseconds, never before the previous line's."""

    sequence: int
    time: str
    action: Action
    prev_hash: str
    hash: str

    def as_json(self) -> dict[str, Json]:
        """Returns the members in the order of the line."""
        values = _head(self.sequence, self.time, self.action, self.prev_hash)
        return values | {"hash": self.hash}


@dataclass(frozen=True, slots=True)
class AuditWindow:
    """Selects events: an event must match every given criterion.
    start, end: unix milliseconds, `end` is exclusive. after: only higher sequences."""

    start: int | None = None
    end: int | None = None
    actor: str | None = None
    message_id: str | None = None
    operation: str | None = None
    after: int = 0

    def has(self, event: AuditEvent) -> bool:
        """Whether the event matches."""
        action = event.action
        return (
            event.sequence > self.after
            and (self.start is None or event.time >= time_text(self.start))
            and (self.end is None or event.time < time_text(self.end))
            and self.actor in (None, action.actor)
            and self.operation in (None, action.operation)
            and (self.message_id is None or self.message_id in action.message_ids)
        )


#: all events
ALL = AuditWindow()


class Chain:
    """Checks that each line continues the one before. One thread at a time.
    sequence, hash: of the last line; None: the next line is accepted as it is."""

    def __init__(self, sequence: int | None = 0, hash: str | None = GENESIS) -> None:
        self.sequence = sequence
        self.hash = hash

    def follow(self, line: bytes) -> tuple[AuditEvent | None, str]:
        """Returns the event of the next line, None if the line is damaged, and what is wrong, or ""."""
        sequence, hash = self.sequence, self.hash
        self.sequence = self.hash = None
        try:
            event = decode(line)
        except LogDamaged as error:
            return None, str(error)
        self.sequence, self.hash = event.sequence, event.hash
        if hash is not None and event.prev_hash != hash:
            return event, "its prev_hash is not the hash of the line before: one was changed or removed"
        if sequence is not None and event.sequence != sequence + 1:
            return event, f"its sequence is {event.sequence} and not {sequence + 1}"
        return event, ""


def encode(sequence: int, time: str, action: Action, prev_hash: str) -> tuple[AuditEvent, bytes]:
    """Returns the event and its line, with the line end. Raises UsageError for values JSON cannot hold."""
    try:
        body = _dump(_head(sequence, time, action, prev_hash))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the audit cannot keep {action.operation!r}: {error}") from error
    digest = hashlib.sha256(body).hexdigest()
    line = b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode())
    return AuditEvent(sequence, time, action, prev_hash, digest), line


def decode(line: bytes) -> AuditEvent:
    """Returns the event of a line. Raises LogDamaged if the line does not have the hash of its content."""
    line = line.removesuffix(b"\n")
    digest = hashlib.sha256(line[:-_HASH_BYTES] + b"}").hexdigest()
    if line[-_HASH_BYTES:] != b',"hash":"%b"}' % digest.encode():
        raise LogDamaged("its hash is not that of its content")
    try:
        values = json.loads(line)
        if tuple(values) != _KEYS:
            raise ValueError("it has other members")
        action = Action(
            str(values["actor"]),
            str(values["operation"]),
            tuple(map(str, values["message_ids"])),
            str(values["reason"]),
            values["prior_state"],
            values["resulting_state"],
        )
        return AuditEvent(
            int(values["sequence"]), str(values["time"]), action, str(values["prev_hash"]), digest
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise LogDamaged(f"it is no line of an audit: {error}") from error


def check_export(lines: Iterable[bytes]) -> tuple[int, list[tuple[int, str]]]:
    """Checks the lines of an export: returns the number of events, and (line, problem) for each wrong line.

    The first line names the event before the export, the last one counts the events. So a truncated export
    is detected.
    """
    chain: Chain | None = None
    count, number, ended, wrong = 0, 0, False, []
    for number, line in enumerate(lines, 1):
        if ended:
            wrong.append((number, "it follows the end of the export"))
            break
        if chain is None:
            chain, text = _export_begin(line)
            if text:
                wrong.append((number, text))
            continue
        if line.startswith(b'{"export_end":'):
            ended = True
            if line.rstrip(b"\n") != export_end(chain, count).rstrip(b"\n"):
                wrong.append((number, "the export ends with another event, or has lost or gained some"))
            continue
        count += 1
        if text := chain.follow(line)[1]:
            wrong.append((number, text))
    if not ended:
        wrong.append((number + 1, "the export has no end: it was cut off"))
    return count, wrong


def export_begin(sequence: int, hash: str) -> bytes:
    """Returns the first line of an export, which names the last event before it."""
    return _dump({"export_begin": {"after_sequence": sequence, "prev_hash": hash}}) + b"\n"


def export_end(chain: Chain, count: int) -> bytes:
    """Returns the last line of an export: the number of its events, and the last of them."""
    summary: Json = {"events": count, "sequence": chain.sequence, "hash": chain.hash}
    return _dump({"export_end": summary}) + b"\n"


def _export_begin(line: bytes) -> tuple[Chain, str]:
    try:
        begin = json.loads(line)["export_begin"]
        return Chain(int(begin["after_sequence"]), str(begin["prev_hash"])), ""
    except (ValueError, TypeError, KeyError, RecursionError):
        return Chain(None, None), "it is not the beginning of an export"


def time_text(unix_ms: int) -> str:
    """Returns a time as RFC 3339 in UTC with milliseconds: `2026-03-21T00:00:00.000Z`.
    Such texts sort as times do. Raises UsageError for a year without four digits."""
    seconds, ms = divmod(unix_ms, 1000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{unix_ms} ms is no time of this calendar") from error
    return f"{whole}.{ms:03d}Z"


def parse_time(text: str) -> int:
    """Returns the unix milliseconds of an RFC 3339 time with a zone, or of a day's start in UTC.
    Raises UsageError."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None and len(text) == len("2026-03-21"):
            time = time.replace(tzinfo=UTC)
        if time.tzinfo is None:
            raise ValueError("it has no time zone")
        return round(time.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is no time: {error}", hint="such as 2026-03-21T00:00:00Z") from error


def _head(sequence: int, time: str, action: Action, prev_hash: str) -> dict[str, Json]:
    return {
        "sequence": sequence,
        "time": time,
        "actor": action.actor,
        "operation": action.operation,
        "message_ids": list(action.message_ids),
        "reason": action.reason,
        "prior_state": action.prior_state,
        "resulting_state": action.resulting_state,
        "prev_hash": prev_hash,
    }


def _dump(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
