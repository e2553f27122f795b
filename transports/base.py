"""The contract of a transport, in one file. `transports/testing/` checks it against an implementation.

A transport moves frames between two processes. The layers above never need its name: `Capabilities` lists
what it can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transfer.transports.core.wire import Flag

if TYPE_CHECKING:
    from transfer.transports.address import Address
    from transfer.transports.core.contract import Frame, OutFrame, Sink

_CONTROL = int(Flag.CONTROL)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do, so that no layer above needs its name.

    `by_reference`: payloads are handed over inside the process, without bytes on a wire.
    `same_host`: both ends are on one machine. `device_memory`: GPU pointers travel as they are.
    `registers_memory`: the network card reads and writes memory that was registered with it.
    `has_socket`: connections are file descriptors that `core.Stream` can drive. `networked`: clients without
    authentication may reach it: it needs TLS, and supports tokens. `maps_gpus`: the GPUs, by UUID, whose
    memory the peers map. `host_only`: why memory of a device has to go through the host, if it has.
    """

    by_reference: bool = False
    same_host: bool = False
    device_memory: bool = False
    registers_memory: bool = False
    has_socket: bool = True
    networked: bool = False
    maps_gpus: frozenset[bytes] = frozenset()
    host_only: str = ""


class Listener(ABC):
    """A bound endpoint. The caller of `Transport.listen` owns it; closing twice is fine."""

    #: the endpoint as bound, with the real port
    address: Address

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when `accept` has something to take."""

    @abstractmethod
    def accept(self) -> tuple[Any, str] | None:
        """(connection, the peer's address), or None if no client waits. Never blocks.

        The connection of a transport with `has_socket` is a connected, non-blocking
        `socket.socket`. Raises OutOfDescriptors; the listener stays usable.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops listening and removes what `listen` left in the file system."""


class Transport(ABC):
    """A way to reach a peer, found by the scheme of an endpoint (see `transfer.transports.registry`)."""

    scheme: str
    capabilities: Capabilities

    @abstractmethod
    def listen(self, address: Address, *, backlog: int = 4096) -> Listener:
        """Binds. Raises AddressInUse, AddressNotAvailable, AddressError."""

    def listen_key(self, address: Address) -> Hashable | None:
        """Equal for two addresses at which `listen` would bind the same. None: no listener can exist yet.
        May block on a name lookup. Raises AddressError."""
        return None

    def tune(self, connection: Any) -> None:
        """Sets its options on a connection that another endpoint's listener accepted. Raises OSError."""

    @abstractmethod
    def start_connect(self, address: Address) -> Any:
        """Starts a connection and returns at once.

        With `has_socket`: a non-blocking socket whose connect is in progress. It is complete when the socket
        is writable and SO_ERROR is 0. Raises Broken if it failed at once, AddressError if the name cannot be
        resolved.
        """


class Stream(ABC):
    """Frames between two peers. `core.Stream` implements it over a descriptor; other transports derive from
    it. `core/contract.pyi` describes each method and counter.

    Thread-safety: all methods from any thread. `close` is idempotent and never waits.
    """

    peer: Any = None
    sent: int = 0
    sent_bytes: int = 0
    send_high_water: int = 1000
    send_high_water_bytes: int = 64 << 20
    queued: int = 0
    queued_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    consumed: int = 0
    confirmed: int = 0
    dropped: int = 0
    blocked_ns: int = 0
    waited_ns: int = 0
    broken: BaseException | None = None
    #: whether this side reports to the peer how many messages were consumed
    credits: bool = False
    on_readable: Callable[[], None] | None = None
    on_writable: Callable[[], None] | None = None
    #: descriptors to sleep on: after None from `take`, one of them becomes readable when there is a message.
    #: Streams may share them.
    wait_fds: tuple[int, ...] = ()
    device: str = ""
    #: the core's stream for control frames, over the connection next to this stream, or None
    control: Any = None
    #: as the core's. False: the transport decides how long half a message may stay
    midway: bool = False
    #: time.monotonic_ns() of the last bytes from the peer, on any connection
    last_received_ns: int = 0
    #: `take` accepts a sink, see `core/contract.pyi`
    takes_sink: bool = False
    #: a sent message is at the other end at once; `queued` counts what its application has not taken
    hands_over: bool = False
    #: it holds the unread messages of a lost peer, which come before those of its next connection
    ended: bool = False
    #: the last message from `take` lies in the sink's memory
    placed: bool = False
    #: the message that `take` returns, until the core has it and sets None. If a signal handler raises before
    #: that, the next `take` returns it
    handed: list[Frame] | None = None

    def _is_full(self, size: int) -> bool:
        """Whether a message of this size has to wait."""
        if not self.queued:
            return False  # a single message is always accepted, however large
        if 0 < self.send_high_water <= self.queued:
            return True
        return 0 < self.send_high_water_bytes < self.queued_bytes + size

    def control_ready(self) -> list[Frame]:
        """Reads the control connection of this stream, if it has one, and returns the control frames.

        Raises Broken at the peer's end, ProtocolError.
        """
        return []

    @abstractmethod
    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: Callable[[BaseException | None], None] | None = None,
    ) -> int:
        """Accepts one message whole and returns its number among those sent (1 for a control frame).
        0: the stream is full and took nothing. Never waits. Raises Broken."""

    @abstractmethod
    def flush(self) -> bool:
        """True when the queue is empty."""

    @property
    def takes_device_memory(self) -> bool:
        """Payloads may be objects with `__cuda_array_interface__`, kept until `released` is called."""
        return False

    @property
    def registers_device_memory(self) -> bool:
        """As `takes_device_memory`; the network card reads them, as a dma-buf for a `gpu.Exportable`."""
        return False

    @property
    def sinking(self) -> bool:
        """A message that is not received yet uses a sink's memory."""
        return False

    def leave_sink(self) -> None:
        """The call that brought the sink ends: nothing is written to the sink's memory any more.

        Raises Broken where only the stream's end can guarantee that.
        """

    @abstractmethod
    def take(self, sink: Sink | None = None) -> list[Frame] | None:
        """Returns one message or control frame, or None. Raises Broken, ProtocolError.

        A message is not counted before `consume`: the application may only check whether there is one.
        sink: only with `takes_sink`.
        """

    def consume(self, frames: list[Frame]) -> None:
        """The application has this message from `take`: it may be reported to the peer."""
        nbytes = sum(map(len, frames))
        # No call in between: a signal handler runs before all of it or after it.
        self.received += 1
        self.received_bytes += nbytes
        self.consumed = self.received

    def receive(self, sink: Sink | None = None) -> list[Frame] | None:
        """`take` and `consume`, for a caller that is the application itself."""
        frames = self.take(sink)
        self.handed = None
        if frames is not None and not frames[0].flags & _CONTROL:
            self.consume(frames)
        return frames

    @abstractmethod
    def take_unsent(self) -> list[list[OutFrame]]:
        """Returns the queued messages of which nothing left this process. They are copied to memory of the
        library before their senders are informed (see `copies.unsent`)."""

    def drop_unsent(self) -> int:
        """As `take_unsent`, for messages that go to no other peer; returns their number."""
        return len(self.take_unsent())

    @abstractmethod
    def close(self) -> int:
        """Ends at once; returns how many queued messages were lost."""

    @abstractmethod
    def subscribe(self, prefix: bytes) -> None: ...

    @abstractmethod
    def unsubscribe(self, prefix: bytes) -> bool: ...

    @abstractmethod
    def matches(self, topic: bytes) -> bool: ...
