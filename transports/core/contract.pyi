"""What the compiled core (`transports/native`) and its Python twin (`transports/twin`) provide.

`transports/core/__init__.py` exports these names from the one in use, plus `IMPLEMENTATION` ("native" or
"twin") and `REASON` (why the twin is in use, or "").

Threads: every method may be called from any thread. `Stream` has a mutex of its own, since the
flusher thread never takes the GIL.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from transfer.transports.errors import Again, ProtocolError
from transfer.transports.turn import Turn as _Turn

class Buffer(Protocol):  # whatever supports the buffer protocol
    def __buffer__(self, flags: int, /) -> memoryview: ...

# --- memory -----------------------------------------------------------------------------------

class Pool:
    """Owns receive buffers in size classes. Returned buffers are kept up to `limit` bytes."""

    def __init__(self, limit: int = 1 << 28) -> None: ...
    def lease(self, nbytes: int) -> Lease: ...  # MemoryError -> InternalError
    def close(self) -> None: ...  # frees what is cached; leases still out free themselves later
    in_use: int  # bytes out on lease
    cached: int  # bytes kept for reuse

class Lease:
    """`nbytes` writable bytes (buffer protocol, format "B", 1-d). They go back to the pool when the
    last view of the lease dies. 64-byte aligned."""

    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Region:
    """Bytes that belong to another object (a contiguous buffer, writable but for `readonly`, exported
    meanwhile).

    A lease in all but its owner: `released()` is called once, in whatever thread, when the last view
    of it has died. What it raises is printed.
    """

    def __init__(
        self, memory: Any, released: Callable[[], None] | None = None, *, readonly: bool = False
    ) -> None: ...
    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Mapping:
    """`size` bytes of a descriptor's memory from `offset` on, a multiple of a page; `private`: as a copy
    on write; `readonly`: nothing may be written. Unmapped when the last view is dead. Raises OSError,
    ValueError.

    The twin keeps a descriptor of its own for each until Python 3.13, the compiled core none.
    """

    def __init__(
        self, fd: int, size: int, *, offset: int = 0, private: bool = False, readonly: bool = False
    ) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Slots:
    """Equal slots in a mapping that two processes share: a state byte for each (0 free, 1 used) at
    its beginning, the slots from `start` on. At most 64. Raises ValueError where they do not fit.

    One side takes and fills slots, the other one lends them out. What it lent is free again when the
    last view of it dies, except in a forked child, which must not free what its parent uses.
    """

    def __init__(self, mapping: Mapping, start: int, size: int, count: int) -> None: ...
    start: int
    size: int  # of one slot, bytes
    count: int
    idle: bool  # every slot is free
    def take(self) -> int: ...  # the first free slot, used from now on, or -1
    def fill(self, index: int, data: Any) -> int: ...  # copies; how many bytes. Raises BufferError
    def free(self, index: int) -> None: ...
    def lend(self, index: int, nbytes: int) -> Any: ...  # as a Region; None: it is lent already

def address_of(memory: Any) -> int:
    """Where the bytes of a contiguous buffer begin."""

def copy_into(target: Any, source: Any) -> None:
    """Copies one contiguous buffer into another of the same size; 64 KiB and more without the GIL.

    Raises BufferError if the sizes differ or the target is read-only.
    """

def crc32c(data: Any, value: int = 0, *, software: bool = False) -> int:
    """CRC-32C (Castagnoli) of a contiguous buffer; value: of the bytes in front of it.

    16 KiB and more without the GIL. software: without the processor's instruction, for tests.
    """

def check_json(text: bytes, deepest: int) -> None:
    """Refuses JSON that decoders cannot read: numbers of more than a double's range, integers of more than
    4,300 digits, the sign among them, more than `deepest` arrays and objects within each other. 16 KiB and
    more without the GIL.

    Text that is no JSON is refused or not. Raises ValueError.
    """

class HeldBuffer:
    """A user's object exported (contiguous, read-only is fine) until this dies or `release()`."""

    def __init__(self, obj: Any) -> None: ...  # BufferError/TypeError as memoryview() raises them
    nbytes: int
    def release(self) -> None: ...

