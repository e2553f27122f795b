"""How near a broker is to its limits, as numbers by which programs around it are scaled. On its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transfer.broker.server import Broker

#: seconds by which the loop may be late: beyond them its clients time out
LATE: Final = 1.0


def pressure_of(broker: Broker) -> dict[str, float]:
    """For each part 0 (nothing) to 1: a limit is reached, and somebody waits or is refused.

    queue: messages that wait for direct delivery. admission: messages that are not finished, of all tenants
    or of the one that is nearest to its quota. disk: payload that waits for a sync, or 1 while the log is
    full. loop: how late it is.
    """
    hub, admission = broker.hub, broker.direct.dispatcher.admission
    return {
        "admission": min(1.0, admission.share),
        "disk": 1.0 if hub.is_full else min(1.0, hub.durability.share),
        "loop": min(1.0, broker.late / LATE),
        "queue": min(1.0, admission.waiting / admission.limits.max_queued_direct),
    }
