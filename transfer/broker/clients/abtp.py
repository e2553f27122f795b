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

from transfer.broker.clients.abtp_connection import LOOK, AbtpConnection, signer
from transfer.broker.core.dispatcher_actions import Ack, Deregister, Heartbeat, Nack, Register
from transfer.broker.core.sessions import Capabilities
from transfer.broker.protocols.abtp import (
    PUB_ENDPOINT,
    ROUTER_ENDPOINT,
    WANTS_ANSWER,
    encode_control,
    encode_register,
)
from transfer.broker.protocols.abtp_delivered import Delivered, read_delivered
from transfer.broker.protocols.abtp_media import compress_payload, encode_payload
from transfer.broker.protocols.abtp_words import CONTROL, SPEC_VERSION, Code, to_json
from transfer.broker.protocols.names import encode_topic
from transfer.transports.arguments import instance, members, patience, sequence, text, wrong
from transfer.transports.errors import Again, Closed, ProtocolError, TransferError, comes_with

with comes_with("fronts", __name__):
    import msgspec
    import zmq

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

_log = logging.getLogger("transfer")
#: bytes of an envelope that a client takes, decompressed
MAX_ENVELOPE = 64 << 20
#: answers that mean: come again later
_LATER = frozenset({Code.THROTTLED, Code.DROPPED, Code.UNAVAILABLE})


