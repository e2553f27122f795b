"""What the compiled core (`transports/core/native`) and the Python core (`transports/core/pure`) provide.

`transports/core/__init__.py` exports these names from the one in use, plus `IMPLEMENTATION` ("native" or
"pure") and `REASON` (why the Python core is in use, or "").

Threads: every method may be called from any thread. `Stream` has its own mutex, since the flusher thread
never takes the GIL.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from transfer.transports.errors import Again, Closed, ProtocolError
from transfer.transports.req_rep_turn import Turn as _Turn

class Buffer(Protocol):  # any object with the buffer protocol
    def __buffer__(self, flags: int, /) -> memoryview: ...

# --- memory -----------------------------------------------------------------------------------

class Pool:
    """Owns receive buffers in size classes. Returned buffers are kept up to `limit` bytes."""

    def __init__(self, limit: int = 1 << 28) -> None: ...
    def lease(self, nbytes: int) -> Lease: ...  # MemoryError -> InternalError
    def close(self) -> None: ...  # frees cached buffers; leases in use free themselves later
    in_use: int  # bytes of leases in use
    cached: int  # bytes kept for reuse

class Lease:
    """`nbytes` writable bytes (buffer protocol, format "B", 1-d). They return to the pool when the
    last view of the lease is deleted. 64-byte aligned."""

    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Region:
    """Bytes that belong to another object (a contiguous buffer, writable but for `readonly`), which is
    exported as long as the region lives.

    Like a lease with another owner: `released()` is called once, in any thread, when the last view of it is
    deleted. Its exceptions are printed.
    """

    def __init__(
        self, memory: Any, released: Callable[[], None] | None = None, *, readonly: bool = False
    ) -> None: ...
    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Mapping:
    """`size` bytes of a descriptor's memory from `offset` on, a multiple of a page; `private`: as a copy
    on write; `readonly`: writing is refused. Unmapped when the last view is deleted. Raises OSError,
    ValueError.

    The Python core keeps a descriptor for each until Python 3.13, the compiled core none.
    """

    def __init__(
        self, fd: int, size: int, *, offset: int = 0, private: bool = False, readonly: bool = False
    ) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Slots:
    """Equal slots in a mapping that two processes share: a state byte for each (0 free, 1 used) at
    its beginning, the slots from `start` on. At most 64. Raises ValueError where they do not fit.

    One side takes and fills slots, the other one lends them. A lent slot is free again when the last view of
    it is deleted, except in a forked child, which must not free slots of its parent.
    """

    def __init__(self, mapping: Mapping, start: int, size: int, count: int) -> None: ...
    start: int
    size: int  # of one slot, bytes
    count: int
    idle: bool  # every slot is free
    def take(self) -> int: ...  # the first free slot, which is used then, or -1
    def fill(
        self, index: int, data: Any
    ) -> int: ...  # copies; returns the number of bytes. Raises BufferError
    def free(self, index: int) -> None: ...
    def lend(self, index: int, nbytes: int) -> Any: ...  # as a Region; None: already lent

def address_of(memory: Any) -> int:
    """The address of the first byte of a contiguous buffer."""

def copy_into(target: Any, source: Any) -> None:
    """Copies one contiguous buffer into another of the same size; 64 KiB and more without the GIL.

    Raises BufferError if the sizes differ or the target is read-only.
    """

def crc32c(data: Any, value: int = 0, *, software: bool = False) -> int:
    """CRC-32C (Castagnoli) of a contiguous buffer; value: of the preceding bytes.

    16 KiB and more without the GIL. software: without the processor's instruction, for tests.
    """

def check_json(text: bytes, deepest: int) -> None:
    """Refuses JSON that decoders cannot read: numbers beyond the range of a double, integers of more than
    4,300 digits (with the sign), more than `deepest` nested arrays and objects. 16 KiB and more without the
    GIL.

    Text that is not JSON may be refused or not. Raises ValueError.
    """

class HeldBuffer:
    """Keeps a user's object (contiguous, read-only is fine) exported until it is deleted or `release()`."""

    def __init__(self, obj: Any) -> None: ...  # BufferError/TypeError as memoryview() raises them
    nbytes: int
    def release(self) -> None: ...

