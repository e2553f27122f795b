"""From an agreed TCP connection to a faster transport: a dialogue of control frames on that connection.

    accepting side                      connecting side
    OFFER   what the peer needs   ->
                                  <-    ACCEPT  connected, and what that side needs
    READY                         ->

Each may send DECLINE with a reason instead, at its turn: then both continue on the connection that they
have. The dialogue is pure (bytes in, bytes out); the use of the contents is each
transport's. All of it runs in the reactor's thread.
"""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from transfer.transports.base import Stream
from transfer.transports.config import DescriptorOptions
from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError, ProtocolError, TransferError, without_frames
from transfer.transports.handshake.hello import MAX_DEPTH, Agreement, frame, is_shallow, refusal_in
from transfer.transports.probe import Probe
from transfer.transports.reactor import Reactor

logger = logging.getLogger("transfer")

#: for the JSON of one step, in bytes
MAX_STEP = 16 * 1024
MAX_TEXT = 1024

OFFER, ACCEPT, READY, DECLINE = "offer", "accept", "ready", "decline"
#: a reason from a peer becomes a label of counters
_WORD = re.compile(r"[a-z0-9_-]{1,63}")


class Declined(TransferError):
    """A faster transport cannot be set up; the connection stays as it is, or fails under `require`.

    reason: a constant word for counters ("memlock", "rdma-full"); the text is for logs.
    """

    def __init__(self, reason: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


@dataclass(slots=True)
class Surroundings:
    """The parts of a socket that a transport may use for a connection.

    core: the core's module. options: for descriptors that carry the data. shared: one for each context,
    `own`: one for each socket. There transports keep objects that connections share (a completion queue,
    a worker, segments), by their name. Objects with a `close()` are closed with the context or the socket.
    """

    core: ModuleType
    reactor: Reactor
    flusher: Any
    pool: Any
    socket_type: SocketType
    max_message: int
    send_high_water: int
    send_high_water_bytes: int
    credits: bool = False
    checksum: bool = False
    options: DescriptorOptions = field(default_factory=DescriptorOptions)
    shared: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)


class Made(NamedTuple):
    """What carries the data after the handshake.

    fd: the descriptor that the reactor watches (the connection's own, or its successor). stream: a
    foreign stream, which owns `fd` then; None: `core.Stream` drives `fd`. carrier: see
    core/contract.pyi, Carrier. channel: for `core.Stream`: TLS on `fd`, or the ring of a connection by rdma.
    """

    fd: int
    stream: Stream | None = None
    carrier: Any = None
    channel: Any = None


class Upgrade(ABC):
    """One side's part in one upgrade. Each step may raise Declined, or any other TransferError: then both
    sides stay on TCP. The same holds for other exceptions, which are logged; one of `made` ends the
    connection.

    `close` is always called, unless `made` was: it releases the resources of the steps.
    """

    def __init__(self, around: Surroundings, agreement: Agreement, *, connecting: bool) -> None:
        self.around = around
        self.agreement = agreement
        self.connecting = connecting

    @classmethod
    def probe(cls) -> Probe:
        """Whether it works in this process; called once. For transports of other distributions."""
        return Probe(True)

    @abstractmethod
    def offer(self) -> dict[str, Any]:
        """Accepting side, first step: returns what the peer needs to connect."""

    @abstractmethod
    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        """Connecting side: connects, and returns what the accepting side needs. `offer` comes from the peer:
        raises ProtocolError for invalid contents."""

    @abstractmethod
    def finish(self, answer: dict[str, Any]) -> None:
        """Accepting side, last step: the peer is connected."""

    @abstractmethod
    def made(self, fd: int, channel: Any = None) -> Made:
        """Both sides agreed. `fd`: the TCP connection, which belongs to this object; channel: TLS on it."""

    @abstractmethod
    def close(self) -> None:
        """The upgrade failed."""


class Refusal(Upgrade):
    """Stands for an upgrade that cannot start: every step raises the reason."""

    def __init__(self, error: TransferError, *, connecting: bool) -> None:
        self.connecting = connecting
        self._error = error

    def offer(self) -> dict[str, Any]:
        raise self._error

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        raise self._error

    def finish(self, answer: dict[str, Any]) -> None:
        raise self._error

    def made(self, fd: int, channel: Any = None) -> Made:
        raise self._error

    def close(self) -> None:
        """Holds no resources."""


#: makes the upgrade for an agreement, or raises Declined
UpgradeFactory = Callable[[Agreement, bool], Upgrade]


