"""A member of a group of consumers, in a program; made by `BrokerClient.consume`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer.broker.clients.native_fetch import Offered
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
from transfer.transports.errors import Again, ArgumentError, Broken, Closed, ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.clients.native import BrokerClient
    from transfer.transports.core.contract import Frame

#: deliveries that an error names
_NAMED = 10
_LATE = "others process these messages (`stale` has all); give `consume` more timeout, or acknowledge sooner"


class Received(NamedTuple):
    """A message of a group. parts: as they were sent. offset, attempt: the delivery; attempt 1 is the
    first."""

    topic: str
    offset: int
    attempt: int
    parts: list[Frame]
    group: str = ""

    def tensor(self, part: int = 0) -> Any:
        """A part that was sent as a tensor: a numpy array, writable. Raises TensorMismatch, ProtocolError."""
        from transfer.tensors.receive import tensor_of

        return tensor_of(self.parts[part])

    @property
    def data(self) -> bytes | memoryview:
        """The message's only part, or its first one."""
        data: Any = self.parts[0].data
        return data if type(data) is bytes else memoryview(data).cast("B")


def wish_of(topic: str, group: str, window: int, begin: str, timeout: float | None) -> Join:
    """Raises ArgumentError. The broker checks the rest."""
    for name, given in (("topic", topic), ("group", group), ("begin", begin)):
        text(given, name)
    return Join(topic, group, whole(window, "window", 1), begin, patience(timeout), pieces=True, several=True)