# --- frames -----------------------------------------------------------------------------------

class Frame:
    """One frame as received. Also pyzmq's Frame as `recv(copy=False)` returns it."""

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
# sequence 0: the stream counts its messages itself, from 1.
# With CRC in flags (or the stream's `checksum`) the stream computes the CRC-32.
# With wire.BY_REFERENCE in flags, data is a wire.REFERENCE: the payload travels apart from the connection.
OutFrame = tuple[int, int, bytes | None, bytes | None, Any]

# A sink chooses the memory for a frame's payload: sink(meta, topic, nbytes) -> a writable
# buffer of exactly nbytes, or None for a lease of the pool. For frames of 4 KiB or more it is called
# before the payload is read, for smaller ones before it is copied. If it raises, the message is read
# to its end without it. Then it is called again: an exception now leaves `_recv_message`, and the next
# receive returns that message. It is not called for control frames and LZ4 frames.
# The same sink in a further call is asked again for the frame that the last one ended in.
# The core keeps no reference to a sink's memory after `_recv_message` has returned or raised.
# A sink may also have, for tensors on a GPU:
#     landed(nbytes)                     so much of the payload is in the memory that it gave last
#     arrives_on_gpu(meta, topic, nbytes)    called instead, for a payload in memory of a GPU already
#     gpu_for(meta)                      the number of the GPU where rdma or ucx may receive it, or None;
#                                        also asked, after the call has ended, for frames behind
Sink = Callable[[bytes | None, bytes | None, int], Any]

class Carrier(Protocol):
    """Carries large payloads of a stream apart from its connection. Thread-safe; never waits.

    That of rdma (`rdma/carrier.py`) has `order`, `fetched`, `await_reads`, `leave`, `room`, `arrived`,
    `failure` and `give_up` for the core, too, and no `fetch`: the core READs.
    """

    def place(
        self,
        frames: Sequence[OutFrame],
        hold: bool,
        released: Callable[[BaseException | None], None] | None,
        several: bool,  # the message goes to other streams too
    ) -> tuple[list[OutFrame], Callable[[BaseException | None], None] | None, int] | None:
        """(the frames with references, the callback that the stream still has to call, payload bytes without
        the references), or None: no room, the connection has to carry the payloads itself."""
    def fetch(self, reference: bytes) -> Any:
        """The payload, a writable buffer that owns its memory. Raises ProtocolError."""
    def take_back(self, frames: list[OutFrame]) -> list[OutFrame]:
        """Frames that were never sent, with their payloads again."""
    def withdraw(self, placed: list[OutFrame]) -> None:
        """The frames that `place` returned last are not sent."""
    def watch(self, on_failure: Callable[[BaseException], object]) -> None:
        """Reports a fatal error to the connection's owner, in the reactor's thread."""
    refused: Counter[str]  # payloads that the connection carried itself, by reason
    def close(self) -> None:
        """The connection has ended: no payload is placed any more. Existing regions stay valid.
        Idempotent."""

class Flusher:
    """The native thread of a context. It never takes the GIL. It writes what streams have pending 100 µs
    after it was buffered, drains streams whose kernel buffer was full, and sends credits."""

    def __init__(self) -> None: ...  # the thread starts with the first use
    def fileno(self) -> int: ...  # readable when `reap()` has work
    def reap(self) -> None: ...  # releases held buffers that are written; calls `released` callbacks
    def close(self) -> None: ...  # joins the thread; streams must be closed before

def openssl_version() -> str:
    """The version of the OpenSSL in use. Raises NotSupported if there is none."""

def x25519(secret: bytes, public: bytes) -> bytes:
    """The secret that this side shares with the owner of `public`; with the curve's base point, this side's
    public key. All have 32 bytes. Raises SecurityError for no valid key, NotSupported in the Python core."""