# --- frames -----------------------------------------------------------------------------------

class Frame:
    """One frame as it arrived. Also pyzmq's Frame as `recv(copy=False)` returns it."""

    def __init__(
        self,
        data: Any = b"",
        *,
        flags: int = 0,
        sequence: int = 0,
        socket_type: int = 0,
        topic: bytes | None = None,
        meta: bytes | None = None,
    ) -> None: ...
    data: bytes | Lease | Any
    flags: int  # transfer.transports.core.wire.Flag bits
    sequence: int
    socket_type: int
    topic: bytes | None
    meta: bytes | None  # the tensor header as on the wire (48 bytes, or extended), if there is one
    @property
    def more(self) -> bool: ...
    @property
    def bytes(self) -> bytes: ...  # a copy of data
    @property
    def buffer(self) -> memoryview: ...  # a view of data
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# A frame to send: (flags, sequence, topic, meta, data). flags may hold TENSOR, EXTENDED, LZ4, ACK,
# CONTROL, CRC; the stream adds TOPIC (topic is not None), MORE (all but the last of a message).
# sequence 0 means: the stream's own count of messages, beginning with 1.
# With CRC in flags (or the stream's `checksum`) the stream computes the CRC-32.
# With wire.BY_REFERENCE in flags, data is a wire.REFERENCE: the payload travels beside the connection.
OutFrame = tuple[int, int, bytes | None, bytes | None, Any]

# A sink chooses where a frame's payload is read to: sink(meta, topic, nbytes) -> a writable
# buffer of exactly nbytes, or None for a lease of the pool. Called for frames of 4 KiB or more
# before the payload is read, and for smaller ones before it is copied. If it raises, the message is read
# to its end without it. Then the sink is asked again: what it raises now leaves `_recv_message`, and the next
# receive gives that message. Not called for control frames and LZ4 frames.
# The core keeps no reference to a sink's memory after `_recv_message` has returned or raised.
Sink = Callable[[bytes | None, bytes | None, int], Any]

class Carrier(Protocol):
    """Carries large payloads beside the connection of a stream. Thread-safe; never waits."""

    def place(
        self,
        frames: Sequence[OutFrame],
        hold: bool,
        released: Callable[[BaseException | None], None] | None,
        several: bool,  # the message goes to other streams too
    ) -> tuple[list[OutFrame], Callable[[BaseException | None], None] | None, int] | None:
        """(the frames with references, who is still to be told by the stream, payload bytes less the
        references' own), or None: no room, the connection has to take the payloads itself."""
    def fetch(self, reference: bytes) -> Any:
        """The payload, a writable buffer that owns its place. Raises ProtocolError."""
    def take_back(self, frames: list[OutFrame]) -> list[OutFrame]:
        """Frames that were never sent, with their payloads again."""
    def watch(self, on_failure: Callable[[BaseException], object]) -> None:
        """Tells the connection's owner why it cannot go on, in the reactor's thread."""
    refused: Counter[str]  # payloads that the connection took itself, by the reason
    def close(self) -> None:
        """The connection is gone: nothing more is placed. Regions that are out stay good. Idempotent."""

class Flusher:
    """The native thread of a context. It never takes the GIL: it writes what streams have pending
    100 µs after it was buffered, drains streams whose kernel buffer was full, and sends credits."""

    def __init__(self) -> None: ...  # the thread starts with the first use
    def fileno(self) -> int: ...  # readable when `reap()` has something to do
    def reap(self) -> None: ...  # releases held buffers that are written; calls `released` callbacks
    def close(self) -> None: ...  # joins the thread; streams must be closed before

def openssl_version() -> str:
    """Which OpenSSL TLS goes by. Raises NotSupported if there is none."""

