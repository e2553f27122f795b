"""All that can be chosen of a broker: what it is called, where it goes in `Settings`, how it is read. Pure.

A choice is called `section.key`, as in the file: `ttp.port` is `port` under `[ttp]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from transfer.broker.config import values
from transfer.broker.config.settings import Settings
from transfer.broker.config.values import Reader, Value
from transfer.broker.fronts.native import NativeSettings
from transfer.transports.security.settings import CLIENTS, ENCRYPT, Security

#: who may come in, with these fields as they are and the rest from elsewhere
Secured = Callable[[dict[str, Any]], Security]


@dataclass(frozen=True, slots=True)
class Option:
    """name: `section.key`. path: of the field in Settings. text: what it means, for people."""

    name: str
    path: tuple[str, ...]
    read: Reader
    text: str


_HIGHEST = 1 << 40
_LARGEST = "bytes of a payload at most"
_STALLED = "seconds that a peer may stop in the middle of a message"

CHOICES = (
    Option("broker.host", ("host",), values.text, "where the fronts on plain TCP listen"),
    Option("broker.drain", ("drain",), values.seconds, "what a clean stop gives to what has begun"),
    Option("own.requests", ("own", "requests"), values.endpoint_or_off, "where DEALER and REQ connect"),
    Option("own.pushes", ("own", "pushes"), values.endpoint_or_off, "where PUSH and PUB connect"),
    Option("own.subscriptions", ("own", "subscriptions"), values.endpoint_or_off, "where SUB connects"),
    Option("own.queues", ("own", "queues"), values.endpoints, "by topic, where PULL connects"),
    Option("own.largest", ("own", "largest"), values.size, "bytes of a message at most"),
    Option(
        "own.largest_in_pieces", ("own", "largest_in_pieces"), values.size, "bytes of a message in pieces"
    ),
    Option("own.stalled", ("own", "stalled"), values.seconds, "seconds that a program may stop in one"),
    Option("ttp.port", ("ttp",), values.port, "of TTP v2"),
    Option("ttp.most_meta", ("ttp_limits", "most_meta"), values.size, "bytes of a frame's metadata"),
    Option("ttp.most_data", ("ttp_limits", "most_data"), values.size, "bytes of a frame's data"),
    Option(
        "ttp.most_gathered",
        ("ttp_limits", "most_gathered"),
        values.size,
        "bytes of a stream in memory",
    ),
    Option(
        "ttp.most_gathered_together",
        ("ttp_limits", "most_gathered_together"),
        values.size,
        "bytes of all streams in memory",
    ),
    Option(
        "ttp.most_streams", ("ttp_limits", "most_streams"), values.number(1), "that a connection has open"
    ),
    Option(
        "ttp.most_subscriptions",
        ("ttp_limits", "most_subscriptions"),
        values.number(1),
        "that a connection has",
    ),
    Option(
        "ttp.most_shapes",
        ("ttp_limits", "most_shapes"),
        values.number(0),
        "of a connection's patterns with wildcards",
    ),
    Option(
        "ttp.most_shapes_together",
        ("ttp_limits", "most_shapes_together"),
        values.number(0),
        "the same of all connections",
    ),
    Option("ttp.idle", ("ttp_limits", "idle"), values.seconds, "silence after which a connection ends"),
    Option("pybroker.port", ("pybroker",), values.port, "of PyBroker's protocol"),
    Option("pybroker.largest", ("pybroker_limits", "largest"), values.size, _LARGEST),
    Option("pybroker.stalled", ("pybroker_limits", "stalled"), values.seconds, _STALLED),
    Option("pybroker.answers", ("pybroker_limits", "answers"), values.size, "answers that wait for a peer"),
    Option("rqueue.port", ("rqueue",), values.port, "of rqueue's protocol"),
    Option("rqueue.largest", ("rqueue_limits", "largest"), values.size, _LARGEST),
    Option("rqueue.stalled", ("rqueue_limits", "stalled"), values.seconds, _STALLED),
    Option("rqueue.limit", ("rqueue_limits", "limit"), values.size, "bytes that wait for a subscriber"),
    Option("rqueue.overflow", ("rqueue_limits", "overflow"), values.overflow, "what happens beyond them"),
    Option(
        "rqueue.subscriptions", ("rqueue_limits", "subscriptions"), values.number(1), "that a connection has"
    ),
    Option("abtp.router", ("abtp", "router"), values.endpoint_or_off, "where abtp's DEALER and REQ connect"),
    Option("abtp.pub", ("abtp", "pub"), values.endpoint, "where abtp's SUB connects"),
    Option("abtp.signed", ("abtp", "signed"), values.flag, "consumers sign what they say with a token"),
    Option("spool.endpoint", ("spool",), values.or_none(values.endpoint), "of the spool for Spark's rows"),
    Option(
        "spool.retention_age",
        ("spool_ages", "retention"),
        values.or_none(values.seconds),
        "when the spool deletes runs that all their groups have read",
    ),
    Option(
        "spool.staged_age",
        ("spool_ages", "staged"),
        values.or_none(values.seconds),
        "when the spool drops staged rows of a job that sends nothing",
    ),
    Option(
        "spool.failed_age",
        ("spool_ages", "failed"),
        values.or_none(values.seconds),
        "when the spool deletes failed runs",
    ),
    Option(
        "spool.group_age",
        ("spool_ages", "group"),
        values.or_none(values.seconds),
        "when the spool keeps no rows any more for a group that does not read",
    ),
    Option(
        "spool.unread_age",
        ("spool_ages", "unread"),
        values.or_none(values.seconds),
        "when the spool deletes runs that no group reads",
    ),
    Option("http.port", ("http",), values.port, "of health, metrics, the console and operators"),
    Option("http.host", ("http_host",), values.or_none(values.text), "where that listens, if elsewhere"),
    Option(
        "http.token",
        ("token",),
        values.or_none(values.text),
        "what operators have to say; in a file, since all users see command lines",
    ),
    Option("security.cert", ("security", "certificate"), values.text, "PEM file of its certificates"),
    Option("security.key", ("security", "key"), values.text, "PEM file of their key"),
    Option("security.ca", ("security", "authority"), values.text, "PEM file of those who sign clients'"),
    Option("security.clients", ("security", "clients"), values.word("", *CLIENTS), "what clients show"),
    Option(
        "security.server_name",
        ("security", "server_name"),
        values.text,
        "that certificates have to name",
    ),
    Option("security.token_file", ("security", "token_file"), values.text, "a file of tokens, one a line"),
    Option(
        "security.unauthenticated",
        ("security", "unauthenticated"),
        values.allowed,
        "`allow`: strangers may come from other machines",
    ),
    Option(
        "security.tokenless",
        ("security", "tokenless"),
        values.allowed,
        "`allow`: TTP, PyBroker, rqueue, abtp, HTTP listen here without the token, which they cannot ask for",
    ),
    Option("security.encrypt", ("security", "encrypt"), values.word(*ENCRYPT), "what is encrypted"),
    Option(
        "security.connections",
        ("security", "connections"),
        values.number(1),
        "that one place takes at once",
    ),
    Option(
        "security.unfinished",
        ("security", "unfinished"),
        values.number(1),
        "of those who have not shown yet who they are",
    ),
    Option("security.handshake", ("handshake",), values.seconds, "seconds that they have for it"),
    Option("topics.keep", ("keep",), values.flag, "whether topics keep their messages"),
    Option("topics.transient", ("transient",), values.patterns, "topics that do not"),
    Option("topics.most", ("most_topics",), values.number(1), "names that may be known at once"),
    Option(
        "retention.bytes",
        ("retention_bytes",),
        values.or_none(values.size_or_share),
        "what the log may take, or a share of the volume",
    ),
    Option(
        "publish.announced_per_connection",
        ("announced", "per_connection"),
        values.size,
        "bytes that one publisher has announced and not sent",
    ),
    Option(
        "publish.announced_total",
        ("announced", "total"),
        values.size,
        "bytes that all publishers have announced and not sent",
    ),
    Option("retention.age", ("retention_age",), values.or_none(values.seconds), "how long messages stay"),
    Option(
        "groups.expire",
        ("group_expire",),
        values.or_none(values.seconds),
        "time without a consumer after which a group is removed",
    ),
    Option("groups.most", ("most_groups",), values.number(1), "that there may be at once"),
    Option("delivery.attempts", ("attempts",), values.number(1, 1000), "until a message is a dead letter"),
    Option("delivery.first_delay", ("first_delay",), values.seconds, "behind the first attempt"),
    Option(
        "delivery.patience", ("patience",), values.seconds, "with who holds up a large message for others"
    ),
    Option("direct.ack_timeout", ("ack_timeout",), values.seconds, "that a consumer has for its ACK"),
    Option(
        "direct.route_grace",
        ("route_grace",),
        values.seconds,
        "that a message waits for a consumer that went a moment ago",
    ),
    Option(
        "direct.max_inflight_per_consumer",
        ("direct", "max_inflight_per_consumer"),
        values.number(1, _HIGHEST),
        "dispatched and not acknowledged",
    ),
    Option(
        "direct.max_per_topic_queue",
        ("direct", "max_per_topic_queue"),
        values.number(1, _HIGHEST),
        "messages of a topic that wait for one destination",
    ),
    Option(
        "direct.max_queued_direct",
        ("direct", "max_queued_direct"),
        values.number(1, _HIGHEST),
        "messages that wait in all",
    ),
    Option(
        "direct.max_global_ingress",
        ("direct", "max_global_ingress"),
        values.number(1, _HIGHEST),
        "messages taken and not finished",
    ),
    Option(
        "direct.tenant_quota",
        ("direct", "tenant_quota"),
        values.number(1, _HIGHEST),
        "the same of one tenant",
    ),
    Option(
        "direct.longest_delay",
        ("direct", "longest_delay"),
        values.seconds,
        "until a message that is to be delivered later",
    ),
    Option("direct.tenant_quotas", ("direct", "tenant_quotas"), values.quotas, "of tenants with another one"),
    Option("routes.catalog", ("catalog",), values.text, "a file of routes for direct delivery"),
    Option(
        "large.cutover",
        ("fast_path", "cutover"),
        values.size,
        "size from which a thread decodes messages of abtp",
    ),
    Option("large.in_place", ("fast_path", "in_place"), values.flag, "the loop decodes them if that fails"),
    Option("large.threads", ("fast_path", "threads"), values.number(1, 64), "threads that decode them"),
)
#: of the fronts that know no token
_PLACES = frozenset({"ttp.port", "pybroker.port", "rqueue.port", "abtp.router", "abtp.pub"})
BY_NAME = {choice.name: choice for choice in CHOICES}


def settings_of(chosen: dict[str, Value], secured: Secured | None = None) -> Settings:
    """The settings with these choices, and all else as it is by default. secured: who may come in, of what is
    chosen of that; None: nobody is asked but as it is chosen.

    Raises OptionError, SecurityError for values that do not go together.
    """
    changes: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in chosen.items():
        first, *rest = BY_NAME[name].path
        if rest:
            parts.setdefault(first, {})[rest[0]] = value
        else:
            changes[first] = value
    base = Settings(security=_security(parts.pop("security", {}), secured))
    for name, fields in parts.items():
        changes[name] = replace(getattr(base, name), **fields)
    own: NativeSettings | None = changes.get("own", base.own)
    if own is not None and not (own.requests or own.pushes or own.subscriptions):
        changes["own"] = None
    if "abtp" in changes and not changes["abtp"].router:
        changes["abtp"] = None
    named = frozenset(name.partition(".")[0] for name in chosen if name in _PLACES)
    return replace(base, **changes, named=named)


def _security(fields: dict[str, Any], secured: Secured | None) -> Security | None:
    if fields.get("token_file"):
        fields["token"] = ""  # the file is another place for it
    if secured is not None:
        return secured(fields)
    return Security(**fields) if fields else None


def default_of(choice: Option) -> Value:
    """What it is unless somebody chooses."""
    value: Any = Settings(security=Security())
    for name in choice.path:
        value = getattr(value, name)
    found: Value = value
    return found
