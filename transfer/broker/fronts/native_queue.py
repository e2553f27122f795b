"""A PUSH socket that distributes a topic's messages to PULL clients, each message to one of them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import transfer
from transfer.broker.fronts.native_frames import parts_of, unreadable
from transfer.transports.errors import Again, Closed, LogFull, ProtocolError, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delivery
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.group_contract import Served
    from transfer.broker.delivery.hub import Hub
    from transfer.sockets.tracker import Tracker

_log = logging.getLogger("transfer.broker")

#: the group of the PULL clients, of each topic that has a queue
GROUP = "pull"
#: messages that may be in transfer
_WINDOW = 1000
#: their bytes, beyond which no more are sent until half of them are taken
MOST_WAITING = 256 << 20
#: seconds between two checks of what was consumed: receivers report it every 20 ms
_CHECK_INTERVAL = 0.02


class NativeQueue:
    """A topic with an endpoint for PULL. On the broker's loop. A PULL sends nothing, but its socket reports
    how many messages its program has taken: that acknowledges them. If a PULL dies, the messages that it
    had not taken go to others. Messages wait in the log while no PULL is connected."""

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        context: transfer.Context,
        counters: Counter[str],
        topic: str,
        endpoint: str,
    ) -> None:
        self.in_pieces = False
        self._hub = hub
        self._loop = loop
        self._counters = counters
        self._topic = topic
        self._served: Served = hub.groups.claimed(topic, GROUP)
        self._sent: deque[tuple[int, int, int, Tracker]] = deque()  # offset, attempt, bytes
        self._waiting = 0  # bytes that were sent and not taken
        self._paused = False
        self._behind = False  # the socket still has messages to send: no more until the next check
        self._joined = False
        self._due: asyncio.TimerHandle | None = None
        self.socket = context.socket(transfer.PUSH)
        self.socket.sndhwm = self.socket.sndhwm_bytes = 0  # the window and MOST_WAITING bound it
        self.socket.bind(endpoint)
        self.endpoint: str = self.socket.last_endpoint
        self._check_clients()

    def __str__(self) -> str:
        return f"PULL of {self._topic}"

    def deliver(self, messages: Sequence[tuple[Delivery, Message | None]]) -> None:
        """See group_contract.Consumer."""
        for place, (delivery, message) in enumerate(messages):
            key = (delivery.offset, delivery.attempt)
            if message is None:  # removed by retention or damage
                self._hub.groups.ack(self, self._served, [key])
                continue
            topic = message.topic.encode()
            try:
                (_, meta, flags, data), *rest = parts_of(message)
            except ProtocolError as error:
                self._loop.call_soon(self._refuse, key, unreadable(message, error, self._hub.counts))
                continue
            try:
                tracker = self.socket.send_frames(
                    [(topic, meta, flags, data), *rest], transfer.DONTWAIT, copy=False, track=True
                )
            except (Again, Closed):  # a PULL has just gone: give back all from here on, in order
                self._served.group.untake([one for one, _ in messages[place:]], 0.0)
                self._behind = True
                break
            assert tracker is not None
            self._sent.append((*key, message.nbytes, tracker))
            self._waiting += message.nbytes
        self._pause()

    def removed(self, error: TransferError) -> None:
        """See group_contract.Consumer. Its group is made anew while a PULL is connected."""
        self._joined = False
        self._sent.clear()

    def close(self) -> None:
        """Closes the socket. Messages that were not taken go to the next PULL. Idempotent."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._joined:
            self._joined = False
            self._take_stock()
            self._hub.groups.leave(self, self._served)
        self.socket.close(0)

    def _check_clients(self) -> None:
        """Checks which clients are connected, and what was taken."""
        self._due = self._loop.call_later(_CHECK_INTERVAL, self._check_clients)
        there = self.socket.has_peers
        self._behind = not there
        self._take_stock()
        try:
            if there and not self._joined:
                self._served = self._hub.groups.claimed(self._topic, GROUP)
                self._joined = True
                self._hub.groups.join(self, self._served, _WINDOW, paused=self._paused)
            elif self._joined and not there and not self._sent:
                # Not before: what the socket still has goes to the next PULL, and must not be delivered
                # twice.
                self._joined = False
                self._hub.groups.leave(self, self._served)
        except (LogFull, UsageError) as error:
            self._joined = False
            _log.warning("%s", error)

    def _take_stock(self) -> None:
        taken: list[tuple[int, int]] = []
        lost: list[tuple[int, int]] = []
        sent, self._sent = self._sent, deque()
        for offset, attempt, nbytes, tracker in sent:
            if tracker.confirmed:
                taken.append((offset, attempt))
            elif tracker.error is not None:
                lost.append((offset, attempt))
            else:
                self._sent.append((offset, attempt, nbytes, tracker))
        self._waiting = sum(one[2] for one in self._sent)
        if taken:
            self._hub.groups.ack(self, self._served, taken)
        self._counters["unconfirmed"] += len(lost)
        for key in lost:  # this may send it to another PULL at once
            self._give_back(key)
        self._pause()

    def _pause(self) -> None:
        """Pauses the group while too many bytes are in transfer; resumes it when half of them are taken."""
        paused = self._behind or self._waiting > (MOST_WAITING // 2 if self._paused else MOST_WAITING)
        if paused != self._paused:
            self._paused = paused
            self._hub.groups.pause(self, self._served, paused)

    def _refuse(self, key: tuple[int, int], reason: str) -> None:
        """Makes a dead letter of a message that no PULL could read."""
        self._hub.groups.nack(self, self._served, key, reason, retry=False)

    def _give_back(self, key: tuple[int, int]) -> None:
        """Gives a message back for another PULL; that it was not taken does not count as a failure."""
        self._hub.groups.give_back(
            self, self._served, key, "the PULL client disconnected before it took the message"
        )
