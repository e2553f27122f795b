"""One port for transfer's own frames, TTP and HTTP, told apart by the first bytes of each connection."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from transfer.broker.crowd import Crowd
from transfer.broker.engine.first_bytes import Guess, Speech, guess, guess_secured
from transfer.broker.listener import Accepted
from transfer.throttled_log import ThrottledLog
from transports.accepting import has_spoken
from transports.errors import TransferError
from transports.peer_type import CLIENT_HELLO_BYTES, HEADER_BYTES
from transports.wire import SocketType

_log = logging.getLogger("transfer.broker")
#: seconds until bytes are looked at again that do not tell enough, where the system wakes us for them all
#: the same
_REST = 0.05
#: the first byte of TLS
_TLS = 22


@dataclass(slots=True, eq=False)
class _Guest:
    connection: socket.socket
    peer: str
    seen: int = 0  # bytes that were there at the last look


class Doorway:
    """Looks at the first bytes of connections, and hands each on, unread. On the broker's loop.

    speakers: who takes a connection, by its speech; own: by the socket type of its peer. secured: all of
    them speak TLS, and whoever takes one answers it. patience: seconds that a connection has to say enough.
    most: of them at once (see `Crowd`). refused: "foreign" for those that nobody
    takes, "plain" for those without TLS, "silent" for those that said too little, "crowded" for those that
    made room.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        speakers: Mapping[Speech, Accepted],
        own: Mapping[SocketType, Accepted],
        refused: Counter[str] | None = None,
        *,
        secured: bool = False,
        patience: float = 10.0,
        most: int = 4096,
    ) -> None:
        self.refused: Counter[str] = Counter() if refused is None else refused
        self._loop = loop
        self._throttled = ThrottledLog(_log)
        self._speakers = speakers
        self._own = own
        self._guess, self._room = (guess_secured, CLIENT_HELLO_BYTES) if secured else (guess, HEADER_BYTES)
        self._secured = secured
        self._guests: Crowd[_Guest] = Crowd(loop, self._refuse, patience=patience, most=most, late="silent")

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """A new connection, in non-blocking mode."""
        spoken = has_spoken(connection)
        if spoken is False:  # in a storm most have gone, and nothing is made for them
            self.refused["silent"] += 1
            connection.close()
            return
        guest = _Guest(connection, peer)
        self._loop.add_reader(connection.fileno(), self._look, guest)
        self._guests.add(guest)
        if spoken and guest in self._guests:
            self._look(guest)

    def close(self) -> None:
        """Ends the connections that were not handed on. Idempotent."""
        for guest in self._guests:
            self._let_go(guest)
            guest.connection.close()

    def _look(self, guest: _Guest) -> None:
        try:
            first = guest.connection.recv(self._room, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        told = self._guess(first) if first else Guess(Speech.FOREIGN)
        if told.speech is None:
            self._wait_for_more(guest, len(first), told.wanted)
            return
        taker = self._own.get(told.peer) if told.peer is not None else self._speakers.get(told.speech)
        if taker is None:
            plain = self._secured and first and first[0] != _TLS
            self._refuse(guest, "plain" if plain else "foreign" if first else "silent")
            return
        self._let_go(guest)
        if guest.seen:
            guest.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        try:
            taker(guest.connection, guest.peer)
        except TransferError as error:
            text = "%s could not be let in: %s"
            self._throttled.say(logging.WARNING, "refused", text, guest.peer, error)
            guest.connection.close()

    def _wait_for_more(self, guest: _Guest, seen: int, wanted: int) -> None:
        """Bytes that were only looked at would wake the loop without end, and a peer that sends one at a time
        again and again, did it not sleep until there are enough."""
        if seen > guest.seen:
            guest.seen = seen
            guest.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(wanted, seen + 1))
        elif _has_gone(guest.connection):
            self._refuse(guest, "silent")
        else:
            self._loop.remove_reader(guest.connection.fileno())
            self._loop.call_later(_REST, self._look_again, guest)

    def _look_again(self, guest: _Guest) -> None:
        if guest in self._guests:
            self._loop.add_reader(guest.connection.fileno(), self._look, guest)

    def _let_go(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        self._loop.remove_reader(guest.connection.fileno())

    def _refuse(self, guest: _Guest, why: str) -> None:
        self.refused[why] += 1
        self._let_go(guest)
        guest.connection.close()


def _has_gone(connection: socket.socket) -> bool:
    """Whether the peer says nothing more: bytes that were only looked at hide that from `recv`."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
