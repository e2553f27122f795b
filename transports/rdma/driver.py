"""The interface to libibverbs: about a dozen calls, which two drivers implement.

`libibverbs_driver` is for any Python. `pyverbs_driver` needs the pyverbs of this rdma-core and Python, and
serves where there is no compiled core. A driver raises only errors of `transfer.transports.errors`, mapped in
`transports/rdma/failures.py`.

Thread-safety: none here. `DeviceHandle.register` and the queues of different ports may be used at once; one
queue and its queue pairs are used under the lock of their port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from transfer.transports.config import verbs_driver
from transfer.transports.errors import DeviceError

#: the status of a completion without an error
SUCCESS = 0


class Completion(NamedTuple):
    """wr_id: as posted. status: SUCCESS, or libibverbs' number. length: the received or READ bytes. number:
    of the local queue pair. A failed one has only wr_id, status and number."""

    wr_id: int
    status: int
    length: int
    number: int


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of a device: queue pairs, entries of a completion queue, requests of a queue
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


@dataclass(frozen=True, slots=True)
class Destination:
    """The address of a queue pair for its peer, and the parameters of both. psn: of its first packet.

    mtu: bytes, the smaller one of both ends. timeout: 4.096 µs × 2^timeout, then the device retransmits a
    packet. retries: at most 6, since 7 can mean without end.
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
    """Registered memory. Holds no reference to that memory: its owner has to keep both."""

    #: the address of its first byte in work requests; not the real one for a dma-buf
    address: int
    length: int
    lkey: int
    rkey: int

    @abstractmethod
    def close(self) -> None:
        """Deregisters. Idempotent. Pending READs of the peer fail."""


class CompletionQueue(ABC):
    """A completion queue with its completion channel."""

    #: readable when the queue was armed and a completion came afterwards
    fd: int

    @abstractmethod
    def poll(self, limit: int) -> list[Completion]:
        """Returns up to `limit` completions, without waiting."""

    @abstractmethod
    def arm(self) -> None:
        """The next completion makes `fd` readable. Poll once more after it."""

    @abstractmethod
    def take_event(self) -> bool:
        """Takes the event that made `fd` readable, without waiting: one for each `arm`. False: there is
        none."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent. Queue pairs and shared receive queues that use it have to be closed before."""


class SharedReceiveQueue(ABC):
    """Receive buffers that all queue pairs of a port share."""

    @abstractmethod
    def prepare(self, wr_id: int, address: int, length: int, lkey: int) -> Any:
        """A buffer, ready to be posted repeatedly."""

    @abstractmethod
    def post(self, prepared: Any) -> None:
        """Passes the buffer to the device until its completion."""

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
        """Sends a buffer into one that the peer has posted. Unsignaled sends complete with the next
        signaled one; failed sends always complete."""

    @abstractmethod
    def read(self, wr_id: int, address: int, length: int, lkey: int, remote: int, rkey: int) -> None:
        """Reads the peer's memory at `remote` into ours. Always signaled."""

    @abstractmethod
    def fail(self) -> None:
        """Ends the connection: nothing arrives any more, and what is posted completes with an error. What has
        arrived can still be polled, which `close` drops. Idempotent; never raises."""

    @abstractmethod
    def close(self) -> None:
        """From now on the peer cannot access our memory through it. Idempotent."""


class DeviceHandle(ABC):
    """An open device with one protection domain."""

    name: str
    limits: DeviceLimits
    #: nanoseconds spent registering memory, written by `memory`
    registration_ns: int = 0
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
    def register(self, address: int, length: int, *, local_write: bool, remote_read: bool) -> MemoryRegion:
        """Registers memory with the least rights that the use needs. Raises RegistrationError."""

    @abstractmethod
    def register_dmabuf(
        self, fd: int, offset: int, length: int, *, local_write: bool, remote_read: bool
    ) -> MemoryRegion:
        """Registers a GPU's memory, which begins at `offset` of its dma-buf. Raises RegistrationError."""

    @abstractmethod
    def completion_queue(self, depth: int) -> CompletionQueue: ...

    @abstractmethod
    def shared_receive_queue(self, depth: int) -> SharedReceiveQueue: ...

    @abstractmethod
    def queue_pair(self, queue: CompletionQueue, shared: SharedReceiveQueue, depth: int) -> QueuePair: ...

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
    """The binding that this process can use: libibverbs by the compiled core, or else pyverbs.

    TRANSFER_VERBS_DRIVER chooses one. Raises DeviceError.
    """
    wish = verbs_driver()
    if wish != "pyverbs":
        from transfer.transports.rdma.libibverbs_driver import LibibverbsDriver

        try:
            return LibibverbsDriver()
        except DeviceError as error:
            if wish == "libibverbs" or error.reason != "no_core":
                raise
    from transfer.transports.rdma.pyverbs_driver import PyverbsDriver

    return PyverbsDriver()
