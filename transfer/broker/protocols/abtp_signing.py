"""Control messages of abtp/1 that are signed with a token. Pure; see docs/protocols/abtp.md.

A signature is a frame after the JSON: the time in microseconds since 1970 as 8 bytes, big-endian, then an
HMAC-SHA256 of these 8 bytes and the JSON. Its key is derived from the token.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence

from transfer.broker.protocols.abtp_words import Code
from transfer.steady_clock import unix_ns
from transfer.transports.errors import ProtocolError

_TIME = 8
#: bytes of a signature
SIZE = _TIME + hashlib.sha256().digest_size
#: microseconds that the clocks of both sides may differ
SKEW_US = 60_000_000

#: microseconds since 1970
Clock = Callable[[], int]


def now_us() -> int:
    """Returns the time of day, by which both sides sign."""
    return time.time_ns() // 1000


def steady_us() -> int:
    """Returns the same by a clock that is never set back: a message cannot be replayed after a change of the
    time."""
    return unix_ns() // 1000


def _key(token: bytes) -> bytes:
    return hmac.digest(token, b"abtp/1 control", "sha256")


class Signer:
    """Signs the control messages of one consumer. token: called for each message, since the token may change.
    Sign in the order of sending, in one thread at a time: a later signature makes earlier ones void."""

    def __init__(self, token: Callable[[], bytes], clock: Clock = now_us) -> None:
        self._token = token
        self._clock = clock
        self._last = 0

    def sign(self, data: bytes) -> bytes:
        """Returns the frame to send after this one."""
        self._last = max(self._last + 1, self._clock())
        at = self._last.to_bytes(_TIME, "big")
        return at + hmac.digest(_key(self._token()), at + data, "sha256")


class Signatures:
    """Checks the signatures of control messages. Not thread-safe. tokens: the accepted ones; called for each
    message. Messages that were signed before this object was made are refused: another broker may have
    received them."""

    def __init__(self, tokens: Callable[[], Sequence[bytes]], clock: Clock = steady_us) -> None:
        self._tokens = tokens
        self._clock = clock
        self._began = clock()
        self._keys: dict[bytes, bytes] = {}
        #: when each consumer's last message was signed; the oldest first
        self._last: dict[str, int] = {}

    def check(self, consumer_id: str, data: bytes, signature: bytes) -> None:
        """Raises ProtocolError: the message is not signed, not with an accepted token, or was sent before."""
        if len(signature) != SIZE:
            what = "is not signed" if not signature else f"has a signature of {len(signature)} bytes"
            raise _unauthorized(f"a control message {what}; this broker requires a signature of {SIZE} bytes")
        at = int.from_bytes(signature[:_TIME], "big")
        given, signed = signature[_TIME:], signature[:_TIME] + data
        if not any(hmac.compare_digest(given, hmac.digest(key, signed, "sha256")) for key in self._known()):
            raise _unauthorized("a control message is signed with another token")
        now = self._clock()
        if abs(at - now) > SKEW_US:
            apart = (at - now) / 1e6
            raise _unauthorized(
                f"a control message is {apart:+.0f} s off: set the clocks, or it was sent before"
            )
        if at < self._began:
            raise _unauthorized("a control message was signed before this broker began: set the clocks")
        self._forget(now)
        last = self._last.get(consumer_id, 0)
        if at <= last:
            ahead = (last - now) / 1e6
            until = (
                f": its last one is {ahead:.0f} s ahead of this broker's clock, wait until then"
                if ahead > 1
                else ""
            )
            raise _unauthorized(
                f"a control message of {consumer_id} was sent before, or a later one was{until}"
            )
        self._last.pop(consumer_id, None)  # the newest is the last
        self._last[consumer_id] = at

    def _known(self) -> list[bytes]:
        tokens = self._tokens()
        if self._keys.keys() != set(tokens):
            self._keys = {token: _key(token) for token in tokens}
        return list(self._keys.values())

    def _forget(self, now: int) -> None:
        """Forgets consumers whose messages are too old to be sent again."""
        while self._last:
            first = next(iter(self._last))
            if self._last[first] >= now - SKEW_US:
                return
            del self._last[first]


def _unauthorized(text: str) -> ProtocolError:
    return ProtocolError(Code.UNAUTHORIZED_CONTROL, text)
