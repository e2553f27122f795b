"""MessageTracker: reports when the memory of a message may be reused."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

from transfer.sockets.tracker import Tracker
from transfer.transports.arguments import seconds
from transfer.transports.errors import Again, Broken
from transfer.zmq.error import NotDone

__all__ = ["_FINISHED_TRACKER", "MessageTracker"]


class MessageTracker:
    """Watches any number of messages. Thread-safe.

    towatch: trackers (also of `transfer`), events, or frames that were made with `track=True`.
    """

    #: kept by the tracker of a frame: set when the frame is freed
    frame: Any = None

    def __init__(self, *towatch: Any) -> None:
        self.events: set[Event] = set()
        self.peers: set[MessageTracker | Tracker] = set()
        for thing in towatch:
            if isinstance(thing, Event):
                self.events.add(thing)
            elif isinstance(thing, (MessageTracker, Tracker)):
                self.peers.add(thing)
            elif hasattr(thing, "tracker"):
                if thing.tracker is None:
                    raise ValueError("the frame was made without track=True")
                self.peers.add(thing.tracker)
            else:
                raise TypeError(f"{type(thing).__name__} cannot be watched")

    @property
    def done(self) -> bool:
        """Whether none of the memory is in use any more."""
        return all(event.is_set() for event in self.events) and all(peer.done for peer in self.peers)

    def wait(self, timeout: float = -1) -> None:
        """Waits until all messages are done. `timeout` in seconds, negative without limit. Raises NotDone.

        A message whose peer is lost counts as done, as in pyzmq: its memory is free.
        """
        timeout = -1 if timeout is False or (limit := seconds(timeout)) is None else limit
        deadline = None if timeout < 0 else time.monotonic() + timeout
        for event in self.events:
            if not event.wait(_left(deadline)):
                raise NotDone
        for peer in self.peers:
            left = _left(deadline)
            if isinstance(peer, MessageTracker):
                peer.wait(-1 if left is None else left)
                continue
            try:
                peer.wait(left)
            except Again:
                raise NotDone from None
            except Broken:
                continue


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


_FINISHED_TRACKER = MessageTracker()
