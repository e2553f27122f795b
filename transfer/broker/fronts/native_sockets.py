"""The sockets of the native front that the broker's loop reads."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import transfer
from transfer.broker import turns as in_turns
from transfer.broker.fronts.native_frames import message_of, topic_and_rest
from transfer.broker.protocols.native_pieces import PIECE
from transfer.broker.turns import call_after_turns
from transfer.peer_faults import PeerFaults
from transfer.throttled_log import ThrottledLog
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, Closed, ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub

_log = logging.getLogger("transfer.broker")

#: messages that are read from one socket before others get their turn
_AT_ONCE = 256
#: bytes of a message's other frames: envelope, head, topic, tensor header
_OTHER_FRAMES = 256 << 10


class LoopSocket(ABC):
    """A socket that the loop reads."""

    kind: SocketType

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, context: transfer.Context, counters: Counter[str]
    ) -> None:
        self.socket = context.socket(self.kind)
        self._hub = hub
        self._loop = loop
        self._counters = counters
        self._paused = 0
        #: unexpected errors that peers' messages caused
        self.faults = PeerFaults(_log)
        self._throttled = ThrottledLog(_log)

    def listen(self, endpoint: str, largest: int) -> str:
        """Binds the socket. Returns the endpoint with its actual port."""
        self.socket.maxmsgsize = max(largest, PIECE) + _OTHER_FRAMES
        self.socket.bind(endpoint)
        self._loop.add_reader(self.socket.fd, self._on_readable)
        return str(self.socket.last_endpoint)

    def tick(self) -> None:
        """Called about once a second."""

    def close(self) -> None:
        self._loop.remove_reader(self.socket.fd)
        self.socket.close(0)

    def pause(self) -> None:
        """Stops reading until `resume` was called as often; senders are blocked by the sockets' own
        limits."""
        self._paused += 1
        self._loop.remove_reader(self.socket.fd)

    def resume(self) -> None:
        """See `pause`."""
        self._paused -= 1
        if not self._paused and not self.socket.closed:
            self._loop.add_reader(self.socket.fd, self._on_readable)
            self._loop.call_soon(self._on_readable)

    def listen_again(self) -> None:
        """Reads a connection again that was held; its data may have arrived long ago."""
        if not self._paused:
            self._loop.call_soon(self._on_readable)

    def end_turn(self) -> None:
        """Writes and syncs what this turn did."""
        self._hub.end_turn()

    def _on_readable(self) -> None:
        turns = self._receive_some()
        self._hub.end_turn()
        if turns and not self.socket.closed:
            self.pause()
            call_after_turns(self._loop, self.resume, turns=turns)

    def _receive_some(self) -> int:
        """Receives some messages. Returns how many turns other work gets then; 0: there are no more
        messages."""
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
            except Exception as error:  # noqa: BLE001 - of this message only
                self._failed(error)
                continue
            self.attempt(self.take, frames)
        return 1

    def attempt(self, call: Callable[..., None], *arguments: object) -> None:
        """Does what a message asks for. What it raises ends nothing but this message."""
        try:
            call(*arguments)
        except ProtocolError as error:
            self._refused(error)
        except Exception as error:  # noqa: BLE001 - of this message; others go on
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._counters["failed"] += 1
        self.faults.note("a message", error)

    def _refused(self, error: ProtocolError) -> None:
        self._counters["refused"] += 1
        self._throttled.log(logging.WARNING, "refused", "a message was refused: %s", error)

    @abstractmethod
    def take(self, frames: list[Any]) -> None:
        """Handles one message. Raises ProtocolError."""


class Pushes(LoopSocket):
    """The PULL socket: its senders get no answer whether a message is kept."""

    kind = transfer.PULL

    def take(self, frames: list[Any]) -> None:
        topic, rest = topic_and_rest(frames)
        try:
            self._hub.publish(message_of(topic, rest), publisher=self)
        except TransferError as error:
            raise ProtocolError("publish", str(error)) from error
        self._counters["published"] += 1


class Publications(Pushes):
    """The SUB socket, which does the same for PUB, which drops messages that have no room."""

    kind = transfer.SUB

    def listen(self, endpoint: str, largest: int) -> str:
        self.socket.subscribe(b"")
        return super().listen(endpoint, largest)
