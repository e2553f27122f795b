"""`transfer runs verify` and `transfer runs salvage`: which runs are whole, and a copy of those."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from transfer.cli import EXIT_ERROR
from transfer.cli.asking import asked
from transfer.cli.tables import show_table
from transfer.spool.salvage import Found, copy_of, salvage, verify
from transfer.spool.store import Store


def verify_runs(what: str, timeout: float, *, as_json: bool) -> int:
    """All runs of a spool, or of a folder, or one run: the exit status."""
    if Path(what).is_dir():
        store = Store(Path(what))
        try:
            found = verify(store)
            logged = [one.text for one in store.log.damage if not one.topic.startswith("run/")]
        finally:
            store.close()
        for text in logged:
            print(f"the log: {text}", file=sys.stderr)
        return _show(found, as_json) or (EXIT_ERROR if logged else 0)
    with asked(what, timeout, named=False) as (spool, only):
        runs = [run for run in spool.overview()["runs"] if only in ("", run["name"])]
        if only and not runs:
            spool.inspect(only)  # raises that there is none
        found = [Found(run["name"], run["state"], run["rows"], spool.verify(run)) for run in runs]
    return _show(found, as_json)


def salvage_runs(folder: Path, out: Path, *, as_json: bool) -> int:
    """The exit status."""
    with copy_of(folder, out) as (store, cut):
        found = salvage(store, out)
    if cut:
        print(f"the log is damaged, and what it had later is left out: {cut}", file=sys.stderr)
    return _show(found, as_json) or (EXIT_ERROR if cut else 0)


def _show(found: Sequence[Found], as_json: bool) -> int:
    if as_json:
        for one in found:
            print(json.dumps(one._asdict()))
    else:
        rows = [[one.name, one.state, f"{one.rows:,}", one.damage or "whole"] for one in found]
        show_table(("name", "state", "rows", "damage"), rows, right={"rows"})
        if not found:
            print("no runs")
    return EXIT_ERROR if any(one.damage for one in found) else 0
