"""Poller, select and zmq_poll: waiting for several sockets and descriptors."""

from __future__ import annotations

from typing import Any

from transfer.sockets.poller import Poller as OurPoller, descriptor, wait
from transfer.transports.arguments import events_of, milliseconds, seconds, sequence, wrong
from transfer.transports.core import poll_sockets
from transfer.transports.errors import ArgumentError
from transfer.zmq.constants import PollEvent
from transfer.zmq.derived import as_given, plain_socket

__all__ = ["Poller", "select", "zmq_poll"]


class Poller(OurPoller):
    """Registered sockets and descriptors, and their events.

    For a file, as in pyzmq, `poll` returns the descriptor.
    """

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """Returns (socket or descriptor, bits) of the ready entries. `timeout` in ms, None without limit."""
        if timeout is None or type(timeout) is int:
            ready = poll_sockets(self.sockets, timeout)
            if ready is not None:
                return ready
        return zmq_poll(self.sockets, timeout)


def zmq_poll(sockets: list[tuple[Any, int]], timeout: float | None = -1) -> list[tuple[Any, int]]:
    """Returns (socket or descriptor, bits) of the ready entries. `timeout` in ms, negative without limit."""
    try:
        entries = [(_known(thing), events_of(bits)) for thing, bits in sockets]
    except ArgumentError:
        raise
    except (TypeError, ValueError):
        raise wrong("sockets", sockets, "a list of (socket, flags)") from None
    limit = milliseconds(timeout)
    ready = wait(entries, limit if entries else 0)  # as in pyzmq: an empty list returns at once
    return as_given(ready, sockets)


def _known(thing: Any) -> Any:
    """Returns the plain socket, of any other object its descriptor."""
    thing = plain_socket(thing)
    if isinstance(thing, int) or hasattr(thing, "_ready_bits"):
        return thing
    return descriptor(thing)


def select(
    rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns what can be read, written, and what has errors. `timeout` in seconds, None without limit."""
    wanted: dict[Any, int] = {}
    for things, bit in (
        (rlist, PollEvent.POLLIN),
        (wlist, PollEvent.POLLOUT),
        (xlist, PollEvent.POLLERR),
    ):
        for thing in sequence(things, "what is polled", "sockets and descriptors"):
            wanted[thing] = wanted.get(thing, 0) | int(bit)
    limit = seconds(timeout)
    ready = zmq_poll(list(wanted.items()), None if limit is None else limit * 1000)
    return (
        [thing for thing, bits in ready if bits & PollEvent.POLLIN],
        [thing for thing, bits in ready if bits & PollEvent.POLLOUT],
        [thing for thing, bits in ready if bits & PollEvent.POLLERR],
    )