class TlsContext:
    """What one side of TLS 1.3 shows and asks for; read from PEM files now, never again.

    server: this side accepts. certificate, key: its own, may be "" where it connects. authorities: whose
    certificates are trusted ("": those of the system, for a side that connects). clients: "none", "optional"
    or "required", for a server. protocols: words of ALPN, best first. Raises SecurityError, NotSupported (no
    OpenSSL 3). Thread-safe.
    """

    server: bool
    def __init__(
        self,
        *,
        server: bool,
        certificate: str = "",
        key: str = "",
        authorities: str = "",
        clients: str = "none",
        protocols: tuple[str, ...] = (),
    ) -> None: ...

class TlsChannel:
    """TLS over a connected, non-blocking descriptor, which stays its owner's.

    server_name: whose certificate the other side has to show: a name, or a number. One thread may read while
    another one writes. Until a stream takes it, or `ahead` was called, not a byte behind the record that was
    asked for is taken from the kernel. What goes wrong is an OSError whose text is for people; EPROTO: TLS
    itself.
    """

    done: bool  # the handshake is over
    unsent: int  # bytes of ciphertext that the kernel did not take yet: `flush` when it is writable
    pending: int  # plain bytes that are here, of which the descriptor does not tell
    alpn: str
    peer_certificate: bytes  # DER; b"": none was shown
    own_certificate: bytes
    def __init__(self, context: TlsContext, fd: int, server_name: str = "") -> None: ...
    def handshake(self) -> bool: ...  # as far as it gets; True: done, and nothing is unsent
    def ahead(self) -> None: ...
    def recv(self, size: int) -> bytes: ...
    def recv_into(self, memory: Any) -> int: ...  # with room for 32 KiB nothing stays `pending`
    def send(self, data: Any) -> int: ...
    def sendmsg(
        self, buffers: Sequence[Any], *_: Any
    ) -> int: ...  # how many plain bytes were taken, 64 KiB at most
    def flush(self) -> bool: ...  # writes what the kernel takes; True when nothing is unsent
    def close(self) -> None: ...  # says that nothing follows, without waiting; idempotent