class TlsContext:
    """The credentials and requirements of one side of TLS 1.3; PEM files are read once, now.

    server: this side accepts. certificate, key: of this side, may be "" where it connects. authorities: of
    trusted certificates ("": those of the system, for a side that connects). clients: "none", "optional" or
    "required", for a server. protocols: ALPN names, best first. keyed: without certificates: a key that both
    sides have authenticates (RFC 8446, 2.2, psk_dhe_ke). Raises SecurityError, NotSupported (no OpenSSL 3;
    `keyed` in the Python core). Thread-safe.
    """

    server: bool
    keyed: bool
    def __init__(
        self,
        *,
        server: bool,
        certificate: str = "",
        key: str = "",
        authorities: str = "",
        clients: str = "none",
        protocols: tuple[str, ...] = (),
        keyed: bool = False,
    ) -> None: ...

class TlsChannel:
    """TLS over a connected, non-blocking descriptor, which still belongs to its owner.

    server_name: the name or address that the other side's certificate has to hold. With a `keyed` context:
    key: of a client, its identity (without zeros) and the key; finds: of a server, returns the key for an
    identity, and any exception refuses the client. One thread may read while
    another one writes. Until a stream takes it, or `ahead` was called, it reads no byte from the kernel
    behind the record that it needs. Errors are an OSError with a readable text; EPROTO: of TLS itself.
    """

    context: TlsContext
    done: bool  # the handshake is complete
    unsent: int  # bytes of ciphertext that the kernel has not taken: `flush` when it is writable
    pending: int  # decrypted bytes, which the descriptor does not report
    alpn: str
    peer_certificate: bytes  # DER; b"": none was sent
    own_certificate: bytes
    binding: bytes  # of a keyed context: the same at both ends of one connection, and nowhere else
    def __init__(
        self,
        context: TlsContext,
        fd: int,
        server_name: str = "",
        *,
        key: tuple[bytes, bytes] | None = None,
        finds: Callable[[bytes], bytes] | None = None,
    ) -> None: ...
    def handshake(self) -> bool: ...  # continues it; True: done, and nothing is unsent
    def ahead(self) -> None: ...
    def recv(self, size: int) -> bytes: ...
    def recv_into(self, memory: Any) -> int: ...  # with room for 32 KiB nothing stays `pending`
    def send(self, data: Any) -> int: ...
    def sendmsg(
        self, buffers: Sequence[Any], *_: Any
    ) -> int: ...  # the number of plain bytes taken, 64 KiB at most
    def flush(self) -> bool: ...  # writes what the kernel takes; True when nothing is unsent
    def close(self) -> None: ...  # sends the end of TLS, without waiting; idempotent

