"""`python -m bench.broker [--case NAME …] [--rounds 5] [--quick] [--folder DIR] [--json FILE] [--plot FILE]`.

The broker and the servers it is compared with, in turns.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import judged, machine
from bench.broker import report
from bench.broker.case import Case, Peer, Place, Sample
from bench.broker.cases import CASES
from bench.broker.servers import versions
from bench.plot import draw_targets
from bench.work import Failed, Skipped
from transfer.transports.errors import TransferError

ROOT = Path(__file__).resolve().parents[2]


def measure(case: Case, rounds: int, *, quick: bool, folder: Path) -> dict[str, list[Sample] | str]:
    """Returns by peer: its samples, or why there are none. The rounds go A B A B."""
    found: dict[str, list[Sample] | str] = {peer.name: [] for peer in case.peers}
    for number in range(rounds):
        for peer in case.peers:
            samples = found[peer.name]
            if isinstance(samples, str):
                continue
            print(f"{case.name}: {peer.name}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            try:
                samples.append(_once(peer, folder, quick=quick))
            except (Skipped, ModuleNotFoundError) as reason:
                found[peer.name] = f"skipped: {reason}"
            except (Failed, TransferError) as reason:
                print(reason, file=sys.stderr)
                found[peer.name] = f"failed: {_last_words(reason)}"
    return found


def _last_words(reason: Exception) -> str:
    """Returns one line: the text of an error, or the end of a traceback."""
    lines = [line for line in str(reason).splitlines() if line.strip() and "  hint: " not in line]
    return lines[-1].strip() if lines else type(reason).__name__


def _once(peer: Peer, folder: Path, *, quick: bool) -> Sample:
    """Runs a peer once, on a new folder, which is removed."""
    path = Path(tempfile.mkdtemp(prefix="bench-broker-", dir=folder))
    try:
        return peer.run(Place(path, quick))
    finally:
        shutil.rmtree(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this one; repeat it")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each peer (5)")
    parser.add_argument("--quick", action="store_true", help="few messages: shows only that all cases run")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--plot", type=Path, help="draw the goals, hit or missed, as SVG or PNG")
    parser.add_argument("--from", dest="saved", type=Path, help="draw a --json file, run nothing")
    parser.add_argument("--list", action="store_true", help="list the cases, without running them")
    asked = parser.parse_args(arguments)
    if asked.list:
        for case in CASES:
            print(f"{case.name:16} {case.about}")
        return 0
    if asked.saved is not None:
        if asked.plot is None:
            parser.error("--from needs --plot")
        draw_targets(asked.plot, *judged.read(asked.saved))
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    described = machine.describe()
    described["servers"] = versions()
    print(machine.one_line(described), *described["servers"].values(), "", sep="\n")
    found: dict[str, dict[str, list[Sample] | str]] = {}
    try:
        for case in CASES:
            if not asked.case or case.name in asked.case:
                found[case.name] = measure(case, asked.rounds, quick=asked.quick, folder=asked.folder)
                if asked.json is not None:
                    report.write(asked.json, described, CASES, found, asked.rounds)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
    report.show(CASES, found)
    if asked.plot is not None:
        draw_targets(asked.plot, report.judge_all(CASES, found), report.head_of(described, asked.rounds))
    failed = any(isinstance(one, str) or not one for case in found.values() for one in case.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
