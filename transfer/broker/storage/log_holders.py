"""Finds what keeps retention from freeing the log: lagging groups, and consumers of direct delivery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from transfer.broker.storage.topic import DIRECT_PREFIX, LOG_PREFIX

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub

#: most holders that a text names, and groups whose bytes are computed: those with the most messages
_MAX_NAMED, _MAX_COMPUTED = 3, 100


class Holder(NamedTuple):
    """A group, or a consumer of direct delivery, with unfinished messages, which the log must keep.

    group: or the consumer's id. nbytes: payload bytes from the oldest of these messages on. idle: seconds
    without a consumer.
    """

    nbytes: int
    lag: int
    topic: str
    group: str
    idle: float

    def __str__(self) -> str:
        idle = f", without a consumer for {self.idle:.0f} s" if self.idle else ""
        holds = f"holds {self.lag} messages ({self.nbytes} bytes{idle})"
        return f"group {self.group!r} of topic {self.topic!r} {holds}"


def holders(hub: Hub) -> list[Holder]:
    """Returns the groups and direct delivery's consumers that hold the most bytes, the largest first.
    On the broker's loop."""
    return sorted([*_groups(hub), *_consumers(hub)], reverse=True)


def held_by(hub: Hub) -> str:
    """Describes the holders of the log."""
    found = holders(hub)
    if found:
        return "; ".join(map(str, found[:_MAX_NAMED]))
    if any(not name.startswith((LOG_PREFIX, DIRECT_PREFIX, "broker/")) for name in hub.store.log.topics):
        return "no group holds it, but the spool's runs may (transfer runs list)"
    return "no group holds it: retention deletes only messages beyond its age or its bytes"


def _groups(hub: Hub) -> Iterator[Holder]:
    lags = [(served.group.lag(served.topic.kept), served) for served in hub.groups.served]
    lags = sorted((one for one in lags if one[0]), key=lambda one: one[0], reverse=True)
    for lag, served in lags[:_MAX_COMPUTED]:
        nbytes = hub.store.bytes_from(served.topic, served.group.cursor)
        idle = hub.groups.activity.idle(served)
        yield Holder(nbytes, lag, served.named.topic, served.named.name, idle)


def _consumers(hub: Hub) -> Iterator[Holder]:
    if hub.direct is None:
        return
    waiting: dict[tuple[str, str], tuple[int, int]] = {}
    for parcel in hub.direct.dispatcher.state.messages.values():
        key = (parcel.facts.topic, parcel.destination)
        lag, nbytes = waiting.get(key, (0, 0))
        waiting[key] = lag + 1, nbytes + parcel.facts.nbytes
    for (topic, consumer), (lag, nbytes) in waiting.items():
        yield Holder(nbytes, lag, topic, consumer, 0.0)
