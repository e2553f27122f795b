"""Latencies and results of a measurement. Pure."""

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
    """Latencies of one receiver: all of them, or every second, fourth … if there are many.

    most: how many it keeps, an even number. worst: the longest of all; 0 if there is none.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self.kept: list[int] = []
        self.worst = 0
        self._most = most
        self._stride = 1
        self._skip = 0

    def add(self, nanoseconds: int) -> None:
        """Adds a latency."""
        if nanoseconds > self.worst:
            self.worst = nanoseconds
        if self._skip:
            self._skip -= 1
            return
        self.kept.append(nanoseconds)
        self._skip = self._stride - 1
        if len(self.kept) >= self._most:
            del self.kept[1::2]  # including the last one, so that the distance to the next one is even
            self._stride *= 2

    @property
    def stride(self) -> int:
        """Number of latencies that each kept one stands for."""
        return self._stride


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns the nearest-rank percentile of values in ascending order. They must not be empty."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds from before a message's publication until its receiver has it."""

    p50: float
    p95: float
    p99: float
    worst: float

    @classmethod
    def of(cls, samples: Iterable[Samples]) -> Latency | None:
        """Computes the latency over all receivers; None without any message.

        It weights each receiver by all its messages, also if the receiver kept only some samples.
        """
        samples = list(samples)
        widest = max((one.stride for one in samples), default=1)
        ordered = sorted(value for one in samples for value in one.kept[:: widest // one.stride])
        if not ordered:
            return None
        p50, p95, p99 = (percentile(ordered, percent) / 1000 for percent in _PERCENTS)
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
