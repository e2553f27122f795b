"""Messages of plain REQs: each gets one answer, that it is kept, or why it is not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transfer.broker.fronts.native_frames import message_of, topic_and_rest
from transfer.transports.errors import LogFull, ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.hub import Hub
    from transfer.transports.core.contract import Frame

#: (identity of a REQ, number of its request or b"" if it does not correlate)
Requester = tuple[bytes, bytes]

#: seconds for which a request waits for room in the log, and between its retries
_PATIENCE, _TRY_AGAIN = 5.0, 0.5
#: bytes of requests that may wait so
_MOST = 64 << 20


class PlainRequests:
    """Handles plain requests, on the broker's loop. send: sends an answer."""

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        counters: Counter[str],
        send: Callable[[bytes, bytes, list[Any]], None],
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._counters = counters
        self._send = send
        self._waiting: dict[asyncio.TimerHandle, int] = {}

    def take(self, requester: Requester, frames: list[Frame]) -> None:
        """Handles the parts after the delimiter: topic and payload."""
        try:
            if not frames:
                raise ProtocolError("parts", "a request without parts")
            topic, rest = topic_and_rest(frames)
            self._publish(requester, message_of(topic, rest), self._loop.time() + _PATIENCE)
        except TransferError as error:
            self._answer(requester, error)

    def close(self) -> None:
        """Drops all requests that wait."""
        for timer in self._waiting:
            timer.cancel()

    def _publish(self, requester: Requester, message: Message, until: float) -> None:
        """Publishes a request. It waits for room in a full log; then it is refused, and nothing of it is
        kept."""
        try:
            self._hub.publish(message, lambda error: self._answer(requester, error), hold=False)
            self._counters["published"] += 1
        except LogFull:
            room = sum(self._waiting.values()) + message.nbytes <= _MOST
            if not room or self._loop.time() >= until:
                raise
            self._wait(requester, message, until)

    def _wait(self, requester: Requester, message: Message, until: float) -> None:
        def again() -> None:
            del self._waiting[timer]
            try:
                self._publish(requester, message, until)
            except TransferError as error:
                self._answer(requester, error)

        timer = self._loop.call_later(_TRY_AGAIN, again)
        self._waiting[timer] = message.nbytes

    def _answer(self, requester: Requester, error: TransferError | None) -> None:
        words: dict[str, Any] = {"kept": error is None}
        if error is not None:
            full = self._hub.full if isinstance(error, LogFull) else ""
            words["error"] = f"the log is full: {full}" if full else str(error)
        identity, number = requester
        answer = [(None, None, 0, json.dumps(words).encode())]
        self._send(identity, number, [(None, None, 0, b""), *answer] if number else answer)
