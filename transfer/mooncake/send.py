"""The sending calls of a socket."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transfer.constants import DONTWAIT
from transfer.mooncake.dispatch import CallbackDispatcher
from transfer.mooncake.futures import Futures, Lane, Loop
from transfer.mooncake.message import (
    Form,
    IncomingMessage,
    encode_data,
    encode_json,
    encode_string,
    is_tensor,
    read,
)
from transfer.mooncake.replies import Replies
from transfer.mooncake.requests import PendingRequests, Request, Send
from transfer.mooncake.settings import InterfaceSettings, Topic
from transfer.mooncake.types import ZmqSocketType
from transfer.objects.pyobj import dumps
from transfer.transports.arguments import sequence, whole
from transfer.transports.errors import EFSM, Again, Broken, PeerError, TransferError

logger = logging.getLogger("transfer.mooncake")

_REQ, _REP, _PUSH = ZmqSocketType.REQ, ZmqSocketType.REP, ZmqSocketType.PUSH
#: failures that a call returns as a number: their cause is not the caller's mistake
_NOT_SENT = (Again, Broken, PeerError)


class InterfaceSending(InterfaceSettings):
    """Sending calls return 0, or a negative error number if the message could not be sent (timeout, lost
    peer). On a REQ without callbacks and without polling mode they wait for the reply and return it, in the
    form of the request. Mistakes of the caller raise.
    """

    _dispatcher: CallbackDispatcher
    _futures: Futures
    #: of a REQ
    _requests: PendingRequests | None
    #: of a REP
    _replies: Replies | None

    def request(self, data: Any) -> Any:
        """Sends a request and returns the reply: bytes, a tensor, or a dict of them.

        Raises Again if no reply arrives in time (`timeout_seconds`, or the receive timeout if set), Broken if
        the peer is lost.
        """
        requests = self._requests
        if requests is not None and type(data) is bytes and self._codec is None:  # the common case: few calls
            return requests.ask_plainly(data, self._patience)
        self._only(_REQ)
        return self._ask(*self._sender(data))

    def reply(self, data: Any, request: int | None = None) -> int:
        """Sends the reply to a request.

        request: the number that arrived with it (`message["request"]`), for replies from other threads; if it
        is not open any more, nothing is sent and an error number is returned. By default the reply goes to
        the request that this thread received last, or to the only open one.
        """
        replies = self._replies
        if replies is not None and type(data) is bytes and request is None and self._codec is None:
            try:  # the common case: few calls
                if replies.answer_plainly(data):
                    return 0
            except _NOT_SENT as error:
                return self._not_sent(error)
        self._only(_REP)
        return self._answer(self._sender(data)[0], request)

    def reply_tensor(self, tensor: Any, request: int | None = None) -> int:
        """Replies with a tensor, or a dict of them, as `reply`."""
        self._only(_REP)
        return self._answer(self._tensor_sender(tensor), request)

    def publish(self, topic: Topic, data: Any) -> int:
        """Sends to every peer that subscribed to a prefix of the topic; never blocks."""
        self._only(ZmqSocketType.PUB)
        return self._code(partial(self._sender(data, topic or "")[0], 0))

    def push(self, data: Any) -> int:
        """Sends one message to one of the peers, in turn."""
        if (
            type(data) is bytes and self.kind is _PUSH and self._codec is None
        ):  # the common case costs no second call
            try:
                self._socket.send(data)
            except _NOT_SENT as error:
                return self._not_sent(error)
            return 0
        self._only(_PUSH)
        return self._code(partial(self._sender(data)[0], 0))

    def send(self, data: Any, topic: Topic = None) -> Any:
        """Sends bytes, text (as UTF-8), any buffer, a tensor, or a dict of tensors."""
        return self._send(*self._sender(data, topic))

    def send_tensor(self, tensor: Any, topic: Topic = None) -> Any:
        """Sends a tensor: numpy, torch, anything with DLPack or the buffer protocol; or a dict of them."""
        return self._send(self._tensor_sender(tensor, topic), Form.TENSOR)

    def send_multipart(self, frames: Sequence[Any], topic: Topic = None) -> Any:
        """Sends several parts as one message."""
        parts = [encode_data(frame) for frame in sequence(frames, "frames", "parts: bytes, text, buffers")]
        return self._send(partial(self._channel.send_parts, parts, topic), Form.MULTIPART)

    def send_json(self, obj: Any, topic: Topic = None) -> Any:
        """Sends an object as JSON."""
        return self._send(partial(self._channel.send, [encode_json(obj)], topic), Form.JSON)

    def send_string(self, text: str, topic: Topic = None) -> Any:
        """Sends a text as UTF-8."""
        return self._send(partial(self._channel.send, [encode_string(text)], topic), Form.STRING)

    def send_pyobj(self, obj: Any, topic: Topic = None) -> Any:
        """Sends an object of plain types, arrays, tensors, and classes of TRANSFER_PICKLE_ALLOW. Raises
        PickleRefused for others."""
        return self._send(partial(self._channel.send, [dumps(obj)], topic), Form.PYOBJ)

    def _sender(self, data: Any, topic: Topic = None) -> tuple[Send, Form]:
        """Returns a function that sends it, and the form of its reply. Raises ArgumentError."""
        if self._codec is not None and not (
            hasattr(data, "__dlpack__") or hasattr(data, "__array_interface__")
        ):
            data = self._codec.encode(data)
        elif is_tensor(data):
            return self._tensor_sender(data, topic), Form.TENSOR
        return partial(self._channel.send, (encode_data(data),), topic), Form.DATA

    def _tensor_sender(self, tensor: Any, topic: Topic = None) -> Send:
        send = self._channel.send_tensors if isinstance(tensor, Mapping) else self._channel.send_tensor
        return partial(send, tensor, topic)

    def _send(self, send: Send, form: Form) -> Any:
        if self.kind is _REP:
            return self._answer(send)
        if self.kind is not _REQ:
            return self._code(partial(send, 0))
        if self._asks():
            return self._ask(send, form)
        assert self._requests is not None
        return self._code(partial(self._requests.begin, send, self._patience))

    def _asks(self) -> bool:
        """Whether sending calls of this REQ return the reply, since no callback or `recv` gets it."""
        return not (self._polling or self._dispatcher.running)

    def _code(self, send: Callable[[], object]) -> int:
        """Returns 0, or a negative error number; mistakes of the caller raise."""
        try:
            send()
        except _NOT_SENT as error:
            return self._not_sent(error)
        return 0

    def _not_sent(self, error: TransferError) -> int:
        logger.warning("%s socket %d: not sent: %s", self.kind.name, self.id, error)
        return -(error.errno or 1)

    def _answer(self, send: Send, request: int | None = None, flags: int = 0) -> int:
        assert self._replies is not None
        number = self._replies.which(None if request is None else whole(request, "request", 1))
        if not number:
            which = "" if request is None else f" {request}: it is not open"
            logger.warning("REP socket %d: no answer to request%s", self.id, which or ": none is open")
            return -EFSM
        answer = partial(self._replies.answer, number, partial(send, flags))
        if flags:
            answer()  # a caller that does not wait tries again
            return 0
        return self._code(answer)

    def _ask(self, send: Send, form: Form) -> Any:
        assert self._requests is not None
        return self._result(self._requests.ask(send, self._patience), form)

    # -- asyncio -------------------------------------------------------------------------------

    def request_async(self, data: Any, loop: Loop = None) -> Future[Any]:
        """Sends a request; returns a future of `loop` (default: the running one) with the reply.

        Many may be open; no thread waits. Do not change the data until the future is done.
        """
        self._only(_REQ)
        return self._ask_async(*self._sender(data), loop)

    def publish_async(self, topic: Topic, data: Any, loop: Loop = None) -> Future[int]:
        """`publish` as a future."""
        self._only(ZmqSocketType.PUB)
        return self._send_async(*self._sender(data, topic or ""), loop)

    def push_async(self, data: Any, loop: Loop = None) -> Future[int]:
        """`push` as a future."""
        self._only(_PUSH)
        return self._send_async(*self._sender(data), loop)

    def send_async(self, data: Any, loop: Loop = None) -> Future[Any]:
        """`send` as a future."""
        return self._send_async(*self._sender(data), loop)

    def send_tensor_async(self, tensor: Any, loop: Loop = None, topic: Topic = None) -> Future[Any]:
        """`send_tensor` as a future."""
        return self._send_async(self._tensor_sender(tensor, topic), Form.TENSOR, loop)

    def _ask_async(self, send: Send, form: Form, loop: Loop) -> Future[Any]:
        patience = self._patience
        sending = self._socket.send_timeout / 1000
        # With a peer, many may wait for a slot, for longer than a send may.
        if patience.whole and (self._socket.has_peers or sending < 0 or 0 <= patience.seconds < sending):
            sending = patience.seconds
        request = Request(patience)

        def attempt(lane: Lane, future: Future[Any]) -> None:
            lane.ask(request, future, send, lambda request: self._result(request.outcome(), form))

        return self._futures.submit(loop, attempt, sending)

    def _send_async(self, send: Send, form: Form, loop: Loop) -> Future[Any]:
        if self.kind is _REQ and self._asks():
            return self._ask_async(send, form, loop)

        def attempt(_: Lane, future: Future[Any]) -> None:
            try:
                future.set_result(self._send_now(send))
            except (Broken, PeerError) as error:
                future.set_result(self._not_sent(error))

        return self._futures.submit(loop, attempt, self._socket.send_timeout / 1000, self._not_sent)

    def _send_now(self, send: Send) -> int:
        """Sends without blocking. Raises Again if there is no room."""
        if self.kind is _REP:
            return self._answer(send, flags=DONTWAIT)
        if self.kind is _REQ:
            assert self._requests is not None
            self._requests.try_to_begin(self._requests.claimed(self._patience), send)
        else:
            send(DONTWAIT)
        return 0

    def _result(self, reply: IncomingMessage, form: Form) -> Any:
        """Returns a request's result, in the form of the request."""
        if self._codec is not None and form in (Form.DATA, Form.TENSOR) and not reply.is_tensor:
            return self._codec.decode(reply.data)
        if reply.is_tensor or form is Form.TENSOR:
            return reply.plain
        got = read(reply, form)
        return got.get("data", got.get("obj", got.get("string", got.get("frames"))))
