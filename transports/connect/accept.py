"""What listeners share: how long they accept at a turn of their loop, and a first look at who came."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from time import monotonic
from weakref import WeakKeyDictionary

#: seconds that a listener accepts at one turn of its loop, at least and at most. With 20 ms a storm was let
#: in no faster, and those who are in waited three times as long
MIN_SECONDS, MAX_SECONDS = 0.0002, 0.001
#: the first byte of a ClientHello
_TLS_HANDSHAKE = b"\x16"


class FairShare:
    """How long the listeners of one loop accept at each turn of it: as long as all else took since the last
    time. So a storm of connections leaves half of the time to those who are in, and a loop that has nothing
    else to do accepts as fast as it can. On that loop only."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = self._ended = clock()

    def begin(self) -> None:
        """A listener begins to accept."""
        now = self._clock()
        self._until = now + min(max(now - self._ended, MIN_SECONDS), MAX_SECONDS)

    def is_over(self) -> bool:
        """Whether all else has its turn now."""
        self._ended = self._clock()
        return self._ended >= self._until


_shares: WeakKeyDictionary[object, FairShare] = WeakKeyDictionary()


def share_of(loop: object) -> FairShare:
    """The one of this loop."""
    return _shares.setdefault(loop, FairShare())


def has_spoken(connection: socket.socket, *, tls: bool = False) -> bool | None:
    """Whether there is something to read, which stays there; None: not yet; False: the peer has gone.

    tls: a peer that has closed its side has gone, too, if it began with a handshake of TLS: answering that is
    work that nobody waits for.
    """
    try:
        first = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return False
    return bool(first) and not (tls and first == _TLS_HANDSHAKE and _has_closed(connection))


def _has_closed(connection: socket.socket) -> bool:
    """Whether the peer sends no more: bytes that are still there hide that from `recv`."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
