"""The broker as a name service: programs announce their endpoints, and are notified of each other's."""

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

#: seconds in which changes are gathered: a thousand pods that start must not cause a million messages
_GATHER = 0.02

#: (program, head, parts)
Send = Callable[[bytes, bytes, Sequence["OutPart"]], None]


class Registrations:
    """The registry of one ROUTER. On the broker's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send, counters: Counter[str]) -> None:
        self.registry = Registry(os.urandom(8).hex(), loop.time())
        self._loop = loop
        self._send = send
        self._counters = counters
        self._timer: asyncio.TimerHandle | None = None

    def do(self, program: bytes, head: Head) -> None:
        """Handles a command of `native_registry.OF_REGISTRY`. Raises ProtocolError, UsageError."""
        key, now = (program, head.number), self._loop.time()
        if head.op is Op.LOOK_UP:
            listed = self.registry.look_up(key, decode_look_up(head), now)
            self._send(program, *_framed(encode_listed(Op.LISTED, head.number, listed)))
            return
        if head.op is Op.RENEW:
            lease = self.registry.renew(key, now)
        elif head.op is Op.REGISTER:
            wish = decode_registering(head)
            self.registry.register(key, wish, now)
            lease = wish.lease
        else:
            self.registry.unregister(key)
            lease = 0.0
        words = encode_words({"registry": self.registry.registry, "lease": lease})
        self._send(program, encode(Op.REGISTERED, head.number, words), ())
        if head.op is not Op.RENEW:
            self._notify_soon()

    def tick(self, there: Collection[bytes]) -> None:
        """Removes programs that have disconnected and expired leases. there: connected programs."""
        for program in self.registry.programs:
            if program not in there:
                self.registry.leave(program)
        self._counters["lease_expired"] += self.registry.expire(self._loop.time())
        self._notify_soon()

    def close(self) -> None:
        """Stops notifying programs. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _notify_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self._notify)

    def _notify(self) -> None:
        self._timer = None
        for notice in self.registry.news(self._loop.time()):
            first, parts = _framed(encode_listed(Op.CHANGED, 0, notice.listed))
            for program, number in notice.to:
                self._send(program, _numbered(first, number), parts)


def _framed(encoded: tuple[bytes, bytes]) -> tuple[bytes, list[OutPart]]:
    head, part = encoded
    return head, [(None, None, 0, part)]


def _numbered(head: bytes, number: int) -> bytes:
    """Returns the same head for another watcher."""
    return head[:8] + number.to_bytes(8, "little") + head[16:]