class Dialogue:
    """The steps of one upgrade, on this side. Not thread-safe.

    wants: how many bytes it needs next; pass at most so many to `feed`. output: bytes to send. outcome:
    None, True (upgraded), or the Declined that both sides know. Raises only HandshakeError("upgrade"), for
    bytes that are no step.
    """

    def __init__(self, upgrade: Upgrade, socket_type: SocketType) -> None:
        self.upgrade = upgrade
        self.wants = HEADER_SIZE
        self.outcome: bool | Declined | None = None
        self.output = bytearray()
        self._socket_type = socket_type
        self._input = bytearray()
        self._in_body = False
        self._expects = OFFER if upgrade.connecting else ACCEPT

    def begin(self) -> None:
        """Puts the accepting side's offer into `output`."""
        if not self.upgrade.connecting:
            self._answer(OFFER, self.upgrade.offer)

    def feed(self, data: bytes) -> None:
        """Takes the bytes that were read: at least one and at most `wants`."""
        self._input += data
        self.wants -= len(data)
        if self.wants:
            return
        if not self._in_body:
            self.wants = _body_length(bytes(self._input))
            self._in_body = True
        else:
            self._in_body = False
            self.wants = HEADER_SIZE
            self._step(*_decode(bytes(self._input)))
        self._input.clear()

    # ------------------------------------------------------------------------------------------

    def _step(self, step: str, content: dict[str, Any]) -> None:
        if step == DECLINE:
            reason, text = content.get("reason"), content.get("message")
            self.outcome = Declined(
                reason if isinstance(reason, str) and _WORD.fullmatch(reason) else "peer",
                f"the peer: {text[:MAX_TEXT] if isinstance(text, str) and text.isprintable() else 'no'}",
            )
        elif step != self._expects:
            raise HandshakeError("upgrade", f"the peer sent {step!r} where {self._expects!r} was due")
        elif step == OFFER:
            self._expects = READY
            self._answer(ACCEPT, lambda: self.upgrade.accept(content))
        elif step == ACCEPT:
            self._answer(READY, lambda: self.upgrade.finish(content) or {})
            self.outcome = self.outcome or True
        else:
            self.outcome = True

    def _answer(self, step: str, content: Callable[[], dict[str, Any]]) -> None:
        try:
            frame = encode(self._socket_type, step, content())
        except HandshakeError:
            raise
        except Exception as error:  # noqa: BLE001 - also from another distribution's transport
            self.outcome = declined(error)
            reason = {"reason": self.outcome.reason, "message": _first_line(error)}
            frame = encode(self._socket_type, DECLINE, reason)
        self.output += frame


def encode(socket_type: SocketType, step: str, content: dict[str, Any]) -> bytes:
    """One step as a frame."""
    body = json.dumps({"step": step, **content}, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_STEP:
        raise HandshakeError("upgrade", f"a step of {len(body)} bytes; {MAX_STEP} are allowed")
    return frame(socket_type, bytes([Control.UPGRADE]) + body)


def declined(error: Exception) -> Declined:
    """The Declined for an exception. One that is no error of this library is logged: it is a fault of the
    code."""
    if isinstance(error, Declined):
        return without_frames(error)
    if not isinstance(error, TransferError):
        logger.error("an upgrade to another transport failed: %r", error, exc_info=error)
        found = Declined(
            "failed", f"a fault of the transport: {error!r:.200}", hint="the log has the traceback"
        )
    else:
        found = Declined(getattr(error, "reason", "") or "failed", _first_line(error), hint=error.hint)
    found.__cause__ = error
    return without_frames(found)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:MAX_TEXT]


def _body_length(header: bytes) -> int:
    magic, version, _, flags, _, topic_length, length, _ = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION or flags != Flag.CONTROL or topic_length:
        raise HandshakeError("upgrade", "a message where a step of the upgrade was due")
    if not 1 < length <= MAX_STEP + 1:
        raise HandshakeError("upgrade", f"a step of {length} bytes; {MAX_STEP + 1} are allowed")
    return int(length)


def _decode(data: bytes) -> tuple[str, dict[str, Any]]:
    refusal = refusal_in(data)
    if refusal is not None:
        raise refusal
    if data[0] != Control.UPGRADE:
        raise HandshakeError("upgrade", "another control frame where a step of the upgrade was due")
    try:
        content = json.loads(data[1:].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HandshakeError("upgrade", "a step of the upgrade is no JSON") from error
    if not isinstance(content, dict) or not isinstance(content.get("step"), str):
        raise HandshakeError("upgrade", "a step of the upgrade is no JSON object with a step")
    if not is_shallow(content):
        raise HandshakeError("upgrade", f"a step of the upgrade has more than {MAX_DEPTH} levels")
    return content.pop("step"), content


# --- parsing what a peer sends, strictly --------------------------------------------------------


def text_of(content: dict[str, Any], key: str, limit: int = 255) -> str:
    """A short printable text. Raises ProtocolError."""
    value = content.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
        raise ProtocolError("upgrade", f"{key!r} is not a short text")
    return value


def number_of(content: dict[str, Any], key: str, limit: int) -> int:
    """A number from 0 to `limit`. Raises ProtocolError."""
    value = content.get(key)
    if type(value) is not int or not 0 <= value <= limit:
        raise ProtocolError("upgrade", f"{key!r} is not a number from 0 to {limit}")
    return value
