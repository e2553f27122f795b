"""A broker's settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from transfer.broker.core.admission import AdmissionLimits
from transfer.broker.core.topic_patterns import TopicPattern
from transfer.broker.delivery.announced import AnnouncedLimits
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.fronts.pybroker import PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueSettings
from transfer.broker.fronts.ttp import TtpSettings
from transfer.broker.storage.volume import VolumeShare
from transfer.spool.server.max_ages import Ages
from transfer.transports.security.settings import Security

#: default ports of the fronts
TTP_PORT, PYBROKER_PORT, RQUEUE_PORT, HTTP_PORT = 59321, 9099, 6567, 9180

SPOOL_ENDPOINT = "tcp://127.0.0.1:5570"


@dataclass(frozen=True, slots=True)
class FastPath:
    """Where the broker decodes and compresses (LZ4) large messages of abtp.

    cutover: size of a message, in bytes, from which a thread does it. in_place: the loop does it if the
    thread fails; else the message is refused. threads: number of threads; each works for one peer at a time.
    """

    cutover: int = 256 << 10
    in_place: bool = True
    threads: int = 1


@dataclass(frozen=True, slots=True)
class AbtpEndpoints:
    """ZeroMQ endpoints of the abtp front. signed: consumers sign their control messages with a token."""

    router: str = "tcp://127.0.0.1:5555"
    pub: str = "tcp://127.0.0.1:5556"
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a broker.

    host: address of the fronts on plain TCP. A port of None disables its front, 0 takes a free port. native:
    endpoints of transfer's own sockets; None: off. spool: endpoint of the spool from Spark to training, which
    shares the log; None: off. spool_ages: times after which the spool deletes unused data. http_host: None:
    `host`. token: of operators over HTTP; None: operators have to be on this machine. keep: topics keep their
    messages, apart from `transient`. max_topics: topics at most. retention_bytes, retention_age: size of the
    log, and seconds for which it keeps a message. It never removes a message that a group has not
    acknowledged. group_idle_age: seconds without a consumer after which a group is removed; None: never.
    max_groups: groups at most. announced: limits for payloads that are announced and have not arrived.
    max_attempts: deliveries of a message before it is a dead letter; first_delay: seconds after the first
    attempt. stall_timeout: seconds for which a slow consumer may block a large message for the other
    consumers. drain_timeout: seconds that a clean stop gives to begun work. catalog: a file of routes, "" for
    none. direct: limits of direct delivery. ack_timeout: seconds in which a consumer has to acknowledge
    there. route_grace: seconds for which a message waits for a consumer that has just disconnected. security:
    certificates and tokens; None: from the environment. named: fronts that the user configured: one of them
    that may not listen is an error. handshake_timeout: seconds in which a connection has to authenticate.
    """

    host: str = "127.0.0.1"
    native: NativeSettings | None = field(default_factory=NativeSettings)
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
    transient: tuple[TopicPattern, ...] = ()
    max_topics: int = 100_000
    retention_bytes: int | VolumeShare | None = field(default_factory=lambda: VolumeShare(80))
    retention_age: float | None = None
    group_idle_age: float | None = None
    max_groups: int = 10_000
    max_attempts: int = 3
    first_delay: float = 0.1
    stall_timeout: float = 10.0
    drain_timeout: float = 10.0
    announced: AnnouncedLimits = field(default_factory=AnnouncedLimits)
    catalog: str = ""
    ack_timeout: float = 30.0
    route_grace: float = 5.0
    ttp_limits: TtpSettings = field(default_factory=TtpSettings)
    pybroker_limits: PyBrokerSettings = field(default_factory=PyBrokerSettings)
    rqueue_limits: RqueueSettings = field(default_factory=RqueueSettings)
    direct: AdmissionLimits = field(default_factory=AdmissionLimits)
    fast_path: FastPath = field(default_factory=FastPath)
    security: Security | None = None
    named: frozenset[str] = field(default=frozenset(), compare=False)
    handshake_timeout: float = 10.0

    def durable(self, topic: str) -> bool:
        """Whether the broker keeps a topic's messages."""
        return self.keep and not any(pattern.matches(topic) for pattern in self.transient)
