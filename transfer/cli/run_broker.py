"""`transfer broker`: a broker in this process, until a signal or its log's failure ends it."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transfer.broker.config.configuration import Configuration, ConfigValue, configured
from transfer.cli import EXIT_ERROR, EXIT_INTERRUPTED
from transfer.cli.heap_trimmer import HeapTrimmer
from transfer.cli.options import show_size
from transfer.cli.service import Asked, logged, raise_descriptor_limit, settle
from transfer.cli.tables import print_json
from transfer.config import broker_environment
from transfer.transports.config import security
from transfer.transports.errors import (
    InternalError,
    LogDamaged,
    LogInUse,
    OptionError,
    TransferError,
    UsageError,
)
from transfer.transports.security.guard import is_loopback

if TYPE_CHECKING:
    from transfer.broker.server import Broker

_log = logging.getLogger("transfer.broker")

#: seconds between two looks whether the log still works
_LOOK = 0.2
#: places whose peers prove to know the token, if there is one
_TOKEN_PROVED = ("own", "spool", "rows")


class _Signals:
    """SIGTERM and Ctrl-C, counted: the first asks for a clean end, the second for one at once."""

    def __init__(self) -> None:
        self.asked = Asked()
        self.urged = Asked()
        self.first = signal.SIGTERM

    def take(self, number: int, _: object) -> None:
        """The handler."""
        if self.asked.is_set():
            self.urged.set()
        else:
            self.first = signal.Signals(number)
            self.asked.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """In the meantime they are counted, and do nothing else."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before: list[Any] = [signal.signal(number, self.take) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def run(flags: Sequence[ConfigValue], file: Path | None, *, as_json: bool) -> int:
    """Serves until SIGTERM (0) or Ctrl-C (130). Raises InternalError when the log failed: begin it anew."""
    configuration = _configuration(flags, file)
    signals = _Signals()
    with logged(), signals.taken():
        raise_descriptor_limit()
        with _opened(configuration) as broker:
            settle()
            _announce(broker, as_json)
            heap = HeapTrimmer()
            while not signals.asked.wait(_LOOK):
                heap.trim()
                if broker.failure is not None:
                    raise _failed(broker.failure)
            _drain(broker, signals.urged)
        _log.info("ended by %s; what was acknowledged is kept", signals.first.name)
    return EXIT_INTERRUPTED if signals.first is signal.SIGINT else 0


def _configuration(flags: Sequence[ConfigValue], file: Path | None) -> Configuration:
    """Raises OptionError."""
    told = broker_environment()
    environment = [ConfigValue(option, text, f"the variable {name}") for name, option, text in told.options]
    path = file or (Path(told.file) if told.file else None)
    configuration = configured(flags, environment, path, lambda fields: security(given=fields))
    if configuration.folder is None:
        raise OptionError("where to keep everything is not said", hint="give it with --data DIR")
    if told.idle:
        names = " and ".join(told.idle)
        print(f"transfer: {names}: without meaning here, since no other process is needed", file=sys.stderr)
    return configuration


def _opened(configuration: Configuration) -> Broker:
    """Raises what the broker raises, told with what to do about it."""
    from transfer.broker.server import Broker

    folder = configuration.folder
    assert folder is not None
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is no folder", hint="name a folder of the broker's own with --data")
    begun = time.monotonic()
    try:
        broker = Broker(folder, configuration.settings)
    except LogInUse as error:
        raise LogInUse(
            f"another broker runs on {folder}", hint="end it first, or give this one a folder of its own"
        ) from error
    except LogDamaged as error:
        text, _, _ = str(error).partition("\n  hint: ")
        raise LogDamaged(
            f"{folder} is damaged, and nothing was changed: {text}",
            hint=f"`transfer broker check {folder}` tells all of it; restore it, or begin an empty folder",
        ) from error
    size = show_size(broker.hub.store.log.disk_bytes)
    topics = len(broker.hub.store.topics)
    _log.info("%d topics in %s of %s, open in %.2f s", topics, size, folder, time.monotonic() - begun)
    return broker


def _failed(failure: TransferError) -> InternalError:
    text, _, _ = str(failure).partition("\n  hint: ")
    return InternalError(
        f"the broker has ended, since its log failed: {text}",
        hint="what was acknowledged is kept; look at the disk, and start it again",
    )


