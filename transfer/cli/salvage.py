"""`transfer runs verify` and `transfer runs salvage`: which runs are whole, and a copy of those."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transfer.broker.storage.folder_parts import LOG
from transfer.cli import EXIT_ERROR
from transfer.cli.run_view import asked
from transfer.cli.tables import print_json, show_table
from transfer.log.read_only import is_log
from transfer.spool.server.salvage import Found, opened, salvage, salvaged, verify
from transfer.transports.errors import LogInUse, UsageError


def verify_runs(what: str, timeout: float, *, as_json: bool) -> int:
    """All runs of a spool, or of a folder, or one run: the exit status."""
    if Path(what).exists():
        with _unused(Path(what)) as folder, opened(folder) as store:
            found = verify(store)
            logged = [one.text for one in store.log.damage if not one.topic.startswith("run/")]
        for text in logged:
            print(f"the log: {text}", file=sys.stderr)
        return _show(found, as_json) or (EXIT_ERROR if logged else 0)
    with asked(what, timeout, named=False) as (spool, only):
        runs = spool.overview()["runs"] if not only else [spool.inspect(only)]
        found = [Found(run["name"], run["state"], run["rows"], spool.verify(run)) for run in runs]
    return _show(found, as_json)


def salvage_runs(folder: Path, out: Path, *, as_json: bool) -> int:
    """The exit status."""
    with _unused(folder) as log, salvaged(log, out) as (store, cut):
        found = salvage(store, out)
    if cut:
        print(f"the log is damaged, and what it had later is left out: {cut}", file=sys.stderr)
    return _show(found, as_json) or (EXIT_ERROR if cut else 0)


@contextmanager
def _unused(folder: Path) -> Iterator[Path]:
    """Where the spool's log is: the folder, or `log` in that of a broker. Raises UsageError: there is none;
    LogInUse: it is in use."""
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
            hint="end it first; one that runs is asked by its address: transfer runs verify HOST:PORT",
        ) from error


def _show(found: Sequence[Found], as_json: bool) -> int:
    if as_json:
        for one in found:
            print_json(one._asdict())
    else:
        rows = [[one.name, one.state, f"{one.rows:,}", one.damage or "whole"] for one in found]
        show_table(("name", "state", "rows", "damage"), rows, right={"rows"})
        if not found:
            print("no runs")
    return EXIT_ERROR if any(one.damage for one in found) else 0
