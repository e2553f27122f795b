"""`transfer audit`: shows, verifies and exports the audit of operators' changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from transfer.broker.storage.audit import export
from transfer.broker.storage.audit_chain import check_export, parse_time
from transfer.broker.storage.audit_verification import HEAD, examine, name_of, readable
from transfer.cli.admin import Admin
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.tables import print_json, printable, show_table
from transfer.transports.errors import Broken, UsageError


def show_events(admin: Admin, *, as_json: bool, **filters: str | int | None) -> None:
    """Lists a page of events."""
    answer = admin.get("audit/events", **filters)
    events = answer.objects("events")
    if as_json:
        for event in events:
            print_json(event)
    else:
        head = ("sequence", "time", "actor", "operation", "messages", "became", "reason")
        show_table(head, [_line(event) for event in events], right={"sequence"})
        if not events:
            print("no events")
    if answer["next"] is not None:
        print(f"there may be more: --after {answer['next']}", file=sys.stderr)
    for problem in answer.objects("problems"):
        print(f"transfer: damaged: {_place(problem)}: {printable(problem['problem'])}", file=sys.stderr)


def _line(event: dict[str, Any]) -> list[str]:
    ids = [printable(id) for id in event["message_ids"]]
    became = event["resulting_state"]
    states = {str(one.get("state", "")): None for one in became} if isinstance(became, list) else {}
    return [
        str(event["sequence"]),
        event["time"],
        printable(event["actor"]),
        printable(event["operation"]),
        ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "") or "-",
        ", ".join(map(printable, states)) or "-",
        printable(event["reason"]),
    ]


def audit_folder(data: Path) -> Path:
    """Returns the audit's folder, given that folder or the broker's data folder. Raises UsageError."""
    for folder in (data, data / "audit"):
        if (folder / HEAD).exists() or (folder / name_of(1)).exists():
            return folder
    raise UsageError(f"there is no audit in {data}")


def verify(admin: Admin | None, data: Path | None, expect: str | None, *, as_json: bool) -> int:
    """Verifies the whole chain, at the broker or in a folder. Returns 1 if it is damaged.

    expect: `SEQUENCE:HASH` of an event that the chain has to contain, as an earlier call printed it.
    """
    sequence, hash = _expected(expect)
    if data is not None:
        folder = audit_folder(data)
        answer: dict[str, Any] = examine(folder).as_json()
        found = any(
            event is not None and (event.sequence, event.hash) == (sequence, hash)
            for _, event in (readable(folder) if expect else ())
        )
    elif admin is not None:
        answer = admin.get("audit/verify")
        events = admin.get("audit/events", after=sequence - 1, limit=1).objects("events") if expect else []
        found = any((event["sequence"], event["hash"]) == (sequence, hash) for event in events)
    if expect and not found:
        gone = {"file": HEAD, "line": 0, "problem": f"event {sequence} with that hash is gone"}
        answer = answer | {"whole": False, "problems": [*answer["problems"], gone]}
    if as_json:
        print_json(answer)
    else:
        for problem in answer["problems"]:
            print(f"damaged: {_place(problem)}: {printable(problem['problem'])}")
        head = answer["head"]
        print(f"{answer['events']:,} events, the last is {head['sequence']}:{head['hash']}")
        print("the chain is whole" if answer["whole"] else "the chain is damaged")
    return 0 if answer["whole"] else EXIT_ERROR


def verify_export(file: Path, *, as_json: bool) -> int:
    """Verifies an export. Returns 1 if it is damaged."""
    with file.open("rb") as lines:
        count, wrong = check_export(lines)
    problems = [{"file": str(file), "line": line, "problem": text} for line, text in wrong]
    if as_json:
        print_json({"whole": not wrong, "events": count, "problems": problems})
    else:
        for problem in problems:
            print(f"damaged: {_place(problem)}: {problem['problem']}")
        print(f"{count:,} events; " + ("the export is damaged" if wrong else "the export is whole"))
    return EXIT_ERROR if wrong else 0


def write_export(
    admin: Admin | None, data: Path | None, start: str | None, end: str | None, out: Path | None
) -> None:
    """Exports the lines of a span of time to standard output, or to a file, which it replaces at the end."""
    lines: Iterable[bytes]
    if data is not None:
        begin_ms, end_ms = (parse_time(text) if text is not None else None for text in (start, end))
        lines = export(audit_folder(data), begin_ms, end_ms)
    elif admin is not None:
        lines = admin.lines("audit/export", start=start, end=end)
    with closing(_whole(lines)) as checked:
        if out is None:
            for line in checked:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        part = out.with_name(out.name + ".part")
        try:
            with part.open("wb") as file:
                file.writelines(checked)
                file.flush()
                os.fsync(file.fileno())
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    print(f"wrote {out}", file=sys.stderr)


def _whole(lines: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Yields the lines. Raises Broken if the last one is missing."""
    line = b""
    for line in lines:
        yield line
    if not line.startswith(b'{"export_end":'):
        raise Broken("the export was cut off")


def _expected(text: str | None) -> tuple[int, str]:
    if text is None:
        return 0, ""
    sequence, _, hash = text.partition(":")
    if not sequence.isdecimal() or int(sequence) < 1 or len(hash) != 64:
        raise UsageError(f"--expect is {text!r}", hint="SEQUENCE:HASH, as `transfer audit verify` printed it")
    return int(sequence), hash


def _place(problem: dict[str, Any]) -> str:
    return f"{problem['file']}, line {problem['line']}" if problem["line"] else str(problem["file"])
