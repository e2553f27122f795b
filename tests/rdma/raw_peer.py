"""A peer that drives its queue pair by hand, and so can say anything."""

from __future__ import annotations

import ipaddress
import struct
from typing import Any

from tests.rdma.ends import World, agreement, tcp_pair
from tests.rdma.raw_verbs import RawPair
from transfer.transports.core.wire import HEADER, MAGIC, REFERENCE, REFERENCE_BIT, VERSION, SocketType
from transfer.transports.rdma.upgrade import VerbsUpgrade

#: of the ring that this peer lends
RING = 16 * 1024
PAYLOAD = 1 << 20
_REPORT = struct.Struct("<QQQ")


def frame(data: bytes, *, refers: bool = False) -> bytes:
    """A whole frame of a PAIR."""
    kind = SocketType.PAIR | (REFERENCE_BIT if refers else 0)
    return HEADER.pack(MAGIC, VERSION, kind, 0, 1, 0, len(data), 0) + data


class RawPeer:
    """Connected to one socket of a world; `victim` is the stream at that socket."""

    def __init__(self, made: World, around: Any = None, said: dict[str, Any] | None = None) -> None:
        own = made.socket()
        self.domain = own.shared["rdma.domains"].get()
        route = self.domain.route
        self.pair = RawPair(route.device, RING + 4096 + PAYLOAD)
        #: memory that the victim may READ
        self.payload = self.pair.address + RING + 4096
        self.announced = self.written = 0
        near, far = tcp_pair()
        self.connection = near
        upgrade = VerbsUpgrade(around or made.socket(), agreement(own), connecting=False)
        try:
            self.offer = upgrade.offer()
            gid = ipaddress.IPv6Address(self.offer["gid"]).packed
            self.pair.connect(
                self.offer["number"], gid, self.offer["rkey"],
                psn=self.offer["psn"], our_psn=7, gid_index=route.gid_index,
            )  # fmt: skip
            answer = {
                "number": self.pair.number, "gid": route.gid, "lid": route.lid, "psn": 7, "mtu": 1024,
                "reads": 4, "address": self.pair.address, "rkey": self.pair.rkey, "ring": RING,
            } | (said or {})  # fmt: skip
            upgrade.finish(answer)
            self.victim = made.adopt(upgrade, far)
        except BaseException:
            upgrade.close()
            far.close()
            self.close()
            raise

    def post(self, data: bytes) -> None:
        """Bytes into the ring that the victim lends, room or not."""
        place = self.written % self.offer["ring"]
        assert place + len(data) <= self.offer["ring"]
        self.pair.write(self.offer["address"] + place, data, immediate=len(data))
        self.written += len(data)

    def message(self, data: bytes) -> None:
        self.post(frame(data))

    def announce(self, address: int, rkey: int, length: int, number: int | None = None) -> None:
        self.announced = self.announced + 1 if number is None else number
        self.post(frame(REFERENCE.pack(rkey, self.announced, address, length), refers=True))

    def report(self, consumed: int, posted: int, fetched: int, immediate: int | None = None) -> None:
        """What this side says of itself: see ring.pxd."""
        remote = self.offer["address"] + self.offer["ring"]
        self.pair.write(remote, _REPORT.pack(consumed, posted, fetched), immediate)

    def reported(self) -> tuple[int, int, int]:
        """What the victim said last."""
        self.pair.poll()
        found: tuple[int, int, int] = _REPORT.unpack_from(self.pair.memory, RING)
        return found

    def die(self) -> None:
        """As a process ends: all at once, without a word."""
        self.pair.end_pair()
        self.connection.close()

    def close(self) -> None:
        self.connection.close()
        self.pair.close()
