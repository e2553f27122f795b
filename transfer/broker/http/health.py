"""What is wrong with a broker now, for those who restart it and those who send it work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.broker.server import Broker
    from transports.errors import TransferError


def live_problems(broker: Broker) -> Sequence[str]:
    """Why it has to be started anew. That its loop turns shows in the answer itself. On the loop."""
    log, spool = broker.failure, broker.spool_failure
    problems = [] if log is None else [f"the log has failed: {_text(log)}"]
    if spool is not None:
        problems.append(f"the spool has failed: {_text(spool)}")
    return problems + broker.threads.problems()


def ready_problems(broker: Broker) -> Sequence[str]:
    """Why nobody should send it work just now. On the loop."""
    problems = list(live_problems(broker))
    if broker.draining:
        problems.append("it is being stopped")
    else:
        silent = [name for name in broker.ports if name != "http" and name not in broker.listening]
        problems += [f"{name} does not listen" for name in silent]
    if broker.hub.is_full:
        problems.append(f"the log is full, so publishers wait: {broker.hub.full}")
    return problems


def _text(failure: TransferError) -> str:
    return str(failure.args[0] if failure.args else failure)
