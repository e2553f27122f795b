"""`transfer audit …`: its commands and their options. `transfer/cli/audit_view.py` implements them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transfer.cli import options
from transfer.cli.broker_options import Reached
from transfer.cli.options import grouped

app = typer.Typer(
    help="Read the audit of a broker's operators, and verify that it was not changed.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Start = Annotated[
    str | None,
    typer.Option(
        "--start", metavar="TIME", help="Only events from this time on, such as 2026-03-21T00:00:00Z."
    ),
]
End = Annotated[str | None, typer.Option("--end", metavar="TIME", help="Only events before this time.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Read a broker's folder, without the broker.")
]
Message = Annotated[str | None, typer.Option("--id", metavar="MESSAGE", help="Only events of this message.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Only events of this operator.")]
Operation = Annotated[
    str | None,
    typer.Option("--operation", help="Only this operation: replay, purge, dead_letter and others."),
]
After = Annotated[int | None, typer.Option("--after", min=0, help="Only entries after this sequence number.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Number of entries at most.")]


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
    from transfer.cli.audit_view import show_events

    show_events(
        reached.admin(),
        as_json=json,
        id=id,
        actor=actor,
        operation=operation,
        start=start,
        end=end,
        after=after,
        limit=limit,
    )


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
    from transfer.cli import audit_view

    if file is not None:
        if data is not None or expect is not None:
            raise typer.BadParameter("--file goes with neither --data nor --expect")
        raise typer.Exit(audit_view.verify_export(file, as_json=json))
    admin = reached.admin() if data is None else None
    raise typer.Exit(audit_view.verify(admin, data, expect, as_json=json))


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
    from transfer.cli.audit_view import write_export

    write_export(reached.admin() if data is None else None, data, start, end, out)
