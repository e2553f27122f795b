"""The consumers of programs that speak the native protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.fronts.native_downloads import Allowance, Offers, is_large
from transfer.broker.fronts.native_frames import OutPart, check_head, parts_of, unreadable
from transfer.broker.fronts.native_uploads import ProgramArrivals
from transfer.broker.protocols.native import (
    Head,
    Op,
    decode_ack,
    decode_join,
    decode_nack,
    encode,
    encode_deliveries,
    encode_words,
)
from transfer.broker.protocols.native_pieces import Place, decode_place, encode_place
from transfer.transports.errors import ProtocolError, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delivery
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.group_contract import Served
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.fronts.native_requests import NativeRequests

#: limit on the consumers of one program
MOST_CONSUMERS = 10_000
#: bytes of messages that may wait for a program before its consumers are paused: windows count only messages
MOST_WAITING = 64 << 20
#: dead letters that are not kept yet; with more, a consumer that refused messages is paused
MAX_PENDING_DEAD_LETTERS = 5000
#: bytes sent to a program between two checks of how many wait
_LOOK = 1 << 20
#: seconds until a paused program is checked again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2


class Program:
    """The consumers of one program, by the numbers that it gave them."""

    def __init__(self, requests: NativeRequests, hub: Hub, identity: bytes) -> None:
        self._requests = requests
        self._hub = hub
        self._identity = identity
        self._consumers: dict[int, NativeConsumer] = {}
        self._sent = 0  # bytes, since the last check of how many wait
        self._paused = self._gone = False
        self.allowance = Allowance()
        self.arrivals = ProgramArrivals(
            requests.arrivals, partial(requests.send, identity), partial(requests.refuse, identity)
        )

    def do(self, head: Head) -> None:
        """Handles a request about one consumer. Raises ProtocolError, UsageError."""
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
            if self._hub.groups.dead_letters.pending >= MAX_PENDING_DEAD_LETTERS and not self._paused:
                self._pause_for_now()
        elif head.op is Op.FETCH:
            consumer.fetch(head)
        elif head.op is Op.LEAVE:
            consumer.leave()
            del self._consumers[head.number]
        else:
            raise ProtocolError("op", f"only the broker sends {head.op.name}")

    def count_sent(self, nbytes: int) -> None:
        """Counts bytes of messages to the program. If it does not read them, its consumers are paused."""
        self._sent += nbytes
        if self._sent < _LOOK or self._paused:
            return
        self._sent = 0
        waiting = self._requests.backlog(self._identity)
        if waiting is None or waiting >= MOST_WAITING:
            self._requests.paused()
            self._pause_for_now()

    def _pause_for_now(self) -> None:
        self._pause(True)
        self._schedule_check(_FIRST_PAUSE)

    def _pause(self, paused: bool) -> None:
        self._paused = self.allowance.paused = paused
        self.allowance.go_on()
        for consumer in list(self._consumers.values()):
            if self._paused is not paused:  # the others received too much at once
                return
            self._hub.groups.pause(consumer, consumer.served, paused)

    def _schedule_check(self, pause: float) -> None:
        self._requests.later(pause, self._check_resume, pause)

    def _check_resume(self, pause: float) -> None:
        """Resumes the consumers if the program has read and dead letters are kept. No event reports this; the
        pauses between checks double."""
        if self._gone:
            return
        waiting = self._requests.backlog(self._identity)
        pending = self._hub.groups.dead_letters.pending
        if waiting is not None and waiting <= MOST_WAITING // 2 and pending <= MAX_PENDING_DEAD_LETTERS // 2:
            self._pause(False)
        else:
            self._schedule_check(min(2 * pause, _LONGEST_PAUSE))

    def leave(self) -> Iterable[NativeConsumer]:
        """Ends the program, which has disconnected. Returns its consumers, which have to leave."""
        self._gone = True
        self.arrivals.leave()
        consumers, self._consumers = self._consumers, {}
        return consumers.values()

    def _join(self, head: Head) -> None:
        join = decode_join(head)
        if join.several:
            self._requests.understands_several(self._identity)
        consumer = self._consumers.get(head.number)
        if consumer is None and len(self._consumers) >= MOST_CONSUMERS:
            raise UsageError(
                f"one more than the {MOST_CONSUMERS} consumers that a program may have",
                hint="end some, or use another connection",
            )
        served = self._hub.groups.served_for(join.topic, join.group, join.begin)
        if (
            consumer is not None and consumer.served is not served
        ):  # the group was made anew: what it holds of the other goes back
            consumer.leave()
            consumer = None
        if consumer is None:
            consumer = NativeConsumer(self._requests, self._hub, self._identity, head.number, self)
        consumer.served = served
        consumer.offer_large(join.pieces)
        self._consumers[head.number] = consumer
        words = encode_words({"cursor": consumer.served.group.cursor})
        self._requests.send(self._identity, encode(Op.JOINED, head.number, words))
        self._hub.groups.join(consumer, consumer.served, join.window, join.timeout, paused=self._paused)


class NativeConsumer:
    """One consumer of a group, in a program at the other end of a socket."""

    served: Served

    def __init__(
        self, requests: NativeRequests, hub: Hub, identity: bytes, number: int, program: Program
    ) -> None:
        self._requests = requests
        self._hub = hub
        self._identity = identity
        self._number = number
        self._program = program
        self._acked = 0
        self._offers: Offers | None = None
        self.in_pieces = False

    def __str__(self) -> str:
        return f"{self._identity.hex()}/{self._number}"

    def deliver(self, messages: Sequence[tuple[Delivery, Message | None]]) -> None:
        deliveries: list[tuple[int, int, int]] = []
        parts: list[OutPart] = []
        for delivery, message in messages:
            try:
                if self._offers is not None and message is not None and is_large(message):
                    check_head(message)
                    self._deliver(deliveries, parts)
                    deliveries, parts = [], []
                    self._offers.offer(delivery, message)
                    self._requests.delivered(1)
                    continue
                of_message = parts_of(message) if message is not None else []
            except ProtocolError as error:
                assert message is not None
                self._requests.soon(self._refuse, delivery, unreadable(message, error, self._hub.counts))
                continue
            deliveries.append((delivery.offset, delivery.attempt, len(of_message)))
            parts.extend(of_message)
        self._deliver(deliveries, parts)

    def leave(self) -> None:
        """Leaves the group: it gets nothing more, and what it holds goes to others."""
        self._hub.groups.leave(self, self.served)
        self.offer_large(False)

    def removed(self, error: TransferError) -> None:
        """See group_contract.Consumer."""
        self.offer_large(False)
        self._requests.refuse(self._identity, self._number, error)

    def _refuse(self, delivery: Delivery, reason: str) -> None:
        """Refuses a message for the program, which could not read it either: it becomes a dead letter."""
        key = (delivery.offset, delivery.attempt)
        self._hub.groups.nack(self, self.served, key, reason, retry=False)

    def _deliver(self, deliveries: Sequence[tuple[int, int, int]], parts: Sequence[OutPart]) -> None:
        if deliveries:
            self._requests.delivered(len(deliveries))
            head = encode(Op.DELIVER, self._number, encode_deliveries(deliveries), len(deliveries))
            self._requests.send(self._identity, head, parts)
            self._program.count_sent(sum(len(part[3]) for part in parts))

    def offer_large(self, wanted: bool) -> None:
        """Sets whether large messages are offered, and fetched in pieces, from now on. Earlier offers end."""
        if self._offers is not None:
            self._offers.close()
        self.in_pieces = wanted
        reader, allowance = self._requests.reader, self._program.allowance
        self._offers = Offers(reader, self.served.topic, self, allowance) if wanted else None

    def fetch(self, head: Head) -> None:
        place, _ = decode_place(head)
        if self._offers is None or not self._offers.fetch(place):
            self.stale([place[:2]])

    def send(self, op: Op, place: Place, rest: bytes = b"", data: memoryview | None = None) -> None:
        """Sends a command about a delivery of a large message, with bytes of the message."""
        parts: list[OutPart] = [(None, None, 0, data)] if data is not None else []
        self._requests.send(self._identity, encode_place(op, self._number, place, rest), parts)
        self._program.count_sent(len(data) if data is not None else 0)

    def gone(self, offset: int, attempt: int) -> None:
        """Reports that retention or damage removed a delivery's message."""
        self._deliver([(offset, attempt, 0)], [])

    def ack(self, head: Head) -> None:
        deliveries = decode_ack(head)
        if self._offers is not None:
            self._offers.forget(deliveries)

        def on_complete(error: TransferError | None) -> None:
            if error is None:
                self._acked += len(deliveries)
                self._requests.send(
                    self._identity, encode(Op.ACKED, self._number, self._acked.to_bytes(8, "little"))
                )

        stale = self._hub.groups.ack(self, self.served, deliveries, on_complete)
        if stale:
            self.stale(stale)

    def nack(self, head: Head) -> None:
        offset, attempt, retry, reason = decode_nack(head)
        if self._offers is not None:
            self._offers.forget([(offset, attempt)])
        outcome = self._hub.groups.nack(self, self.served, (offset, attempt), reason, retry=retry)
        if outcome.value == "stale":
            self.stale([(offset, attempt)])

    def stale(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Reports deliveries that the consumer no longer holds."""
        body = encode_deliveries((offset, attempt, 0) for offset, attempt in deliveries)
        self._requests.send(self._identity, encode(Op.STALE, self._number, body, len(deliveries)))