class Stream:
    """One connection: framing, coalescing, reading. `fd` is a connected non-blocking stream socket
    that the stream owns from now on, or -1: then frames queue until `open(fd)`."""

    def __init__(
        self,
        fd: int,
        socket_type: int,  # ours, transfer.transports.core.wire.SocketType
        flusher: Flusher,
        pool: Pool,
        *,
        send_high_water: int = 1000,  # messages; 0 = no limit
        send_high_water_bytes: int = 64 << 20,  # bytes; 0 = no limit; one message is always taken
        max_message: int = 16 << 30,  # limit of an arriving message, bytes
        checksum: bool = False,
        credits: bool = False,  # send CREDIT frames (<BQ>: kind, messages consumed) every ~20 ms
        channel: TlsChannel | None = None,  # TLS between it and the descriptor, the handshake done
    ) -> None: ...
    peer: Any  # the owner's; the core never looks at it
    carrier: Carrier | None  # set by the owner before anything large is sent; closed by the stream
    fd: int
    def fileno(self) -> int: ...
    def open(self, fd: int, channel: TlsChannel | None = None) -> None: ...  # for a stream made with fd -1
    # -- counters, plain integers
    sent: int  # messages accepted by send
    sent_bytes: int  # payload bytes
    queued: int  # messages accepted and not yet wholly given to the kernel
    queued_bytes: int
    received: int  # messages handed to the caller
    received_bytes: int
    consumed: int  # = received; what credits say
    confirmed: int  # written by the owner from the peer's CREDIT frames
    dropped: int  # messages refused by a full queue in a FANOUT
    blocked_ns: int  # time senders waited for room in this stream
    waited_ns: int  # time receivers waited before a frame of this stream arrived
    last_received_ns: int  # time.monotonic_ns() of the last bytes read
    last_sent_ns: int
    # -- limits that may change at any time and apply at once
    send_high_water: int
    send_high_water_bytes: int
    max_message: int
    credits: bool
    checksum: bool  # of no effect for a plain peer
    plain: bool  # the peer said no hello: what has other flags than 0 to 2 is refused (NotSupported)
    broken: BaseException | None  # why this stream takes no more, or None
    # True: all that came was read, it ends inside a message, and nobody reads at this moment.
    midway: bool
    # -- subscriptions of the peer, for FANOUT; multiset by prefix
    def subscribe(self, prefix: bytes) -> None: ...
    def unsubscribe(self, prefix: bytes) -> bool: ...  # False if it was not subscribed
    def matches(self, topic: bytes) -> bool: ...
    subscriptions: tuple[bytes, ...]
    # -- data
    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,  # ignore the high-water mark (control frames)
        hold: bool = False,  # True: keep user memory exported instead of waiting or copying
        released: Callable[[BaseException | None], None] | None = None,
    ) -> int:
        """Queues one message whole, and writes what the kernel takes now, without ever waiting: its
        number among those sent (for a control frame not 0). 0: full, nothing was taken. What the
        kernel did not take is held if it is `bytes` or `hold` is set, else copied. `released(error)`
        is called exactly once under the GIL, from this call, `reap()` or `close()`: None when no user
        memory is referenced any more and all was given to the kernel, else the reason. Raises Broken
        if the connection is gone."""
    def flush(self) -> bool: ...  # writes what the kernel takes; True when nothing is queued
    def receive(self) -> list[Frame] | None:
        """For streams that no socket reads (send-only sockets: the reactor calls it). One message,
        or a list of one control frame, without waiting; None: nothing there. Raises ProtocolError,
        or Broken at the end of the stream."""
    def take_unsent(self) -> list[list[OutFrame]]:
        """Removes and returns the messages (not control frames) of which no byte was given to the
        kernel. For streams that are broken or still have no fd. A message that was begun counts as
        written. The result's memory is nobody else's: what was the user's is copied before he is
        told that it is his again, by `released` or by the return of his call."""
    def drop_unsent(self) -> int:
        """As `take_unsent`, for messages that go to no other peer: how many they were. Nothing is copied."""
    def close(self) -> int:
        """Idempotent, at once, no waiting: closes fd, returns how many queued messages were lost."""

class Turn(_Turn):
    """Whose turn it is on a REQ or REP. Each method is one step for other threads: what they do stands
    in transports/turn.py.

    A side (0: sending, 1: receiving) has one thread at a time inside, from before it looks at the state
    until it has changed it, so that calls of several threads are as if one came after the other.
    """

    def enter(self, side: int, seconds: float) -> bool:
        """Waits for the side. False: not within so many seconds, or a signal came. StateError: this
        thread is inside already (a signal handler)."""

    def leave(self, side: int) -> None: ...

