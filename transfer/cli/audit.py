"""`transfer audit`: shows, verifies and exports the audit of operators' changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from transfer.cli import options
from transfer.cli.command_help import App
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.options import Reached, grouped
from transfer.cli.tables import print_json, printable, show_list
from transfer.transports.errors import Broken, UsageError

app = App("Read the audit of a broker's operators, and verify that it was not changed.", no_args_is_help=True)

Start = Annotated[
    str | None,
    typer.Option(
        "--start", metavar="DATETIME", help="Only events from this time on, such as 2026-03-21T00:00:00Z."
    ),
]
End = Annotated[str | None, typer.Option("--end", metavar="DATETIME", help="Only events before this time.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Read a broker's folder, without the broker.")
]
Message = Annotated[str | None, typer.Option("--id", metavar="MESSAGE", help="Only events of this message.")]
Actor = Annotated[str | None, typer.Option("--actor", metavar="WHO", help="Only events of this operator.")]
Operation = Annotated[
    str | None,
    typer.Option(
        "--operation", metavar="OPERATION", help="Only this operation: replay, purge, dead_letter and others."
    ),
]
After = Annotated[
    int | None, typer.Option("--after", min=0, metavar="N", help="Only entries after this sequence number.")
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="Number of entries at most.")
]


@app.command()
@grouped
def events(
    reached: Reached,
    *,
    id: Message = None,
    actor: Actor = None,
    operation: Operation = None,
    start: Start = None,
    end: End = None,
    after: After = None,
    limit: Limit = 100,
    json: options.Json = False,
) -> None:
    """List events, the oldest first."""
    wanted = {"id": id, "actor": actor, "operation": operation, "start": start, "end": end}
    answer = reached.admin().get("audit/events", **wanted, after=after, limit=limit)
    head = ("sequence", "time", "actor", "operation", "messages", "became", "reason")
    found = answer.objects("events")
    show_list(found, head, _line, as_json=json, right={"sequence"}, nothing="no events")
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


@app.command()
@grouped
def verify(
    reached: Reached,
    *,
    data: DataFolder = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Verify a file that `export` wrote.")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="SEQUENCE:HASH", help="An event that the chain has to contain."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Verify the whole chain, and report the first line that was changed. Exit code 1: damaged."""
    if file is None:
        answer = _verdict(reached, data, expect)
        head, what = answer["head"], "chain"
        last = f"{answer['events']:,} events, the last is {head['sequence']}:{head['hash']}\n"
    elif data is not None or expect is not None:
        raise typer.BadParameter("--file goes with neither --data nor --expect")
    else:
        answer, what = _verdict_of_export(file), "export"
        last = f"{answer['events']:,} events; "
    if json:
        print_json(answer)
    else:
        for problem in answer["problems"]:
            print(f"damaged: {_place(problem)}: {printable(problem['problem'])}")
        print(f"{last}the {what} is {'whole' if answer['whole'] else 'damaged'}")
    raise typer.Exit(0 if answer["whole"] else EXIT_ERROR)


def _verdict(reached: Reached, data: Path | None, expect: str | None) -> dict[str, Any]:
    """Verifies the whole chain, at the broker or in a folder.

    expect: `SEQUENCE:HASH` of an event that the chain has to contain, as an earlier call printed it.
    """
    from transfer.broker.storage.audit_verification import HEAD, examine, readable

    sequence, hash = _expected(expect)
    if data is not None:
        folder = audit_folder(data)
        answer: dict[str, Any] = examine(folder).as_json()
        found = any(
            event is not None and (event.sequence, event.hash) == (sequence, hash)
            for _, event in (readable(folder) if expect else ())
        )
    else:
        admin = reached.admin()
        answer = admin.get("audit/verify")
        events = admin.get("audit/events", after=sequence - 1, limit=1).objects("events") if expect else []
        found = any((event["sequence"], event["hash"]) == (sequence, hash) for event in events)
    if expect and not found:
        gone = {"file": HEAD, "line": 0, "problem": f"event {sequence} with that hash is gone"}
        answer = answer | {"whole": False, "problems": [*answer["problems"], gone]}
    return answer


def _verdict_of_export(file: Path) -> dict[str, Any]:
    from transfer.broker.storage.audit_chain import check_export

    with file.open("rb") as lines:
        count, wrong = check_export(lines)
    problems = [{"file": str(file), "line": line, "problem": text} for line, text in wrong]
    return {"whole": not wrong, "events": count, "problems": problems}


def audit_folder(data: Path) -> Path:
    """Returns the audit's folder, given that folder or the broker's data folder. Raises UsageError."""
    from transfer.broker.storage.audit_verification import HEAD, name_of

    for folder in (data, data / "audit"):
        if (folder / HEAD).exists() or (folder / name_of(1)).exists():
            return folder
    raise UsageError(f"there is no audit in {data}")


def _expected(text: str | None) -> tuple[int, str]:
    if text is None:
        return 0, ""
    sequence, _, hash = text.partition(":")
    if not sequence.isdecimal() or int(sequence) < 1 or len(hash) != 64:
        raise UsageError(f"--expect is {text!r}", hint="SEQUENCE:HASH, as `transfer audit verify` printed it")
    return int(sequence), hash


def _place(problem: dict[str, Any]) -> str:
    return f"{problem['file']}, line {problem['line']}" if problem["line"] else str(problem["file"])


@app.command()
@grouped
def export(
    reached: Reached,
    *,
    start: Start = None,
    end: End = None,
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file.")
    ] = None,
) -> None:
    """Write the chain's lines, so that `verify --file` can check them elsewhere."""
    lines: Iterable[bytes]
    if data is not None:
        from transfer.broker.storage.audit import export as export_folder
        from transfer.broker.storage.audit_chain import parse_time

        begin_ms, end_ms = (parse_time(text) if text is not None else None for text in (start, end))
        lines = export_folder(audit_folder(data), begin_ms, end_ms)
    else:
        lines = reached.admin().lines("audit/export", start=start, end=end)
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
            part.replace(out)  # only at the end
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
