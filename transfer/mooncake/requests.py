"""A REQ's requests: many may be open at once; each gets its reply, whichever thread reads it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transfer.constants import DONTWAIT, POLLOUT
from transfer.mooncake.channel import Channel
from transfer.mooncake.message import IncomingMessage
from transfer.mooncake.pool import RequestPool
from transfer.patterns import PipelinedRequester
from transfer.transports.errors import Again, Broken, Closed, TransferError, unraised

#: seconds between two checks for lost peers, and most messages that a loop reads at a time
_LOOK, _TURN = 0.05, 256
_LOOK_MS = int(1000 * _LOOK)
#: seconds that a request waits for room before it looks for replies
_SOON = 0.01

#: sends one message; its argument is the flags
Send = Callable[[int], object]


class Patience(NamedTuple):
    """How long a request waits. seconds: negative without limit. whole: from its call on, including the wait
    for room; else for the reply alone, and the send has the socket's timeout."""

    seconds: float
    whole: bool = True

    def deadline(self) -> float:
        return math.inf if self.seconds < 0 else time.monotonic() + self.seconds


class Request:
    """An open request. When it is `done`, it has its reply or an error.

    on_done: called then, in the thread that finds out; None: a thread waits for it. gone: whether the reply
    is not wanted any more. wake: called when it is the next to be sent, and there is room.
    """

    __slots__ = (
        "asked",
        "deadline",
        "done",
        "error",
        "gone",
        "number",
        "on_done",
        "patience",
        "reply",
        "wake",
    )  # fmt: skip

    def __init__(self, patience: Patience, on_done: Callable[[Request], object] | None = None) -> None:
        self.patience = patience
        self.gone: Callable[[], bool] | None = None
        self.wake: Callable[[], object] | None = None
        self.deadline = patience.deadline() if patience.whole else math.inf
        self.on_done = on_done
        self.done = False
        self.number = self.asked = 0
        self.reply: IncomingMessage | None = None
        self.error: TransferError | None = None

    def is_over(self) -> bool:
        return self.done or self.deadline <= time.monotonic() or (self.gone is not None and self.gone())

    def outcome(self) -> IncomingMessage:
        """Returns the reply. Raises its error instead."""
        if self.error is not None:
            raise unraised(self.error)
        assert self.reply is not None
        return self.reply


