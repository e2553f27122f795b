"""One socket as the Mooncake API needs it: sends frames with topics, receives messages with sources."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from transfer.mooncake.message import IncomingMessage, Message
from transfer.sockets.compression import decompressed
from transfer.tensors.build import NUMPY
from transfer.tensors.bundle_arrival import receive_bundle
from transfer.tensors.header import KIND_BUNDLE, kind_of
from transfer.tensors.receive import receive_one
from transfer.transports.arguments import octets, wrong
from transfer.transports.core.wire import MAX_TOPIC, Flag, SocketType
from transfer.transports.errors import Again, ArgumentError, Broken, Closed, ProtocolError, TransferError

#: as a plain number: the enumeration costs a microsecond more for each message
_TENSOR = int(Flag.TENSOR)
#: bytes of one batch, not counting its last message
_BATCH_BYTES = 16 << 20
#: bytes that are not UTF-8 stay in a topic as escapes, so that nothing is lost
_ERRORS = "surrogateescape"


class Channel:
    """Owns a `transfer.Socket`. Thread-safe as the socket, except that one thread receives at a time."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        #: the topic of a message without one: empty, which only a subscription to "" matches
        self._no_topic = b"" if socket.type is SocketType.PUB else None
        #: the error of the message after those that `receive_many` has returned
        self._pending_error: TransferError | None = None

    # -- sending -------------------------------------------------------------------------------

    def send(self, parts: Sequence[Any], topic: str | bytes | None = None, flags: int = 0) -> None:
        """Sends one message. A topic travels in the header, not as a part. Raises Again (with DONTWAIT at
        once), Broken."""
        first, *rest = parts
        if topic is None is self._no_topic and not rest and type(first) is bytes:
            self.socket.send(first, flags)  # the same message, sent by the core alone
            return
        frames = [(0, 0, self._topic(topic), None, first), *((0, 0, None, None, part) for part in rest)]
        self.socket._send_outframes(frames, flags)

    def send_parts(self, parts: Sequence[Any], topic: str | bytes | None = None, flags: int = 0) -> None:
        """Sends parts unchanged: without a topic, subscriptions match the first part."""
        if topic is None:
            self.socket.send_multipart(parts, flags)
        else:
            self.send(parts, topic, flags)

    def send_tensor(self, tensor: Any, topic: str | bytes | None = None, flags: int = 0) -> None:
        """Sends one tensor. Raises NotATensor, Again, Broken."""
        self.socket.send_tensor(tensor, flags, topic=self._topic(topic))

    def send_tensors(
        self, tensors: Mapping[str, Any], topic: str | bytes | None = None, flags: int = 0
    ) -> None:
        """Sends a dict of tensors. Raises as `send_tensor`."""
        self.socket.send_tensors(tensors, topic=self._topic(topic), flags=flags)

    def _topic(self, topic: str | bytes | None) -> bytes | None:
        if topic is None:
            return self._no_topic
        try:
            found = topic.encode("utf-8", _ERRORS) if isinstance(topic, str) else octets(topic, "topic")
        except UnicodeEncodeError:
            raise wrong("topic", topic, "text that UTF-8 can encode") from None
        if len(found) > MAX_TOPIC:
            raise ArgumentError(f"a topic of {len(found)} bytes, it has {MAX_TOPIC} at most")
        return found

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, timeout: float) -> IncomingMessage:
        """Returns the next valid message. `timeout` in seconds, negative without limit. Not for REQ and REP.

        Raises Again, Broken, Closed. An invalid message ends its connection, as for any socket.
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
        """Ends the connection of an invalid message. Returns the same error."""
        if isinstance(error, ProtocolError):
            self.socket._refuse(stream, error)
        return error

    def receive_many(self, timeout: float, most: int) -> list[Message]:
        """Returns all available messages: at most `most`, and about `_BATCH_BYTES`.

        It waits up to `timeout` seconds for the first one. Raises as `receive`. Not for REP either.
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

    def understand(self, stream: Any, frames: Sequence[Any]) -> IncomingMessage:
        """Decodes frames. Raises ProtocolError for an invalid message, other errors of tensors."""
        self.socket._links.log_reader.record(stream, frames)
        source = source_of(stream)
        first = frames[0]
        topic = "" if first.topic is None else first.topic.decode("utf-8", _ERRORS)
        if not first.flags and len(frames) == 1:
            return IncomingMessage(source, topic, (first.bytes,))
        if first.flags & _TENSOR:
            if kind_of(bytes(first.meta)) == KIND_BUNDLE:
                tensors, _ = receive_bundle(_Held(frames), 0, NUMPY, None)
                return IncomingMessage(source, topic, (), tensors, True)
            if len(frames) == 1:
                return IncomingMessage(source, topic, (), receive_one(_Held(frames), 0, NUMPY), True)
        limit = self.socket.largest_message
        parts = [decompressed(frame, type(frame), limit).bytes for frame in frames]
        if first.topic is None and len(parts) > 1 and self.socket.type is SocketType.SUB:
            # The publisher's topic is the first part, as in ZeroMQ programs.
            return IncomingMessage(source, parts[0].decode("utf-8", _ERRORS), parts, split=1)
        return IncomingMessage(source, topic, parts)


def source_of(stream: Any) -> str:
    """Returns the peer's address."""
    return getattr(getattr(stream, "peer", None), "address", "")


class _Held:
    """Frames that were received already, for the functions that make tensors."""

    def __init__(self, frames: Sequence[Any]) -> None:
        self._frames = list(frames)

    def _recv_frames(self, flags: int, sink: Any) -> list[Any]:
        return self._frames

    def _unreceive(self, frames: list[Any]) -> None:
        """Does nothing: the caller still has the frames, and none came from the socket."""
