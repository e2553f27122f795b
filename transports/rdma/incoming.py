"""The receiving half of a stream: eager buffers into frames, announced payloads READ into our memory."""

from __future__ import annotations

import struct
from collections import deque
from time import clock_gettime_ns
from typing import TYPE_CHECKING

from transfer.transports.core import Frame, Region, fork
from transfer.transports.core.message_size import Size
from transfer.transports.core.wire import Control, Flag
from transfer.transports.errors import ProtocolError, TransferError
from transfer.transports.rdma import control_messages, eager
from transfer.transports.rdma.credits import ReceivingCredits
from transfer.transports.rdma.driver import SUCCESS, QueuePair
from transfer.transports.rdma.eager import Splitter, Unit
from transfer.transports.rdma.failures import ACCESS_REFUSED, completion_failed
from transfer.transports.rdma.half import Half
from transfer.transports.rdma.memory import MemoryBlock
from transfer.transports.rdma.port import COARSE, GRANT, READ, RdmaPort
from transfer.transports.rdma.rendezvous import ReadChunk, Reading, RendezvousOffer, Window

if TYPE_CHECKING:
    from transfer.transports.core.contract import Sink

_CREDIT = struct.Struct("<BQ")
_CONTROL, _MORE, _CRC = int(Flag.CONTROL), int(Flag.MORE), int(Flag.CRC)
#: buffers return to the sender in groups, each of which costs one frame on the control connection
_GIVE_BACK = GRANT // 4
#: bytes that are READ before the application receives them; one payload is always READ
READ_AHEAD = 64 << 20
#: this side reports consumed messages after so many of them, or 20 ms after the last one
_REPORT_AFTER = 256


class _Message:
    """A message that arrives. missing: payloads that have not arrived. buffers: to return to the sender when
    it is consumed. read: bytes that were READ for it."""

    __slots__ = ("buffers", "frames", "missing", "read")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.missing = 0
        self.buffers = 0
        self.read = 0


