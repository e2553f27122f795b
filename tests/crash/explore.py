"""Records programs, makes the states that a crash may leave, and opens each of them with the product's code.

    python -m tests.crash.explore --states 500 --seed 1 log_appends spool_jobs

Runs with the recorder preloaded; pytest and `main` start it so. One process opens all states. It prints what
it finds as JSON. The `point`, `choice` and `seed` of a fault make its state again (`--point`, `--choice`).
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.disk_model import CHOICES, Choice, Disk, Node, read, write
from tests.crash.program import Program
from tests.crash.recorder import LIBRARY, Kind, Operation, Recorder, Trace, build

#: of so many states one is opened with the recorder on, and crashes again
_AGAIN = 8
#: states of such a second crash
_SECOND = 6
#: seconds without a state's end after which the process ends, with a traceback
_STUCK = 60
#: between syncs that are left out together
AND = "+"
_CHANGES = frozenset(Kind) - {Kind.MARK, Kind.OPEN, Kind.SYNC_BEGIN}


@dataclass
class Fault:
    """A state that is not as it has to be. point: operations before the crash; choice: what survived."""

    program: str
    point: int
    choice: str
    seed: int
    text: str
    second: str = ""


@dataclass
class Report:
    """states: different ones that were opened. again: of these, states of a second crash."""

    program: str
    operations: int = 0
    states: int = 0
    again: int = 0
    sites: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


class Explorer:
    """One recorded program. work: a folder of its own for all that it writes."""

    def __init__(self, program: Program, work: Path, recorder: Recorder) -> None:
        self.program = program
        self._work = work
        self._recorder = recorder
        self._number = 0
        root = work / f"{program.name}"
        root.mkdir()
        self._start = read(root)
        with recorder.recording(root, delay=program.delay) as traces:
            program.run(root, recorder.mark)
        self.trace = traces[0]
        shutil.rmtree(root)

    def explore(
        self,
        states: int,
        seed: int,
        *,
        ignored: frozenset[str] = frozenset(),
        again: bool = True,
        enough: int = 0,
        only: tuple[int, str] | None = None,
    ) -> Report:
        """Opens so many states, or until `enough` faults are found. ignored: syncs that are left out. only:
        the point and the choice of one state."""
        report = Report(self.program.name, len(self.trace.operations))
        seen: set[bytes] = set()
        disk = Disk(self.trace, self._start, ignored)
        plan = _planned(self.trace.operations, states, seed)
        marks: list[Any] = []
        for point, one in enumerate([*self.trace.operations, None]):
            for choice in plan.get(point, ()):
                if only is not None and only != (point, choice.name):
                    continue
                chance = random.Random(f"{seed} {point} {choice.name}")
                nodes = disk.crash(choice, chance)
                if _is_new(seen, nodes, len(marks)):
                    second = again and report.states % _AGAIN == 0
                    self._open(
                        report, nodes, marks, Fault(self.program.name, point, choice.name, seed, ""), second
                    )
            if enough and len(report.faults) >= enough:
                break
            if one is not None and one.kind == Kind.MARK:
                marks.append(self.trace.marks[one.a])
            elif one is not None:
                disk.take(one)
        report.sites = disk.sites
        return report

    def _open(
        self, report: Report, nodes: dict[str, Node], marks: list[Any], fault: Fault, second: bool
    ) -> None:
        report.states += 1
        root = self._folder(nodes, self.trace.root)
        if not second:
            self._check(report, root, marks, fault)
            shutil.rmtree(root)
            return
        start = read(root)
        with self._recorder.recording(root) as traces:
            whole = self._check(report, root, marks, fault)
        shutil.rmtree(root)
        if whole:
            self._crash_again(report, start, traces[0], marks, fault)

    def _crash_again(
        self, report: Report, start: dict[str, Node], trace: Trace, marks: list[Any], fault: Fault
    ) -> None:
        """While the state is opened, or while the program goes on with it."""
        disk = Disk(trace, start)
        marks, seen = list(marks), set[bytes]()
        plan = _planned(trace.operations, _SECOND, fault.seed)
        for point, one in enumerate([*trace.operations, None]):
            for choice in plan.get(point, ()):
                nodes = disk.crash(choice, random.Random(f"{fault.seed} {point}"))
                if _is_new(seen, nodes, len(marks)):
                    report.states += 1
                    report.again += 1
                    root = self._folder(nodes, trace.root)
                    again = Fault(**{**asdict(fault), "second": f"{point}, {choice.name}"})
                    self._check(report, root, marks, again)
                    shutil.rmtree(root)
            if one is not None and one.kind == Kind.MARK:
                marks.append(trace.marks[one.a])
            elif one is not None:
                disk.take(one)

    def _folder(self, nodes: dict[str, Node], root: str) -> Path:
        self._number += 1
        target = self._work / f"{self.program.name}-{self._number}"
        write(root, nodes, target)
        return target

    def _check(self, report: Report, root: Path, marks: list[Any], fault: Fault) -> bool:
        faulthandler.dump_traceback_later(_STUCK, exit=True)
        try:
            self.program.check(root, list(marks), self._recorder.mark)
        except Exception as error:  # noqa: BLE001 - whatever it is, the state could not be opened
            where = traceback.extract_tb(error.__traceback__)[-1]
            fault.text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            report.faults.append(fault)
            return False
        finally:
            faulthandler.cancel_dump_traceback_later()
        return True


def _planned(operations: list[Operation], states: int, seed: int) -> dict[int, list[Choice]]:
    """The choices for each point: a crash comes before an operation that changes the disk, or at the end."""
    points = [at for at, one in enumerate(operations) if one.kind in _CHANGES] + [len(operations)]
    chance = random.Random(f"{seed} plan")
    plan: dict[int, list[Choice]] = {}
    each = -(-states // len(points))
    if states < len(points):
        points = sorted(chance.sample(points, states))
    for number, point in enumerate(points):
        begin = number * 5 % len(CHOICES)
        turned = CHOICES[begin:] + CHOICES[:begin]
        plan[point] = [turned[at % len(turned)] for at in range(each)]
    return plan


def _is_new(seen: set[bytes], nodes: dict[str, Node], marks: int) -> bool:
    digest = hashlib.blake2b(str(marks).encode())
    for path, node in sorted(nodes.items()):
        digest.update(path.encode() + b"\0")
        if (kept := getattr(node, "kept", None)) is not None:
            digest.update(str(kept.size).encode())
            for number, page in sorted(kept.pages.items()):
                if page.strip(b"\0"):
                    digest.update(number.to_bytes(8, "big") + page)
    if (found := digest.digest()) in seen:
        return False
    seen.add(found)
    return True


def named(names: list[str]) -> Iterator[Program]:
    """The recorded programs of these names. Imports only what they need."""
    from tests.crash import programs

    return (programs.ALL[name]() for name in names)


def start(arguments: list[str], library: Path, *, timeout: float) -> dict[str, Any]:
    """Runs this module with the recorder preloaded: what it prints. Raises AssertionError."""
    environment = {**os.environ, "LD_PRELOAD": str(library), LIBRARY: str(library), "PYTHONMALLOC": "default"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.explore", *arguments],
        env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr[-8000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.explore", description=__doc__)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--states", type=int, default=100, help="for each program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--point", type=int)
    parser.add_argument("--choice")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        help="a sync that is left out, or several joined by +; each: all, in turn",
    )
    asked = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="transfer-crash-") as work:
        if LIBRARY not in os.environ:
            library = build(Path(work))
            assert library is not None, "the recorder cannot be compiled: is gcc there?"
            found = start(sys.argv[1:], library, timeout=3600)
            for report in found["reports"]:
                report["faults"], count = report["faults"][:5], len(report["faults"])
                print(json.dumps(report, indent=1), f"{count} faults")
            print(json.dumps(found["without"], indent=1))
            return int(any(report["faults"] for report in found["reports"]))
        real = Path(work).resolve()
        recorder = Recorder()
        found: dict[str, Any] = {"reports": [], "without": {}}
        for program in named(asked.programs):
            explorer = Explorer(program, real, recorder)
            only = (asked.point, asked.choice) if asked.point is not None else None
            whole = explorer.explore(asked.states, asked.seed, only=only)
            found["reports"].append(asdict(whole))
            sites = list(whole.sites) if asked.without == ["each"] else asked.without
            for site in sites:
                ignored = frozenset(site.split(AND))
                without = explorer.explore(asked.states, asked.seed, ignored=ignored, again=False, enough=1)
                text = without.faults[0].text if without.faults else ""
                found["without"].setdefault(site, {})[program.name] = text
        print(json.dumps(found))
    return int(any(report["faults"] for report in found["reports"]))


if __name__ == "__main__":
    sys.exit(main())
