"""The sending half of a socket: the choice of a stream, and the wait for room."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transfer.transports.core.pure.attachment import Attachments, deadline_of
from transfer.transports.core.pure.codec import normalize, payload_of
from transfer.transports.core.pure.flusher import Flusher, Released
from transfer.transports.core.pure.pool import Pool
from transfer.transports.core.pure.stream import Stream
from transfer.transports.countdown import Countdown
from transfer.transports.errors import Again, Broken

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame

#: called with the stream that took a message, and its number there
_Taken = Callable[[Any, int], None]

NONE, ROUND_ROBIN, FANOUT = 0, 1, 2
#: seconds that a large write waits for the kernel before the rest is copied
_PATIENCE = 0.020


class Sending(Attachments):
    """The sending part of `SocketBase` in core/contract.pyi."""

    def __init__(
        self, socket_type: int, send_mode: int, receive_mode: int, flusher: Flusher, pool: Pool
    ) -> None:
        super().__init__(socket_type, send_mode, receive_mode, flusher, pool)
        self.copy_threshold = 65536
        self.messages_sent = self.bytes_sent = 0
        self.dropped_no_peer = 0
        self.blocked_ns = 0
        #: messages left by lost connections go first
        self._behind = False
        self._refused_size = 0

    def _send_frames(
        self,
        frames: Sequence[OutFrame],
        timeout: int,
        *,
        stream: Any = None,
        topic: bytes | None = None,
        hold: bool = False,
        released: Released | None = None,
        taken: _Taken | None = None,
        first: bool = False,
        again: bool = False,
    ) -> Any:
        normal = normalize(frames)
        return self._distribute(normal, timeout, stream, topic, hold, released, taken, first, again)

    def _distribute(
        self,
        frames: list[OutFrame],
        timeout: int,
        stream: Any,
        topic: bytes | None,
        hold: bool,
        released: Released | None,
        taken: _Taken | None = None,
        first: bool = False,
        again: bool = False,
    ) -> Any:
        """`_send_frames` for normalized frames."""
        self._check()
        if self._send_mode == FANOUT and stream is None:
            return self._fan_out(frames, topic, hold, released)
        deadline = -1.0
        while True:
            before, losses = self._room_count, self._losses
            taker = None
            if stream is not None or first or self._may_go():
                taker = self._offer(frames, stream, hold, released, taken, first)
            size = sum(len(frame[4]) for frame in frames)
            self._refused_size = size if taker is None else 0
            if taker is not None:
                if not again:
                    self.messages_sent += 1
                    self.bytes_sent += size
                return taker
            if losses != self._losses and not first:
                continue
            if deadline < 0:
                deadline = deadline_of(timeout)
            self._wait_room(before, deadline, stream)

    def _may_go(self) -> bool:
        """Whether no messages of lost connections are left; else they are offered first."""
        if self._behind:
            self._send_orphans()
        return not self._behind

    # -- one stream takes the message

    def _offer(
        self,
        frames: list[OutFrame],
        stream: Any,
        hold: bool,
        released: Released | None,
        taken: _Taken | None,
        first: bool,
    ) -> Any:
        """The stream that took the message, or None: no room, or a stream was lost, and its messages go
        before this one. Raises Broken for a requested stream."""
        if stream is not None:
            try:
                return stream if self._give(stream, frames, hold, released, taken) else None
            except Broken as error:
                self._lose(stream, stream.broken or error)
                raise
        with self._lock:
            senders, begin = list(self._senders), self._next_sender
        for step in range(len(senders)):
            # Every stream is tried, whatever other threads do to the turn: one that is skipped although it
            # has room would never report it.
            position = (begin + step) % len(senders)
            candidate = senders[position]
            if self._behind and not first:
                return None
            if candidate not in self._attached:
                continue  # another thread detached it
            try:
                if self._give(candidate, frames, hold, released, taken):
                    self._next_sender = position + 1
                    return candidate
            except Broken as error:
                self._lose(candidate, candidate.broken or error)
                return None
        return None

    def _give(
        self,
        stream: Any,
        frames: list[OutFrame],
        hold: bool,
        released: Released | None,
        taken: _Taken | None = None,
    ) -> bool:
        if not isinstance(stream, Stream):
            before = self._room_count
            if number := stream.send(frames, hold=hold, released=released):
                if taken is not None:
                    taken(stream, number)
                return True
            with self._lock:
                if self._room_count == before:  # else it may have got room, and reported it
                    self._full.add(stream)
            return False
        # The queue keeps the list; another stream of a fan-out needs a copy.
        several = self._send_mode == FANOUT
        message = stream._offer(list(frames) if several else frames, False, hold, released, several)
        if message is None:
            return False
        try:
            if taken is not None:
                taken(stream, message.number)
            if not message.borrowed or hold:
                pass
            elif message.size >= self.copy_threshold and self._send_mode != FANOUT:
                stream._push_through(message, _PATIENCE)
            else:
                stream._own(message)
            stream._settle(message)
        except BaseException as error:
            stream._take_back(message, error)
            raise
        return True

    # -- all subscribers take the message

    def _fan_out(
        self, frames: list[OutFrame], topic: bytes | None, hold: bool, released: Released | None
    ) -> int:
        if topic is None:
            topic = frames[0][2]
        if topic is None:
            topic = bytes(frames[0][4])
        matching = [stream for stream in list(self._senders) if stream.matches(topic)]
        if not matching:
            self.dropped_no_peer += 1
        # One call more than streams: the owner is informed after all streams were tried.
        done = None if released is None else Countdown(released, len(matching) + 1).ended
        taken = 0
        for stream in matching:
            accepted = False
            try:
                accepted = self._give(stream, frames, hold, done)
                stream.dropped += not accepted
            except Broken as error:
                self._lose(stream, stream.broken or error)
            taken += accepted
            if done is not None and not accepted:
                done(None)
        if done is not None:
            done(None)
        self.messages_sent += taken
        self.bytes_sent += taken * sum(len(frame[4]) for frame in frames)
        return taken

    # -- waiting for room

    def _writable(self) -> bool:
        if self.closed:
            return False
        if self._send_mode == FANOUT:
            return True
        return self._may_go() and any(self._takes(stream) for stream in list(self._senders))

    def _takes(self, stream: Any) -> bool:
        """A message as large as the last refused one would not have to wait: a poll that says less would
        spin."""
        size = max(1, self._refused_size)
        if not isinstance(stream, Stream):
            return not (stream in self._full or getattr(stream, "full", False))
        if stream._crowded(size) and stream.broken is None:
            stream._starved = True
            stream.flush()
        return stream.broken is None and not stream._crowded(size)

    def _wait_writable(self, timeout: int) -> bool:
        deadline = deadline_of(timeout)
        while True:
            self._check()
            before = self._room_count
            if self._writable():
                return True
            try:
                self._wait_room(before, deadline, None)
            except Again:
                return False

    # -- a hook

    def _send_orphans(self) -> None:
        """Offers messages of lost connections, and updates `_behind`."""

    def _wait_room(self, before: int, deadline: float, stream: Any) -> None:
        """Sleeps until a sender should check again. Raises Again, Closed."""
        started = time.monotonic_ns()
        due = time.monotonic() + self._long_wait / 1000
        with self._room:
            while self._room_count == before and not self.closed and deadline:
                left = min(deadline, due) - time.monotonic()
                if left <= 0:
                    break
                self._room.wait(left)
            nothing = self._room_count == before
            waited_for = list(self._senders) if stream is None else [stream]
        if deadline:
            spent = time.monotonic_ns() - started
            self.blocked_ns += spent
            for one in waited_for:
                one.blocked_ns += spent
        self._check()
        if nothing and time.monotonic() >= deadline:
            raise self._no_room()
        if nothing:
            self._on_long_wait()

    def _no_room(self) -> Again:
        return Again("no peer takes the message", hint="is a peer connected, and does it read?")


def plain(data: Any) -> tuple[list[OutFrame], int]:
    """The normalized frames of a message of one part, and its size in bytes."""
    payload = payload_of(data)
    return [(0, 0, None, None, payload)], len(payload)