class Stream:
    """One connection: framing, coalescing, reading. `fd` is a connected non-blocking stream socket
    that the stream owns from then on, or -1: then frames queue until `open(fd)`."""

    def __init__(
        self,
        fd: int,
        socket_type: int,  # ours, transfer.transports.core.wire.SocketType
        flusher: Flusher,
        pool: Pool,
        *,
        send_high_water: int = 1000,  # messages; 0 = no limit
        send_high_water_bytes: int = 64 << 20,  # bytes; 0 = no limit; a single message is always accepted
        max_message: int = 16 << 30,  # limit of a received message, bytes
        checksum: bool = False,
        credits: bool = False,  # send CREDIT frames (<BQ>: kind, messages consumed) every ~20 ms
        channel: TlsChannel | None = None,  # TLS on the descriptor, after its handshake
    ) -> None: ...
    peer: Any  # the owner's; the core does not use it
    identity: bytes | None  # of the peer of a ROUTER whose plain messages need no pattern; set by the owner
    carrier: Carrier | None  # set by the owner before a large payload is sent; closed by the stream
    fd: int  # of the connection
    def fileno(self) -> int: ...  # readable when there may be something to receive; by rdma not `fd`
    by_rdma: bool  # the bytes go by RDMA; the connection only tells the peer's end
    registers_device_memory: bool  # payloads may lie in memory that the CPU cannot read
    unread: int  # bytes that have arrived and were not read
    def open(self, fd: int, channel: TlsChannel | None = None) -> None: ...  # for a stream made with fd -1
    # -- counters, plain integers
    sent: int  # messages accepted by send
    sent_bytes: int  # payload bytes
    queued: int  # messages accepted and not yet entirely written to the kernel
    queued_bytes: int
    received: int  # messages returned to the caller
    received_bytes: int
    consumed: int  # = received; the count in credits
    confirmed: int  # written by the owner from the peer's CREDIT frames
    dropped: int  # messages dropped by a full queue in a FANOUT
    blocked_ns: int  # time senders waited for room in this stream
    waited_ns: int  # time receivers waited before a frame of this stream arrived
    last_received_ns: int  # time.monotonic_ns() of the last bytes read
    last_sent_ns: int
    # -- limits that may change at any time and apply at once
    send_high_water: int
    send_high_water_bytes: int
    max_message: int
    credits: bool
    checksum: bool  # without effect for a plain peer
    plain: bool  # the peer sent no hello: frames with flags above bit 2 are refused (NotSupported)
    broken: BaseException | None  # why this stream has ended, or None
    # True: all received bytes are read, they end inside a message, and no thread reads at this moment.
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
        """Queues one message whole, writes what the kernel takes now, and never waits. Returns its
        number among those sent (for a control frame not 0), or 0: full, nothing was taken. The rest
        is held if it is `bytes` or `hold` is set, else copied. `released(error)` is called exactly
        once under the GIL, from this call, `reap()` or `close()`. None: no reference to user memory
        is left and the kernel has all of it; else the reason. Raises Broken if the connection has
        ended."""
    def flush(self) -> bool: ...  # writes what the kernel takes; True when nothing is queued
    def receive(self) -> list[Frame] | None:
        """For streams that no socket reads (send-only sockets: the reactor calls it). Returns one message,
        or a list of one control frame, without waiting; None if there is none. Raises ProtocolError,
        or Broken at the end of the stream."""
    def take_unsent(self) -> list[list[OutFrame]]:
        """Removes and returns the messages (not control frames) of which no byte was written to the
        kernel. For streams that are broken or still have no fd. A partly written message counts as
        written. The result is in new memory: users' memory is copied before its owner may change it,
        after `released` or the return of its call."""
    def drop_unsent(self) -> int:
        """As `take_unsent`, for messages that go to no other peer: returns their number. Copies nothing."""
    def close(self) -> int:
        """Idempotent, at once, no waiting: closes fd, returns how many queued messages were lost."""

class InprocEnd:
    """One end of a pair inside a process: the queue of messages for it, and the counters and limits of a
    foreign stream, as described there. `transports/inproc_stream.py` derives from it.

    A queued message is an object of the derived class. The compiled core has plain messages, too, which its
    sockets exchange by themselves: `bytes`, or a list of `bytes` for several parts.
    """

    sent: int
    sent_bytes: int
    queued: int
    queued_bytes: int
    send_high_water: int
    send_high_water_bytes: int
    received: int
    received_bytes: int
    consumed: int
    confirmed: int  # the compiled core sets it at once when the other end consumes, before a credit comes
    dropped: int
    last_received_ns: int
    last_sent_ns: int
    max_message: int
    credits: bool
    socket_type: int
    broken: BaseException | None
    handed: list[Frame] | None
    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None
    _other: Any
    _closed: bool  # by this end
    _credit_due: bool  # the other end consumed messages since the last credit
    _given: Any  # the message whose frames are `handed`, until its sender is informed
    _next_number: int  # of the first message for this end, among those sent to it
    def __init__(self) -> None: ...
    def _join(self, other: Any) -> None: ...  # makes the two ends a pair
    def _has_no_room(self, size: int) -> bool: ...  # if so, `on_writable` reports room
    def _put(self, message: Any, size: int, control: bool, force: bool) -> int:
        """Queues a message for the other end: its number among those sent. 0: there is no room, and
        `on_writable` reports some; -1: the pair has ended."""
    def _first(self) -> Any: ...  # the first message for this end, which stays queued, or None
    def _hand(self, queued: Any, message: Any, frames: list[Frame], size: int, control: bool) -> None:
        """As one step: `queued`, the first message, leaves the queue; `handed` and `_given` have its frames
        and the message. Does nothing if it is not the first any more."""
    def _wake_writer(self) -> None: ...  # of the other end, if it waits for room and has some now
    def _remove(self, queued: Any) -> None: ...  # the first message is refused
    def consume(self, frames: list[Frame]) -> None: ...
    def _clear(self) -> list[Any]: ...  # removes and returns the messages for this end

