"""UCX through its own library: contexts, workers and endpoints of its C interface."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any

from transfer.transports import cuda
from transfer.transports.core import address_of
from transfer.transports.errors import Broken
from transfer.transports.gpu import is_device_memory, is_payload
from transfer.transports.ucx import libucp
from transfer.transports.ucx.driver import MASK_ALL, DriverLibrary, UcxEndpoint, UcxRequest, Worker
from transfer.transports.ucx.failures import StatusError, translated
from transfer.transports.ucx.libucp import Functions

#: seconds that closing an endpoint may take, and between two checks without progress
_PATIENCE, _PAUSE = 2.0, 0.0005
# Memory of the host is said to be that, or UCX would look up each buffer. It looks up that of GPUs.
_PLAIN = libucp.UcpRequestParams(op_attr_mask=libucp.OP_MEMORY_TYPE, memory_type=libucp.TYPE_HOST)
_PLAIN_AT = ctypes.addressof(_PLAIN)
_ON_GPU = libucp.UcpRequestParams()
_ON_GPU_AT = ctypes.addressof(_ON_GPU)
_FORCE = libucp.UcpRequestParams(op_attr_mask=libucp.OP_FLAGS, flags=libucp.CLOSE_FORCE)


class _Operation:
    """A request of UCX, which is freed when it is complete."""

    __slots__ = ("_functions", "_pointer", "_status")

    def __init__(self, functions: Functions, pointer: int) -> None:
        self._functions = functions
        self._pointer = pointer
        self._status = libucp.OK

    @property
    def completed(self) -> bool:
        pointer = self._pointer
        if pointer:
            status: int = self._functions.request_check_status(pointer)
            if status == libucp.IN_PROGRESS:
                return False
            self._status, self._pointer = status, 0
            self._functions.request_free(pointer)
        return True

    def check_error(self) -> None:
        if self.completed:
            self._functions.check(self._status)


class _Message:
    """A removed message: UCX's handle, and its length in bytes."""

    __slots__ = ("handle", "length")

    def __init__(self, handle: int, length: int) -> None:
        self.handle = handle
        self.length = length


class LibucpLibrary(DriverLibrary):
    """Starts UCX. Raises NotSupported (there is no UCX, or an old one), Broken, InternalError."""

    driver = "libucp"

    def __init__(self, options: dict[str, str], maybe: dict[str, str] | None = None) -> None:
        self._functions = functions = libucp.load()
        self.version = functions.version
        try:
            self._context = _context(functions, options, maybe or {})
            wanted = libucp.ContextAttributes(field_mask=libucp.CONTEXT_ATTR_MEMORY_TYPES)
            functions.check(functions.context_query(self._context, byref(wanted)))
        except StatusError as error:
            raise translated(error, "begin") from error
        self.has_cuda = bool(wanted.memory_types & libucp.MEMORY_CUDA)

    def worker(self) -> Worker:
        try:
            return LibucpWorker(self._functions, self._context, has_cuda=self.has_cuda)
        except StatusError as error:
            raise translated(error, "make a worker") from error


def _context(functions: Functions, options: dict[str, str], maybe: dict[str, str]) -> ctypes.c_void_p:
    context, config = ctypes.c_void_p(), ctypes.c_void_p()
    functions.check(functions.config_read(None, None, byref(config)))
    try:
        for name, value in options.items():
            functions.check(functions.config_modify(config, name.encode(), value.encode()))
        for name, value in maybe.items():
            functions.config_modify(config, name.encode(), value.encode())
        params = libucp.ContextParams(
            field_mask=libucp.PARAM_FEATURES | libucp.PARAM_SHARED,
            features=libucp.FEATURE_TAG | libucp.FEATURE_WAKEUP,
            mt_workers_shared=1,
        )
        functions.check(functions.init_version(*functions.interface, byref(params), config, byref(context)))
    finally:
        functions.config_release(config)
    return context


