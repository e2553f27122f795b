"""What several tests of sockets use."""

from __future__ import annotations

import os
import threading
import time

import transfer

TCP = "tcp://127.0.0.1:0"
#: an emulated processor is so many times slower: patience grows by it
PACE = float(os.environ.get("TRANSFER_TEST_PACE", "1"))


def fewer(count, least=20):
    """As many turns as this machine makes in the time: more of them only make a fault likelier to show."""
    return max(least, int(count / PACE))


def pair_of(context, bound_type, connected_type, endpoint=TCP, bound_options=None, **options):
    """(bound, connected) sockets with their connection made."""
    bound = context.socket(bound_type, **options, **(bound_options or {}))
    connected = context.socket(connected_type, **options)
    bound.bind(endpoint)
    if connected_type is transfer.SUB:
        connected.subscribe(b"")
    if bound_type is transfer.SUB:
        bound.subscribe(b"")
    connected.connect(bound.last_endpoint)
    connected.wait_for_peers(1, 10)
    bound.wait_for_peers(1, 10)
    return bound, connected


def eventually(condition, seconds=10.0):
    """Waits until the condition holds; its last value."""
    deadline = time.monotonic() + seconds * PACE
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return value


def binds(socket, endpoint):
    """Whether the endpoint was free: what a closed socket had is given back soon, not at once."""
    try:
        socket.bind(endpoint)
    except transfer.AddressInUse:
        return False
    return True


class Thread(threading.Thread):
    """A thread whose exception or result comes out of `join`."""

    def __init__(self, call, *arguments):
        super().__init__(daemon=True)
        self._call, self._arguments = call, arguments
        self.result = self.error = None
        self.start()

    def run(self):
        try:
            self.result = self._call(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised again by `finish`
            self.error = error

    def finish(self, seconds=20.0):
        self.join(seconds * PACE)
        assert not self.is_alive(), "the thread hangs"
        if self.error is not None:
            raise self.error
        return self.result
