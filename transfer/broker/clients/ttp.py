"""A small client for TTP v2.

with TtpClient("127.0.0.1") as client:
    client.subscribe("models/*/grads")
    client.publish("models/resnet/grads", b"hello", wait=True)
    print(client.recv().data)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.ttp_connection import NOTHING, TtpClientConnection
from transfer.broker.clients.ttp_reader import MOST_META, Assembly, TtpFrame, TtpReceived
from transfer.broker.core.topic_names import MAX_TOPIC, encode_topic
from transfer.broker.protocols.ttp import (
    EOF,
    LZ4,
    PORT,
    WANTED,
    TtpKind,
    TtpLimits,
    encode_error,
    encode_head,
    encode_meta,
)
from transfer.transports.arguments import members, patience, sequence, text, whole
from transfer.transports.errors import ArgumentError, NotATensor, TransferError, not_a_buffer

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

#: by a buffer's format; the numbers of bits follow from its item size
_NUMBERS = {
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQN", "uint"),
    **dict.fromkeys("efd", "float"),
}


class TtpClient:
    """One connection. Not thread-safe: only one thread at a time may use it.

    name: sent to the broker; then the constructor waits for the answer. timeout: seconds that a call waits
    without progress. heartbeat: seconds without sending after which `recv` sends a heartbeat. max_payload:
    bytes of a received message at most. security: certificates, instead of those of the TRANSFER_TLS_
    variables.

    A client that publishes less than once a minute, and does not receive, has to call `heartbeat` in between:
    the broker closes silent connections.

    Raises Again (no answer in time), Broken (the connection has ended, or there is none; make another
    client), HandshakeError (TLS failed, see its hint), SecurityError (unusable files of certificates, or a
    token, which the protocol does not have), Closed (you closed it), ProtocolError (the peer does not speak
    TTP). An interrupt in the middle of a frame ends the connection.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        name: str = "",
        timeout: float = 30.0,
        heartbeat: float = 20.0,
        max_payload: int = 16 << 30,
        security: Security | None = None,
    ) -> None:
        text(name, "name")
        limits = TtpLimits(MAX_TOPIC, MOST_META, whole(max_payload, "max_payload", 1))
        self._connection = TtpClientConnection(
            host, port, limits, timeout=timeout, heartbeat=heartbeat, security=security
        )
        self._assembly = Assembly(max_payload)
        self._numbers = count((int.from_bytes(os.urandom(5), "big") << 20) + 1)
        if name:
            try:
                self._send(TtpKind.CONNECT, b"", encode_meta({"client": name}), wait=True)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> TtpClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._connection.close()

    @property
    def timeout(self) -> float:
        """Seconds that a call waits without progress."""
        return self._connection.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._connection.timeout = patience(seconds, endless=False) or 0.0

    @property
    def complaints(self) -> Sequence[TransferError]:
        """The last 64 errors of the broker about messages that no call waited for."""
        return self._connection.complaints

    # -- publishing --------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        data: Any,
        meta: Mapping[str, Any] | None = None,
        *,
        wait: bool = False,
        flags: int = 0,
    ) -> None:
        """Publishes contiguous bytes (anything with a buffer), without copies.

        wait: until the broker keeps the message as its topic promises. flags: for example LZ4 if the data are
        compressed so; subscribers get them unchanged. Raises UsageError (topic, metadata, buffer), with
        `wait` LogFull and PeerError, and the errors of the class.
        """
        self._send(
            TtpKind.PUBLISH, encode_topic(topic), encode_meta(members(meta, "meta")), data, flags, wait=wait
        )

    def publish_tensor(
        self, topic: str, array: Any, meta: Mapping[str, Any] | None = None, *, wait: bool = False
    ) -> None:
        """Publishes an array, with its `dtype` and `shape` as metadata. See `publish`.

        array: anything with a C-contiguous buffer of numbers in the machine's byte order, as numpy's arrays
        have. Raises NotATensor.
        """
        try:
            view = memoryview(array)
        except (TypeError, ValueError, BufferError) as error:
            raise NotATensor(f"{type(array).__name__} has no buffer: {error}") from error
        if not view.c_contiguous:
            raise NotATensor("the array is not C-contiguous", hint="copy it first")
        described = {"dtype": _dtype_of(view), "shape": list(view.shape or ()), **members(meta, "meta")}
        self.publish(topic, view, described, wait=wait)

    def stream(
        self,
        topic: str,
        chunks: Iterable[Any],
        meta: Mapping[str, Any] | None = None,
        *,
        nbytes: int | None = None,
        flags: int = 0,
        wait: bool = False,
    ) -> None:
        """Publishes one message of chunks, and sends each chunk as soon as `chunks` returns it.

        nbytes: of all chunks, if known: it goes into the metadata. flags: of each chunk. It raises what
        `chunks` raises; then no subscriber receives the message.
        """
        described = members(meta, "meta")
        if nbytes is not None:
            described = {**described, "nbytes": whole(nbytes, "nbytes")}
        whole(flags, "flags", 0, 255)
        sequence(chunks, "chunks", "chunks")
        number = next(self._numbers)
        self._connection.send(
            encode_head(TtpKind.META, encode_topic(topic), encode_meta(described), 0, wait * WANTED, number)
        )
        if wait:
            self._connection.expect(number)
        try:
            last, sent = NOTHING, 0
            for chunk in chunks:
                following = _flat(chunk)
                if sent:
                    self._send_chunk(last, flags, number)
                last, sent = following, sent + len(following)
            if nbytes is not None and sent != nbytes and not flags & LZ4:
                raise ArgumentError(f"nbytes={nbytes}, and chunks of {sent} bytes", hint="None if unknown")
            self._send_chunk(last, flags | EOF, number)
        except BaseException:
            self._connection.forget(number)
            if self._connection.usable:
                self._connection.send(encode_error(number, "gave_up", "the publisher gave the stream up"))
            raise
        if wait:
            self._connection.answer(number)

    def heartbeat(self) -> None:
        """Sends a heartbeat to the broker."""
        self._connection.send(encode_head(TtpKind.HEARTBEAT))

    # -- receiving ---------------------------------------------------------------------------------------

    def subscribe(self, pattern: str, *, wait: bool = True) -> None:
        """Subscribes to a topic; `*` in the pattern matches any one segment.

        wait: until the broker has acknowledged it; brokers without ACK never do. A client may have any number
        of patterns: a message that matches several of them arrives once. Raises UsageError.
        """
        self._send(TtpKind.SUBSCRIBE, encode_topic(pattern), wait=wait)

    def unsubscribe(self, pattern: str) -> None:
        """Ends a subscription; messages that the broker has sent already still arrive."""
        self._send(TtpKind.SUBSCRIBE, encode_topic(pattern), encode_meta({"unsubscribe": True}), wait=True)

    def recv(self, timeout: float | None = None) -> TtpReceived:
        """Returns the next message, or whole stream. timeout: seconds; inf waits for ever. Raises Again."""
        deadline = time.monotonic() + self._patience(timeout)
        while True:
            received = self._assembly.add(self._connection.next(deadline - time.monotonic()))
            if received is not None:
                return received

    def recv_frame(self, timeout: float | None = None) -> TtpFrame:
        """Returns the next PUBLISH, META or CHUNK, or the ERROR `broken_off` of a stream.

        Do not mix it with `recv` while streams are open.
        """
        return self._connection.next(self._patience(timeout))

    def _patience(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else patience(timeout, endless=False) or 0.0

    # -- the connection ----------------------------------------------------------------------------------

    def _send(
        self,
        kind: TtpKind,
        topic: bytes,
        meta: bytes = b"",
        data: Any = b"",
        flags: int = 0,
        *,
        wait: bool = False,
    ) -> None:
        whole(flags, "flags", 0, 255)
        view = _flat(data)
        number = next(self._numbers)
        if wait:
            self._connection.expect(number)
            flags |= WANTED
        try:
            self._connection.send(encode_head(kind, topic, meta, len(view), flags, number), view)
            if wait:
                self._connection.answer(number)
        finally:
            self._connection.forget(number)

    def _send_chunk(self, view: memoryview, flags: int, number: int) -> None:
        self._connection.send(encode_head(TtpKind.CHUNK, b"", b"", len(view), flags, number), view)


def _flat(data: Any) -> memoryview:
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else NOTHING
    except (TypeError, ValueError, BufferError) as error:
        raise ArgumentError(
            f"{type(data).__name__} has no contiguous buffer: {error}", hint=not_a_buffer(data).hint
        ) from error


def _dtype_of(view: memoryview) -> str:
    format = view.format.lstrip("@=")
    if format == "?":
        return "bool"
    if format in ("Zf", "Zd"):
        return f"complex{view.itemsize * 8}"
    kind = _NUMBERS.get(format)
    if kind is None:
        raise NotATensor(f"a buffer of format {view.format!r}", hint="numbers in the machine's byte order")
    return f"{kind}{view.itemsize * 8}"
