"""pynng: the successor of nanomsg. Its publisher drops when a subscriber's queue is full."""

from __future__ import annotations

import time
from typing import Any

import pynng

from bench.peers.base import Channel, Peer, Role, host_of, patience_of
from bench.work import PATIENCE, Skipped, Work

KINDS = {
    Role.PUSH: pynng.Push0,
    Role.PULL: pynng.Pull0,
    Role.REQ: pynng.Req0,
    Role.REP: pynng.Rep0,
    Role.PUB: pynng.Pub0,
    Role.SUB: pynng.Sub0,
    Role.PAIR: pynng.Pair0,
    Role.PAIR_BOUND: pynng.Pair0,
}

QUEUE = 1000
LONGEST = 8192


class Nng(Peer):
    name = "pynng"
    silence = (pynng.Timeout,)

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        channel = self._channel(role, work, address)
        channel.send, channel.recv = channel.socket.send, channel.socket.recv
        return channel

    def open_async(self, role: Role, work: Work, address: str = "") -> Channel:
        channel = self._channel(role, work, address)
        channel.send, channel.recv = channel.socket.asend, channel.socket.arecv  # codespell:ignore asend
        return channel

    def _channel(self, role: Role, work: Work, address: str) -> Channel:
        milliseconds = int(patience_of(work) * 1000)
        socket: Any = KINDS[role](send_timeout=milliseconds, recv_timeout=milliseconds, recv_max_size=0)
        self._queue(socket, role)
        if address:
            socket.dial(address, block=True)
        else:
            listener = socket.listen(f"tcp://{host_of(work)}:0")
            address = f"tcp://{host_of(work)}:{_port(listener)}"

        def ready(peers: int) -> None:
            deadline = time.monotonic() + PATIENCE
            while len(socket.pipes) < peers:
                if time.monotonic() > deadline:
                    raise Skipped("pynng: the other side did not connect")
                time.sleep(0.005)

        return Channel(address=address, ready=ready, close=socket.close, socket=socket)

    def _queue(self, socket: Any, role: Role) -> None:
        """Queues as many messages as the other peers (nng's default: none); nng's maximum for PUB, SUB."""
        if role is Role.SUB:
            socket.subscribe(b"")
            socket.recv_buffer_size = LONGEST
        elif role is Role.PUB:
            socket.send_buffer_size = LONGEST
        elif role not in (Role.REQ, Role.REP):
            socket.send_buffer_size = socket.recv_buffer_size = QUEUE


def _port(listener: Any) -> int:
    """Returns the port that the kernel chose."""
    return int(str(listener.local_address).rsplit(":", 1)[1])
