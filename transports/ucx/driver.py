"""The seam to UCX: all that is asked of it, in a dozen calls, so that more than one binding can answer.

    ucxx_driver     ucxx (`ucxx-cu12`, `ucxx-cu13`); taken where it is installed
    libucp_driver   UCX's own library by its C interface; where ucx-py is installed, or the wheel
                    `libucx-cu12` alone. ucx-py's own calls would not do: its probe does not tell how
                    long a message is, so what a peer announced could not be checked before it is
                    received, and its close waits for a dead peer without end.

TRANSFER_UCX_DRIVER names one of them. Both make the same messages: a peer does not notice.

The library is loaded by the first `fabric()`, once for the process. Only `fabric` is thread-safe:
whoever owns a worker calls it and its endpoints under one lock.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from transfer.transports.config import ucx_driver, ucx_options
from transfer.transports.errors import ForkedError, NotSupported, TransferError
from transfer.transports.forking import undivided
from transfer.transports.ucx.failures import translated
from transfer.transports.ucx.installed import PACKAGES, bindings

#: payloads from here on travel by rendezvous: they stay where they are until the receiver has memory
RENDEZVOUS = 64 * 1024
#: what we tell our context, unless the user's environment says something else
#: (over TCP its segments of 8 KiB cost a system call each: twice the processor time of large payloads)
_OPTIONS = {"RNDV_THRESH": str(RENDEZVOUS), "TCP_TX_SEG_SIZE": "64K", "TCP_RX_SEG_SIZE": "64K"}
MASK_ALL = (1 << 64) - 1
#: messages and pieces of progress that one `sweep` throws away at most
_SWEEPS = 10_000


class Request(Protocol):
    """An operation under way. Whoever keeps it keeps the memory it works on, until `completed`."""

    @property
    def completed(self) -> bool: ...

    def check_error(self) -> None:
        """Raises what made a completed request fail; see `failure`."""


class Found(Protocol):
    """A message that arrived and was not received yet. `length` is what will come, in bytes."""

    @property
    def length(self) -> int: ...


class Endpoint(ABC):
    """The way to one peer. Whoever made it closes it."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once UCX found the peer gone, which it may do late or never."""

    @abstractmethod
    def send(self, data: Any, tag: Any) -> Request:
        """Begins to send a flat buffer, or device memory. It must live until `completed`. Raises Broken."""

    @abstractmethod
    def take(self, found: Any, buffer: Any) -> Request:
        """Begins to receive what `Worker.find(remove=True)` found into writable memory of its length."""

    @abstractmethod
    def close(self) -> None:
        """Ends at once. What is under way fails, after some steps of the worker. Idempotent.

        Waits two seconds at most. The peer's requests may seem to have succeeded.
        """


class Worker(ABC):
    """A progress engine with an address of its own. `fd` becomes readable when `step` has work.

    step: one piece of progress; true if there was any.
    """

    fd: int
    address: bytes
    step: Callable[[], Any]

    @abstractmethod
    def arm(self) -> bool:
        """When `step` had nothing: True: `fd` will tell of the next thing; False: it is there already."""

    @abstractmethod
    def tag(self, number: int) -> Any:
        """A tag of 64 bits as the other calls take it."""

    @abstractmethod
    def mask(self, bits: int) -> Any:
        """A mask for `find`: the bits of a tag that must be equal."""

    @abstractmethod
    def find(self, tag: Any, *, mask: Any = None, remove: bool = False) -> Any:
        """The oldest message of this tag that arrived, a `Found`, or None.

        With `remove` nobody finds it again, and it must go to `Endpoint.take` or `discard`.
        """

    @abstractmethod
    def discard(self, found: Any) -> None:
        """Throws away a message that was removed; its sender believes that it arrived."""

    @abstractmethod
    def connect(self, address: bytes) -> Endpoint:
        """The way to the worker of this address. Returns before the peer answered. Raises Broken.

        UCX believes what an address says: one that was made to harm can end this process.
        """

    def sweep(self) -> None:
        """Throws away whatever arrived and nobody will receive."""
        anything, any_tag = self.mask(0), self.tag(0)
        for _ in range(_SWEEPS):
            found = self.find(any_tag, mask=anything, remove=True)
            if found is not None:
                self.discard(found)
            elif not self.step():
                return


class Library(ABC):
    """UCX as one driver has begun it. has_cuda: it takes pointers to GPU memory."""

    driver: str
    version: str
    has_cuda: bool

    @abstractmethod
    def worker(self) -> Worker:
        """A new one. Raises Broken, InternalError."""


def failure(request: Request) -> TransferError | None:
    """Why a completed request failed; None if it did not. A cancelled one did."""
    try:
        request.check_error()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the stream's owner
        found = translated(error, "transfer")
        found.__cause__ = error
        return found
    return None


# --- the process's UCX --------------------------------------------------------------------------


class Fabric:
    """UCX in this process: one context, which workers share. Made by `fabric()`. Thread-safe.

    Workers are lent and never destroyed: ucxx keeps a worker, with its descriptors, for ever once a
    request of it was cancelled, and destroying one waits without end for a message that a dead peer
    announced. So there are as many as were in use at once.
    """

    def __init__(self, library: Library) -> None:
        self.process = os.getpid()
        self.driver, self.version, self.has_cuda = library.driver, library.version, library.has_cuda
        self._library = library
        self._idle: deque[Worker] = deque()

    def worker(self) -> Worker:
        """A worker of the caller's until `give_back`. Raises ForkedError, InternalError."""
        self.check()
        try:
            return self._idle.popleft()
        except IndexError:
            return self._library.worker()

    def give_back(self, worker: Worker) -> None:
        """Its endpoints are closed and its requests are over. What arrived is thrown away."""
        worker.sweep()
        self._idle.append(worker)

    def check(self) -> None:
        """Raises ForkedError in a child of the process that began it."""
        if os.getpid() != self.process:
            raise forked()


_lock = threading.Lock()
_fabric: Fabric | None = None


def fabric() -> Fabric:
    """The process's UCX; the first call loads it, which takes up to a second. Thread-safe.

    Raises NotSupported (it is missing or cannot be loaded), ForkedError, InternalError, Broken,
    OptionError (TRANSFER_UCX_DRIVER).
    """
    global _fabric
    if _fabric is None:
        with undivided(), _lock:
            if _fabric is None:
                _fabric = Fabric(_load())
    _fabric.check()
    return _fabric


def loaded() -> Fabric | None:
    """The process's UCX if somebody began it; nothing is loaded."""
    return _fabric


def forked() -> ForkedError:
    """What use in a child of fork is answered with."""
    return ForkedError(
        "UCX was begun before fork", hint="start processes by spawn or forkserver, or fork before UCX is used"
    )


def _load() -> Library:
    """By the driver that was wished for, or the first that can be had. Raises NotSupported."""
    wished = ucx_driver()
    options = ucx_options(_OPTIONS)
    reasons = []
    for name in bindings(wished):
        try:
            return _begin(name, options)
        except NotSupported as error:
            reasons.append(str(error).partition("\n")[0])
    reason = "; ".join(reasons) or f"{'UCX' if wished == 'auto' else wished} is not installed"
    raise NotSupported(reason, hint=f"pip install {PACKAGES[0]} (or {PACKAGES[1]})")


def _begin(name: str, options: dict[str, str]) -> Library:
    # Only the one that is used is imported.
    if name == "ucxx":
        from transfer.transports.ucx.ucxx_driver import UcxxLibrary

        return UcxxLibrary(options)
    from transfer.transports.ucx.libucp_driver import LibucpLibrary

    return LibucpLibrary(options)
