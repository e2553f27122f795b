"""The receiving half of a socket: whose message is next, and where a receiver waits."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from transports.errors import Again, Broken, ProtocolError, TransferError
from transports.prefixes import Prefixes
from transports.twin.attachment import Attachments, Found, deadline_of, is_ended
from transports.twin.codec import CONTROL, copied, place
from transports.twin.flusher import Flusher
from transports.twin.pool import Pool
from transports.twin.stream import Stream

if TYPE_CHECKING:
    from transports.core_contract import Sink
    from transports.twin.frame import Frame

FAIR, FILTERED = 1, 2
#: after so many decoded messages the descriptors are looked at again, so that nobody starves
TURNS = 64


class Receiving(Attachments):
    """What `core_contract.SocketBase` says about receiving."""

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
        #: held while a foreign stream is asked, so that whoever takes it out can wait for the answer
        self._taking = threading.RLock()
        #: a foreign stream that has half a message in the sink's memory
        self._sinking: Any = None

    def _detach(self, stream: Any) -> None:
        """When this returns, no receiver is inside the stream, or gets another message of it here: what is
        left in it comes after all that was handed out, and lies in memory of our own."""
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
        self._begin_receiving(deadline)
        try:
            while True:
                self._check()
                found, self._unread = self._unread, None
                if found is None:
                    found = self._find(deadline, sink)
                    if found is None:
                        raise self._no_message() if timeout else Again("no message is there")
                stream, frames, _ = found
                if sink is None:
                    break
                self._leave_foreign_sink()
                try:
                    self._place(found, sink)
                    break
                except ProtocolError as error:  # the sink found that its header makes no sense
                    self._unread = found = None
                    self._lose(stream, error)
            self.messages_received += 1
            for frame in frames:
                self.bytes_received += len(frame)
            if isinstance(stream, Stream):
                stream._count(frames)
            else:
                stream.consume(frames)
            return stream, frames
        finally:
            self._leave_foreign_sink()
            self._end_receiving()

    def _begin_receiving(self, deadline: float) -> None:
        """Waits for another receiver, so that one thread at a time looks at the streams. Raises Again."""
        if self._receiving.acquire(blocking=False):
            return
        left = -1.0 if deadline == math.inf else max(0.0, deadline - time.monotonic())
        if not self._receiving.acquire(timeout=left):
            raise Again("another thread is receiving, and nothing arrived in time")

    def _end_receiving(self) -> None:
        if self._asked and not self.closed:
            self._signal()
        self._receiving.release()
        if self.closed:
            self._free()

    def _place(self, found: Found, sink: Sink) -> None:
        """Copies where the sink wants it what is not there yet. If it raises, the message stays unread."""
        stream, frames, placed = found
        try:
            place(frames, sink, placed)
        except BaseException:
            for index in placed:
                frames[index].data = copied(frames[index].data, self._pool)
            self._unread = (stream, frames, set())
            raise

    def _readable(self) -> bool:
        if self.closed or not self._receiving.acquire(blocking=False):
            return False  # somebody waits in recv, so nothing is there
        try:
            if self._unread is None:
                self._unread = self._find(0.0, None)
            return self._unread is not None
        finally:
            self._end_receiving()

    def _find(self, deadline: float, sink: Sink | None) -> Found | None:
        """The next message that we want, None at the deadline. Control frames go to their hook."""
        while True:
            found = self._next_decoded(sink)
            if found is None:
                found = self._await_message(deadline, sink)
                if found is None:
                    return None
            first = found[1][0]
            if first.flags & CONTROL:
                self._on_control(found[0], first)
                self._check()
            elif self._receive_mode == FILTERED and not self._admits(first):
                self.filtered += 1
            else:
                return found

    # -- decoded messages, in turn

    def _next_decoded(self, sink: Sink | None) -> Found | None:
        """A message that needs no waiting, of the stream whose turn it is."""
        turns = self._turns
        self._since_poll += 1
        if self._since_poll >= TURNS and turns and len(self._attached) > 1:
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
        try:
            if isinstance(stream, Stream):
                with stream._reading:
                    if stream._owner is not self:  # detached: what is left goes to its remnant
                        return None
                    taken = stream._next()
                    again = stream._has_decoded
            else:
                with self._taking:
                    if stream not in self._attached:
                        return None
                    taken = self._take_from_foreign(stream, sink)
                    again = taken is not None
        except (Broken, ProtocolError) as error:
            self._lose(stream, error)
            self._check()
            return None
        if again:
            (self._turns.appendleft if is_ended(stream) else self._turns.append)(stream)
        return None if taken is None else (stream, *taken)

    def _take_from_foreign(self, stream: Any, sink: Sink | None) -> tuple[list[Frame], set[int]] | None:
        """One stream at a time may have the sink's memory; messages of others are copied."""
        if sink is None or not stream.takes_sink or self._sinking not in (None, stream):
            frames = stream.take()
            return None if frames is None else (frames, set())
        self._sinking = stream
        try:
            frames = stream.take(sink)
        except (Broken, ProtocolError):
            raise
        except Exception:  # noqa: BLE001 - the sink refuses: it is asked again when the message is whole
            self._leave_foreign_sink()
            frames = stream.take()
            return None if frames is None else (frames, set())
        if not stream.sinking:
            self._sinking = None
        return None if frames is None else (frames, {0} if stream.placed else set())

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
        half_read: Stream | None = None  # reads into a buffer of the sink's
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
                if timeout == 0 and time.monotonic() >= deadline:
                    return None
        finally:
            if half_read is not None:
                self._out_of_sink(half_read)

    def _out_of_sink(self, half_read: Stream) -> None:
        """Its call is over, so its half message leaves the caller's memory; or the stream ends."""
        with half_read._reading:
            half_read._leave_sink()
        if half_read._failure is not None and half_read not in self._turns:
            self._turns.append(half_read)

    def _poll(
        self, timeout: float | None, sink: Sink | None, half_read: Stream | None = None
    ) -> Stream | None:
        """Reads what descriptors have; streams with messages get a turn.

        With a sink, one stream at a time may read into the sink's buffers: it is returned while it
        has not finished. When another one has something to read, it gives them up.
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
                if stream._owner is not self:
                    continue
                try:
                    # Behind a message that is ready nobody asks the sink: it is asked for one message.
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
