"""The commands without sockets: bench, doctor, version."""

from __future__ import annotations

import importlib.util
import logging
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transfer.cli.exits import EXIT_INTERRUPTED
from transfer.cli.tables import print_json
from transfer.transports.errors import NotSupported

if TYPE_CHECKING:
    from transfer.doctor.finding import Check

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "off": ("-", "dim")}


def run_bench(arguments: list[str]) -> int:
    """Runs `python -m bench` of the repository, which is no part of the installed package."""
    spec = importlib.util.find_spec("bench")
    if spec is None or importlib.util.find_spec("bench.__main__") is None:
        raise NotSupported(
            "these benchmarks are not installed, only `transfer bench broker`",
            hint="run `make bench` in the repository",
        )
    import runpy

    sys.argv = ["bench", *arguments]
    runpy.run_module("bench", run_name="__main__", alter_sys=True)  # it ends with SystemExit
    return 0


def run_doctor(*, as_json: bool) -> int:
    """Checks this machine. Returns 0 if nothing failed, else 1."""
    from transfer import doctor

    try:
        with _without_warnings():
            checks = doctor.examine()
    except KeyboardInterrupt:
        print("transfer: stopped by Ctrl-C", file=sys.stderr)
        return EXIT_INTERRUPTED
    fine = doctor.healthy(checks)
    if as_json:
        print_json({"healthy": fine, "checks": doctor.as_data(checks)})
    else:
        _show(checks)
        print(f"\n{_summary(checks)}")
    return 0 if fine else 1


def _summary(checks: Sequence[Check]) -> str:
    found = {check.status for check in checks}
    if "fail" in found:
        return "Something does not work: see the lines with ✗."
    return "All that this machine has works" + ("; see the lines with !." if "warn" in found else ".")


def serve_doctor(endpoint: str, *, as_json: bool) -> int:
    """Answers measurements until Ctrl-C."""
    from transfer.doctor.throughput import serve

    def started(real: str) -> None:
        if as_json:
            print_json({"endpoint": real})
        else:
            print(f"answering at {real} (Ctrl-C ends it)", flush=True)

    serve(endpoint, started, lambda: False)
    return 0


def measure_peer(peer: str, seconds: float, floor: float, *, as_json: bool) -> int:
    """Measures. Returns 0 if the automatic transport works and reaches `floor` Gbit/s, else 1."""
    from transfer import doctor
    from transfer.doctor.throughput import as_checks, endpoint_of, measure

    def next_way(way: str) -> None:
        if sys.stderr.isatty():
            print(f"measuring {way} ...", file=sys.stderr)

    with _without_warnings():
        checks = list(as_checks(measure(endpoint_of(peer), seconds, next_way), floor))
    fine = doctor.healthy(checks)
    if as_json:
        print_json({"healthy": fine, "checks": doctor.as_data(checks)})
    else:
        _show(checks)
    return 0 if fine else 1


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Disables warnings that a better transport is not used: the doctor does that on purpose."""
    logger = logging.getLogger("transfer")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _show(checks: list[Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    class ShellConsole(Console):
        def on_broken_pipe(self) -> None:
            """Raises the error, which `transfer` handles: rich would end with exit code 1."""
            raise BrokenPipeError

    console = ShellConsole(highlight=False, soft_wrap=True)
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            console.print(Text(f"\n{group}", style="bold"))
        mark, style = _MARKS[check.status]
        console.print(Text(f"  {mark} ", style=style) + Text(f"{check.name:<18}") + Text(check.detail))
        if check.hint:
            console.print(Text(f"      → {check.hint}", style=style))


def show_version(*, as_json: bool) -> None:
    """Prints the versions of transfer, core and Python, for bug reports."""
    from transfer import __version__
    from transfer.transports import core

    versions = {"transfer": __version__, "core": core.IMPLEMENTATION, "python": platform.python_version()}
    if as_json:
        print_json(versions)
    else:
        print(", ".join(f"{name} {value}" for name, value in versions.items()))
