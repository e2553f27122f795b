"""Asks the authenticator of a context: the program's socket at inproc://zeromq.zap.01 (ZeroMQ's RFC 27).

Each question has a connection of its own, as in libzmq: an answer cannot be for another one. It runs in the
reactor's thread; any thread may end it.
"""

from __future__ import annotations

import struct
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from transfer.transports.address import parse
from transfer.transports.connect.connection import Connected, ConnectOptions, ConnectorOwner
from transfer.transports.core.wire import Flag, SocketType
from transfer.transports.errors import Closed, TransferError
from transfer.transports.handshake.identity import make_hello
from transfer.transports.inproc import InprocConnector, names_of
from transfer.transports.reactor import Reactor
from transfer.transports.security.mechanism import DENIALS, OK, OnVerdict, Question, Verdict

_ADDRESS = parse("inproc://zeromq.zap.01")
_VERSION, _REQUEST = b"1.0", b"1"
_STATUSES = {str(status).encode(): status for status in (OK, *DENIALS)}
#: parts of a request or reply before the credentials; the first is the empty one of a REQ
_PARTS = 7
#: bytes of a reply's metadata, and of all of its parts
_MOST = 64 * 1024
_LENGTH = struct.Struct(">I")
#: questions without an answer after which an authenticator is asked once in `_PAUSE` seconds only: each one
#: stays at its socket until that is read
_MOST_UNANSWERED, _PAUSE = 1000, 0.1


class _Authenticator:
    """What is known of one: it was bound once, so its end refuses; and whether it answers."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.asked = 0.0

    def may_be_asked(self) -> bool:
        now = time.monotonic()
        if self.unanswered >= _MOST_UNANSWERED and now - self.asked < _PAUSE:
            return False
        self.unanswered += 1
        self.asked = now
        return True


_known: weakref.WeakKeyDictionary[Reactor, _Authenticator] = weakref.WeakKeyDictionary()


def bound(reactor: Reactor, endpoint: str) -> str:
    """Returns the endpoint that a socket of this context has bound, which may be an authenticator."""
    if endpoint == str(_ADDRESS):
        _known.setdefault(reactor, _Authenticator())
    return endpoint


def ask(
    reactor: Reactor, domain: bytes, identity: bytes, question: Question, decided: OnVerdict
) -> Callable[[], object]:
    """Asks, and returns what ends the question. decided: called once; with None where no socket is bound, and
    none ever was.

    identity: of the socket that asks.
    """
    if not names_of(reactor).find(_ADDRESS.path):
        decided(_failed("it has ended; start it again") if reactor in _known else None)
        return lambda: None
    if not _known.setdefault(reactor, _Authenticator()).may_be_asked():
        decided(_failed("it does not answer"))
        return lambda: None
    parts = (
        b"", _VERSION, _REQUEST, domain, question.address.encode(), identity, question.mechanism.encode(),
        *question.credentials,
    )  # fmt: skip
    return _Request(reactor, parts, decided).end


class _Request:
    """One question on its way."""

    def __init__(self, reactor: Reactor, parts: tuple[bytes, ...], decided: OnVerdict) -> None:
        self._reactor, self._parts, self._decided = reactor, parts, decided
        self._stream: Any = None
        self._ended = False
        owner = ConnectorOwner(
            hello=lambda: make_hello(SocketType.DEALER),
            on_connected=self._connected,
            on_failed=lambda error: self._answer(_failed(f"it cannot be asked: {error}")),
        )
        self._connector = InprocConnector(reactor, _ADDRESS, owner, ConnectOptions())

    def end(self) -> None:
        """Ends it; `decided` is not called after that. Idempotent."""
        self._ended = True
        self._connector.close()
        if self._stream is not None:
            self._stream.on_readable = None
            self._stream.withdraw()
            self._stream.close()

    def _connected(self, connected: Connected) -> None:
        if self._ended:
            connected.discard()
            return
        self._stream = connected.stream
        self._stream.on_readable = self._wake
        if self._ended:  # by another thread, which did not find the stream
            self.end()
            return
        try:
            self._stream.send([(0, 0, None, None, part) for part in self._parts])
        except TransferError:
            self._answer(_failed("it left without an answer"))
            return
        self._wake()

    def _wake(self) -> None:
        """The authenticator has sent something, or has left. Any thread."""
        try:
            self._reactor.call_soon(self._read)
        except Closed:  # the context ends
            self.end()

    def _read(self) -> None:
        while not self._ended:
            try:
                frames = self._stream.take()
            except TransferError:
                self._answer(_failed("it left without an answer"))
                return
            if frames is None:
                return
            self._stream.handed = None
            self._stream.consume(frames)
            if not frames[0].flags & Flag.CONTROL:
                _known[self._reactor].unanswered = 0
                self._answer(_verdict([frame.data for frame in frames]))

    def _answer(self, verdict: Verdict) -> None:
        if not self._ended:
            self.end()
            self._decided(verdict)


def _failed(why: str) -> Verdict:
    return Verdict(500, f"the authenticator: {why}")


def _verdict(parts: list[Any]) -> Verdict:
    """From a reply, of which everything is checked: it is the program's, not ours."""
    if sum(map(len, parts)) > _MOST:
        return _failed("a reply that is too long")
    reply = [bytes(part) for part in parts]
    if len(reply) != _PARTS or reply[:3] != [b"", _VERSION, _REQUEST] or reply[3] not in _STATUSES:
        return _failed("a reply that is none of RFC 27")
    text, user, metadata = reply[4], reply[5], reply[6]
    status = _STATUSES[reply[3]]
    if status != OK:
        return Verdict(status, f"the authenticator: {_shown(text)}")
    try:
        return Verdict(
            OK, "", {"User-Id": user.decode(), **_properties(metadata)} if user else _properties(metadata)
        )
    except ValueError as error:
        return _failed(f"a reply with wrong metadata: {error}")


def _properties(data: bytes) -> Mapping[str, str]:
    """Names and values of metadata: a byte and a name, four bytes and a value, repeated.
    Raises ValueError."""
    found = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at] + _LENGTH.size
        if at > len(data):
            raise ValueError("a name is cut off")
        size = _LENGTH.unpack(data[at - _LENGTH.size : at])[0]
        if at + size > len(data):
            raise ValueError("a value is cut off")
        found[name.decode()] = data[at : at + size].decode()
        at += size
    return found


def _shown(text: bytes) -> str:
    shown = text[:200].decode("utf-8", "replace")
    return shown if shown.isprintable() else repr(shown)
