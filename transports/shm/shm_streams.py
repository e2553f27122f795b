"""All shared memory streams of one context, which end with it; calls those that need attention."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from transfer.transports.descriptors import descriptor_error
from transfer.transports.errors import TransferError
from transfer.transports.reactor import Reactor
from transfer.transports.shm.control_channel import AGAIN, Bell, SpareDescriptor
from transfer.transports.shm.segments import Budget

if TYPE_CHECKING:
    from transfer.transports.handshake.upgrade import Surroundings


#: seconds after which unused shared memory returns to the system
REST = 30.0


class Carrier(Protocol):
    """The methods of a carrier that are used here."""

    @property
    def nbytes(self) -> int: ...
    def go_on(self) -> None: ...
    def rest(self) -> None: ...
    def end(self) -> None: ...
    def want_gpu(self, uuid: bytes, index: int) -> None: ...


class ShmStreams:
    """Thread-safe."""

    NAME = "local.carriers"  # in Surroundings.shared

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self.budget = Budget()
        self.spare = SpareDescriptor()
        self._living: set[Carrier] = set()
        self._resting = False
        self._asking: deque[Carrier] = deque()
        self._hurry = False
        self._bell = Bell(reactor, self._rung)

    @classmethod
    def of(cls, around: Surroundings) -> ShmStreams:
        """The object of a context, made for its first connection. Raises InternalError."""
        found = around.shared.get(cls.NAME)
        if found is None:
            try:
                found = around.shared[cls.NAME] = cls(around.reactor)
            except OSError as error:
                raise descriptor_error(error, "no shared memory for peers") from error
        assert isinstance(found, cls)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all segments for sending of the context."""
        return sum(carrier.nbytes for carrier in list(self._living))

    def add(self, carrier: Carrier) -> None:
        self._living.add(carrier)
        self._rest_later()

    def remove(self, carrier: Carrier) -> None:
        self._living.discard(carrier)

    def attend(self, carrier: Carrier, hurry: bool = False) -> None:
        """Has `carrier.go_on` called a little later, or at once; may be called in any statement of any
        thread."""
        self._hurry = self._hurry or hurry
        self._asking.append(carrier)
        self._bell.ring()

    def attending(self, carrier: Carrier) -> Callable[..., None]:
        """`attend` as a callback that does not keep the carrier."""
        itself = weakref.ref(carrier)

        def attend(hurry: bool = False) -> None:
            found = itself()
            if found is not None:
                self.attend(found, hurry)

        return attend

    def _rest_later(self) -> None:
        if self._living and not self._resting:
            self._resting = True
            try:
                self._reactor.call_later(REST, self._rest)
            except TransferError:  # the context ends, and its carriers
                return

    def _rest(self) -> None:
        self._resting = False
        for carrier in list(self._living):
            carrier.rest()
        self._rest_later()

    def close(self) -> None:
        """Ends the remaining carriers. Idempotent."""
        self._bell.close()
        self.spare.close()
        for carrier in list(self._living):
            carrier.end()

    def want_gpu(self, uuid: bytes, index: int) -> None:
        """The program takes payloads on a GPU."""
        for carrier in list(self._living):
            carrier.want_gpu(uuid, index)

    def _rung(self) -> None:
        hurry, self._hurry = self._hurry, False
        if hurry:
            self._go_on()
            return
        try:
            self._reactor.call_later(AGAIN, self._go_on)
        except TransferError:  # the context ends, and its carriers
            return

    def _go_on(self) -> None:
        asking = {self._asking.popleft() for _ in range(len(self._asking))}
        for carrier in asking:
            carrier.go_on()