class RdmaIncoming(Half):
    """The second half of `VerbsStream`. The port's lock guards its state."""

    def _begin_receiving(self, port: RdmaPort, pair: QueuePair, max_message: int) -> None:
        self.credits = False
        self.last_received_ns = clock_gettime_ns(COARSE)
        self._port = port
        self._lock = port.lock
        self._pair = pair
        self._grants = ReceivingCredits(GRANT)
        self._splitter = Splitter(max_message)
        self._size = Size()
        self._announced = RendezvousOffer(max_message)
        self._window = Window()
        self._chunks: dict[int, ReadChunk] = {}
        self._chunk_number = 0
        self._read_ahead = 0
        self._held_back = False  # a payload waits until the application has taken others
        self._done_numbers: list[int] = []
        self._inbox: deque[_Message] = deque()
        self._building = _Message()
        self._reported = 0

    @property
    def max_message(self) -> int:
        """The largest data of one frame that is accepted, in bytes."""
        return self._splitter.max_message

    @max_message.setter
    def max_message(self, value: int) -> None:
        self._splitter.max_message = self._announced.max_message = value

    # -- Stream --------------------------------------------------------------------------------

    def take(self, sink: Sink | None = None) -> list[Frame] | None:
        if fork.generation != self._generation:
            raise fork.refuse()
        port = self._port
        with self._lock:
            frames = self._next()
            if frames is None and self.broken is None:
                port.reader = self  # type: ignore[assignment]
                count = port.progress()
                frames = self._next()
                if frames is None and self.broken is None:
                    port.sleep()
                    frames = self._next()
                elif count == 1:
                    # One at a time: the next call will check, find nothing and sleep. The queue is armed by
                    # then, so that it need not check twice.
                    port.arm_again()
                port.reader = None
            failure = None if frames is not None else self.broken
        if port.after:
            self._run_after()
        if failure is None:
            return frames
        if isinstance(failure, ProtocolError):
            raise failure
        raise self._is_broken()

    def consume(self, frames: list[Frame]) -> None:
        super().consume(frames)  # only one thread receives at a time
        if not self.credits:
            return
        with self._lock:
            if self.broken is None:
                # A receiver that takes this message and never receives again has consumed it, too.
                if self.consumed - self._reported >= _REPORT_AFTER:
                    self._report_consumed()
                else:
                    self._report_soon()
        if self._port.after:
            self._run_after()

    # -- under the lock ------------------------------------------------------------------------

    def _next(self) -> list[Frame] | None:
        """The next message, if it is complete; its buffers return to the sender."""
        if not self._inbox or self._inbox[0].missing:
            return None
        message = self._inbox.popleft()
        if self.broken is not None:
            return message.frames
        if message.read:
            self._read_ahead -= message.read
            if self._held_back:
                self._pump_reads()
        if message.buffers:
            self._give_back(message.buffers)
        return message.frames

    def arrived(self, data: memoryview) -> None:
        """A buffer was filled; it is posted again after this call."""
        self.last_received_ns = clock_gettime_ns(COARSE)
        try:
            self._grants.arrive()
            frame = None
            if not (self._splitter.inside or self._building.frames):
                frame = eager.alone(data, self._splitter.max_message)
            if frame is not None:
                message = _Message()
                message.frames.append(frame)
                self._inbox.append(message)
            else:
                for unit in self._splitter.feed(data):
                    self._add(unit)
        except (ProtocolError, TransferError) as error:
            self._break(error)
            return
        # A buffer of no complete message returns at once: the message may need more buffers than there are.
        if self._inbox and len(data) and not (self._building.frames or self._splitter.inside):
            self._inbox[-1].buffers += 1
        else:
            self._give_back(1)
        if self._inbox and self is not self._port.reader:
            self._wake(self.on_readable)

    def _add(self, unit: Unit) -> None:
        frame, message = unit.frame, self._building
        if frame.flags & _CONTROL:
            raise ProtocolError("control", "a control frame among the messages")
        nbytes = len(frame.topic or b"") + len(frame.meta or b"")
        announcement = self._announced.take(frame.bytes) if unit.refers else None
        nbytes += len(frame) if announcement is None else announcement.length
        self._size.add(frame.flags, nbytes, self._splitter.max_message)
        if announcement is not None:
            frame.flags &= ~_CRC  # it was the checksum of the announcement
            message.missing += 1
            self._window.add(Reading(announcement, (message, frame)))
        message.frames.append(frame)
        if not frame.flags & _MORE:
            self._inbox.append(message)
            self._building = _Message()
        if announcement is not None:
            self._pump_reads()

    def _pump_reads(self) -> None:
        """READs the next chunks, as far as the window and the memory for payloads allow."""
        window = self._window
        self._held_back = False
        while (reading := window.first) is not None and self.broken is None:
            if reading.place is None and not self._place(reading):
                self._held_back = True
                return
            chunk = window.take()
            self._chunk_number = number = (self._chunk_number + 1) & 0xFFFFFFFF
            self._chunks[number] = chunk
            block: MemoryBlock = reading.place
            announcement = reading.announcement
            self._pair.read(
                READ | number, block.address + chunk.offset, chunk.length, block.lkey,
                announcement.address + chunk.offset, announcement.rkey,
            )  # fmt: skip

    def _place(self, reading: Reading) -> bool:
        """Allocates memory for a payload. False: later, the application has enough to read."""
        length = reading.announcement.length
        message, _ = reading.owner
        if self._read_ahead and self._read_ahead + length > READ_AHEAD and message is not self._first_due():
            return False
        reading.place = self._port.domain.received.take(length)
        self._read_ahead += length
        message.read += length
        return True

    def _first_due(self) -> _Message:
        return self._inbox[0] if self._inbox else self._building

    def _read_completed(self, which: int, status: int) -> None:
        if status != SUCCESS:
            error: TransferError = completion_failed(status, self.name, "reading from")
            if status == ACCESS_REFUSED:
                refused = ProtocolError(
                    "rendezvous", f"{self.name} announced memory that its device refuses to share"
                )
                refused.__cause__ = error
                error = refused
            self._break(error)
            return
        chunk = self._chunks.pop(which)
        if self._window.arrived(chunk):
            self._complete(chunk.reading)
        self._pump_reads()

    def _complete(self, reading: Reading) -> None:
        message, frame = reading.owner
        block: MemoryBlock = reading.place
        received = self._port.domain.received
        frame.data = Region(block.view, lambda: received.give_back(block))
        message.missing -= 1
        self.last_received_ns = clock_gettime_ns(COARSE)
        number = reading.announcement.number
        self._announced.done(number)
        self._done_numbers.append(number)
        self._port.dirty.append(self)
        if (
            self._inbox
            and message is self._inbox[0]
            and not message.missing
            and self is not self._port.reader
        ):
            self._wake(self.on_readable)

    def send_done(self) -> None:
        """Reports all READ announcements at once: each message costs a system call here and a wake-up
        there."""
        numbers, self._done_numbers = self._done_numbers, []
        for begin in range(0, len(numbers), control_messages.MOST):
            self._send_control(
                control_messages.encode(
                    control_messages.Word.DONE, *numbers[begin : begin + control_messages.MOST]
                )
            )

    def _give_back(self, count: int) -> None:
        for _ in range(count):
            self._grants.give_back()
        total = self._grants.due(_GIVE_BACK)
        if total is not None:
            self._send_control(control_messages.grant(total))

    def _report_consumed(self) -> None:
        self._reported = self.consumed
        self._send_control(_CREDIT.pack(Control.CREDIT, self.consumed))

    def _answer_query(self, number: int) -> None:
        if number in self._announced:
            self._send_control(control_messages.encode(control_messages.Word.HELD, number))

    def _end_receiving(self) -> None:
        """The queue pair is closed: no payload arrives any more. Complete messages can still be read."""
        kept: deque[_Message] = deque()
        for message in self._inbox:
            if message.missing:
                break
            kept.append(message)
        self._inbox = kept
        self._building = _Message()
        given = set()
        for reading in [chunk.reading for chunk in self._chunks.values()] + list(self._window):
            if reading.place is not None and id(reading) not in given:
                given.add(id(reading))
                self._port.domain.received.give_back(reading.place)
        self._chunks.clear()
        self._window = Window()
