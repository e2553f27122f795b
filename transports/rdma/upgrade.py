"""Upgrades a TCP connection to a queue pair: both ends exchange the addresses of theirs, and of the rings
that they lend each other."""

from __future__ import annotations

import ipaddress
import secrets
import time
from typing import Any

from transfer.transports.core.wire import SocketType
from transfer.transports.errors import ProtocolError
from transfer.transports.handshake.upgrade import Declined, Made, Upgrade, number_of, text_of
from transfer.transports.rdma.carrier import RdmaCarrier
from transfer.transports.rdma.domain import Domain, Domains
from transfer.transports.rdma.given_up import GivenUp

_DOMAINS = "rdma.domains"
_GIVEN_UP = "rdma.given_up"
#: bytes of the ring that a peer writes to. Larger ones are not faster, and the peer has the same memory again
RING = 256 * 1024
_SMALLEST_RING, _LARGEST_RING = 16 * 1024, 16 << 20
#: a packet that is not answered is sent again after 4.096 µs × 2^17 = 0.5 s (devices take up to four times as
#: long), 7 times: a link may be down for some seconds. The end of a process is seen by TCP at once.
_TIMEOUT, _RETRIES = 17, 7
#: sockets that only send: their streams are read in the reactor
_READ_BY_REACTOR = (SocketType.PUSH, SocketType.PUB)
#: seconds for which TCP is used with a host after rdma has failed for good
_REMEMBERED = 60.0


class VerbsUpgrade(Upgrade):
    """OFFER and ACCEPT have the same fields: number, gid, lid, psn, mtu, reads; address, rkey, ring."""

    _domain: Domain | None = None
    _channel: Any = None
    _psn = 0

    def offer(self) -> dict[str, Any]:
        return self._begin()

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        answer = self._begin()
        self._connect(offer)
        return answer

    def finish(self, answer: dict[str, Any]) -> None:
        self._connect(answer)

    def made(self, fd: int, channel: Any = None) -> Made:
        """channel: TLS of the handshake, which ends here: the connection tells the peer's end, no more."""
        assert self._domain is not None
        ring, self._channel = self._channel, None
        host = self.agreement.remote.host_id
        given_up = self._given_up()
        around = self.around
        carrier = RdmaCarrier(
            self._domain,
            give_up=lambda why: given_up.update({host: why}),
            reactor=None if around.socket_type in _READ_BY_REACTOR else around.reactor,
        )
        return Made(fd, carrier=carrier, channel=ring)

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # ------------------------------------------------------------------------------------------

    def _begin(self) -> dict[str, Any]:
        """Makes a queue pair and a ring, and returns their addresses for the peer."""
        before = self._given_up().get(self.agreement.remote.host_id)
        if before is not None and time.monotonic() - before.when < _REMEMBERED:
            raise Declined(before.reason, f"it failed a moment ago: {before.text}", hint=before.hint)
        domain = self._domain = domains_in(self.around.shared, self.around.core.copy_into).get()
        domain.watch(self.around.reactor)
        route = domain.look_again()
        self._channel = domain.device.channel(RING)
        self._psn = secrets.randbelow(1 << 24)
        return {
            "number": self._channel.number,
            "gid": route.gid,
            "lid": route.lid,
            "psn": self._psn,
            "mtu": route.mtu,
            "reads": domain.device.limits.reads,
            "address": self._channel.address,
            "rkey": self._channel.rkey,
            "ring": RING,
        }

    def _connect(self, offer: dict[str, Any]) -> None:
        """Raises ProtocolError for invalid fields, DeviceError when the device refuses."""
        assert self._domain is not None
        route = self._domain.route
        mtu = min(number_of(offer, "mtu", 4096), route.mtu)
        if mtu not in (256, 512, 1024, 2048, 4096):
            raise ProtocolError("upgrade", f"packets of {mtu} bytes")
        ring = number_of(offer, "ring", _LARGEST_RING)
        if ring < _SMALLEST_RING or ring & (ring - 1):
            raise ProtocolError("upgrade", f"a ring of {ring} bytes")
        reads = max(1, min(number_of(offer, "reads", 255), self._domain.device.limits.reads))
        self._domain.device.connect(
            self._channel,
            *(number_of(offer, "address", (1 << 64) - 1), number_of(offer, "rkey", (1 << 32) - 1), ring),
            *(number_of(offer, "number", (1 << 24) - 1), _gid_of(offer)),
            *(number_of(offer, "lid", (1 << 16) - 1), number_of(offer, "psn", (1 << 24) - 1)),
            *(mtu, reads, _TIMEOUT, _RETRIES, route.port, route.gid_index, self._psn),
            *(route.pkey_index, route.service_level, route.traffic_class),
        )

    def _given_up(self) -> dict[str, GivenUp]:
        """By host, for the sockets of one context."""
        found = self.around.shared.get(_GIVEN_UP)
        if found is None:
            found = self.around.shared[_GIVEN_UP] = Remembered()
        assert isinstance(found, dict)
        return found


class Remembered(dict[str, GivenUp]):
    """Hosts with which rdma fails for now, so that a connection is not made again and again."""

    def close(self) -> None:
        """As all that a context's sockets share."""


def domains_in(shared: dict[str, Any], copy_into: Any) -> Domains:
    """The domains of a context, for its sockets and for `context.register`; made at the first call."""
    domains = shared.get(_DOMAINS)
    if domains is None:
        domains = shared[_DOMAINS] = Domains(copy_into)
    assert isinstance(domains, Domains)
    return domains


def _gid_of(offer: dict[str, Any]) -> bytes:
    try:
        return ipaddress.IPv6Address(text_of(offer, "gid", 64)).packed
    except ValueError as error:
        raise ProtocolError("upgrade", "the GID is no address") from error
