"""Callback mode: a function receives a socket's messages, one at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.sockets.monitor import EventKind
from transfer.transports.errors import Again, Closed, TransferError

if TYPE_CHECKING:
    from transfer.sockets.socket import Socket

logger = logging.getLogger("transfer")

#: milliseconds between two checks whether the callback was removed
_LOOK = 200
#: seconds after a receive that fails, and after many in a row
_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


class SocketDispatcher:
    """The thread that receives messages and calls the function. The socket owns it; `close` ends it.

    It is not the reactor's thread, since the function may block as long as it likes.
    """

    def __init__(self, socket: Socket, call: Callable[[list[bytes]], object]) -> None:
        self._socket = socket
        self._call = call
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="transfer-callback", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """Starts no new call and waits for a running one, except when called from within it."""
        self._stopped = True
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        socket = self._socket
        due = time.monotonic() + socket._long_wait / 1000
        pause = _PAUSE
        while not self._stopped:
            try:
                if not socket.poll(_LOOK):
                    if time.monotonic() >= due:
                        socket._on_long_wait()
                    continue
                parts = socket.recv_multipart(flags=1)
            except Again:
                continue
            except Closed:
                return
            except TransferError as error:  # a lost request of a REQ, a message that cannot be read now
                self._failed(error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _PAUSE
            try:
                self._call(parts)
            except BaseException as error:  # noqa: BLE001 - whatever the user's function raises
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        logger.error("the callback of %r failed", self._socket, exc_info=error)
        self._socket._links.state.emit(EventKind.CALLBACK_FAILED, error=error)
