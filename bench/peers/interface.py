"""`ZmqInterface`, as programs of Mooncake's communicator use it: calls send, callbacks receive."""

from __future__ import annotations

import os
import threading
from typing import Any

from bench.peers.base import Channel, Peer, Role, host_of, nothing, patience_of
from bench.peers.ours import KINDS
from bench.work import PATIENCE, Failed, Work


class Arrivals:
    """Counts messages of a callback, one or a list at a time; another thread waits."""

    def __init__(self) -> None:
        self._count = self._wanted = 0
        self._last: Any = b""
        self._there = threading.Condition()

    def one(self, message: dict[str, Any]) -> None:
        self._last = message["data"]
        self._count += 1
        if self._count == self._wanted:
            self._notify()

    def many(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:  # as a program would read each
            self.one(message)

    def wait(self, count: int, size: int) -> int:
        """Waits for so many more messages; returns their bytes. Raises Failed."""
        with self._there:
            self._wanted += count
            if not self._there.wait_for(lambda: self._count >= self._wanted, PATIENCE):
                raise Failed(f"only {self._count} of {self._wanted} messages arrived")
        if len(self._last) != size:
            raise Failed(f"a message of {len(self._last)} bytes arrived instead of {size}")
        return count * size

    def _notify(self) -> None:
        with self._there:
            self._there.notify_all()


class Interface(Peer):
    """batch: the receiver's callback gets lists of messages. A channel's `send` of a REQ is `request`, which
    returns the reply. A REP replies in its callback. The `socket` of a PULL's channel is its `Arrivals`."""

    name = "interface"

    def __init__(self, batch: bool = False) -> None:
        os.environ["TRANSFER_LOCAL"] = "off"  # the other peers of its line-ups use TCP
        self._batch = batch

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        from transfer import ZmqConfig, ZmqInterface

        interface = ZmqInterface()
        interface.initialize(ZmqConfig(timeout_seconds=int(patience_of(work))))
        socket = interface.socket(KINDS[role])
        channel = Channel(address, close=interface.shutdown, socket=socket)
        if role is Role.REP:
            socket.set_receive_callback(lambda message: socket.reply(message["data"]))
        elif role is Role.PULL:
            channel.socket = self._arrivals(socket)
        else:
            channel.send = socket.request if role is Role.REQ else socket.push
            channel.recv = nothing  # `request` has returned the reply
        if address:
            socket.connect(address)
        else:
            socket.bind(f"tcp://{host_of(work)}:0")
            channel.address = socket.get_bound_endpoint()
        channel.ready = lambda peers: socket._socket.wait_for_peers(peers, PATIENCE)
        return channel

    def _arrivals(self, socket: Any) -> Arrivals:
        arrivals = Arrivals()
        if self._batch:
            socket.set_batch_receive_callback(arrivals.many)
        else:
            socket.set_receive_callback(arrivals.one)
        return arrivals