class LibucpWorker(Worker):
    #: the context of a GPU that UCX's calls have
    _gpu: Any = None

    def __init__(self, functions: Functions, context: ctypes.c_void_p, *, has_cuda: bool = False) -> None:
        self._functions = functions
        if has_cuda:
            self.use_gpu()
        handle, fd = ctypes.c_void_p(), ctypes.c_int(-1)
        params = libucp.WorkerParams(
            field_mask=libucp.WORKER_THREAD_MODE, thread_mode=libucp.THREADS_SERIALIZED
        )
        functions.check(self.call(functions.worker_create, context, byref(params), byref(handle)))
        functions.check(functions.worker_get_efd(handle, byref(fd)))
        self.handle = handle
        self.fd = fd.value
        self.address = self._own_address()
        self._progress = partial(functions.worker_progress, handle)
        self.step = self._progress if self._gpu is None else self._step_with_gpu
        self._probe = functions.tag_probe_nb
        self._info = libucp.TagInfo()
        self._info_at = ctypes.addressof(self._info)

    def use_gpu(self) -> None:
        driver = cuda.load()
        index = None if driver is None else driver.used()
        if driver is not None and index is not None:
            self._use(driver.context(index))

    def _use(self, context: Any) -> None:
        if self._gpu is None:
            self._gpu = context
            self.step = self._step_with_gpu

    def _step_with_gpu(self) -> Any:
        with self._gpu:
            return self._progress()

    def call(self, function: Callable[..., Any], *arguments: Any, memory: Any = None) -> Any:
        """Calls UCX with the context of a GPU: of the one that has this memory, or of `use_gpu`."""
        context = self._gpu if memory is None else self._context_of(memory)
        if context is None:
            return function(*arguments)
        with context:
            return function(*arguments)

    def _context_of(self, memory: Any) -> Any:
        if is_payload(memory):
            context = memory.context
        elif is_device_memory(memory) and (driver := cuda.load()) is not None:
            index = driver.number_of(int(memory.__cuda_array_interface__["data"][0]))
            context = None if index is None else driver.context(index)
        else:
            return self._gpu
        if context is not None:
            self._use(context)
        return context

    def _own_address(self) -> bytes:
        wanted = libucp.WorkerAttributes(field_mask=libucp.WORKER_ATTR_ADDRESS)
        self._functions.check(self._functions.worker_query(self.handle, byref(wanted)))
        try:
            return ctypes.string_at(wanted.address, wanted.address_length)
        finally:
            self._functions.worker_release_address(self.handle, wanted.address)

    def arm(self) -> bool:
        status = self.call(self._functions.worker_arm, self.handle)
        if status == libucp.BUSY:
            return False
        try:
            self._functions.check(status)
        except StatusError as error:
            raise translated(error, "arm") from error
        return True

    def tag(self, number: int) -> int:
        return number

    def mask(self, bits: int) -> int:
        return bits

    def find(self, tag: int, *, mask: int | None = None, remove: bool = False) -> _Message | None:
        found = self._probe(self.handle, tag, MASK_ALL if mask is None else mask, remove, self._info_at)
        return _Message(found, self._info.length) if found else None

    def discard(self, found: _Message) -> None:
        # Into no memory at all: it is truncated, which is the purpose.
        functions = self._functions
        try:
            arguments = (self.handle, None, 0, found.handle, _PLAIN_AT)
            pointer = functions.pointer(self.call(functions.tag_msg_recv_nbx, *arguments))
        except StatusError:
            return
        if pointer:
            functions.request_free(pointer)
        self.step()

    def connect(self, address: bytes) -> UcxEndpoint:
        try:
            return LibucpEndpoint(self._functions, self, address)
        except StatusError as error:
            raise translated(error, "connect") from error


class LibucpEndpoint(UcxEndpoint):
    def __init__(self, functions: Functions, worker: LibucpWorker, address: bytes) -> None:
        self._functions = functions
        self._worker = worker
        self._failed = False
        self._handle = ctypes.c_void_p()
        # With error handling a dead peer ends in an error; without, UCX ends our process.
        params = libucp.EndpointParams(
            field_mask=libucp.EP_ADDRESS | libucp.EP_ERROR_MODE | libucp.EP_ERROR_HANDLER,
            address=address,
            error_mode=libucp.ERRORS_OF_PEER,
            error_handler=_on_error,
        )
        functions.check(worker.call(functions.ep_create, worker.handle, byref(params), byref(self._handle)))
        _endpoints[self._handle.value or 0] = self

    @property
    def alive(self) -> bool:
        return bool(self._handle) and not self._failed

    def send(self, data: Any, tag: int) -> UcxRequest:
        self._check()
        functions = self._functions
        memory, nbytes, params = _memory(data)
        try:
            arguments = (self._handle, memory, nbytes, tag, params)
            on_gpu = None if params == _PLAIN_AT else data
            answer = self._worker.call(functions.tag_send_nbx, *arguments, memory=on_gpu)
            return _Operation(functions, functions.pointer(answer))
        except StatusError as error:
            raise translated(error, "send") from error

    def take(self, found: _Message, buffer: Any) -> UcxRequest:
        self._check()
        functions = self._functions
        memory, nbytes, params = _memory(buffer)
        try:
            arguments = (self._worker.handle, memory, nbytes, found.handle, params)
            on_gpu = None if params == _PLAIN_AT else buffer
            answer = self._worker.call(functions.tag_msg_recv_nbx, *arguments, memory=on_gpu)
            return _Operation(functions, functions.pointer(answer))
        except StatusError as error:
            raise translated(error, "receive") from error

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if not handle:
            return
        _endpoints.pop(handle.value or 0, None)
        functions = self._functions
        try:
            answer = self._worker.call(functions.ep_close_nbx, handle, byref(_FORCE))
            pointer = functions.pointer(answer)
        except StatusError as error:
            raise translated(error, "close an endpoint") from error
        if not pointer:
            return
        deadline = time.monotonic() + _PATIENCE
        while functions.request_check_status(pointer) == libucp.IN_PROGRESS and time.monotonic() < deadline:
            if not self._worker.step():
                time.sleep(_PAUSE)
        functions.request_free(pointer)  # UCX frees an incomplete one when it completes

    def _check(self) -> None:
        if not self._handle:
            raise Broken("this end closed the endpoint")


def _memory(data: Any) -> tuple[Any, int, int]:
    """Of a flat buffer or of device memory: its address for ctypes, its length, a request's parameters."""
    if type(data) is bytes:
        return data, len(data), _PLAIN_AT
    if is_payload(data):
        return data.pointer, data.nbytes, _ON_GPU_AT
    device = getattr(data, "__cuda_array_interface__", None)
    if device is not None:
        return int(device["data"][0]), int(data.nbytes), _ON_GPU_AT
    return address_of(data), memoryview(data).nbytes, _PLAIN_AT


#: by handle; UCX reports an endpoint's end while any worker makes progress
_endpoints: weakref.WeakValueDictionary[int, LibucpEndpoint] = weakref.WeakValueDictionary()


@libucp.ErrorHandler
def _on_error(_argument: Any, handle: Any, _status: int) -> None:
    endpoint = _endpoints.get(handle or 0)
    if endpoint is not None:
        endpoint._failed = True
