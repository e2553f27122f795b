"""Receiving that the core does not do alone: several parts, topics, envelopes, replies."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from transfer.constants import DONTWAIT
from transfer.json_text import decoder
from transfer.patterns import Replier, Requester
from transfer.patterns.base import Pattern
from transfer.sockets.compression import decompressed
from transfer.sockets.connections import Connections
from transfer.sockets.lockstep import RECEIVING, Turns
from transfer.transports.arguments import decoder_of, flags_of
from transfer.transports.core.copies import pour, room_in
from transfer.transports.core.wire import Flag
from transfer.transports.errors import Again, ProtocolError, TransferError
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.sockets.context import Context
    from transfer.transports.core.contract import Frame, OutFrame, Sink

T = TypeVar("T")

#: milliseconds after which a REQ checks whether the peer that has its request is still connected
_LOOK = 50
#: to keep a message although handlers of signals raise again and again meanwhile; behind a call one may raise
_TRIES = range(100)


class UnreadParts(deque[Any]):
    """Parts that `recv` has not returned to one thread yet; freed with that thread."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # compared by identity


_NONE_LEFT = UnreadParts()


class Receiving(Turns):
    """The receiving half of a socket. A plain message of one part never passes through it."""

    if TYPE_CHECKING:

        @property
        def largest_message(self) -> int: ...

        _links: Connections
        _pattern: Pattern
        _requester: Requester | None
        _values: dict[str, Any]
        _inherited: bool
        context: Context
        _ending: threading.Lock
        #: messages that were read and will be received again: (stream, frames, the pattern's state)
        _returned: deque[tuple[Any, list[Any], Any]]
        #: state of this thread. `by`: the stream of its newest message, if it passed through
        #: `_recv_frames`; `given`: that message of the core, until its call ends; `rest`: the remaining parts
        #: of a message that it receives part by part
        _came: threading.local
        #: the `rest` of every live thread
        _rests: weakref.WeakSet[UnreadParts]
        #: held while deciding which calls the core may do alone
        _deciding: threading.RLock
        _lockstep: bool
        _long_wait: int
        _frame: type[Frame]

        def _check_usable(self) -> None: ...
        def _send_outframes(
            self, frames: list[OutFrame], flags: int, track: bool, copy: bool | None
        ) -> Any: ...
        def _ways_changed(self) -> None: ...

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[Any]:
        """Receives all parts of one message.

        Args:
            flags: DONTWAIT, or 0.
            copy: True returns bytes, False frames.
            track: ignored; present for pyzmq.

        Raises:
            Again, Closed, StateError, NotSupported: as in `recv`.
        """
        rest = self._rest
        if not rest:
            return self._sound(self._recv_whole, flags, copy)
        self._check_open()
        parts = list(rest)
        try:
            rest.clear()
            self._ways_changed()
            return self._converted(parts, copy)
        except BaseException:  # a signal handler raised: the parts are still unread
            if not rest:
                rest.extend(parts)
            self._ways_changed()
            raise

    def _recv_whole(self, flags: int, copy: bool) -> list[Any]:
        return self._converted(self._parts(self._recv_frames(flags)), copy)

    def _converted(self, parts: list[Any], copy: bool) -> list[Any]:
        if not copy:
            return self._as_frames(parts)
        return [part if type(part) is bytes else part.bytes for part in parts]

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Receives one part as text. Raises as `recv`, and UnicodeDecodeError."""
        decoder_of(encoding)
        return self._made(lambda data: str(data, encoding), flags)

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Receives one part of JSON; keyword arguments go to `json.loads`. Raises as `recv`, ValueError."""
        return self._made(decoder(kwargs), flags)

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Receives one part into memory of the caller.

        Args:
            buffer: writable contiguous memory. A longer message is cut off, as in pyzmq.
            nbytes: how many bytes of the buffer to use; 0 uses all.
            flags: DONTWAIT, or 0.

        Returns:
            The length of the received part, in bytes.

        Raises:
            UsageError: the buffer is not writable or not contiguous; nothing is received.
            Again, Closed, StateError, NotSupported: as in `recv`.
        """
        target = room_in(buffer, nbytes)
        return self._made(lambda frame: self._pour(frame, target), flags, copy=False)

    def _made(self, make: Callable[[Any], T], flags: int, copy: bool = True) -> T:
        """Converts one part. If a signal handler raises, the part is received again."""
        [part] = map(self.recv, (flags,), (copy,))  # no signal handler runs before the assignment
        try:
            return make(part)
        except ValueError:  # the part is no text, or no JSON
            raise
        except BaseException:
            with self._deciding:
                self._leave_rest([])
                self._rest.appendleft(part)
                self._ways_changed()
            raise

    @staticmethod
    def _pour(frame: Any, target: memoryview) -> int:
        view = frame.buffer.cast("B")
        length = min(target.nbytes, view.nbytes)
        pour(target[:length], view[:length])
        return int(view.nbytes)

    @property
    def _newest_stream(self) -> Any:
        """The stream of the newest message that this thread received by `recv_frames`; None: of none."""
        return getattr(self._came, "by", None)

    @property
    def _rest(self) -> UnreadParts:
        """The remaining parts of the message that this thread receives part by part."""
        return getattr(self._came, "rest", _NONE_LEFT)

    def _leave_rest(self, parts: list[Any]) -> None:
        """Keeps parts for the next calls of this thread; other threads receive other messages."""
        with self._deciding:
            rest = self._rest
            if rest is _NONE_LEFT:
                rest = self._came.rest = UnreadParts()
                self._rests.add(rest)
            rest.extend(parts)
            self._general_recv = True

    @property
    def rcvmore(self) -> bool:
        """Whether the message of this thread's last `recv` has parts left."""
        return bool(self._rest)

    def _recv_general(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        rest = self._rest
        if not rest:
            return self._sound(self._recv_first, flags, copy)
        self._check_open()
        left, part = len(rest), rest[0]
        try:
            rest.popleft()
            if not rest:
                self._ways_changed()
            return self._one(part, copy)
        except BaseException:  # as in `recv_multipart`
            if len(rest) < left:
                rest.appendleft(part)
            self._ways_changed()
            raise

    def _recv_first(self, flags: int, copy: bool) -> Any:
        return self._first(self._parts(self._recv_frames(flags)), copy)

    def _deliver(self, stream: Any, frames: Sequence[Any], flags: int, copy: bool) -> Any:
        self._links.state.record_position(stream, frames)
        try:
            return self._first(self._parts(frames), copy)
        except ProtocolError as error:
            self._refuse(stream, error)
            return NotImplemented

    def _admitted(self, stream: Any, frames: list[Frame]) -> Any:
        """Lets the pattern decide whether a REQ or REP takes this message. Called by the core."""
        admitted = self._pattern.admit(stream, frames)
        if admitted is not None and self._requester is not None:
            self._replied(self._requester, stream)
        return admitted

    def _sound(self, receive: Callable[..., T], *arguments: Any) -> T:
        """Returns the next valid message. An error found after reading (compressed data, dicts) ends the
        connection as an invalid frame does. If a signal handler raises, the next receive has the message."""
        came = self._came
        came.given = None
        while True:
            try:
                result = receive(*arguments)
            except ProtocolError as error:
                stream = getattr(came, "by", None)
                if stream is None:
                    raise
                self._refuse(stream, error)
                continue
            except BaseException as error:  # of a signal's handler, if it is none of ours
                given, came.given = [came.given], None
                for _ in _TRIES:  # more handlers may raise meanwhile
                    try:
                        if given == [None] or isinstance(error, TransferError):
                            break
                        self._take_back(given)
                        break
                    except BaseException:  # noqa: BLE001 - the first error is raised
                        if not given:
                            break
                raise
            # No call from here to the return, so no signal handler runs.
            came.given = None
            return result

    def _take(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Any]]:
        """Takes the core's next message. `map` stores it before a signal handler can run."""
        [self._came.given] = map(self._recv_message, (timeout,), (sink,))
        message: tuple[Any, list[Any]] = self._came.given
        if self._links.state.positions is not None:
            self._links.state.record_position(*message)
        return message

    def _take_back(self, given: list[tuple[Any, list[Any]]]) -> None:
        """A call was interrupted between its message and its caller, which has not got it: the next receive
        gives it. The core calls it too. Again until `given` is empty."""
        uninterrupted(partial(self._take_back_once, given, self._rest), None)

    def _take_back_once(self, given: list[tuple[Any, list[Any]]], rest: UnreadParts) -> None:
        with self._deciding:
            if given:
                stream, frames = given[0]
                self._pattern.withdraw(stream, frames)
                rest.clear()
                self._give_again(stream, frames)
                given.clear()
                self._ways_changed()

    def _refuse(self, stream: Any, error: ProtocolError) -> None:
        """Ends the connection that sent an invalid message. Raises the error for a REQ, which has no other
        reply to wait for."""
        self._came.by = self._came.given = None
        self._links.loss.send_refusal(stream, error, taken=True)
        self._links.loss.lost(stream, error)
        if isinstance(self._pattern, Replier):
            self._pattern.gone(stream)
        elif self._requester is not None:
            raise error

    def _recv_frames(self, flags: int = 0, sink: Sink | None = None, wait: int | None = None) -> list[Any]:
        """Receives one whole message by the pattern: frames as they arrived, after `bytes` that the pattern
        adds (ROUTER). LZ4 frames are still compressed. wait: ms, instead of receive_timeout."""
        waits = flags == 0 or not flags_of(flags) & DONTWAIT
        timeout = 0 if not waits else self.receive_timeout if wait is None else wait
        came = self._came
        came.by = None
        if not self._general_recv:  # the core may do it alone, as it does a plain receive
            came.by, frames = self._take(timeout, sink)
            return frames
        self._check_open()
        pattern = self._pattern
        if self._returned:
            again = self._take_returned(timeout)
            if again is not None:
                return again
        if not pattern.ordered:
            pattern.expect()
            came.by, frames = self._take(timeout, sink)
            return self._latest(frames) if self._values["conflate"] else frames
        if self._requester is not None:
            return self._recv_reply(self._requester, timeout, sink)
        if self._turn is None:
            return self._recv_request(timeout, sink)
        # One thread at a time: a second request would replace this one.
        timeout = self._enter(RECEIVING, timeout)
        try:
            return self._recv_request(timeout, sink)
        finally:
            try:
                self._turn.leave(RECEIVING)
            except BaseException:  # of a signal handler, maybe before `leave` ran
                self._turn.leave(RECEIVING)
                raise

    def _recv_request(self, timeout: int, sink: Sink | None) -> list[Any]:
        pattern = self._pattern
        pattern.expect()
        deadline = time.monotonic() + timeout / 1000 if timeout > 0 else 0.0
        while True:
            stream, frames = self._take(timeout, sink)
            admitted = pattern.admit(stream, frames)
            if admitted is not None:
                self._came.by = stream
                return list(admitted)
            if timeout > 0:
                timeout = max(0, int((deadline - time.monotonic()) * 1000))

    def _take_returned(self, timeout: int) -> list[Any] | None:
        """Takes the oldest message that was put back. None: another thread took it, or it is obsolete."""
        pattern = self._pattern
        in_turn = isinstance(pattern, Replier)
        if in_turn:
            self._enter(RECEIVING, timeout)
        try:
            if in_turn:
                pattern.expect()  # another thread may have received a request
            try:
                stream, frames, state = self._returned.popleft()
            except IndexError:
                return None
            self._ways_changed()
            if not pattern.readmit(frames, state):
                return None
        finally:
            if in_turn:
                self._leave(RECEIVING)
        self._came.by = stream
        return frames

    def _check_open(self) -> None:
        """Checks for a closed socket first: the error is Closed, whatever the pattern's state is."""
        if self._inherited or self._ending.locked():
            self._check_usable()

    def _unreceive(self, frames: list[Any]) -> None:
        """Puts the last message back: it is of another kind than the caller wants. The next call receives it.

        The core does this for messages that a sink refuses. But sinks do not see compressed frames, and the
        pattern puts an envelope before a tensor.
        """
        kept = [self._owned(frame) for frame in frames]
        self._came.given = None
        self._returned.append((self._came.by, kept, self._pattern.unadmit(frames)))
        self._ways_changed()
        self._notify()  # pollers check again

    def _owned(self, frame: Any) -> Any:
        """Copies the frame's data if a sink placed it in memory of the caller."""
        if type(frame) is bytes or isinstance(frame.data, bytes | self.context.core.Lease):
            return frame
        lease = self.context.pool.lease(len(frame.data))
        pour(memoryview(lease), frame.buffer.cast("B"))
        return self._frame(
            lease,
            flags=frame.flags,
            sequence=frame.sequence,
            socket_type=frame.socket_type,
            topic=frame.topic,
            meta=frame.meta,
        )

    def _no_message(self) -> Again:
        """Makes the error of a receive after its timeout. Called by the core."""
        return self._links.no_peer.explained(Again("no message came in time"))

    def _recv_reply(self, pattern: Requester, timeout: int, sink: Sink | None) -> list[Any]:
        """Waits in slices, so that the wait ends when the peer is lost."""
        if pattern.failure is None:
            pattern.expect()
        else:
            timeout = 0  # the reply may have arrived before the loss
        deadline = time.monotonic() + timeout / 1000 if timeout >= 0 else None
        due = time.monotonic() + self._long_wait / 1000
        while True:
            slice_ms = _LOOK
            if deadline is not None:
                slice_ms = min(_LOOK, max(0, int((deadline - time.monotonic()) * 1000)))
            try:
                stream, frames = self._take(slice_ms, sink)
            except Again:
                pattern.expect()  # raises the error of a lost peer
                if timeout == 0:
                    raise
                if deadline is not None and time.monotonic() >= deadline:
                    raise self._no_reply(pattern, timeout) from None
                if time.monotonic() >= due:
                    self._links.no_peer.long_wait()
                continue
            admitted = pattern.admit(stream, frames)
            if admitted is not None:
                self._came.by = stream
                self._replied(pattern, stream)
                return list(admitted)

    def _replied(self, pattern: Requester, stream: Any) -> None:
        """Records that the open request has its reply."""
        peer = stream.peer
        if peer is not None:
            peer.answered()
        if not self._lockstep:
            self._ways_changed()
        pattern.turn.answered(time.monotonic_ns())

    def _no_reply(self, pattern: Requester, timeout: int) -> Again:
        if self._links.no_peer.alone:
            return self._links.no_peer.error(f"no reply within {timeout} ms: ")
        peer = self._links.state.peers.get(pattern.peer)
        where = "no peer has taken the request" if peer is None else f"{peer.address or peer.endpoint} has it"
        return Again(
            f"no reply within {timeout} ms: {where}",
            hint="receive again to wait on, or set req_relaxed = True and send anew",
        )

    def _latest(self, frames: list[Any]) -> list[Any]:
        """Returns the newest available message (conflate); older ones are dropped and counted."""
        while True:
            try:
                self._came.by, newer = self._take(0)
            except Again:
                return frames
            self._pattern.drop("conflated")
            frames = newer

    def _parts(self, frames: Sequence[Any]) -> list[Any]:
        """Returns the message's parts: the topic as the first one, and everything decompressed."""
        first = frames[0]
        left = self.largest_message
        if len(frames) == 1 and type(first) is not bytes and first.topic is None:
            return [decompressed(first, self._frame, left)]
        parts: list[Any] = []
        for frame in frames:
            if type(frame) is bytes:
                parts.append(frame)
                continue
            if frame.topic is not None:
                parts.append(frame.topic)
            whole = decompressed(frame, self._frame, left)
            parts.append(whole)
            left -= len(whole)  # the limit applies to the whole decompressed message
        return parts

    def _first(self, parts: list[Any], copy: bool) -> Any:
        if len(parts) > 1:
            self._leave_rest(parts[1:])
        return self._one(parts[0], copy)

    def _one(self, part: Any, copy: bool) -> Any:
        if copy:
            return part if type(part) is bytes else part.bytes
        if type(part) is bytes:
            return self._frame(part, flags=Flag.MORE if self._rest else 0)
        return part

    def _as_frames(self, parts: list[Any]) -> list[Any]:
        last = len(parts) - 1
        return [
            self._frame(part, flags=Flag.MORE if i < last else 0) if type(part) is bytes else part
            for i, part in enumerate(parts)
        ]
