"""Explains why a socket has no peer: in the error after a timeout, and in the log while a call waits."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from transfer.patterns import Publisher, Subscriber
from transfer.transports.errors import Again, without_frames
from transfer.transports.handshake.hello import DENIED, PLACE_TAKEN
from transfer.transports.security.hints import LACKING

if TYPE_CHECKING:
    import asyncio

    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.peer import Endpoint
    from transfer.sockets.socket import Socket
    from transfer.transports.errors import TransferError

logger = logging.getLogger("transfer")

#: reasons of handshakes that fail again until one of the programs changes: those that the listening side logs
#: (its peer may not show them), and those that the connecting side logs
_OF_ACCEPTED = frozenset(
    {"magic", "socket_type", "policy", "token", "tls", "mechanism", "credentials", *DENIED}
)
_LASTING = (
    _OF_ACCEPTED
    | PLACE_TAKEN
    | {"flags", "length", "version", "hello", "no_hello", "self_connect"}
    | {"no_log", "duplicate_log"}
)
#: reasons of handshakes that end for an unknown cause
_UNEXPLAINED = frozenset({"broken", "closed", "truncated", "timeout"})


class Warned:
    """The warnings that were logged. For one socket, or for all attempts of one connection.

    waits: a call waits without a peer. reasons: reasons of failed handshakes.
    """

    def __init__(self) -> None:
        self.waits = False
        self.reasons: frozenset[str] = frozenset()


class NoPeer:
    """Describes endpoints without a connection."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self.warned = Warned()
        self._refused: TransferError | None = None  # the last one that was refused here

    @property
    def has_no_peer(self) -> bool:
        """Whether no peer is connected."""
        return all(peer.pending for peer in list(self._state.peers.values()))

    @property
    def lacks_subscriptions(self) -> bool:
        """Whether this is a SUB without a subscription: its publishers send it nothing."""
        return isinstance(self._state.pattern, Subscriber) and not len(self._state.pattern.subscriptions)

    def explained(self, error: Again) -> Again:
        """Returns the error of a call after its timeout, or a description of the missing peer instead."""
        return self.error() if self.has_no_peer or self.lacks_subscriptions else error

    def too_few(self, n: int, timeout: float | None) -> Again:
        """The error of a wait for peers."""
        return self.error(f"{self._state.ready} of {n} peers after {timeout:g} s: ")

    def error(self, before: str = "") -> Again:
        """Makes the error of a socket without peers: the problem, a hint, and the failure behind it as its
        `__cause__`."""
        with self._state.lock:
            endpoints = list(self._state.endpoints)
        tried = [e for e in endpoints if e.connector is not None]
        if not endpoints:
            return Again(
                f"{before}this socket is neither bound nor connected", hint="call bind() or connect() first"
            )
        if not self.has_no_peer:
            return self._too_few(before)
        if not tried:
            names = ", ".join(str(e.address) for e in endpoints)
            if self._state.losses:
                return Again(f"{before}the last peer at {names} has left", hint="start another one")
            if self._refused is not None:
                text = f"{before}no peer has connected to {names} yet, and one was refused: "
                return Again(text + str(self._refused).partition("\n")[0], hint=self._refused.hint)
            return Again(
                f"{before}no peer has connected to {names} yet", hint="start the peer, or wait_for_peers()"
            )
        return _unserved(tried[0], before)

    def no_reply(self, stream: Any, timeout: int) -> Again:
        """Makes the error of a REQ whose reply did not come in time. stream: that of its request, or None."""
        if self.has_no_peer:
            return self.error(f"no reply within {timeout} ms: ")
        peer = self._state.peers.get(stream)
        where = "no peer has taken the request" if peer is None else f"{peer.address or peer.endpoint} has it"
        return Again(
            f"no reply within {timeout} ms: {where}",
            hint="receive again to wait on, or set req_relaxed = True and send anew",
        )

    def _too_few(self, before: str) -> Again:
        """Makes the error if fewer peers than expected are connected, or have subscriptions."""
        if self.lacks_subscriptions:
            return Again(
                f"{before}this SUB is connected and has subscribed to nothing",
                hint='call subscribe(b"") for all messages, or with the beginning of their topics',
            )
        connected = sum(not peer.pending for peer in list(self._state.peers.values()))
        missing = (
            "subscribed to nothing"
            if isinstance(self._state.pattern, Publisher)
            else "confirmed no subscription"
        )
        unready = connected - self._state.ready
        if isinstance(self._state.pattern, (Publisher, Subscriber)) and unready > 0:
            return Again(
                f"{before}{unready} of the {connected} that are connected have {missing} yet",
                hint="does the other side call subscribe()?",
            )
        return Again(f"{before}only {connected} are connected", hint="start more peers")

    def long_wait(self) -> None:
        """Logs a warning, once for a socket, if a call waits without a peer. A socket that only listens may
        wait."""
        listens = all(e.connector is None for e in list(self._state.endpoints)) and bool(
            self._state.endpoints
        )
        matters = not listens if self.has_no_peer else self.lacks_subscriptions
        if self.warned.waits or self._state.closing or not matters:
            return
        self.warned.waits = True
        logger.warning("a %s waits: %s", self._state.pattern.socket_type.name, _line(self.error()))

    @staticmethod
    def clearer_error(before: TransferError | None, error: TransferError) -> TransferError:
        """Returns the more informative of an endpoint's last two failures: a lasting one, or the newest."""
        lasts = before is not None and getattr(before, "reason", "") in _LASTING
        return before if before and lasts and getattr(error, "reason", "") in _UNEXPLAINED else error

    @staticmethod
    def lacks(record: Endpoint, error: TransferError) -> bool:
        """Whether the other side closed twice in a row without a reason, as one does that requires TLS or a
        certificate. A single time may be a peer that just ends."""
        return error.hint in LACKING and record.error is not None and record.error.hint == error.hint

    def warn_of(self, where: str, error: TransferError, outgoing: bool, lasts: bool = False) -> bool:
        """Logs a failed handshake, once for each reason that persists until a program or its options change.
        A client that connects to this socket can cause few reasons only."""
        reason = error.hint if lasts else getattr(error, "reason", "")
        of_these = _LASTING if outgoing else _OF_ACCEPTED
        if not outgoing and reason in of_these:
            self._refused = without_frames(error)
        if reason in self.warned.reasons or not (lasts or reason in of_these):
            return False
        self.warned.reasons |= {reason}
        logger.warning("%s %s: %s", self._state.pattern.socket_type.name, where, _line(error))
        return True

    def watch_queue(self, record: Endpoint, seconds: float) -> None:
        """Logs a warning if messages are queued for an endpoint that is never reached; no call waits then."""

        def look() -> None:
            queue = record.queue
            if queue is not None and not self.warned.waits:
                if queue.stream.queued:
                    self.long_wait()
                self.watch_queue(record, seconds)

        self._state.later(f"queue {record.address}", seconds, look)


