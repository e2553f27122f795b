"""The description of a measurement: plain data, so that it can travel to a process and into JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

KIB = 1024
MIB = 1024 * KIB

#: payloads from this size on are sent and received without a copy, by every peer that can
COPY_BELOW = 64 * KIB

#: the longest wait in a benchmark, in seconds
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Work:
    """One line-up: the same messages for each of `peers`, so that their results can be divided.

    `size` is bytes for each message, `count` the messages in the timed part, `warmup` those before it.
    `spokes` is the number of processes connected to the first one. `params` belongs to the case.
    """

    case: str
    label: str
    size: int
    count: int
    warmup: int
    peers: tuple[str, ...]
    spokes: int = 1
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def copies(self) -> bool:
        """Whether payloads of this size are copied (`copy=True`)."""
        return self.size < COPY_BELOW


#: one run of one peer: numbers by name, for instance {"msg_s": 1e6, "cpu_s_per_M": 1.2, "lost": 0}
Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """The number of a sample that the table shows and ratios divide."""

    key: str
    unit: str
    higher_is_better: bool
    scale: float = 1.0


MESSAGES_PER_SECOND = Metric("msg_s", "k msg/s", True, 1e-3)
GIGABYTES_PER_SECOND = Metric("gb_s", "GB/s", True)
MEDIAN_MICROSECONDS = Metric("median_us", "µs", False)


def by_size(work: Work) -> Metric:
    """Returns messages for small payloads, bytes for large ones."""
    return MESSAGES_PER_SECOND if work.copies else GIGABYTES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Case:
    """A family of measurements. `measure` runs one peer once, in separate processes."""

    name: str
    about: str
    works: Callable[[bool], list[Work]]
    measure: Callable[[Work, str], Sample]
    metric: Callable[[Work], Metric] = by_size
    #: further numbers of the samples in the table
    also: tuple[Metric, ...] = ()
    #: whether it can run over every transport
    any_transport: bool = True


class Skipped(Exception):
    """The measurement is impossible here; the text is the reason, shown in the table."""


class Failed(Exception):
    """A process of the benchmark died or is silent; the text is its last output."""
