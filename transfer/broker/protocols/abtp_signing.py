"""Control messages of abtp/1 that are signed with a token. Pure; see docs/protocols/abtp.md.

A signature is a frame behind the JSON: when it was made, in microseconds since 1970, as 8 bytes, big-endian,
and HMAC-SHA256 of these 8 bytes and the JSON, under a key that is made of the token.
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
    """The time of day, by which both sides sign."""
    return time.time_ns() // 1000


def steady_us() -> int:
    """The same, by a clock that is never set: what was said before stays so."""
    return unix_ns() // 1000


def _key(token: bytes) -> bytes:
    return hmac.digest(token, b"abtp/1 control", "sha256")


class Signer:
    """Signs what one consumer says. token: asked for each time, since it may change. Sign in the order of
    sending, in one thread at a time: a later signature makes earlier ones void."""

    def __init__(self, token: Callable[[], bytes], clock: Clock = now_us) -> None:
        self._token = token
        self._clock = clock
        self._last = 0

    def sign(self, data: bytes) -> bytes:
        """The frame behind this one."""
        self._last = max(self._last + 1, self._clock())
        at = self._last.to_bytes(_TIME, "big")
        return at + hmac.digest(_key(self._token()), at + data, "sha256")


class Signatures:
    """Says which control messages are their consumer's. tokens: each is taken; asked again each time. What
    was signed before this began may have been said to another one. Not thread-safe."""

    def __init__(self, tokens: Callable[[], Sequence[bytes]], clock: Clock = steady_us) -> None:
        self._tokens = tokens
        self._clock = clock
        self._began = clock()
        self._keys: dict[bytes, bytes] = {}
        #: when the last one of each consumer was signed; that of long ago stands first
        self._last: dict[str, int] = {}

    def check(self, consumer_id: str, data: bytes, signature: bytes) -> None:
        """Raises ProtocolError: it is not signed, or not with a token, or was said before."""
        if len(signature) != SIZE:
            what = "is not signed" if not signature else f"has a signature of {len(signature)} bytes"
            raise _unauthorized(f"a control message {what}; this broker wants {SIZE} bytes behind each")
        at = int.from_bytes(signature[:_TIME], "big")
        said, wanted = signature[_TIME:], signature[:_TIME] + data
        if not any(hmac.compare_digest(said, hmac.digest(key, wanted, "sha256")) for key in self._known()):
            raise _unauthorized("a control message is signed with another token")
        now = self._clock()
        if abs(at - now) > SKEW_US:
            apart = (at - now) / 1e6
            raise _unauthorized(f"a control message of {apart:+.0f} s: set the clocks, or it was said before")
        if at < self._began:
            raise _unauthorized("a control message was signed before this broker began: set the clocks")
        self._forget(now)
        last = self._last.get(consumer_id, 0)
        if at <= last:
            ahead = (last - now) / 1e6
            until = (
                f": its last one is {ahead:.0f} s ahead of this broker's clock, wait for so long"
                if ahead > 1
                else ""
            )
            raise _unauthorized(
                f"a control message of {consumer_id} was said before, or a later one was{until}"
            )
        self._last.pop(consumer_id, None)  # the newest stands last
        self._last[consumer_id] = at

    def _known(self) -> list[bytes]:
        tokens = self._tokens()
        if self._keys.keys() != set(tokens):
            self._keys = {token: _key(token) for token in tokens}
        return list(self._keys.values())

    def _forget(self, now: int) -> None:
        """Consumers whose messages are too old by now to be said again."""
        while self._last:
            first = next(iter(self._last))
            if self._last[first] >= now - SKEW_US:
                return
            del self._last[first]


def _unauthorized(text: str) -> ProtocolError:
    return ProtocolError(Code.UNAUTHORIZED_CONTROL, text)
