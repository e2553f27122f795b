"""A REP's open requests: any number up to a limit, each with a separate reply."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from transfer.mooncake.channel import Channel, source_of
from transfer.mooncake.message import Message
from transfer.patterns import PipelinedReplier
from transfer.transports.errors import Again, Broken, TransferError
from transfer.transports.waiters import Waiters

logger = logging.getLogger("transfer.mooncake")


class Replies:
    """Receives requests, and sends each reply to its requester. Thread-safe; one thread at a time receives.

    most: requests that may be open at one time. patience: seconds after which a request without a reply is
    given up; negative: never.
    """

    def __init__(self, channel: Channel, most: int, patience: float) -> None:
        pattern = channel.socket._pattern
        assert isinstance(pattern, PipelinedReplier)
        pattern.current = threading.local()
        self._channel, self._socket, self._pattern = channel, channel.socket, pattern
        self._most = most
        self._patience = patience
        #: when each open request arrived
        self._came: dict[int, float] = {}
        self._changed = Waiters(threading.RLock())

    def receive(self, timeout: float) -> Message:
        """Returns the next request, once there is room for it; it becomes this thread's current one. Raises
        Again, Closed, and Broken when a request was given up."""
        if len(self._came) >= self._most:
            self._wait_for_room(timeout)
        stream, arrived = self._socket._recv_message(math.ceil(timeout * 1000))
        frames: Any = self._pattern.admit(stream, arrived)
        came = time.monotonic()
        until = came + timeout
        while frames is None:  # a message without envelope is dropped and counted
            left = math.ceil(1000 * max(0.0, until - came)) if timeout >= 0 else -1
            stream, arrived = self._socket._recv_message(left)
            frames = self._pattern.admit(stream, arrived)
            came = time.monotonic()
        number = self._pattern.current.number
        self._came[number] = came
        frame = frames[0]
        if len(frames) == 1 and not frame.flags and frame.topic is None:
            return {"source": source_of(stream), "data": frame.bytes, "topic": "", "request": number}
        try:
            message = self._channel.understand(stream, frames)
        except TransferError as error:
            self.give_up(number)
            raise self._channel.refused(stream, error) from None
        message.request = number
        return message

    def which(self, given: int | None) -> int:
        """Returns the request of a reply; 0: there is none. given: the number from the program; by default it
        is this thread's current request, or the only open one."""
        if given is None:
            given = getattr(self._pattern.current, "number", 0)
            if given == 0 and len(self._came) == 1:
                [given] = self._came
        return given if given in self._came else 0

    def answer(self, number: int, send: Callable[[], object]) -> None:
        """Sends the reply to this request. Raises as `send`; the request is still open then."""
        current = self._pattern.current
        own = getattr(current, "number", 0)
        current.number = number
        try:
            send()
        finally:
            current.number = own
        self._end(number)

    def answer_plainly(self, data: bytes) -> bool:
        """Replies to this thread's request in the most frequent case; False: it is another case. Raises
        Again, Broken, Closed."""
        pattern, socket = self._pattern, self._socket
        number = getattr(pattern.current, "number", 0)
        asked = pattern.open.get(number)
        if asked is None or asked[2] or asked[0] not in pattern.peers or socket._in_python:
            return False
        frames = ((0, asked[1], None, None, data),)
        try:
            socket._send_frames(frames, socket.send_timeout, stream=asked[0])
        except Broken:
            pattern.gone()
        else:
            del pattern.open[number]
        self._end(number)
        return True

    def give_up(self, number: int) -> None:
        """Closes a request without a reply: the requester's timeout expires."""
        if number in self._came:
            self._pattern.open.pop(number, None)
            self._end(number)

    def _end(self, number: int) -> None:
        with self._changed.lock:
            self._came.pop(number, None)
            self._changed.notify_all()

    def _wait_for_room(self, timeout: float) -> None:
        if self._changed.wait_for(self._has_room, timeout if timeout >= 0 else None):
            return
        if self._patience >= 0:
            self._end_overdue(time.monotonic() - self._patience)
        raise Again("all open requests still wait for their replies")

    def _has_room(self) -> bool:
        return len(self._came) < self._most

    def _end_overdue(self, since: float) -> None:
        for number, came in list(self._came.items()):
            if came < since:
                self.give_up(number)
                raise Broken(f"no reply was given within {self._patience:g} s")
