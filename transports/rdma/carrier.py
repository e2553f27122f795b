"""Large payloads of a connection by rdma: announced by the sender, READ by the receiver."""

from __future__ import annotations

import errno
import logging
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.transports.core import Region
from transfer.transports.core.wire import BY_REFERENCE, REFERENCE, REFERENCE_SIZE
from transfer.transports.countdown import Countdown
from transfer.transports.errors import Broken, Closed, ProtocolError, RegistrationError, TransferError
from transfer.transports.rdma.failures import NO_ANSWER, completion_failed
from transfer.transports.rdma.given_up import GivenUp
from transfer.transports.rdma.memory import ReadSource, RegisteredDeviceMemory
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.sizes import VERY_LARGE
from transfer.transports.slab_pool import MemoryBlock

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame
    from transfer.transports.rdma.domain import Domain

logger = logging.getLogger("transfer")

Released = Callable[[BaseException | None], None]
#: announced payloads that the peer has not READ; as ANNOUNCED in ring_requests.pxd
MOST_OPEN = 1024
_NUMBERS = (1 << 32) - 1
#: reasons of a failed registration that another one, later or smaller, need not have
_SCARCE = frozenset({"memlock", "memory", "keys"})


class _Open:
    """A payload that is announced. data: kept by its owner; None: it was copied."""

    __slots__ = ("data", "number", "owner", "source")

    def __init__(self, number: int, source: ReadSource, data: Any, owner: Countdown | None) -> None:
        self.number = number
        self.source = source
        self.data = data
        self.owner = owner

    def end(self, error: BaseException | None) -> None:
        self.source.release()
        if self.owner is not None:
            self.owner.ended(error)


