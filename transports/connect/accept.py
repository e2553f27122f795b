"""What listeners share: how long they accept in each turn of their loop, and a first look at a connection."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from time import monotonic
from weakref import WeakKeyDictionary

#: least and most seconds that a listener accepts in one turn of its loop. With 20 ms a storm of connections
#: was not accepted faster, and connected peers waited three times as long
MIN_SECONDS, MAX_SECONDS = 0.0002, 0.001
#: the first byte of a ClientHello
_TLS_HANDSHAKE = b"\x16"


class FairShare:
    """How long the listeners of one loop accept in each turn: as long as all other work took since the last
    time. So a storm of connections leaves half of the time to the connected peers, and a loop without other
    work accepts as fast as it can. To be used on that loop only."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = self._ended = clock()

    def begin(self) -> None:
        """A listener starts to accept."""
        now = self._clock()
        self._until = now + min(max(now - self._ended, MIN_SECONDS), MAX_SECONDS)

    def is_over(self) -> bool:
        """Whether the other work of the loop has its turn now."""
        self._ended = self._clock()
        return self._ended >= self._until


_shares: WeakKeyDictionary[object, FairShare] = WeakKeyDictionary()


def share_of(loop: object) -> FairShare:
    """The share of this loop."""
    return _shares.setdefault(loop, FairShare())


def has_spoken(connection: socket.socket, *, tls: bool = False) -> bool | None:
    """Whether there are bytes to read, which stay there; None: not yet; False: the peer has closed.

    tls: a peer that closed its side counts as closed also after the start of a TLS handshake: it waits for no
    answer.
    """
    try:
        first = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return False
    return bool(first) and not (tls and first == _TLS_HANDSHAKE and _has_closed(connection))


def _has_closed(connection: socket.socket) -> bool:
    """Whether the peer sends no more: `recv` does not show that while bytes are left."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
