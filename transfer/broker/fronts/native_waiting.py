"""Publishes of programs that wait for the disk, while their other commands are handled."""

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

#: limits on the waiting bytes of one program, and of all of them
_EACH, _ALL = 64 << 20, 256 << 20
#: bytes that a command counts for, in addition to its parts
_WORD = 256
#: seconds for which the socket is not read when more waits and the disk is only slow
_STOP = 1.0
#: commands that are published before other work gets its turn
_AT_ONCE = 256

Words = Sequence[tuple[Head, "list[Frame]"]]


class WaitingPublishes:
    """Queues publishes in order while the hub pauses them. For the hub it is the publisher of all programs.
    On the broker's loop. do: publishes a program's commands. refuse: see `Requests.refuse`."""

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        source: LoopSocket,
        do: Callable[[bytes, Words], None],
        refuse: Callable[..., None],
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._source = source
        self._do = do
        self._refuse = refuse
        self._paused = 0
        self._waiting: deque[tuple[bytes, Words, int]] = deque()
        self._nbytes: Counter[bytes] = Counter()  # waiting bytes by program
        self._all = 0
        self._publishing = b""  # the program that publishes now
        self._held_up: set[bytes] = set()  # programs whose publishes wait
        self._due = False  # `_go_on` is scheduled
        self._stopped: asyncio.TimerHandle | None = None  # ends the time in which the socket is not read
        self._late = False  # that time is over, and the disk has not caught up

    def take(self, identity: bytes, words: Words) -> None:
        """Publishes these commands, now or after those that wait."""
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
        self._report_once(identity)

    def holds(self, identity: bytes) -> bool:
        """Returns whether publishes of this program wait."""
        return identity in self._nbytes

    def tick(self, in_pieces: Iterable[bytes]) -> None:
        """Reports the reason to programs that wait, about once a second. in_pieces: programs whose large
        messages wait."""
        for identity in self._held_up.union(in_pieces if self._hub.is_full else ()):
            self._report(identity)

    def pause(self) -> None:
        """See streaming_publish.Publisher."""
        self._paused += 1
        self._report_once(self._publishing)

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
        """Drops all publishes that wait."""
        self._waiting.clear()
        if self._stopped is not None:
            self._stopped.cancel()

    def _publish(self, identity: bytes, words: Words) -> None:
        self._publishing = identity
        self._do(identity, words)
        self._hub.apply_backpressure(self)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Publishes what waits: there is room again, for some of it at least."""
        self._due = False
        turns = _AT_ONCE
        while self._waiting and turns > 0 and not self._paused and not self._source.socket.closed:
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
        error = LogFull(f"too many publishes wait already: {self._reason()}")
        for head, _ in words:
            count = head.amount if head.op is Op.PUBLISH_MANY else 1
            for number in range(head.number, head.number + count):
                self._refuse(identity, number, error, again=True)

    # -- a slow disk: the socket's own limits block senders for a while ----------------------------------

    def _stop(self) -> None:
        if self._stopped is None:
            self._source.pause()
            self._stopped = self._loop.call_later(_STOP, self._too_long)

    def _too_long(self) -> None:
        self._late = True
        self._read_on()

    def _read_on(self) -> None:
        if self._stopped is not None:
            self._stopped.cancel()
            self._stopped = None
            self._source.resume()

    # -- reports to programs that wait -------------------------------------------------------------------

    def _report_once(self, identity: bytes) -> None:
        if identity not in self._held_up:
            self._held_up.add(identity)
            self._report(identity)

    def _report(self, identity: bytes) -> None:
        if self._hub.is_full:
            self._refuse(identity, HELD_UP, LogFull(self._reason()))
        else:
            self._refuse(identity, HELD_UP, Again(self._reason()))

    def _reason(self) -> str:
        full = self._hub.full.replace("\n  hint: ", ": ")
        return f"the log is full: {full}" if full else "the broker's disk is behind"
