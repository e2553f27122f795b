"""The seam to UCX: all that is asked of ucxx, in a dozen calls. Nothing else imports it.

The library is loaded by the first `fabric()`, once for the process. Only `fabric` is thread-safe:
whoever owns a worker calls it and its endpoints under one lock.

Accepted: ucxx (`ucxx-cu12`, `ucxx-cu13`). Not ucx-py: its probe does not tell how
long a message is, so that what a peer announced could not be checked before it is received. Its
active messages would tell an allocator; that has not been written.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from transports.config import ucx_option_is_set, ucx_variables_kept
from transports.errors import Broken, ForkedError, InternalError, NotSupported, TransferError

#: payloads from here on travel by rendezvous: they stay where they are until the receiver has memory
RENDEZVOUS = 64 * 1024
#: what we tell our context, unless the user's environment says something else
#: (over TCP its segments of 8 KiB cost a system call each: twice the processor time of large payloads)
_OPTIONS = {"RNDV_THRESH": str(RENDEZVOUS), "TCP_TX_SEG_SIZE": "64K", "TCP_RX_SEG_SIZE": "64K"}
#: nanoseconds that closing an endpoint may take, twice at most
_PATIENCE_NS = 1_000_000_000
MASK_ALL = (1 << 64) - 1
#: messages and pieces of progress that one `sweep` throws away at most
_SWEEPS = 10_000


class Request(Protocol):
    """An operation under way. Whoever keeps it keeps the memory it works on, until `completed`."""

    @property
    def completed(self) -> bool: ...


class Found(Protocol):
    """A message that arrived and was not received yet. `length` is what will come, in bytes."""

    @property
    def length(self) -> int: ...


class Library:
    """The names of ucxx that are used here."""

    def __init__(self, module: Any, array: Any) -> None:
        self.array = array
        self.context, self.worker, self.address = module.UCXContext, module.UCXWorker, module.UCXAddress
        self.tag, self.mask = module.UCXXTag, module.UCXXTagMask
        self.features = (module.Feature.TAG, module.Feature.WAKEUP)
        self.version: str = ".".join(str(part) for part in module.get_ucx_version())
        #: what its calls raise; beside its own errors those of its C++ and of the buffer protocol
        self.errors = (module.UCXError, RuntimeError, ValueError, TypeError, MemoryError, BufferError)
        if not hasattr(module.UCXEndpoint, "tag_recv_with_handle"):
            raise AttributeError("this ucxx is too old")


class Endpoint:
    """The way to one peer. `close` it; dropping it does the same without a report."""

    def __init__(self, library: Library, native: Any) -> None:
        self._library = library
        self._native: Any = native
        _keep(native)

    @property
    def alive(self) -> bool:
        """False once UCX found the peer gone, which it may do late or never."""
        return self._native is not None and bool(self._native.alive)

    def send(self, data: Any, tag: Any) -> Request:
        """Begins to send a flat buffer, or device memory. It must live until `completed`. Raises Broken."""
        if self._native is None:
            raise Broken("this end closed the endpoint")
        try:
            request: Request = self._native.tag_send(self._library.array(data), tag)
        except self._library.errors as error:
            raise translated(error, "send") from error
        return request

    def take(self, found: Found, buffer: Any) -> Request:
        """Begins to receive what `Worker.find(remove=True)` found into writable memory of its length."""
        if self._native is None:
            raise Broken("this end closed the endpoint")
        try:
            request: Request = self._native.tag_recv_with_handle(self._library.array(buffer), found)
        except self._library.errors as error:
            raise translated(error, "receive") from error
        return request

    def close(self) -> None:
        """Ends at once. What is under way fails, after some steps of the worker. Idempotent.

        Waits two seconds at most. The peer's requests may seem to have succeeded.
        """
        native, self._native = self._native, None
        if native is None:
            return
        try:
            native.close_blocking(period=_PATIENCE_NS, max_attempts=1)
        except self._library.errors as error:
            raise translated(error, "close an endpoint") from error
        finally:
            _drop(native)


class Worker:
    """A progress engine with an address of its own. `fd` becomes readable when `step` has work.

    step: one piece of progress; True if there was any.
    """

    def __init__(self, library: Library, context: Any) -> None:
        self._library = library
        try:
            self._native: Any = library.worker(context)
            self._native.init_blocking_progress_mode()
            self.fd = int(self._native.epoll_file_descriptor)
            self.address: bytes = self._native.address.tobytes()
        except library.errors as error:
            raise translated(error, "make a worker") from error
        _keep(self._native)
        self.step: Callable[[], bool] = self._native.progress_once
        self._probe = self._native.tag_probe
        self._all = library.mask(MASK_ALL)

    def arm(self) -> bool:
        """When `step` had nothing: True: `fd` will tell of the next thing; False: it is there already."""
        try:
            return bool(self._native.arm())
        except self._library.errors as error:
            raise translated(error, "arm") from error

    def tag(self, number: int) -> Any:
        """A tag of 64 bits as the other calls take it."""
        return self._library.tag(number)

    def mask(self, bits: int) -> Any:
        """A mask for `find`: the bits of a tag that must be equal."""
        return self._library.mask(bits)

    def find(self, tag: Any, *, mask: Any = None, remove: bool = False) -> Any:
        """The oldest message of this tag that arrived, a `Found`, or None.

        With `remove` nobody finds it again, and it must go to `Endpoint.take` or `discard`.
        """
        found = self._probe(tag, self._all if mask is None else mask, remove)
        return found if found.matched else None

    def discard(self, found: Found) -> None:
        """Throws away a message that was removed; its sender believes that it arrived."""
        try:
            # Into no memory at all: it is truncated, which is what we want.
            self._native.tag_recv_with_handle(self._library.array(bytearray()), found)
            self.step()
        except self._library.errors as error:
            raise translated(error, "discard a message") from error

    def connect(self, address: bytes) -> Endpoint:
        """The way to the worker of this address. Returns before the peer answered. Raises Broken.

        UCX believes what an address says: one that was made to harm can end this process.
        """
        try:
            parsed = self._library.address.create_from_buffer(bytearray(address))
            # With error handling a dead peer ends in an error; without, UCX ends our process.
            native = self._native.create_endpoint_from_worker_address(parsed, True)
        except self._library.errors as error:
            raise translated(error, "connect") from error
        return Endpoint(self._library, native)

    def sweep(self) -> None:
        """Throws away whatever arrived and nobody will receive."""
        anything, any_tag = self.mask(0), self.tag(0)
        for _ in range(_SWEEPS):
            found = self.find(any_tag, mask=anything, remove=True)
            if found is not None:
                self.discard(found)
            elif not self.step():
                return


def failure(request: Any) -> TransferError | None:
    """Why a completed request failed; None if it did not. A cancelled one did."""
    try:
        request.check_error()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the stream's owner
        found = translated(error, "transfer")
        found.__cause__ = error
        return found
    return None


def translated(error: BaseException, what: str) -> TransferError:
    """UCX's error in our words; the caller chains it."""
    name = type(error).__name__
    text = f"UCX cannot {what}: {error or name}"
    if "Cancel" in name:
        return Broken(f"UCX cancelled it: cannot {what}")
    if name in ("UCXUnreachableError", "UCXInvalidAddrError", "UCXNoDeviceError"):
        return Broken(text, hint="do both sides have a UCX transport in common (UCX_TLS, UCX_NET_DEVICES)?")
    if name in ("UCXNoMemoryError", "UCXNoResourceError", "UCXExceedsLimitError", "MemoryError"):
        return InternalError(text, hint="is the limit of locked memory (ulimit -l) high enough?")
    return Broken(text) if name.startswith("UCX") else InternalError(text)


