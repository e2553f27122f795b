"""The answers of the ROUTER to programs, gathered for a turn of the loop: one message for each program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import transfer
from transfer.broker.fronts.native_frames import HELD_FROM, OutPart
from transfer.broker.protocols.native import Op, encode
from transfer.broker.protocols.native_batch import LARGEST_BODY, WORD_COST, encode_several
from transfer.transports.errors import Again, Closed, NotSupported

if TYPE_CHECKING:
    import asyncio

    from transfer.sockets.socket import Socket

#: commands in one message at most, runs of KEPT too
_MOST = 1000
#: bytes of heads, without those of KEPT
_HEADS = LARGEST_BODY - _MOST * (WORD_COST + 16)


class _Words:
    """The commands for one program. kept: runs [begin, end) of numbers."""

    __slots__ = ("kept", "nbytes", "parts", "size", "words")

    def __init__(self) -> None:
        self.words: list[tuple[bytes, int]] = []
        self.parts: list[OutPart] = []
        self.nbytes = 0  # of the parts
        self.size = 0  # of the heads
        self.kept: list[list[int]] = []


class Outbox:
    """Gathers commands for programs, on the broker's loop. They are sent at `flush`, or in the loop's next
    turn, in order; only KEPT of consecutive messages are merged, in front of the rest.

    able: programs that understand several commands in one message; others get one message for each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Socket, counters: Counter[str]) -> None:
        self.able: set[bytes] = set()
        self._loop = loop
        self._socket = socket
        self._counters = counters
        self._waiting: dict[bytes, _Words] = {}
        self._due = False

    def add(self, identity: bytes, head: bytes, parts: Sequence[OutPart] = ()) -> None:
        """Adds a command for one program; it is dropped if the program has disconnected."""
        waiting = self._of(identity)
        nbytes = sum(len(part[3]) for part in parts)
        size = len(head) + WORD_COST
        if waiting.words and (
            waiting.nbytes + nbytes > HELD_FROM  # a message is copied if it is small
            or waiting.size + size > _HEADS
            or len(waiting.words) >= _MOST
        ):
            self._send(identity)
            waiting = self._of(identity)
        waiting.words.append((head, len(parts)))
        waiting.parts += parts
        waiting.nbytes += nbytes
        waiting.size += size

    def kept(self, identity: bytes, begin: int, end: int) -> None:
        """Adds KEPT for messages [begin, end) of a program."""
        runs = self._of(identity).kept
        if runs and runs[-1][1] == begin:
            runs[-1][1] = end
        else:
            runs.append([begin, end])
            if len(runs) >= _MOST:
                self._send(identity)

    def flush(self) -> None:
        """Sends all commands."""
        for identity in list(self._waiting):
            self._send(identity)

    def flush_one(self, identity: bytes) -> None:
        """Sends all commands of one program."""
        if identity in self._waiting:
            self._send(identity)

    def _of(self, identity: bytes) -> _Words:
        waiting = self._waiting.get(identity)
        if waiting is None:
            waiting = self._waiting[identity] = _Words()
            if not self._due:
                self._due = True
                self._loop.call_soon(self._late)
        return waiting

    def _late(self) -> None:
        self._due = False
        self.flush()

    def _send(self, identity: bytes) -> None:
        waiting = self._waiting.pop(identity)
        words = waiting.words
        if waiting.kept:
            kept = [(encode(Op.KEPT, begin, count=end - begin), 0) for begin, end in waiting.kept]
            words = kept + words
        if len(words) > 1 and identity in self.able:
            self._put(identity, encode_several(Op.SEVERAL_FROM_BROKER, words), waiting.parts, waiting.nbytes)
            return
        begin = 0
        for head, count in words:
            parts = waiting.parts[begin : begin + count]
            self._put(identity, head, parts, sum(len(part[3]) for part in parts))
            begin += count

    def _put(self, identity: bytes, head: bytes, parts: Sequence[OutPart], nbytes: int) -> None:
        frames: list[OutPart] = [(None, None, 0, identity), (None, None, 0, head), *parts]
        try:
            self._socket.send_frames(frames, transfer.DONTWAIT, copy=None if nbytes < HELD_FROM else False)
        except (Again, Closed, NotSupported):  # what a gone program held is returned; or it is no client
            self._counters["unanswered"] += 1
