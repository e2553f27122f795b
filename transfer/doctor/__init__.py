"""What works on this machine, and what to do about what does not. `transfer doctor` shows it.

A probe that fails is an answer, never an error. `measuring` is the same question asked of two
machines: what each transport between them makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from transfer.doctor.finding import Check, as_data, healthy

__all__ = ["Check", "as_data", "examine", "healthy"]


def examine() -> list[Check]:
    """All findings. Takes a few seconds at most; starts and ends sockets of its own."""
    from transfer.doctor import machine, security, transports as ways

    probes: tuple[Callable[[], Iterable[Check]], ...] = (
        machine.base,
        ways.self_tests,
        machine.limits,
        ways.network,
        ways.devices,
        machine.libraries,
        ways.protocol,
        security.security,
    )
    return [check for look in probes for check in look()]
