"""Constants of the API; their numbers are ZeroMQ's."""

from __future__ import annotations

from difflib import get_close_matches
from enum import Enum
from typing import Any, Final

from transfer.patterns import PATTERNS, Pattern
from transfer.transports.arguments import wrong
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import UsageError

REQ: Final = SocketType.REQ
REP: Final = SocketType.REP
PUB: Final = SocketType.PUB
SUB: Final = SocketType.SUB
PUSH: Final = SocketType.PUSH
PULL: Final = SocketType.PULL
PAIR: Final = SocketType.PAIR
DEALER: Final = SocketType.DEALER
ROUTER: Final = SocketType.ROUTER
XPUB: Final = SocketType.XPUB
XSUB: Final = SocketType.XSUB

#: raise Again instead of waiting
DONTWAIT: Final = 1
NOBLOCK: Final = DONTWAIT
#: more parts of this message follow
SNDMORE: Final = 2

#: bits of `poll` and `EVENTS`
POLLIN: Final = 1
POLLOUT: Final = 2
POLLERR: Final = 4


#: numbers of socket types, here and in ZeroMQ
_NUMBERS = range(9)


def _socket_type_of(given: Any) -> SocketType:
    """Returns the socket type of a name ("PUSH"), or of a member of any enumeration that has that name.

    It refuses plain numbers, which are ambiguous: 4 is our PUSH and ZeroMQ's REP. Raises UsageError.
    """
    if type(given) is SocketType:
        return given
    name = given.name if isinstance(given, Enum) else given
    if not isinstance(name, str):
        what = (
            f"{given} is ZeroMQ's number of one type and ours of another"
            if type(given) is int and given in _NUMBERS
            else repr(given)
        )
        raise UsageError(
            f"no socket type: {what}",
            hint='write transfer.PUSH, zmq.PUSH or "PUSH"; in `transfer.zmq` numbers are ZeroMQ\'s',
        )
    try:
        return SocketType[name.upper()]
    except KeyError:
        near = get_close_matches(name.upper(), SocketType.__members__, 1)
        hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(SocketType.__members__)
        raise UsageError(f"{name!r} is no socket type", hint=hint) from None


def pattern_of(socket_type: Any, given: type[Pattern] | None = None) -> type[Pattern]:
    """Returns the pattern of a socket: its type's, or the program's. Raises UsageError, ArgumentError."""
    number = _socket_type_of(socket_type)
    if given is None:
        return PATTERNS[number]
    derived = isinstance(given, type) and issubclass(given, Pattern) and hasattr(given, "peer_types")
    if not derived or getattr(given, "socket_type", None) != number:
        raise wrong("pattern", given, f"a class derived from patterns.Pattern, with the type {number.name}")
    return given
