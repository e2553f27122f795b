"""Whose protocol a connection speaks, by its first bytes. Pure.

transfer's own frames and TTP begin with a magic number, HTTP with a method. PyBroker and rqueue have no mark.
With TLS the ClientHello tells it, by ALPN.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from transports.client_hello import offered
from transports.peer_type import FRAME_MAGIC, detect_in_header, socket_type_of
from transports.wire import SocketType

_TTP = b"TMQP"
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")


class Speech(Enum):
    """OWN: transfer's frames, of the socket type that is told beside it."""

    OWN = "own"
    TTP = "ttp"
    HTTP = "http"
    FOREIGN = "foreign"


#: by ALPN; transfer's own sockets say their type behind their word
TTP_PROTOCOL, HTTP_PROTOCOL = "ttp/2", "http/1.1"


class Guess(NamedTuple):
    """speech: None as long as more bytes are needed. peer: whose frames they are. wanted: how many bytes are
    needed, where that is known."""

    speech: Speech | None
    peer: SocketType | None = None
    wanted: int = 0


def guess(first: bytes) -> Guess:
    """What the first bytes of a connection tell."""
    if first[:4] == FRAME_MAGIC:
        kind, wanted = detect_in_header(first)
        if wanted:
            return Guess(None, wanted=wanted)
        return Guess(Speech.FOREIGN) if kind is None else Guess(Speech.OWN, kind)
    if first[:4] == _TTP:
        return Guess(Speech.TTP)
    if any(first.startswith(method) for method in _METHODS):
        return Guess(Speech.HTTP)
    undecided = any(mark.startswith(first) for mark in (FRAME_MAGIC, _TTP, *_METHODS))
    return Guess(None if undecided else Speech.FOREIGN)


def guess_secured(first: bytes) -> Guess:
    """The same where all speak TLS. Who offers nothing is taken for a client of TTP."""
    protocols, foreign, wanted = offered(first)
    if foreign or protocols is None:
        return Guess(Speech.FOREIGN if foreign else None, wanted=wanted)
    for name in protocols:
        told = _told_by(name.decode("ascii", "replace"))
        if told is not None:
            return told
    return Guess(Speech.FOREIGN if protocols else Speech.TTP)


def _told_by(protocol: str) -> Guess | None:
    if protocol == TTP_PROTOCOL:
        return Guess(Speech.TTP)
    if protocol == HTTP_PROTOCOL:
        return Guess(Speech.HTTP)
    kind = socket_type_of(protocol)
    return None if kind is None else Guess(Speech.OWN, kind)
