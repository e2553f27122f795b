"""A consumer of a group; `BrokerClient.consume` makes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer.broker.clients.native_fetch import Offered
from transfer.broker.core.topic_names import encode_topic
from transfer.broker.protocols.native import (
    MOST,
    Head,
    Join,
    Op,
    decode_deliveries,
    encode,
    encode_deliveries,
    encode_join,
    encode_nack,
)
from transfer.transports.arguments import instance, patience, text, whole
from transfer.transports.errors import (
    Again,
    ArgumentError,
    Broken,
    Closed,
    ProtocolError,
    TransferError,
    unraised,
)

if TYPE_CHECKING:
    from transfer.broker.clients.native import BrokerClient
    from transfer.transports.core.contract import Frame

#: deliveries that an error lists
_NAMED = 10
_LATE = (
    "other consumers get these messages (see `stale`): increase `consume(timeout=)`, or acknowledge sooner"
)


class Received(NamedTuple):
    """A message of a group. parts: as sent. offset, attempt: of the delivery; the first attempt is 1."""

    topic: str
    offset: int
    attempt: int
    parts: list[Frame]
    group: str = ""

    def tensor(self, part: int = 0) -> Any:
        """Returns a part that was sent as a tensor, as a writable numpy array.

        Raises TensorMismatch, ProtocolError.
        """
        from transfer.tensors.receive import tensor_of

        return tensor_of(self.parts[part])

    @property
    def data(self) -> bytes | memoryview:
        """The message's first part."""
        data: Any = self.parts[0].data
        return data if type(data) is bytes else memoryview(data).cast("B")


def join_of(topic: str, group: str, window: int, begin: str, timeout: float | None) -> Join:
    """Checks the names and the types of arguments; the broker checks other values. Raises UsageError."""
    encode_topic(topic), encode_topic(group, "group"), text(begin, "begin")
    return Join(topic, group, whole(window, "window", 1), begin, patience(timeout), pieces=True, several=True)


