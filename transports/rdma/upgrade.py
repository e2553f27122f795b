"""Upgrades a TCP connection to a queue pair: both ends exchange the addresses of theirs."""

from __future__ import annotations

import ipaddress
import secrets
import time
from typing import Any

from transfer.transports.errors import ProtocolError
from transfer.transports.handshake.upgrade import Declined, Made, Upgrade, number_of, text_of
from transfer.transports.rdma.domain import Domains
from transfer.transports.rdma.driver import Destination, QueuePair
from transfer.transports.rdma.eager import BUFFER
from transfer.transports.rdma.port import GRANT, Ports, RdmaPort
from transfer.transports.rdma.stream import VerbsStream

_DOMAINS = "rdma.domains"
_PORTS = "rdma.ports"
_MAX_CONTROL = 64 * 1024
#: seconds for which TCP is used with a host after rdma has failed for good
_REMEMBERED = 60.0


class VerbsUpgrade(Upgrade):
    """OFFER and ACCEPT have the same fields: number, gid, lid, psn, mtu, reads, buffers."""

    _port: RdmaPort | None = None
    _pair: QueuePair | None = None
    _psn = 0
    _granted = 0

    def offer(self) -> dict[str, Any]:
        return self._begin()

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        answer = self._begin()
        self._connect(offer)
        return answer

    def finish(self, answer: dict[str, Any]) -> None:
        self._connect(answer)

    def made(self, fd: int, channel: Any = None) -> Made:
        assert self._port is not None and self._pair is not None
        pair, self._pair = self._pair, None
        around = self.around
        control = around.core.Stream(
            fd,
            around.socket_type,
            around.flusher,
            around.pool,
            max_message=_MAX_CONTROL,
            channel=channel,
        )
        host = self.agreement.remote.host_id
        given_up = self._ports().given_up
        stream = VerbsStream(
            self._port,
            pair,
            control,
            reactor=around.reactor,
            socket_type=around.socket_type,
            granted=self._granted,
            max_message=around.max_message,
            give_up=lambda why: given_up.update({host: why}),
        )
        stream.send_high_water = around.send_high_water
        stream.send_high_water_bytes = around.send_high_water_bytes
        stream.credits = around.credits
        stream.checksum = around.checksum
        return Made(fd, stream)

    def close(self) -> None:
        pair, self._pair = self._pair, None
        if pair is not None and self._port is not None:
            with self._port.lock:
                pair.close()
                self._port.reserved -= 1

    # ------------------------------------------------------------------------------------------

    def _begin(self) -> dict[str, Any]:
        """Makes a queue pair, and returns its address for the peer."""
        ports = self._ports()
        before = ports.given_up.get(self.agreement.remote.host_id)
        if before is not None and time.monotonic() - before.when < _REMEMBERED:
            raise Declined(before.reason, f"it failed a moment ago: {before.text}", hint=before.hint)
        self._port = ports.with_room()
        self._port.domain.watch(self.around.reactor)
        with self._port.lock:
            self._pair = self._port.queue_pair()
        self._psn = secrets.randbelow(1 << 24)
        route = self._port.domain.route
        return {
            "number": self._pair.number,
            "gid": route.gid,
            "lid": route.lid,
            "psn": self._psn,
            "mtu": route.mtu,
            "reads": self._port.domain.device.limits.reads,
            "buffers": GRANT,
            "buffer": BUFFER,
        }

    def _connect(self, offer: dict[str, Any]) -> None:
        """Raises ProtocolError for invalid fields, DeviceError when the device refuses."""
        assert self._port is not None and self._pair is not None
        route = self._port.domain.route
        mtu = min(number_of(offer, "mtu", 4096), route.mtu)
        if mtu not in (256, 512, 1024, 2048, 4096):
            raise ProtocolError("upgrade", f"packets of {mtu} bytes")
        if number_of(offer, "buffer", 1 << 24) != BUFFER:
            raise Declined(
                "buffer", f"the peer has eager buffers of {offer['buffer']} bytes, this side of {BUFFER}"
            )
        self._granted = number_of(offer, "buffers", 1 << 16)
        if not self._granted:
            raise ProtocolError("upgrade", "no eager buffers")
        destination = Destination(
            number=number_of(offer, "number", (1 << 24) - 1),
            gid=_gid_of(offer),
            lid=number_of(offer, "lid", (1 << 16) - 1),
            psn=number_of(offer, "psn", (1 << 24) - 1),
            mtu=mtu,
            reads=max(1, min(number_of(offer, "reads", 255), self._port.domain.device.limits.reads)),
        )
        with self._port.lock:
            self._pair.connect(destination, port=route.port, gid_index=route.gid_index, psn=self._psn)

    def _ports(self) -> Ports:
        around = self.around
        ports = around.own.get(_PORTS)
        if ports is None:
            ports = around.own[_PORTS] = Ports(domains_in(around.shared, around.core.copy_into))
        assert isinstance(ports, Ports)
        return ports


def domains_in(shared: dict[str, Any], copy_into: Any) -> Domains:
    """The domains of a context, for its sockets and for `context.register`; made at the first call."""
    domains = shared.get(_DOMAINS)
    if domains is None:
        domains = shared[_DOMAINS] = Domains(copy_into)
    assert isinstance(domains, Domains)
    return domains


def _gid_of(offer: dict[str, Any]) -> str:
    try:
        return ipaddress.IPv6Address(text_of(offer, "gid", 64)).exploded
    except ValueError as error:
        raise ProtocolError("upgrade", "the GID is no address") from error
