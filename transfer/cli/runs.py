"""`transfer runs`: shows, verifies and deletes the runs of a spool, and copies undamaged ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from transfer.cli import options
from transfer.cli.command_help import App
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.tables import confirmed, print_json, show_list, show_table
from transfer.transports.errors import AddressError, LogInUse, UsageError
from transfer.units import show_age, show_size

if TYPE_CHECKING:
    from transfer.spool.client.admin import SpoolAdmin, Steps
    from transfer.spool.server.salvage import SalvagedRun

app = App("Manage the runs of a spool.", no_args_is_help=True)

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
        "--timeout",
        "-t",
        parser=options.time_parser(0.1),
        metavar="TIME",
        help="Give up without an answer after this long.",
    ),
]
_PATIENCE = 10.0
_HERE = "run://127.0.0.1:5570"


@contextmanager
def _connected(address: str, timeout: float, *, named: bool = True) -> Iterator[tuple[SpoolAdmin, str]]:
    """Connects to the spool at an address, and yields it and the run's name. named: requires a run's name."""
    from transfer.spool.client.admin import SpoolAdmin
    from transfer.spool.format.address import SCHEME

    with SpoolAdmin(address if "://" in address else SCHEME + address, timeout=timeout) as spool:
        if named and not spool.address.run:
            raise AddressError(
                f"{address!r} names no run", hint=f"{spool.address}/NAME; `transfer runs list`"
            )
        yield spool, spool.address.run


@app.command("list")
def list_(spool: Spool = _HERE, timeout: Timeout = _PATIENCE, json: options.Json = False) -> None:
    """List the runs, and how far their readers are behind."""
    with _connected(spool, timeout, named=False) as (admin, only):
        found = admin.overview()
        runs = found["runs"] if not only else [admin.inspect(only)]
    runs = [run | {"groups": _groups(run), "full": found["full"]} for run in runs]
    head = ("name", "state", "kind", "delivery", "rows", "kept", "staged", "partitions", "idle", "groups")
    right = {"rows", "kept", "staged", "partitions", "idle"}
    show_list(runs, head, _line, as_json=json, right=right, nothing="no runs")
    if json:
        return
    print(f"on the disk: {show_size(found['disk_bytes'])}", file=sys.stderr)
    if found["full"]:
        print(f"writers wait: {found['full']}", file=sys.stderr)


def _line(run: dict[str, Any]) -> list[str]:
    groups = [f"{name}: {_progress(group)}" for name, group in run["groups"].items()]
    return [
        run["name"],
        run["state"],
        run["kind"],
        run["delivery"],
        f"{run['rows']:,}",
        show_size(run["kept_bytes"]),
        show_size(run["staged_bytes"]) if run["staged_bytes"] else "-",
        str(run["partitions"]),
        show_age(run["idle"]),
        ", ".join(groups) or "-",
    ]


def _progress(group: dict[str, Any]) -> str:
    if group["given_up"]:
        return "given up"
    held = f", holds {show_size(group['held_bytes'])}" if group["held_bytes"] else ""
    return f"{group['behind']:,} behind{held}" if group["behind"] else "done"


def _groups(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the groups, with the number of rows that each is behind."""
    from transfer.spool.client.admin import behind

    return {name: group | {"behind": behind(run, name)} for name, group in sorted(run["groups"].items())}


@app.command()
def inspect(run: Run, timeout: Timeout = _PATIENCE, json: options.Json = False) -> None:
    """Show a run: its columns, groups, readers and writing jobs."""
    with _connected(run, timeout) as (spool, name):
        found = spool.inspect(name)
    found["groups"] = _groups(found)
    if json:
        print_json(found)
        return
    created = datetime.fromtimestamp(found["created"]).astimezone()
    for word, text in (
        ("run", found["name"]),
        ("id", found["run_id"]),
        ("state", found["state"]),
        *([("damage", found["damage"])] if found["damage"] else []),
        ("kind", f"{found['kind']}, delivery {found['delivery']}"),
        ("created", created.isoformat(sep=" ", timespec="seconds")),
        ("rows", f"{found['rows']:,} in {found['frames']:,} frames of {found['partitions']:,} partitions"),
        ("bytes", f"{show_size(found['kept_bytes'])} kept, of {show_size(found['bytes'])}"),
        ("staged rows", f"{found['staged_rows']:,}, {show_size(found['staged_bytes'])}"),
        ("idle", show_age(found["idle"])),
        ("stray frames", f"{found['stray_frames']:,}"),
    ):
        print(f"{word:<13} {text}")
    columns = [[c["name"], c["kind"], c["dtype"], "×".join(map(str, c["shape"]))] for c in _columns(found)]
    _show_part("columns", ("name", "kind", "type", "shape of a row"), columns)
    _show_part("groups", _GROUP_HEAD, [_group_line(*one) for one in found["groups"].items()])
    readers = [[one["group"], f"{one['shard']} of {one['shards']}"] for one in found["readers"]]
    _show_part("readers", ("group", "shard"), readers)
    jobs = [
        [name, str(job["attempts"]), str(job["ended"]), f"{job['rows']:,}"]
        for name, job in found["jobs"].items()
    ]
    _show_part("jobs that write", ("name", "attempts", "ended", "rows"), jobs)


