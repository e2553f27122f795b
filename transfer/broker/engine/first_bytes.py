"""Whose protocol a connection speaks, by its first bytes. Pure.

transfer's own frames and TTP begin with a magic number, HTTP with a method. PyBroker and rqueue have no mark.
With TLS the ClientHello tells it, by ALPN.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from transfer.broker.engine.client_hello import offered
from transports.first_record import HEAD, LARGEST_HELLO
from transports.wire import HEADER, HEADER_SIZE, MAGIC, SocketType

#: bytes that are enough to tell, and to tell with TLS
ENOUGH, ENOUGH_SECURED = HEADER_SIZE, HEAD + LARGEST_HELLO
_OWN = MAGIC.to_bytes(4, "little")
_TTP = b"TMQP"
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")


class Speech(Enum):
    """OWN: transfer's frames, of the socket type that is told beside it."""

    OWN = "own"
    TTP = "ttp"
    HTTP = "http"
    FOREIGN = "foreign"


#: by ALPN; transfer's own sockets say their type behind their word
TTP_PROTOCOL, HTTP_PROTOCOL, _OWN_PROTOCOL = "ttp/2", "http/1.1", "transfer/1/"


class Guess(NamedTuple):
    """speech: None as long as more bytes are needed. peer: whose frames they are. wanted: how many bytes are
    needed, where that is known."""

    speech: Speech | None
    peer: SocketType | None = None
    wanted: int = 0


def guess(first: bytes) -> Guess:
    """What the first bytes of a connection tell."""
    if first[:4] == _OWN:
        if len(first) < HEADER_SIZE:
            return Guess(None, wanted=HEADER_SIZE)
        kind = HEADER.unpack_from(first)[2]
        try:
            return Guess(Speech.OWN, SocketType(kind & 0x7F))
        except ValueError:
            return Guess(Speech.FOREIGN)
    if first[:4] == _TTP:
        return Guess(Speech.TTP)
    if any(first.startswith(method) for method in _METHODS):
        return Guess(Speech.HTTP)
    undecided = any(mark.startswith(first) for mark in (_OWN, _TTP, *_METHODS))
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
    kind = protocol.removeprefix(_OWN_PROTOCOL)
    if kind != protocol and kind in SocketType.__members__:
        return Guess(Speech.OWN, SocketType[kind])
    return None