class Consumer:
    """A consumer of a group. Thread-safe as its client.

    joined: whether the broker has accepted it. stale: (offset, attempt) of the last 1000 deliveries that were
    acknowledged or refused too late: other consumers get these messages.
    """

    def __init__(self, client: BrokerClient, number: int, join: Join) -> None:
        self.topic = join.topic
        self.joined = False
        self.stale: deque[tuple[int, int]] = deque(maxlen=1000)
        self._client = client
        self._number = number
        self._join = join
        self._messages: deque[Received | Offered] = deque()
        self._offered = 0  # of them
        self._sent = self._acked = 0  # acknowledgements that were sent, and that the broker keeps
        self._unkept: deque[tuple[int, Sequence[tuple[int, int, int]]]] = deque()  # (_sent then, deliveries)
        self._late: deque[tuple[int, int]] = deque(maxlen=1000)  # stale ones, not raised yet
        self._failure: TransferError | None = None  # why it is not a member any more
        self._unsure: Broken | None = None  # the connection ended before acknowledgements were kept

    def recv(self, timeout: float | None = None) -> Received:
        """Returns the next message, which this consumer has to acknowledge. It fetches a large one now.

        timeout: seconds; None: the client's. Raises Again when nothing came in time, Broken when the broker
        is gone, and the broker's refusals.
        """
        return self.recv_many(1, timeout)[0]

    def recv_many(self, most: int = 1000, timeout: float | None = None) -> list[Received]:
        """Returns the messages that have arrived, at least one and at most `most`. Raises as `recv`."""
        whole(most, "most", 1)
        while True:
            with self._client.wait_until(lambda: self._messages or self._failure, timeout, "no message came"):
                messages = self._messages
                if not messages and self._failure is not None:
                    raise unraised(self._failure)
                if not self._offered:
                    return [messages.popleft() for _ in range(min(most, len(messages)))]  # type: ignore[misc]
                if found := self._whole(most):
                    return found
                offered = messages.popleft()
                self._offered -= 1
                assert isinstance(offered, Offered)
                self._client.fetches.open(offered)
            if message := self._fetched(offered, timeout):
                return [message]

    def _whole(self, most: int) -> list[Received]:
        """Takes the next messages, up to one that has to be fetched."""
        found: list[Received] = []
        while self._messages and len(found) < most and isinstance(message := self._messages[0], Received):
            found.append(message)
            self._messages.popleft()
        return found

    def _fetched(self, offered: Offered, timeout: float | None) -> Received | None:
        """Fetches a large message; None if it is gone."""
        try:
            if not self._client.fetches.fetch(offered, timeout):
                return None
        except Again:
            with self._client.wait_until(lambda: True, None, ""):
                if not offered.gone:
                    self._messages.appendleft(offered)
                    self._offered += 1
            raise
        return self._received(offered.offset, offered.attempt, offered.frames())

    def _received(self, offset: int, attempt: int, parts: list[Frame]) -> Received:
        return Received(self.topic, offset, attempt, parts, self._join.group)

    def ack(self, *messages: Received, wait: bool = False) -> None:
        """Acknowledges messages as processed.

        wait: returns when the acknowledgements are on the broker's disk: the messages are not delivered
        again. It raises as `flush` if some were too late. Without it, `flush` raises that, and `stale` lists
        them.
        """
        deliveries = [self._delivery(one) for one in messages]
        self._acknowledge([(*one, 0) for one in deliveries])
        if wait:
            self._flush(None, {*deliveries})

    def nack(self, message: Received, reason: str = "", *, retry: bool = True) -> None:
        """Refuses a message that could not be processed.

        retry: the group gets it again after a pause. Else, and after the last attempt, it becomes a dead
        letter with this reason.
        """
        body = encode_nack(self._delivery(message), text(reason, "reason"), retry=retry)
        self._client.send(lambda: encode(Op.NACK, self._number, body))

    def _delivery(self, message: Received) -> tuple[int, int]:
        """Returns (offset, attempt) for the broker, which could not detect another group's offset."""
        of = instance(message, Received, "message")
        if (of.topic, of.group) != (self.topic, self._join.group):
            raise ArgumentError(
                f"a message of topic {of.topic!r} for group {of.group!r} is none of {self.topic!r} for "
                f"{self._join.group!r}",
                hint="acknowledge it with the consumer that received it",
            )
        return whole(of.offset, "offset", 0), whole(of.attempt, "attempt", 1, 2**32 - 1)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all acknowledgements are on the broker's disk.

        Raises Again, and Broken if the connection ended before: some may not be kept, and these messages are
        delivered again. It also raises Broken, once for each, for acknowledgements that were too late: other
        consumers get these messages; all other acknowledgements are kept.
        """
        self._flush(timeout, None)

    def _flush(self, timeout: float | None, of: set[tuple[int, int]] | None) -> None:
        """Waits as `flush`. of: deliveries for which it raises that they were too late; None: all."""
        with self._client.wait_until(
            lambda: self._acked >= self._sent or self._unsure or self._failure,
            timeout,
            "acknowledgements were not kept",
        ):
            unsure, self._unsure = self._unsure, None
            if unsure is not None:
                raise unsure
            if self._acked < self._sent and self._failure is not None:
                raise unraised(self._failure)
            late = [one for one in self._late if of is None or one in of]
            for one in late:
                self._late.remove(one)
        if late:
            named = ", ".join(f"offset {offset} (attempt {attempt})" for offset, attempt in late[:_NAMED])
            raise Broken(f"{self.topic}: {len(late)} acknowledged too late: {named}", hint=_LATE)

    def leave(self) -> None:
        """Leaves the group: other consumers get its unacknowledged messages. Idempotent."""
        self._client.forget(self)
        try:
            self._client.send(lambda: encode(Op.LEAVE, self._number))
        except (Again, Broken, Closed):
            return  # the connection's end has the same effect

    def _acknowledge(self, deliveries: Sequence[tuple[int, int, int]]) -> None:
        for begin in range(0, len(deliveries), MOST):
            self._client.send(partial(self._acks, deliveries[begin : begin + MOST]))

    def _acks(self, deliveries: Sequence[tuple[int, int, int]]) -> bytes:
        self._sent += len(deliveries)
        self._unkept.append((self._sent, deliveries))
        return encode(Op.ACK, self._number, encode_deliveries(deliveries), len(deliveries))

    # -- for the client, with its lock -------------------------------------------------------------------

    @property
    def failure(self) -> TransferError | None:
        """Why it is not a member; None if it is."""
        return self._failure

    @property
    def waiting(self) -> bool:
        """Whether `recv` returns or raises at once."""
        return bool(self._messages) or self._failure is not None

    def join_request(self) -> bytes:
        """Returns the JOIN to send."""
        return encode(Op.JOIN, self._number, encode_join(self._join))

    def renumber(self, number: int) -> None:
        """Sets the number by which it joins again, on another connection."""
        self._number = number

    def on_connection_lost(self, error: Broken, *, reconnects: bool) -> None:
        """Handles the connection's end. reconnects: whether the client connects again."""
        if self._acked < self._sent:
            self._unsure = error
        self._sent = self._acked = 0
        self._unkept.clear()
        self._messages.clear()
        self._offered = 0
        self.joined = False
        if not reconnects:
            self._failure = error

    def on_refused(self, error: TransferError) -> None:
        """Handles the broker's refusal: it does not know, or does not accept, the consumer."""
        self._failure = error

    def process(self, head: Head, frames: list[Frame]) -> bytes | None:
        """Handles a message of the broker for this consumer. Returns the request to answer with, if any."""
        if head.op is Op.JOINED:
            self.joined = True
        elif head.op is Op.DELIVER:
            gone = self._take(head, frames)
            return self._acks(gone) if gone else None
        elif head.op is Op.ACKED:
            self._acked = int.from_bytes(head.body, "little")
            while self._unkept and self._unkept[0][0] <= self._acked:
                self._unkept.popleft()
        elif head.op is Op.OFFER:
            self._messages.append(Offered(head))
            self._offered += 1
        elif head.op is Op.STALE:
            stale = [(one.offset, one.attempt) for one in decode_deliveries(head)]
            self.stale.extend(stale)
            acknowledged = {one[:2] for _, deliveries in self._unkept for one in deliveries}
            self._late += sorted(acknowledged.intersection(stale))  # the others belong to a NACK or a FETCH
            self._forget(stale)
        return None

    def _take(self, head: Head, frames: list[Frame]) -> list[tuple[int, int, int]]:
        """Queues the messages. Returns deliveries whose message is lost, to acknowledge them."""
        at = 0
        gone = []
        for offset, attempt, parts in decode_deliveries(head):
            if at + parts > len(frames):
                raise ProtocolError("parts", "fewer parts came than were announced")
            if parts:
                self._messages.append(self._received(offset, attempt, frames[at : at + parts]))
            else:
                gone.append((offset, attempt, 0))  # removed by retention, or damaged
            at += parts
        self._forget([one[:2] for one in gone])
        return gone

    def _forget(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Drops offered messages of these deliveries that are not fetched yet."""
        if not deliveries:
            return
        self._client.fetches.on_revoked(self._number, deliveries)
        if self._offered:
            keys = set(deliveries)
            kept = deque(
                one
                for one in self._messages
                if isinstance(one, Received) or (one.offset, one.attempt) not in keys
            )
            self._offered -= len(self._messages) - len(kept)
            self._messages = kept
