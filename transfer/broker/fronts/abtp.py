"""The abtp front: a ROUTER for producers and consumers, and a PUB for fan-out, on the broker's loop.

libzmq's descriptor reports only changes, so each turn reads until nothing is left, or another turn is
scheduled. A send may hide a change, so a turn follows each send, too.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from transfer.broker.core.dispatcher_actions import Admitted, Dispatch, Full, NoRoute, Register, Reply
from transfer.broker.core.dispatcher_events import MessageInfo
from transfer.broker.core.message import Front, Message
from transfer.broker.delivery.delivery_sink import DirectDriver, Sent
from transfer.broker.fronts.abtp_peer_names import NameTable
from transfer.broker.fronts.abtp_pub import PubSubscriber, codec_of, envelope_of
from transfer.broker.fronts.abtp_request_reader import RequestReader
from transfer.broker.fronts.abtp_sender import AbtpOutgoing, Frames
from transfer.broker.fronts.abtp_sockets import AbtpSettings, bind, open_sockets
from transfer.broker.fronts.abtp_unrouted import Awaiting, AwaitingRoute
from transfer.broker.protocols.abtp import (
    AbtpControl,
    AbtpLimits,
    Published,
    Rejected,
    Request,
    encode_accepted,
    encode_error,
    encode_reply,
    read_frames,
)
from transfer.broker.protocols.abtp_envelope import Envelope, write_envelope
from transfer.broker.protocols.abtp_media import Compressor, codecs, compressors
from transfer.broker.protocols.abtp_signing import Signatures
from transfer.broker.protocols.abtp_words import CONTROL, DEAD_LETTERS, Code
from transfer.broker.protocols.zmtp import frame_size
from transfer.broker.turns import TURN_SECONDS, call_after_turns
from transfer.peer_faults import PeerFaults
from transfer.steady_clock import of_wall, unix_ms
from transfer.transports.errors import InternalError, LogFull, ProtocolError, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.offload_pool import OffloadPool
    from transfer.broker.storage.durability import OnComplete

_log = logging.getLogger("transfer.broker")

#: plain integers: pyzmq's enums cost a microsecond more for each frame
_NOW, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


class AbtpFront:
    """The abtp front. It is made and used on the broker's loop only. Raises AddressInUse, AddressError.

    endpoints: where it listens, by "router" and "pub". connections: open at both. pool: decodes and
    compresses large messages. names: of the peers, if they connect through a relay. on_published: called with
    the size of each message given to the PUB. signatures: of control messages; None: they need none.
    counters: events by name.
    """

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        direct: DirectDriver,
        settings: AbtpSettings | None = None,
        *,
        pool: OffloadPool | None = None,
        names: NameTable[Any] | None = None,
        on_published: Callable[[int], None] | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self.settings = settings or AbtpSettings()
        for load in (codecs, compressors):  # including those of other distributions; raises if one fails
            load()
        self.counters: Counter[str] = Counter()
        self._hub, self._loop, self._direct = hub, loop, direct
        self._limits = AbtpLimits(self.settings.max_payload)
        self._names, self._on_published, self._signatures = names, on_published, signatures
        self._unkept = self._unkept_bytes = 0
        self._scheduled = self._wanted = False
        self._requests = RequestReader(self._decode, self._handle, self._failed, pool, self._soon)
        self._outgoing = AbtpOutgoing(self._send, pool)
        grace, most = self.settings.route_grace, self.settings.awaiting
        of_topic = self.settings.awaiting_of_topic
        self._awaiting = AwaitingRoute(loop, grace, most, of_topic, self._publish_waiting)
        self._faults = PeerFaults(_log)
        self.connections = 0
        self._context = zmq.Context()
        try:
            self._router, self._pub = sockets = open_sockets(self._context, self.settings)
            self.endpoints = {
                "router": bind(self._router, self.settings.router),
                "pub": bind(self._pub, self.settings.pub),
            }
        except BaseException:
            self._context.destroy(0)
            raise
        self._monitors = [
            one.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED) for one in sockets
        ]
        self.subscriber = PubSubscriber(hub, self._send_to_subscribers, self.settings.max_payload)
        for socket in (self._router, self._pub, *self._monitors):
            loop.add_reader(socket.fileno(), self._readable)
        direct.attach(self)
        self._soon()

    def tick(self, now: float) -> None:
        """Schedules a turn, about once a second."""
        self._soon()

    def close(self) -> None:
        """Closes both sockets; answers have a moment to leave. Idempotent."""
        if self._context.closed:
            return
        for socket in (self._router, self._pub, *self._monitors):
            self._loop.remove_reader(socket.fileno())
        self._hub.fanout.leave(self.subscriber)
        self._awaiting.close()
        self._context.destroy()

    # -- reading -----------------------------------------------------------------------------------------

    def _soon(self) -> None:
        """Schedules a turn after the current one: a send may hide that a message came."""
        self._wanted = True
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _readable(self) -> None:
        if not self._scheduled:
            self._turn()

    def _turn(self) -> None:
        """Runs one turn, and schedules at most one more."""
        if self._context.closed:
            return
        self._scheduled, self._wanted, late = True, False, False
        try:
            late = self._receive()
            self._read_events()
            self._hub.end_turn()
        finally:
            self._scheduled = late or self._wanted
            if late:
                call_after_turns(self._loop, self._turn)
            elif self._wanted:
                self._loop.call_soon(self._turn)

    def _receive(self) -> bool:
        """Receives some messages. Returns whether the time of this turn was not enough."""
        until = time.monotonic() + TURN_SECONDS
        for _ in range(self.settings.batch):
            if self._requests.is_full:
                return False
            if time.monotonic() > until:
                return True
            try:
                frames = self._router.recv_multipart(_NOW)
            except zmq.Again:
                return False
            if self._names is not None:
                frames[0] = self._names.identity(frames[0])
            self._requests.add(frames)
        self._soon()
        return False

    def _read_events(self) -> None:
        """Reads the subscriptions of SUB sockets, and connections that come and go."""
        for socket in (self._pub, *self._monitors):
            for _ in range(self.settings.batch):
                try:
                    frames = socket.recv_multipart(_NOW)
                except zmq.Again:
                    break
                try:
                    if socket is self._pub:
                        self.subscriber.on_subscription(frames[0])
                    else:
                        came = parse_monitor_message(frames)["event"] == zmq.EVENT_ACCEPTED
                        self.connections += 1 if came else -1
                except Exception as error:  # noqa: BLE001 - of this subscription only
                    self._failed(None, "a subscription", error)
            else:
                self._soon()

    def _failed(self, peer: bytes | None, what: str, error: Exception) -> None:
        """Counts and logs an unexpected error that one peer caused, and refuses its message."""
        self.counters["failed"] += 1
        refusal = self._faults.note(what, error, peer)
        if peer is not None:
            with suppress(TransferError):
                self._refuse(peer, Code.UNAVAILABLE, str(refusal), "")

    def _decode(self, frames: Frames) -> Request:
        """Decodes a request. Runs in any thread."""
        return read_frames(frames, int(time.time() * 1000), secrets.token_hex(16), self._limits)

    def _handle(self, peer: bytes, request: Request | TransferError) -> None:
        if self._context.closed:
            return
        if isinstance(request, TransferError):
            self._refuse(peer, Code.UNAVAILABLE, str(request), "")
        else:
            self._do(peer, request)

    def _do(self, peer: bytes, request: Request) -> None:
        match request:
            case Published(envelope, answer):
                self.counters["ingress"] += 1
                self._publish(peer, _timed(envelope), answer)
            case Rejected(code, text, message_id):
                self._refuse(peer, code, text, message_id)
            case AbtpControl():
                self._request(peer, request)

    def _request(self, peer: bytes, message: AbtpControl) -> None:
        """Handles a consumer's control message."""
        self.counters["control"] += 1
        control = message.control
        try:
            if self._signatures is not None:
                self._signatures.check(control.consumer_id, message.data, message.signature)
        except ProtocolError as error:
            text = str(error).removeprefix(f"{error.reason}: ")
            ids = getattr(control, "message_id", ""), getattr(control, "delivery_id", None) or ""
            self._refuse(peer, error.reason, text, *ids)
            return
        try:
            self._direct.request(peer, control)
        except TransferError as error:
            self._refuse(peer, Code.UNAVAILABLE, str(error), "")
        if isinstance(control, Register):
            self._awaiting.retry()

    # -- publishing --------------------------------------------------------------------------------------

    def _publish(self, peer: bytes, envelope: Envelope, answer: bool) -> None:
        refused = self._denied(envelope)
        if refused is not None:
            self._refuse(peer, *refused, envelope.message_id)
            return
        message = Message(
            envelope.topic,
            (envelope.payload,),
            Front.ABTP,
            envelope.head,
            {**envelope.headers, "message_id": envelope.message_id},
        )
        on_complete = self._completion(peer, envelope.message_id, message.nbytes, answer)
        try:
            if envelope.delivery_mode == "fanout" or not self._publish_direct(
                peer, envelope, message, on_complete
            ):
                self._fan_out(envelope, message, on_complete)
        except Exception as error:  # noqa: BLE001 - of this message only, of which nothing was taken; its peer gets the refusal
            on_complete(self._faults.refusal("a message", error, peer))

    def _publish_waiting(self, one: Awaiting) -> None:
        """Publishes a message that waited for a route."""
        try:
            if not self._publish_direct(one.peer, one.envelope, one.message, one.on_complete, one.until):
                self._fan_out(one.envelope, one.message, one.on_complete)
        except Exception as error:  # noqa: BLE001 - of this message only, of which nothing was taken
            one.on_complete(self._faults.refusal("a message that waited", error, one.peer))

    def _publish_direct(
        self,
        peer: bytes,
        envelope: Envelope,
        message: Message,
        on_complete: OnComplete,
        until: float | None = None,
    ) -> bool:
        """Gives a message to direct delivery, or holds it for that. until: of a message that was held before.

        Returns False if there is no direct route and none is required.
        """
        facts = MessageInfo(
            envelope.tenant,
            envelope.topic,
            envelope.message_id,
            envelope.producer_id,
            message.nbytes,
            envelope.priority,
            envelope.expires_ms,
            envelope.due_ms,
        )
        match self._direct.publish_direct(message, facts, on_complete):
            case Admitted():
                self.counters["direct"] += 1
                return True
            case Full(limit):
                self._forget(message.nbytes)
                self._refuse(peer, limit.outcome, f"{limit} is reached", envelope.message_id)
                return True
            case NoRoute(awaited=True) if self._awaiting.hold(peer, envelope, message, on_complete, until):
                self.counters["awaiting_route"] += until is None
                return True
            case NoRoute() if envelope.delivery_mode == "direct":
                self._forget(message.nbytes)
                self._direct.unroutable(message, facts, Code.NO_ROUTE)
                text = f"no direct route for {envelope.topic}"
                self._refuse(peer, Code.NO_ROUTE, text, envelope.message_id)
                return True
        return False

    def _fan_out(self, envelope: Envelope, message: Message, on_complete: OnComplete) -> None:
        if _expired(envelope):
            self.counters["expired"] += 1
            on_complete(None)
            return
        self.counters["fanout"] += 1
        if envelope.tenant:  # each tenant has its topics apart
            topic = f"{envelope.tenant}/{envelope.topic}"
            message = Message(topic, message.parts, message.front, message.head, message.headers)
        self._hub.publish(message, on_complete, hold=False)

    def _denied(self, envelope: Envelope) -> tuple[Code, str] | None:
        """Returns why a message may not be published, or None."""
        if envelope.topic.startswith((DEAD_LETTERS, "_system.")) or envelope.topic.encode() == CONTROL:
            return Code.POLICY_DENIED, f"only the broker publishes on {envelope.topic}"
        if envelope.delivery_mode == "bridge":
            return Code.POLICY_DENIED, "this broker has no bridges"
        settings = self.settings
        if self._unkept >= settings.unkept or self._unkept_bytes >= settings.unkept_bytes:
            self.counters["throttled"] += 1
            return Code.THROTTLED, "too many messages wait for the disk: retry later"
        return None

    def _completion(self, peer: bytes, message_id: str, nbytes: int, answer: bool) -> OnComplete:
        """Returns the callback for when a message is kept, or is not."""
        self._unkept += 1
        self._unkept_bytes += nbytes

        def on_complete(error: TransferError | None) -> None:
            self._forget(nbytes)
            if error is None:
                if answer:
                    self._reply(peer, encode_accepted(message_id))
                return
            code, text = Code.UNAVAILABLE, str(error)
            if isinstance(error, LogFull):
                code, text = Code.THROTTLED, self._hub.full or text
            elif isinstance(error, UsageError):
                code = Code.POLICY_DENIED
            self._refuse(peer, code, text, message_id)

        return on_complete

    def _forget(self, nbytes: int) -> None:
        self._unkept -= 1
        self._unkept_bytes -= nbytes

    # -- sending -----------------------------------------------------------------------------------------

    def dispatch(self, action: Dispatch, message: Message) -> Sent:
        """Sends a message to a consumer, in an envelope that identifies the delivery."""
        reads = action.session.capabilities
        codec = codec_of(message)
        if codec not in reads.supports_codec:
            return Sent.UNSUPPORTED_CODEC
        known: dict[str, Compressor | None] = {"none": None, **compressors()}
        packs = next((known[name] for name in reads.supports_compression if name in known), None)
        make = partial(_frames_of, action, message, codec, packs)
        failed = partial(self._direct.unsent, action)
        if packs and self._outgoing.takes(message.nbytes):
            return self._outgoing.pack(action.peer, make, failed)
        try:
            frames = make()
        except Exception as error:  # noqa: BLE001 - of a compressor of another distribution
            self._failed(None, "a message to be compressed", error)
            return Sent.FAILED
        return self._outgoing.send(frames, failed)

    def answer(self, peer: bytes, reply: Reply) -> None:
        """Answers a consumer."""
        self._reply(peer, encode_reply(reply))

    def _refuse(self, peer: bytes, code: str, text: str, message_id: str, delivery_id: str = "") -> None:
        self.counters["refused"] += 1
        self.counters[f"refused_{code}"] += 1
        self._reply(peer, encode_error(code, text, message_id, delivery_id))

    def _reply(self, peer: bytes, answer: bytes) -> None:
        def unanswered(sent: Sent) -> None:
            self.counters["unanswered"] += 1

        sent = self._outgoing.send([peer, b"", CONTROL, answer], unanswered)
        if sent is not Sent.YES:
            unanswered(sent)

    def _send(self, frames: Frames) -> Sent:
        if self._context.closed:
            return Sent.GONE
        self._soon()
        peer, nbytes = frames[0], sum(map(frame_size, frames[1:]))
        named = self._names.newest(peer) if self._names is not None else None
        if named is not None:
            peer, queued = named.name, named.queued_bytes()
            if queued and queued + nbytes > self.settings.peer_bytes:
                return Sent.BUSY
        try:
            self._router.send(peer, _MORE)
            for frame in frames[1:-1]:
                self._router.send(frame, _MORE)
            self._router.send(frames[-1], _NOW)
        except zmq.Again:
            return Sent.BUSY
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.GONE
            raise InternalError(f"the ROUTER cannot send: {error}") from error
        if named is not None:
            named.sent += nbytes
        return Sent.YES

    def _send_to_subscribers(self, topic: bytes, envelope: bytes) -> None:
        self._soon()
        self._pub.send(topic, _MORE)
        self._pub.send(envelope, _NOW)
        if self._on_published is not None:
            self._on_published(len(envelope))


def _frames_of(action: Dispatch, message: Message, codec: str, packs: Compressor | None) -> Frames:
    """Makes the frames of a message for a consumer. Runs in any thread."""
    delivery = action.delivery
    envelope = write_envelope(
        *envelope_of(message, codec),
        attempt=delivery.attempt,
        delivery_id=delivery.delivery_id,
        session_id=delivery.session_id,
    )
    return [action.peer, b"", delivery.topic.encode(), packs.compress(envelope) if packs else envelope]


def _timed(envelope: Envelope) -> Envelope:
    """Converts the envelope's times from the wall clock, which may have been set since this process began."""
    expires, due = of_wall(envelope.expires_ms), of_wall(envelope.due_ms)
    if (expires, due) == (envelope.expires_ms, envelope.due_ms):
        return envelope
    return replace(envelope, expires_ms=expires, due_ms=due)


def _expired(envelope: Envelope) -> bool:
    """Returns whether an envelope that was `_timed` has expired."""
    return 0 < envelope.expires_ms <= unix_ms()
