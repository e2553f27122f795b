"""Finds problems of a running broker: /livez reports those that need a restart, /readyz all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transfer.broker.server import Broker
    from transfer.transports.errors import TransferError


class HealthProblem(NamedTuple):
    """A problem of the broker.

    kind: a text that unauthenticated requests may read. detail: only for requests that may read the names of
    topics and groups.
    """

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


def live_problems(broker: Broker) -> Sequence[HealthProblem]:
    """Returns problems that need a restart. An answer proves that the loop itself runs. On the loop."""
    log, spool = broker.failure, broker.spool_failure
    problems = [] if log is None else [HealthProblem("the log has failed", _text(log))]
    if spool is not None:
        problems.append(HealthProblem("the spool has failed", _text(spool)))
    return problems + [
        HealthProblem(f"the thread {name} has ended", why) for name, why in broker.threads.ended()
    ]


def ready_problems(broker: Broker) -> Sequence[HealthProblem]:
    """Returns problems because of which clients should send no work now. On the loop."""
    problems = list(live_problems(broker))
    if broker.draining:
        problems.append(HealthProblem("it is being stopped"))
    else:
        silent = [name for name in broker.ports if name != "http" and name not in broker.listening]
        problems += [HealthProblem(f"{name} does not listen") for name in silent]
    if broker.hub.is_full:
        problems.append(HealthProblem("the log is full, so publishers wait", broker.hub.full))
    return problems


def _text(failure: TransferError) -> str:
    return str(failure.args[0] if failure.args else failure)
