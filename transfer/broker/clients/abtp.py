"""Clients for abtp/1, over pyzmq.

with AbtpProducer() as producer:
    producer.publish("orders.created", {"id": 7})
with AbtpConsumer("worker-1", ["orders.*"]) as consumer:
    order = consumer.recv()
    consumer.ack(order)
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.abtp_connection import POLL_INTERVAL, AbtpConnection, signer
from transfer.broker.core.dispatcher_actions import Ack, Deregister, Heartbeat, Nack, Register
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.core.topic_names import encode_topic
from transfer.broker.protocols.abtp import (
    PUB_ENDPOINT,
    ROUTER_ENDPOINT,
    WANTS_ANSWER,
    encode_control,
    encode_register,
)
from transfer.broker.protocols.abtp_delivered import AbtpDelivered, read_delivered
from transfer.broker.protocols.abtp_media import compress_payload, encode_payload
from transfer.broker.protocols.abtp_words import CONTROL, SPEC_VERSION, Code, to_json
from transfer.json_text import check_plain
from transfer.transports.arguments import instance, members, patience, sequence, text, wrong
from transfer.transports.errors import Again, Closed, ProtocolError, TransferError, UsageError, comes_with

with comes_with("fronts", __name__):
    import msgspec
    import zmq

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

_log = logging.getLogger("transfer")
#: bytes of an envelope that a client takes, decompressed
_MAX_ENVELOPE = 64 << 20
#: answers after which a client may retry
_LATER = frozenset({Code.THROTTLED, Code.DROPPED, Code.UNAVAILABLE})


class AbtpProducer(AbtpConnection):
    """Publishes messages, with acknowledgements. Thread-safe: calls wait for each other.

    timeout: seconds for an answer. security: certificates, instead of those of the TRANSFER_TLS_ variables;
    with them it connects by TLS. Raises Again (no answer in time, or retry later), ProtocolError (refused;
    `reason` is the code), UsageError (JSON cannot encode it, or readers could not decode it), SecurityError
    (a token without TLS: the protocol has none), Closed.
    """

    def __init__(
        self,
        endpoint: str = ROUTER_ENDPOINT,
        *,
        producer_id: str = "",
        tenant: str = "",
        timeout: float = 30.0,
        security: Security | None = None,
    ) -> None:
        text(producer_id, "producer_id"), text(tenant, "tenant")
        super().__init__(zmq.DEALER, endpoint, timeout, security)
        self.producer_id = producer_id or f"transfer-{uuid.uuid4().hex[:12]}"
        self._tenant = tenant
        #: messages without an answer
        self._open: dict[str, None] = {}

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        message_id: str = "",
        codec: str = "",
        compress: bool | str = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> str:
        """Publishes bytes unchanged, and other payloads as JSON. Returns the message's id.

        codec: encodes the payload, for example "msgpack". compress: True is "lz4"; or a name, for example
        "zstd". headers: known ones (priority, ttl_ms, delivery_mode, idempotency_key ...) and yours, of types
        that JSON has; other values, and keys that are no text, raise UsageError. wait:
        returns when the broker has taken the message; else `confirm` waits. message_id: the broker does not
        detect that an id repeats.
        """
        if timeout is not None:
            patience(timeout, endless=False)
        message_id = text(message_id, "message_id") or uuid.uuid4().hex
        bare = isinstance(payload, bytes | bytearray | memoryview)
        codec = text(codec, "codec") or ("raw" if bare else "json")
        data = encode_payload(payload, codec)
        # The id comes first: a broker that refuses the other headers can still read it.
        envelope: dict[str, Any] = {"message_id": ""}
        envelope |= {
            **members(headers, "headers"),
            "message_id": message_id,
            "producer_id": self.producer_id,
            "timestamp_unix_ms": int(time.time() * 1000),
            "codec": codec,
        }
        if self._tenant:
            envelope["tenant_id"] = self._tenant
        if compress:
            compress = compress if compress is True else text(compress, "compress")
            envelope["compression"] = "lz4" if compress is True else compress
            data = compress_payload(data, envelope["compression"])
        try:
            check_plain(envelope)  # msgspec encodes bytes, times and other keys as text
        except (TypeError, RecursionError) as error:
            raise UsageError(f"the headers cannot be represented in JSON: {error}") from error
        flags, name = bytes((WANTS_ANSWER,)), encode_topic(topic)
        frames = (b"", SPEC_VERSION.encode(), flags, name, to_json(envelope, "the headers"), data)
        with self._lock:
            self._open[message_id] = None
            self._send(*frames)
            if wait:
                self.confirm(timeout, message_id=message_id)
        return message_id

    def confirm(self, timeout: float | None = None, *, message_id: str | None = None) -> None:
        """Waits until the broker has taken all messages, or this one. Raises the first refusal."""
        deadline = self._deadline(timeout)
        refused: TransferError | None = None
        with self._lock:
            while (message_id in self._open) if message_id is not None else self._open:
                refused = self._answer(self._frames(deadline)) or refused
        if refused is not None:
            raise refused

    def _answer(self, frames: list[bytes]) -> TransferError | None:
        answer = _read_answer(frames)
        message_id = str(answer.get("message_id"))
        if not message_id and len(self._open) == 1:  # the broker refused it before it could read its id
            message_id = next(iter(self._open))
        self._open.pop(message_id, None)
        return _error(answer) if answer.get("type") == "error" else None


class AbtpConsumer(AbtpConnection):
    """Registers with the broker, receives messages one after the other, and acknowledges each. Thread-safe.

    A thread sends heartbeats, however long a message takes. If the broker has lost the session (after a
    restart), the consumer registers again.

    subscriptions: patterns (`orders.*`, `orders.>`) that route to this consumer while it is connected;
    without any, routes of the broker's catalog lead to it. session_id: of a session to resume. sign: signs
    its control messages with the token of `security`, for a broker with `abtp.signed`. Raises Again (no
    answer in time), ProtocolError (refused), SecurityError (no token to sign with), Closed.
    """

    def __init__(
        self,
        consumer_id: str,
        subscriptions: Sequence[str] = (),
        endpoint: str = ROUTER_ENDPOINT,
        *,
        tenant: str = "",
        capabilities: ConsumerCapabilities | None = None,
        session_id: str | None = None,
        heartbeat: float = 5.0,
        timeout: float = 30.0,
        security: Security | None = None,
        sign: bool = False,
    ) -> None:
        text(consumer_id, "consumer_id"), text(tenant, "tenant")
        if session_id is not None:
            text(session_id, "session_id")
        if not (capabilities is None or isinstance(capabilities, ConsumerCapabilities)):
            raise wrong("capabilities", capabilities, "Capabilities(...), or None")
        patterns = [text(one, "a pattern") for one in sequence(subscriptions, "subscriptions", "patterns")]
        heartbeat = patience(heartbeat, "heartbeat", endless=False) or 0.0
        if not isinstance(sign, bool):
            raise wrong("sign", sign, "True or False")
        self._signer = signer(security) if sign else None
        super().__init__(zmq.DEALER, endpoint, timeout, security)
        self.consumer_id = consumer_id
        self.session_id = ""
        #: refused acknowledgements that no call waited for
        self.refused = 0
        self._register = Register(
            consumer_id, tenant, "direct", tuple(patterns), capabilities or ConsumerCapabilities(), session_id
        )
        self._inbox: deque[AbtpDelivered] = deque()
        #: the answers that threads wait for, as (type, delivery), and the received ones
        self._awaited: list[tuple[str, str]] = []
        self._answers: list[dict[str, Any]] = []
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._send_heartbeats, args=(heartbeat,), daemon=True)
        try:
            self._request(encode_register(self._register), "consumer.registered", "", timeout)
        except BaseException:
            super().close()
            raise
        self._beats.start()

    def recv(self, timeout: float | None = None) -> AbtpDelivered:
        """Returns the next message. Raises Again if none arrives in time.

        It refuses a message that it cannot decode, which becomes a dead letter, and logs that.
        """
        deadline = self._deadline(timeout)
        while True:
            with self._reading:
                if self._inbox:
                    return self._inbox.popleft()
                self._read(deadline)

    def ack(self, message: AbtpDelivered, *, confirm: bool = False) -> None:
        """Acknowledges a message as processed.

        confirm: waits until the acknowledgement is on the broker's disk: then the message is not delivered
        again. Raises ProtocolError with reason `stale_ack` if another consumer has got the message meanwhile.
        """
        instance(message, AbtpDelivered, "message")
        request = Ack(message.message_id, self.consumer_id, message.session_id, message.delivery_id, confirm)
        self._settle(request, confirm)

    def nack(
        self, message: AbtpDelivered, reason: str = "", *, terminal: bool = False, confirm: bool = False
    ) -> None:
        """Refuses a message: the broker delivers it again, or, if terminal, makes it a dead letter."""
        instance(message, AbtpDelivered, "message")
        ids = message.session_id, message.delivery_id
        request = Nack(message.message_id, self.consumer_id, terminal, text(reason, "reason"), *ids, confirm)
        self._settle(request, confirm)

    def heartbeat(self) -> None:
        """Sends a heartbeat, and waits for the broker's answer."""
        request = encode_control(Heartbeat(self.consumer_id, self.session_id, True), _now_ms())
        self._request(request, "consumer.heartbeat.accepted", "", self._timeout)

    def close(self) -> None:
        """Deregisters: other consumers get its unacknowledged messages at once. Idempotent."""
        self._ended.set()
        if self._beats.is_alive():
            self._beats.join(10.0)
        if not self._context.closed and self.session_id:
            request = encode_control(Deregister(self.consumer_id, self.session_id), _now_ms())
            try:
                self._request(request, "consumer.deregistered", "", min(self._timeout, 1.0))
            except TransferError:
                pass  # the broker ends the session when heartbeats are missing
        super().close()

    def _settle(self, request: Ack | Nack, confirm: bool) -> None:
        data = encode_control(request, _now_ms())
        if confirm:
            word = "ack.accepted" if isinstance(request, Ack) else "nack.accepted"
            self._request(data, word, request.delivery_id or "", self._timeout)
        else:
            self._send_control(data)

    def _send_control(self, data: bytes) -> None:
        """Sends a control message. Raises Again if the broker does not take it in time, Closed."""
        self._send(b"", CONTROL, data, sign=self._signer)

    def _request(self, data: bytes, word: str, delivery_id: str, timeout: float) -> dict[str, Any]:
        """Sends a request, and returns its answer. Raises an answer that is an error.

        It queues messages that arrive meanwhile.
        """
        awaited = word, delivery_id
        deadline = self._deadline(timeout)
        with self._reading:
            self._awaited.append(awaited)
        try:
            self._send_control(data)
            while True:
                with self._reading:
                    answer = next((one for one in self._answers if _fits(one, awaited)), None)
                    if answer is None:
                        self._read(deadline)
                        continue
                    self._answers.remove(answer)
                if answer.get("type") == "error":
                    raise _error(answer)
                return answer
        finally:
            with self._reading:
                self._awaited.remove(awaited)

    def _read(self, deadline: float) -> None:
        """Takes the next message, if it arrives within a moment: then other threads get the lock."""
        try:
            self._take(self._frames(min(deadline, time.monotonic() + POLL_INTERVAL)))
        except Again:
            if time.monotonic() >= deadline:
                raise

    def _take(self, frames: list[bytes]) -> None:
        """Queues a message, or processes an answer."""
        if len(frames) < 2 or frames[-2] != CONTROL:
            self._take_message(frames[-1])
            return
        answer = _read_answer(frames)
        if any(_fits(answer, awaited) for awaited in self._awaited):
            self._answers.append(answer)
        elif answer.get("type") == "error":
            self.refused += 1
        if answer.get("type") == "consumer.registered":
            self.session_id = str(answer.get("session_id"))
        elif answer.get("code") == "unknown_session":
            self._send_control(encode_register(self._register))

    def _take_message(self, envelope: bytes) -> None:
        """Queues a message. It refuses an unreadable one without an error for waiting calls."""
        try:
            found = read_delivered(envelope, _MAX_ENVELOPE)
        except ProtocolError as error:
            self.refused += 1
            _log.warning("a delivery that is no envelope: %s", error)
            return
        if not found.fault:
            self._inbox.append(found)
            return
        _log.warning("message %s is refused: %s", found.message_id, found.fault)
        ids = found.session_id, found.delivery_id
        request = Nack(found.message_id, self.consumer_id, True, found.fault, *ids)
        self._send_control(encode_control(request, _now_ms()))

    def _send_heartbeats(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            request = encode_control(Heartbeat(self.consumer_id, self.session_id), _now_ms())
            try:
                self._send_now((b"", CONTROL, request), self._signer)
            except zmq.Again:
                continue  # the broker is away; a later heartbeat reaches it
            except Closed:
                return


class AbtpSubscriber(AbtpConnection):
    """Receives messages of topics that begin with a prefix, at most once.

    Messages are lost if this socket's buffer is full, or if they are published before the subscription
    reaches the broker.
    """

    def __init__(
        self,
        prefixes: Sequence[str] = ("",),
        endpoint: str = PUB_ENDPOINT,
        *,
        timeout: float = 30.0,
        security: Security | None = None,
    ) -> None:
        encoded = [_encode_prefix(prefix) for prefix in sequence(prefixes, "prefixes", "prefixes")]
        super().__init__(zmq.SUB, endpoint, timeout, security)
        for prefix in encoded:
            self._socket.setsockopt(zmq.SUBSCRIBE, prefix)

    def subscribe(self, prefix: str) -> None:
        """Subscribes to topics that begin with `prefix`. The empty prefix matches all topics."""
        encoded = _encode_prefix(prefix)
        with self._lock:
            self._check_open()
            self._socket.setsockopt(zmq.SUBSCRIBE, encoded)

    def unsubscribe(self, prefix: str) -> None:
        """Ends a subscription to a prefix."""
        encoded = _encode_prefix(prefix)
        with self._lock:
            self._check_open()
            self._socket.setsockopt(zmq.UNSUBSCRIBE, encoded)

    def recv(self, timeout: float | None = None) -> AbtpDelivered:
        """Returns the next message.

        Raises Again if none arrives in time, ProtocolError if it is unreadable.
        """
        found = read_delivered(self._frames(self._deadline(timeout))[-1], _MAX_ENVELOPE)
        if found.fault:
            raise ProtocolError(Code.MALFORMED_ENVELOPE, f"message {found.message_id}: {found.fault}")
        return found


def _encode_prefix(prefix: str) -> bytes:
    return text(prefix, "a prefix").encode()


def _read_answer(frames: list[bytes]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(frames[-1], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ProtocolError(Code.MALFORMED_CONTROL, str(error)) from error


def _fits(answer: Mapping[str, Any], awaited: tuple[str, str]) -> bool:
    """Whether it is the awaited answer, or an error instead of it."""
    word, delivery_id = awaited
    return str(answer.get("delivery_id") or "") == delivery_id and answer.get("type") in (word, "error")


def _error(answer: Mapping[str, Any]) -> TransferError:
    code, text = str(answer.get("code")), str(answer.get("message"))
    return Again(f"{code}: {text}") if code in _LATER else ProtocolError(code, text)


def _now_ms() -> int:
    return int(time.time() * 1000)
