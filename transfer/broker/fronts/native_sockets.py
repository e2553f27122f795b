"""Sockets of the broker's own front that are heard on its loop."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import transfer
from transfer.broker.delivery import turns as in_turns
from transfer.broker.delivery.turns import call_after_turns
from transfer.broker.fronts.native_frames import message_of, topic_and_rest
from transfer.broker.protocols.native_pieces import PIECE
from transfer.peer_faults import PeerFaults
from transfer.throttled_log import ThrottledLog
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, Closed, ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub

_log = logging.getLogger("transfer.broker")

#: messages that one socket is heard for before others come to their turn
_AT_ONCE = 256
#: bytes of a message's other frames: envelope, head, topic, tensor header
_BESIDES = 256 << 10


class LoopSocket(ABC):
    """A socket that is heard on the loop."""

    kind: SocketType

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, context: transfer.Context, counters: Counter[str]
    ) -> None:
        self.socket = context.socket(self.kind)
        self._hub = hub
        self._loop = loop
        self._counters = counters
        self._paused = 0
        #: what peers' bytes raised that is no error of ours
        self.faults = PeerFaults(_log)
        self._throttled = ThrottledLog(_log)

    def listen(self, endpoint: str, largest: int) -> str:
        """Binds; the endpoint with its real port."""
        self.socket.maxmsgsize = max(largest, PIECE) + _BESIDES
        self.socket.bind(endpoint)
        self._loop.add_reader(self.socket.fd, self._hear)
        return str(self.socket.last_endpoint)

    def tick(self) -> None:
        """About once a second."""

    def close(self) -> None:
        self._loop.remove_reader(self.socket.fd)
        self.socket.close(0)

    def pause(self) -> None:
        """Hears nothing until `resume` was called as often; senders wait by the sockets' own limits."""
        self._paused += 1
        self._loop.remove_reader(self.socket.fd)

    def resume(self) -> None:
        """See `pause`."""
        self._paused -= 1
        if not self._paused and not self.socket.closed:
            self._loop.add_reader(self.socket.fd, self._hear)
            self._loop.call_soon(self._hear)

    def listen_again(self) -> None:
        """A connection is read again: what it brought may have come long ago."""
        if not self._paused:
            self._loop.call_soon(self._hear)

    def end_turn(self) -> None:
        """What was done is to be written and synced now."""
        self._hub.end_turn()

    def _hear(self) -> None:
        turns = self._hear_some()
        self._hub.end_turn()
        if turns and not self.socket.closed:
            self.pause()
            call_after_turns(self._loop, self.resume, turns=turns)

    def _hear_some(self) -> int:
        """How many turns others have then; 0: there is nothing more."""
        ends = monotonic() + in_turns.TURN_SECONDS
        for number in range(_AT_ONCE):
            if number and monotonic() >= ends:
                self.socket._pass_turn()
                return in_turns.OTHERS
            if self._paused or self.socket.closed:
                return 0
            try:
                frames = self.socket.recv_frames(transfer.DONTWAIT)
            except (Again, Closed):
                return 0
            except ProtocolError as error:
                self._refused(error)
                continue
            except Exception as error:  # noqa: BLE001 - of this message; others go on
                self._failed(error)
                continue
            self.attempt(partial(self.take, frames))
        return 1

    def attempt(self, call: Callable[[], None]) -> None:
        """Does what a message asks for. What it raises ends nothing but this message."""
        try:
            call()
        except ProtocolError as error:
            self._refused(error)
        except Exception as error:  # noqa: BLE001 - of this message; others go on
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._counters["failed"] += 1
        self.faults.note("a message", error)

    def _refused(self, error: ProtocolError) -> None:
        self._counters["refused"] += 1
        self._throttled.say(logging.WARNING, "refused", "a message was refused: %s", error)

    @abstractmethod
    def take(self, frames: list[Any]) -> None:
        """One message as it came. Raises ProtocolError."""


class Pushes(LoopSocket):
    """PULL: whoever pushes is not told whether a message is kept."""

    kind = transfer.PULL

    def take(self, frames: list[Any]) -> None:
        topic, rest = topic_and_rest(frames)
        try:
            self._hub.publish(message_of(topic, rest))
        except TransferError as error:
            raise ProtocolError("publish", str(error)) from error
        self._counters["published"] += 1
        self._hub.pressed(self)


class Publications(Pushes):
    """SUB: the same for PUB, which drops what has no room."""

    kind = transfer.SUB

    def listen(self, endpoint: str, largest: int) -> str:
        self.socket.subscribe(b"")
        return super().listen(endpoint, largest)
