"""The ROUTER of the broker's own front: programs that publish and consume, and plain REQs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import transfer
from transfer.broker.fronts.own_heard import Heard
from transfer.broker.fronts.own_parts import HELD_FROM, OutPart, message_of, parts_of, topic_and_rest
from transfer.protocols.names import read_topic
from transfer.protocols.own import (
    Head,
    Op,
    decode,
    decode_deliveries,
    decode_join,
    decode_nack,
    encode,
    encode_deliveries,
    encode_words,
)
from transports.errors import Again, Closed, ProtocolError, TransferError
from transports.wire import SocketType

if TYPE_CHECKING:
    from transfer.broker.engine.groups import Delivery
    from transfer.broker.groups import Served
    from transfer.broker.hub import Hub
    from transfer.broker.message import Message
    from transports.core_contract import Frame


class Requests(Heard):
    """ROUTER: programs with a DEALER, which speak the protocol, and plain REQs, which give a topic and a
    payload and are answered in JSON."""

    kind = transfer.ROUTER
    peers = (SocketType.DEALER, SocketType.REQ)

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, context: transfer.Context, counters: Counter[str]
    ) -> None:
        super().__init__(hub, loop, context, counters)
        self.socket.sndhwm = self.socket.sndhwm_bytes = 0  # windows bound what is on its way
        self._programs: dict[bytes, _Program] = {}
        self._kept: dict[bytes, list[list[int]]] = {}

    def take(self, frames: list[Any]) -> None:
        identity = bytes(frames[0])
        rest = frames[1:]
        if not rest:
            raise ProtocolError("parts", "a message without parts")
        first = rest[0]
        if type(first) is bytes or not len(first.data):  # the delimiter that a REQ puts before its request
            self._take_request(identity, rest[1:])
            return
        head = decode(bytes(rest[0].data))
        try:
            self._do(identity, head, rest[1:])
        except TransferError as error:
            self.refuse(identity, head.number, error)
        if head.op in (Op.PUBLISH, Op.PUBLISH_MANY):
            self._hub.pressed(self)

    def _do(self, identity: bytes, head: Head, frames: list[Frame]) -> None:
        if head.op is Op.PUBLISH:
            if not frames:
                raise ProtocolError("parts", "PUBLISH without a message")
            self._publish(identity, head.number, message_of(read_topic(head.body), frames))
        elif head.op is Op.PUBLISH_MANY:
            if len(frames) != head.amount or not frames:
                raise ProtocolError("parts", f"{len(frames)} messages, of {head.amount} that were announced")
            topic = read_topic(head.body)
            self._publish_many(identity, head, [message_of(topic, [frame]) for frame in frames])
        elif head.op is not Op.ALIVE:
            self._program(identity).do(head)

    def _publish(self, identity: bytes, number: int, message: Message) -> None:
        def told(error: TransferError | None) -> None:
            if error is None:
                self._tell_kept(identity, number)
            else:
                self.refuse(identity, number, error)

        try:
            self._hub.publish(message, told)
        except TransferError as error:
            self.refuse(identity, number, error)

    def _publish_many(self, identity: bytes, head: Head, messages: list[Message]) -> None:
        def told(error: TransferError | None) -> None:
            if error is None:
                self.send(identity, encode(Op.KEPT, head.number, count=head.amount))
            else:
                self._refuse_all(identity, head, error)

        try:
            self._hub.publish_many(messages, told)
        except TransferError as error:
            self._refuse_all(identity, head, error)

    def _refuse_all(self, identity: bytes, head: Head, error: TransferError) -> None:
        for number in range(head.number, head.number + head.amount):
            self.refuse(identity, number, error)

    def _tell_kept(self, identity: bytes, number: int) -> None:
        """Numbers that follow each other are told together, at the end of this turn."""
        if not self._kept:
            self._loop.call_soon(self._send_kept)
        runs = self._kept.setdefault(identity, [])
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])

    def _send_kept(self) -> None:
        kept, self._kept = self._kept, {}
        for identity, runs in kept.items():
            for begin, end in runs:
                self.send(identity, encode(Op.KEPT, begin, count=end - begin))

    def _take_request(self, identity: bytes, frames: list[Frame]) -> None:
        """A plain REQ: it is answered when the message is kept."""

        def told(error: TransferError | None) -> None:
            words: dict[str, Any] = {"kept": error is None}
            if error is not None:
                words["error"] = str(error)
            self._answer(identity, words)

        try:
            if not frames:
                raise ProtocolError("parts", "a request without parts")
            topic, rest = topic_and_rest(frames)
            self._hub.publish(message_of(topic, rest), told)
        except TransferError as error:
            told(error)

    def _answer(self, identity: bytes, words: dict[str, Any]) -> None:
        self.send(identity, b"", [(None, None, 0, json.dumps(words).encode())])

    def refuse(self, identity: bytes, number: int, error: TransferError) -> None:
        """Tells a program that what had this number was not done."""
        words = {"code": type(error).__name__, "message": str(error)}
        self.send(identity, encode(Op.REFUSED, number, encode_words(words)))

    def send(self, identity: bytes, head: bytes, parts: Sequence[OutPart] = ()) -> None:
        """To one program; dropped when it has gone, whose deliveries come back then."""
        frames: list[OutPart] = [(None, None, 0, identity), (None, None, 0, head), *parts]
        copy = None if sum(len(part[3]) for part in parts) < HELD_FROM else False
        try:
            self.socket.send_frames(frames, transfer.DONTWAIT, copy=copy)
        except (Again, Closed):
            self._counters["unanswered"] += 1

    def _program(self, identity: bytes) -> _Program:
        program = self._programs.get(identity)
        if program is None:
            program = self._programs[identity] = _Program(self, self._hub, identity)
        return program

    def tick(self) -> None:
        """Programs that have gone lose what they held."""
        if not self._programs:
            return
        there = {peer.identity for peer in self.socket.peers()}
        for identity in [identity for identity in self._programs if identity not in there]:
            self._programs.pop(identity).leave_all()


class _Program:
    """The consumers of one program, by the numbers that it gave them."""

    def __init__(self, requests: Requests, hub: Hub, identity: bytes) -> None:
        self._requests = requests
        self._hub = hub
        self._identity = identity
        self._consumers: dict[int, _Consumer] = {}

    def do(self, head: Head) -> None:
        """A word about one consumer. Raises ProtocolError, UsageError."""
        if head.op is Op.JOIN:
            self._join(head)
            return
        consumer = self._consumers.get(head.number)
        if consumer is None:
            raise ProtocolError("consumer", f"consumer {head.number} has not joined")
        if head.op is Op.ACK:
            consumer.ack(head)
        elif head.op is Op.NACK:
            consumer.nack(head)
        elif head.op is Op.LEAVE:
            self._hub.groups.leave(consumer, consumer.served)
            del self._consumers[head.number]
        else:
            raise ProtocolError("op", f"{head.op.name} is the broker's to say")

    def leave_all(self) -> None:
        """The program has gone."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            self._hub.groups.leave(consumer, consumer.served)

    def _join(self, head: Head) -> None:
        join = decode_join(head)
        consumer = self._consumers.get(head.number)
        if consumer is None:
            consumer = _Consumer(self._requests, self._hub, self._identity, head.number)
        consumer.served = self._hub.groups.served_for(join.topic, join.group, join.begin)
        self._consumers[head.number] = consumer
        words = encode_words({"cursor": consumer.served.group.cursor})
        self._requests.send(self._identity, encode(Op.JOINED, head.number, words))
        self._hub.groups.join(consumer, consumer.served, join.window, join.timeout)


