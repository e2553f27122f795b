"""`transfer serve`: a spool in this process, until a signal or its failure ends it."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transfer.cli.exits import EXIT_INTERRUPTED
from transfer.cli.service import StopEvent, logged, opened, raise_descriptor_limit, run_until
from transfer.cli.tables import print_json
from transfer.spool.format.address import default_rows_endpoint
from transfer.transports.errors import AddressError, OptionError, comes_with
from transfer.transports.security.guard import is_loopback
from transfer.units import show_size

if TYPE_CHECKING:
    from transfer.cli.options import Kept
    from transfer.spool.server.server import Spool

_log = logging.getLogger("transfer.spool")


def serve(kept: Kept, *, as_json: bool) -> int:
    """Serves until SIGTERM (returns 0) or Ctrl-C (130).

    Raises InternalError when its log or one of its threads failed: restart it.
    """
    ended = StopEvent()
    with logged(), _ended_by(signal.SIGTERM, ended):
        raise_descriptor_limit()
        try:
            with _opened(kept) as spool:
                _announce(spool, kept.spool, as_json)
                hint = "acknowledged rows are kept; check the disk and the log output, and restart the spool"
                run_until(ended, spool, "the spool has ended", hint=hint)
                _log.info("ended by SIGTERM; acknowledged rows are kept")
                return 0
        except KeyboardInterrupt:
            print("transfer: stopped by Ctrl-C", file=sys.stderr)
            return EXIT_INTERRUPTED


def _opened(kept: Kept) -> Spool:
    """Opens the spool. Raises its errors with hints for the command line."""
    endpoint = _endpoint("--bind", kept.bind)
    rows = _endpoint("--rows-bind", kept.rows_bind) if kept.rows_bind else default_rows_endpoint(endpoint)
    with comes_with("spool", "a spool"):
        import_module("numpy")  # it is first needed with the first rows, which is too late for this error
        from transfer.spool.server.max_ages import Ages
        from transfer.spool.server.server import Spool
    hint = (
        "restore the folder, or start with an empty one and write the runs again; "
        "`transfer runs salvage` copies the undamaged runs"
    )

    if kept.metrics is not None:
        _check_metrics(kept.metrics)
    ages = Ages(kept.retention_age, kept.staged_age, kept.failed_age, kept.group_age, kept.unread_age)
    more = {"retention_bytes": kept.retention_bytes, "ages": ages, "metrics_port": kept.metrics}
    return opened(
        lambda: Spool(kept.spool, endpoint, rows, **more),
        kept.spool,
        "spool",
        option="--spool",
        damaged=hint,
    )


def _announce(spool: Spool, folder: Path, as_json: bool) -> None:
    host, _, port = spool.endpoint.removeprefix("tcp://").rpartition(":")
    if host in ("0.0.0.0", "[::]"):
        host = socket.gethostname()
    where = f"run://{host}:{port}"
    if as_json:
        places = {"url": where, "endpoint": spool.endpoint, "rows_endpoint": spool.rows_endpoint}
        print_json(places | {"folder": str(folder.absolute())})
    else:
        print(f"serving {where}/NAME (Ctrl-C ends it)", flush=True)
    runs = spool.store.entries.values()
    size = show_size(sum(run.nbytes for run in runs))
    _log.info("%d runs with %s in %s; accepting rows at %s", len(runs), size, folder, spool.rows_endpoint)
    if spool.security.authenticates:
        return
    for endpoint in (spool.endpoint, spool.rows_endpoint):
        if not is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0]):
            _log.warning(
                "%s: accepting other machines without authentication: any of them can read, write and delete "
                "runs",
                endpoint,
            )


def _endpoint(option: str, text: str) -> str:
    endpoint = text if "://" in text else f"tcp://{text}"
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not host or not (port.isdecimal() or port == "*"):
        raise AddressError(
            f"{option} {text!r} is no endpoint to listen at", hint="for instance tcp://127.0.0.1:5570"
        )
    return endpoint


def _check_metrics(place: str) -> None:
    port = place.rpartition(":")[2]
    if not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"--metrics is {place!r}", hint="it has to be a port from 0 to 65535, or HOST:PORT")


@contextmanager
def _ended_by(number: signal.Signals, ended: StopEvent) -> Iterator[None]:
    """Within the block this signal only sets the event."""
    before: Any = signal.signal(number, lambda *_: ended.set())
    try:
        yield
    finally:
        signal.signal(number, before)
