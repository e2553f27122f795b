"""The seam to libibverbs: about a dozen calls, so that another binding can take pyverbs' place.

pyverbs fits only the rdma-core and the Python that it was built with; trainers live in other images.
Whatever drives the verbs fulfils these classes and raises only errors of `transfer.transports.errors`, mapped
in `transports/rdma/failures.py`.

Thread-safety: none of its own. `DeviceHandle.register` and the queues of different ports may be used
at once; one queue and its queue pairs are used under the lock of their port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

#: a completion's status when all went well
SUCCESS = 0


class Completion(NamedTuple):
    """wr_id: as posted. status: SUCCESS, or libibverbs' number. length: bytes that a receive or READ
    brought. number: of the local queue pair. Of a failed one only wr_id, status and number are good."""

    wr_id: int
    status: int
    length: int
    number: int


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the device can at most: queue pairs, entries of a completion queue, requests of a queue
    pair and of a shared receive queue, regions, READs that wait at each end of a queue pair."""

    queue_pairs: int
    completions: int
    requests: int
    shared_requests: int
    regions: int
    reads: int


@dataclass(frozen=True, slots=True)
class PortState:
    """active: the link is up. mtu: bytes of a packet. lid: address on InfiniBand, 0 on Ethernet.
    ethernet: RoCE, so peers are named by GID only."""

    active: bool
    mtu: int
    lid: int
    ethernet: bool


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue pair as its peer must know it, and how both talk. psn: of its first packet.

    mtu: bytes, the smaller one of both ends. timeout: 4.096 µs × 2^timeout, then a packet is sent
    again. retries: at most 6, since 7 can mean endlessly.
    """

    number: int
    gid: str
    lid: int
    psn: int
    mtu: int
    reads: int
    timeout: int = 14
    retries: int = 6


class MemoryRegion(ABC):
    """Registered memory. Holds no reference to that memory: its owner keeps both together."""

    #: what work requests call its first byte; not where a dma-buf lies
    address: int
    length: int
    lkey: int
    rkey: int

    @abstractmethod
    def close(self) -> None:
        """Deregisters. Idempotent. READs of the peer that are under way fail."""


class CompletionQueue(ABC):
    """A completion queue with a channel of its own."""

    #: readable when the queue was armed and a completion came since
    fd: int

    @abstractmethod
    def poll(self, limit: int) -> list[Completion]:
        """Up to `limit` completions, without waiting."""

    @abstractmethod
    def arm(self) -> None:
        """The next completion makes `fd` readable. Poll once more after it."""

    @abstractmethod
    def take_event(self) -> bool:
        """Takes what made `fd` readable, without waiting: one for each `arm`. False: none is there."""

    @abstractmethod
    def close(self) -> None:
        """Queue pairs and shared receive queues that use it are closed before. Idempotent."""


class SharedReceiveQueue(ABC):
    """Receive buffers that all queue pairs of a port share."""

    @abstractmethod
    def prepare(self, wr_id: int, address: int, length: int, lkey: int) -> Any:
        """A buffer, ready to be posted again and again."""

    @abstractmethod
    def post(self, prepared: Any) -> None:
        """Gives the buffer to the device until its completion."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


class QueuePair(ABC):
    """One end of a reliable connection."""

    number: int

    @abstractmethod
    def connect(self, destination: Destination, *, port: int, gid_index: int, psn: int) -> None:
        """From reset to ready to send, by our `port` and its GID; `psn`: of our first packet."""

    @abstractmethod
    def send(self, wr_id: int, address: int, length: int, lkey: int, signaled: bool) -> None:
        """Sends a buffer into one that the peer has posted. Unsignaled ones complete with the next
        signaled one; failed ones complete always."""

    @abstractmethod
    def read(self, wr_id: int, address: int, length: int, lkey: int, remote: int, rkey: int) -> None:
        """Reads the peer's memory at `remote` into ours. Always signaled."""

    @abstractmethod
    def close(self) -> None:
        """From here on the peer cannot touch our memory by it. Idempotent."""


class DeviceHandle(ABC):
    """An open device with one protection domain."""

    name: str
    limits: DeviceLimits
    #: nanoseconds spent registering memory, written by `memory`
    registration_ns: int = 0

    @abstractmethod
    def port(self, number: int) -> PortState: ...

    @abstractmethod
    def gid(self, port: int, index: int) -> str:
        """As text, like an IPv6 number."""

    @abstractmethod
    def register(self, address: int, length: int, *, local_write: bool, remote_read: bool) -> MemoryRegion:
        """With the least rights that the use needs. Raises RegistrationError."""

    @abstractmethod
    def register_dmabuf(
        self, fd: int, offset: int, length: int, *, local_write: bool, remote_read: bool
    ) -> MemoryRegion:
        """Memory of a GPU, which begins at `offset` of its dma-buf. Raises RegistrationError."""

    @abstractmethod
    def completion_queue(self, depth: int) -> CompletionQueue: ...

    @abstractmethod
    def shared_receive_queue(self, depth: int) -> SharedReceiveQueue: ...

    @abstractmethod
    def queue_pair(self, queue: CompletionQueue, shared: SharedReceiveQueue, depth: int) -> QueuePair: ...

    @abstractmethod
    def close(self) -> None:
        """Protection domain, then context. Everything made from it is closed before. Idempotent."""


class Driver(ABC):
    """A binding of libibverbs."""

    name: str
    version: str

    @abstractmethod
    def devices(self) -> list[str]:
        """Names. Raises DeviceError when the machine has no verbs at all."""

    @abstractmethod
    def open(self, device: str) -> DeviceHandle:
        """Raises DeviceError."""


def load() -> Driver:
    """The binding that this process can use. Raises DeviceError("no_pyverbs" or "library")."""
    from transfer.transports.rdma.pyverbs_driver import PyverbsDriver

    return PyverbsDriver()