def _drain(broker: Broker, urged: Asked) -> None:
    """Lets what has begun come to its end, if nobody urges."""
    deadline = time.monotonic() + broker.settings.drain
    broker.drain()
    while not broker.drained.wait(0.05):
        if urged.is_set():
            _log.warning("ended at once, as it was asked for again")
            return
        if time.monotonic() >= deadline:
            _log.warning("ended after %g s, with something still on its way", broker.settings.drain)
            return


def _announce(broker: Broker, as_json: bool) -> None:
    """Where everything listens: on standard output, the first line as soon as it is so."""
    places = {name: broker.endpoints_of(name) for name in broker.fronts}
    http = next(iter(broker.endpoints_of("http")), None)
    spool = {name: broker.endpoints[name] for name in ("spool", "rows") if name in broker.endpoints}
    if as_json:
        told: dict[str, object] = {"folder": str(broker.folder.absolute()), "http": http, "fronts": places}
        told |= {"ports": broker.ports, "endpoints": broker.endpoints}
        print_json(told)
    else:
        lines = [f"serving {broker.folder} (Ctrl-C ends it)"]
        lines += [f"  {name:<10}{place}" for name, listens in places.items() for place in listens]
        lines += [f"  {'spool':<10}{endpoint} {name}" for name, endpoint in spool.items()]
        lines += [f"  {'console':<10}{http}/"] if http else []
        print("\n".join(lines), flush=True)
    _warn_of_strangers(broker)


def _warn_of_strangers(broker: Broker) -> None:
    """Where others than this machine may come in without showing who they are, as somebody has allowed."""
    shown = broker.context.credentials.security
    if shown.authenticates and shown.asks_certificates:
        return
    places = {name: broker.endpoints_of(name) for name in broker.fronts}
    places |= {name: [broker.endpoints[name]] for name in ("spool", "rows") if name in broker.endpoints}
    open_to_all = [
        f"{name} at {place}"
        for name, listens in places.items()
        for place in listens
        if not _is_here(place.split()[0]) and (not shown.authenticates or name not in _TOKEN_PROVED)
    ]
    if open_to_all:
        _log.warning(
            "%s: open to other machines, without authentication: whoever reaches it can publish and read",
            ", ".join(open_to_all),
        )
    http = broker.endpoints_of("http")
    for place in [*http, *(broker.endpoints_of("ttp") if http else ())]:  # which takes HTTP too
        if not _is_here(place) and not broker.settings.token and not shown.authenticates:
            _log.warning(
                "HTTP at %s is open to other machines without ADMIN_TOKEN: whoever reaches it sees the names "
                "of topics and groups; operators are heard from this machine only",
                place,
            )


def _is_here(endpoint: str) -> bool:
    scheme, _, rest = endpoint.partition("://")
    return scheme not in ("tcp", "http", "https") or is_loopback(rest.rpartition(":")[0])


# -- check -----------------------------------------------------------------------------------------------


def check_folder(folder: Path, *, as_json: bool, quiet: bool) -> int:
    """Reads a broker's folder: 0 all is whole, 1 something is damaged. Raises UsageError when there is
    none, LogInUse when a broker runs there."""
    from transfer.broker.storage.folder_check import check
    from transfer.cli.progress import Progress

    total = sum(file.stat().st_size for file in (folder / "log").glob("*") if file.is_file())
    with Progress("checked", total_bytes=total, quiet=quiet or as_json) as progress:
        report = check(folder, lambda nbytes: progress.add(nbytes - progress.nbytes))
    if as_json:
        print_json(report.as_json())
    else:
        for part in report.parts:
            state = "whole" if not part.problems else "DAMAGED"
            print(f"{part.name:<8}{state:<9}{part.found}")
            for problem in part.problems:
                print(f"  {problem}")
    return 0 if report.whole else EXIT_ERROR


def forget_lost_state(folder: Path) -> int:
    """Raises UsageError when there is no broker's folder, LogInUse when a broker runs there."""
    from transfer.broker.storage.folder_parts import LOG, forget_lost

    if not (folder / LOG).is_dir():
        raise UsageError(f"{folder} has no data of a broker", hint="name the folder that --data was given")
    lost = forget_lost(folder)
    print(f"the next broker begins without: {lost}" if lost else f"nothing is lost in {folder}")
    return 0