class Turn(_Turn):
    """The state of the dialogue of a REQ or REP: transports/req_rep_turn.py describes the methods. Each is
    atomic for other threads.
    """

    def enter(self, side: int, seconds: float) -> bool:
        """Waits for the side. False: not within `seconds`, or a signal came. StateError: this thread is
        inside already (a signal handler)."""

    def leave(self, side: int) -> None: ...

class UnfinishedMessages:
    """How many threads have begun a message of a socket, and not read all its parts, or not sent its last
    one. For the core."""

class SocketThread:
    """One thread that uses a socket."""

    def __init__(self, counted: UnfinishedMessages) -> None: ...
    # the core's message, until the call that receives it ends: its stream and frames
    given: tuple[Any, list[Any]] | None
    stream: Any  # that of its newest message, if that passed through `_recv_frames`
    # The parts of a message that `recv` has not returned yet. To be changed by these methods only:
    rest: deque[Any]
    def leave(self, parts: Iterable[Any]) -> None: ...  # at its end
    def put_back(self, part: Any) -> None: ...  # at its beginning
    def take(self) -> Any: ...  # the first one; IndexError
    def clear(self) -> None: ...
    begun: list[OutFrame]  # sent with SNDMORE, of a message whose last part was not sent. By these methods:
    def begin(self, frames: Iterable[OutFrame]) -> None: ...  # at its end
    def end(self) -> None: ...  # it is sent, or given up

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
    dropped_no_peer: int  # FANOUT without a subscriber
    filtered: int  # FILTERED: received, and matched by no subscription of this socket
    blocked_ns: int
    waited_ns: int

    # -- called by users
    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Fast: one part, flags 0 or DONTWAIT (1), no track, mode ROUND_ROBIN or FANOUT, no
        foreign stream attached but InprocEnds (ROUND_ROBIN), `_general_send` not set. Else
        `_send_general(...)`."""
    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Fast: mode FAIR or FILTERED, `_general_recv` not set, and the message is one plain frame
        (no topic, no tensor, no MORE, no LZ4). Returns bytes, or Frame if not copy. A message of
        another shape goes to `_deliver(stream, frames, flags, copy)`, whose value is returned.
        Raises Again after receive_timeout (or at once with DONTWAIT)."""
    def send_multipart(self, msg_parts: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Fast: a list of `bytes`, as for `send`, or a ROUTER's for a peer whose stream has an `identity`.
        Else `_send_multipart(...)`."""
    def send_many(self, messages: Iterable[Any], flags: int = 0) -> int:
        """Each as a message of one part; how many were sent. Again: none."""
    def recv_many(self, most: int, flags: int = 0) -> list[Any]:
        """The next message, and plain ones that were read ahead of the same peer, if it is one of those:
        `bytes`, or a list of `bytes` for several parts."""
    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Fast: as for `recv`, where all parts are plain and have arrived; also for a ROUTER. Else
        `_recv_multipart(flags, copy)`."""
    def fileno(self) -> int: ...  # epoll descriptor, readable when recv may succeed
    def _readable(self) -> bool: ...  # a recv would not block (there is decoded or unread data)
    def _writable(self) -> bool: ...  # a send would not block
    # -- for the subclass
    _general_send: bool  # the subclass sets these when every call must go to its method
    _general_recv: bool
    # The class of what `recv` returns if not `copy`, whose data may be changed; or None. With one, what is
    # sent and is neither `bytes` nor a bytearray of a few KiB, or has a tracker, is sent by `_send_object`.
    _frame_class: type[Frame] | None
    def _has_rest(self) -> bool: ...  # this thread has received a part of a message, and not all of them
    # ZeroMQ's option of this number: RCVMORE by the core, since programs ask for it at each part, others by
    # the hook.
    def _getsockopt(self, option: int) -> Any: ...
    def _get_option(self, option: int) -> Any: ...
    def _send_one(self, data: Any, flags: int, copy: bool, track: bool) -> Any: ...
    def _send_object(self, data: Any, flags: int, copy: bool, track: bool) -> Any: ...
    _unfinished: UnfinishedMessages
    def _give_back(self, here: SocketThread, error: BaseException) -> None:
        """This error ends a receive of the thread. If it is none of ours, but of a signal's handler, the next
        receive gives the message that it had taken."""
    # Of a ROUTER: its peers by identity, if the core may send plain messages to those whose stream has an
    # `identity`, and whether it may receive theirs, else None and False.
    _routes: dict[bytes, Any] | None
    _with_identity: bool
    # Without `copy` every receive is `_recv_general`, which knows the stream of the thread's message.
    _keeps_properties: bool
    _lent: dict[str, Any]  # memory that is held in place when it is sent; empty: none
    # REQ and REP: with `_lockstep` the core may handle plain messages by itself and notes them in
    # `_turn`; others go to _send_general, _recv_general, _admitted and _deliver.
    _lockstep: bool
    _turn: Turn | None
    # Messages of lost connections are left, or a stream's messages are being moved to another: the
    # distributor waits. `_send_orphans` offers them before each send, by `_send_frames(first=True)`.
    _behind: bool
    closed: bool
    def _attach(self, stream: Any, sends: bool, receives: bool) -> None: ...
    def _detach(self, stream: Any) -> None:
        """Any thread. When it returns no receiver is inside the stream (it waits for one, 10 s at most). The
        messages left in it come after all that were returned before, in memory of no caller."""
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
        stream: Any = None,  # only this one; None: by the distributor
        topic: bytes | None = None,  # FANOUT: matched by subscriptions; None: frames[0]'s topic or data
        hold: bool = False,
        released: Callable[[BaseException | None], None] | None = None,
        taken: Callable[[Any, int], None] | None = None,
        first: bool = False,  # before all waiting messages while `_behind` is set
        again: bool = False,  # another stream had it: `messages_sent` includes it
    ) -> Any:
        """Returns the stream that took it (FANOUT: how many took it). `taken(stream, number)` is called at
        once when one stream has it, with its number in that stream. Raises Again, Closed, or Broken (only
        with `stream=`). Large user memory (copy_threshold) that is neither `bytes` nor `hold` is written
        while progress is made (no wait of more than 20 ms for the kernel), then copied."""
    def _send_known(self, tensor: Any, flags: int) -> bool:
        """Sends a tensor that looks like one of `_note_known` by the distributor; waits for
        send_timeout, or not at all with DONTWAIT. False: nothing was done (another tensor,
        `_general_send`, `_lent`, a foreign stream, or a core that keeps no headers)."""
    def _note_known(self, tensor: Any, flags: int, header: bytes) -> None:
        """Keeps the flags and header of a tensor whose memory is sent unchanged."""
    def _recv_message(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Frame]]:
        """One whole message of the next ready stream: (stream, frames). Raises Again, Closed.
        Control frames go to `_on_control` and are not returned. A receive that a signal handler interrupts
        leaves the message to the next one."""
    def _pass_turn(self) -> None:
        """Handling the last messages took long: other streams come before the next messages of theirs,
        though more were read of it. Any thread may call."""

    def _read_ahead(self, most: int) -> tuple[Any, list[bytes]] | None:
        """Plain messages of one part that were read ahead of one stream, FAIR only: (stream, payloads),
        at most `most`. Never waits or reads. None: the next message is of another kind, or has not arrived;
        always in a core that reads nothing ahead. Not for the main thread: a signal handler could lose
        them."""
    def _found(self) -> list[tuple[Any, list[Frame]]]:
        """Messages that were only found, or returned, and that no receive has taken yet: (stream, frames).
        Any thread may call."""
    def _give_again(self, stream: Any, frames: list[Frame]) -> None:
        """The caller of `_recv_message` was interrupted: the next receive returns this message."""
    def _wait_writable(self, timeout: int) -> bool: ...  # until a send may succeed
    def _notify(self) -> None: ...  # any thread: wakes all waiting calls of this socket, which check again
    def _close_core(self) -> None: ...  # sets closed, wakes waiting calls (they raise Closed), closes fds
    # -- hooks, called under the GIL, in the thread of the event; the default does nothing
    def _send_general(self, data: Any, flags: int, copy: bool, track: bool) -> Any: ...
    def _recv_general(self, flags: int, copy: bool, track: bool) -> Any: ...
    def _send_multipart(self, msg_parts: Any, flags: int, copy: bool, track: bool) -> Any: ...
    def _recv_multipart(self, flags: int, copy: bool) -> Any: ...
    def _socket_thread(self) -> SocketThread: ...  # what is kept of the calling thread
    def _deliver(self, stream: Any, frames: list[Frame], flags: int, copy: bool) -> Any:
        """NotImplemented: the frames are invalid, and the stream is lost."""
    def _admitted(self, stream: Any, frames: list[Frame]) -> Any: ...
    def _take_back(self, given: list[tuple[Any, list[Frame]]]) -> None:
        """A message that did not get to the caller is the next receive's: by default `_give_again`. Called
        again where it was interrupted before `given` is empty."""
    def _on_control(self, stream: Any, frame: Frame) -> None: ...
    def _closed_error(self) -> Closed: ...  # of a call to a closed socket
    def _no_room(self) -> Again: ...  # of a send that no peer had room for
    def _no_message(self) -> Again: ...  # the error of a receive whose time-out expired
    def _on_long_wait(self) -> None: ...  # a call waits, in its thread; repeated after the same time
    def _send_orphans(self) -> None: ...
    def _on_refused(self, stream: Any, error: ProtocolError) -> None:
        """What the peer sent breaks a rule: the stream can still send why, then comes `_on_lost`."""
    def _on_lost(self, stream: Any, error: BaseException) -> None:
        """The stream ended (Broken) or failed (ProtocolError). It is not closed, and may be detached here:
        the core does it afterwards. Several threads may call it for one stream."""

