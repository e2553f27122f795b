"""One socket as the Mooncake surface needs it: frames with topics out, messages with sources in."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from transfer.mooncake.message import Incoming, Message
from transfer.sockets.compression import decompressed
from transfer.tensors.build import NUMPY
from transfer.tensors.header import KIND_BUNDLE, kind_of
from transfer.tensors.receive import receive_bundle, receive_one
from transfer.transports.arguments import octets, wrong
from transfer.transports.core.wire import MAX_TOPIC, Flag, SocketType
from transfer.transports.errors import Again, ArgumentError, Broken, Closed, ProtocolError, TransferError

#: as a plain number: the other takes a microsecond more for each message
_TENSOR = int(Flag.TENSOR)
#: bytes of one batch, but for its last message
_BATCH_BYTES = 16 << 20
#: bytes that are no UTF-8 stay in a topic as escapes, so that nothing of it is lost
_ERRORS = "surrogateescape"


class Channel:
    """Owns a `transfer.Socket`. Thread-safe as that is, except that one thread receives at a time."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        #: what a message without a topic is published under: nothing, which only "" subscribes
        self._no_topic = b"" if socket.type is SocketType.PUB else None
        #: the error of the message that follows those `receive_many` has returned
        self._pending_error: TransferError | None = None

    # -- out -----------------------------------------------------------------------------------

    def send(self, parts: Sequence[Any], topic: str | bytes | None = None, flags: int = 0) -> None:
        """One message. A topic travels in the header, not as a part. Raises Again (with DONTWAIT at once),
        Broken."""
        first, *rest = parts
        if topic is None is self._no_topic and not rest and type(first) is bytes:
            self.socket.send(first, flags)  # the same message, and the core sends it alone
            return
        frames = [(0, 0, self._topic(topic), None, first), *((0, 0, None, None, part) for part in rest)]
        self.socket._send_outframes(frames, flags)

    def send_parts(self, parts: Sequence[Any], topic: str | bytes | None = None, flags: int = 0) -> None:
        """Parts as they are: without a topic the first of them is what subscriptions match."""
        if topic is None:
            self.socket.send_multipart(parts, flags)
        else:
            self.send(parts, topic, flags)

    def send_tensor(self, tensor: Any, topic: str | bytes | None = None, flags: int = 0) -> None:
        """One tensor. Raises NotATensor, Again, Broken."""
        self.socket.send_tensor(tensor, flags, topic=self._topic(topic))

    def send_tensors(
        self, tensors: Mapping[str, Any], topic: str | bytes | None = None, flags: int = 0
    ) -> None:
        """A dict of tensors. Raises as `send_tensor`."""
        self.socket.send_tensors(tensors, topic=self._topic(topic), flags=flags)

    def _topic(self, topic: str | bytes | None) -> bytes | None:
        if topic is None:
            return self._no_topic
        try:
            found = topic.encode("utf-8", _ERRORS) if isinstance(topic, str) else octets(topic, "topic")
        except UnicodeEncodeError:
            raise wrong("topic", topic, "text that UTF-8 can say") from None
        if len(found) > MAX_TOPIC:
            raise ArgumentError(f"a topic of {len(found)} bytes, it has {MAX_TOPIC} at most")
        return found

    # -- in ------------------------------------------------------------------------------------

    def receive(self, timeout: float) -> Incoming:
        """The next message that makes sense. `timeout` in seconds, negative: endless. Not for REQ and REP.

        Raises Again, Broken, Closed. What makes none ends its connection, as for any socket.
        """
        self.socket._check_open()
        self.socket._pattern.expect()
        deadline = time.monotonic() + timeout
        while True:
            stream, frames = self.socket._recv_message(math.ceil(timeout * 1000))
            try:
                return self.understand(stream, frames)
            except ProtocolError as error:
                self.refused(stream, error)
            if timeout >= 0:
                timeout = max(0.0, deadline - time.monotonic())

    def refused(self, stream: Any, error: TransferError) -> TransferError:
        """What came makes no sense, and its connection ends; or no sense here. The same error."""
        if isinstance(error, ProtocolError):
            self.socket._refuse(stream, error)
        return error

    def receive_many(self, timeout: float, most: int) -> list[Message]:
        """All messages that are available: at most `most`, and about `_BATCH_BYTES`.

        Waits up to `timeout` seconds for the first one. Raises as `receive`. Not for REP either.
        """
        error, self._pending_error = self._pending_error, None
        if error is not None:
            raise error
        found: list[Message] = [self.receive(timeout)]
        room = _BATCH_BYTES
        try:
            while len(found) < most and room > 0:
                ahead = self.socket._read_ahead(most - len(found))
                if ahead is not None:
                    source = source_of(ahead[0])
                    room -= sum(map(len, ahead[1]))
                    found += [{"source": source, "data": data, "topic": ""} for data in ahead[1]]
                    continue
                stream, frames = self.socket._recv_message(0)
                room -= sum(len(frame.data) for frame in frames)
                try:
                    found.append(self.understand(stream, frames))
                except ProtocolError as broken:
                    self.refused(stream, broken)
        except (Again, Broken, Closed):  # the next call raises it
            pass
        except TransferError as unreadable:  # a tensor of an unknown dtype, for instance
            self._pending_error = unreadable
        return found

    def understand(self, stream: Any, frames: Sequence[Any]) -> Incoming:
        """What these frames say. Raises ProtocolError for what makes no sense, other errors of tensors."""
        self.socket._links.record_position(stream, frames)
        source = source_of(stream)
        first = frames[0]
        topic = "" if first.topic is None else first.topic.decode("utf-8", _ERRORS)
        if not first.flags and len(frames) == 1:
            return Incoming(source, topic, (first.bytes,))
        if first.flags & _TENSOR:
            if kind_of(bytes(first.meta)) == KIND_BUNDLE:
                tensors, _ = receive_bundle(_Held(frames), 0, NUMPY, None)
                return Incoming(source, topic, (), tensors, True)
            if len(frames) == 1:
                return Incoming(source, topic, (), receive_one(_Held(frames), 0, NUMPY), True)
        limit = self.socket.largest_message
        parts = [decompressed(frame, type(frame), limit).bytes for frame in frames]
        if first.topic is None and len(parts) > 1 and self.socket.type is SocketType.SUB:
            # A publisher that puts its topic into the first part, as ZeroMQ programs do.
            return Incoming(source, parts[0].decode("utf-8", _ERRORS), parts, split=1)
        return Incoming(source, topic, parts)


def source_of(stream: Any) -> str:
    """Where the peer is."""
    return getattr(getattr(stream, "peer", None), "address", "")


class _Held:
    """Frames that were received already, for the code that makes tensors of them."""

    def __init__(self, frames: Sequence[Any]) -> None:
        self._frames = list(frames)

    def _recv_frames(self, flags: int, sink: Any) -> list[Any]:
        return self._frames

    def _unreceive(self, frames: list[Any]) -> None:
        """It stays with who holds these: nothing was taken from the socket."""
