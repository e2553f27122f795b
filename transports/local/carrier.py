"""Carries large payloads between two processes of one host. See core_contract.Carrier.

Ordinary memory is copied once, into a slot of a segment that the receiver maps (segments.py).
Memory of the context's blocks (blocks.py) is not copied at all. A small socket beside the connection
passes descriptors, and tells when a shared block is the sender's again.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transports.errors import Broken, ProtocolError, TransferError
from transports.local.blocks import NAME as BLOCKS, Block, Blocks
from transports.local.mappings import MOST_MAPPED, MappedBlock, MappedSegment
from transports.local.segments import FREE, Arena, Segment, Slot
from transports.reactor import READABLE
from transports.wire import BY_REFERENCE, REFERENCE, REFERENCE_SIZE

if TYPE_CHECKING:
    from transports.core_contract import OutFrame
    from transports.upgrade import Surroundings

Released = Callable[[BaseException | None], None]

#: payloads from here on are carried; what is smaller costs less on the socket
THRESHOLD = 64 * 1024
#: bytes of one connection's segments, unless its messages are larger
ARENA = 256 << 20

#: kind, number, size, slot size (or which share)
_BESIDE = struct.Struct("<BxxxIQQ")
_SEGMENT, _DROP, _BLOCK, _RELEASED = 1, 2, 3, 4
#: how a reference is meant; a share's number stands in the bits above
_SLOT, _SHARED, _PRIVATE = 0, 1, 2
_SHARE_BITS = 24
#: seconds until a full socket is tried again
_AGAIN = 0.005


class LocalCarrier:
    """Both directions of one connection. Thread-safe; owns the socket beside it.

    It outlives its connection as long as one side still sees memory of the other's blocks.
    """

    def __init__(self, beside: socket.socket, around: Surroundings) -> None:
        self._beside = beside
        self._core = around.core
        self._reactor = around.reactor
        self._blocks: Blocks | None = around.shared.get(BLOCKS)
        self._shared = around.shared
        self._max_message = around.max_message
        self._arena = Arena(self._core, ARENA)
        self._pid = os.getpid()
        # Reentrant: the collector may end a region inside any statement of ours.
        self._lock = threading.RLock()
        self._closed = False
        self._ended = False
        # -- what we announced
        self._announced: set[int] = set()
        self._shares: dict[int, tuple[Block, Released | None, Any]] = {}
        self._share_number = 0
        #: payloads that the connection took itself, since nothing was free
        self.refused = 0
        # -- what the peer announced
        self._segments: dict[int, MappedSegment] = {}
        self._mapped_blocks: dict[int, MappedBlock] = {}
        self._borrowed = 0
        self._untold: deque[bytes] = deque()
        around.shared.setdefault("local.carriers", Carriers()).add(self)

    # -- sending -----------------------------------------------------------------------------------

    def place(
        self, frames: Sequence[OutFrame], hold: bool, released: Released | None, several: bool
    ) -> tuple[list[OutFrame], Released | None, int] | None:
        """See core_contract.Carrier. A block is shared only with `hold`; else it is copied too."""
        placed: list[OutFrame] = []
        saved = 0
        for frame in frames:
            data = frame[4]
            size = len(data) if type(data) is bytes else memoryview(data).nbytes
            if size < THRESHOLD:
                placed.append(frame)
                continue
            reference = None
            if hold and self._has_blocks() and type(data) is not bytes:
                reference = self._share(data, size, several, released)
                if reference is not None:
                    released = None
            if reference is None:
                reference = self._copy(data, size)
            if reference is None:
                self.refused += 1
                self.take_back(placed)
                return None
            placed.append((frame[0] | BY_REFERENCE, *frame[1:4], reference))
            saved += size - REFERENCE_SIZE
        return placed, released, saved

    def _copy(self, data: Any, size: int) -> bytes | None:
        found = self._arena.reserve(size)
        if found is None:
            return None
        slot, new = found
        if new and not self._announce(_SEGMENT, slot.segment.number, slot.segment):
            slot.mark(FREE)
            return None
        self._core.copy_into(slot.view(size), data)
        return REFERENCE.pack(slot.segment.number, _SLOT, slot.offset, size)

    def _has_blocks(self) -> bool:
        if self._blocks is None:
            self._blocks = self._shared.get(BLOCKS)
        return bool(self._blocks)

    def _share(self, data: Any, size: int, several: bool, released: Released | None) -> bytes | None:
        """A reference to memory of a block, or None if it is none or cannot be announced."""
        assert self._blocks is not None
        found = self._blocks.find(self._core.address_of(data), size)
        if found is None:
            return None
        block, offset = found
        with self._lock:
            if self._closed:
                return None
            if block.number not in self._announced:
                if not self._announce(_BLOCK, block.number, block):
                    return None
                self._announced.add(block.number)
            self._share_number = (self._share_number + 1) % (1 << _SHARE_BITS)
            number = self._share_number
            first = not self._shares
            self._shares[number] = block, released, data
            self._blocks.share(block, 1)
        if first:
            self._reactor.register(self._beside.fileno(), READABLE, self._ready)
        way = (_PRIVATE if several else _SHARED) | number << 8
        return REFERENCE.pack(block.number, way, offset, size)

    def _announce(self, kind: int, number: int, memory: Segment | Block) -> bool:
        """Passes the descriptor. False: the peer has not read what was announced before."""
        slot_size = memory.slot_size if isinstance(memory, Segment) else 0
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory.fd]))
        try:
            for dropped in self._arena.dropped[:]:
                self._beside.send(_BESIDE.pack(_DROP, dropped, 0, 0))
                self._arena.dropped.remove(dropped)
            self._beside.sendmsg([_BESIDE.pack(kind, number, memory.size, slot_size)], [rights])
        except OSError:
            return False
        if isinstance(memory, Segment):
            memory.close_fd()
        return True

    def take_back(self, frames: list[OutFrame]) -> list[OutFrame]:
        """Payloads that were placed and never sent, out of their places again."""
        return [self._restored(frame) if frame[0] & BY_REFERENCE else frame for frame in frames]

    def _restored(self, frame: OutFrame) -> OutFrame:
        number, way, offset, size = REFERENCE.unpack(frame[4])
        if way & 0xFF == _SLOT:
            slot: Slot = self._arena.slot(number, offset)
            data = self._core.Region(slot.view(size), lambda: slot.mark(FREE))
        else:
            data = self._shares[way >> 8][2]
            self._end_share(way >> 8, Broken("the message was never sent"))
        return (frame[0] & ~BY_REFERENCE, *frame[1:4], data)

    def _end_share(self, number: int, error: BaseException | None) -> None:
        with self._lock:
            block, released, _ = self._shares.pop(number)
            assert self._blocks is not None
            self._blocks.share(block, -1)
            idle = not self._shares
        if idle:
            self._unwatch()
        if released is not None:
            released(error)

    # -- receiving ---------------------------------------------------------------------------------

    def fetch(self, reference: bytes) -> Any:
        """The payload as a region that owns its place. Raises ProtocolError for a reference to nothing."""
        number, way, offset, size = REFERENCE.unpack(reference)
        if way == _SLOT:
            return self._known(self._segments, number).fetch(offset, size)
        block = self._known(self._mapped_blocks, number)
        view = block.view(offset, size, private=way & 0xFF == _PRIVATE)
        with self._lock:
            self._borrowed += 1
        return self._core.Region(view, lambda: self._give_back(number, way >> 8))

    def _known(self, announced: dict[int, Any], number: int) -> Any:
        if number not in announced:
            self._pump()
        if number not in announced:
            raise ProtocolError("reference", f"shared memory {number} was never announced")
        return announced[number]

    def _give_back(self, block: int, share: int) -> None:
        if self._pid != os.getpid():  # a forked child has copies of our views
            return
        with self._lock:
            self._borrowed -= 1
            self._untold.append(_BESIDE.pack(_RELEASED, block, share, 0))
        self._tell()

    def _tell(self) -> None:
        """Says what was given back; what finds no room is said a little later."""
        with self._lock:
            try:
                while self._untold and not self._ended:
                    self._beside.send(self._untold[0])
                    self._untold.popleft()
            except BlockingIOError:
                self._later()
            except OSError:
                self._untold.clear()  # nobody is left to hear it
        self._end_if_idle()

    def _later(self) -> None:
        try:
            self._reactor.call_later(_AGAIN, self._tell)
        except TransferError:  # the context ends, and so does the connection beside
            self._untold.clear()

    # -- the socket beside ---------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        """In the reactor's thread, while the peer sees memory of ours."""
        try:
            self._pump()
        except ProtocolError as error:
            self._fail_shares(error)
        self._end_if_idle()

    def _pump(self) -> None:
        """Reads all that was announced and given back. Raises ProtocolError."""
        ended: list[int] = []
        try:
            with self._lock:
                while not self._ended:
                    try:
                        data, descriptors, _, _ = socket.recv_fds(self._beside, _BESIDE.size + 1, 4)
                    except OSError as error:
                        if error.errno not in (errno.EAGAIN, errno.EINTR):
                            ended.extend(self._shares)
                        return
                    try:
                        if not data:
                            ended.extend(self._shares)  # the peer is gone: nobody sees our memory
                            return
                        ended.extend(self._understand(data, descriptors))
                    finally:
                        for descriptor in descriptors:
                            os.close(descriptor)
        finally:
            for number in ended:
                if number in self._shares:
                    self._end_share(number, None)

    def _understand(self, data: bytes, descriptors: list[int]) -> list[int]:
        """One message of the peer's; the shares that ended with it."""
        if len(data) != _BESIDE.size:
            raise ProtocolError("beside", f"{len(data)} bytes where an announcement was due")
        kind, number, size, slot_size = _BESIDE.unpack(data)
        if len(descriptors) != (kind in (_SEGMENT, _BLOCK)):
            raise ProtocolError("beside", f"announcement {kind} with {len(descriptors)} descriptors")
        if kind == _RELEASED:
            return [size] if size in self._shares else []
        if kind == _DROP:
            self._segments.pop(number, None)
            return []
        if len(self._segments) + len(self._mapped_blocks) >= MOST_MAPPED:
            raise ProtocolError("beside", f"more than {MOST_MAPPED} announcements")
        if kind == _SEGMENT and number not in self._segments:
            self._segments[number] = MappedSegment(self._core, descriptors[0], size, slot_size)
        elif kind == _BLOCK and number not in self._mapped_blocks:
            self._mapped_blocks[number] = MappedBlock(self._core, descriptors[0], size)
        else:
            raise ProtocolError("beside", f"announcement {kind} of {number}")
        return []

    # -- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """The connection is gone. The socket beside it stays while somebody sees the other's memory."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
        self._arena.close()
        self._end_if_idle()

    def end(self) -> None:
        """The context is gone, too: what is still shared is told to nobody. Idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = self._closed = True
            shares = list(self._shares)
            for block in self._mapped_blocks.values():
                block.close()
            self._mapped_blocks.clear()
            self._segments.clear()
        self._arena.close()
        for number in shares:
            self._end_share(number, None)
        self._unwatch()
        self._beside.close()
        self._shared["local.carriers"].remove(self)

    def _end_if_idle(self) -> None:
        with self._lock:
            idle = self._closed and not self._shares and not self._borrowed and not self._untold
        if idle:
            self.end()

    def _fail_shares(self, error: BaseException) -> None:
        for number in list(self._shares):
            self._end_share(number, error)

    def _unwatch(self) -> None:
        if self._beside.fileno() >= 0:
            self._reactor.unregister(self._beside.fileno())


class Carriers:
    """All carriers of a context, so that the last ones end with it."""

    def __init__(self) -> None:
        self._living: set[LocalCarrier] = set()

    def add(self, carrier: LocalCarrier) -> None:
        self._living.add(carrier)

    def remove(self, carrier: LocalCarrier) -> None:
        self._living.discard(carrier)

    def close(self) -> None:
        """Ends those that are left. Idempotent."""
        for carrier in list(self._living):
            carrier.end()
