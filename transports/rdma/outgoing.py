"""The sending half of a stream: small frames go into eager buffers, large ones are announced and kept until
the peer has READ them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from time import clock_gettime_ns
from typing import TYPE_CHECKING, Any, TypeVar

from transfer.transports.core import fork
from transfer.transports.core.copies import counted, unsent
from transfer.transports.core.frames import normalize
from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, VERSION, Flag
from transfer.transports.errors import Broken, ProtocolError, TransferError
from transfer.transports.rdma import control_messages, eager
from transfer.transports.rdma.credits import SendingCredits
from transfer.transports.rdma.driver import SUCCESS, QueuePair
from transfer.transports.rdma.eager import BUFFER, WaitingSend
from transfer.transports.rdma.failures import completion_failed
from transfer.transports.rdma.half import Half
from transfer.transports.rdma.memory import ReadSource, RegisteredDeviceMemory
from transfer.transports.rdma.port import COARSE, GRANT, SEND, RdmaPort
from transfer.transports.rdma.rendezvous import WINDOW, RendezvousAnnouncement, next_number

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame

_Released = Callable[[BaseException | None], None]
_Kept = TypeVar("_Kept")
_CONTROL, _MORE, _CRC = int(Flag.CONTROL), int(Flag.MORE), int(Flag.CRC)
#: the flags of frames that the fast path sends
_SHORT = int(Flag.ACK | Flag.LZ4)
#: one of so many sends is signaled; its completion frees the buffers before it too
_SIGNAL_EVERY = GRANT // 4
#: while the peer has so many payloads to READ, further announcements are gathered: one buffer for many costs
#: both sides less than a buffer, a completion and a part of a grant for each
_AHEAD = 4 * WINDOW
#: an announcement without news from the peer for so many seconds ends the connection
RENDEZVOUS_TIMEOUT = 60.0


class _Message:
    """One message that was accepted. `frames`: in a form that can be sent again. `announced`: numbers of its
    payloads that the peer has not READ. `pieces`: encoded frames that wait for a buffer. `begun`: the device
    has some of it; `posted`: the device has all of its eager part."""

    __slots__ = ("announced", "begun", "frames", "nbytes", "pieces", "posted", "released")

    def __init__(self, frames: list[OutFrame], nbytes: int, released: _Released | None) -> None:
        self.frames = frames
        self.nbytes = nbytes
        self.released = released
        self.announced: set[int] = set()
        self.pieces = 0
        self.posted = False
        self.begun = False


class _Open:
    """An announcement that is not done. since: time of the last news of it (time.monotonic). queried: time
    of the query after that, or None."""

    __slots__ = ("message", "queried", "since", "source")

    def __init__(self, message: _Message, source: ReadSource) -> None:
        self.message = message
        self.source = source
        self.since = time.monotonic()
        self.queried: float | None = None


class RdmaOutgoing(Half):
    """The first half of `VerbsStream`. The port's lock guards its state."""

    def _begin_sending(self, port: RdmaPort, pair: QueuePair, granted: int, socket_type: int) -> None:
        self.socket_type = socket_type
        self.checksum = False
        self.rendezvous_timeout = RENDEZVOUS_TIMEOUT
        self.last_sent_ns = 0
        self._port = port
        self._lock = port.lock
        self._pair = pair
        self._credits = SendingCredits(granted)
        self._slab = port.domain.staging.take(GRANT * BUFFER)
        self._slots = [self._slab.view[at : at + BUFFER] for at in range(0, GRANT * BUFFER, BUFFER)]
        self._posted = 0  # buffers passed to the device, and acknowledged by the peer's; totals
        self._acknowledged = 0
        self._signaled = 0  # the last signaled one
        self._waiting = WaitingSend()
        self._unposted: list[_Message] = []
        self._number = 1
        self._open: dict[int, _Open] = {}
        self._unread = 0  # payloads of sent messages, which the peer has not READ

    # -- Stream --------------------------------------------------------------------------------

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: _Released | None = None,
    ) -> int:
        if fork.generation != self._generation:
            raise fork.refuse()
        if frames and frames[0][0] & _CONTROL:
            # Control frames need no credit there, and no payload delays them.
            return int(self.control.send(frames, force=force, released=released))
        with self._lock:
            if self.broken is not None:
                raise self._is_broken()
            if len(frames) == 1 and not self._waiting and self._send_small(frames[0]):
                number = self.sent
            else:
                number = self.sent if self._take(normalize_all(frames), force, hold, released) else 0
                released = None
        if self._port.after:
            self._run_after()
        if released is not None:
            released(None)
        return number

    def flush(self) -> bool:
        """True when the peer's device has acknowledged all, and the peer has READ all."""
        if fork.generation != self._generation:
            raise fork.refuse()
        with self._lock:
            if self.broken is None:
                self._port.progress()
                self._pump()
                if (
                    self._posted != self._acknowledged
                    and self._signaled < self._posted
                    and self._has_buffer()
                ):
                    self._post(0, True)  # an empty, signaled one: it completes all before it
            done = not (self.queued or self._posted != self._acknowledged)
            ended = self.broken is not None
        self._run_after()
        if ended:
            return True  # the rest is not sent by this connection
        return done and bool(self.control.flush())

    def take_unsent(self) -> list[list[OutFrame]]:
        """The messages of which the device has nothing; an announced message counts as sent."""
        return self._leave_unsent(unsent)

    def drop_unsent(self) -> int:
        return self._leave_unsent(counted)

    def _leave_unsent(self, keep: Callable[[Iterable[list[OutFrame]]], _Kept]) -> _Kept:
        with self._lock:
            if self.broken is None:
                return keep(())
            messages, self._unposted = self._unposted, []
            self._waiting = WaitingSend()
            for message in messages:
                self.queued -= 1
                self.queued_bytes -= message.nbytes
        kept = keep(message.frames for message in messages if not message.begun)
        for message in messages:
            message.frames = []  # no reference is left when its owner is informed
            if message.released is not None:
                message.released(self.broken)
        return kept

    # -- under the lock ------------------------------------------------------------------------

    def _send_small(self, frame: OutFrame) -> bool:
        """The fast path for one plain frame that fits into a free buffer."""
        flags, sequence, topic, meta, data = frame
        if type(data) is not bytes or topic is not None or meta is not None or self.checksum:
            return False
        size = HEADER_SIZE + len(data)
        if size > BUFFER or int(flags) & ~_SHORT or not self._has_buffer():
            return False
        slot = self._slots[self._posted % GRANT]
        self.sent += 1
        self.sent_bytes += len(data)
        HEADER.pack_into(
            slot, 0, MAGIC, VERSION, self.socket_type, int(flags), sequence or self.sent, 0, len(data), 0
        )
        slot[HEADER_SIZE:size] = data
        self._post(size, False)
        return True

    def _take(self, frames: list[OutFrame], force: bool, hold: bool, released: _Released | None) -> bool:
        size = sum(size_of(frame[4]) for frame in frames)
        if not force and self._is_full(size):
            self._port.progress()
            self._pump()
            if self._is_full(size):
                self.full = True
                return False
        message = _Message([], size, released)
        pieces = self._pieces(message, frames, hold)
        self.sent += 1
        self.sent_bytes += size
        self.queued += 1
        self.queued_bytes += size
        self._unposted.append(message)
        message.pieces = len(pieces)
        for piece in pieces:
            self._waiting.add(piece, message)
        self._pump()
        return True

    def _pieces(self, message: _Message, frames: list[OutFrame], hold: bool) -> list[bytes]:
        """Encodes every frame and announces the large ones. If one fails, nothing is taken."""
        pieces = []
        number, opened = self._number, []
        try:
            for left, (flags, sequence, topic, meta, data) in zip(
                range(len(frames) - 1, -1, -1), frames, strict=True
            ):
                bits = int(flags) | (_MORE if left else 0) | (_CRC if self.checksum else 0)
                kept = data if type(data) is bytes or hold else None
                refers = (
                    size_of(data) + len(meta or b"") + len(topic or b"") + HEADER_SIZE > BUFFER
                    and size_of(data) > 64
                )
                if refers:
                    source = self._port.domain.sources.place(data, kept=kept is not None)
                    opened.append((number, source))
                    content: Any = RendezvousAnnouncement(
                        source.rkey, number, source.address, size_of(data)
                    ).encode()
                    number = next_number(number)
                    if kept is None:
                        kept = source.copy
                else:
                    content = data
                    if kept is None:
                        kept = bytes(data)
                message.frames.append((flags, sequence, topic, meta, kept))
                pieces.append(
                    eager.encode(
                        self.socket_type, bits, sequence or self.sent + 1, topic, meta, content, refers
                    )
                )
        except BaseException:
            for _, source in opened:
                source.release()
            raise
        self._number = number
        for one, source in opened:
            self._open[one] = _Open(message, source)
            message.announced.add(one)
        if opened:
            self._watch()
        return pieces

    def _has_buffer(self) -> bool:
        """Both the peer and this side have a free buffer."""
        if self._posted - self._acknowledged >= GRANT:
            self._port.progress()
            if self._posted - self._acknowledged >= GRANT:
                return False
        return self._credits.left > 0 and self.broken is None

    def _pump(self) -> None:
        """Passes waiting frames to the device, as far as there are buffers."""
        waiting = self._waiting
        while waiting and self._unread < _AHEAD and self._has_buffer():
            used, gone = waiting.fill(self._slots[self._posted % GRANT])
            for message in gone:
                message.begun = True
                message.pieces -= 1
                if message.pieces:
                    continue
                message.posted = True
                self._unread += len(message.announced)
                for number in message.announced:
                    self._open[number].since = time.monotonic()
                self._unposted.remove(message)
                self._finish(message)
            if waiting.cut is not None:
                waiting.cut.begun = True
            self._post(used, False)

    def _post(self, used: int, signaled: bool) -> None:
        slot = self._posted % GRANT
        self._posted += 1
        signaled = signaled or self._posted % _SIGNAL_EVERY == 0
        if signaled:
            self._signaled = self._posted
        self._credits.use()
        self.last_sent_ns = clock_gettime_ns(COARSE)
        self._pair.send(
            SEND | (self._posted & 0xFFFFFFFF),
            self._slab.address + slot * BUFFER,
            used,
            self._slab.lkey,
            signaled,
        )

    def _finish(self, message: _Message) -> None:
        """If all of the message was sent and READ, its memory returns to the caller."""
        if not message.posted or message.announced:
            return
        self.queued -= 1
        self.queued_bytes -= message.nbytes
        message.frames = []
        if message.released is not None:
            released = message.released
            self._port.after.append(lambda: released(None))
        if self.full:
            self.full = False
            self._wake(self.on_writable)

    def _send_completed(self, which: int, status: int) -> None:
        if status != SUCCESS:
            self._break(completion_failed(status, self.name, "sending to"))
            return
        # `which` is the lower half of the total at the completed send; at most GRANT are open.
        self._acknowledged += (which - self._acknowledged) & 0xFFFFFFFF

    def _granted(self, total: int) -> None:
        if self._credits.grant(total):
            self._pump()

    def _done(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            opened = self._open.pop(number, None)
            if opened is None:
                raise ProtocolError("rendezvous", f"done with announcement {number}, which is not open")
            opened.message.announced.discard(number)
            opened.source.release()
            if opened.message.posted:
                self._unread -= 1
            self._finish(opened.message)
        self._pump()

    def _held(self, number: int) -> None:
        opened = self._open.get(number)
        if opened is not None:  # it may have been completed in the meantime
            opened.since = time.monotonic()
            opened.queried = None

    def _check_announcements(self, now: float) -> None:
        """Queries an announcement without news; ends the connection with a silent peer."""
        half = self.rendezvous_timeout / 2
        for number, opened in self._open.items():
            if not opened.message.posted:
                return  # it waits for a buffer, and so do all behind it
            if opened.queried is None and now - opened.since >= half:
                opened.queried = now
                self._send_control(control_messages.encode(control_messages.Word.ASK, number))
            elif opened.queried is not None and now - opened.queried >= half:
                raise Broken(
                    f"{self.name} sent no news of an announced payload for {now - opened.since:.1f} s"
                )

    def _end_sending(self, error: TransferError) -> None:
        """The queue pair is closed: the peer cannot read our memory any more."""
        touched = []
        for opened in self._open.values():
            copy = opened.source.copy
            if copy is not None and not opened.message.posted:  # it may be sent again, by another connection
                opened.message.frames = [
                    (*frame[:4], bytes(copy)) if frame[4] is copy else frame
                    for frame in opened.message.frames
                ]
            opened.source.release()
            if opened.message.posted and opened.message not in touched:
                touched.append(opened.message)
        self._open.clear()
        for message in touched:
            self.queued -= 1
            self.queued_bytes -= message.nbytes
            message.frames = []
            if message.released is not None:
                self._port.after.append(lambda released=message.released: released(error))  # type: ignore[misc]
        self._slots.clear()
        self._port.domain.staging.give_back(self._slab)


def normalize_all(frames: Sequence[OutFrame]) -> list[OutFrame]:
    """As the codec's, but passes a device's memory, as `RegisteredDeviceMemory`."""
    if not any(hasattr(frame[4], "__cuda_array_interface__") for frame in frames):
        return normalize(frames)
    return [_normal(frame) for frame in frames]


def _normal(frame: OutFrame) -> OutFrame:
    memory = RegisteredDeviceMemory.of(frame[4])
    return normalize([frame])[0] if memory is None else (*frame[:4], memory)


def size_of(data: Any) -> int:
    return data.nbytes if isinstance(data, RegisteredDeviceMemory) else len(data)
