"""Admission for direct delivery: which messages the broker takes, and how many may wait. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from transfer.transports.errors import OptionError

K = TypeVar("K")

#: number of tenants, about, that are counted by name; all others are counted as OTHER
MOST_TENANTS = 1000
OTHER = "other"


class AdmissionOutcome(StrEnum):
    """What happens to a message for which there is no room; counted by name.

    DEFERRED: it waits in the queue until its consumer has room. THROTTLED: the broker refuses it for
    overload; the producer should retry. DROPPED: the broker refuses it because its queue is full.
    """

    DEFERRED = "deferred"
    THROTTLED = "throttled"
    DROPPED = "dropped"


class Limit(StrEnum):
    """The limit that was reached."""

    GLOBAL_INGRESS = "max_global_ingress"
    TENANT = "tenant_quota"
    QUEUED_DIRECT = "max_queued_direct"
    TOPIC_QUEUE = "max_per_topic_queue"
    LATER_QUEUE = "half of max_queued_direct, for messages with a later delivery time"
    DELAY = "max_delay"
    INFLIGHT = "max_inflight_per_consumer"

    @property
    def outcome(self) -> AdmissionOutcome:
        return _OUTCOMES[self]


_OUTCOMES = {
    Limit.GLOBAL_INGRESS: AdmissionOutcome.THROTTLED,
    Limit.TENANT: AdmissionOutcome.THROTTLED,
    Limit.QUEUED_DIRECT: AdmissionOutcome.DROPPED,
    Limit.TOPIC_QUEUE: AdmissionOutcome.DROPPED,
    Limit.LATER_QUEUE: AdmissionOutcome.DROPPED,
    Limit.DELAY: AdmissionOutcome.DROPPED,
    Limit.INFLIGHT: AdmissionOutcome.DEFERRED,
}


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits in messages, except `max_inflight_bytes` and `max_delay`. Raises OptionError.

    max_inflight_per_consumer: messages that a consumer may hold without acknowledging them;
    max_inflight_bytes: of their payloads, after which it gets no more. max_per_topic_queue: messages of one
    topic that wait for one destination. max_queued_direct: all that wait; half of them may have a later
    delivery time, at most `max_delay` seconds from now. max_global_ingress: messages that are not
    finished, waiting or in flight. tenant_quota: the same for one tenant, unless `tenant_quotas` has another
    number for it.
    """

    max_inflight_per_consumer: int = 1024
    max_inflight_bytes: int = 64 << 20
    max_per_topic_queue: int = 256
    max_queued_direct: int = 4096
    max_global_ingress: int = 8192
    tenant_quota: int = 8192
    tenant_quotas: Mapping[str, int] = field(default_factory=dict)
    max_delay: float = 30 * 86400.0

    def __post_init__(self) -> None:
        numbers = (
            self.max_inflight_per_consumer,
            self.max_inflight_bytes,
            self.max_per_topic_queue,
            self.max_queued_direct,
            self.max_global_ingress,
        )
        if (
            min(numbers) < 1
            or self.max_delay < 0
            or min(self.tenant_quota, *self.tenant_quotas.values(), 0) < 0
        ):
            raise OptionError(
                f"{self} makes no sense", hint="limits are at least 1, quotas and max_delay at least 0"
            )

    def quota(self, tenant: str) -> int:
        return self.tenant_quotas.get(tenant, self.tenant_quota)


class Admission:
    """Counts messages that wait or are unfinished. Not thread-safe. counts: of each outcome. reached: how
    often each limit decided. accepted, refused: messages by tenant, for the first tenants."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self.unfinished = 0
        self.waiting = 0
        self.counts: Counter[AdmissionOutcome] = Counter()
        self.reached: Counter[Limit] = Counter()
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        self._topics: Counter[tuple[str, str, str]] = Counter()
        self._later = 0

    def refuses(self, tenant: str, destination: str, topic: str, delay: float = 0.0) -> Limit | None:
        """Returns the limit that refuses a new message, and counts it. None: there is room. delay: seconds
        until the message is to be delivered."""
        limit = self._over(tenant, destination, topic, delay)
        if limit is not None:
            self.count(limit)
            self.refused[self._named(tenant)] += 1
        return limit

    def count(self, limit: Limit) -> None:
        """Counts a message that this limit decided about."""
        self.reached[limit] += 1
        self.counts[limit.outcome] += 1

    def defer(self) -> None:
        """Counts a message that waits because its consumer is not connected."""
        self.counts[AdmissionOutcome.DEFERRED] += 1

    @property
    def share(self) -> float:
        """The used share of the unfinished messages allowed: of all, or of the tenant nearest to its
        quota."""
        limits = self.limits
        shares = (count / (limits.quota(tenant) or count) for tenant, count in self._tenants.items())
        return max(self.unfinished / limits.max_global_ingress, *shares, 0.0)

    def unfinished_by_tenant(self) -> Iterable[tuple[str, int]]:
        """Returns the number of unfinished messages of each tenant that has some."""
        return self._tenants.items()

    def of_topic(self, tenant: str, destination: str, topic: str) -> int:
        """Returns the number of this topic's messages that wait for this destination."""
        return self._topics[tenant, destination, topic]

    # -- reports of the dispatcher -------------------------------------------------------------------------

    def began(self, tenant: str, *, again: bool = False) -> None:
        """Counts a message as unfinished. again: it was unfinished when the broker ended."""
        self.accepted[self._named(tenant)] += not again
        self.unfinished += 1
        self._tenants[tenant] += 1

    def finished(self, tenant: str) -> None:
        self.unfinished -= 1
        _less(self._tenants, tenant)

    def waits(self, tenant: str, destination: str, topic: str, *, later: bool = False) -> None:
        """Counts a message as waiting. later: its delivery time has not come."""
        self.waiting += 1
        self._later += later
        self._topics[tenant, destination, topic] += 1

    def waited(self, tenant: str, destination: str, topic: str, *, later: bool = False) -> None:
        self.waiting -= 1
        self._later -= later
        _less(self._topics, (tenant, destination, topic))

    def _named(self, tenant: str) -> str:
        """Returns the name that the tenant is counted under: any client may make up new tenants."""
        known = tenant in self.accepted or tenant in self.refused
        return tenant if known or len(self.accepted) + len(self.refused) < MOST_TENANTS else OTHER

    def _over(self, tenant: str, destination: str, topic: str, delay: float) -> Limit | None:
        limits = self.limits
        if self.unfinished >= limits.max_global_ingress:
            return Limit.GLOBAL_INGRESS
        if self._tenants[tenant] >= limits.quota(tenant):
            return Limit.TENANT
        if self.waiting >= limits.max_queued_direct:
            return Limit.QUEUED_DIRECT
        if self._topics[tenant, destination, topic] >= limits.max_per_topic_queue:
            return Limit.TOPIC_QUEUE
        if delay > limits.max_delay:
            return Limit.DELAY
        if (
            delay > 0 and self._later >= (limits.max_queued_direct + 1) // 2
        ):  # the other half is for messages that are due now
            return Limit.LATER_QUEUE
        return None


def _less(counter: Counter[K], key: K) -> None:
    """Subtracts one; names with a count of 0 are removed."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
