"""The options of a broker: their names, their fields in `Settings`, their parsers. Pure.

An option is named `section.key`, as in the file: `ttp.port` is `port` under `[ttp]`.
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

#: makes Security of the configured fields, and takes the others from elsewhere
Secured = Callable[[dict[str, Any]], Security]


@dataclass(frozen=True, slots=True)
class BrokerOption:
    """One option. name: `section.key`. path: of its field in Settings. text: its meaning, for people."""

    name: str
    path: tuple[str, ...]
    read: Reader
    text: str


_HIGHEST = 1 << 40

OPTIONS = (
    BrokerOption("broker.host", ("host",), values.text, "address that the fronts on plain TCP listen on"),
    BrokerOption("broker.drain", ("drain",), values.seconds, "seconds that a clean stop gives to begun work"),
    BrokerOption(
        "own.requests", ("own", "requests"), values.endpoint_or_off, "endpoint where DEALER and REQ connect"
    ),
    BrokerOption(
        "own.pushes", ("own", "pushes"), values.endpoint_or_off, "endpoint where PUSH and PUB connect"
    ),
    BrokerOption(
        "own.subscriptions", ("own", "subscriptions"), values.endpoint_or_off, "endpoint where SUB connects"
    ),
    BrokerOption(
        "own.queues", ("own", "queues"), values.endpoints, "by topic, the endpoint where PULL connects"
    ),
    BrokerOption("own.largest", ("own", "largest"), values.size, "largest message in bytes"),
    BrokerOption(
        "own.largest_in_pieces",
        ("own", "largest_in_pieces"),
        values.size,
        "largest message in bytes that a program sends in pieces",
    ),
    BrokerOption(
        "own.stalled",
        ("own", "stalled"),
        values.seconds,
        "seconds that a program may pause within a message in pieces",
    ),
    BrokerOption("ttp.port", ("ttp",), values.port, "port of the TTP v2 front"),
    BrokerOption(
        "ttp.most_meta", ("ttp_limits", "most_meta"), values.size, "largest metadata of a frame in bytes"
    ),
    BrokerOption(
        "ttp.most_data", ("ttp_limits", "most_data"), values.size, "largest data of a frame in bytes"
    ),
    BrokerOption(
        "ttp.most_gathered",
        ("ttp_limits", "most_gathered"),
        values.size,
        "bytes of a stream that the broker buffers in memory",
    ),
    BrokerOption(
        "ttp.most_gathered_together",
        ("ttp_limits", "most_gathered_together"),
        values.size,
        "bytes of all streams that the broker buffers in memory",
    ),
    BrokerOption(
        "ttp.most_streams", ("ttp_limits", "most_streams"), values.number(1), "open streams of a connection"
    ),
    BrokerOption(
        "ttp.most_subscriptions",
        ("ttp_limits", "most_subscriptions"),
        values.number(1),
        "subscriptions of a connection",
    ),
    BrokerOption(
        "ttp.most_shapes",
        ("ttp_limits", "most_shapes"),
        values.number(0),
        "shapes of a connection's patterns with wildcards",
    ),
    BrokerOption(
        "ttp.most_shapes_together",
        ("ttp_limits", "most_shapes_together"),
        values.number(0),
        "shapes of all connections' patterns with wildcards",
    ),
    BrokerOption(
        "ttp.idle",
        ("ttp_limits", "idle"),
        values.seconds,
        "seconds of silence after which the broker closes a connection",
    ),
    BrokerOption("pybroker.port", ("pybroker",), values.port, "port of the PyBroker front"),
    BrokerOption("pybroker.largest", ("pybroker_limits", "largest"), values.size, "largest payload in bytes"),
    BrokerOption(
        "pybroker.stalled",
        ("pybroker_limits", "stalled"),
        values.seconds,
        "seconds that a peer may pause within a message",
    ),
    BrokerOption(
        "pybroker.answers",
        ("pybroker_limits", "answers"),
        values.size,
        "bytes of answers that the broker queues for a peer",
    ),
    BrokerOption("rqueue.port", ("rqueue",), values.port, "port of the rqueue front"),
    BrokerOption("rqueue.largest", ("rqueue_limits", "largest"), values.size, "largest payload in bytes"),
    BrokerOption(
        "rqueue.stalled",
        ("rqueue_limits", "stalled"),
        values.seconds,
        "seconds that a peer may pause within a message",
    ),
    BrokerOption(
        "rqueue.limit",
        ("rqueue_limits", "limit"),
        values.size,
        "bytes that the broker queues for a subscriber",
    ),
    BrokerOption(
        "rqueue.overflow",
        ("rqueue_limits", "overflow"),
        values.overflow,
        "what the broker does beyond `rqueue.limit`",
    ),
    BrokerOption(
        "rqueue.subscriptions",
        ("rqueue_limits", "subscriptions"),
        values.number(1),
        "subscriptions of a connection",
    ),
    BrokerOption(
        "abtp.router",
        ("abtp", "router"),
        values.endpoint_or_off,
        "endpoint where abtp's DEALER and REQ connect",
    ),
    BrokerOption("abtp.pub", ("abtp", "pub"), values.endpoint, "endpoint where abtp's SUB connects"),
    BrokerOption(
        "abtp.signed",
        ("abtp", "signed"),
        values.flag,
        "whether consumers sign their control messages with a token",
    ),
    BrokerOption(
        "spool.endpoint",
        ("spool",),
        values.or_none(values.endpoint),
        "endpoint of the spool for Spark's rows",
    ),
    BrokerOption(
        "spool.retention_age",
        ("spool_ages", "retention"),
        values.or_none(values.seconds),
        "age at which the spool deletes runs that all their groups have read",
    ),
    BrokerOption(
        "spool.staged_age",
        ("spool_ages", "staged"),
        values.or_none(values.seconds),
        "age at which the spool drops staged rows of a job that sends nothing",
    ),
    BrokerOption(
        "spool.failed_age",
        ("spool_ages", "failed"),
        values.or_none(values.seconds),
        "age at which the spool deletes failed runs",
    ),
    BrokerOption(
        "spool.group_age",
        ("spool_ages", "group"),
        values.or_none(values.seconds),
        "age at which the spool keeps no rows any more for a group that does not read",
    ),
    BrokerOption(
        "spool.unread_age",
        ("spool_ages", "unread"),
        values.or_none(values.seconds),
        "age at which the spool deletes runs that no group reads",
    ),
    BrokerOption(
        "http.port", ("http",), values.port, "port of HTTP: health, metrics, the console, operators' calls"
    ),
    BrokerOption(
        "http.host", ("http_host",), values.or_none(values.text), "address of HTTP; by default `broker.host`"
    ),
    BrokerOption(
        "http.token",
        ("token",),
        values.or_none(values.text),
        "token of operators; in a file, since all users can read command lines",
    ),
    BrokerOption(
        "security.cert",
        ("security", "certificate"),
        values.text,
        "PEM file of the broker's certificate, which enables TLS",
    ),
    BrokerOption("security.key", ("security", "key"), values.text, "PEM file of the certificate's key"),
    BrokerOption(
        "security.ca",
        ("security", "authority"),
        values.text,
        "PEM file of the authority that signs clients' certificates",
    ),
    BrokerOption(
        "security.clients",
        ("security", "clients"),
        values.word("", *CLIENTS),
        "what clients have to show: `certificate` or `token`",
    ),
    BrokerOption(
        "security.server_name",
        ("security", "server_name"),
        values.text,
        "name that certificates of other brokers have to contain",
    ),
    BrokerOption(
        "security.token_file", ("security", "token_file"), values.text, "file of tokens, one a line"
    ),
    BrokerOption(
        "security.unauthenticated",
        ("security", "unauthenticated"),
        values.allowed,
        "`allow`: other machines may connect without authentication",
    ),
    BrokerOption(
        "security.tokenless",
        ("security", "tokenless"),
        values.allowed,
        "`allow`: ttp, pybroker, rqueue, abtp and HTTP listen on this machine without the token",
    ),
    BrokerOption(
        "security.encrypt", ("security", "encrypt"), values.word(*ENCRYPT), "connections that are encrypted"
    ),
    BrokerOption(
        "security.connections",
        ("security", "connections"),
        values.number(1),
        "connections of one port or endpoint",
    ),
    BrokerOption(
        "security.unfinished",
        ("security", "unfinished"),
        values.number(1),
        "connections of one port or endpoint that have not authenticated yet",
    ),
    BrokerOption(
        "security.handshake",
        ("handshake",),
        values.seconds,
        "seconds in which a connection has to authenticate",
    ),
    BrokerOption("topics.keep", ("keep",), values.flag, "whether topics keep their messages"),
    BrokerOption(
        "topics.transient",
        ("transient",),
        values.patterns,
        "patterns of topics that do not keep their messages",
    ),
    BrokerOption("topics.most", ("most_topics",), values.number(1), "topics at most"),
    BrokerOption(
        "retention.bytes",
        ("retention_bytes",),
        values.or_none(values.size_or_share),
        "size of the log, or a share of the volume",
    ),
    BrokerOption(
        "publish.announced_per_connection",
        ("announced", "per_connection"),
        values.size,
        "bytes that one publisher may announce before it sends them",
    ),
    BrokerOption(
        "publish.announced_total",
        ("announced", "total"),
        values.size,
        "bytes that all publishers may announce before they send them",
    ),
    BrokerOption(
        "retention.age",
        ("retention_age",),
        values.or_none(values.seconds),
        "time for which the log keeps a message",
    ),
    BrokerOption(
        "groups.expire",
        ("group_expire",),
        values.or_none(values.seconds),
        "time without a consumer after which a group is removed",
    ),
    BrokerOption("groups.most", ("most_groups",), values.number(1), "groups at most"),
    BrokerOption(
        "delivery.attempts",
        ("attempts",),
        values.number(1, 1000),
        "deliveries of a message before it is a dead letter",
    ),
    BrokerOption(
        "delivery.first_delay",
        ("first_delay",),
        values.seconds,
        "seconds before the second delivery of a message",
    ),
    BrokerOption(
        "delivery.patience",
        ("patience",),
        values.seconds,
        "seconds after which a client that blocks a large message for others is disconnected",
    ),
    BrokerOption(
        "direct.ack_timeout",
        ("ack_timeout",),
        values.seconds,
        "seconds in which a consumer has to acknowledge a message",
    ),
    BrokerOption(
        "direct.route_grace",
        ("route_grace",),
        values.seconds,
        "seconds for which a message waits for a consumer that has just disconnected",
    ),
    BrokerOption(
        "direct.max_inflight_per_consumer",
        ("direct", "max_inflight_per_consumer"),
        values.number(1, _HIGHEST),
        "messages that a consumer has and has not acknowledged",
    ),
    BrokerOption(
        "direct.max_per_topic_queue",
        ("direct", "max_per_topic_queue"),
        values.number(1, _HIGHEST),
        "messages of a topic that wait for one destination",
    ),
    BrokerOption(
        "direct.max_queued_direct",
        ("direct", "max_queued_direct"),
        values.number(1, _HIGHEST),
        "messages that wait for direct delivery",
    ),
    BrokerOption(
        "direct.max_global_ingress",
        ("direct", "max_global_ingress"),
        values.number(1, _HIGHEST),
        "unfinished messages of all tenants",
    ),
    BrokerOption(
        "direct.tenant_quota",
        ("direct", "tenant_quota"),
        values.number(1, _HIGHEST),
        "unfinished messages of one tenant",
    ),
    BrokerOption(
        "direct.longest_delay",
        ("direct", "longest_delay"),
        values.seconds,
        "longest delay of a message that is to be delivered later",
    ),
    BrokerOption(
        "direct.tenant_quotas",
        ("direct", "tenant_quotas"),
        values.quotas,
        "table of tenants with another quota",
    ),
    BrokerOption("routes.catalog", ("catalog",), values.text, "file of routes for direct delivery"),
    BrokerOption(
        "large.cutover",
        ("fast_path", "cutover"),
        values.size,
        "size from which a thread decodes messages of abtp",
    ),
    BrokerOption(
        "large.in_place",
        ("fast_path", "in_place"),
        values.flag,
        "whether the loop decodes a large message if the thread fails",
    ),
    BrokerOption(
        "large.threads", ("fast_path", "threads"), values.number(1, 64), "threads that decode large messages"
    ),
)
#: options that configure fronts without tokens
_PLACES = frozenset({"ttp.port", "pybroker.port", "rqueue.port", "abtp.router", "abtp.pub"})
BY_NAME = {option.name: option for option in OPTIONS}


def settings_of(chosen: dict[str, Value], secured: Secured | None = None) -> Settings:
    """Returns the settings with these options, and defaults for the others.

    secured: makes Security of the chosen fields; None: from these fields alone. Raises OptionError, and
    SecurityError for values that contradict each other.
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
        fields["token"] = ""  # the file replaces it
    if secured is not None:
        return secured(fields)
    return Security(**fields) if fields else None


def default_of(option: BrokerOption) -> Value:
    """Returns an option's default."""
    value: Any = Settings(security=Security())
    for name in option.path:
        value = getattr(value, name)
    found: Value = value
    return found
