"""The receiving half of a socket: the order of streams, and the wait for messages."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from transfer.transports.core.pure.attachment import Attachments, Found, deadline_of, is_ended
from transfer.transports.core.pure.codec import CONTROL, copied, place
from transfer.transports.core.pure.flusher import Flusher
from transfer.transports.core.pure.pool import Pool
from transfer.transports.core.pure.stream import Stream
from transfer.transports.errors import Again, Broken, ProtocolError, TransferError
from transfer.transports.prefixes import Prefixes

if TYPE_CHECKING:
    from transfer.transports.core.contract import Sink
    from transfer.transports.core.pure.frame import Frame

FAIR, _FILTERED = 1, 2
#: after so many decoded messages the descriptors are polled again, so that no stream starves
_TURNS = 64
#: frames that the program does not get, after which a receive checks its time-out
MOST_UNWANTED = 256


class Receiving(Attachments):
    """The receiving part of `SocketBase` in core/contract.pyi."""

    def __init__(
        self, socket_type: int, send_mode: int, receive_mode: int, flusher: Flusher, pool: Pool
    ) -> None:
        super().__init__(socket_type, send_mode, receive_mode, flusher, pool)
        self.spin_us = 0
        self.messages_received = self.bytes_received = 0
        self.filtered = 0
        self.waited_ns = 0
        self._own_prefixes = Prefixes()
        self._since_poll = 0
        #: held while `take` of a foreign stream runs, so that a thread that detaches it can wait for its end
        self._taking = threading.RLock()
        #: a foreign stream that has half a message in the sink's memory
        self._sinking: Any = None

    def _detach(self, stream: Any) -> None:
        """When this returns, no receiver is inside the stream, or gets another message of it here. The
        messages left in it come after all that were returned before, and lie in new memory."""
        super()._detach(stream)
        if isinstance(stream, Stream):
            with stream._reading:
                stream._leave_sink()
            return
        with self._taking:
            if self._sinking is stream:
                self._leave_foreign_sink()

    # -- own subscriptions

    def _filter_add(self, prefix: bytes) -> None:
        with self._lock:
            self._own_prefixes.add(prefix)

    def _filter_remove(self, prefix: bytes) -> bool:
        with self._lock:
            return self._own_prefixes.remove(prefix)

    def _admits(self, frame: Frame) -> bool:
        return self._own_prefixes.matches(frame.bytes if frame.topic is None else frame.topic)

    # -- one message

    def _recv_message(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Frame]]:
        self._check()
        deadline = deadline_of(timeout)
        found: Found | None = None
        owned = False
        try:
            try:
                # `map`: no signal handler runs between taking the lock and recording it.
                # The lock is released here and in `_readable`, in no method: a handler may raise at its
                # entry.
                [owned] = map(self._receiving.acquire, (False,))
                if not owned:
                    [owned] = map(self._receiving.acquire, (True,), (_left(deadline),))
                if not owned:
                    raise Again("another thread is receiving, and nothing arrived in time")
                found = self._receive(deadline, timeout, sink)
            finally:
                if owned:
                    try:
                        self._end_receiving()
                    finally:
                        self._receiving.release()
                    if self.closed:
                        self._free()
        except TransferError:
            raise
        except BaseException:  # from a signal handler, or from the sink
            if found is not None:
                self._give_again(found[0], found[1])
            self._look_at_all()
            raise
        return found[0], found[1]

    def _read_ahead(self, most: int) -> tuple[Any, list[bytes]] | None:
        """See the contract: this core's decoded messages are received one by one."""
        return None

    def _pause_reading(self, stream: Any) -> bool:
        """See the contract."""
        return False

    def _resume_reading(self, stream: Any) -> None:
        """See the contract."""

    def _pass_turn(self) -> None:
        """See the contract: here each message is a turn, and other streams come before the next one."""
        self._since_poll = _TURNS

    def _receive(self, deadline: float, timeout: int, sink: Sink | None) -> Found:
        """The next message, counted. It is the unread one until no step is left that a signal could
        interrupt."""
        while True:
            self._check()
            if self._kept.unread is None and self._again:
                self._kept.unread = self._kept.counted = self._again[0]
                self._again.popleft()
            if self._kept.unread is None and self._find(deadline, sink) is None:
                if self._again:
                    continue
                raise self._no_message() if timeout else Again("no message is there")
            found = self._kept.unread
            if found is None:
                continue
            try:
                if sink is not None:
                    self._leave_foreign_sink()
                    self._place(found, sink)
                self._count_once(found)
            except ProtocolError as error:  # the sink found an invalid header
                self._kept.unread = None
                self._lose(found[0], error)
                continue
            self._kept.unread = self._kept.counted = None
            return found

    def _count_once(self, found: Found) -> None:
        if found is self._kept.counted:
            return
        stream, frames, _ = found
        nbytes, before = sum(map(len, frames)), stream.received
        try:
            (stream._count if isinstance(stream, Stream) else stream.consume)(frames)
        except BaseException:
            if stream.received != before:
                self._kept.counted = found
            raise
        self._kept.counted = found
        self.messages_received += 1
        self.bytes_received += nbytes

    def _found(self) -> list[tuple[Any, list[Frame]]]:
        """See the contract."""
        found, unread = [(stream, frames) for stream, frames, _ in self._again], self._kept.unread
        return [*found, unread[:2]] if unread is not None else found

    def _give_again(self, stream: Any, frames: list[Frame]) -> None:
        for frame in frames:
            if not isinstance(frame.data, bytes):
                frame.data = copied(frame.data, self._pool)
        owned = self._receiving.acquire(False)
        try:
            newer = self._kept.unread if owned else None  # it was found after this one
            self._again.append((stream, frames, set()))
            if newer is not None:
                self._count_once(newer)
                self._kept.unread = self._kept.counted = None
                self._again.append(newer)
        finally:
            if owned:
                self._receiving.release()
        self._notify()

    def _look_at_all(self) -> None:
        """A receiver was interrupted, maybe between taking a stream from the turns and returning it."""
        with self._lock:
            receiving = [stream for stream, receives in self._attached.items() if receives]
        for stream in receiving:
            if not isinstance(stream, Stream) or stream._has_decoded:
                self._has_message(stream)

    def _end_receiving(self) -> None:
        self._leave_foreign_sink()
        if self._exposed and not self.closed:
            self._signal()

    def _place(self, found: Found, sink: Sink) -> None:
        """Copies frames to the sink's memory that are not there yet. If it raises, the message stays
        unread."""
        _, frames, placed = found
        try:
            place(frames, sink, placed)
        except BaseException:
            for index in placed:
                frames[index].data = copied(frames[index].data, self._pool)
            placed.clear()
            raise

    def _readable(self) -> bool:
        owned = False
        try:
            if not self.closed:
                [owned] = map(self._receiving.acquire, (False,))
            # If another thread receives, it waits in `recv`, so there is no message. If one closed the socket
            # meanwhile, the descriptors are closed.
            return (owned and not self.closed) and (
                self._kept.unread is not None or bool(self._again) or self._find(0.0, None) is not None
            )
        finally:
            if owned:
                try:
                    self._end_receiving()
                finally:
                    self._receiving.release()
                if self.closed:
                    self._free()

    def _find(self, deadline: float, sink: Sink | None) -> Found | None:
        """The next message for the program, which is the unread one from here on. None: the deadline. Control
        frames go to their hook."""
        unwanted = 0
        while True:
            unwanted += 1
            if unwanted % MOST_UNWANTED == 0 and not _left(deadline):  # more of them may come, without end
                return None
            found = self._next_decoded(sink)
            if found is None:
                found = self._await_message(deadline, sink)
                if found is None:
                    return None
            first = found[1][0]
            if first.flags & CONTROL:
                self._kept.unread = None
                self._on_control(found[0], first)
                self._check()
            elif self._receive_mode == _FILTERED and not self._admits(first):
                self._kept.unread = None
                self.filtered += 1
            else:
                return found

    # -- decoded messages, in turn

    def _next_decoded(self, sink: Sink | None) -> Found | None:
        """A decoded message of the stream whose turn it is."""
        turns = self._turns
        self._since_poll += 1
        if self._since_poll >= _TURNS and turns and len(self._attached) > 1:
            self._poll(0, None)
        while turns:
            try:
                stream = turns.popleft()
            except IndexError:  # another thread detached it
                break
            found = self._take_from(stream, sink)
            if found is not None:
                return found
        return None

    def _take_from(self, stream: Any, sink: Sink | None) -> Found | None:
        """A message becomes the unread one at the moment when it leaves its stream: there is no call in
        between, so no signal handler runs there."""
        found: Found | None = None
        try:
            if isinstance(stream, Stream):
                with stream._reading:
                    if stream._owner_ref() is not self:  # detached: the rest goes to UnreadMessages
                        return None
                    decoder, none_placed = stream._decoder, set[int]()
                    frames = stream._oldest()
                    if frames is not None:
                        found = stream, frames, decoder.placed
                        self._kept.unread, decoder.placed = found, none_placed
                        decoder.messages.popleft()
                    again = stream._has_decoded
            else:
                with self._taking:
                    if stream not in self._attached:
                        return None
                    taken = self._take_from_foreign(stream, sink)
                    again = taken is not None
                    if taken is not None:
                        found = stream, taken[0], taken[1]
                        self._kept.unread, stream.handed = found, None
        except (Broken, ProtocolError) as error:
            self._lose(stream, error)
            self._check()
            return None
        if again:
            (self._turns.appendleft if is_ended(stream) else self._turns.append)(stream)
        return found

    def _take_from_foreign(self, stream: Any, sink: Sink | None) -> tuple[list[Frame], set[int]] | None:
        """One stream at a time may use the sink's memory; messages of others are copied."""
        if sink is None or not stream.takes_sink or self._sinking not in (None, stream):
            frames = stream.take()
            return None if frames is None else (frames, set())
        self._sinking = stream
        try:
            frames = stream.take(sink)
        except (Broken, ProtocolError):
            raise
        except Exception:  # noqa: BLE001 - the sink refuses: it is called again when the message is complete
            self._leave_foreign_sink()
            frames = stream.take()
            return None if frames is None else (frames, set())
        placed = {0} if stream.placed else set()
        if not stream.sinking:
            self._sinking = None
        return None if frames is None else (frames, placed)

    def _leave_foreign_sink(self) -> None:
        stream, self._sinking = self._sinking, None
        if stream is not None:
            try:
                stream.leave_sink()
            except TransferError as error:
                self._lose(stream, error)

    # -- waiting

    def _await_message(self, deadline: float, sink: Sink | None) -> Found | None:
        """Reads, and waits for descriptors, until a message is decoded."""
        started = time.monotonic_ns()
        due = started + self._long_wait * 1_000_000
        spin_until = started + self.spin_us * 1000 if self.spin_us else 0
        half_read: Stream | None = None  # reads into a buffer of the sink
        try:
            while True:
                timeout = _poll_timeout(deadline, spin_until)
                half_read = self._poll(min(timeout, self._long_wait / 1000), sink, half_read)
                if time.monotonic_ns() >= due and timeout:
                    due = time.monotonic_ns() + self._long_wait * 1_000_000
                    self._on_long_wait()
                found = self._next_decoded(None if half_read is not None else sink)
                if found is not None:
                    spent = time.monotonic_ns() - started
                    self.waited_ns += spent
                    found[0].waited_ns += spent
                    return found
                self._check()
                if self._again:  # another thread gave a message
                    return None
                if timeout == 0 and time.monotonic() >= deadline:
                    return None
        finally:
            if half_read is not None:
                self._out_of_sink(half_read)

    def _out_of_sink(self, half_read: Stream) -> None:
        """The sink's call ends, so the half message leaves the caller's memory; or the stream ends."""
        with half_read._reading:
            half_read._leave_sink()
        if half_read._failure is not None and half_read not in self._turns:
            self._turns.append(half_read)

    def _poll(
        self, timeout: float | None, sink: Sink | None, half_read: Stream | None = None
    ) -> Stream | None:
        """Reads from ready descriptors; streams with messages get a turn.

        With a sink, one stream at a time may read into the sink's buffers: it is returned while its message
        is incomplete. When another one has bytes to read, it leaves the buffers.
        """
        self._since_poll = 0
        for key, _ in self._selector.select(timeout):
            stream = key.data
            if stream is None:
                with self._lock:
                    self._wake.clear()
                continue
            if isinstance(stream, list):  # foreign streams that sleep on this descriptor
                self._turns.extend(other for other in stream if other not in self._turns)
                continue
            if half_read is not None and half_read is not stream:
                self._out_of_sink(half_read)
                half_read = None
            with stream._reading:
                if stream._owner_ref() is not self:
                    continue
                try:
                    # Behind a complete message the sink is not called: it is for one message.
                    stream._pull(None if self._turns or self._sinking is not None else sink)
                except BaseException:
                    stream._leave_sink()
                    raise
            if stream._has_decoded:
                if stream not in self._turns:
                    self._turns.append(stream)
                half_read = None
            elif stream._decoder.placed:
                half_read = stream
        return half_read

    # -- hooks

    def _no_message(self) -> Again:
        return Again("no message came in time")

    def _on_control(self, stream: Any, frame: Frame) -> None:
        """A control frame arrived."""


def _poll_timeout(deadline: float, spin_until: int) -> float:
    if spin_until and time.monotonic_ns() < spin_until:
        return 0
    if deadline == math.inf:
        return math.inf
    return max(0.0, deadline - time.monotonic()) if deadline else 0


def _left(deadline: float) -> float:
    """The time left, as a lock needs it."""
    return -1.0 if deadline == math.inf else max(0.0, deadline - time.monotonic())
