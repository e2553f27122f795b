"""Computes how near a broker is to its limits, for autoscaling of its clients. On its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transfer.broker.server import Broker

#: delay of the loop, in seconds, at which clients time out
LATE: Final = 1.0


def pressure_of(broker: Broker) -> dict[str, float]:
    """Returns the load of each part, from 0 to 1; at 1 a limit is reached, and clients wait or are refused.

    queue: messages that wait for direct delivery. admission: unfinished messages, of all tenants or of the
    tenant that is nearest to its quota. disk: payload that waits for a sync, or 1 while the log is full.
    loop: its delay.
    """
    hub, admission = broker.hub, broker.direct.dispatcher.admission
    return {
        "admission": min(1.0, admission.share),
        "disk": 1.0 if hub.is_full else min(1.0, hub.durability.share),
        "loop": min(1.0, broker.late / LATE),
        "queue": min(1.0, admission.waiting / admission.limits.max_queued_direct),
    }