# --- the process's UCX --------------------------------------------------------------------------


class Fabric:
    """UCX in this process: one context, which workers share. Made by `fabric()`. Thread-safe.

    Workers are lent and never destroyed: ucxx keeps a worker, with its descriptors, for ever once a
    request of it was cancelled, and destroying one waits without end for a message that a dead peer
    announced. So there are as many as were in use at once.
    """

    def __init__(self, library: Library) -> None:
        self.process = os.getpid()
        self.version = library.version
        self._library = library
        options = {name: value for name, value in _OPTIONS.items() if not ucx_option_is_set(name)}
        try:
            self._context = library.context(options, library.features)
        except library.errors as error:
            raise translated(error, "begin") from error
        _keep(self._context)
        self.has_cuda = bool(self._context.cuda_support)
        self._idle: deque[Worker] = deque()

    def worker(self) -> Worker:
        """A worker of the caller's until `give_back`. Raises ForkedError, InternalError."""
        self.check()
        try:
            return self._idle.popleft()
        except IndexError:
            return Worker(self._library, self._context)

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

    Raises NotSupported (ucxx is missing or cannot be loaded), ForkedError, InternalError, Broken.
    """
    global _fabric
    if _fabric is None:
        with _lock:
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
    try:
        with ucx_variables_kept():
            module = importlib.import_module("ucxx._lib.libucxx")
            array = importlib.import_module("ucxx._lib.arr").Array
        return Library(module, array)
    except (ImportError, OSError, AttributeError) as error:
        raise NotSupported(f"ucxx cannot be loaded: {error}", hint="pip install ucxx-cu12") from error


# --- fork -----------------------------------------------------------------------------------------

#: native objects by id. A forked child has them too, and its collector must never destroy them: they
#: would say goodbye to the parent's peers.
_living: dict[int, Any] = {}
_hooked = False


def _keep(native: Any) -> None:
    global _hooked
    _living[id(native)] = native
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_abandon)
        atexit.register(_abandon)  # the process's end frees all; destructors might wait for peers


def _drop(native: Any) -> None:
    if _fabric is not None and _fabric.process == os.getpid():
        _living.pop(id(native), None)


def _abandon() -> None:
    """One reference more, which nobody gives back, for each native object: it is never destroyed."""
    for native in _living.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))