def poll_sockets(entries: list[tuple[Any, int]], timeout: float | None) -> list[tuple[Any, int]] | None:
    """Waits, at most so many ms (None or negative: without limit), until one of the sockets, each with the
    bit POLLIN, has a message: returns the entries that have one. None: Python has to poll these, since there
    are others, or sockets that are closed, wait for another call first, or have no descriptor that tells."""

# A foreign stream (inproc, rdma, ucx) is any object with the methods and counters of
# `Stream` above (`transfer.transports.base.Stream` is the ABC), plus
#     take(), consume(frames)                  the two steps of receive(): a message that was found
#                                              for `_readable` is consumed when the application gets it
#     on_readable: Callable[[], None] | None   set by _attach; the stream calls it when take()
#                                              has something new or the stream broke
#     on_writable: Callable[[], None] | None   likewise for room after send() returned False
#     ended: bool                              unread messages of a lost peer, which come first (optional)
#     wait_fds: tuple[int, ...]                descriptors that a sleeping receiver watches for it
#                                              (optional). After take() returned None one of them
#                                              becomes readable when there is a message
#     control: Stream | None                   the core's, over the TCP connection for control frames:
#                                              heartbeats go there; `last_received_ns` counts both
#     takes_device_memory: bool                payloads may be objects with `__cuda_array_interface__` and
#                                              `nbytes`; the compiled core passes them unchanged
#     registers_device_memory: bool            the same, and it is registered with the network card: as a
#                                              dma-buf where the payload is a `gpu.Exportable`
#     takes_sink: bool                         take(sink) calls a sink for payloads of messages of one
#                                              frame. If the sink raises, the message is left to
#                                              `take()` (ProtocolError: ends the stream). `placed`: the
#                                              message just returned lies in the sink's memory;
#                                              `sinking`: one not yet returned uses such memory.
#                                              leave_sink() ends that: it is called before the sink is
#                                              used for another stream, and when the call ends; an
#                                              exception of it (a TransferError) ends the stream
# SocketBase serves foreign streams in the same fair order; with one attached, `send` and `recv`
# take the ordinary (slower) path. Between ends of `InprocEnd` the compiled core passes plain messages by
# itself.
