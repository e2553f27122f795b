"""Latencies, and what is told of a measurement. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from transfer.broker.bench.plan import Plan
from transfer.broker.bench.usage import Usage

#: latencies that one receiver keeps at most
MOST_SAMPLES = 1 << 16
_PERCENTS = (50, 95, 99)


class Samples:
    """Latencies of one receiver: all of them, or evenly every second, fourth … when they are many.

    most: how many are kept, an even number. worst: the longest of all, 0 without any.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self.kept: list[int] = []
        self.worst = 0
        self._most = most
        self._stride = 1
        self._skip = 0

    def add(self, nanoseconds: int) -> None:
        """One more."""
        if nanoseconds > self.worst:
            self.worst = nanoseconds
        if self._skip:
            self._skip -= 1
            return
        self.kept.append(nanoseconds)
        self._skip = self._stride - 1
        if len(self.kept) >= self._most:
            del self.kept[1::2]  # the last one, too: the next to be kept comes as soon as before
            self._stride *= 2

    @property
    def stride(self) -> int:
        """Each kept one stands for so many."""
        return self._stride


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in ascending order, of which there is at least one."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds from before a message is published until its receiver has it."""

    p50: float
    p95: float
    p99: float
    worst: float

    @classmethod
    def of(cls, samples: Iterable[Samples]) -> Latency | None:
        """Of all receivers together; None when nothing came. A receiver that kept only some of its samples
        counts with those of others as if it had kept all."""
        samples = list(samples)
        widest = max((one.stride for one in samples), default=1)
        ordered = sorted(value for one in samples for value in one.kept[:: widest // one.stride])
        if not ordered:
            return None
        p50, p95, p99 = (percentile(ordered, percent) / 1000 for percent in _PERCENTS)
        return cls(p50, p95, p99, max(one.worst for one in samples) / 1000)


@dataclass(frozen=True, slots=True)
class Result:
    """What one measurement found.

    messages: published. delivered: received, of each message by each of its receivers; lost: that never
    came. seconds: from before the first was published until the last was received, and acknowledged where
    there is a group. before, after: what the broker had used at the beginning and at the end, as far as that
    can be seen; after.peak is the peak in between where the broker was started for this.
    """

    plan: Plan
    messages: int
    delivered: int
    lost: int
    seconds: float
    latency: Latency | None
    before: Usage
    after: Usage

    @property
    def rate(self) -> float:
        """Messages published in a second, all of which were received."""
        return self.messages / self.seconds

    @property
    def gigabytes(self) -> float:
        """Delivered payload, before it was packed, in GB a second."""
        return self.delivered * self.plan.nbytes / self.seconds / 1e9

    @property
    def cpu(self) -> float | None:
        """Seconds of processor that the broker used."""
        return _difference(self.before.cpu, self.after.cpu)

    @property
    def cpu_per_message(self) -> float | None:
        """Microseconds of the broker's processor for each message published."""
        return None if self.cpu is None or not self.messages else self.cpu / self.messages * 1e6

    @property
    def blocks_per_message(self) -> float | None:
        """Blocks of memory that the broker's Python holds more than before, for each message published: what
        stays, not what was allocated in between. Near 0 unless something grows."""
        grown = _difference(self.before.blocks, self.after.blocks)
        return None if grown is None or not self.messages else grown / self.messages

    @property
    def allocations_per_message(self) -> float | None:
        """How often the broker's Python asked for memory, for each message published."""
        asked = _difference(self.before.allocations, self.after.allocations)
        return None if asked is None or not self.messages else asked / self.messages

    def as_data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "name": self.plan.name,
            "plan": {**asdict(self.plan), "mode": self.plan.mode.value},
            "messages": self.messages,
            "delivered": self.delivered,
            "lost": self.lost,
            "seconds": round(self.seconds, 6),
            "messages_per_second": round(self.rate, 1),
            "delivered_gb_per_second": round(self.gigabytes, 6),
            "latency_us": None if self.latency is None else asdict(self.latency),
            "broker": {
                "cpu_seconds": self.cpu,
                "cpu_us_per_message": self.cpu_per_message,
                "resident_bytes": self.after.resident,
                "peak_resident_bytes": self.after.peak,
                "grown_blocks_per_message": self.blocks_per_message,
                "allocations_per_message": self.allocations_per_message,
            },
        }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


#: the head of the table
HEAD = (
    *("what", "messages/s", "GB/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "lost"),
    *("CPU µs/msg", "CPU %", "RSS MB", "peak MB", "blocks/msg", "allocs/msg"),
)


def row(result: Result) -> tuple[str, ...]:
    """The cells of one result; "-" where something is not known."""
    found = result.latency
    times = [None] * 4 if found is None else [found.p50, found.p95, found.p99, found.worst]
    share = None if result.cpu is None else 100 * result.cpu / result.seconds
    after = result.after
    return (
        result.plan.name,
        _shown(result.rate),
        _shown(result.gigabytes),
        *(_shown(None if time is None else time / 1000) for time in times),
        f"{result.lost:,}",
        _shown(result.cpu_per_message),
        _shown(share),
        *(_shown(None if size is None else size / 1e6) for size in (after.resident, after.peak)),
        _shown(result.blocks_per_message),
        _shown(result.allocations_per_message),
    )


def _shown(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"
