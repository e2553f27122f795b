"""A socket that its program dropped without `close`: it is closed, and the log reports unsent messages."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.sockets.socket import Socket

logger = logging.getLogger("transfer")

#: ms to flush unsent messages, at most: the thread that drops the socket blocks so long
_LINGER = 1000.0


def end_dropped(socket: Socket) -> None:
    """Closes it. Raises a ResourceWarning, as for a file, and logs a WARNING if messages are lost."""
    name = repr(socket)
    linger = _LINGER if socket.linger is None or socket.linger < 0 else min(socket.linger, _LINGER)
    # In the reactor's own thread a flush would wait for connections that this thread must make.
    unsent = socket.close(0 if socket.context.reactor.in_loop() else linger)
    if unsent:
        logger.warning("%s was dropped without close(): %d messages were not sent", name, unsent)
    warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2, source=socket)