class AbtpProducer(AbtpConnection):
    """Publishes, and hears that it was taken. Thread-safe; threads take turns.

    timeout: seconds for an answer. security: certificates, instead of what the TRANSFER_TLS_ variables say;
    with them it connects by TLS, as the broker wants it then. Raises Again (no answer in time, or come again
    later), ProtocolError (it was refused; `reason` is the code), UsageError (JSON cannot hold it, or readers
    could not decode it), SecurityError (there is a token without TLS, and the protocol knows none), Closed.
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
        #: messages that were not answered yet
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
        """Publishes bytes as they are, and anything else as JSON; returns the message's id.

        codec: another one ("msgpack"), in which the payload is encoded. compress: True is "lz4"; or the name
        of another one ("zstd"). headers: known ones (priority, ttl_ms, delivery_mode, idempotency_key ...)
        and your own. It returns when the broker has taken the message; with wait=False at once, and
        `confirm` waits. An id that is given again is another message with the same id.
        """
        if timeout is not None:
            patience(timeout, endless=False)
        message_id = text(message_id, "message_id") or uuid.uuid4().hex
        bare = isinstance(payload, bytes | bytearray | memoryview)
        codec = text(codec, "codec") or ("raw" if bare else "json")
        data = encode_payload(payload, codec)
        said: dict[str, Any] = {
            "message_id": ""
        }  # its place is the first, where a broker finds it that refuses the rest
        said |= {
            **members(headers, "headers"),
            "message_id": message_id,
            "producer_id": self.producer_id,
            "timestamp_unix_ms": int(time.time() * 1000),
            "codec": codec,
        }
        if self._tenant:
            said["tenant_id"] = self._tenant
        if compress:
            compress = compress if compress is True else text(compress, "compress")
            said["compression"] = "lz4" if compress is True else compress
            data = compress_payload(data, said["compression"])
        flags, name = bytes((WANTS_ANSWER,)), encode_topic(topic)
        frames = (b"", SPEC_VERSION.encode(), flags, name, to_json(said, "the headers"), data)
        with self._lock:
            self._open[message_id] = None
            self._send(*frames)
            if wait:
                self.confirm(timeout, message_id=message_id)
        return message_id

    def confirm(self, timeout: float | None = None, *, message_id: str | None = None) -> None:
        """Waits until all messages, or this one, were taken. Raises what became of the first that was not."""
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
        if not message_id and len(self._open) == 1:  # it was refused before its id could be read
            message_id = next(iter(self._open))
        self._open.pop(message_id, None)
        return _error(answer) if answer.get("type") == "error" else None


class AbtpConsumer(AbtpConnection):
    """Registers, is given messages one after the other, and acknowledges each.

    subscriptions: patterns (`orders.*`, `orders.>`) that are routes to this consumer while it is there;
    without any, routes of the broker's catalog lead to it. A thread of its own sends heartbeats, however
    long a message takes; a session that the broker does not know any more (it was restarted) is begun
    anew. Any thread may call. session_id: of a session to go on with. sign: signs all that it says with the
    token of `security`, for a broker with `abtp.signed`. Raises Again (no answer in time), ProtocolError
    (refused), SecurityError (no token to sign with), Closed.
    """

    def __init__(
        self,
        consumer_id: str,
        subscriptions: Sequence[str] = (),
        endpoint: str = ROUTER_ENDPOINT,
        *,
        tenant: str = "",
        capabilities: Capabilities | None = None,
        session_id: str | None = None,
        heartbeat: float = 5.0,
        timeout: float = 30.0,
        security: Security | None = None,
        sign: bool = False,
    ) -> None:
        text(consumer_id, "consumer_id"), text(tenant, "tenant")
        if session_id is not None:
            text(session_id, "session_id")
        if not (capabilities is None or isinstance(capabilities, Capabilities)):
            raise wrong("capabilities", capabilities, "Capabilities(...), or None")
        patterns = [text(one, "a pattern") for one in sequence(subscriptions, "subscriptions", "patterns")]
        heartbeat = patience(heartbeat, "heartbeat", endless=False) or 0.0
        if not isinstance(sign, bool):
            raise wrong("sign", sign, "True or False")
        self._signer = signer(security) if sign else None
        super().__init__(zmq.DEALER, endpoint, timeout, security)
        self.consumer_id = consumer_id
        self.session_id = ""
        #: acknowledgements that the broker refused, and nobody waited for
        self.refused = 0
        self._register = Register(
            consumer_id, tenant, "direct", tuple(patterns), capabilities or Capabilities(), session_id
        )
        self._inbox: deque[Delivered] = deque()
        #: what threads wait for: (type of the answer, delivery), and the answers that came
        self._awaited: list[tuple[str, str]] = []
        self._answers: list[dict[str, Any]] = []
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, args=(heartbeat,), daemon=True)
        try:
            self._ask(encode_register(self._register), "consumer.registered", "", timeout)
        except BaseException:
            super().close()
            raise
        self._beats.start()

    def recv(self, timeout: float | None = None) -> Delivered:
        """The next message. Raises Again: none came in time. One that its codec cannot decode here is not
        returned: it is refused for good, so that it is a dead letter, and logged."""
        deadline = self._deadline(timeout)
        while True:
            with self._reading:
                if self._inbox:
                    return self._inbox.popleft()
                self._read(deadline)

    def ack(self, message: Delivered, *, confirm: bool = False) -> None:
        """The message was processed. confirm: waits until the broker has that on its disk; then it is
        never delivered again. Raises ProtocolError with reason `stale_ack` if it was given to somebody
        else meanwhile."""
        instance(message, Delivered, "message")
        ask = Ack(message.message_id, self.consumer_id, message.session_id, message.delivery_id, confirm)
        self._settle(ask, confirm)

    def nack(
        self, message: Delivered, reason: str = "", *, terminal: bool = False, confirm: bool = False
    ) -> None:
        """The message was not processed: it is tried again, or, if terminal, becomes a dead letter."""
        instance(message, Delivered, "message")
        ids = message.session_id, message.delivery_id
        ask = Nack(message.message_id, self.consumer_id, terminal, text(reason, "reason"), *ids, confirm)
        self._settle(ask, confirm)

    def heartbeat(self) -> None:
        """Tells the broker that the consumer is there, and waits for its answer."""
        ask = encode_control(Heartbeat(self.consumer_id, self.session_id, True), _now_ms())
        self._ask(ask, "consumer.heartbeat.accepted", "", self._timeout)

    def close(self) -> None:
        """Deregisters: what was not acknowledged is given to others at once. Idempotent."""
        self._ended.set()
        if self._beats.is_alive():
            self._beats.join(10.0)
        if not self._context.closed and self.session_id:
            ask = encode_control(Deregister(self.consumer_id, self.session_id), _now_ms())
            try:
                self._ask(ask, "consumer.deregistered", "", min(self._timeout, 1.0))
            except TransferError:
                pass  # it ends by missing heartbeats
        super().close()

    def _settle(self, ask: Ack | Nack, confirm: bool) -> None:
        data = encode_control(ask, _now_ms())
        if confirm:
            word = "ack.accepted" if isinstance(ask, Ack) else "nack.accepted"
            self._ask(data, word, ask.delivery_id or "", self._timeout)
        else:
            self._say(data)

    def _say(self, data: bytes) -> None:
        """A control message. Raises Again: nobody takes it in time; Closed."""
        self._send(b"", CONTROL, data, sign=self._signer)

    def _ask(self, data: bytes, word: str, delivery_id: str, timeout: float) -> dict[str, Any]:
        """Sends a request and returns its answer; raises what it says if it is an error. Messages that
        come meanwhile are kept."""
        awaited = word, delivery_id
        deadline = self._deadline(timeout)
        with self._reading:
            self._awaited.append(awaited)
        try:
            self._say(data)
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
        """Takes what comes next, or nothing after a moment, so that other threads come to their turn."""
        try:
            self._take(self._frames(min(deadline, time.monotonic() + LOOK)))
        except Again:
            if time.monotonic() >= deadline:
                raise

    def _take(self, frames: list[bytes]) -> None:
        """A message goes into the inbox; an answer is looked at."""
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
            self._say(encode_register(self._register))

    def _take_message(self, envelope: bytes) -> None:
        """What cannot be read concerns nobody who waits for something else."""
        try:
            found = read_delivered(envelope, MAX_ENVELOPE)
        except ProtocolError as error:
            self.refused += 1
            _log.warning("a delivery that is no envelope: %s", error)
            return
        if not found.fault:
            self._inbox.append(found)
            return
        _log.warning("message %s is refused: %s", found.message_id, found.fault)
        ids = found.session_id, found.delivery_id
        ask = Nack(found.message_id, self.consumer_id, True, found.fault, *ids)
        self._say(encode_control(ask, _now_ms()))

    def _beat(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            ask = encode_control(Heartbeat(self.consumer_id, self.session_id), _now_ms())
            try:
                self._send_now((b"", CONTROL, ask), self._signer)
            except zmq.Again:
                continue  # the broker is away; it is told when it is back
            except Closed:
                return


class AbtpSubscriber(AbtpConnection):
    """Everything that is published on topics that begin with a prefix, at most once: what this socket has
    no room for is lost, and so is what is published before the broker has heard of the subscription."""

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
        """Topics that begin so, too. The empty prefix is all."""
        encoded = _encode_prefix(prefix)
        with self._lock:
            self._check_open()
            self._socket.setsockopt(zmq.SUBSCRIBE, encoded)

    def unsubscribe(self, prefix: str) -> None:
        """What was subscribed so is not wanted any more."""
        encoded = _encode_prefix(prefix)
        with self._lock:
            self._check_open()
            self._socket.setsockopt(zmq.UNSUBSCRIBE, encoded)

    def recv(self, timeout: float | None = None) -> Delivered:
        """The next message. Raises Again: none came in time; ProtocolError: it cannot be read."""
        found = read_delivered(self._frames(self._deadline(timeout))[-1], MAX_ENVELOPE)
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
    """Whether somebody waits for this answer, or for this error in its place."""
    word, delivery_id = awaited
    return str(answer.get("delivery_id") or "") == delivery_id and answer.get("type") in (word, "error")


def _error(answer: Mapping[str, Any]) -> TransferError:
    code, text = str(answer.get("code")), str(answer.get("message"))
    return Again(f"{code}: {text}") if code in _LATER else ProtocolError(code, text)


def _now_ms() -> int:
    return int(time.time() * 1000)
