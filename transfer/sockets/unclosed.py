"""A socket that its program dropped without `close`: it ends, and the log says what it did not send."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.sockets.socket import SocketMethods

logger = logging.getLogger("transfer")

#: ms for what is not sent, at most: whichever thread drops it waits so long
_LINGER = 1000.0


def end_dropped(socket: SocketMethods) -> None:
    """Closes it. A ResourceWarning, as for a file, and a WARNING in the log if messages are lost."""
    name = repr(socket)
    linger = _LINGER if socket.linger is None or socket.linger < 0 else min(socket.linger, _LINGER)
    # The reactor's own thread makes the connections that a flush may wait for.
    unsent = socket.close(0 if socket.context.reactor.in_loop() else linger)
    if unsent:
        logger.warning("%s was dropped without close(): %d messages were not sent", name, unsent)
    warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2, source=socket)