class _Consumer:
    """One consumer of a group, in a program beyond a socket."""

    served: Served

    def __init__(self, requests: Requests, hub: Hub, identity: bytes, number: int) -> None:
        self._requests = requests
        self._hub = hub
        self._identity = identity
        self._number = number
        self._acked = 0

    def __str__(self) -> str:
        return f"{self._identity.hex()}/{self._number}"

    def deliver(self, messages: Sequence[tuple[Delivery, Message | None]]) -> None:
        deliveries, parts = [], []
        for delivery, message in messages:
            of_message = parts_of(message) if message is not None else []
            deliveries.append((delivery.offset, delivery.attempt, len(of_message)))
            parts.extend(of_message)
        head = encode(Op.DELIVER, self._number, encode_deliveries(deliveries), len(deliveries))
        self._requests.send(self._identity, head, parts)

    def ack(self, head: Head) -> None:
        deliveries = [(one.offset, one.attempt) for one in decode_deliveries(head)]

        def told(error: TransferError | None) -> None:
            if error is None:
                self._acked += len(deliveries)
                self._requests.send(
                    self._identity, encode(Op.ACKED, self._number, self._acked.to_bytes(8, "little"))
                )

        stale = self._hub.groups.ack(self, self.served, deliveries, told)
        if stale:
            self._tell_stale(stale)

    def nack(self, head: Head) -> None:
        offset, attempt, retry, reason = decode_nack(head)
        outcome = self._hub.groups.nack(self, self.served, (offset, attempt), reason, retry=retry)
        if outcome.value == "stale":
            self._tell_stale([(offset, attempt)])

    def _tell_stale(self, stale: Sequence[tuple[int, int]]) -> None:
        body = encode_deliveries((offset, attempt, 0) for offset, attempt in stale)
        self._requests.send(self._identity, encode(Op.STALE, self._number, body, len(stale)))
