"""The time of day by a clock that is never set: read once, when the process begins, and run on from there.

Ages and delays go by it: nothing expires because the clock is set. It runs on while the machine sleeps.
What it says after a restart is what the wall clock says then.
"""

from __future__ import annotations

import time

_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_began = time.time_ns() - time.clock_gettime_ns(_RUNNING)
#: milliseconds by which the two clocks differ without having been set
_SLACK_MS = 1000


def unix_ns() -> int:
    """Nanoseconds since 1970."""
    return _began + time.clock_gettime_ns(_RUNNING)


def unix_ms() -> int:
    """Milliseconds since 1970."""
    return unix_ns() // 1_000_000


def of_wall(ms: int) -> int:
    """What this clock says when the wall clock, if it is not set again, says `ms`; 0 stays 0."""
    apart = unix_ms() - time.time_ns() // 1_000_000
    return ms + apart if ms and abs(apart) >= _SLACK_MS else ms
