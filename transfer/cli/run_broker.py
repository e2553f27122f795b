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
from transfer.broker.config.options import OTHER_NAMES
from transfer.cli.exits import EXIT_ERROR, EXIT_INTERRUPTED
from transfer.cli.service import StopEvent, logged, opened, raise_descriptor_limit, run_until
from transfer.cli.tables import print_json
from transfer.config import broker_environment
from transfer.transports.config import security
from transfer.transports.errors import (
    OptionError,
    UsageError,
)
from transfer.transports.security.guard import is_loopback
from transfer.units import show_size

if TYPE_CHECKING:
    from transfer.broker.server import Broker

_log = logging.getLogger("transfer.broker")

#: endpoints whose protocol has a token
_TOKEN_PROVED = ("native", "spool", "rows")


class _Signals:
    """Counts SIGTERM and Ctrl-C: the first requests a clean stop, the second an immediate one."""

    def __init__(self) -> None:
        self.stop = StopEvent()
        self.stop_now = StopEvent()
        self.first = signal.SIGTERM

    def take(self, number: int, _: object) -> None:
        """Handles a signal."""
        if self.stop.is_set():
            self.stop_now.set()
        else:
            self.first = signal.Signals(number)
            self.stop.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within the block the signals are only counted."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before: list[Any] = [signal.signal(number, self.take) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def run(flags: Sequence[ConfigValue], file: Path | None, *, as_json: bool) -> int:
    """Serves until SIGTERM (returns 0) or Ctrl-C (130).

    Raises InternalError when the log failed: restart it.
    """
    configuration = _configuration(flags, file)
    signals = _Signals()
    with logged(), signals.taken():
        raise_descriptor_limit()
        with _opened(configuration) as broker:
            _announce(broker, as_json)
            hint = "acknowledged messages are kept; check the disk, and restart the broker"
            run_until(signals.stop, broker, "the broker has ended, since its log failed", hint=hint)
            _drain(broker, signals.stop_now)
        _log.info("ended by %s; acknowledged messages are kept", signals.first.name)
    return EXIT_INTERRUPTED if signals.first is signal.SIGINT else 0


def _configuration(flags: Sequence[ConfigValue], file: Path | None) -> Configuration:
    """Combines flags, environment and file. Raises OptionError."""
    variables = broker_environment(OTHER_NAMES)
    environment = [
        ConfigValue(option, text, f"the variable {name}") for name, option, text in variables.options
    ]
    path = file or (Path(variables.file) if variables.file else None)
    configuration = configured(flags, environment, path, lambda fields: security(given=fields))
    if configuration.folder is None:
        raise OptionError("no data folder is configured", hint="give it with --data DIR")
    if variables.idle:
        names = " and ".join(variables.idle)
        print(f"transfer: {names}: no effect, since the broker needs no other process", file=sys.stderr)
    return configuration


def _opened(configuration: Configuration) -> Broker:
    """Opens the broker. Raises its errors with hints for the command line."""
    from transfer.broker.server import Broker

    folder = configuration.folder
    assert folder is not None
    begun = time.monotonic()
    hint = f"`transfer broker check {folder}` lists all damage; restore it, or use an empty folder"
    broker = opened(
        lambda: Broker(folder, configuration.settings), folder, "broker", option="--data", damaged=hint
    )
    size = show_size(broker.hub.store.log.disk_bytes)
    topics = len(broker.hub.store.topics)
    _log.info("%d topics in %s of %s, open in %.2f s", topics, size, folder, time.monotonic() - begun)
    return broker


def _drain(broker: Broker, stop_now: StopEvent) -> None:
    """Waits for begun work, until the deadline or a second signal."""
    deadline = time.monotonic() + broker.settings.drain_timeout
    broker.drain()
    while not broker.drained.wait(0.05):
        if stop_now.is_set():
            _log.warning("ended at once, because of a second signal")
            return
        if time.monotonic() >= deadline:
            _log.warning("ended after %g s, with unfinished work", broker.settings.drain_timeout)
            return


def _announce(broker: Broker, as_json: bool) -> None:
    """Prints where everything listens, as soon as it listens."""
    places = {name: broker.endpoints_of(name) for name in broker.fronts}
    http = next(iter(broker.endpoints_of("http")), None)
    spool = {name: broker.endpoints[name] for name in ("spool", "rows") if name in broker.endpoints}
    if as_json:
        listens: dict[str, object] = {"folder": str(broker.folder.absolute()), "http": http, "fronts": places}
        listens |= {"ports": broker.ports, "endpoints": broker.endpoints}
        print_json(listens)
    else:
        lines = [f"serving {broker.folder} (Ctrl-C ends it)"]
        lines += [f"  {name:<10}{place}" for name, found in places.items() for place in found]
        lines += [f"  {'spool':<10}{endpoint} {name}" for name, endpoint in spool.items()]
        lines += [f"  {'console':<10}{http}/"] if http else []
        print("\n".join(lines), flush=True)
    _warn_of_exposure(broker)


def _warn_of_exposure(broker: Broker) -> None:
    """Warns of endpoints that accept other machines without authentication, as the configuration allows."""
    security_settings = broker.context.credentials.security
    if security_settings.authenticates and security_settings.asks_certificates:
        return
    places = {name: broker.endpoints_of(name) for name in broker.fronts}
    places |= {name: [broker.endpoints[name]] for name in ("spool", "rows") if name in broker.endpoints}
    open_to_all = [
        f"{name} at {place}"
        for name, listens in places.items()
        for place in listens
        if not _is_local(place.split()[0])
        and (not security_settings.authenticates or name not in _TOKEN_PROVED)
    ]
    if open_to_all:
        _log.warning(
            "%s: accepting other machines without authentication: any of them can publish and read",
            ", ".join(open_to_all),
        )
    http = broker.endpoints_of("http")
    for place in [*http, *(broker.endpoints_of("ttp") if http else ())]:  # which takes HTTP too
        if not _is_local(place) and not broker.settings.token and not security_settings.authenticates:
            _log.warning(
                "HTTP at %s accepts other machines without ADMIN_TOKEN: any of them can read the names of "
                "topics and groups; operators' calls are accepted from this machine only",
                place,
            )


def _is_local(endpoint: str) -> bool:
    scheme, _, rest = endpoint.partition("://")
    return scheme not in ("tcp", "http", "https") or is_loopback(rest.rpartition(":")[0])


# -- check -----------------------------------------------------------------------------------------------


def check_folder(folder: Path, *, as_json: bool, quiet: bool) -> int:
    """Checks a broker's folder. Returns 1 if it is damaged, else 0.

    Raises UsageError if it is no broker's folder, LogInUse if a broker runs there.
    """
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
    """Confirms the loss of a database.

    Raises UsageError for other folders, LogInUse if a broker runs there.
    """
    from transfer.broker.storage.folder_parts import LOG, forget_lost

    if not (folder / LOG).is_dir():
        raise UsageError(f"{folder} has no data of a broker", hint="name the folder of --data")
    lost = forget_lost(folder)
    print(f"the next broker starts without: {lost}" if lost else f"nothing is lost in {folder}")
    return 0
