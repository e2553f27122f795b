"""Why rdma is not used with a host for now."""

from __future__ import annotations

from typing import NamedTuple


class GivenUp(NamedTuple):
    """when: time.monotonic()."""

    when: float
    reason: str
    text: str
    hint: str