class SocketBase:
    """The fast path of a Socket. `transfer.Socket` derives from it and overrides the hooks."""

    def __init__(
        self, socket_type: int, send_mode: int, receive_mode: int, flusher: Flusher, pool: Pool
    ) -> None: ...
    # send_mode: 0 NONE (send() always goes to _send_general), 1 ROUND_ROBIN, 2 FANOUT
    # receive_mode: 0 NONE (recv() always goes to _recv_general), 1 FAIR, 2 FILTERED
    # options, plain attributes that apply at once
    send_timeout: int  # ms, -1 endless
    receive_timeout: int
    copy_threshold: int  # bytes (default 65536) from which payloads are not copied
    spin_us: int  # busy-wait before sleeping in recv, default 0
    _long_wait: int  # ms that one call waits before `_on_long_wait`, default 5000
    # own subscriptions, for FILTERED
    def _filter_add(self, prefix: bytes) -> None: ...
    def _filter_remove(self, prefix: bytes) -> bool: ...
    # counters
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    dropped_no_peer: int  # FANOUT with nobody subscribed
    filtered: int  # FILTERED: arrived and matched none of our subscriptions
    blocked_ns: int
    waited_ns: int

    # -- what users call
    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Fast: one part, flags 0 or DONTWAIT (1), no track, mode ROUND_ROBIN or FANOUT, no
        foreign stream attached, `_general_send` not set. Else `_send_general(...)`."""
    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Fast: mode FAIR or FILTERED, `_general_recv` not set, and the message is one plain frame
        (no topic, no tensor, no MORE, no LZ4). Returns bytes, or Frame if not copy. A message of
        another shape goes to `_deliver(stream, frames, flags, copy)`, whose value is returned.
        Raises Again after receive_timeout (or at once with DONTWAIT)."""
    def fileno(self) -> int: ...  # epoll descriptor, readable when recv may succeed
    def _readable(self) -> bool: ...  # a recv would not block (decoded or unread data is there)
    def _writable(self) -> bool: ...  # a send would not block
    # -- for the subclass
    _general_send: bool  # the subclass sets these when every call must go to its method
    _general_recv: bool
    _lent: dict[str, Any]  # memory that is held where it lies when it is sent; empty: none
    # REQ and REP: with `_lockstep` the core may take plain turns by itself and notes them in
    # `_turn`; what is not plain goes to _send_general, _recv_general, _admitted and _deliver.
    _lockstep: bool
    _turn: Turn | None
    # Something is left over of lost connections, or is moved from one stream to another: the distributor
    # waits. `_send_orphans` is asked to offer it before each send, by `_send_frames(first=True)`.
    _behind: bool
    closed: bool
    def _attach(self, stream: Any, sends: bool, receives: bool) -> None: ...
    def _detach(self, stream: Any) -> None:
        """Any thread. When it returns no receiver is inside the stream (it waits for one, 10 s at most),
        and what is left in it comes after all that was handed out, in memory that is no caller's."""
    def _streams(self) -> list[Any]: ...
    def _pause_reading(self, stream: Any) -> bool:
        """Receives nothing more of this stream until `_resume_reading`; sending goes on. One thread at a time
        with the receives of this socket. False: it cannot be held (foreign, not attached; always in the pure
        core)."""
    def _resume_reading(self, stream: Any) -> None:
        """After `_pause_reading` returned True. Nothing happens if the stream was lost meanwhile."""
    def _send_frames(
        self,
        frames: Sequence[OutFrame],
        timeout: int,  # ms, -1 endless, 0 do not wait
        *,
        stream: Any = None,  # this one only; None: by the distributor
        topic: bytes | None = None,  # FANOUT: what subscriptions match; None: frames[0]'s topic or data
        hold: bool = False,
        released: Callable[[BaseException | None], None] | None = None,
        taken: Callable[[Any, int], None] | None = None,
        first: bool = False,  # before all that waits while `_behind` is set
        again: bool = False,  # another stream had it: `messages_sent` has counted it
    ) -> Any:
        """The stream that took it (FANOUT: how many took it). `taken(stream, number)` is called at once
        when one stream has it, with its number among those that went there. Raises Again, Closed, or
        Broken (only with `stream=`). Large user memory (copy_threshold) that is neither `bytes` nor
        `hold` is written while progress is made (no wait of more than 20 ms for the kernel), then
        copied."""
    def _send_known(self, tensor: Any, flags: int) -> bool:
        """Sends a tensor that looks like one of `_note_known` by the distributor; waits for
        send_timeout, or not at all with DONTWAIT. False: nothing was done (another tensor,
        `_general_send`, `_lent`, a foreign stream, or a core that keeps no headers)."""
    def _note_known(self, tensor: Any, flags: int, header: bytes) -> None:
        """The flags and header of a tensor whose memory travels as it is."""
    def _recv_message(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Frame]]:
        """One whole message of the next ready stream: (stream, frames). Raises Again, Closed.
        Control frames go to `_on_control` and are not returned. A receive that a signal's handler interrupts
        leaves the message to the next one."""
    def _pass_turn(self) -> None:
        """What was done with the last messages took long: others come before the next ones of their stream,
        though more was read of it. Any thread may call."""

    def _read_ahead(self, most: int) -> tuple[Any, list[bytes]] | None:
        """Plain messages of one part that were read ahead of one stream, FAIR only: (stream, payloads),
        `most` at the most. Never waits or reads. None: the next message is another, or is not here yet;
        always in a core that reads nothing ahead. Not for the main thread: a handler of a signal would lose
        them."""
    def _found(self) -> list[tuple[Any, list[Frame]]]:
        """Messages that somebody looked at, or gave back, and no receive has given yet: (stream, frames).
        Any thread may call."""
    def _give_again(self, stream: Any, frames: list[Frame]) -> None:
        """The caller of `_recv_message` was interrupted: the next receive gives this message."""
    def _wait_writable(self, timeout: int) -> bool: ...  # until a send may succeed
    def _notify(self) -> None: ...  # any thread: wake all who wait in this socket, they look again
    def _close_core(self) -> None: ...  # sets closed, wakes waiters (they raise Closed), frees fds
    # -- hooks, called under the GIL, in the thread that found it; the default does nothing
    def _send_general(self, data: Any, flags: int, copy: bool, track: bool) -> Any: ...
    def _recv_general(self, flags: int, copy: bool, track: bool) -> Any: ...
    def _deliver(self, stream: Any, frames: list[Frame], flags: int, copy: bool) -> Any:
        """NotImplemented: the frames made no sense, and the stream is lost."""
    def _admitted(self, stream: Any, frames: list[Frame]) -> Any: ...
    def _take_back(self, given: list[tuple[Any, list[Frame]]]) -> None:
        """A message that did not get to the caller is the next receive's: by default `_give_again`. Called
        again where it was interrupted before `given` is empty."""
    def _on_control(self, stream: Any, frame: Frame) -> None: ...
    def _no_message(self) -> Again: ...  # what a receive raises whose time is over
    def _on_long_wait(self) -> None: ...  # a call waits, in its thread; again after the same time
    def _send_orphans(self) -> None: ...
    def _on_refused(self, stream: Any, error: ProtocolError) -> None:
        """What the peer sent breaks a rule: the stream can still send why, then comes `_on_lost`."""
    def _on_lost(self, stream: Any, error: BaseException) -> None:
        """The stream ended (Broken) or failed (ProtocolError). It is not closed, and may be detached here:
        the core does it afterwards. More than one thread may call it for one stream."""

