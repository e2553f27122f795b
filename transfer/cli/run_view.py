"""`transfer runs`: shows and deletes the runs of a spool, as text or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from transfer.cli.confirmation import confirmed
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.tables import print_json, show_table
from transfer.spool.client.admin import SpoolAdmin, Steps, behind, ranges
from transfer.spool.format.address import SCHEME
from transfer.transports.errors import AddressError, UsageError
from transfer.units import show_age, show_size


@contextmanager
def connected(address: str, timeout: float, *, named: bool = True) -> Iterator[tuple[SpoolAdmin, str]]:
    """Connects to the spool at an address, and yields it and the run's name. named: requires a run's name."""
    with SpoolAdmin(address if "://" in address else SCHEME + address, timeout=timeout) as spool:
        if named and not spool.address.run:
            raise AddressError(
                f"{address!r} names no run", hint=f"{spool.address}/NAME; `transfer runs list`"
            )
        yield spool, spool.address.run


def list_runs(address: str, timeout: float, *, as_json: bool) -> None:
    """Lists all runs, or the run of the address."""
    with connected(address, timeout, named=False) as (spool, only):
        found = spool.overview()
        runs = found["runs"] if not only else [spool.inspect(only)]
    if as_json:
        for run in runs:
            print_json(run | {"groups": _groups(run), "full": found["full"]})
        return
    head = ("name", "state", "kind", "delivery", "rows", "kept", "staged", "partitions", "idle", "groups")
    show_table(head, [_line(run) for run in runs], right={"rows", "kept", "staged", "partitions", "idle"})
    if not runs:
        print("no runs")
    print(f"on the disk: {show_size(found['disk_bytes'])}", file=sys.stderr)
    if found["full"]:
        print(f"writers wait: {found['full']}", file=sys.stderr)


def _line(run: dict[str, Any]) -> list[str]:
    groups = [f"{name}: {_progress(group)}" for name, group in _groups(run).items()]
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
    return {name: group | {"behind": behind(run, name)} for name, group in sorted(run["groups"].items())}


def inspect_run(address: str, timeout: float, *, as_json: bool) -> None:
    """Shows a run with its columns, groups, readers and jobs."""
    with connected(address, timeout) as (spool, name):
        run = spool.inspect(name)
    run["groups"] = _groups(run)
    if as_json:
        print_json(run)
        return
    created = datetime.fromtimestamp(run["created"]).astimezone()
    for word, text in (
        ("run", run["name"]),
        ("id", run["run_id"]),
        ("state", run["state"]),
        *([("damage", run["damage"])] if run["damage"] else []),
        ("kind", f"{run['kind']}, delivery {run['delivery']}"),
        ("created", created.isoformat(sep=" ", timespec="seconds")),
        ("rows", f"{run['rows']:,} in {run['frames']:,} frames of {run['partitions']:,} partitions"),
        ("bytes", f"{show_size(run['kept_bytes'])} kept, of {show_size(run['bytes'])}"),
        ("staged rows", f"{run['staged_rows']:,}, {show_size(run['staged_bytes'])}"),
        ("idle", show_age(run["idle"])),
        ("stray frames", f"{run['stray_frames']:,}"),
    ):
        print(f"{word:<13} {text}")
    columns = [[c["name"], c["kind"], c["dtype"], "×".join(map(str, c["shape"]))] for c in _columns(run)]
    _show_part("columns", ("name", "kind", "type", "shape of a row"), columns)
    _show_part("groups", _GROUP_HEAD, [_group_line(*one) for one in run["groups"].items()])
    readers = [[one["group"], f"{one['shard']} of {one['shards']}"] for one in run["readers"]]
    _show_part("readers", ("group", "shard"), readers)
    jobs = [
        [name, str(job["attempts"]), str(job["ended"]), f"{job['rows']:,}"]
        for name, job in run["jobs"].items()
    ]
    _show_part("jobs that write", ("name", "attempts", "ended", "rows"), jobs)


_GROUP_HEAD = ("name", "acknowledged", "delivered", "rows behind", "shards", "never came", "holds", "idle")


def _group_line(name: str, group: dict[str, Any]) -> list[str]:
    held = "given up" if group["given_up"] else show_size(group["held_bytes"]) if group["held_bytes"] else "-"
    places = [_place(group["acknowledged"]), _place(group["delivered"])]
    shards = [str(group["shards"]), str(group["absent"])]
    return [name, *places, f"{group['behind']:,}", *shards, held, show_age(group["idle"])]


def list_groups(address: str, timeout: float, *, as_json: bool) -> None:
    """Lists the groups of a run."""
    with connected(address, timeout) as (spool, name):
        groups = spool.groups(name)
    if as_json:
        for group, status in groups.items():
            print_json({"name": group} | status)
        return
    lines = [[*_group_line(group, status), str(status["readers"])] for group, status in groups.items()]
    show_table((*_GROUP_HEAD, "readers"), lines, right={"rows behind", "holds", "idle", "readers"})
    if not groups:
        print("no groups")


def forget_group(address: str, group: str, timeout: float, *, sure: bool, force: bool, as_json: bool) -> int:
    """Asks for confirmation, unless `sure`, and removes a group. Returns 1 if the user declines.

    Raises OptionError if there is no such group, UsageError if consumers are reading it.
    """
    with connected(address, timeout) as (spool, name):
        status = spool.groups(name).get(group)
        if status is not None and not sure:
            what = f"{status['behind']:,} rows behind, holds {show_size(status['held_bytes'])}"
            if not confirmed(f"Forget group {group} of run {name} ({what})?"):
                print("transfer: nothing was changed", file=sys.stderr)
                return EXIT_ERROR
        nbytes = spool.forget_group(name, group, force=force)
    if as_json:
        print_json({"forgotten": group, "run": name, "bytes": nbytes})
    else:
        print(f"forgot group {group} of run {name}: {show_size(nbytes)} are given back")
    return 0


def delete_run(address: str, timeout: float, *, sure: bool, force: bool, as_json: bool) -> int:
    """Asks for confirmation, unless `sure`, and deletes a run. Returns 1 if the user declines.

    Raises UsageError if a program reads or writes the run.
    """
    with connected(address, timeout) as (spool, name):
        run = spool.inspect(name)
        if not sure:
            what = f"{run['state']}, {run['rows']:,} rows, {show_size(run['bytes'])}"
            if not confirmed(f"Delete run {name} ({what})?"):
                print("transfer: nothing was deleted", file=sys.stderr)
                return EXIT_ERROR
        rows, nbytes = spool.delete(name, force=force, run_id=run["run_id"])
    if as_json:
        print_json({"deleted": name, "rows": rows, "bytes": nbytes})
    else:
        print(f"deleted run {name}: {rows:,} rows, {show_size(nbytes)}")
    return 0


def show_lineage(
    address: str, timeout: float, group: str, *, step: int | None, parquet: Path | None, as_json: bool
) -> None:
    """Shows which rows the steps of a group had: all steps in short, one step, or each row in a file."""
    if parquet is not None and as_json:
        raise UsageError("--parquet goes without --json: give one of them")
    with connected(address, timeout) as (spool, name):
        known = spool.lineage(name, group) if step is None else [spool.step(name, group, step)]
        if parquet is not None:
            from transfer.spark.lineage import write_lineage

            rows = write_lineage(spool.explain(name, known), parquet)
            print(f"{rows:,} rows of {sum(one.steps for one in known):,} steps: {parquet}")
            return
        pieces = None if step is None else _merge(spool, name, known)
    _show_steps(known, pieces, as_json=as_json)


def _merge(spool: SpoolAdmin, name: str, known: Sequence[Steps]) -> list[dict[str, Any]]:
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


def _columns(run: dict[str, Any]) -> list[dict[str, Any]]:
    from transfer.spool.format.rows import from_json

    return [
        {"name": one.name, "kind": one.kind, "dtype": one.dtype, "shape": one.shape}
        for one in from_json(run["columns"])
    ]


def _place(position: Sequence[int] | None) -> str:
    return "-" if position is None else f"epoch {position[0]}, row {position[1]:,}"


def _span(begin: int, end: int) -> str:
    """Formats [begin, end) as a range that includes its last number."""
    return f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}"


def _show_part(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    if lines:
        print(f"\n{title}")
        show_table(head, lines, indent="  ")
