"""One socket of the Mooncake API: all calls of `ZmqInterface`, without the id."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from transfer.mooncake.dispatch import CallbackDispatcher
from transfer.mooncake.futures import Futures
from transfer.mooncake.receive import InterfaceReceiving
from transfer.mooncake.replies import Replies
from transfer.mooncake.requests import PendingRequests
from transfer.mooncake.send import InterfaceSending
from transfer.mooncake.types import ZmqConfig, ZmqSocketType


class ZmqSocket(InterfaceSending, InterfaceReceiving):
    """A socket made by `ZmqInterface.socket(type)`, or behind an id of `create_socket`.

    Thread-safe. `close`, its interface's `shutdown`, or a with-statement closes it.
    """

    def __init__(self, number: int, kind: ZmqSocketType, socket: Any, config: ZmqConfig) -> None:
        super().__init__(number, kind, socket, config)
        self._receiving = threading.Lock()
        self._unread = deque()
        at_once = config.callbacks_at_once if kind is ZmqSocketType.REP else 1
        self._requests = (
            PendingRequests(self._channel, config.pool_size) if kind is ZmqSocketType.REQ else None
        )
        self._replies = (
            Replies(self._channel, at_once, config.timeout_seconds) if kind is ZmqSocketType.REP else None
        )
        self._futures = Futures(socket, self._requests)
        self._dispatcher = CallbackDispatcher(self, f"transfer-{kind.name.lower()}-{number}", at_once)

    def close(self) -> bool:
        """Ends the callbacks, flushes queued messages within the linger, closes. Idempotent. Returns True."""
        self._dispatcher.ask_to_stop()
        self._futures.close()
        self._socket.close()
        if self._requests is not None:
            self._requests.close()
        self._dispatcher.stop()
        return True

    def __enter__(self) -> ZmqSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ZmqSocket {self.id} {self.kind.name}>"
