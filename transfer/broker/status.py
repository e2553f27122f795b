"""A broker's state: numbers for Prometheus, and tables for the console. On its loop."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from transfer import __version__
from transfer.broker.core.admission import AdmissionOutcome
from transfer.broker.fronts.native import NativeFront
from transfer.metrics.families import Family

if TYPE_CHECKING:
    from transfer.broker.delivery.group_contract import Served
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.server import Broker
    from transfer.broker.storage.audit_chain import Json
    from transfer.broker.storage.topic import Topic

#: topics, groups and tenants that metrics name; each name costs memory in Prometheus
_MOST_NAMES: Final = 100
_OTHER = "other"

#: a metric's name and the values of its labels
Key = tuple[str, tuple[str, ...]]

_GROUP = ("topic", "group")
FAMILIES: Final[Mapping[str, Family]] = {
    "transfer_broker_messages_total": Family("counter", "Messages published.", ("topic",)),
    "transfer_broker_message_bytes_total": Family(
        "counter", "Payload bytes of the published messages.", ("topic",)
    ),
    "transfer_broker_events_total": Family("counter", "Events of messages.", ("event",)),
    "transfer_broker_front_events_total": Family("counter", "Events of one protocol.", ("front", "event")),
    "transfer_broker_refused_total": Family("counter", "Connections refused.", ("front", "reason")),
    "transfer_broker_connections": Family("gauge", "Open connections.", ("front",)),
    "transfer_broker_topics": Family("gauge", "Known topics."),
    "transfer_broker_subscribers": Family("gauge", "Connections with at least one subscription."),
    "transfer_broker_behind_subscribers": Family("gauge", "Subscribers that catch up from the log."),
    "transfer_broker_group_lag_messages": Family(
        "gauge", "Messages that the group has not finished.", _GROUP
    ),
    "transfer_broker_group_held_messages": Family(
        "gauge", "Messages that are delivered to the group's consumers and not acknowledged.", _GROUP
    ),
    "transfer_broker_group_waiting_messages": Family(
        "gauge", "Messages of the group that wait for a retry or for their time.", _GROUP
    ),
    "transfer_broker_group_consumers": Family("gauge", "Consumers that have joined the group.", _GROUP),
    "transfer_broker_registrations": Family("gauge", "Endpoints announced in the registry."),
    "transfer_broker_registry_watchers": Family(
        "gauge", "Watchers of registered names: one for each program and name."
    ),
    "transfer_broker_dead_letters": Family("gauge", "Messages that no consumer could process."),
    "transfer_broker_audit_problems": Family("gauge", "Damaged places that the start found in the audit."),
    "transfer_broker_log_bytes": Family("gauge", "Bytes of the log on the disk."),
    "transfer_broker_log_full": Family("gauge", "1 if the log is full and publishers are blocked, else 0."),
    "transfer_broker_unsynced_bytes": Family("gauge", "Payload bytes that are not on the disk yet."),
    "transfer_broker_loop_late_seconds": Family("gauge", "Delay of the broker's loop, measured each second."),
    "transfer_broker_pressure": Family(
        "gauge", "Share of a part's limit that is in use; 1: the limit is reached.", ("part",)
    ),
    "transfer_broker_tenant_messages": Family("gauge", "Unfinished messages of abtp.", ("tenant",)),
    "transfer_broker_tenant_accepted_total": Family("counter", "Messages of abtp accepted.", ("tenant",)),
    "transfer_broker_tenant_refused_total": Family(
        "counter", "Messages of abtp refused because of a limit.", ("tenant",)
    ),
    "transfer_broker_ready": Family("gauge", "1 if the broker accepts work, as /readyz reports, else 0."),
}

#: the hub's counters, each from the start, and what they count
EVENTS: Final[Mapping[str, str]] = {
    "dispatched": "deliveries to consumers of groups and of abtp",
    "redelivered": "deliveries of groups that were not the first attempt",
    "acked": "deliveries of groups and abtp that were acknowledged",
    "nacked": "deliveries of groups and abtp that were refused",
    "expired": "deliveries of groups and abtp that a consumer held for too long",
    "returned": "deliveries of groups whose consumer ended or had not got them",
    "groups_expired": "groups removed after `groups.idle_age` without a consumer",
    "stale_acks": "acknowledgements of deliveries that now belong to another consumer: refused, and audited",
    "not_audited": "stale acknowledgements, abtp's too, that the audit lacks: too many at once, or it failed",
    "dead_lettered": "messages that no consumer could process",
    "spilled": "subscribers without room that read on from the log",
    "dropped": "messages that a subscriber without room lost",
    "closed_slow": "subscribers without room that were disconnected",
    "deferred": "directly delivered messages that wait for an absent consumer",
    "lost": "directly delivered messages that a consumer without ACKs did not get",
    "unroutable": "direct abtp messages without a route",
    "direct_refused": "other protocols' messages with a direct route, for which direct delivery had no room",
    "revoked": "announced payloads that were too slow, given up for others",
    "broken_off": "large messages whose publisher ended in the middle",
    "offloaded": "large abtp messages that a thread decoded or packed",
    "offload_in_place": "large abtp messages that the loop processed because that thread failed",
    "offload_failed": "large abtp messages refused, or dead letters, because that thread failed and "
    "`large.in_place` is false",
    "damaged": "messages that the log could not read",
    "unreadable": "own deliveries with undecodable tensor headers or parts: dead letters for groups, skipped "
    "for SUB",
}


#: counters that direct delivery has too, and their names there
_OF_DIRECT: Final = {
    "acked": "acked",
    "dead_lettered": "dead_lettered",
    "dispatched": "dispatched",
    "expired": "ack_timeouts",
    "lost": "lost",
    "nacked": "nacked",
    "stale_acks": "stale_acks",
}


class FrontNames:
    """The topics, groups and tenants that metrics name: the first ones, for as long as the broker runs."""

    def __init__(self, most: int = _MOST_NAMES) -> None:
        self._most = most
        self._topics: set[str] = set()
        self._groups: set[tuple[str, str]] = set()
        self._tenants: set[str] = set()

    def topics(self, known: Mapping[str, Topic]) -> Iterator[Topic]:
        """Returns the named topics that exist."""
        if len(self._topics) < self._most:
            new = (name for name in known if name not in self._topics)
            self._topics.update(islice(new, self._most - len(self._topics)))
        return (known[name] for name in self._topics if name in known)

    def group(self, topic: str, name: str) -> tuple[str, str]:
        """Returns the labels of a group."""
        labels = (topic, name)
        if labels not in self._groups:
            if len(self._groups) >= self._most:
                return _OTHER, _OTHER
            self._groups.add(labels)
        return labels

    def tenant(self, name: str) -> str:
        """Returns the label of a tenant."""
        if name not in self._tenants:
            if len(self._tenants) >= self._most:
                return _OTHER
            self._tenants.add(name)
        return name


def numbers_of(broker: Broker, names: FrontNames, *, ready: bool, dead_letters: int) -> dict[Key, float]:
    """Returns the current numbers of all FAMILIES."""
    found: dict[Key, float] = defaultdict(float)
    for name, labels, value in _numbers(broker, names):
        found[f"transfer_broker_{name}", labels] += value
    found["transfer_broker_ready", ()] = ready
    found["transfer_broker_dead_letters", ()] = dead_letters
    return found


def published(broker: Broker) -> tuple[int, int]:
    """Returns messages and their bytes since the start, including removed topics."""
    store = broker.hub.store
    return store.messages, store.nbytes


def _numbers(broker: Broker, names: FrontNames) -> Iterator[tuple[str, tuple[str, ...], float]]:
    hub = broker.hub
    messages, nbytes = published(broker)
    for topic in names.topics(hub.store.topics):
        messages, nbytes = messages - topic.messages, nbytes - topic.nbytes
        yield "messages_total", (topic.name,), topic.messages
        yield "message_bytes_total", (topic.name,), topic.nbytes
    yield "messages_total", (_OTHER,), messages
    yield "message_bytes_total", (_OTHER,), nbytes
    for event, count in _events(broker).items():
        yield "events_total", (event,), count
    for name, front in broker.fronts.items():
        yield "connections", (name,), front.connections
        for event, count in front.counters.items():
            yield "front_events_total", (name, event), count
    for name, refused in broker.listeners.refused.items():
        for reason, count in refused.items():
            yield "refused_total", (name, reason), count
    yield "topics", (), len(hub.store.topics)
    yield "subscribers", (), _subscribers(hub)
    yield "behind_subscribers", (), len(hub.fanout.behind)
    for served in hub.groups.served:
        labels = names.group(served.named.topic, served.named.name)
        yield "group_lag_messages", labels, served.group.lag(served.topic.kept)
        yield "group_held_messages", labels, served.group.held
        yield "group_waiting_messages", labels, served.group.waiting
        yield "group_consumers", labels, served.group.consumers
    own = broker.fronts.get("native")
    registry = own.registry if isinstance(own, NativeFront) else None
    yield "registrations", (), len(registry) if registry is not None else 0
    yield "registry_watchers", (), registry.watchers if registry is not None else 0
    yield "audit_problems", (), len(broker.audit.found.problems)
    yield "log_bytes", (), hub.store.log.disk_bytes
    yield "log_full", (), hub.is_full
    yield "unsynced_bytes", (), hub.durability.unsynced
    yield "loop_late_seconds", (), broker.late
    for part, share in _pressure(broker).items():
        yield "pressure", (part,), share
    admission = broker.direct.dispatcher.admission
    for tenant, count in admission.accepted.items():
        yield "tenant_accepted_total", (names.tenant(tenant),), count
        yield "tenant_messages", (names.tenant(tenant),), 0  # a tenant without messages keeps its label
    for tenant, count in admission.refused.items():
        yield "tenant_refused_total", (names.tenant(tenant),), count
    for tenant, count in admission.unfinished_by_tenant():
        yield "tenant_messages", (names.tenant(tenant),), count


#: delay of the loop, in seconds, at which clients time out
_LATE: Final = 1.0


def _pressure(broker: Broker) -> dict[str, float]:
    """Returns the load of each part, from 0 to 1; at 1 a limit is reached, and clients wait or are refused.

    queue: messages that wait for direct delivery. admission: unfinished messages, of all tenants or of the
    tenant that is nearest to its quota. disk: payload that waits for a sync, or 1 while the log is full.
    loop: its delay.
    """
    hub, admission = broker.hub, broker.direct.dispatcher.admission
    return {
        "admission": min(1.0, admission.share),
        "disk": 1.0 if hub.is_full else min(1.0, hub.durability.share),
        "loop": min(1.0, broker.late / _LATE),
        "queue": min(1.0, admission.waiting / admission.limits.max_queued_direct),
    }


# -- tables ----------------------------------------------------------------------------------------------


#: damaged places of the log that the overview lists
_DAMAGE = 20


def describe_overview(broker: Broker) -> dict[str, Json]:
    """Describes the whole broker. seconds: the loop's clock, by which a client computes rates."""
    hub = broker.hub
    messages, nbytes = published(broker)
    return {
        "version": __version__,
        "folder": str(broker.folder.absolute()),
        "seconds": broker.loop.time(),
        "messages": messages,
        "bytes": nbytes,
        "topics": len(hub.store.topics),
        "groups": len(hub.groups.served),
        "subscribers": _subscribers(hub),
        "behind": len(hub.fanout.behind),
        "connections": sum(front.connections for front in broker.fronts.values()),
        "events": dict(sorted(_events(broker).items())),
        "log_bytes": hub.store.log.disk_bytes,
        "log_full": hub.full,
        "log_damage": [*(one.text for one in hub.store.log.damage), *hub.store.damage.values()][:_DAMAGE],
        "log_quarantined": hub.store.log.quarantined,
        "unsynced_bytes": hub.durability.unsynced,
        "loop_late": broker.late,
    }


