"""The interface to UCX: a dozen calls, so that more than one binding can implement it.

`libucp_driver` implements it by UCX's C library; the tests compare it with one over ucxx. ucx-py's calls are
not enough: its probe does not return a message's length, which so could not be checked before the message is
received, and its close waits for a dead peer without end.

The first `fabric()` loads the library, once for the process. Only `fabric` is thread-safe: the owner of a
worker calls it and its endpoints under one lock.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from transfer.transports.config import ucx_driver, ucx_options
from transfer.transports.errors import ForkedError, NotSupported, TransferError, install_hint
from transfer.transports.forking import undivided
from transfer.transports.sizes import LARGE
from transfer.transports.ucx.failures import translated
from transfer.transports.ucx.installed import PACKAGES, available

#: options of our context, unless the user's environment sets others. Large payloads travel by rendezvous:
#: they stay at the sender until the receiver has memory
#: (over TCP each of UCX's 8 KiB segments costs a system call: twice the processor time of large payloads)
OPTIONS = {"RNDV_THRESH": str(LARGE), "TCP_TX_SEG_SIZE": "64K", "TCP_RX_SEG_SIZE": "64K"}
#: the same, where this UCX has them. Between a GPU and the host UCX would take 128 pieces of 4 MiB on the GPU
MAYBE = {"RNDV_FRAG_ALLOC_COUNT": "host:128,cuda:8"}
MASK_ALL = (1 << 64) - 1
#: the most messages and pieces of progress that one `sweep` drops
_SWEEPS = 10_000


class UcxRequest(Protocol):
    """A pending operation. Its owner keeps it, and the memory that it uses, until `completed`."""

    @property
    def completed(self) -> bool: ...

    def check_error(self) -> None:
        """Raises the error of a completed request that failed; see `failure`."""


class UcxInstallation(Protocol):
    """A message that arrived and was not received yet. `length`: in bytes."""

    @property
    def length(self) -> int: ...


class UcxEndpoint(ABC):
    """The connection to one peer. Its creator closes it."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once UCX has detected that the peer is gone, which may be late or never."""

    @abstractmethod
    def send(self, data: Any, tag: Any) -> UcxRequest:
        """Starts to send a flat buffer, or device memory. It must live until `completed`. Raises Broken."""

    @abstractmethod
    def take(self, found: Any, buffer: Any) -> UcxRequest:
        """Starts to receive a message from `Worker.find(remove=True)` into writable memory of its length."""

    @abstractmethod
    def close(self) -> None:
        """Ends at once. Pending requests fail, after some steps of the worker. Idempotent.

        Waits two seconds at most. The peer's requests may be reported as successful.
        """


class Worker(ABC):
    """A progress engine with an address. `fd` becomes readable when `step` has work.

    step: one piece of progress; true if there was any.
    """

    fd: int
    address: bytes
    step: Callable[[], Any]

    def use_gpu(self) -> None:
        """Calls from now on have the context of the GPU that this process uses, if it uses one: without a
        context UCX takes memory of another process's GPU for unreachable."""

    @abstractmethod
    def arm(self) -> bool:
        """After a `step` without work. True: `fd` reports the next event; False: there is one already."""

    @abstractmethod
    def tag(self, number: int) -> Any:
        """A tag of 64 bits for the other calls."""

    @abstractmethod
    def mask(self, bits: int) -> Any:
        """A mask for `find`: the bits of a tag that must match."""

    @abstractmethod
    def find(self, tag: Any, *, mask: Any = None, remove: bool = False) -> Any:
        """The oldest arrived message of this tag, a `UcxInstallation`, or None.

        With `remove` it is not found again, and must go to `UcxEndpoint.take` or `discard`.
        """

    @abstractmethod
    def discard(self, found: Any) -> None:
        """Drops a removed message; its sender counts it as delivered."""

    @abstractmethod
    def connect(self, address: bytes) -> UcxEndpoint:
        """Connects to the worker of this address. Returns before the peer answers. Raises Broken.

        UCX trusts an address: a malicious one can end this process.
        """

    def sweep(self) -> None:
        """Drops arrived messages that no stream will receive."""
        anything, any_tag = self.mask(0), self.tag(0)
        for _ in range(_SWEEPS):
            found = self.find(any_tag, mask=anything, remove=True)
            if found is not None:
                self.discard(found)
            elif not self.step():
                return


class DriverLibrary(ABC):
    """UCX as loaded by one driver. has_cuda: it accepts pointers to GPU memory."""

    driver: str
    version: str
    has_cuda: bool

    @abstractmethod
    def worker(self) -> Worker:
        """A new worker. Raises Broken, InternalError."""


def failure(request: UcxRequest) -> TransferError | None:
    """The error of a completed request; None if it succeeded. A cancelled one failed."""
    try:
        request.check_error()
    except Exception as error:  # noqa: BLE001 - every error is reported to the stream's owner
        found = translated(error, "transfer")
        found.__cause__ = error
        return found
    return None


# --- the process's UCX --------------------------------------------------------------------------


class Fabric:
    """UCX in this process: one context, which workers share. Made by `fabric()`. Thread-safe.

    Workers are lent and never destroyed: destroying one waits without end for a message that a dead peer
    announced. So there are as many as were in use at the same time.
    """

    def __init__(self, library: DriverLibrary) -> None:
        self.process = os.getpid()
        self.driver, self.version, self.has_cuda = library.driver, library.version, library.has_cuda
        self._library = library
        self._idle: deque[Worker] = deque()

    def worker(self) -> Worker:
        """A worker for the caller until `give_back`. Raises ForkedError, InternalError."""
        self.check()
        try:
            worker = self._idle.popleft()
        except IndexError:
            worker = self._library.worker()
        if self.has_cuda:
            worker.use_gpu()
        return worker

    def give_back(self, worker: Worker) -> None:
        """Its endpoints are closed and its requests complete. Arrived messages are dropped."""
        worker.sweep()
        self._idle.append(worker)

    def check(self) -> None:
        """Raises ForkedError in a child of the process that loaded it."""
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
    """The process's UCX if it is loaded; loads nothing."""
    return _fabric


def forked() -> ForkedError:
    """The error for a use in a child of fork."""
    return ForkedError(
        "UCX was started before fork",
        hint="start processes by spawn or forkserver, or fork before UCX is used",
    )


def _load() -> DriverLibrary:
    """Loads UCX. Raises NotSupported."""
    if not available(ucx_driver()):
        hint = f"{install_hint('ucx')} (or pip install {PACKAGES[1]})"
        raise NotSupported("UCX is not installed", hint=hint)
    from transfer.transports.ucx.libucp_driver import LibucpLibrary  # imported when UCX is used

    return LibucpLibrary(ucx_options(OPTIONS), ucx_options(MAYBE))
