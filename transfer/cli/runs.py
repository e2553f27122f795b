"""`transfer runs …`: its commands and their options. `transfer/cli/run_view.py` implements them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transfer.cli import options

app = typer.Typer(
    help="Manage the runs of a spool.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Spool = Annotated[
    str,
    typer.Argument(
        metavar="[[run://]HOST:PORT[/NAME]]", help="A spool, as `serve` prints it, or one run of it."
    ),
]
Run = Annotated[str, typer.Argument(metavar="[run://]HOST:PORT/NAME", help="A run of a spool.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", "-t", min=0.1, metavar="SECONDS", help="Give up without an answer after this long."
    ),
]
_PATIENCE = 10.0
_HERE = "run://127.0.0.1:5570"


@app.command("list")
def list_(spool: Spool = _HERE, timeout: Timeout = _PATIENCE, json: options.Json = False) -> None:
    """List the runs, and how far their readers are behind."""
    from transfer.cli.run_view import list_runs

    list_runs(spool, timeout, as_json=json)


@app.command()
def inspect(run: Run, timeout: Timeout = _PATIENCE, json: options.Json = False) -> None:
    """Show a run: its columns, groups, readers and writing jobs."""
    from transfer.cli.run_view import inspect_run

    inspect_run(run, timeout, as_json=json)


@app.command()
def delete(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even if a program reads or writes it.")] = False,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Delete a run with its rows, groups and lineage."""
    from transfer.cli.run_view import delete_run

    raise typer.Exit(delete_run(run, timeout, sure=yes, force=force, as_json=json))


@app.command()
def groups(run: Run, timeout: Timeout = _PATIENCE, json: options.Json = False) -> None:
    """List the groups of a run: positions, readers, and the bytes that a stream keeps for each."""
    from transfer.cli.run_view import list_groups

    list_groups(run, timeout, as_json=json)


@app.command("forget-group")
def forget_group(
    run: Run,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group, as `groups` prints it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even if its readers are connected.")] = False,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Remove a group from a run: its positions, and the rows that a stream keeps for it alone."""
    from transfer.cli.run_view import forget_group as forget

    raise typer.Exit(forget(run, group, timeout, sure=yes, force=force, as_json=json))


@app.command()
def lineage(
    run: Run,
    group: Annotated[str, typer.Option("--group", "-g", help="The group.")] = "default",
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="This step, with the origin of its rows.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write each row with its origin there.")
    ] = None,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Show which rows of the run each step of training had."""
    from transfer.cli.run_view import show_lineage

    show_lineage(run, timeout, group, step=step, parquet=parquet, as_json=json)


@app.command()
def verify(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[run://]HOST:PORT[/NAME] | FOLDER",
            help="A spool or one of its runs, or a folder on which no spool runs.",
        ),
    ] = _HERE,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Read all rows, and check their checksums. Exit code 1: some are damaged."""
    from transfer.cli.salvage import verify_runs

    raise typer.Exit(verify_runs(what, timeout, as_json=json))


@app.command()
def salvage(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A spool's folder; it is not changed.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="NEWFOLDER", help="New folder for a spool with the undamaged runs."),
    ],
    json: options.Json = False,
) -> None:
    """Copy the undamaged runs into a new folder. Exit code 1: damaged ones are left out."""
    from transfer.cli.salvage import salvage_runs

    raise typer.Exit(salvage_runs(folder, out, as_json=json))