def _columns(run: dict[str, Any]) -> list[dict[str, Any]]:
    from transfer.spool.format.rows import from_json

    return [
        {"name": one.name, "kind": one.kind, "dtype": one.dtype, "shape": one.shape}
        for one in from_json(run["columns"])
    ]


def _show_part(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    if lines:
        print(f"\n{title}")
        show_table(head, lines, indent="  ")


@app.command()
def delete(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even if a program reads or writes it.")] = False,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Delete a run with its rows, groups and lineage."""
    with _connected(run, timeout) as (spool, name):
        found = spool.inspect(name)
        if not yes:
            what = f"{found['state']}, {found['rows']:,} rows, {show_size(found['bytes'])}"
            if not confirmed(f"Delete run {name} ({what})?"):
                print("transfer: nothing was deleted", file=sys.stderr)
                raise typer.Exit(EXIT_ERROR)
        rows, nbytes = spool.delete(name, force=force, run_id=found["run_id"])
    if json:
        print_json({"deleted": name, "rows": rows, "bytes": nbytes})
    else:
        print(f"deleted run {name}: {rows:,} rows, {show_size(nbytes)}")


@app.command()
def groups(run: Run, timeout: Timeout = _PATIENCE, json: options.Json = False) -> None:
    """List the groups of a run: positions, readers, and the bytes that a stream keeps for each."""
    with _connected(run, timeout) as (spool, name):
        found = [{"name": group} | status for group, status in spool.groups(name).items()]
    right = {"rows behind", "holds", "idle", "readers"}
    head = (*_GROUP_HEAD, "readers")
    show_list(
        found,
        head,
        lambda group: [*_group_line(group["name"], group), str(group["readers"])],
        as_json=json,
        right=right,
        nothing="no groups",
    )


_GROUP_HEAD = ("name", "acknowledged", "delivered", "rows behind", "shards", "never came", "holds", "idle")


def _group_line(name: str, group: dict[str, Any]) -> list[str]:
    held = "given up" if group["given_up"] else show_size(group["held_bytes"]) if group["held_bytes"] else "-"
    places = [_place(group["acknowledged"]), _place(group["delivered"])]
    shards = [str(group["shards"]), str(group["absent"])]
    return [name, *places, f"{group['behind']:,}", *shards, held, show_age(group["idle"])]


def _place(position: Sequence[int] | None) -> str:
    return "-" if position is None else f"epoch {position[0]}, row {position[1]:,}"


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
    with _connected(run, timeout) as (spool, name):
        status = spool.groups(name).get(group)
        if status is not None and not yes:
            what = f"{status['behind']:,} rows behind, holds {show_size(status['held_bytes'])}"
            if not confirmed(f"Forget group {group} of run {name} ({what})?"):
                print("transfer: nothing was changed", file=sys.stderr)
                raise typer.Exit(EXIT_ERROR)
        nbytes = spool.forget_group(name, group, force=force)
    if json:
        print_json({"forgotten": group, "run": name, "bytes": nbytes})
    else:
        print(f"forgot group {group} of run {name}: {show_size(nbytes)} are given back")


@app.command()
def lineage(
    run: Run,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group.")] = "default",
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, metavar="N", help="This step, with the origin of its rows."),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write each row with its origin there.")
    ] = None,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Show which rows of the run each step of training had."""
    if parquet is not None and json:
        raise UsageError("--parquet goes without --json: give one of them")
    with _connected(run, timeout) as (spool, name):
        known = spool.lineage(name, group) if step is None else [spool.step(name, group, step)]
        if parquet is not None:
            from transfer.spark.lineage import write_lineage

            rows = write_lineage(spool.explain(name, known), parquet)
            print(f"{rows:,} rows of {sum(one.steps for one in known):,} steps: {parquet}")
            return
        pieces = None if step is None else _pieces(spool, name, known)
    _show_steps(known, pieces, as_json=json)


def _pieces(spool: SpoolAdmin, name: str, known: Sequence[Steps]) -> list[dict[str, Any]]:
    from transfer.spool.client.admin import ranges

    return [piece for table in spool.explain(name, known) for piece in ranges(table)]


def _show_steps(known: Sequence[Steps], pieces: list[dict[str, Any]] | None, *, as_json: bool) -> None:
    if as_json:
        for one in known:
            print_json(one._asdict() | ({} if pieces is None else {"pieces": pieces}))
        return
    head = ("steps", "epoch", "rows", "rows a step", "ranks", "shuffle")
    lines = [
        [
            _span(one.first, one.stop),
            str(one.epoch),
            _span(one.begin, one.begin + one.steps * one.rows),
            f"{one.rows:,}",
            str(one.ranks),
            "-" if one.seed is None else str(one.seed),
        ]
        for one in known
    ]
    show_table(head, lines, right={"rows a step", "ranks"})
    if not known:
        print("no steps: only acknowledged steps are listed")
    if pieces is not None:
        parts = [
            [
                str(one["rank"]),
                one["job"],
                *(str(one[word]) for word in ("partition", "attempt", "sequence")),
                ", ".join(_span(*pair) for pair in one["rows"]),
            ]
            for one in pieces
        ]
        _show_part("where they come from", ("rank", "job", "partition", "attempt", "frame", "rows"), parts)


def _span(begin: int, end: int) -> str:
    """Formats [begin, end) as a range that includes its last number."""
    return f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}"


@app.command()
def verify(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[[run://]HOST:PORT[/NAME] | FOLDER]",
            help="A spool or one of its runs, or a folder on which no spool runs.",
        ),
    ] = _HERE,
    timeout: Timeout = _PATIENCE,
    json: options.Json = False,
) -> None:
    """Read all rows, and check their checksums. Exit code 1: some are damaged."""
    from transfer.spool.server.salvage import SalvagedRun, opened, verify as verify_store

    if Path(what).exists():
        with _unused(Path(what)) as folder, opened(folder) as store:
            found = verify_store(store)
            logged = [one.text for one in store.log.damage if not one.topic.startswith("run/")]
        for text in logged:
            print(f"the log: {text}", file=sys.stderr)
        _show_salvaged(found, json, failed=bool(logged))
    with _connected(what, timeout, named=False) as (spool, only):
        runs = spool.overview()["runs"] if not only else [spool.inspect(only)]
        found = [SalvagedRun(run["name"], run["state"], run["rows"], spool.verify(run)) for run in runs]
    _show_salvaged(found, json)


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
    from transfer.spool.server.salvage import salvage as copy, salvaged

    with _unused(folder) as log, salvaged(log, out) as (store, cut):
        found = copy(store, out)
    if cut:
        print(f"the log is damaged; the copy omits its later part: {cut}", file=sys.stderr)
    _show_salvaged(found, json, failed=bool(cut))


@contextmanager
def _unused(folder: Path) -> Iterator[Path]:
    """Yields the folder of the spool's log: `folder`, or `log` in a broker's folder.

    Raises UsageError if there is none, LogInUse if a program uses it.
    """
    from transfer.broker.storage.folder_parts import LOG
    from transfer.log.read_only import is_log

    log = next((one for one in (folder, folder / LOG) if is_log(one)), None)
    if log is None:
        raise UsageError(
            f"{folder} is no folder of a spool",
            hint="name the folder of `transfer serve --spool`, or of `transfer broker --data`",
        )
    try:
        yield log
    except LogInUse as error:
        raise LogInUse(
            f"a spool or a broker runs on {folder}",
            hint="end it first, or verify the running spool: transfer runs verify HOST:PORT",
        ) from error


def _show_salvaged(found: Sequence[SalvagedRun], as_json: bool, *, failed: bool = False) -> NoReturn:
    runs = [one._asdict() for one in found]
    head = ("name", "state", "rows", "damage")
    show_list(
        runs,
        head,
        lambda run: [run["name"], run["state"], f"{run['rows']:,}", run["damage"] or "whole"],
        as_json=as_json,
        right={"rows"},
        nothing="no runs",
    )
    raise typer.Exit(EXIT_ERROR if failed or any(one.damage for one in found) else 0)
