"""The receiving calls of a socket: callbacks, and polling."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import Any

from transfer.constants import DONTWAIT
from transfer.mooncake.dispatch import BatchCallback, Callback, CallbackDispatcher
from transfer.mooncake.message import (
    CallbackCodec,
    Form,
    IncomingMessage,
    Message,
    as_incoming,
    decoded,
    read,
)
from transfer.mooncake.replies import Replies
from transfer.mooncake.requests import PendingRequests
from transfer.mooncake.settings import InterfaceSettings
from transfer.mooncake.types import ZmqSocketType
from transfer.transports.arguments import callable_or_none, flags_of, whole, wrong
from transfer.transports.errors import NotSupported, StateError

_ONLY_SEND = frozenset({ZmqSocketType.PUB, ZmqSocketType.PUSH})


class InterfaceReceiving(InterfaceSettings):
    """Callbacks run in a thread of the socket while polling mode is off; `recv...` returns messages while it
    is on."""

    _dispatcher: CallbackDispatcher
    #: held by one call of `recv...` at a time
    _receiving: threading.Lock
    #: received and not delivered (wrong form for `recv...`, or the callback was removed), the oldest
    #: first
    _unread: deque[IncomingMessage]
    #: of a REQ
    _requests: PendingRequests | None
    #: of a REP
    _replies: Replies | None

    def set_codec(self, codec: CallbackCodec | None) -> bool:
        """Sets a codec for all further messages. Returns True.

        `request`, `reply`, `publish`, `push`, `send` and their `_async` forms then send
        `codec.encode(value)`, and received data is `codec.decode(data)`. Tensors are not converted. None
        removes the codec. Call it before callbacks are set. Raises ArgumentError, StateError.
        """
        for name in ("encode", "decode"):
            if codec is not None and not callable(getattr(codec, name, None)):
                raise wrong("codec", codec, "an object with encode(value) and decode(data), or None")
        if self._dispatcher.wanted:
            raise StateError("this socket has a callback", hint="set_codec comes first")
        self._codec = codec
        return True

    def subscribe(self, topic: str | bytes = "") -> bool:
        """Subscribes to messages whose topic begins with this. Returns True."""
        self._only(ZmqSocketType.SUB)
        self._socket.subscribe(topic)
        return True

    def unsubscribe(self, topic: str | bytes = "") -> bool:
        """Removes one subscription. Raises UsageError if there is none. Returns True."""
        self._only(ZmqSocketType.SUB)
        self._socket.unsubscribe(topic)
        return True

    def set_receive_callback(self, callback: Callback | None) -> None:
        """Calls back with {source, data, topic}, in another thread, one at a time; with {source, tensor,
        topic} for a tensor, or a dict of them, without a separate callback."""
        self._set_callback(Form.DATA, callback)

    set_subscribe_callback = set_pull_callback = set_receive_callback

    def set_batch_receive_callback(self, callback: BatchCallback | None, most: int = 1000) -> None:
        """Calls back with a list of the dicts of `set_receive_callback`, in order.

        The list has all available messages: at least one and at most `most` (1 to 100,000), or about 16 MiB.
        For millions of small messages. While it is set it gets all messages. Raises NotSupported for REQ and
        REP, whose calls take turns.
        """
        if self.kind in (ZmqSocketType.REQ, ZmqSocketType.REP):
            raise NotSupported(f"a {self.kind.name} has one message at a time", hint="set_receive_callback")
        self._receives()
        callable_or_none(callback, "callback", "a list of messages")
        if callback is not None and self._codec is not None:
            callback = partial(_called_all_decoded, callback, self._codec)
        self._dispatcher.set_batch(callback, whole(most, "most", 1, 100_000))
        self._run_callbacks()

    def set_tensor_receive_callback(self, callback: Callback | None) -> None:
        """Calls back with {source, tensor, topic}: a tensor, or a dict of them."""
        self._set_callback(Form.TENSOR, callback)

    def set_multipart_receive_callback(self, callback: Callback | None) -> None:
        """Calls back with {frames}."""
        self._set_callback(Form.MULTIPART, callback)

    def set_json_receive_callback(self, callback: Callback | None) -> None:
        """Calls back with {obj, topic}."""
        self._set_callback(Form.JSON, callback)

    def set_string_receive_callback(self, callback: Callback | None) -> None:
        """Calls back with {string, topic}."""
        self._set_callback(Form.STRING, callback)

    def set_pyobj_receive_callback(self, callback: Callback | None) -> None:
        """Calls back with {obj, topic}: what `send_pyobj` sent."""
        self._set_callback(Form.PYOBJ, callback)

    @property
    def callback_errors(self) -> int:
        """Number of callbacks that raised, and of messages that no callback could read."""
        return self._dispatcher.errors

    def _receives(self) -> None:
        if self.kind in _ONLY_SEND:
            raise NotSupported(f"a {self.kind.name} receives nothing")

    def _set_callback(self, form: Form, callback: Callback | None) -> None:
        self._receives()
        callable_or_none(callback, "callback", "a message as a dict")
        if form is Form.DATA and callback is not None and self._codec is not None:
            callback = partial(_called_decoded, callback, self._codec)
        self._dispatcher.set(form, callback)
        self._run_callbacks()

    def set_polling_mode(self, enabled: bool) -> bool:
        """Switches polling mode. On: `recv...` returns messages. Off: callbacks get them. Returns True."""
        self._polling = bool(enabled)
        self._run_callbacks()
        return True

    def _run_callbacks(self) -> None:
        if self._dispatcher.wanted and not self._polling:
            self._dispatcher.start()
        else:
            self._dispatcher.stop()

    # -- polling -------------------------------------------------------------------------------

    def recv(self, flags: int = 0) -> dict[str, Any]:
        """Returns {source, data, topic}, or {source, tensor, topic}. Flag 1 does not block. Raises Again
        after the receive timeout."""
        return self._fetch(Form.DATA, flags)

    def recv_tensor(self, flags: int = 0) -> dict[str, Any]:
        """Returns {source, tensor, topic}: a writable numpy array, or a dict of them. Raises NotATensor for
        another message, which stays unread."""
        return self._fetch(Form.TENSOR, flags)

    def recv_multipart(self, flags: int = 0) -> dict[str, Any]:
        """{frames}."""
        return self._fetch(Form.MULTIPART, flags)

    def recv_json(self, flags: int = 0) -> dict[str, Any]:
        """Returns {obj, topic}."""
        return self._fetch(Form.JSON, flags)

    def recv_string(self, flags: int = 0) -> dict[str, Any]:
        """Returns {string, topic}."""
        return self._fetch(Form.STRING, flags)

    def recv_pyobj(self, flags: int = 0) -> dict[str, Any]:
        """Returns {obj, topic}: what `send_pyobj` sent. Raises ProtocolError for other bytes, PickleRefused
        for a pickle or a class that is not allowed: see docs/pyobj.md."""
        return self._fetch(Form.PYOBJ, flags)

    def _fetch(self, form: Form, flags: int) -> dict[str, Any]:
        if not self._polling:
            raise StateError("polling mode is off", hint="set_polling_mode(id, True), or set a callback")
        with self._receiving:
            if not self._unread:
                self._unread.append(as_incoming(self._receive(self._receive_timeout(flags))))
            got = read(self._unread[0], form)  # if it raises, the message stays unread
            if form is Form.DATA and self._codec is not None:
                got = decoded(got, self._codec)
            self._unread.popleft()
            return got

    def _take_unread(self, most: int = 1) -> list[IncomingMessage]:
        """Takes messages that were received and not delivered, the oldest first."""
        with self._receiving:
            return [self._unread.popleft() for _ in range(min(most, len(self._unread)))]

    def give_back(self, messages: list[IncomingMessage]) -> None:
        """Puts messages without a callback back: the next receive returns them."""
        with self._receiving:
            self._unread.extendleft(reversed(messages))  # they are older than the others

    def _receive_timeout(self, flags: int) -> float:
        """Returns the seconds to wait, negative without limit."""
        if flags_of(flags) & DONTWAIT:
            return 0.0
        if self.kind is ZmqSocketType.REQ:
            return self._patience.seconds
        timeout: int = self._socket.rcvtimeo
        return timeout / 1000 if timeout >= 0 else -1.0

    def _receive(self, timeout: float) -> Message:
        if self._replies is not None:
            return self._replies.receive(timeout)
        if self._requests is not None:
            return self._requests.claim(timeout)
        return self._channel.receive(timeout)

    # -- for the thread of the callbacks ---------------------------------------------------------

    def next_message(self, timeout: float) -> Message:
        """Waits for a message. Raises Again, Broken, Closed."""
        return self._take_unread()[0] if self._unread else self._receive(timeout)

    def next_messages(self, timeout: float, most: int) -> list[Message]:
        """As `next_message`, for all available messages."""
        return list(self._take_unread(most)) or self._channel.receive_many(timeout, most)

    def abandon(self, request: int) -> None:
        """Gives up an open request of a REP; the requester's timeout expires."""
        if self._replies is not None:
            self._replies.give_up(request)


def _called_decoded(callback: Callback, codec: CallbackCodec, message: dict[str, Any]) -> object:
    return callback(decoded(message, codec))


def _called_all_decoded(
    callback: BatchCallback, codec: CallbackCodec, messages: list[dict[str, Any]]
) -> object:
    return callback([decoded(message, codec) for message in messages])