def _line(error: TransferError) -> str:
    return str(error).replace("\n  hint: ", "; ")


def _unserved(worst: Endpoint, before: str) -> Again:
    error = worst.error
    hint = error.hint if error is not None else ""
    cause = str(error).partition("\n")[0] if error is not None else "no answer yet"
    if not hasattr(error, "reason") and getattr(worst.connector, "state", "") == "shaking hands":
        cause, hint = (
            "connected, but the other side sends nothing",
            "does a peer of this library listen there?",
        )
    tried = f"tried for {time.monotonic() - worst.since:.1f} s ({cause})"
    refuses = getattr(error, "reason", "") in PLACE_TAKEN
    found = Again(
        f"{before}{worst.address} refuses this socket: {tried}"
        if refuses
        else f"{before}no peer listens at {worst.address} yet: {tried}",
        hint=hint or "start the peer; check host and port; `transfer doctor` shows what works here",
    )
    found.__cause__ = error
    return found


class LongWait:
    """Checks periodically whether there is a peer while a call waits on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Socket) -> None:
        self._loop = loop
        self._socket = socket
        self._handle = loop.call_later(socket._long_wait / 1000, self._check)

    def _check(self) -> None:
        self._socket._on_long_wait()
        self._handle = self._loop.call_later(self._socket._long_wait / 1000, self._check)

    def close(self) -> None:
        """Ends the checks with the call."""
        self._handle.cancel()
