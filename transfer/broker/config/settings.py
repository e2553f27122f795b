"""What a broker is told when it starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from transfer.broker.core.admission import Limits
from transfer.broker.core.topic_patterns import Pattern
from transfer.broker.delivery.announced import AnnouncedLimits
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.fronts.pybroker import PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueSettings
from transfer.broker.fronts.ttp import TtpSettings
from transfer.broker.storage.volume import VolumeShare
from transfer.spool.server.max_ages import Ages
from transfer.transports.security.settings import Security

#: where each front listens unless it is told otherwise
TTP_PORT, PYBROKER_PORT, RQUEUE_PORT, HTTP_PORT = 59321, 9099, 6567, 9180

SPOOL_ENDPOINT = "tcp://127.0.0.1:5570"


@dataclass(frozen=True, slots=True)
class FastPath:
    """Where abtp's large messages are taken apart, with LZ4 if they are compressed, and packed with it.

    cutover: bytes of a message from which on a thread does it. in_place: the loop does it if
    that fails; else the message is refused. threads: how many do so at a time, each for another peer.
    """

    cutover: int = 256 << 10
    in_place: bool = True
    threads: int = 1


@dataclass(frozen=True, slots=True)
class AbtpEndpoints:
    """Where the abtp front listens: ZeroMQ's endpoints. signed: consumers sign their control messages with a
    token."""

    router: str = "tcp://127.0.0.1:5555"
    pub: str = "tcp://127.0.0.1:5556"
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it. host: where the seeds' fronts listen. A port None: that front is off; 0: a free port.

    own: endpoints of transfer's own sockets, None: off. spool: the endpoint of the spool for Spark's rows and
    training, which shares the log; None: off. spool_ages: after which times
    it removes what nothing uses. http_host: None: `host`. token: what operators have
    to say over HTTP; None: they have to be on this machine. keep: topics keep their messages; transient:
    all but these. most_topics: names that may be known. retention_bytes, retention_age: what the log may
    take, and for how many seconds a message is kept; what a group has not done with is never removed.
    group_expire: seconds without a consumer after which a group is removed; None: never. most_groups: that
    there may be.
    announced: bytes of payloads that were announced and have not arrived.
    attempts: that a message gets before it is a dead letter; first_delay: seconds behind the first.
    patience: seconds that a slow receiver may hold up a large message for all. drain: seconds that a clean
    stop gives to what has begun. catalog: a file of routes, "" for none. direct: limits of direct delivery;
    ack_timeout: seconds that a consumer has for its ACK there; route_grace: that a message waits for one that
    went a moment ago. security: who may come in; None: what the
    environment says. named: fronts that were named: if one may not listen, that is an error
    then. handshake: seconds that somebody has to show who he is.
    """

    host: str = "127.0.0.1"
    own: NativeSettings | None = field(default_factory=NativeSettings)
    ttp: int | None = TTP_PORT
    pybroker: int | None = PYBROKER_PORT
    rqueue: int | None = RQUEUE_PORT
    abtp: AbtpEndpoints | None = field(default_factory=AbtpEndpoints)
    http: int | None = HTTP_PORT
    spool: str | None = SPOOL_ENDPOINT
    spool_ages: Ages = field(default_factory=Ages)
    http_host: str | None = None
    token: str | None = field(default=None, repr=False)
    keep: bool = True
    transient: tuple[Pattern, ...] = ()
    most_topics: int = 100_000
    retention_bytes: int | VolumeShare | None = field(default_factory=lambda: VolumeShare(80))
    retention_age: float | None = None
    group_expire: float | None = None
    most_groups: int = 10_000
    attempts: int = 3
    first_delay: float = 0.1
    patience: float = 10.0
    drain: float = 10.0
    announced: AnnouncedLimits = field(default_factory=AnnouncedLimits)
    catalog: str = ""
    ack_timeout: float = 30.0
    route_grace: float = 5.0
    ttp_limits: TtpSettings = field(default_factory=TtpSettings)
    pybroker_limits: PyBrokerSettings = field(default_factory=PyBrokerSettings)
    rqueue_limits: RqueueSettings = field(default_factory=RqueueSettings)
    direct: Limits = field(default_factory=Limits)
    fast_path: FastPath = field(default_factory=FastPath)
    security: Security | None = None
    named: frozenset[str] = field(default=frozenset(), compare=False)
    handshake: float = 10.0

    def durable(self, topic: str) -> bool:
        """Whether a topic's messages are kept."""
        return self.keep and not any(pattern.matches(topic) for pattern in self.transient)
