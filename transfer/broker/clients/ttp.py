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
from types import TracebackType
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.ttp_connection import NOTHING, TtpConnection
from transfer.broker.clients.ttp_reader import MOST_META, Assembly, Frame, Received
from transfer.broker.protocols.names import MAX_TOPIC, encode_topic
from transfer.broker.protocols.ttp import (
    EOF,
    LZ4,
    PORT,
    WANTED,
    Kind,
    Limits,
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
    """One connection. Not thread-safe: one thread at a time uses it.

    name: told to the broker, if there is one; then the constructor waits until the broker has answered.
    timeout: seconds that any call waits without progress, if not said otherwise. heartbeat: seconds after
    which `recv` tells the broker that it still waits. largest: bytes of a message that is received.

    A client that only publishes, and less than once a minute, calls `heartbeat` in between: the broker ends
    connections that are silent.

    security: certificates, instead of what the TRANSFER_TLS_ variables say.

    Raises Again (nobody answers in time), Broken (the connection has ended, or there is none; make another
    client), HandshakeError (no TLS with it, see its hint), SecurityError (files of certificates that cannot
    be used, or a token that the protocol does not know), Closed (you closed it), ProtocolError (it does not
    speak TTP). A call that is interrupted while a frame is half sent ends the connection.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        name: str = "",
        timeout: float = 30.0,
        heartbeat: float = 20.0,
        largest: int = 16 << 30,
        security: Security | None = None,
    ) -> None:
        text(name, "name")
        limits = Limits(MAX_TOPIC, MOST_META, whole(largest, "largest", 1))
        self._link = TtpConnection(
            host, port, limits, timeout=timeout, heartbeat=heartbeat, security=security
        )
        self._assembly = Assembly(largest)
        self._numbers = count((int.from_bytes(os.urandom(5), "big") << 20) + 1)
        if name:
            try:
                self._tell(Kind.CONNECT, b"", encode_meta({"client": name}), wait=True)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> TtpClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._link.close()

    @property
    def timeout(self) -> float:
        """Seconds that any call waits without progress."""
        return self._link.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._link.timeout = patience(seconds, endless=False) or 0.0

    @property
    def complaints(self) -> Sequence[TransferError]:
        """What the broker said of messages that nobody waited for: the last 64."""
        return self._link.complaints

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

        wait: until the broker keeps the message as its topic promises. flags: LZ4, say, if the data are
        compressed so; they go to subscribers as they are. Raises UsageError (topic, metadata, buffer), and
        with `wait` LogFull and PeerError, beside those of the class.
        """
        self._tell(
            Kind.PUBLISH, encode_topic(topic), encode_meta(members(meta, "meta")), data, flags, wait=wait
        )

    def publish_tensor(
        self, topic: str, array: Any, meta: Mapping[str, Any] | None = None, *, wait: bool = False
    ) -> None:
        """Publishes an array with its `dtype` and `shape` as metadata: as `publish`.

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
        """Publishes one message whose data come in chunks, none of which must be there before it is sent.

        nbytes: of all chunks, if that is known: it goes into the metadata. flags: of each chunk. What
        `chunks` raises is raised; nobody receives the message.
        """
        described = members(meta, "meta")
        if nbytes is not None:
            described = {**described, "nbytes": whole(nbytes, "nbytes")}
        whole(flags, "flags", 0, 255)
        sequence(chunks, "chunks", "chunks")
        number = next(self._numbers)
        self._link.send(
            encode_head(Kind.META, encode_topic(topic), encode_meta(described), 0, wait * WANTED, number)
        )
        if wait:
            self._link.expect(number)
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
            self._link.forget(number)
            if self._link.usable:
                self._link.send(encode_error(number, "gave_up", "the publisher gave the stream up"))
            raise
        if wait:
            self._link.answer(number)

    def heartbeat(self) -> None:
        """Tells the broker that the client is there."""
        self._link.send(encode_head(Kind.HEARTBEAT))

    # -- receiving ---------------------------------------------------------------------------------------

    def subscribe(self, pattern: str, *, wait: bool = True) -> None:
        """Receives what is published from now on: the topic of this name, or with `*` for any one segment.

        wait: until the broker has said so; brokers that know no ACK never do. Any number of patterns may be
        subscribed; a message that several of them mean comes once. Raises UsageError.
        """
        self._tell(Kind.SUBSCRIBE, encode_topic(pattern), wait=wait)

    def unsubscribe(self, pattern: str) -> None:
        """Ends a subscription; what the broker has sent already still comes."""
        self._tell(Kind.SUBSCRIBE, encode_topic(pattern), encode_meta({"unsubscribe": True}), wait=True)

    def recv(self, timeout: float | None = None) -> Received:
        """The next message; streams are put together. timeout: seconds; inf waits for ever. Raises Again."""
        deadline = time.monotonic() + self._patience(timeout)
        while True:
            received = self._assembly.add(self._link.next(deadline - time.monotonic()))
            if received is not None:
                return received

    def recv_frame(self, timeout: float | None = None) -> Frame:
        """The next PUBLISH, META or CHUNK as it came, or the ERROR `broken_off` of a stream.

        Do not mix it with `recv` while streams are open."""
        return self._link.next(self._patience(timeout))

    def _patience(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else patience(timeout, endless=False) or 0.0

    # -- the connection ----------------------------------------------------------------------------------

    def _tell(
        self,
        kind: Kind,
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
            self._link.expect(number)
            flags |= WANTED
        try:
            self._link.send(encode_head(kind, topic, meta, len(view), flags, number), view)
            if wait:
                self._link.answer(number)
        finally:
            self._link.forget(number)

    def _send_chunk(self, view: memoryview, flags: int, number: int) -> None:
        self._link.send(encode_head(Kind.CHUNK, b"", b"", len(view), flags, number), view)


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