class PendingRequests:
    """Sends requests and matches replies, for threads and event loops at the same time. Thread-safe.

    most: requests open at one time for each peer; 0: without limit. One of the waiting threads reads for all;
    an event loop reads when no thread does.
    """

    def __init__(self, channel: Channel, most: int) -> None:
        pattern = channel.socket._pattern
        assert isinstance(pattern, PipelinedRequester)
        pattern.current = threading.local()
        self._channel, self._socket, self._pattern = channel, channel.socket, pattern
        self._pool = RequestPool(pattern, most)
        self._open: dict[int, Request] = {}
        self._reading = threading.Lock()
        #: threads that wait while another one reads: what wakes each, and its condition
        self._waiting: dict[threading.Event, Callable[[], bool]] = {}
        #: finished requests whose reply goes to a callback or to `recv`
        self._claimed: deque[Request] = deque()
        self._claim = self._claimed.append

    # -- sending -------------------------------------------------------------------------------

    def ask(self, send: Send, patience: Patience) -> IncomingMessage:
        """Sends a request and waits for its reply. Raises Again, Broken, Closed, and as `send`."""
        request = Request(patience)
        self._begin(request, send)
        return self._reply_to(request)

    def ask_plainly(self, data: bytes, patience: Patience) -> Any:
        """Sends bytes and returns the reply: bytes, a tensor, a dict of them. Raises as `ask`.

        It handles the most frequent case in one call: one peer, with room, and no other reading thread.
        """
        pattern, socket, reading = self._pattern, self._socket, self._reading
        if len(pattern.peers) != 1 or self._open or self._pool.waits or socket._in_python:
            return self.ask(lambda flags: socket.send(data, flags), patience).plain
        seconds, number, request = patience.seconds, 0, None
        [leads] = map(reading.acquire, (False,))  # no signal handler runs before `try`
        if not leads:
            return self.ask(lambda flags: socket.send(data, flags), patience).plain
        try:
            wait = math.ceil(seconds * 1000) if 0 <= seconds < _LOOK else _LOOK_MS
            asked, number = time.monotonic_ns(), pattern.begin()
            peer = socket._send_frames(((0, number, None, None, data),), 0)
            pattern.has(peer, number)
            try:
                message = socket._recv_message(wait)
            except Again:
                message = None
            else:
                stream, frames = message
                frame = frames[0]
                plain = len(frames) == 1 and not frame.flags and frame.topic is None
                if plain and frame.sequence == number and stream is peer and pattern.forget(number):
                    pattern.turn.requested_ns = asked
                    pattern.turn.answered(time.monotonic_ns())
                    return frame.bytes
            request = self._open[number] = Request(patience)
            request.number, request.asked = number, asked
            request.deadline = asked / 1e9 + seconds if seconds >= 0 else math.inf
            if message is not None:
                self._received(*message)
        except BaseException as error:
            pattern.forget(number)
            if not isinstance(error, Again):
                raise
        finally:
            reading.release()
            if self._waiting:
                self._wake()
        if request is None:  # there was no room
            return self.ask(lambda flags: socket.send(data, flags), patience).plain
        return self._reply_to(request).plain

    def try_to_begin(self, request: Request, send: Send, flags: int = DONTWAIT) -> None:
        """Sends it. Raises Again if there is no room for it, or too many are open."""
        number = self._pool.enter(request)
        if not number:
            self.end_over()
            number = self._pool.enter(request)
        if not number:
            raise Again(
                f"{len(self._pattern.open)} requests wait for their replies",
                hint="pool_size sets how many may be open with each peer",
            )
        try:
            request.number, request.asked = number, time.monotonic_ns()
            self._open[number] = request
            send(flags)
        except BaseException:
            self.give_up(request)
            raise
        if not request.patience.whole:
            request.deadline = request.patience.deadline()

    def begin(self, send: Send, patience: Patience) -> None:
        """Sends a request whose reply `claim` returns. Raises as `ask`."""
        self._begin(self.claimed(patience), send)

    def claimed(self, patience: Patience) -> Request:
        """Makes a request whose reply `claim` returns, without sending it."""
        return Request(patience, self._claim)

    def _begin(self, request: Request, send: Send) -> None:
        until = min(request.deadline, Patience(self._socket.send_timeout / 1000).deadline())
        try:
            while True:
                ready = self._until(lambda: self._may_begin(request), until)
                left = max(0.0, until - time.monotonic())
                if ready and left and not self._socket.poll(min(left, _SOON) * 1000, POLLOUT):
                    self.read_now()  # a peer that cannot send its replies reads no requests
                    continue
                try:
                    # There is room, so a large payload may take its time.
                    return self.try_to_begin(request, send, 0 if ready and left else DONTWAIT)
                except Again:
                    if not ready or time.monotonic() >= until:
                        raise
        finally:
            self._pool.leave(request)

    def _may_begin(self, request: Request) -> bool:
        if self._pool.may_enter(request):
            return True
        self.end_over()
        return self._pool.may_enter(request)

    def end_over(self) -> None:
        """Ends open requests whose replies are not wanted: they are cancelled or expired, or their loop is
        closed."""
        for request in list(self._open.values()):
            if request.is_over() and self.give_up(request):
                # `claim` raises Again if there is nothing yet.
                kind = Broken if request.on_done is self._claim else Again
                self._finish(request, error=kind("no reply arrived in time"))

    # -- receiving -----------------------------------------------------------------------------

    def claim(self, timeout: float) -> IncomingMessage:
        """Returns the next reply to a request of `begin`, in the order of arrival. Raises Again, Closed, and
        Broken for a failed request."""
        claimed = self._claimed
        if not claimed:
            if timeout:
                self._until(lambda: bool(claimed), Patience(timeout).deadline())
            else:
                self.read_now()
            self.end_over()
        if not claimed:
            raise Again("nothing arrived in time")
        return claimed.popleft().outcome()

    def give_up(self, request: Request) -> bool:
        """Closes a request; its reply would be dropped. False: it is done, or was given up."""
        self._pattern.forget(request.number)
        given_up = self._open.pop(request.number, None) is not None
        if given_up:
            self._room_is_there()
        return given_up

    def _room_is_there(self) -> None:
        if self._pool.waits:
            first = self._pool.first
            if isinstance(first, Request) and first.wake is not None:
                first.wake()
        if self._waiting:
            self._wake()

    def read_now(self) -> None:
        """Reads the available replies, for an event loop; does nothing while a thread reads."""
        [leads] = map(self._reading.acquire, (False,))  # no signal handler runs before `try`
        if not leads:
            return
        try:
            for _ in range(_TURN):
                message = self._next(0)
                if message is None:
                    break
                self._received(*message)
            self._end_failed()
        finally:
            self._reading.release()
            self._wake()

    def close(self) -> None:
        """Ends all waiting requests with Closed."""
        for request in list(self._open.values()):
            if self._open.pop(request.number, None) is not None:
                self._finish(request, error=Closed("the socket is closed"))
        self._wake()

    def _reply_to(self, request: Request) -> IncomingMessage:
        try:
            if not self._until(lambda: request.done, request.deadline) and self.give_up(request):
                raise self._no_reply(request.patience.seconds)
        except BaseException:
            self.give_up(request)
            raise
        return request.outcome()

    def _no_reply(self, seconds: float) -> Again:
        links = self._socket._links
        text = f"no reply within {seconds:g} s"
        return links.no_peer.error(f"{text}: ") if links.no_peer.has_no_peer else Again(text)

    def _until(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Waits until it is ready, and reads for all if no other thread does. False: the time is over."""
        while not ready():
            [leads] = map(self._reading.acquire, (False,))  # no signal handler runs before `try`
            if leads:
                try:
                    if not self._read(ready, deadline):
                        return ready()
                finally:
                    self._reading.release()
                    if self._waiting:
                        self._wake()
            elif not self._wait(ready, deadline):
                return ready()
        return True

    def _wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Waits while another thread reads. False: the time is over."""
        self._socket._check_open()
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        event = threading.Event()
        self._waiting[event] = ready
        try:
            if self._reading.locked() and not ready():
                event.wait(min(left, 1.0))
        finally:
            del self._waiting[event]
        return True

    def _wake(self) -> None:
        """Wakes the threads whose condition holds; one more continues reading, if no other does."""
        reads = self._reading.locked()
        for event, ready in list(self._waiting.items()):
            if not reads or ready():
                reads = reads or not ready()
                event.set()

    def _read(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Reads until it is ready. False: the time is over."""
        socket = self._socket
        due = time.monotonic() + socket._long_wait / 1000
        while not ready():
            now = time.monotonic()
            left = min(deadline - now, _LOOK)
            if left <= 0:
                return False
            message = self._next(left)
            if message is not None:
                self._received(*message)
            elif now >= due:
                socket._on_long_wait()
            if self._pattern.failed:
                self._end_failed()
        return True

    def _next(self, seconds: float) -> tuple[Any, Sequence[Any]] | None:
        """Returns the next message; None: nothing arrives in this time."""
        try:
            message: tuple[Any, Sequence[Any]] = self._socket._recv_message(math.ceil(seconds * 1000))
        except Again:
            return None
        return message

    def _received(self, stream: Any, frames: Sequence[Any]) -> None:
        number = frames[0].sequence
        admitted = self._pattern.admit(stream, frames)
        request = self._open.pop(number, None) if admitted is not None else None
        if request is None:
            return
        error = None
        try:
            request.reply = self._channel.understand(stream, frames)
            turn = self._pattern.turn
            turn.requested_ns = request.asked
            turn.answered(time.monotonic_ns())
        except TransferError as unreadable:
            error = self._channel.refused(stream, unreadable)
        self._finish(request, error)

    def _end_failed(self) -> None:
        """Ends requests whose peer was lost."""
        failed = self._pattern.failed
        while failed:
            number, cause = failed.popitem()
            request = self._open.pop(number, None)
            if request is not None:
                error = Broken("the peer disconnected before it replied to this request")
                error.__cause__ = cause
                self._finish(request, error)

    def _finish(self, request: Request, error: TransferError | None = None) -> None:
        request.error = error
        request.done = True
        if request.on_done is not None:
            request.on_done(request)
        self._room_is_there()
