"""One port for transfer's own frames, TTP and HTTP, told apart by the first bytes of each connection."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections import Counter
from collections.abc import Mapping

from transfer.broker.engine.first_bytes import ENOUGH, Guess, Speech, guess
from transfer.broker.listener import Accepted
from transports.errors import TransferError
from transports.wire import SocketType

_log = logging.getLogger("transfer.broker")
#: connections that have not said enough yet, at once; who comes beyond them is closed
_MOST = 4096


class Doorway:
    """Looks at the first bytes of connections, and hands each on, unread. On the broker's loop.

    speakers: who takes a connection, by its speech; own: by the socket type of its peer. patience: seconds
    that a connection has to say enough. counts: "foreign" for those that nobody takes, "silent" for those
    that said too little, "crowded" for those that found too many before them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        speakers: Mapping[Speech, Accepted],
        own: Mapping[SocketType, Accepted],
        *,
        patience: float = 10.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._loop = loop
        self._speakers = speakers
        self._own = own
        self._patience = patience
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """A new connection, in non-blocking mode."""
        if len(self._waiting) >= _MOST:
            self._refuse(connection, "crowded")
            return
        self._waiting[connection] = self._loop.call_later(self._patience, self._late, connection)
        self._loop.add_reader(connection.fileno(), self._look, connection, peer)
        self._look(connection, peer)

    def close(self) -> None:
        """Ends the connections that were not handed on. Idempotent."""
        for connection in list(self._waiting):
            self._let_go(connection)
            connection.close()

    def _look(self, connection: socket.socket, peer: str) -> None:
        try:
            first = connection.recv(ENOUGH, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        told = guess(first) if first else Guess(Speech.FOREIGN)
        if told.speech is None:
            self._rest(connection, peer)
            return
        self._let_go(connection)
        taker = self._own.get(told.peer) if told.peer is not None else self._speakers.get(told.speech)
        if taker is None:
            self._refuse(connection, "foreign" if first else "silent")
            return
        try:
            taker(connection, peer)
        except TransferError as error:
            _log.warning("%s could not be let in: %s", peer, error)
            connection.close()

    def _rest(self, connection: socket.socket, peer: str) -> None:
        """Bytes that were only looked at would wake the loop without end: it looks again a moment later."""
        self._loop.remove_reader(connection.fileno())
        self._loop.call_later(0.02, self._look_again, connection, peer)

    def _look_again(self, connection: socket.socket, peer: str) -> None:
        if connection not in self._waiting:
            return
        if _has_gone(connection):
            self._let_go(connection)
            self._refuse(connection, "silent")
        else:
            self._loop.add_reader(connection.fileno(), self._look, connection, peer)

    def _late(self, connection: socket.socket) -> None:
        self._let_go(connection)
        self._refuse(connection, "silent")

    def _let_go(self, connection: socket.socket) -> None:
        self._waiting.pop(connection).cancel()
        self._loop.remove_reader(connection.fileno())

    def _refuse(self, connection: socket.socket, why: str) -> None:
        self.counts[why] += 1
        connection.close()


def _has_gone(connection: socket.socket) -> bool:
    """Whether the peer says nothing more: bytes that were only looked at hide that from `recv`."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