def _events(broker: Broker) -> dict[str, int]:
    """Returns the counters of groups and of direct delivery together."""
    counts, direct = broker.hub.counts, broker.direct.dispatcher.counts
    events = {event: counts[event] for event in {*EVENTS, *counts}}
    for event, name in _OF_DIRECT.items():
        events[event] += direct[name]
    events["deferred"] += broker.direct.dispatcher.admission.counts[AdmissionOutcome.DEFERRED]
    return events


def _subscribers(hub: Hub) -> int:
    return sum(one.programs for one in hub.fanout.subscriptions())


def first_names(names: Sequence[str], after: str, contains: str, limit: int) -> list[str]:
    """Returns up to `limit` + 1 of the names, in order. On any thread: there may be millions."""
    return heapq.nsmallest(limit + 1, (name for name in names if name > after and contains in name))


def describe_topic(broker: Broker, name: str) -> dict[str, Json] | None:
    """Describes a topic; None if it does not exist any more."""
    topic = broker.hub.store.topics.get(name)
    return _topic(broker, topic) if topic is not None else None


def _topic(broker: Broker, topic: Topic) -> dict[str, Json]:
    low, high = broker.hub.store.range(topic) if topic.durable else (0, 0)
    return {
        "topic": topic.name,
        "durable": topic.durable,
        "messages": topic.messages,
        "bytes": topic.nbytes,
        "oldest": low,
        "end": high,
        "position": topic.position,
        "subscribers": sum(one.listening(topic.name) for one in broker.hub.fanout.listeners(topic)),
    }


