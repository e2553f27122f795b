"""The contract of a transport as checks. A transport's test is one call:

    def test_contract():
        check_transport(Subject(TcpTransport, "tcp://127.0.0.1:*"))

Each check is independent and may be called alone. A check that fails raises AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable

from transfer.transports.testing.carrying import (
    check_carries,
    check_copies_what_may_change,
    check_ends,
    check_ends_without_callers,
    check_gives_back,
    check_gives_back_memory,
    check_holds,
    check_pushes_back,
    check_releases_what_was_sent,
    check_subscriptions,
)
from transfer.transports.testing.ends import Subject
from transfer.transports.testing.meeting import (
    check_addresses,
    check_connects_before_bind,
    check_meets,
    check_reconnects,
    check_refuses,
)

CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_meets,
    check_connects_before_bind,
    check_reconnects,
    check_refuses,
    check_addresses,
    check_carries,
    check_copies_what_may_change,
    check_holds,
    check_releases_what_was_sent,
    check_pushes_back,
    check_ends,
    check_ends_without_callers,
    check_gives_back,
    check_gives_back_memory,
    check_subscriptions,
)


def check_transport(subject: Subject) -> None:
    """Runs every check, one after the other."""
    for check in CHECKS:
        check(subject)


__all__ = ["CHECKS", "Subject", "check_transport"]
