"""The cost of `import`, compared with an empty interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from bench.work import Case, Failed, Metric, Sample, Skipped, Work

STATEMENTS = {"transfer": "import transfer", "pyzmq": "import zmq"}
TURNS = 5


def _seconds(statement: str) -> float:
    """Wall time of one interpreter that executes `statement` and ends."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, timeout=60, check=False
    )
    took = time.perf_counter() - begin
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        if "ModuleNotFoundError" in last[0]:
            raise Skipped(last[0])
        raise Failed(last[0])
    return took


def measure(work: Work, peer: str) -> Sample:
    """Empty interpreter and import in turns; the difference of the medians."""
    turns = [(_seconds("pass"), _seconds(STATEMENTS[peer])) for _ in range(work.count)]
    empty = median(turn[0] for turn in turns)
    loaded = median(turn[1] for turn in turns)
    return {"extra_ms": 1e3 * (loaded - empty), "empty_ms": 1e3 * empty}


def metric(_: Work) -> Metric:
    return Metric("extra_ms", "ms more", False)


def works(quick: bool) -> list[Work]:
    return [Work("import", "", 0, 3 if quick else TURNS, 0, ("transfer", "pyzmq"))]


CASES = {
    "import": Case(
        "import", "import, against an empty interpreter", works, measure, metric, any_transport=False
    )
}
