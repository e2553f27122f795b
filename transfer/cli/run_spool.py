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

from transfer.cli import EXIT_INTERRUPTED
from transfer.cli.heap_trimmer import HeapTrimmer
from transfer.cli.options import show_size
from transfer.cli.service import Asked, logged, raise_descriptor_limit, settle
from transfer.cli.tables import print_json
from transfer.spool.format.address import default_rows_endpoint
from transfer.transports.errors import (
    AddressError,
    InternalError,
    LogDamaged,
    LogInUse,
    NotSupported,
    OptionError,
    TransferError,
)
from transfer.transports.security.guard import is_loopback

if TYPE_CHECKING:
    from transfer.spool.server.server import Spool

_log = logging.getLogger("transfer.spool")

#: seconds between two looks whether the spool still works
_LOOK = 0.2


def serve(
    folder: Path,
    bind: str,
    rows_bind: str | None,
    *,
    retention_bytes: int | None,
    ages: tuple[float | None, ...],
    metrics: str | None,
    as_json: bool,
) -> int:
    """Serves until SIGTERM (0) or Ctrl-C (130). ages: the fields of `Ages`, in their order.

    Raises InternalError when its log or one of its threads failed: start it again.
    """
    endpoint = _endpoint("--bind", bind)
    rows_endpoint = _endpoint("--rows-bind", rows_bind) if rows_bind else default_rows_endpoint(endpoint)
    ended = Asked()
    with logged(), _ended_by(signal.SIGTERM, ended):
        raise_descriptor_limit()
        try:
            with _opened(folder, endpoint, rows_endpoint, retention_bytes, ages, metrics) as spool:
                settle()
                _announce(spool, folder, as_json)
                heap = HeapTrimmer()
                while not ended.wait(_LOOK):
                    heap.trim()
                    if spool.failure is not None:
                        raise _failed(spool.failure)
                _log.info("ended by SIGTERM; rows that were acknowledged are kept")
                return 0
        except KeyboardInterrupt:
            print("transfer: stopped by Ctrl-C", file=sys.stderr)
            return EXIT_INTERRUPTED


def _opened(
    folder: Path,
    endpoint: str,
    rows_endpoint: str,
    retention_bytes: int | None,
    ages: tuple[float | None, ...],
    metrics: str | None,
) -> Spool:
    """Raises what the spool raises, told with what to do about it."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is no folder", hint="name a folder of the spool's own with --spool")
    try:
        import_module("numpy")  # used with the first rows only, which is too late to miss it
        from transfer.spool.server.max_ages import Ages
        from transfer.spool.server.server import Spool
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "transfer":
            raise
        raise NotSupported(
            f"a spool needs {error.name}", hint="pip install 'tensor-transfer[spool]'"
        ) from error
    try:
        return Spool(
            folder,
            endpoint,
            rows_endpoint,
            retention_bytes=retention_bytes,
            ages=Ages(*ages),
            metrics_port=metrics,
        )
    except LogInUse as error:
        raise LogInUse(
            f"another spool runs on {folder}", hint="end it first, or give this one a folder of its own"
        ) from error
    except LogDamaged as error:
        text, _, _ = str(error).partition("\n  hint: ")
        raise LogDamaged(
            f"{folder} is damaged, and nothing was changed: {text}",
            hint="restore the folder, or begin with an empty one and write the runs again; what is whole of "
            "this one, `transfer runs salvage` copies",
        ) from error


def _failed(failure: TransferError) -> InternalError:
    text, _, _ = str(failure).partition("\n  hint: ")
    return InternalError(
        f"the spool has ended: {text}",
        hint="rows that were acknowledged are kept; look at the disk and the log output, and start it again",
    )


def _announce(spool: Spool, folder: Path, as_json: bool) -> None:
    host, _, port = spool.endpoint.removeprefix("tcp://").rpartition(":")
    if host in ("0.0.0.0", "[::]"):
        host = socket.gethostname()
    where = f"run://{host}:{port}"
    if as_json:
        told = {"url": where, "endpoint": spool.endpoint, "rows_endpoint": spool.rows_endpoint}
        print_json(told | {"folder": str(folder.absolute())})
    else:
        print(f"serving {where}/NAME (Ctrl-C ends it)", flush=True)
    runs = spool.store.entries.values()
    size = show_size(sum(run.nbytes for run in runs))
    _log.info("%d runs with %s in %s; rows come in at %s", len(runs), size, folder, spool.rows_endpoint)
    if spool.security.authenticates:
        return
    for endpoint in (spool.endpoint, spool.rows_endpoint):
        if not is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0]):
            _log.warning(
                "%s is open to other machines, without authentication: whoever reaches it can read, write "
                "and delete runs",
                endpoint,
            )


def _endpoint(option: str, text: str) -> str:
    endpoint = text if "://" in text else f"tcp://{text}"
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not host or not (port.isdecimal() or port == "*"):
        raise AddressError(
            f"{option} {text!r} is no place to listen at", hint="for instance tcp://127.0.0.1:5570"
        )
    return endpoint


@contextmanager
def _ended_by(number: signal.Signals, ended: Asked) -> Iterator[None]:
    """In the meantime this signal only says that the end is wished for."""
    before: Any = signal.signal(number, lambda *_: ended.set())
    try:
        yield
    finally:
        signal.signal(number, before)