class RdmaCarrier:
    """See core/contract.pyi, Carrier. give_up: called when a new connection by rdma would fail too. reactor:
    notices which payloads were READ while the program neither sends nor receives; None: it reads the stream
    anyway.

    order: held by the stream while it places payloads and queues their message: they are READ in this order.
    """

    def __init__(self, domain: Domain, give_up: Callable[[GivenUp], None], reactor: Reactor | None) -> None:
        self.refused: Counter[str] = Counter()
        #: how the peer's last payload for a GPU was received, and why so
        self.gpu_received = ""
        self.device = str(domain.route)
        self.order = threading.RLock()
        self._domain = domain
        self._give_up = give_up
        self._on_failure: Callable[[BaseException], object] | None = None
        self._open: deque[_Open] = deque()
        self._number = 0  # of the last announcement
        self._done = 0  # announcements that were READ
        self._closed = False
        self._reactor = reactor
        self._watched = -1
        self._left = False
        domain.on_lost[id(self)] = weakref.WeakMethod(self._lose)

    # -- sending -----------------------------------------------------------------------------------

    def place(
        self, frames: Sequence[OutFrame], hold: bool, released: Released | None, several: bool
    ) -> tuple[list[OutFrame], Released | None, int] | None:
        """Called with `order`. Raises RegistrationError, InternalError; Broken when the device is gone."""
        if self._closed or len(self._open) + len(frames) > MOST_OPEN:
            return None
        placed: list[OutFrame] = []
        owner: Countdown | None = None
        saved = 0
        try:
            for frame in frames:
                data, size, device = _payload(frame[4])
                if size < VERY_LARGE and not device:
                    placed.append(frame)
                    continue
                kept = hold or type(data) is bytes
                source = self._domain.sources.place(data, kept=kept)
                if source.copy is None and released is not None:
                    owner = owner or Countdown(released, 0)
                    owner.left += 1
                self._number += 1
                number = self._number & _NUMBERS
                self._open.append(
                    _Open(
                        number,
                        source,
                        data if source.copy is None else None,
                        owner if source.copy is None else None,
                    )
                )
                announced = REFERENCE.pack(source.rkey, number, source.address, size)
                placed.append((frame[0] | BY_REFERENCE, frame[1], frame[2], frame[3], announced))
                saved += size - REFERENCE_SIZE
        except BaseException as error:
            self.withdraw(placed)
            if isinstance(error, RegistrationError) and error.errno == errno.EIO:
                raise Broken(f"the RDMA device {self._domain.device.name} is gone") from error
            if isinstance(error, RegistrationError) and error.reason in _SCARCE and not _on_device(frames):
                self._refuse(error)
                return None
            raise
        if not saved:
            return None
        if owner is not None:
            owner.left += 1  # for the frames that the ring carries
            released = owner.ended
        return placed, released, saved

    def _refuse(self, error: RegistrationError) -> None:
        """The ring carries the payload itself: slower, and it needs no registration."""
        self.refused[error.reason] += 1
        if self.refused[error.reason] == 1:
            logger.warning("large payloads are copied through the ring of an rdma connection: %s", error)

    def withdraw(self, placed: list[OutFrame]) -> None:
        """The last ones, with `order` since they were placed: they were not queued, and nothing was
        announced."""
        for frame in placed:
            if frame[0] & BY_REFERENCE:
                self._number -= 1
                self._open.pop().source.release()

    def take_back(self, frames: list[OutFrame]) -> list[OutFrame]:
        """Frames that were never sent, with their payloads again, in memory of their own."""
        back: list[OutFrame] = []
        for frame in frames:
            if frame[0] & BY_REFERENCE:
                number = REFERENCE.unpack(frame[4])[1]
                one = next((one for one in self._open if one.number == number), None)
                if one is None:
                    raise ProtocolError("rendezvous", "the peer READ a payload that was never announced")
                self._open.remove(one)
                memory = one.data if one.source.copy is None else one.source.copy
                data = memory if type(memory) is bytes else bytes(memory)
                one.end(Broken("the connection ended before this message was sent"))
                frame = (frame[0] & ~BY_REFERENCE, frame[1], frame[2], frame[3], data)
            back.append(frame)
        return back

    def fetched(self, total: int) -> None:
        """The peer has READ this many payloads, in order: their memory is free again. Any thread."""
        with self.order:
            # Two threads may bring their totals in any order.
            ended = [self._open.popleft() for _ in range(min(total - self._done, len(self._open)))]
            self._done = max(self._done, total)
        failure: BaseException | None = None
        for one in ended:
            try:
                one.end(None)
            except BaseException as error:  # noqa: BLE001 - raised below; Ctrl-C in a callback stops no other
                failure = failure or error
        if failure is not None:
            raise failure

    def await_reads(self, stream: Any) -> None:
        """The stream has sent an announcement."""
        if self._reactor is None or self._watched >= 0:
            return
        with self.order:
            found = -1 if self._left or self._watched >= 0 else stream.room_fileno()
            if found >= 0:
                self._watched = found
                with suppress(Closed, OSError):
                    notice = partial(self._notice, weakref.ref(stream))
                    self._reactor.register(self._watched, READABLE, notice)

    def _notice(self, stream: weakref.ref[Any], _events: int) -> None:
        """In the reactor. Watches until the first news after the last payload: to begin costs more."""
        found = stream()
        goes_on = found is not None and found.notice()
        with self.order:  # else a payload that is placed meanwhile would find it watched
            if not (goes_on and self._open):
                self.leave()

    def leave(self, *, for_good: bool = False) -> None:
        """for_good: the stream's descriptors are closed next. Idempotent."""
        with self.order:
            self._left = self._left or for_good
            watched, self._watched = self._watched, -1
            if watched >= 0 and self._reactor is not None:
                self._reactor.unregister(watched)

    # -- receiving ---------------------------------------------------------------------------------

    def room(self, size: int, gpu: int | None, pool: Any) -> tuple[Any, int, int]:
        """Registered memory for a payload: (the region, its address in work requests, its lkey). gpu: the
        number of the one where it is wanted; pool: the core's. Raises RegistrationError, InternalError,
        Closed."""
        if gpu is not None:
            made, self.gpu_received = self._domain.received_on_gpu.room(gpu, size, pool)
            if made is not None:
                return made[0], *_for_device(made[1])
        received = self._domain.received
        block = received.take(size)
        return Region(block.view, received.returning(block)), *_for_device(block)

    def arrived(self, payload: Any) -> None:
        """The last byte of a payload on a GPU was written. Raises Broken."""
        self._domain.received_on_gpu.arrived(payload)

    # -- the end -----------------------------------------------------------------------------------

    def failure(self, status: int, answered: bool) -> Broken:
        """The error after a completion of this status. answered: the peer's device ever did."""
        if status == NO_ANSWER and not answered:
            # The TCP connection lives, or its end would have been seen long before.
            hint = "are both in one network? MC_RDMA_DEVICES and MC_GID_INDEX choose others"
            text = "the device of the peer did not answer"
            self._give_up(GivenUp(time.monotonic(), "unreachable", text, hint))
        return completion_failed(status, "the peer", "exchanging bytes with")

    def give_up(self, error: RegistrationError) -> None:
        """Memory for a payload cannot be registered: the next connection goes by TCP."""
        text = str(error).split("\n", 1)[0]
        self._give_up(GivenUp(time.monotonic(), error.reason, text, error.hint))

    def watch(self, on_failure: Callable[[BaseException], object]) -> None:
        """on_failure: called when the device is gone."""
        self._on_failure = on_failure
        if self._domain.lost is not None:
            on_failure(self._domain.lost)

    def _lose(self, error: TransferError) -> None:
        if self._on_failure is not None:
            self._on_failure(error)

    def close(self) -> None:
        """The queue pair works no more: no peer READs what is announced. Idempotent."""
        self._domain.on_lost.pop(id(self), None)
        self._on_failure = None
        with self.order:
            self._closed = True
            left, self._open = list(self._open), deque()
        for one in left:
            one.end(Broken("this end closed the stream"))


def _for_device(block: MemoryBlock) -> tuple[int, int]:
    """(address in work requests, lkey): a dma-buf has its own addresses."""
    region = block.slab.region
    return region.address + block.offset, region.lkey


def _on_device(frames: Sequence[OutFrame]) -> bool:
    return any(RegisteredDeviceMemory.of(frame[4]) is not None for frame in frames)


def _payload(data: Any) -> tuple[Any, int, bool]:
    """(the payload, its bytes, whether it is a device's memory)."""
    memory = RegisteredDeviceMemory.of(data)
    if memory is not None:
        return memory, memory.nbytes, True
    return data, len(data) if type(data) is bytes else memoryview(data).nbytes, False
