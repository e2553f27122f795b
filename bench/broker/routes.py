"""`python -m bench.broker.routes [--counts N …] [--shapes NAME …] [--probes N]`: the cost of a lookup of one
route.

Routes of one shape, added in random order; then random topics that each have a route. Every case runs in a
separate process, for its memory, with garbage collection off, as long-lived tables are frozen in use.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import machine
from transfer.broker.core.routes import Route, RouteTable
from transfer.broker.core.topic_patterns import Kind, pattern

#: the target: microseconds of a lookup on average
WANTED = 5.0
ROUNDS = 3

#: name -> the pattern of route number i
SHAPES: dict[str, Callable[[int], str]] = {
    "exact": lambda i: f"site{i % 100}.line{i // 100 % 100}.device{i}.state",
    "*": lambda i: f"site{i % 100}.line{i // 100 % 100}.device{i}.*.state",
    "* twice": lambda i: f"region{i % 10}.*.zone{i // 10 % 1000}.*.device{i // 10000}.value",
    ">": lambda i: f"tenant{i % 1000}.user{i}.>",
}


@dataclass(frozen=True, slots=True)
class Found:
    """microseconds: of one lookup on average, the best of some rounds. steps: at most, and on average.
    megabytes: the memory of the table. build: seconds."""

    microseconds: float
    most_steps: int
    steps: float
    megabytes: float
    build: float


def measure(shape: str, count: int, probes: int) -> Found:
    """Builds a table and looks up random topics in it."""
    text = SHAPES[shape]
    rng = random.Random(1)
    numbers = list(range(count))
    rng.shuffle(numbers)
    gc.collect()
    gc.disable()
    before, start = _resident(), time.perf_counter()
    table = RouteTable()
    for number in numbers:
        wanted = pattern(Kind.DOTS, text(number))
        table.add(Route(f"route{number}", "", wanted, f"worker{number % 1000}"))
    build, megabytes = time.perf_counter() - start, _resident() - before
    asked = [rng.randrange(count) for _ in range(probes)]
    topics = [text(number).replace("*", "x").replace(">", "x.y") for number in asked]
    for number, topic in zip(asked[:1000], topics, strict=False):
        [route] = table.direct_all("", topic)
        assert route.id == f"route{number}"
    steps = [table.steps("", topic) for topic in topics[:10_000]]
    best = min(_lookups(table, topics) for _ in range(ROUNDS))
    return Found(best / probes * 1e6, max(steps), sum(steps) / len(steps), megabytes, build)


def _lookups(table: RouteTable, topics: list[str]) -> float:
    direct = table.direct_all
    start = time.thread_time()  # of the processor: nothing here waits, and other processes may run
    for topic in topics:
        direct("", topic)
    return time.thread_time() - start


def _resident() -> float:
    """Returns the megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _elsewhere(shape: str, count: int, probes: int) -> Found:
    command = [sys.executable, "-m", "bench.broker.routes", "--one", shape, str(count), str(probes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Found(**json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.broker.routes", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 100_000, 1_000_000], help="routes")
    parser.add_argument(
        "--shapes", nargs="+", choices=[*SHAPES], default=[*SHAPES], help="shapes to measure (all)"
    )
    parser.add_argument("--probes", type=int, default=200_000, help="lookups in a round (200000)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        shape, count, probes = arguments.one
        print(json.dumps(asdict(measure(shape, int(count), int(probes)))))
        return 0
    print(machine.one_line(machine.describe()), "", sep="\n")
    print("| shape | routes | µs | steps, most | steps, mean | MB | built in, s | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for shape in arguments.shapes:
        for count in arguments.counts:
            found = _elsewhere(shape, count, arguments.probes)
            verdict = "hit" if found.microseconds < WANTED else "**missed**"
            print(
                f"| `{shape}` | {count:,} | {found.microseconds:.2f} | {found.most_steps} "
                f"| {found.steps:.1f} | {found.megabytes:.0f} | {found.build:.1f} | {verdict} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