# A foreign stream (inproc, later verbs and ucx) is any object with the methods and counters of
# `Stream` above (`transfer.transports.base.Stream` is the ABC), plus
#     take(), consume(frames)                  what receive() does, in two steps: a message that was found
#                                              for `_readable` is consumed when the application gets it
#     on_readable: Callable[[], None] | None   set by _attach; the stream calls it when take()
#                                              has something new or the stream broke
#     on_writable: Callable[[], None] | None   likewise for room after send() returned False
#     ended: bool                              the rest of a lost peer, which comes first (optional)
#     wait_fds: tuple[int, ...]                descriptors that a sleeping receiver watches for it
#                                              (optional). take() returning None promises that one
#                                              of them becomes readable when there is something
#     beside: Stream | None                    the core's, over the TCP connection beside it: heartbeats go
#                                              that way, and `last_received_ns` tells of both
#     takes_device_memory: bool                payloads may be objects with `__cuda_array_interface__` and
#                                              `nbytes`; the compiled core hands them on as they are
#     registers_device_memory: bool            the same, and it is registered with the network card: as a
#                                              dma-buf where the payload is a `gpu.Exportable`
#     takes_sink: bool                         take(sink) asks a sink for payloads of messages of one
#                                              frame; what the sink raises leaves the message to
#                                              `take()` (ProtocolError: is the stream's end). `placed` says of
#                                              the message just returned that it lies where the sink said;
#                                              `sinking`, that one not yet returned uses such memory.
#                                              leave_sink() ends that: it is called before the sink is
#                                              asked for another stream, and when the call ends; what it
#                                              raises (a TransferError) is the stream's end
# SocketBase serves foreign streams in the same fair order; with one attached, `send` and `recv`
# take the ordinary (slower) way.
