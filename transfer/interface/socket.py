"""One socket of the Mooncake surface: everything that `ZmqInterface` does, without the id."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from transfer.interface.dispatch import Dispatcher
from transfer.interface.receiving import Receiving
from transfer.interface.sending import Sending
from transfer.interface.settings import Submit
from transfer.interface.types import ZmqConfig, ZmqSocketType


class ZmqSocket(Sending, Receiving):
    """A socket made by `ZmqInterface.socket(type)`, or behind an id of `create_socket`.

    Thread-safe. Closed by `close`, by its interface's `shutdown`, or by a with-statement.
    """

    def __init__(
        self, number: int, kind: ZmqSocketType, socket: Any, config: ZmqConfig, submit: Submit
    ) -> None:
        super().__init__(number, kind, socket, config, submit)
        self._receiving = threading.Lock()
        self._unread = deque()
        self._dispatcher = Dispatcher(self, f"transfer-{kind.name.lower()}-{number}")

    def close(self) -> bool:
        """Ends the callbacks, sends what is queued within the linger, closes. Idempotent. True."""
        self._dispatcher.ask_to_stop()
        self._socket.close()
        self._turn.set()
        self._end_exchange()
        self._dispatcher.stop()
        return True

    def __enter__(self) -> ZmqSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ZmqSocket {self.id} {self.kind.name}>"
