"""ZmqInterface: the API that programs for Mooncake's communicator call."""

from __future__ import annotations

import threading
from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Any

from transfer.mooncake.dispatch import BatchCallback, Callback
from transfer.mooncake.futures import Loop
from transfer.mooncake.message import CallbackCodec
from transfer.mooncake.settings import Topic
from transfer.mooncake.socket import ZmqSocket
from transfer.mooncake.types import (
    ZmqConfig,
    ZmqSocketOption,
    ZmqSocketType,
    as_config,
    as_socket_type,
)
from transfer.patterns import Pattern, PipelinedReplier, PipelinedRequester
from transfer.sockets.context import Context
from transfer.transports.errors import UsageError

Kind = ZmqSocketType | int | str
Option = ZmqSocketOption | int | str

_PIPELINED: dict[ZmqSocketType, type[Pattern]] = {
    ZmqSocketType.REQ: PipelinedRequester,
    ZmqSocketType.REP: PipelinedReplier,
}


class ZmqInterface:
    """Sockets by number. Each call does what the method of the same name of `ZmqSocket` does.

    `initialize` is optional: the first socket calls it with the defaults. After `shutdown` (or `term`) it may
    be initialized again. Thread-safe. A with-statement calls `shutdown`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._config: ZmqConfig | None = None
        self._context: Context | None = None
        self._sockets: dict[int, ZmqSocket] = {}
        self._next = 1

    # -- life ----------------------------------------------------------------------------------

    def initialize(self, config: ZmqConfig | Mapping[str, Any] | None = None) -> bool:
        """Sets the configuration: a ZmqConfig, a dict of its settings, or nothing. Returns True.

        Raises OptionError for unknown names. Existing sockets keep their settings.
        """
        settings = as_config(config)
        with self._lock:
            self._config = settings
        return True

    def shutdown(self) -> None:
        """Closes every socket within its linger, and ends all threads. Idempotent."""
        with self._lock:
            sockets, self._sockets = list(self._sockets.values()), {}
            context, self._context = self._context, None
        for sock in sockets:
            sock.close()
        if context is not None:
            context.destroy()

    term = shutdown

    def __enter__(self) -> ZmqInterface:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    # -- sockets -------------------------------------------------------------------------------

    def socket(self, type: Kind) -> ZmqSocket:
        """Makes a socket as an object, with every call below without the id."""
        kind = as_socket_type(type)
        with self._lock:
            if self._config is None:
                self._config = ZmqConfig()
            if self._context is None:
                self._context = Context()
            number, self._next = self._next, self._next + 1
            ours = self._context.socket(kind.name, pattern=_PIPELINED.get(kind))
            made = ZmqSocket(number, kind, ours, self._config)
            self._sockets[number] = made
        return made

    def create_socket(self, type: Kind) -> int:
        """Makes a socket and returns its id. The type is a ZmqSocketType, its number or its name."""
        return self.socket(type).id

    def close_socket(self, socket_id: int) -> bool:
        """Closes a socket. False if there is none of this id."""
        with self._lock:
            sock = self._sockets.pop(socket_id, None) if isinstance(socket_id, int) else None
        return sock is not None and sock.close()

    def _of(self, socket_id: int) -> ZmqSocket:
        sock = self._sockets.get(socket_id) if isinstance(socket_id, int) else None
        if sock is None:
            raise UsageError(f"there is no socket {socket_id!r}", hint="create_socket returns the id")
        return sock

    # -- endpoints and options -----------------------------------------------------------------

    def bind(self, socket_id: int, endpoint: str) -> bool:
        return self._of(socket_id).bind(endpoint)

    def connect(self, socket_id: int, endpoint: str) -> bool:
        return self._of(socket_id).connect(endpoint)

    def unbind(self, socket_id: int, endpoint: str) -> bool:
        return self._of(socket_id).unbind(endpoint)

    def disconnect(self, socket_id: int, endpoint: str) -> bool:
        return self._of(socket_id).disconnect(endpoint)

    def start_server(self, socket_id: int) -> bool:
        return self._of(socket_id).start_server()

    def is_bound(self, socket_id: int) -> bool:
        return self._of(socket_id).is_bound()

    def is_connected(self, socket_id: int) -> bool:
        return self._of(socket_id).is_connected()

    def get_bound_endpoint(self, socket_id: int) -> str:
        return self._of(socket_id).get_bound_endpoint()

    def get_connected_endpoints(self, socket_id: int) -> list[str]:
        return self._of(socket_id).get_connected_endpoints()

    def get_socket_type(self, socket_id: int) -> ZmqSocketType:
        return self._of(socket_id).get_socket_type()

    def set_socket_option(self, socket_id: int, option: Option, value: Any) -> bool:
        return self._of(socket_id).set_socket_option(option, value)

    def get_socket_option(self, socket_id: int, option: Option) -> Any:
        return self._of(socket_id).get_socket_option(option)

    def set_routing_id(self, socket_id: int, routing_id: str | bytes) -> bool:
        return self._of(socket_id).set_routing_id(routing_id)

    def get_routing_id(self, socket_id: int) -> str | bytes:
        return self._of(socket_id).get_routing_id()

    def set_polling_mode(self, socket_id: int, enabled: bool) -> bool:
        return self._of(socket_id).set_polling_mode(enabled)

    def set_codec(self, socket_id: int, codec: CallbackCodec | None) -> bool:
        return self._of(socket_id).set_codec(codec)

    # -- sending -------------------------------------------------------------------------------

    def request(self, socket_id: int, data: Any) -> Any:
        return self._of(socket_id).request(data)

    def request_async(self, socket_id: int, data: Any, loop: Loop = None) -> Future[Any]:
        return self._of(socket_id).request_async(data, loop)

    def reply(self, socket_id: int, data: Any, request: int | None = None) -> int:
        return self._of(socket_id).reply(data, request)

    def reply_tensor(self, socket_id: int, tensor: Any, request: int | None = None) -> int:
        return self._of(socket_id).reply_tensor(tensor, request)

    def publish(self, socket_id: int, topic: Topic, data: Any) -> int:
        return self._of(socket_id).publish(topic, data)

    def publish_async(self, socket_id: int, topic: Topic, data: Any, loop: Loop = None) -> Future[int]:
        return self._of(socket_id).publish_async(topic, data, loop)

    def push(self, socket_id: int, data: Any) -> int:
        return self._of(socket_id).push(data)

    def push_async(self, socket_id: int, data: Any, loop: Loop = None) -> Future[int]:
        return self._of(socket_id).push_async(data, loop)

    def send(self, socket_id: int, data: Any, topic: Topic = None) -> Any:
        return self._of(socket_id).send(data, topic)

    def send_async(self, socket_id: int, data: Any, loop: Loop = None) -> Future[Any]:
        return self._of(socket_id).send_async(data, loop)

    def send_tensor(self, socket_id: int, tensor: Any, topic: Topic = None) -> Any:
        return self._of(socket_id).send_tensor(tensor, topic)

    def send_tensor_async(
        self, socket_id: int, tensor: Any, loop: Loop = None, topic: Topic = None
    ) -> Future[Any]:
        return self._of(socket_id).send_tensor_async(tensor, loop, topic)

    def send_multipart(self, socket_id: int, frames: Sequence[Any], topic: Topic = None) -> Any:
        return self._of(socket_id).send_multipart(frames, topic)

    def send_json(self, socket_id: int, obj: Any, topic: Topic = None) -> Any:
        return self._of(socket_id).send_json(obj, topic)

    def send_string(self, socket_id: int, text: str, topic: Topic = None) -> Any:
        return self._of(socket_id).send_string(text, topic)

    def send_pyobj(self, socket_id: int, obj: Any, topic: Topic = None) -> Any:
        return self._of(socket_id).send_pyobj(obj, topic)

    # -- receiving -----------------------------------------------------------------------------

    def subscribe(self, socket_id: int, topic: str | bytes = "") -> bool:
        return self._of(socket_id).subscribe(topic)

    def unsubscribe(self, socket_id: int, topic: str | bytes = "") -> bool:
        return self._of(socket_id).unsubscribe(topic)

    def set_receive_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_receive_callback(callback)

    def set_subscribe_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_subscribe_callback(callback)

    def set_pull_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_pull_callback(callback)

    def set_batch_receive_callback(
        self, socket_id: int, callback: BatchCallback | None, most: int = 1000
    ) -> None:
        self._of(socket_id).set_batch_receive_callback(callback, most)

    def set_tensor_receive_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_tensor_receive_callback(callback)

    def set_multipart_receive_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_multipart_receive_callback(callback)

    def set_json_receive_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_json_receive_callback(callback)

    def set_string_receive_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_string_receive_callback(callback)

    def set_pyobj_receive_callback(self, socket_id: int, callback: Callback | None) -> None:
        self._of(socket_id).set_pyobj_receive_callback(callback)

    def recv(self, socket_id: int, flags: int = 0) -> dict[str, Any]:
        return self._of(socket_id).recv(flags)

    def recv_tensor(self, socket_id: int, flags: int = 0) -> dict[str, Any]:
        return self._of(socket_id).recv_tensor(flags)

    def recv_multipart(self, socket_id: int, flags: int = 0) -> dict[str, Any]:
        return self._of(socket_id).recv_multipart(flags)

    def recv_json(self, socket_id: int, flags: int = 0) -> dict[str, Any]:
        return self._of(socket_id).recv_json(flags)

    def recv_string(self, socket_id: int, flags: int = 0) -> dict[str, Any]:
        return self._of(socket_id).recv_string(flags)

    def recv_pyobj(self, socket_id: int, flags: int = 0) -> dict[str, Any]:
        return self._of(socket_id).recv_pyobj(flags)
