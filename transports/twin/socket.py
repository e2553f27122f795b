"""The fast path of a Socket: who gets a message, and whose is next."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transports.errors import Again, Broken, Closed, ProtocolError
from transports.twin import fork
from transports.twin.codec import CONTROL, LZ4, MORE, TENSOR, TOPIC, copied, payload_of, place
from transports.twin.flusher import Flusher, Released
from transports.twin.frame import Frame
from transports.twin.pool import Pool
from transports.twin.stream import Stream

if TYPE_CHECKING:
    from transports.core_contract import OutFrame, Sink

DONTWAIT = 1
NONE, ROUND_ROBIN, FANOUT = 0, 1, 2
FAIR, FILTERED = 1, 2
#: flags of a frame that `recv` does not hand out by itself
_NOT_PLAIN = TENSOR | TOPIC | MORE | LZ4
#: seconds that a large write waits for the kernel before the rest is copied
PATIENCE = 0.020
#: after so many decoded messages the descriptors are looked at again, so that nobody starves
TURNS = 64


class SocketBase:
    """Distributes messages over streams and reads them fairly. See `core_contract.SocketBase`.

    One thread at a time receives (`_receiving`); the others queue behind it. `_lock` guards the
    lists and `_room` (a condition on it) is where senders wait. Hooks run with `_receiving` held
    when a receiver found the event, never with `_lock`; they must not receive.
    """

    def __init__(
        self, socket_type: int, send_mode: int, receive_mode: int, flusher: Flusher, pool: Pool
    ) -> None:
        flusher.check()
        self.send_timeout = self.receive_timeout = -1
        self.copy_threshold = 65536
        self.spin_us = 0
        self.messages_sent = self.messages_received = 0
        self.bytes_sent = self.bytes_received = 0
        self.dropped_no_peer = self.filtered = 0
        self.blocked_ns = self.waited_ns = 0
        self.closed = False
        self._general_send = self._general_recv = False
        self._socket_type = int(socket_type)
        self._send_mode = send_mode
        self._receive_mode = receive_mode
        self._flusher = flusher
        self._pool = pool
        self._lock = threading.Lock()
        # -- sending
        self._room = threading.Condition(self._lock)
        self._senders: list[Any] = []
        self._next_sender = 0
        self._full: set[Any] = set()  # foreign streams that refused the last message
        self._room_count = 0  # grows whenever a sender should look again
        self._foreign = 0
        # -- receiving
        self._receiving = threading.Lock()
        self._receivers: dict[int, Stream] = {}  # by descriptor
        self._attached: dict[Any, bool] = {}  # every stream, and whether it receives
        self._turns: deque[Any] = deque()  # streams that may have a decoded message
        self._since_poll = 0
        self._unread: tuple[Any, list[Frame], set[int]] | None = None
        self._filters: dict[bytes, int] = {}
        self._filter: tuple[bytes, ...] = ()
        # -- the descriptor
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._event, select.EPOLLIN)
        self._signalled = False
        self._asked = False  # somebody outside watches the descriptor

    # -- what users call

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if flags & ~DONTWAIT or track or self._general_send or self._foreign or not self._send_mode:
            return self._send_general(data, flags, copy, track)
        payload = payload_of(data)
        self._send_frames(
            ((0, 0, None, None, payload),),
            0 if flags else self.send_timeout,
            hold=not copy and len(payload) >= self.copy_threshold,
        )
        return None

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._general_recv or not self._receive_mode:
            return self._recv_general(flags, copy, track)
        stream, frames = self._recv_message(0 if flags & DONTWAIT else self.receive_timeout)
        frame = frames[0]
        if frame.flags & _NOT_PLAIN:
            return self._deliver(stream, frames, flags, copy)
        return frame.bytes if copy else frame

    def fileno(self) -> int:
        """An epoll descriptor, readable when `recv` may succeed; a call that finds nothing clears it."""
        self._check()
        self._asked = True
        with self._lock:
            if self._turns or self._unread is not None:
                self._wake()
        return self._epoll.fileno()

    def _readable(self) -> bool:
        if self.closed or not self._receiving.acquire(blocking=False):
            return False  # somebody waits in recv, so nothing is there
        try:
            if self._unread is None:
                found = self._find(0, None)
                if found is not None:
                    self._unread = found
            return self._unread is not None
        finally:
            self._leave_receiving()

    def _writable(self) -> bool:
        if self.closed:
            return False
        with self._lock:
            if self._send_mode == FANOUT:
                return True
            writable = any(self._takes(stream) for stream in self._senders)
        return writable

    # -- streams

    def _attach(self, stream: Any, sends: bool, receives: bool) -> None:
        self._check()
        with self._lock:
            self._attached[stream] = receives
            if sends:
                self._senders.append(stream)
            if isinstance(stream, Stream):
                stream._owner = self
                if receives:
                    self._register(stream)
            else:
                self._foreign += 1
                stream.on_writable = lambda: self._has_room(stream)
                if receives:
                    stream.on_readable = lambda: self._has_message(stream)
            self._wake_senders()
        if receives and (not isinstance(stream, Stream) or stream._decoder.messages or stream._failure):
            self._has_message(stream)  # something came before we were told of it

    def _register(self, stream: Stream) -> None:
        fd = stream.fd
        if fd >= 0 and fd not in self._receivers:
            self._receivers[fd] = stream
            self._epoll.register(fd, select.EPOLLIN)

    def _opened(self, stream: Stream) -> None:
        """A stream got its descriptor."""
        with self._lock:
            if self._attached.get(stream) and not self.closed:
                self._register(stream)
            self._wake_senders()

    def _detach(self, stream: Any) -> None:
        with self._lock:
            self._remove(stream)
            if stream in self._turns:
                self._turns.remove(stream)

    def _closing(self, stream: Stream) -> None:
        """The stream closes its descriptor, which epoll must forget before the number is reused."""
        with self._lock:
            self._unregister(stream)

    def _remove(self, stream: Any) -> bool:
        if self._attached.pop(stream, None) is None:
            return False
        if stream in self._senders:
            self._senders.remove(stream)
        if isinstance(stream, Stream):
            self._unregister(stream)
            stream._owner = None
        else:
            self._foreign -= 1
            stream.on_readable = stream.on_writable = None
        self._full.discard(stream)
        self._wake_senders()
        return True

    def _unregister(self, stream: Stream) -> None:
        fd = stream.fd
        if self._receivers.get(fd) is stream:
            del self._receivers[fd]
            if not self._epoll.closed:
                self._epoll.unregister(fd)

    def _streams(self) -> list[Any]:
        with self._lock:
            return list(self._attached)

    def _lose(self, stream: Any, error: BaseException) -> None:
        """Detaches a stream that ended, once. What it had decoded is still handed out."""
        with self._lock:
            attached = self._remove(stream)
        if attached:
            self._on_lost(stream, error)

    # -- sending

    def _send_frames(
        self,
        frames: Sequence[OutFrame],
        timeout: int,
        *,
        stream: Any = None,
        topic: bytes | None = None,
        hold: bool = False,
        released: Released | None = None,
    ) -> Any:
        self._check()
        if self._send_mode == FANOUT and stream is None:
            return self._fan_out(frames, topic, hold, released)
        deadline = 0.0
        while True:
            before = self._room_count
            taker = self._offer(frames, stream, hold, released)
            if taker is not None:
                self.messages_sent += 1
                self.bytes_sent += sum(len(payload_of(frame[4])) for frame in frames)
                return taker
            if timeout == 0:
                raise Again("no peer can take the message now")
            deadline = deadline or (math.inf if timeout < 0 else time.monotonic() + timeout / 1000)
            self._wait_room(before, deadline, stream)

    def _offer(
        self, frames: Sequence[OutFrame], stream: Any, hold: bool, released: Released | None
    ) -> Any:
        """The stream that took the message, or None. Raises Broken for the one stream asked for."""
        if stream is not None:
            try:
                return stream if self._give(stream, frames, hold, released) else None
            except Broken as error:
                self._lost_sending(stream, error)
                raise
        senders = self._senders
        for _ in range(len(senders)):
            position = self._next_sender
            self._next_sender = position + 1
            if position >= len(senders):
                position, self._next_sender = 0, 1
            try:
                candidate = senders[position]
            except IndexError:  # another thread detached one
                continue
            try:
                if self._give(candidate, frames, hold, released):
                    return candidate
            except Broken as error:
                self._lost_sending(candidate, error)
        return None

    def _give(
        self, stream: Any, frames: Sequence[OutFrame], hold: bool, released: Released | None
    ) -> bool:
        if not isinstance(stream, Stream):
            if stream.send(frames, hold=hold, released=released):
                return True
            self._full.add(stream)
            return False
        message = stream._take(frames, False, released)
        if message is None:
            return False
        if message.left and not hold:
            if message.size >= self.copy_threshold and self._send_mode != FANOUT:
                stream._push_through(message, PATIENCE)
            else:
                stream._own(message)
        stream._settle(message)
        return True

    def _lost_sending(self, stream: Any, error: Broken) -> None:
        # A peer that is gone may have sent something before: it is still handed out.
        if isinstance(stream, Stream) and self._attached.get(stream):
            with stream._receiving:
                stream._pull(None)
            if stream._decoder.messages:
                self._has_message(stream)
        self._lose(stream, stream.broken or error)

    def _takes(self, stream: Any) -> bool:
        """A small message would not wait."""
        if not isinstance(stream, Stream):
            return stream not in self._full
        if stream._crowded(1) and stream.broken is None:
            stream.flush()
        if not stream._crowded(1):
            return stream.broken is None
        stream._starved = True
        return False

    def _fan_out(
        self, frames: Sequence[OutFrame], topic: bytes | None, hold: bool, released: Released | None
    ) -> int:
        if topic is None:
            topic = frames[0][2]
        if topic is None:
            topic = bytes(payload_of(frames[0][4]))
        shared = None if released is None else _Shared(released)
        taken = matched = 0
        for stream in list(self._senders):
            if not stream.matches(topic):
                continue
            matched += 1
            part = None if shared is None else shared.share()
            try:
                if self._give(stream, frames, hold, part):
                    taken += 1
                    continue
                stream.dropped += 1
            except Broken as error:
                self._lost_sending(stream, error)
            if shared is not None:
                shared.done(None)
        if shared is not None:
            shared.done(None)
        if not matched:
            self.dropped_no_peer += 1
        self.messages_sent += taken
        self.bytes_sent += taken * sum(len(payload_of(frame[4])) for frame in frames)
        return taken

    def _wait_writable(self, timeout: int) -> bool:
        deadline = math.inf if timeout < 0 else time.monotonic() + timeout / 1000
        while True:
            self._check()
            before = self._room_count
            if self._writable():
                return True
            try:
                self._wait_room(before, deadline, None)
            except Again:
                return False

    def _wait_room(self, before: int, deadline: float, stream: Any) -> None:
        """Sleeps until a sender should look again. Raises Again, Closed."""
        started = time.monotonic_ns()
        with self._room:
            while self._room_count == before and not self.closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._room.wait(None if left == math.inf else left)
            timed_out = self._room_count == before
        spent = time.monotonic_ns() - started
        self.blocked_ns += spent
        for one in self._senders if stream is None else (stream,):
            one.blocked_ns += spent
        self._check()
        if timed_out:
            raise Again("no peer could take the message in time", hint="is a peer connected, and does it read?")

    def _has_room(self, stream: Any) -> None:
        with self._lock:
            self._full.discard(stream)
            self._wake_senders()

    def _wake_senders(self) -> None:
        self._room_count += 1
        self._room.notify_all()

    # -- own subscriptions

    def _filter_add(self, prefix: bytes) -> None:
        with self._lock:
            self._filters[prefix] = self._filters.get(prefix, 0) + 1
            self._filter = tuple(self._filters)

    def _filter_remove(self, prefix: bytes) -> bool:
        with self._lock:
            count = self._filters.get(prefix, 0)
            if count > 1:
                self._filters[prefix] = count - 1
            elif count:
                del self._filters[prefix]
                self._filter = tuple(self._filters)
            return count > 0

    def _admits(self, frame: Frame) -> bool:
        topic = frame.topic
        return (frame.bytes if topic is None else topic).startswith(self._filter)

    # -- receiving

    def _recv_message(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Frame]]:
        self._check()
        deadline = math.inf if timeout < 0 else time.monotonic() + timeout / 1000 if timeout else 0.0
        with self._exclusive(deadline):
            found, self._unread = self._unread, None
            if found is None:
                found = self._find(deadline, sink)
                if found is None:
                    raise Again("nothing arrived in time")
            stream, frames, placed = found
            if sink is not None:
                try:
                    place(frames, sink, placed)
                except BaseException:
                    for index in placed:
                        frames[index].data = copied(frames[index].data, self._pool)
                    self._unread = (stream, frames, set())
                    raise
            self.messages_received += 1
            self.bytes_received += sum(map(len, frames))
            return stream, frames

    @contextmanager
    def _exclusive(self, deadline: float) -> Iterator[None]:
        left = -1.0 if deadline == math.inf else max(0.0, deadline - time.monotonic())
        if not self._receiving.acquire(timeout=left):
            raise Again("another thread is receiving")
        try:
            self._check()
            yield
        finally:
            self._leave_receiving()

    def _leave_receiving(self) -> None:
        if self._asked and not self.closed:
            with self._lock:
                self._signal()
        self._receiving.release()
        if self.closed:
            self._free()

    def _find(self, deadline: float, sink: Sink | None) -> tuple[Any, list[Frame], set[int]] | None:
        """The next message that we want, None at the deadline. Control frames go to their hook."""
        while True:
            found = self._next_decoded(sink)
            if found is None:
                found = self._await_message(deadline, sink)
                if found is None:
                    return None
            stream, frames, placed = found
            if frames[0].flags & CONTROL:
                self._on_control(stream, frames[0])
                self._check()
            elif self._receive_mode == FILTERED and not self._admits(frames[0]):
                self.filtered += 1
            else:
                return found

    def _next_decoded(self, sink: Sink | None) -> tuple[Any, list[Frame], set[int]] | None:
        """A message that needs no waiting, of the stream whose turn it is."""
        turns = self._turns
        self._since_poll += 1
        if self._since_poll >= TURNS and len(self._attached) > 1:
            self._poll(0, None)
        while turns:
            try:
                stream = turns.popleft()
            except IndexError:
                break
            found = self._take_from(stream)
            if found is not None:
                return found
        return None

    def _take_from(self, stream: Any) -> tuple[Any, list[Frame], set[int]] | None:
        try:
            if isinstance(stream, Stream):
                with stream._receiving:
                    taken = stream._next()
                    again = bool(stream._decoder.messages) or stream._failure is not None
            else:
                frames = stream.receive()
                taken = None if frames is None else (frames, set())
                again = taken is not None
        except (Broken, ProtocolError) as error:
            self._lose(stream, error)
            self._check()
            return None
        if again:
            self._turns.append(stream)
        return None if taken is None else (stream, *taken)

    def _await_message(self, deadline: float, sink: Sink | None) -> tuple[Any, list[Frame], set[int]] | None:
        """Reads, and waits for descriptors, until a message is decoded."""
        started = time.monotonic_ns()
        spin_until = started + self.spin_us * 1000 if self.spin_us else 0
        half_read: Stream | None = None  # reads into a buffer of the sink's
        try:
            while True:
                timeout = self._poll_timeout(deadline, spin_until)
                half_read = self._poll(timeout, sink, half_read)
                found = self._next_decoded(sink)
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
                half_read._decoder.unplace()

    @staticmethod
    def _poll_timeout(deadline: float, spin_until: int) -> float | None:
        if spin_until and time.monotonic_ns() < spin_until:
            return 0
        if deadline == math.inf:
            return None
        return max(0.0, deadline - time.monotonic()) if deadline else 0

    def _poll(self, timeout: float | None, sink: Sink | None, half_read: Stream | None = None) -> Stream | None:
        """Reads what descriptors have; streams with messages get a turn.

        With a sink, one stream at a time may read into the sink's buffers: it is returned while it
        has not finished. When another one has something to read, it gives them up.
        """
        self._since_poll = 0
        for fd, _ in self._epoll.poll(timeout):
            if fd == self._event:
                with self._lock:
                    self._signalled = False
                    os.eventfd_read(fd)
                continue
            stream = self._receivers.get(fd)
            if stream is None:
                continue
            if half_read is not None and half_read is not stream:
                half_read._decoder.unplace()
                half_read = None
            with stream._receiving:
                # Behind a message that is ready nobody asks the sink: it is asked for one message.
                stream._pull(None if self._turns else sink)
            if stream._decoder.messages or stream._failure is not None:
                if stream not in self._turns:
                    self._turns.append(stream)
                half_read = None
            elif stream._decoder.placed:
                half_read = stream
        return half_read

    def _has_message(self, stream: Any) -> None:
        """From any thread: the stream may have something decoded."""
        with self._lock:
            if stream not in self._turns:
                self._turns.append(stream)
            self._wake()

    # -- the descriptor

    def _wake(self) -> None:
        if not self._signalled and not self.closed:
            self._signalled = True
            os.eventfd_write(self._event, 1)

    def _signal(self) -> None:
        """The event says whether something is decoded. Under `_lock`."""
        if self._turns or self._unread is not None:
            self._wake()
        elif self._signalled:
            self._signalled = False
            os.eventfd_read(self._event)

    def _notify(self) -> None:
        with self._lock:
            self._wake_senders()
            self._wake()

    # -- the end

    def _check(self) -> None:
        if self._flusher.generation != fork.generation:
            raise fork.refuse()
        if self.closed:
            raise Closed("the socket is closed")

    def _close_core(self) -> None:
        if self._flusher.generation != fork.generation:
            self.closed = True
            return  # the descriptors are shared with the parent
        with self._lock:
            if self.closed:
                return
            self._wake()
            self.closed = True
            self._room_count += 1
            self._room.notify_all()
        self._free()

    def _free(self) -> None:
        """Frees the descriptors unless a receiver is inside; then it does so on its way out."""
        if self._receiving.acquire(blocking=False):
            try:
                with self._lock:
                    if not self._epoll.closed:
                        for stream in list(self._attached):
                            self._remove(stream)
                        self._epoll.close()
                        os.close(self._event)
            finally:
                self._receiving.release()

    # -- hooks

    def _send_general(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
        """Every send that is not plain."""

    def _recv_general(self, flags: int, copy: bool, track: bool) -> Any:
        """Every recv when the fast one is switched off."""

    def _deliver(self, stream: Any, frames: list[Frame], flags: int, copy: bool) -> Any:
        """A message that is not one plain frame; what this returns, recv returns."""

    def _on_control(self, stream: Any, frame: Frame) -> None:
        """A control frame arrived."""

    def _on_lost(self, stream: Any, error: BaseException) -> None:
        """The stream ended or failed; it is detached and not closed."""


class _Shared:
    """Calls `released` once, when every stream of a fan-out has let the memory go."""

    def __init__(self, released: Released) -> None:
        self._released = released
        self._left = 1
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def share(self) -> Callable[[BaseException | None], None]:
        with self._lock:
            self._left += 1
        return self.done

    def done(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            last = not self._left
        if last:
            self._released(self._error)
