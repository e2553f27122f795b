"""A time of day that does not jump: the wall clock at the process's start, plus the elapsed time.

Ages and delays use it, so that nothing expires because the wall clock is set. It runs while the machine
sleeps. After a restart it starts from the wall clock again.
"""

from __future__ import annotations

import time

_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_began = time.time_ns() - time.clock_gettime_ns(_RUNNING)
#: milliseconds by which the two clocks may differ although the wall clock was not set
_SLACK_MS = 1000


def unix_ns() -> int:
    """Returns nanoseconds since 1970."""
    return _began + time.clock_gettime_ns(_RUNNING)


def unix_ms() -> int:
    """Returns milliseconds since 1970."""
    return unix_ns() // 1_000_000


def of_wall(ms: int) -> int:
    """Converts a time of the wall clock, as it is set now, to this clock; 0 stays 0."""
    difference = unix_ms() - time.time_ns() // 1_000_000
    return ms + difference if ms and abs(difference) >= _SLACK_MS else ms
