"""A peer that drives its queue pair by hand, and so can say anything."""

from __future__ import annotations

import socket
from typing import Any

from tests.rdma.ends import World, agreement, tcp_pair
from transfer.transports.core.wire import HEADER, HEADER_SIZE, SocketType
from transfer.transports.rdma import eager
from transfer.transports.rdma.driver import Destination
from transfer.transports.rdma.eager import BUFFER
from transfer.transports.rdma.port import GRANT, RdmaPort
from transfer.transports.rdma.rendezvous import RendezvousAnnouncement
from transfer.transports.rdma.upgrade import VerbsUpgrade


class RawPeer:
    """Connected to one socket of a world; `victim` is the stream at that socket."""

    def __init__(self, made: World, around: Any = None, said: dict[str, Any] | None = None) -> None:
        own = made.socket()
        self.domain = own.shared["rdma.domains"].get()
        self.port = RdmaPort(self.domain)
        self.pair = self.port.queue_pair()
        self.block = self.domain.staging.take(BUFFER)
        self.announced = 0
        near, far = tcp_pair()
        self.control: socket.socket = near
        near.setblocking(True)
        near.settimeout(20)
        upgrade = VerbsUpgrade(around or made.socket(), agreement(own), connecting=False)
        try:
            offer = upgrade.offer()
            route = self.domain.route
            answer = {
                "number": self.pair.number, "gid": route.gid, "lid": route.lid, "psn": 7, "mtu": route.mtu,
                "reads": 4, "buffers": GRANT, "buffer": BUFFER, **(said or {}),
            }  # fmt: skip
            destination = Destination(
                offer["number"], offer["gid"], offer["lid"], offer["psn"], min(offer["mtu"], route.mtu), 4
            )
            self.pair.connect(destination, port=route.port, gid_index=route.gid_index, psn=7)
            upgrade.finish(answer)
            self.victim = made.adopt(upgrade.made(far.detach()))
        except BaseException:
            upgrade.close()
            far.close()
            self.close()
            raise

    def post(self, data: bytes) -> None:
        """One eager buffer, credit or not."""
        self.block.view[: len(data)] = data
        self.pair.send(2 << 32, self.block.address, len(data), self.block.lkey, True)

    def message(self, data: bytes) -> None:
        self.post(eager.encode(SocketType.PAIR, 0, 1, None, None, data, False))

    def announce(self, address: int, rkey: int, length: int, number: int | None = None) -> None:
        self.announced = self.announced + 1 if number is None else number
        said = RendezvousAnnouncement(rkey, self.announced, address, length).encode()
        self.post(eager.encode(SocketType.PAIR, 0, 1, None, None, said, True))

    def say(self, data: bytes) -> None:
        """A control frame on the control connection."""
        self.control.sendall(HEADER.pack(0x5A4D5121, 1, SocketType.PAIR, 8, 0, 0, len(data), 0) + data)

    def hear(self) -> bytes:
        """The next control frame on the control connection."""
        head = self._exactly(HEADER_SIZE)
        return self._exactly(HEADER.unpack(head)[6])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.control.recv(size - len(data))
            assert part, "the control connection has ended"
            data += part
        return data

    def drain(self) -> list[Any]:
        """Completions of its own."""
        return self.port._queue.poll(16)

    def die(self) -> None:
        """As a process ends: all at once, without a word."""
        self.pair.close()
        self.control.close()

    def close(self) -> None:
        self.die()
        self.port.reserved = 0
        self.port.close()
