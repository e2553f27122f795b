"""The broker as a name service: programs announce their endpoints, and hear of each other's."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from transfer.broker.core.registry import Registry
from transfer.broker.protocols.native import Head, Op, encode, encode_words
from transfer.broker.protocols.native_registry import decode_look_up, decode_registering, encode_listed

if TYPE_CHECKING:
    import asyncio
    from collections import Counter

    from transfer.broker.fronts.native_frames import OutPart

#: seconds in which changes are gathered, so that a thousand pods that start do not make a million messages
_GATHER = 0.02

#: (program, head, parts)
Send = Callable[[bytes, bytes, Sequence["OutPart"]], None]


class Registrations:
    """The registry of one ROUTER. On the broker's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send, counters: Counter[str]) -> None:
        self.books = Registry(os.urandom(8).hex(), loop.time())
        self._loop = loop
        self._send = send
        self._counters = counters
        self._timer: asyncio.TimerHandle | None = None

    def do(self, program: bytes, head: Head) -> None:
        """A word of `own_registry.OF_REGISTRY`. Raises ProtocolError, UsageError."""
        key, now = (program, head.number), self._loop.time()
        if head.op is Op.LOOK_UP:
            listed = self.books.look_up(key, decode_look_up(head), now)
            self._send(program, *_said(encode_listed(Op.LISTED, head.number, listed)))
            return
        if head.op is Op.RENEW:
            lease = self.books.renew(key, now)
        elif head.op is Op.REGISTER:
            wish = decode_registering(head)
            self.books.register(key, wish, now)
            lease = wish.lease
        else:
            self.books.unregister(key)
            lease = 0.0
        words = encode_words({"registry": self.books.registry, "lease": lease})
        self._send(program, encode(Op.REGISTERED, head.number, words), ())
        if head.op is not Op.RENEW:
            self._tell_soon()

    def tick(self, there: Collection[bytes]) -> None:
        """Programs that have gone, and leases that are over. there: those that are connected."""
        for program in self.books.programs:
            if program not in there:
                self.books.leave(program)
        self._counters["lease_expired"] += self.books.expire(self._loop.time())
        self._tell_soon()

    def close(self) -> None:
        """Tells nobody anything any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for told in self.books.news(self._loop.time()):
            _, parts = said = _said(encode_listed(Op.CHANGED, 0, told.listed))
            for program, number in told.to:
                self._send(program, _numbered(said[0], number), parts)


def _said(encoded: tuple[bytes, bytes]) -> tuple[bytes, list[OutPart]]:
    head, part = encoded
    return head, [(None, None, 0, part)]


def _numbered(head: bytes, number: int) -> bytes:
    """The same head for another watcher."""
    return head[:8] + number.to_bytes(8, "little") + head[16:]
