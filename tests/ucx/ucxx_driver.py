"""UCX through ucxx: the tests' oracle for the driver over UCX's C library.

The same tests pass on both, and peers of both exchange messages. TRANSFER_TEST_UCX=ucxx selects it.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from transfer.transports.config import ucx_options
from transfer.transports.errors import Broken, NotSupported
from transfer.transports.ucx import driver
from transfer.transports.ucx.driver import MASK_ALL, DriverLibrary, UcxEndpoint, UcxRequest, Worker
from transfer.transports.ucx.failures import translated

#: nanoseconds that closing an endpoint may take, twice at most
_PATIENCE_NS = 1_000_000_000


def there() -> bool:
    """Whether ucxx is installed."""
    return find_spec("ucxx") is not None


def use() -> None:
    """Lets this process use ucxx, if TRANSFER_TEST_UCX says so. Called before UCX is loaded."""
    if os.environ.get("TRANSFER_TEST_UCX") == "ucxx":
        driver._load = lambda: UcxxLibrary(ucx_options(driver.OPTIONS))


@contextmanager
def _variables_kept() -> Iterator[None]:
    """Restores the UCX_* variables at its end. ucxx sets them when it is imported, which would affect every
    other user of UCX in this process and its children."""
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("UCX_") and name not in before]:
            del os.environ[name]
        os.environ.update(before)


class _Names:
    """The names of ucxx that are used here."""

    def __init__(self, module: Any, array: Any) -> None:
        self.array = array
        self.context, self.worker, self.address = module.UCXContext, module.UCXWorker, module.UCXAddress
        self.tag, self.mask = module.UCXXTag, module.UCXXTagMask
        self.features = (module.Feature.TAG, module.Feature.WAKEUP)
        self.version: str = ".".join(str(part) for part in module.get_ucx_version())
        #: errors of its calls: its own, those of its C++, and those of the buffer protocol
        self.errors = (module.UCXError, RuntimeError, ValueError, TypeError, MemoryError, BufferError)
        if not hasattr(module.UCXEndpoint, "tag_recv_with_handle"):
            raise AttributeError("this ucxx is too old")


class UcxxLibrary(DriverLibrary):
    """Starts UCX. Raises NotSupported (ucxx cannot be loaded), Broken, InternalError."""

    driver = "ucxx"

    def __init__(self, options: dict[str, str]) -> None:
        self._names = names = _load()
        self.version = names.version
        try:
            self._context = names.context(options, names.features)
        except names.errors as error:
            raise translated(error, "begin") from error
        _keep(self._context)
        self.has_cuda = bool(self._context.cuda_support)

    def worker(self) -> Worker:
        return UcxxWorker(self._names, self._context)


def _load() -> _Names:
    try:
        with _variables_kept():
            module = importlib.import_module("ucxx._lib.libucxx")
            array = importlib.import_module("ucxx._lib.arr").Array
        return _Names(module, array)
    except (ImportError, OSError, AttributeError) as error:
        raise NotSupported(f"ucxx cannot be loaded: {error}") from error


class UcxxWorker(Worker):
    def __init__(self, names: _Names, context: Any) -> None:
        self._names = names
        try:
            self._native: Any = names.worker(context)
            self._native.init_blocking_progress_mode()
            self.fd = int(self._native.epoll_file_descriptor)
            self.address = self._native.address.tobytes()
        except names.errors as error:
            raise translated(error, "make a worker") from error
        _keep(self._native)
        self.step = self._native.progress_once
        self._probe = self._native.tag_probe
        self._all = names.mask(MASK_ALL)

    def arm(self) -> bool:
        try:
            return bool(self._native.arm())
        except self._names.errors as error:
            raise translated(error, "arm") from error

    def tag(self, number: int) -> Any:
        return self._names.tag(number)

    def mask(self, bits: int) -> Any:
        return self._names.mask(bits)

    def find(self, tag: Any, *, mask: Any = None, remove: bool = False) -> Any:
        found = self._probe(tag, self._all if mask is None else mask, remove)
        return found if found.matched else None

    def discard(self, found: Any) -> None:
        try:
            # Into no memory at all: it is truncated, which is the purpose.
            self._native.tag_recv_with_handle(self._names.array(bytearray()), found)
            self.step()
        except self._names.errors as error:
            raise translated(error, "discard a message") from error

    def connect(self, address: bytes) -> UcxEndpoint:
        try:
            parsed = self._names.address.create_from_buffer(bytearray(address))
            # With error handling a dead peer ends in an error; without, UCX ends our process.
            native = self._native.create_endpoint_from_worker_address(parsed, True)
        except self._names.errors as error:
            raise translated(error, "connect") from error
        return UcxxEndpoint(self._names, native)


class UcxxEndpoint(UcxEndpoint):
    def __init__(self, names: _Names, native: Any) -> None:
        self._names = names
        self._native: Any = native
        _keep(native)

    @property
    def alive(self) -> bool:
        return self._native is not None and bool(self._native.alive)

    def send(self, data: Any, tag: Any) -> UcxRequest:
        if self._native is None:
            raise Broken("this end closed the endpoint")
        try:
            request: UcxRequest = self._native.tag_send(self._names.array(data), tag)
        except self._names.errors as error:
            raise translated(error, "send") from error
        return request

    def take(self, found: Any, buffer: Any) -> UcxRequest:
        if self._native is None:
            raise Broken("this end closed the endpoint")
        try:
            request: UcxRequest = self._native.tag_recv_with_handle(self._names.array(buffer), found)
        except self._names.errors as error:
            raise translated(error, "receive") from error
        return request

    def close(self) -> None:
        native, self._native = self._native, None
        if native is None:
            return
        try:
            native.close_blocking(period=_PATIENCE_NS, max_attempts=1)
        except self._names.errors as error:
            raise translated(error, "close an endpoint") from error
        finally:
            _drop(native)


# --- fork -----------------------------------------------------------------------------------------

#: native objects by id. A forked child has them too, and its collector must never destroy them: that would
#: close the connections of the parent's peers.
_living: dict[int, Any] = {}
_process = 0  # the process that they belong to


def _keep(native: Any) -> None:
    global _process
    _living[id(native)] = native
    if not _process:
        _process = os.getpid()
        os.register_at_fork(after_in_child=_abandon)
        atexit.register(_abandon)  # the end of the process frees all; destructors might wait for peers


def _drop(native: Any) -> None:
    if _process == os.getpid():
        _living.pop(id(native), None)


def _abandon() -> None:
    """Adds one reference that is never released to each native object: it is never destroyed."""
    for native in _living.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))
