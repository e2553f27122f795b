"""What a closed socket still owes is sent by an heir, so that `close` returns at once.

libzmq closes in the background: the linger passes there, and `Context.term` waits for it. Here the
connections of the closed socket move to a plain socket of ours, whose thread flushes and closes it.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Any

#: seconds between two looks whether the linger was shortened
_LOOK = 0.05
#: ms that the last step may take, in which the peer's kernel takes what ours has
_FINISH = 5000.0


def owes(sock: Any) -> bool:
    """Whether something of this socket may not have reached a peer yet."""
    return bool(sock.messages_sent) or _waiting(sock._links)


def _waiting(links: Any) -> bool:
    with links._lock:
        return bool(links.orphans) or any(peer.stream.queued for peer in links.peers.values())


def bequeath(sock: Any, make: Any) -> None:
    """Closes `sock` and lets an heir of the class `make` send what is left."""
    context = sock.context
    heir = make(context, sock._pattern.socket_type)
    heir._values.update(sock._values)
    links, streams = sock._links, sock._streams()
    for stream in streams:
        sock._detach(stream)
    sock._links, heir._links = heir._links, links
    sock._pattern, heir._pattern = heir._pattern, sock._pattern
    sock._requester, heir._requester = heir._requester, sock._requester
    links._socket = weakref.ref(heir)
    make.close(sock, 0)  # nothing of its own is left
    for stream in streams:
        heir._attach(stream, links.sends, links.receives)
    heir._ways_changed()
    thread = threading.Thread(target=_settle, args=(heir, context), name="zmq-linger", daemon=True)
    context._heirs[thread] = heir
    thread.start()


def _settle(heir: Any, context: Any) -> None:
    started = time.monotonic()
    while True:
        # Read anew each time: Context.destroy(linger) may shorten it.
        linger = heir.linger
        deadline = math.inf if linger < 0 else started + linger / 1000.0
        heir._links.flush(min(deadline, time.monotonic() + _LOOK))
        if not _waiting(heir._links) or time.monotonic() >= deadline:
            break
    left = (deadline - time.monotonic()) * 1000.0
    heir.close(min(_FINISH, max(0.0, left)))
    context._heirs.pop(threading.current_thread(), None)
