"""Durable publish → consume → acknowledge: the processes of a run, and how long it takes.

A peer is a module with three functions for processes: `publish`, `consume`, `together` (both in one process),
each called with (stage, address, Cycle). They report `ready`, wait for the start, and return (begin, end).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.broker.case import Place, Sample
from bench.broker.servers import Server
from transfer.broker.bench.processes import PATIENCE, Processes, Stage, until_done
from transfer.broker.bench.target import started
from transfer.broker.bench.usage import of_process

#: seconds that one run may take
LONGEST = 300.0

#: runs until all messages are done; returns (begin, end)
Part = Callable[[Stage, str | int, "Cycle"], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Cycle:
    """size: bytes of a message. in_flight: unacknowledged messages, at most."""

    size: int
    count: int
    in_flight: int
    topics: int = 1

    @property
    def payload(self) -> bytes:
        """Bytes that do not compress."""
        return os.urandom(self.size)

    @property
    def topic_names(self) -> list[str]:
        """All topics."""
        return [f"bench-{number}" for number in range(self.topics)]


def begin(stage: Stage) -> None:
    """Reports that this process is ready, and waits until all others are."""
    stage.send("ready")
    stage.receive()


def measure_ours(place: Place, cycle: Cycle, parts: tuple[Part, ...]) -> Sample:
    """Measures the broker, in a separate process."""
    with Processes() as crew:
        target = started(crew, place.folder, transient=())
        target.begin()
        before = target.usage()
        seconds = play(crew, parts, target.requests, cycle)
        after = target.usage()
        target.end()
    assert before.cpu is not None and after.cpu is not None
    return sample(cycle, seconds, after.cpu - before.cpu) | {"peak_mb": (after.peak or 0) / 1e6}


def measure_server(
    place: Place,
    cycle: Cycle,
    parts: tuple[Part, ...],
    server: Callable[[Path], AbstractContextManager[Server]],
) -> Sample:
    """Measures another server."""
    with server(place.folder) as running, Processes() as crew:
        before = of_process(running.pid).cpu
        seconds = play(crew, parts, running.port, cycle)
        after = of_process(running.pid).cpu
    assert before is not None and after is not None
    return sample(cycle, seconds, after - before)


def play(crew: Processes, parts: tuple[Part, ...], address: str | int, cycle: Cycle) -> float:
    """Returns the seconds from the first publish until everything is acknowledged."""
    members = []
    for part in parts:  # one after the other: consumers make groups that publishers need
        members.append(crew.add(part, address, cycle))
        members[-1].receive(PATIENCE)
    for member in members:
        member.send("go")
    until_done(members, LONGEST)
    return max(one.result[1] for one in members) - min(one.result[0] for one in members)


def sample(cycle: Cycle, seconds: float, cpu: float) -> Sample:
    """Returns the sample of a run. cpu: seconds of the broker's processor."""
    return {
        "seconds": seconds,
        "msg_s": cycle.count / seconds,
        "gb_s": cycle.count * cycle.size / seconds / 1e9,
        "cpu_us": cpu / cycle.count * 1e6,
    }
