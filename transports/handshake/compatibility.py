"""Which socket types talk to each other, as in ZeroMQ. Pure. Hellos have types of the wire only."""

from __future__ import annotations

from transfer.transports.core.wire import SocketType

_COMPATIBLE: dict[SocketType, frozenset[SocketType]] = {
    SocketType.REQ: frozenset({SocketType.REP, SocketType.ROUTER}),
    SocketType.REP: frozenset({SocketType.REQ, SocketType.DEALER}),
    SocketType.PUB: frozenset({SocketType.SUB}),
    SocketType.SUB: frozenset({SocketType.PUB}),
    SocketType.PUSH: frozenset({SocketType.PULL}),
    SocketType.PULL: frozenset({SocketType.PUSH}),
    SocketType.PAIR: frozenset({SocketType.PAIR}),
    SocketType.DEALER: frozenset({SocketType.REP, SocketType.DEALER, SocketType.ROUTER}),
    SocketType.ROUTER: frozenset({SocketType.REQ, SocketType.DEALER, SocketType.ROUTER}),
}


def compatible(one: SocketType, other: SocketType) -> bool:
    """Whether these two types may talk, as in ZeroMQ."""
    return other.on_wire in _COMPATIBLE[one.on_wire]


def common_peers(one: SocketType, other: SocketType) -> str:
    """The types that both talk to, as text."""
    return " and ".join(sorted(kind.name for kind in _COMPATIBLE[one] & _COMPATIBLE[other]))


def talks_to(kind: SocketType) -> str:
    """The types that this type may connect to, as text."""
    return f"{kind.name} talks to {', '.join(sorted(other.name for other in _COMPATIBLE[kind]))}"