class Consumer:
    """A member of a group. Thread-safe as its client.

    joined: the broker let it in. stale: (offset, attempt) of deliveries that were acknowledged or given back
    too late, the last 1000: others have the messages, or will.
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
        self._asked = self._acked = 0
        self._unkept: deque[tuple[int, Sequence[tuple[int, int, int]]]] = deque()  # asked by then, deliveries
        self._late: deque[tuple[int, int]] = deque(maxlen=1000)  # stale ones, not raised yet
        self._failure: TransferError | None = None  # it is not a member any more
        self._unsure: Broken | None = None  # the connection ended before acknowledgements were kept

    def recv(self, timeout: float | None = None) -> Received:
        """The next message, which is this consumer's until it is acknowledged. A large one is fetched now.
        Raises Again when nothing came for `timeout` seconds (None: the client's), Broken when the broker is
        gone, and what it refused."""
        return self.recv_many(1, timeout)[0]

    def recv_many(self, most: int = 1000, timeout: float | None = None) -> list[Received]:
        """The next messages that are there, at least one and at most `most`. Raises as `recv`."""
        whole(most, "most", 1)
        while True:
            with self._client.waited(lambda: self._messages or self._failure, timeout, "no message came"):
                messages = self._messages
                if not messages and self._failure is not None:
                    raise self._failure
                if not self._offered:
                    return [messages.popleft() for _ in range(min(most, len(messages)))]  # type: ignore[misc]
                if found := self._whole(most):
                    return found
                offered = messages.popleft()
                self._offered -= 1
                assert isinstance(offered, Offered)
                self._client.fetching.open(offered)
            if message := self._fetched(offered, timeout):
                return [message]

    def _whole(self, most: int) -> list[Received]:
        """The next ones, up to one that is to be fetched."""
        found: list[Received] = []
        while self._messages and len(found) < most and isinstance(message := self._messages[0], Received):
            found.append(message)
            self._messages.popleft()
        return found

    def _fetched(self, offered: Offered, timeout: float | None) -> Received | None:
        """A large message. None: it is gone."""
        try:
            if not self._client.fetching.fetch(offered, timeout):
                return None
        except Again:
            with self._client.waited(lambda: True, None, ""):
                if not offered.gone:
                    self._messages.appendleft(offered)
                    self._offered += 1
            raise
        return self._received(offered.offset, offered.attempt, offered.frames())

    def _received(self, offset: int, attempt: int, parts: list[Frame]) -> Received:
        return Received(self.topic, offset, attempt, parts, self._join.group)

    def ack(self, *messages: Received, wait: bool = False) -> None:
        """These are processed. wait: returns when that is on the broker's disk, and they never come again;
        raises as `flush`, of what came too late of them. Without it, `stale` has that, and `flush` raises it.
        """
        deliveries = [self._delivery(one) for one in messages]
        self._acknowledge([(*one, 0) for one in deliveries])
        if wait:
            self._flush(None, {*deliveries})

    def nack(self, message: Received, reason: str = "", *, retry: bool = True) -> None:
        """It could not be processed. retry: it comes again, to one of the group, behind a pause; else, and
        after the last attempt, it becomes a dead letter with this reason."""
        body = encode_nack(self._delivery(message), text(reason, "reason"), retry=retry)
        self._client.say(lambda: encode(Op.NACK, self._number, body))

    def _delivery(self, message: Received) -> tuple[int, int]:
        """What is told to the broker of it. Another group's offset would be one of ours there."""
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

        Raises Again; Broken when the connection ended before (they may be kept or not, and what is not comes
        again), or when some came too late, once for each: others have these messages, and what else was
        acknowledged is kept.
        """
        self._flush(timeout, None)

    def _flush(self, timeout: float | None, of: set[tuple[int, int]] | None) -> None:
        """of: deliveries of which is raised that they came too late; None: all."""
        with self._client.waited(
            lambda: self._acked >= self._asked or self._unsure or self._failure,
            timeout,
            "acknowledgements were not kept",
        ):
            unsure, self._unsure = self._unsure, None
            if unsure is not None:
                raise unsure
            if self._acked < self._asked and self._failure is not None:
                raise self._failure
            late = [one for one in self._late if of is None or one in of]
            for one in late:
                self._late.remove(one)
        if late:
            named = ", ".join(f"offset {offset} (attempt {attempt})" for offset, attempt in late[:_NAMED])
            raise Broken(f"{self.topic}: {len(late)} acknowledged too late: {named}", hint=_LATE)

    def leave(self) -> None:
        """Ends it: what it holds goes to others. Idempotent."""
        self._client.forget(self)
        try:
            self._client.say(lambda: encode(Op.LEAVE, self._number))
        except (Again, Broken, Closed):
            return  # then it has left by that

    def _acknowledge(self, deliveries: Sequence[tuple[int, int, int]]) -> None:
        for begin in range(0, len(deliveries), MOST):
            self._client.say(partial(self._acks, deliveries[begin : begin + MOST]))

    def _acks(self, deliveries: Sequence[tuple[int, int, int]]) -> bytes:
        self._asked += len(deliveries)
        self._unkept.append((self._asked, deliveries))
        return encode(Op.ACK, self._number, encode_deliveries(deliveries), len(deliveries))

    # -- for the client, with its lock -------------------------------------------------------------------

    @property
    def failure(self) -> TransferError | None:
        """Why it is not a member."""
        return self._failure

    @property
    def waiting(self) -> bool:
        """A call of `recv` has something to return or to raise."""
        return bool(self._messages) or self._failure is not None

    def wish(self) -> bytes:
        """The JOIN that is sent."""
        return encode(Op.JOIN, self._number, encode_join(self._join))

    def renumber(self, number: int) -> None:
        """It joins again, on another connection."""
        self._number = number

    def lost(self, error: Broken, *, again: bool) -> None:
        """The connection has ended. again: there will be another."""
        if self._acked < self._asked:
            self._unsure = error
        self._asked = self._acked = 0
        self._unkept.clear()
        self._messages.clear()
        self._offered = 0
        self.joined = False
        if not again:
            self._failure = error

    def refused(self, error: TransferError) -> None:
        """The broker does not know it, or did not let it in."""
        self._failure = error

    def told(self, head: Head, frames: list[Frame]) -> bytes | None:
        """What the broker says of it. The answer, if there is one."""
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
            self._late += sorted(acknowledged.intersection(stale))  # others: of a NACK, a FETCH
            self._forget(stale)
        return None

    def _take(self, head: Head, frames: list[Frame]) -> list[tuple[int, int, int]]:
        """Keeps the messages. Deliveries of which nothing is left are acknowledged."""
        at = 0
        gone = []
        for offset, attempt, parts in decode_deliveries(head):
            if at + parts > len(frames):
                raise ProtocolError("parts", "fewer parts came than were announced")
            if parts:
                self._messages.append(self._received(offset, attempt, frames[at : at + parts]))
            else:
                gone.append((offset, attempt, 0))  # retention or damage took it
            at += parts
        self._forget([one[:2] for one in gone])
        return gone

    def _forget(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Those of them that were offered, and not fetched yet, will not come."""
        if not deliveries:
            return
        self._client.fetching.gone(self._number, deliveries)
        if self._offered:
            keys = set(deliveries)
            kept = deque(
                one
                for one in self._messages
                if isinstance(one, Received) or (one.offset, one.attempt) not in keys
            )
            self._offered -= len(self._messages) - len(kept)
            self._messages = kept
