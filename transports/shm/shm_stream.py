"""Carries large payloads between two processes of one host. See core/contract.pyi, Carrier.

Ordinary memory is copied once, into a slot of a segment that the receiver maps (segments.py). Memory of the
context's blocks (blocks.py) is not copied. A control socket passes descriptors, and reports when a shared
block is free again (control_channel.py).
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transfer.transports.callbacks import weakly
from transfer.transports.core.wire import BY_REFERENCE, ON_GPU, REFERENCE, REFERENCE_SIZE
from transfer.transports.countdown import Countdown
from transfer.transports.errors import (
    Broken,
    ProtocolError,
    RegistrationError,
    TransferError,
    without_frames,
)
from transfer.transports.gpu import OnGpu
from transfer.transports.reactor import READABLE
from transfer.transports.shm import control_channel
from transfer.transports.shm.blocks import NAME as BLOCKS, Blocks
from transfer.transports.shm.control_channel import ControlChannel, ShmControlMessage
from transfer.transports.shm.exported_blocks import ExportedBlocks
from transfer.transports.shm.gpu_mappings import GpuMappings, WantedGpus
from transfer.transports.shm.gpu_shares import GPU_REPORTS, GpuShare, GpuShares
from transfer.transports.shm.mappings import MOST_BLOCKS, MOST_SEGMENTS, MappedBlock, MappedSegment
from transfer.transports.shm.segments import IN_SLOT, Arena, SharedSegment
from transfer.transports.shm.shm_streams import ShmStreams
from transfer.transports.sizes import LARGE
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame
    from transfer.transports.handshake.upgrade import Surroundings

Released = Callable[[BaseException | None], None]

#: bytes of one connection's segments, and of the largest payload that is copied into them
ARENA = 256 << 20

#: seconds of `end` for payloads that the peer sees, and for its answer that it has unmapped the others; for a
#: peer to read of earlier memory of a GPU
PATIENCE, _ANSWER, _UNREAD = 2.0, 0.5, 0.5

#: the kind of a reference; the bits above hold a share's number
_SHARED, _PRIVATE = 1, 2

_WHY = {
    "full": "the peer holds all {limit} MiB of shared memory that one connection may have",
    "crowded": "all connections of the context together hold what shared memory they may",
    "too_large": "a payload of more than {limit} MiB is too large for it",
    "no_memory": "the system has no shared memory left",
    "unread": "the peer has not yet read of earlier memory",
}

logger = logging.getLogger("transfer")


class ShmStream:
    """Both directions of one connection. Thread-safe; owns the control socket.

    It outlives its connection while one side still sees memory of the other's blocks.
    """

    def __init__(self, connection: socket.socket, around: Surroundings) -> None:
        self._core = around.core
        self._reactor = around.reactor
        self._shared = around.shared
        self._carriers = ShmStreams.of(around)
        attend = self._carriers.attending(self)
        self._control = ControlChannel(connection, attend, self._carriers.spare)
        self._pid = os.getpid()
        # Reentrant: the collector may end a region inside any statement of this class.
        self._lock = threading.RLock()
        self._closed = False
        self._ended = False
        self._peer_gone = False
        self._failure: TransferError | None = None
        self._on_failure: Callable[[BaseException], object] | None = None
        self._arena = Arena(around.core, ARENA, self._carriers.budget, attend, weakly(self, "_announce"))
        self._lending = ExportedBlocks(self._control)
        self._gpu_shares = GpuShares(self._control, attend)
        #: payloads that the connection carried itself, by reason
        self.refused: Counter[str] = Counter()
        self._segments: dict[int, MappedSegment] = {}
        self._blocks: dict[int, MappedBlock] = {}
        #: (block, share) of payloads that the peer lent and this side still sees
        self._borrowed: set[tuple[int, int]] = set()
        self._gpu_mappings = GpuMappings(self._control, around.pool, self._lock, attend, self._await_control)
        self._carriers.add(self)
        for uuid, index in WantedGpus.of(self._shared).numbers.items():
            self._gpu_mappings.want(uuid, index)
        self._reactor.register(self._control.fd, READABLE, self._ready)

    @property
    def nbytes(self) -> int:
        """Bytes of the segments for sending."""
        return self._arena.total

    @property
    def maps_gpus(self) -> frozenset[bytes]:
        """GPUs, by UUID, on which the peer takes payloads."""
        return frozenset(self._gpu_shares.wanted)

    def want_gpu(self, uuid: bytes, index: int) -> None:
        """Tells the peer that this side takes payloads on a GPU."""
        with self._lock:
            if not self._closed:
                self._gpu_mappings.want(uuid, index)

    # -- sending -----------------------------------------------------------------------------------

    def place(
        self, frames: Sequence[OutFrame], hold: bool, released: Released | None, several: bool
    ) -> tuple[list[OutFrame], Released | None, int] | None:
        """See core/contract.pyi, Carrier. A block is shared only with `hold`; else it is copied too."""
        placed: list[OutFrame] = []
        begun: list[int] = []  # shares on a GPU
        saved = 0
        parts: Countdown | None = None
        blocks: Blocks | None = self._shared.get(BLOCKS) if hold else None
        try:
            for frame in frames:
                data = frame[4]
                if isinstance(data, OnGpu):
                    parts = parts or (Countdown(released, 1) if hold else None)
                    shown = self._show(data, hold and not several, parts, begun)
                    placed.append((frame[0] | BY_REFERENCE, frame[1], frame[2], frame[3], shown))
                    saved += data.nbytes - REFERENCE_SIZE
                    continue
                size = len(data) if type(data) is bytes else memoryview(data).nbytes
                if size < LARGE:  # which costs less on the socket
                    placed.append(frame)
                    continue
                reference = None
                if blocks and type(data) is not bytes:
                    parts = parts or Countdown(released, 1)
                    reference = self._share(blocks, data, size, several, parts)
                if reference is None:
                    copied = self._arena.copy(data, size)
                    if self._arena.dropped:
                        self._report_dropped()
                    if isinstance(copied, str):
                        if not self._closed:
                            self._refuse(copied)
                        self.withdraw(placed)
                        return None
                    reference = copied
                placed.append((frame[0] | BY_REFERENCE, frame[1], frame[2], frame[3], reference))
                saved += size - REFERENCE_SIZE
        except BaseException:
            self.withdraw(placed, begun)
            raise
        return placed, released if parts is None else parts.ended, saved

    def _announce(self, segment: SharedSegment) -> bool:
        with self._lock:
            if not segment.announced and not self._closed:
                where = segment.number, segment.size, segment.slot
                segment.announced = self._control.announce(
                    control_channel.SEGMENT, *where, descriptors=[segment.fd]
                )
                if segment.announced:
                    segment.close_fd()  # only the peer needs it
        return segment.announced

    def _report_dropped(self) -> None:
        with self._lock:
            while self._arena.dropped:
                self._control.send(control_channel.DROP, self._arena.dropped.pop())

    def _refuse(self, reason: str) -> None:
        """A slower path is never silent: it is counted, and logged with the first payload of each reason."""
        if not self.refused[reason]:
            why = _WHY[reason].format(limit=self._arena.limit >> 20)
            logger.warning("large messages go through the Unix socket instead of shared memory: %s", why)
        self.refused[reason] += 1

    def _share(self, blocks: Blocks, data: Any, size: int, several: bool, parts: Countdown) -> bytes | None:
        """A reference to memory of a block, or None if it is in no block or may not be shown to this peer."""
        loan = blocks.lend(data, size, private=several)
        if loan is None:
            return None
        with self._lock:
            number = None if self._closed else self._lending.add(blocks, loan, parts, data)
        if number is None:
            blocks.give_back(loan)
            return None
        way = (_PRIVATE if several else _SHARED) | number << 8
        return REFERENCE.pack(loan.block.number, way, loan.offset, size)

    def _show(self, payload: OnGpu, lend: bool, parts: Countdown | None, begun: list[int]) -> bytes:
        """A reference to memory of a GPU; see GpuShares.place. Raises RegistrationError."""
        limit = time.monotonic() + _UNREAD
        while True:
            try:
                with self._lock:
                    if self._closed:
                        raise Broken("this end closed the stream")
                    return self._gpu_shares.place(payload, lend, parts, begun)
            except RegistrationError as error:
                if error.reason != "gpu_unread" or time.monotonic() > limit:
                    self.refused[error.reason] += 1
                    raise
            self._await_control(0.002, room=True)

    def try_gpu(self, uuid: bytes, index: int) -> None:
        """Raises RegistrationError unless the peer maps memory of this GPU; "gpu_tried": not known yet."""
        with self._lock:
            self._gpu_shares.check(uuid, index)

    def take_back(self, frames: list[OutFrame]) -> list[OutFrame]:
        """Frames that were never sent, with their payloads again. Raises Broken after `close`, and
        ProtocolError if the peer has released them nevertheless."""
        back: list[OutFrame] = []
        for frame in frames:  # all of them, also after a lost one
            restored = self._restored(frame) if frame[0] & BY_REFERENCE else frame
            if restored is not None:
                back.append(restored)
        if len(back) == len(frames):
            return back
        if self._closed:
            raise Broken("this end closed the stream")
        raise ProtocolError("control_channel", "the peer released a message that was never sent to it")

    def _restored(self, frame: OutFrame) -> OutFrame | None:
        number, way, offset, size = REFERENCE.unpack(frame[4])
        data: Any
        if way & 0xFF == IN_SLOT:
            found = self._arena.find(number, offset)
            data = found and found[0].lend(found[1], size)
        elif way & 0xFF == ON_GPU:
            with self._lock:
                data = self._gpu_shares.take_back(way >> 8)
        else:
            data = self._lending.take_back(way >> 8)
        if data is None:
            return None
        return (frame[0] & ~BY_REFERENCE, frame[1], frame[2], frame[3], data)

    def withdraw(self, placed: list[OutFrame], begun: Sequence[int] = ()) -> None:
        """These were not queued: the connection carries the message itself, or its sender gets an error."""
        shares = list(begun)
        for frame in placed:
            if frame[0] & BY_REFERENCE:
                number, way, offset, _ = REFERENCE.unpack(frame[4])
                if way & 0xFF == ON_GPU:
                    shares.append(way >> 8)
                elif way & 0xFF != IN_SLOT:
                    self._lending.cancel(way >> 8)
                elif found := self._arena.find(number, offset):
                    found[0].free(found[1])
        with self._lock:
            for share in shares:
                self._gpu_shares.cancel(share)

    # -- receiving ---------------------------------------------------------------------------------

    def fetch(self, reference: bytes) -> Any:
        """The payload as a region that owns its memory. Raises ProtocolError for an invalid reference,
        Broken after `close`."""
        number, way, offset, size = REFERENCE.unpack(reference)
        if way == IN_SLOT:
            segment = self._segments.get(number) or self._known(self._segments, number)
            return segment.fetch(offset, size)
        kind, share = way & 0xFF, way >> 8
        if kind == ON_GPU:
            self._known(self._gpu_mappings.blocks, number)
            return self._gpu_mappings.fetch(number, share, offset, size)
        if kind not in (_SHARED, _PRIVATE):
            raise ProtocolError("reference", f"a reference of kind {kind}")
        if (number, share) in self._borrowed:
            raise ProtocolError("reference", "a share of memory that is still in use here")
        block = self._known(self._blocks, number)
        try:
            with self._lock:  # else the descriptor might be closed, and its number reused
                if self._closed:
                    raise Broken("this end closed the stream")
                view = block.view(offset, size, private=kind == _PRIVATE)
                self._borrowed.add((number, share))
            ended = functools.partial(self._give_back, number, share)
            [region] = map(self._core.Region, (view,), (ended,))  # `map`: as in MappedSegment.fetch
        except BaseException:
            self._borrowed.discard((number, share))
            raise
        return region

    def _known(self, announced: dict[int, Any], number: int) -> Any:
        if number not in announced:
            self._await_control(0.0)
        found = announced.get(number)
        if found is None and self._closed:
            raise Broken("this end closed the stream")
        if found is None:
            raise ProtocolError("reference", f"shared memory {number} was never announced")
        return found

    def _give_back(self, block: int, share: int) -> None:
        """Called in any statement of any thread: see control_channel.py."""
        if self._pid != os.getpid():  # a forked child has copies of the views
            return
        self._borrowed.discard((block, share))
        self._control.send(control_channel.RELEASED, block, share)
        if self._ended:
            self._unmapped()
        elif self._closed:
            self._carriers.attend(self)

    # -- the control socket --------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        """In the reactor's thread."""
        try:
            self._pump()
        except TransferError as error:
            self._failure = without_frames(error)
            self._unwatch()
            self._lending.end_all(error)
            with self._lock:
                shown = self._gpu_shares.end_all()
            self._inform(shown, error)
            if self._on_failure is not None:
                self._on_failure(error)
        self.go_on()

    def _pumped(self) -> TransferError | None:
        try:
            self._pump()
        except TransferError as error:
            return error
        return None

    def _pump(self) -> None:
        """Reads all announcements and reports. Raises ProtocolError, OutOfDescriptors."""
        ended = []
        shown: list[tuple[GpuShare, BaseException | None]] = []
        try:
            with self._lock:
                for message in self._control.read():
                    if message is None:  # the peer is gone and sees no memory any more
                        self._unwatch()
                        self._peer_gone = True
                        if self._closed:
                            ended = self._lending.numbers()
                            shown += [(share, None) for share in self._gpu_shares.peer_gone()]
                    elif message.kind == control_channel.RELEASED:
                        ended.append(message.size)
                    elif message.kind in GPU_REPORTS:
                        shown += self._gpu_shares.handle(message)
                    else:
                        self._handle(message)
        finally:
            for number in ended:
                self._lending.end(number, None)
            for share, error in shown:
                share.inform(error)

    def _inform(self, ended: list[GpuShare], error: BaseException | None) -> None:
        for share in ended:
            share.inform(error)

    def _handle(self, message: ShmControlMessage) -> None:
        if self._closed and message.kind in (control_channel.SEGMENT, control_channel.BLOCK):
            return
        if message.kind >= control_channel.GPU_WANTED:
            self._gpu_mappings.handle(message)
            return
        if message.kind == control_channel.DROP:
            self._segments.pop(message.number, None)
        elif message.kind == control_channel.FORGET:
            block = self._blocks.pop(message.number, None)
            if block is not None:
                block.close()
        elif message.number in (self._segments if message.kind == control_channel.SEGMENT else self._blocks):
            raise ProtocolError(
                "control_channel", f"announcement {message.kind} of {message.number} for a second time"
            )
        elif len(self._segments) >= MOST_SEGMENTS or len(self._blocks) > MOST_BLOCKS:
            raise ProtocolError("control_channel", "more shared memory than one peer may announce")
        elif message.kind == control_channel.SEGMENT:
            self._segments[message.number] = MappedSegment(self._core, message.fd, message.size, message.slot)
        else:
            self._blocks[message.number] = MappedBlock(self._core, message.fd, message.size)

    def watch(self, on_failure: Callable[[BaseException], object]) -> None:
        """Reports a fatal error to the connection's owner, in the reactor's thread."""
        self._on_failure = on_failure
        if self._failure is not None:
            on_failure(self._failure)

    # -- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """The connection has ended. The control socket stays while one side sees the other's memory."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._unmap()
            self._gpu_shares.close()
            # Not before: what the peer never saw is taken back until here.
            ended = self._lending.numbers() if self._peer_gone else []
            shown = self._gpu_shares.peer_gone() if self._peer_gone else []
        for number in ended:
            self._lending.end(number, None)
        self._inform(shown, None)
        self._on_failure = None
        self._arena.close()
        self.go_on()

    def go_on(self) -> None:
        """Sends waiting messages, and ends a stream without work. Not for finalizers."""
        self._control.go_on()
        if self._control.waiting:  # also where another thread sent, and rang too early
            self._carriers.attend(self)
        if self._arena.dropped and not self._closed:
            self._report_dropped()
        with self._lock:
            self._gpu_mappings.go_on()
            self._gpu_shares.go_on()
            busy = self._lending or self._borrowed or self._gpu_shares or self._gpu_mappings
            if self._closed and not busy and not self._control.waiting:
                self.end()

    def end(self) -> None:
        """The context has ended too, or there is no work left. Memory of the peer that this side sees stays
        mapped, and the control socket open, so that the peer does not write there. If the peer sees memory of
        our GPUs, it has PATIENCE to take it and to let it go. Idempotent."""
        self._await_gpu_releases()
        with self._lock:
            if self._ended:
                return
            self._ended = self._closed = True
            self._unmap()
        self._arena.close()
        why = Broken("the context ended while a peer still saw this memory")
        self._lending.end_all(why)
        self._inform(self._gpu_shares.end_all(), why)
        self._unwatch()
        self._gpu_mappings.finish(self._unmapped)
        self._unmapped()
        self._carriers.remove(self)

    def _await_gpu_releases(self) -> None:
        if not self._gpu_shares or self._peer_gone or self._pid != os.getpid():
            return
        limit = time.monotonic() + PATIENCE
        while self._gpu_shares and not self._peer_gone:
            if not self._gpu_shares.seen:
                limit = min(limit, time.monotonic() + _ANSWER)
            try:
                self._await_control(0.020)
            except TransferError:
                return
            if time.monotonic() > limit:
                return

    def _await_control(self, seconds: float, *, room: bool = False) -> None:
        """Handles what the peer says; room: or waits for room to say something. Raises what ends it."""
        # Without a wait: another thread may still handle what it has read.
        if self._control.wait(seconds, room=room) or not seconds:
            error = uninterrupted(self._pumped, None)  # a message is read once
            if error is not None:
                raise error
        if seconds and self._peer_gone:
            raise Broken("the peer is gone")

    def _unmapped(self) -> None:
        """The peer's memory may be free for it, after the end."""
        if not self._borrowed and not self._gpu_mappings:
            self._control.close()

    def _unmap(self) -> None:
        """Of the peer's memory only viewed parts stay mapped."""
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()
        self._segments.clear()
        self._gpu_mappings.close()

    def rest(self) -> None:
        """Called at intervals: returns memory that was not used since the last time to the system."""
        self._arena.rest()
        with self._lock:
            self._gpu_shares.rest()

    def _unwatch(self) -> None:
        self._reactor.unregister(self._control.fd)
