"""What tests of discovery wait for. No test asserts how long it took."""

from __future__ import annotations

import time

from tests.ports import free_port
from transfer.transports.errors import Again

#: seconds that anything may take
PATIENCE = 20.0


def until(holds, what="it", seconds=PATIENCE):
    """What `holds()` returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.01)
    return found


def hosts(socket):
    """The last number of each peer's address, in order: whom a socket is connected to."""
    return sorted(int(peer.endpoint.rpartition(":")[0].rpartition(".")[2]) for peer in socket.peers())


class Pods:
    """Sockets on 127.0.0.N, which have one port in common as the pods of a service have."""

    def __init__(self, context, kind):
        self._context, self._kind = context, kind
        self.port = free_port()
        self.sockets = {}

    def start(self, *numbers):
        for number in numbers:
            socket = self._context.socket(self._kind)
            socket.rcvtimeo = socket.sndtimeo = 10_000
            socket.bind(f"tcp://127.0.0.{number}:{self.port}")
            self.sockets[number] = socket
        return self.sockets[numbers[-1]]

    def stop(self, number):
        self.sockets.pop(number).close(0)

    def __getitem__(self, number):
        return self.sockets[number]


def drain(socket, idle=0.3):
    """All that comes until nothing does for so long, in seconds."""
    found = []
    while socket.poll(int(idle * 1000)):
        try:
            found.append(socket.recv(1))
        except Again:
            continue
    return found
