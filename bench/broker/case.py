"""A case of the broker's benchmarks: peers that do the same work, and the goal for the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: the result of one run of one peer: numbers by name
Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run happens. folder: an empty one on the disk that is measured. quick: few messages, which show
    only that the case runs."""

    folder: Path
    quick: bool

    def count(self, full: int, quick: int) -> int:
        """Returns the number of messages."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to do the work. family: of several ways with the same one, the better of a round counts."""

    name: str
    family: str
    run: Callable[[Place], Sample]


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of the family "transfer": `key` of its samples, divided by that of the family `against` (of
    the case `of`, if not this one), or alone; at least, or at most, `limit`."""

    key: str
    limit: float
    unit: str = "×"
    at_least: bool = True
    against: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """key, unit: the number of the samples in the table, the higher the better unless `lower`."""

    name: str
    about: str
    key: str
    unit: str
    peers: tuple[Peer, ...]
    goals: tuple[Goal, ...] = ()
    lower: bool = False
