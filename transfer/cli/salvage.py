"""`transfer runs verify` and `transfer runs salvage`: finds undamaged runs, and copies them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transfer.broker.storage.folder_parts import LOG
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.run_view import connected
from transfer.cli.tables import print_json, show_table
from transfer.log.read_only import is_log
from transfer.spool.server.salvage import SalvagedRun, opened, salvage, salvaged, verify
from transfer.transports.errors import LogInUse, UsageError


def verify_runs(what: str, timeout: float, *, as_json: bool) -> int:
    """Verifies all runs of a spool or of a folder, or one run. Returns the exit code."""
    if Path(what).exists():
        with _unused(Path(what)) as folder, opened(folder) as store:
            found = verify(store)
            logged = [one.text for one in store.log.damage if not one.topic.startswith("run/")]
        for text in logged:
            print(f"the log: {text}", file=sys.stderr)
        return _show(found, as_json) or (EXIT_ERROR if logged else 0)
    with connected(what, timeout, named=False) as (spool, only):
        runs = spool.overview()["runs"] if not only else [spool.inspect(only)]
        found = [SalvagedRun(run["name"], run["state"], run["rows"], spool.verify(run)) for run in runs]
    return _show(found, as_json)


def salvage_runs(folder: Path, out: Path, *, as_json: bool) -> int:
    """Copies the undamaged runs into a new folder. Returns the exit code."""
    with _unused(folder) as log, salvaged(log, out) as (store, cut):
        found = salvage(store, out)
    if cut:
        print(f"the log is damaged; the copy omits its later part: {cut}", file=sys.stderr)
    return _show(found, as_json) or (EXIT_ERROR if cut else 0)


@contextmanager
def _unused(folder: Path) -> Iterator[Path]:
    """Yields the folder of the spool's log: `folder`, or `log` in a broker's folder.

    Raises UsageError if there is none, LogInUse if a program uses it.
    """
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


def _show(found: Sequence[SalvagedRun], as_json: bool) -> int:
    if as_json:
        for one in found:
            print_json(one._asdict())
    else:
        rows = [[one.name, one.state, f"{one.rows:,}", one.damage or "whole"] for one in found]
        show_table(("name", "state", "rows", "damage"), rows, right={"rows"})
        if not found:
            print("no runs")
    return EXIT_ERROR if any(one.damage for one in found) else 0
