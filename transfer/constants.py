"""Names and numbers that users write; the numbers are ZeroMQ's."""

from __future__ import annotations

from typing import Final

from transports.wire import SocketType

REQ: Final = SocketType.REQ
REP: Final = SocketType.REP
PUB: Final = SocketType.PUB
SUB: Final = SocketType.SUB
PUSH: Final = SocketType.PUSH
PULL: Final = SocketType.PULL
PAIR: Final = SocketType.PAIR
DEALER: Final = SocketType.DEALER
ROUTER: Final = SocketType.ROUTER

#: do not wait: raise Again instead
DONTWAIT: Final = 1
NOBLOCK: Final = DONTWAIT
#: more parts of this message follow
SNDMORE: Final = 2

#: bits of `poll` and `EVENTS`
POLLIN: Final = 1
POLLOUT: Final = 2
POLLERR: Final = 4
