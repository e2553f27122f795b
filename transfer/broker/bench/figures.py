"""Latencies and results of a measurement. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from transfer.broker.bench.plan import Plan
from transfer.broker.bench.usage import Usage

_PERCENTS = (50, 95, 99)
#: leading bits of a latency that are kept: percentiles are exact to 0.1 %
_KEPT_BITS = 10


class Samples:
    """Counts the latencies of one receiver. worst: the longest; 0 if there is none."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.worst = 0

    def add(self, nanoseconds: int) -> None:
        """Adds a latency."""
        self.worst = max(self.worst, nanoseconds)
        dropped = max(0, nanoseconds.bit_length() - _KEPT_BITS)
        self.counts[nanoseconds >> dropped << dropped] += 1


def percentile(counts: Counter[int], percent: float) -> int:
    """Returns the nearest-rank percentile of counted values, of which there is at least one."""
    rank = max(1, math.ceil(counts.total() * percent / 100))
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    raise ValueError(f"there is no percentile of {percent}")


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds from before a message's publication until its receiver has it."""

    p50: float
    p95: float
    p99: float
    worst: float

    @classmethod
    def of(cls, samples: Iterable[Samples]) -> Latency | None:
        """Computes the latency over all receivers; None without any message."""
        samples = list(samples)
        counts = sum((one.counts for one in samples), Counter[int]())
        if not counts:
            return None
        p50, p95, p99 = (percentile(counts, percent) / 1000 for percent in _PERCENTS)
        return cls(p50, p95, p99, max(one.worst for one in samples) / 1000)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one measurement.

    messages: published. delivered: receptions, counting each receiver of a message; lost: missing receptions.
    seconds: from before the first publication until the last reception, and its acknowledgement if there is a
    group. before, after: the broker's usage at the beginning and at the end, as far as it is visible. If the
    broker was started for this measurement, after.peak is the peak during it.
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
        """Published messages per second, including their reception."""
        return self.messages / self.seconds

    @property
    def gigabytes(self) -> float:
        """Delivered payload before compression, in GB per second."""
        return self.delivered * self.plan.nbytes / self.seconds / 1e9

    @property
    def cpu(self) -> float | None:
        """CPU seconds that the broker used."""
        return _difference(self.before.cpu, self.after.cpu)

    @property
    def cpu_per_message(self) -> float | None:
        """CPU microseconds of the broker for each published message."""
        return None if self.cpu is None or not self.messages else self.cpu / self.messages * 1e6

    @property
    def blocks_per_message(self) -> float | None:
        """Growth of the memory blocks of the broker's Python for each published message.

        It counts blocks that stay allocated: it is near 0 unless something leaks.
        """
        grown = _difference(self.before.blocks, self.after.blocks)
        return None if grown is None or not self.messages else grown / self.messages

    @property
    def allocations_per_message(self) -> float | None:
        """Memory allocations of the broker's Python for each published message."""
        count = _difference(self.before.allocations, self.after.allocations)
        return None if count is None or not self.messages else count / self.messages

    def as_data(self) -> dict[str, object]:
        """Returns the result for JSON."""
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


#: the table's header
HEAD = (
    *("what", "messages/s", "GB/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "lost"),
    *("CPU µs/msg", "CPU %", "RSS MB", "peak MB", "blocks/msg", "allocs/msg"),
)


def row(result: Result) -> tuple[str, ...]:
    """Returns the cells of one result; "-" stands for unknown values."""
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
    """Formats a value with three significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"
