"""The calls of a socket that send."""

from __future__ import annotations

import logging
import time
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transfer.interface.dispatch import Dispatcher
from transfer.interface.message import (
    Form,
    encode_data,
    encode_json,
    encode_pyobj,
    encode_string,
    is_tensor,
    read,
)
from transfer.interface.settings import Loop, Settings, Topic
from transfer.interface.types import ZmqSocketType
from transports.arguments import sequence, whole
from transports.errors import EFSM, Again, Broken, PeerError, TransferError

logger = logging.getLogger("transfer.interface")

_PUSH = ZmqSocketType.PUSH
#: what the world did, which a number tells
_NOT_SENT = (Again, Broken, PeerError)


class Sending(Settings):
    """Calls that send return 0, or a negative error number if the message could not go (time-out,
    peer lost). Those of a REQ without callbacks and without polling mode wait for the reply and
    return it, in the form of the request. Mistakes of the caller raise.
    """

    _dispatcher: Dispatcher

    def request(self, data: Any) -> Any:
        """Sends a request and returns the reply: bytes, or what was answered with: a tensor, a dict of them.

        Raises Again when no reply came in time (`timeout_seconds`, or the receive time-out that was
        set), Broken when the peer died.
        """
        self._only(ZmqSocketType.REQ)
        return self._ask(*self._sender(data))

    def reply(self, data: Any, request: int | None = None) -> int:
        """Answers the open request. request: the number that came with it (`message["request"]`), for those
        who answer from other threads: where another one is open by now, nothing is sent, and the number of
        an error returned."""
        self._only(ZmqSocketType.REP)
        return self._answer(self._sender(data)[0], request)

    def reply_tensor(self, tensor: Any, request: int | None = None) -> int:
        """Answers with a tensor, or a dict of them: as `reply`."""
        self._only(ZmqSocketType.REP)
        return self._answer(self._tensor_sender(tensor), request)

    def publish(self, topic: Topic, data: Any) -> int:
        """Sends to every peer that subscribed a prefix of the topic; never waits for slow ones."""
        self._only(ZmqSocketType.PUB)
        return self._code(self._sender(data, topic or "")[0])

    def push(self, data: Any) -> int:
        """Gives one task to one of the peers, in turn."""
        if type(data) is bytes and self.kind is _PUSH:  # the common case costs no second call
            try:
                self._socket.send(data)
            except _NOT_SENT as error:
                return self._not_sent(error)
            return 0
        self._only(_PUSH)
        return self._code(self._sender(data)[0])

    def send(self, data: Any, topic: Topic = None) -> Any:
        """Sends bytes, text (as UTF-8), any buffer, a tensor, or a dict of tensors."""
        return self._send(*self._sender(data, topic))

    def send_tensor(self, tensor: Any, topic: Topic = None) -> Any:
        """Sends a tensor: numpy, torch, anything with DLPack or the buffer protocol; or a dict of them."""
        return self._send(self._tensor_sender(tensor, topic), Form.TENSOR)

    def send_multipart(self, frames: Sequence[Any], topic: Topic = None) -> Any:
        """Sends several parts as one message."""
        parts = [encode_data(frame) for frame in sequence(frames, "frames", "parts: bytes, text, buffers")]
        return self._send(lambda: self._channel.send_parts(parts, topic), Form.MULTIPART)

    def send_json(self, obj: Any, topic: Topic = None) -> Any:
        """Sends what JSON can say."""
        payload = encode_json(obj)
        return self._send(lambda: self._channel.send([payload], topic), Form.JSON)

    def send_string(self, text: str, topic: Topic = None) -> Any:
        """Sends a text as UTF-8."""
        payload = encode_string(text)
        return self._send(lambda: self._channel.send([payload], topic), Form.STRING)

    def send_pyobj(self, obj: Any, topic: Topic = None) -> Any:
        """Sends a pickled object. Raises PickleRefused unless MOONCAKE_ALLOW_PICKLE=1."""
        payload = encode_pyobj(obj)
        return self._send(lambda: self._channel.send([payload], topic), Form.PYOBJ)

    def _sender(self, data: Any, topic: Topic = None) -> tuple[Callable[[], None], Form]:
        """What sends it, and the form of a reply to it. Raises TypeError."""
        if is_tensor(data):
            return self._tensor_sender(data, topic), Form.TENSOR
        return partial(self._channel.send, (encode_data(data),), topic), Form.DATA

    def _tensor_sender(self, tensor: Any, topic: Topic = None) -> Callable[[], None]:
        send = self._channel.send_tensors if isinstance(tensor, Mapping) else self._channel.send_tensor
        return partial(send, tensor, topic)

    def _send(self, send: Callable[[], None], form: Form) -> Any:
        if self.kind is ZmqSocketType.REP:
            return self._answer(send)
        if self.kind is not ZmqSocketType.REQ:
            return self._code(send)
        if self._polling:
            return self._code(send)
        if self._dispatcher.running:
            return self._ask_for_callback(send)
        return self._ask(send, form)

    def _code(self, send: Callable[[], None]) -> int:
        """0, or the negative error number of what the world did; mistakes of the caller raise."""
        try:
            send()
        except _NOT_SENT as error:
            return self._not_sent(error)
        return 0

    def _not_sent(self, error: TransferError) -> int:
        logger.warning("%s socket %d: not sent: %s", self.kind.name, self.id, error)
        return -(error.errno or 1)

    def _answer(self, send: Callable[[], None], request: int | None = None) -> int:
        if request is not None:
            whole(request, "request", 1)
        with self._answering:
            if request is not None and request != self._request:
                logger.warning("REP socket %d: no answer to request %d: it is not open", self.id, request)
                return -EFSM
            code = self._code(send)
            if code == 0:
                self._request = 0
                self._turn.set()
        return code

    def _ask(self, send: Callable[[], None], form: Form) -> Any:
        self._begin_exchange()
        try:
            send()
            reply = self._channel.receive(self._reply_timeout)
        finally:
            self._end_exchange()
        if reply.is_tensor:
            return reply.tensor
        if form is Form.TENSOR:
            return reply.data
        got = read(reply, form)
        return got.get("data", got.get("obj", got.get("string", got.get("frames"))))

    def _ask_for_callback(self, send: Callable[[], None]) -> int:
        """The reply goes to a callback; requests in quick succession wait for each other's."""
        code = self._code(self._begin_exchange)
        if code:
            return code
        try:
            code = self._code(send)
        except BaseException:  # a mistake of the caller, or the socket was closed
            self._end_exchange()
            raise
        if code:
            self._end_exchange()
        else:
            self._since = time.monotonic()
            self._turn.set()
        return code

    # -- the same for asyncio ------------------------------------------------------------------

    def request_async(self, data: Any, loop: Loop = None) -> Future[Any]:
        """`request` in another thread: a future of `loop` (default: the running one)."""
        return self._submit(loop, self.request, data)

    def publish_async(self, topic: Topic, data: Any, loop: Loop = None) -> Future[Any]:
        return self._submit(loop, self.publish, topic, data)

    def push_async(self, data: Any, loop: Loop = None) -> Future[Any]:
        return self._submit(loop, self.push, data)

    def send_async(self, data: Any, loop: Loop = None) -> Future[Any]:
        return self._submit(loop, self.send, data)

    def send_tensor_async(self, tensor: Any, loop: Loop = None, topic: Topic = None) -> Future[Any]:
        return self._submit(loop, self.send_tensor, tensor, topic)
