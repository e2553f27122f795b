"""The contract of a transport, in one file. `transports/testing/` is the same contract executed.

A transport moves frames between two processes. The layers above never ask for its name: what it
can do stands in `Capabilities`.
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
    """What a transport can do, so that nobody needs its name.

    `by_reference`: payloads are handed over inside the process, without bytes on a wire.
    `same_host`: both ends are on one machine. `device_memory`: GPU pointers travel as they are.
    `registers_memory`: the network card reads and writes memory that was registered with it.
    `has_socket`: connections are file descriptors that `core.Stream` can drive. `networked`: strangers
    may come by it: it wants TLS, and knows tokens.
    """

    by_reference: bool = False
    same_host: bool = False
    device_memory: bool = False
    registers_memory: bool = False
    has_socket: bool = True
    networked: bool = False


class Listener(ABC):
    """A bound endpoint. Owned by whoever called `Transport.listen`; closing twice is fine."""

    #: the endpoint as bound, with the real port
    address: Address

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when `accept` has something to take."""

    @abstractmethod
    def accept(self) -> tuple[Any, str] | None:
        """(connection, where from), or None if nobody is waiting. Never blocks.

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
        """Equal for two addresses at which `listen` would bind the same. None: no listener can be there yet.
        May block on a name look-up. Raises AddressError."""
        return None

    def tune(self, connection: Any) -> None:
        """Sets its options on a connection that another endpoint's listener accepted. Raises OSError."""

    @abstractmethod
    def start_connect(self, address: Address) -> Any:
        """Begins a connection and returns at once.

        With `has_socket`: a non-blocking socket whose connect is under way; it is done when it is
        writable and SO_ERROR is 0. Raises Broken if it failed at once, AddressError if the name
        cannot be resolved.
        """


class Stream(ABC):
    """Frames between two peers. `core.Stream` fulfils this over a descriptor; other transports
    derive from it. The meaning of each method and counter is told in `core_contract.pyi`.

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
    #: whether the peer is told how many messages were consumed
    credits: bool = False
    on_readable: Callable[[], None] | None = None
    on_writable: Callable[[], None] | None = None
    #: descriptors to sleep on: None from `take` promises that one of them becomes readable when
    #: there is something. Streams may share them.
    wait_fds: tuple[int, ...] = ()
    device: str = ""
    #: the core's stream over the connection beside this one, if there is one
    beside: Any = None
    #: as the core's. False: how long half a message may be there is the transport's affair
    midway: bool = False
    #: time.monotonic_ns() when the peer was heard last, by whatever way
    last_received_ns: int = 0
    #: `take` takes a sink, see `core_contract.pyi`
    takes_sink: bool = False
    #: what is sent is with the other end at once, and `queued` is what its application has not taken
    hands_over: bool = False
    #: the message that `take` returned last lies where the sink said
    placed: bool = False
    #: the message that `take` returns, until the core has it and sets None. A handler of a signal may raise
    #: before that; then the next `take` returns it
    handed: list[Frame] | None = None

    def _is_full(self, size: int) -> bool:
        """Whether a message of so many bytes has to wait."""
        if not self.queued:
            return False  # one message is always taken, however large
        if 0 < self.send_high_water <= self.queued:
            return True
        return 0 < self.send_high_water_bytes < self.queued_bytes + size

    def control_ready(self) -> list[Frame]:
        """Reads the connection beside this stream, if it has one: the control frames that came.

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
        """Takes one message whole: its number among those sent (1 for a control frame). 0: it is full,
        and nothing was taken. Never waits. Raises Broken."""

    @abstractmethod
    def flush(self) -> bool:
        """True when nothing is queued any more."""

    @property
    def takes_device_memory(self) -> bool:
        """Payloads may be objects with `__cuda_array_interface__`, kept until they are `released`."""
        return False

    @property
    def registers_device_memory(self) -> bool:
        """The same, and the network card reads it: as a dma-buf where it is a `gpu.Exportable`."""
        return False

    @property
    def sinking(self) -> bool:
        """A message that is not received yet uses memory of a sink's."""
        return False

    def leave_sink(self) -> None:
        """The call whose sink was asked ends: from here on nothing is written to the sink's memory.

        Raises Broken where only the stream's end can promise that.
        """

    @abstractmethod
    def take(self, sink: Sink | None = None) -> list[Frame] | None:
        """One message or control frame, None if there is none. Raises Broken, ProtocolError.

        A message is not counted before `consume`: the application may have asked only whether there is one.
        sink: only with `takes_sink`.
        """

    def consume(self, frames: list[Frame]) -> None:
        """The application has this message, which `take` returned: the peer may be told so."""
        nbytes = sum(map(len, frames))
        # Without a call in between, so that a signal's handler runs before all of it or behind it.
        self.received += 1
        self.received_bytes += nbytes
        self.consumed = self.received

    def receive(self, sink: Sink | None = None) -> list[Frame] | None:
        """`take` and `consume`, for whoever is the application himself."""
        frames = self.take(sink)
        self.handed = None
        if frames is not None and not frames[0].flags & _CONTROL:
            self.consume(frames)
        return frames

    @abstractmethod
    def take_unsent(self) -> list[list[OutFrame]]:
        """The messages of which nothing left this process; they are no longer queued. In memory of
        their own, copied before whoever sent them is told (see `owning.unsent`)."""

    def drop_unsent(self) -> int:
        """As `take_unsent`, for messages that go to no other peer: how many they were."""
        return len(self.take_unsent())

    @abstractmethod
    def close(self) -> int:
        """Ends at once; how many queued messages were lost."""

    @abstractmethod
    def subscribe(self, prefix: bytes) -> None: ...

    @abstractmethod
    def unsubscribe(self, prefix: bytes) -> bool: ...

    @abstractmethod
    def matches(self, topic: bytes) -> bool: ...
