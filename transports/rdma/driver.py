"""The interface to libibverbs: what is asked of a device. `libibverbs_driver` implements it, and tests do.

A driver raises only errors of `transfer.transports.errors`, mapped in `transports/rdma/failures.py`. Any
thread may call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transfer.transports.core.native.ring_channel import RingChannel


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of a device: queue pairs, entries of a completion queue, requests of a queue pair, regions,
    READs that wait at each end of a queue pair."""

    queue_pairs: int
    completions: int
    requests: int
    regions: int
    reads: int


@dataclass(frozen=True, slots=True)
class PortState:
    """active: the link is up. mtu: bytes of a packet. lid: address on InfiniBand, 0 on Ethernet.
    ethernet: RoCE: the GID alone identifies a peer."""

    active: bool
    mtu: int
    lid: int
    ethernet: bool


class DeviceEventKind(Enum):
    GONE = "gone"  # the device works no more
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    OTHER = "other"


class DeviceEvent(NamedTuple):
    """What a device reports by itself. port: its number, for events of a link."""

    kind: DeviceEventKind
    port: int


class MemoryRegion(ABC):
    """Registered memory. Holds no reference to that memory: its owner has to keep both."""

    #: the address of its first byte in work requests; not the real one for a dma-buf
    address: int
    length: int
    lkey: int
    rkey: int

    @abstractmethod
    def close(self) -> None:
        """Deregisters. Idempotent. Pending READs of the peer fail."""


class DeviceHandle(ABC):
    """An open device with one protection domain."""

    name: str
    limits: DeviceLimits
    #: nanoseconds spent registering memory, written by `memory`
    registration_ns: int = 0
    #: a forked child may use memory that is registered here
    forks_freely: bool = False
    #: called when memory cannot be registered; returns whether it ended registrations, for another try
    reclaim: Callable[[], bool] | None = None
    #: readable when `take_event` has something; -1: this driver reports nothing
    event_fd: int = -1

    def take_event(self) -> DeviceEvent | None:
        """The next event, without waiting; None: there is none."""
        return None

    @abstractmethod
    def port(self, number: int) -> PortState: ...

    @abstractmethod
    def gid(self, port: int, index: int) -> str:
        """As text, like an IPv6 address."""

    @abstractmethod
    def register(
        self,
        address: int,
        length: int,
        *,
        local_write: bool,
        remote_read: bool,
        device_memory: bool = False,
    ) -> MemoryRegion:
        """Registers memory with the least rights that the use needs. device_memory: a GPU's, by its address.
        Raises RegistrationError."""

    @abstractmethod
    def register_dmabuf(
        self, fd: int, offset: int, length: int, *, local_write: bool, remote_read: bool
    ) -> MemoryRegion:
        """Registers a GPU's memory, which begins at `offset` of its dma-buf. Raises RegistrationError."""

    @abstractmethod
    def channel(self, size: int) -> RingChannel:
        """A queue pair, and a ring of `size` bytes to lend its peer. Raises DeviceError."""

    @abstractmethod
    def connect(self, channel: RingChannel, *destination: Any) -> None:
        """See RingChannel.connect. Raises DeviceError."""

    @abstractmethod
    def close(self) -> None:
        """Closes protection domain, then context. Objects made from it have to be closed before.
        Idempotent."""


class Driver(ABC):
    """A binding of libibverbs."""

    name: str
    version: str

    @abstractmethod
    def devices(self) -> list[str]:
        """The names of the devices. Raises DeviceError if the machine has no verbs at all."""

    @abstractmethod
    def open(self, device: str) -> DeviceHandle:
        """Opens a device. Raises DeviceError."""


def load() -> Driver:
    """libibverbs, bound by the compiled core. Raises DeviceError."""
    from transfer.transports.rdma.libibverbs_driver import LibibverbsDriver

    return LibibverbsDriver()
