"""Publishes of programs that wait for the disk, while their other words are taken."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from transfer.broker.fronts.native_frames import flat
from transfer.broker.protocols.native import HELD_UP, Head, Op
from transfer.transports.errors import Again, LogFull

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.fronts.native_sockets import LoopSocket
    from transfer.transports.core.contract import Frame

#: bytes that wait of one program at most, and of all of them
_EACH, _ALL = 64 << 20, 256 << 20
#: bytes that a word counts for, with those of its parts
_WORD = 256
#: seconds for which nothing is read when more waits than that and the disk is only slow
_STOP = 1.0
#: words that take their turn before others come to theirs
_AT_ONCE = 256

Words = Sequence[tuple[Head, "list[Frame]"]]


class WaitingPublishes:
    """For the hub it is the one publisher of all programs: when it is paused, what they publish waits here,
    in its order. On the broker's loop.

    do: publishes words of a program. refuse: see `Requests.refuse`.
    """

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        heard: LoopSocket,
        do: Callable[[bytes, Words], None],
        refuse: Callable[..., None],
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._heard = heard
        self._do = do
        self._refuse = refuse
        self._paused = 0
        self._waiting: deque[tuple[bytes, Words, int]] = deque()
        self._nbytes: Counter[bytes] = Counter()  # that wait, by program
        self._all = 0
        self._publishing = b""  # the program that publishes now
        self._held_up: set[bytes] = set()  # programs that wait for an answer
        self._due = False  # `_go_on` comes
        self._stopped: asyncio.TimerHandle | None = None  # nothing is read, until then
        self._late = False  # it has been, and the disk has not caught up

    def take(self, identity: bytes, words: Words) -> None:
        """Publishes these words, now or behind those that wait."""
        if not self._paused and not self._waiting:
            self._publish(identity, words)
            return
        nbytes = sum(_WORD + sum(len(flat(frame.data)) for frame in frames) for _, frames in words)
        if self._is_beyond(identity, nbytes):
            if self._hub.is_full or self._late:
                self._refuse_all(identity, words)
                return
            self._stop()
        self._waiting.append((identity, words, nbytes))
        self._nbytes[identity] += nbytes
        self._all += nbytes
        self._hold_up(identity)

    def holds(self, identity: bytes) -> bool:
        """Whether something that this program publishes waits."""
        return identity in self._nbytes

    def tick(self, in_pieces: Iterable[bytes]) -> None:
        """About once a second: those who wait hear why. in_pieces: programs whose large messages wait."""
        for identity in self._held_up.union(in_pieces if self._hub.is_full else ()):
            self._say_why(identity)

    def pause(self) -> None:
        """See passage.Publisher."""
        self._paused += 1
        self._hold_up(self._publishing)

    def resume(self) -> None:
        """See `pause`."""
        self._paused -= 1
        if self._paused:
            return
        if self._waiting:
            self._soon()
        else:
            self._held_up.clear()

    def close(self) -> None:
        """Nothing that waits is taken any more."""
        self._waiting.clear()
        if self._stopped is not None:
            self._stopped.cancel()

    def _publish(self, identity: bytes, words: Words) -> None:
        self._publishing = identity
        self._do(identity, words)
        self._hub.pressed(self)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """There is room again, for some of them at least."""
        self._due = False
        turns = _AT_ONCE
        while self._waiting and turns > 0 and not self._paused and not self._heard.socket.closed:
            identity, words, nbytes = self._waiting.popleft()
            turns -= len(words)
            self._all -= nbytes
            self._nbytes[identity] -= nbytes
            if not self._nbytes[identity]:
                del self._nbytes[identity]
            self._publish(identity, words)
        if self._all <= _ALL // 2 and all(nbytes <= _EACH // 2 for nbytes in self._nbytes.values()):
            self._late = False
            self._read_on()
        if not self._paused:
            if self._waiting:
                self._soon()
            else:
                self._held_up.clear()
        self._hub.end_turn()

    def _is_beyond(self, identity: bytes, nbytes: int) -> bool:
        mine = self._nbytes.get(identity, 0)
        return (bool(mine) and mine + nbytes > _EACH) or (bool(self._all) and self._all + nbytes > _ALL)

    def _refuse_all(self, identity: bytes, words: Words) -> None:
        error = LogFull(f"too much of what is published waits already: {self._why()}")
        for head, _ in words:
            count = head.amount if head.op is Op.PUBLISH_MANY else 1
            for number in range(head.number, head.number + count):
                self._refuse(identity, number, error, again=True)

    # -- a disk that is slow: senders wait by the socket's own limits, for a while -----------------------

    def _stop(self) -> None:
        if self._stopped is None:
            self._heard.pause()
            self._stopped = self._loop.call_later(_STOP, self._too_long)

    def _too_long(self) -> None:
        self._late = True
        self._read_on()

    def _read_on(self) -> None:
        if self._stopped is not None:
            self._stopped.cancel()
            self._stopped = None
            self._heard.resume()

    # -- who waits hears why -----------------------------------------------------------------------------

    def _hold_up(self, identity: bytes) -> None:
        if identity not in self._held_up:
            self._held_up.add(identity)
            self._say_why(identity)

    def _say_why(self, identity: bytes) -> None:
        if self._hub.is_full:
            self._refuse(identity, HELD_UP, LogFull(self._why()))
        else:
            self._refuse(identity, HELD_UP, Again(self._why()))

    def _why(self) -> str:
        full = self._hub.full.replace("\n  hint: ", ": ")
        return f"the log is full: {full}" if full else "the broker's disk is behind"