def groups_of(broker: Broker) -> list[tuple[str, str]]:
    """Returns (topic, name) of all groups, in order."""
    return sorted((served.named.topic, served.named.name) for served in broker.hub.groups.served)


def describe_group(broker: Broker, named: tuple[str, str]) -> dict[str, Json] | None:
    """Describes a group; None if it does not exist any more.

    cursor: the offset before which all messages are acknowledged. idle: seconds without a consumer.
    """
    served = broker.hub.groups.served_as(*named)
    return _group(broker.hub, served) if served is not None else None


def _group(hub: Hub, served: Served) -> dict[str, Json]:
    group = served.group
    return {
        "topic": served.named.topic,
        "group": served.named.name,
        "cursor": group.cursor,
        "lag": group.lag(served.topic.kept),
        "held": group.held,
        "waiting": group.waiting,
        "consumers": group.consumers,
        "idle": round(hub.groups.activity.idle(served), 3),
    }


def describe_fronts(broker: Broker) -> dict[str, Json]:
    """Describes the fronts, and where each listens."""
    fronts: list[Json] = []
    for name, front in broker.fronts.items():
        listens: list[Json] = list(broker.endpoints_of(name))
        fronts.append(
            {
                "front": name,
                "listens": listens,
                "connections": front.connections,
                "events": dict(sorted(front.counters.items())),
            }
        )
    if broker.spool is not None:
        places: list[Json] = list(broker.endpoints_of("spool"))
        connections = broker.spool.connections
        fronts.append({"front": "spool", "listens": places, "connections": connections, "events": {}})
    return {"seconds": broker.loop.time(), "fronts": fronts}
