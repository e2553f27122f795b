"""Consumers of direct delivery, their sessions and capabilities. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from transfer.broker.core.timers import Timers

#: a consumer: its tenant, and its name within the tenant
ConsumerKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ConsumerCapabilities:
    """The capabilities that a consumer announces.

    supports_ack: it acknowledges; otherwise a message is done when it was sent, at most once.
    supports_compression: how envelopes may be compressed, best first. supports_codec: codecs of payloads that
    it reads. max_inflight: messages that it may hold at once.
    """

    supports_ack: bool = True
    supports_compression: tuple[str, ...] = ()
    supports_codec: tuple[str, ...] = ("json", "raw")
    max_inflight: int = 1024


@dataclass(slots=True, eq=False)
class Session:
    """A registration of a consumer. peer: its id on the wire; None: restored, and not resumed yet.

    inflight: numbers of messages that it got and has not answered, with the bytes of each; held: their sum.
    """

    tenant: str
    consumer_id: str
    session_id: str
    peer: bytes | None
    subscriptions: tuple[str, ...] = ()
    capabilities: ConsumerCapabilities = field(default_factory=ConsumerCapabilities)
    inflight: dict[int, int] = field(default_factory=dict)
    held: int = 0

    @property
    def key(self) -> ConsumerKey:
        return self.tenant, self.consumer_id


@dataclass(frozen=True, slots=True)
class SessionRegistration:
    """The result of `SessionTable.register`. ended: the session that was replaced. resumed: the consumer
    resumed its session."""

    session: Session
    ended: Session | None
    resumed: bool


class SessionTable:
    """The sessions, one for each consumer; times are seconds of the monotonic clock. Not thread-safe.

    timeout: seconds without a heartbeat after which a session ends. new_id: makes session ids that cannot be
    guessed.
    """

    def __init__(self, timeout: float, new_id: Callable[[], str]) -> None:
        self._timeout = timeout
        self._new_id = new_id
        self._sessions: dict[ConsumerKey, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._by_peer: dict[bytes, dict[ConsumerKey, Session]] = {}
        self._deadlines: Timers[str] = Timers()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def find(self, key: ConsumerKey) -> Session | None:
        """Returns the consumer's session, whether the consumer is connected or not."""
        return self._sessions.get(key)

    def live(self, key: ConsumerKey) -> Session | None:
        """Returns the consumer's session if it can get messages now."""
        session = self._sessions.get(key)
        return session if session is not None and session.peer is not None else None

    def of(self, peer: bytes, consumer_id: str, session_id: str | None = None) -> Session | None:
        """Returns the session that a peer uses, or None if it has ended. With an id any peer may use it,
        because ids are secret; without one, the session that this peer registered."""
        if session_id is not None:
            session = self._by_id.get(session_id)
            return session if session is not None and session.consumer_id == consumer_id else None
        sessions = self._by_peer.get(peer, {})
        return next((one for key, one in sessions.items() if key[1] == consumer_id), None)

    def of_peer(self, peer: bytes) -> list[Session]:
        """Returns all sessions of a peer."""
        return list(self._by_peer.get(peer, {}).values())

    def register(
        self,
        key: ConsumerKey,
        peer: bytes,
        subscriptions: tuple[str, ...],
        capabilities: ConsumerCapabilities,
        now: float,
        *,
        resume: str | None = None,
    ) -> SessionRegistration:
        """Registers a consumer. Without `resume`, or if that session has ended, a new session replaces any
        earlier one. resume: the session that it had."""
        before = self._sessions.get(key)
        if before is not None and resume == before.session_id:
            self._bind_peer(before, peer)
            before.subscriptions, before.capabilities = subscriptions, capabilities
            self._deadlines.set(before.session_id, now + self._timeout)
            return SessionRegistration(before, None, True)
        if before is not None:
            self.end(before)
        session = Session(*key, self._new_id(), None, subscriptions, capabilities)
        self._add(session, now)
        self._bind_peer(session, peer)
        return SessionRegistration(session, before, False)

    def heartbeat(self, peer: bytes, consumer_id: str, session_id: str, now: float) -> Session | None:
        """Extends the session, at this peer from now on. None: it has ended; the consumer must register."""
        session = self.of(peer, consumer_id, session_id)
        if session is not None:
            self._bind_peer(session, peer)
            self._deadlines.set(session_id, now + self._timeout)
        return session

    def end(self, session: Session) -> None:
        """Ends a session. Idempotent."""
        if self._by_id.pop(session.session_id, None) is None:
            return
        self._deadlines.cancel(session.session_id)
        del self._sessions[session.key]
        self._unbind_peer(session)

    def missed(self, now: float, most: int) -> list[Session]:
        """Returns sessions without a heartbeat for too long, at most `most`. The caller ends each of them."""
        return [self._by_id[session_id] for session_id in self._deadlines.due(now, most)]

    def next_deadline(self) -> float | None:
        return self._deadlines.first()

    def restore(self, session: Session, now: float) -> None:
        """Restores a session of before a restart: its consumer may resume it until a heartbeat is missed."""
        session.peer = None
        before = self._sessions.get(session.key)
        if before is not None:
            self.end(before)
        self._add(session, now)

    def _add(self, session: Session, now: float) -> None:
        self._sessions[session.key] = session
        self._by_id[session.session_id] = session
        self._deadlines.set(session.session_id, now + self._timeout)

    def _bind_peer(self, session: Session, peer: bytes) -> None:
        if session.peer != peer:
            self._unbind_peer(session)
            session.peer = peer
            self._by_peer.setdefault(peer, {})[session.key] = session

    def _unbind_peer(self, session: Session) -> None:
        if session.peer is None:
            return
        there = self._by_peer[session.peer]
        del there[session.key]
        if not there:
            del self._by_peer[session.peer]
        session.peer = None
