"""What is wrong with a broker now, for those who restart it and those who send it work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transfer.broker.server import Broker
    from transfer.transports.errors import TransferError


class Problem(NamedTuple):
    """kind: a text that strangers may read. detail: what only those may read who may ask for the names of
    topics and groups."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


def live_problems(broker: Broker) -> Sequence[Problem]:
    """Why it has to be started anew. That its loop turns shows in the answer itself. On the loop."""
    log, spool = broker.failure, broker.spool_failure
    problems = [] if log is None else [Problem("the log has failed", _text(log))]
    if spool is not None:
        problems.append(Problem("the spool has failed", _text(spool)))
    return problems + [Problem(f"the thread {name} has ended", why) for name, why in broker.threads.ended()]


def ready_problems(broker: Broker) -> Sequence[Problem]:
    """Why nobody should send it work just now. On the loop."""
    problems = list(live_problems(broker))
    if broker.draining:
        problems.append(Problem("it is being stopped"))
    else:
        silent = [name for name in broker.ports if name != "http" and name not in broker.listening]
        problems += [Problem(f"{name} does not listen") for name in silent]
    if broker.hub.is_full:
        problems.append(Problem("the log is full, so publishers wait", broker.hub.full))
    return problems


def _text(failure: TransferError) -> str:
    return str(failure.args[0] if failure.args else failure)
