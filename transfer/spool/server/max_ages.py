"""The ages at which the spool removes unused data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from transfer.transports.errors import OptionError

_DAY = 86_400.0
#: seconds: the precision of activity in the log, and the longest delay of removals after a start
_COARSEST, _LONGEST_GRACE = 3600.0, 600.0


@dataclass(frozen=True, slots=True)
class Ages:
    """Seconds without activity after which data is removed; None: never.

    retention: a sealed run that all its groups have read. staged: rows of a job that has sent nothing.
    failed: a failed run. group: a group that has neither read nor acknowledged, and that holds rows of a
    stream, or a run that `retention` would remove. unread: a run without groups, and rows of a stream
    without groups.

    Raises OptionError: an age is not valid.
    """

    retention: float | None = None
    staged: float | None = _DAY
    failed: float | None = 7 * _DAY
    group: float | None = 30 * _DAY
    unread: float | None = 90 * _DAY

    def __post_init__(self) -> None:
        for field in fields(self):
            age = getattr(self, field.name)
            if age is not None and not (isinstance(age, int | float) and age > 0):
                raise OptionError(f"the age {field.name} is a number of seconds above 0 or None, not {age!r}")

    @property
    def coarse(self) -> float:
        """The precision of activity in the log: data is kept for so much longer than its age."""
        known: list[float | None] = [getattr(self, field.name) for field in fields(self)]
        return min([_COARSEST, *(age / 10 for age in known if age is not None)])

    def grace(self, age: float) -> float:
        """Returns how long a start waits before it removes data of this age, so that readers and writers can
        reconnect."""
        return min(age / 10, _LONGEST_GRACE)
