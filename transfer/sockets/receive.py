"""Receiving what the core does not receive alone: several parts, topics, envelopes, replies."""

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

#: milliseconds after which a REQ looks whether the peer that has its request is still there
_LOOK = 50
#: to keep a message although handlers of signals raise again and again meanwhile; behind a call one may raise
_TRIES = range(100)


class Parts(deque[Any]):
    """Parts that `recv` has not handed out to one thread; they end with that thread."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # told apart by who has them


_NONE_LEFT = Parts()


class Receiving(Turns):
    """The receiving half of a socket. The plain message of one part never comes here."""

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
        #: messages that were read and are to be received again: (stream, frames, the pattern's state)
        _returned: deque[tuple[Any, list[Any], Any]]
        #: of this thread. `by`: the stream of its newest message, if that came through
        #: `_recv_frames`; `given`: that message of the core, until its call ends; `rest`: what is left of a
        #: message that it receives part by part
        _came: threading.local
        #: the `rest` of every thread that still is
        _rests: weakref.WeakSet[Parts]
        #: while it is decided which calls the core may do alone
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
        """Receives all parts of a message: bytes, or frames if not `copy`."""
        rest = self._rest
        if not rest:
            return self._sound(self._recv_whole, flags, copy)
        self._check_open()
        parts = list(rest)
        try:
            rest.clear()
            self._ways_changed()
            return self._as_asked(parts, copy)
        except BaseException:  # a signal's handler raised: the parts are still unread
            if not rest:
                rest.extend(parts)
            self._ways_changed()
            raise

    def _recv_whole(self, flags: int, copy: bool) -> list[Any]:
        return self._as_asked(self._parts(self._recv_frames(flags)), copy)

    def _as_asked(self, parts: list[Any], copy: bool) -> list[Any]:
        if not copy:
            return self._as_frames(parts)
        return [part if type(part) is bytes else part.bytes for part in parts]

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Receives one part as text."""
        decoder_of(encoding)
        return self._made(lambda data: str(data, encoding), flags)

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Receives one part of JSON; keyword arguments go to `json.loads`."""
        return self._made(decoder(kwargs), flags)

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Receives one part into memory of the caller; returns its length in bytes.

        What does not fit is cut off, as in pyzmq. Raises UsageError before it receives, if the memory
        cannot be written to in one piece.
        """
        target = room_in(buffer, nbytes)
        return self._made(lambda frame: self._pour(frame, target), flags, copy=False)

    def _made(self, make: Callable[[Any], T], flags: int, copy: bool = True) -> T:
        """What is made of one part. Where a signal's handler raises, the part is received again."""
        [part] = map(self.recv, (flags,), (copy,))  # no handler runs between the part and its name
        try:
            return make(part)
        except ValueError:  # it makes no text, or no JSON
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
    def newest_stream(self) -> Any:
        """The stream of the newest message that this thread received by `recv_frames`; None: of none."""
        return getattr(self._came, "by", None)

    @property
    def _rest(self) -> Parts:
        """What is left of the message that this thread receives part by part."""
        return getattr(self._came, "rest", _NONE_LEFT)

    def _leave_rest(self, parts: list[Any]) -> None:
        """For the next calls of this thread; others receive other messages."""
        with self._deciding:
            rest = self._rest
            if rest is _NONE_LEFT:
                rest = self._came.rest = Parts()
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
        self._links.record_position(stream, frames)
        try:
            return self._first(self._parts(frames), copy)
        except ProtocolError as error:
            self._refuse(stream, error)
            return NotImplemented

    def _admitted(self, stream: Any, frames: list[Frame]) -> Any:
        """Whether a REQ or REP takes this message, and how: the core leaves it to the pattern."""
        admitted = self._pattern.admit(stream, frames)
        if admitted is not None and self._requester is not None:
            self._replied(self._requester, stream)
        return admitted

    def _sound(self, receive: Callable[..., T], *arguments: Any) -> T:
        """The next message that makes sense. What shows only after it was read (compressed data, dicts)
        ends its connection as any bad frame does. If a signal's handler raises, the next receive has it."""
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
            # No call between here and the caller, so no handler runs.
            came.given = None
            return result

    def _take(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Any]]:
        """The core's next message. `map` notes it before any handler can run."""
        [self._came.given] = map(self._recv_message, (timeout,), (sink,))
        message: tuple[Any, list[Any]] = self._came.given
        if self._links.positions is not None:
            self._links.record_position(*message)
        return message

    def _take_back(self, given: list[tuple[Any, list[Any]]]) -> None:
        """A call was interrupted between its message and its caller, which has not got it: the next receive
        gives it. The core calls it too. Again until `given` is empty."""
        uninterrupted(partial(self._take_back_once, given, self._rest), None)

    def _take_back_once(self, given: list[tuple[Any, list[Any]]], rest: Parts) -> None:
        with self._deciding:
            if given:
                stream, frames = given[0]
                self._pattern.withdraw(stream, frames)
                rest.clear()
                self._give_again(stream, frames)
                given.clear()
                self._ways_changed()

    def _refuse(self, stream: Any, error: ProtocolError) -> None:
        """Ends the connection by which a bad message came. A REQ has no other reply to wait for:
        raises the error there."""
        self._came.by = self._came.given = None
        self._links.send_refusal(stream, error, taken=True)
        self._links.lost(stream, error)
        if isinstance(self._pattern, Replier):
            self._pattern.gone(stream)
        elif self._requester is not None:
            raise error

    def _recv_frames(self, flags: int = 0, sink: Sink | None = None, wait: int | None = None) -> list[Any]:
        """One whole message by the pattern: frames as they arrived, and `bytes` before them that the pattern
        added (ROUTER). Frames with the LZ4 flag are still compressed. wait: ms, not receive_timeout."""
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
        # One thread at a time: another one's request would take the place of this one's.
        timeout = self._enter(RECEIVING, timeout)
        try:
            return self._recv_request(timeout, sink)
        finally:
            try:
                self._turn.leave(RECEIVING)
            except BaseException:  # of a signal's handler, maybe before it was left
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
        """The message that was put back first; None: another thread has it, or it is of no use now."""
        pattern = self._pattern
        in_turn = isinstance(pattern, Replier)
        if in_turn:
            self._enter(RECEIVING, timeout)
        try:
            if in_turn:
                pattern.expect()  # another thread may have received a request meanwhile
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
        """Before the pattern has its say: a closed socket is closed, whatever its turn or direction."""
        if self._inherited or self._ending.locked():
            self._check_usable()

    def _unreceive(self, frames: list[Any]) -> None:
        """What `_recv_frames` gave last is something else than was asked for: the next call receives it.

        The core does this for what a sink refuses, but compressed frames are shown to no sink, and
        an envelope is put before a tensor by the pattern.
        """
        kept = [self._owned(frame) for frame in frames]
        self._came.given = None
        self._returned.append((self._came.by, kept, self._pattern.unadmit(frames)))
        self._ways_changed()
        self._notify()  # whoever polls looks again

    def _owned(self, frame: Any) -> Any:
        """The frame with data of its own: a sink may have had it read into memory of the caller's."""
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
        """The error of a receive whose time is over: the core asks."""
        return self._links.explained(Again("no message came in time"))

    def _recv_reply(self, pattern: Requester, timeout: int, sink: Sink | None) -> list[Any]:
        """Waits in slices, so that the death of the peer ends the wait."""
        if pattern.failure is None:
            pattern.expect()
        else:
            timeout = 0  # the reply may have come before the end
        deadline = time.monotonic() + timeout / 1000 if timeout >= 0 else None
        due = time.monotonic() + self._long_wait / 1000
        while True:
            slice_ms = _LOOK
            if deadline is not None:
                slice_ms = min(_LOOK, max(0, int((deadline - time.monotonic()) * 1000)))
            try:
                stream, frames = self._take(slice_ms, sink)
            except Again:
                pattern.expect()  # raises what the peer's death left
                if timeout == 0:
                    raise
                if deadline is not None and time.monotonic() >= deadline:
                    raise self._no_reply(pattern, timeout) from None
                if time.monotonic() >= due:
                    self._links.long_wait()
                continue
            admitted = pattern.admit(stream, frames)
            if admitted is not None:
                self._came.by = stream
                self._replied(pattern, stream)
                return list(admitted)

    def _replied(self, pattern: Requester, stream: Any) -> None:
        """The open request was answered."""
        peer = stream.peer
        if peer is not None:
            peer.answered()
        if not self._lockstep:
            self._ways_changed()
        pattern.turn.answered(time.monotonic_ns())

    def _no_reply(self, pattern: Requester, timeout: int) -> Again:
        if self._links.alone:
            return self._links.nobody(f"no reply within {timeout} ms: ")
        peer = self._links.peers.get(pattern.peer)
        where = "nobody has taken the request" if peer is None else f"{peer.address or peer.endpoint} has it"
        return Again(
            f"no reply within {timeout} ms: {where}",
            hint="receive again to wait on, or set req_relaxed = True and send anew",
        )

    def _latest(self, frames: list[Any]) -> list[Any]:
        """Conflate: the newest message there is; those before it are dropped and counted."""
        while True:
            try:
                self._came.by, newer = self._take(0)
            except Again:
                return frames
            self._pattern.drop("conflated")
            frames = newer

    def _parts(self, frames: Sequence[Any]) -> list[Any]:
        """A topic as the first part, nothing compressed."""
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
            left -= len(whole)  # the limit is for all that a message unfolds to
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
