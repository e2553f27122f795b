# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Memory, copies, events and handles of a GPU, for any thread, in the GPU's primary context.

The primary context is the one that torch, CuPy and numba use: their pointers and streams are valid here. It
is made by the first GpuContext of a process if none of them has made it. A stream is its number: 0 or 1 the
legacy default one, 2 the one of each thread, else the address that a library tells. Calls that may wait
release the GIL. A forked child has no GPU: its calls raise, and nothing is freed there. Errors:
DeviceError("cuda").
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from transfer.transports.errors import DeviceError, RegistrationError

from transfer.transports.core.native.libcuda cimport (
    CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CU_STREAM_NON_BLOCKING, CUDA_ERROR_NOT_READY, HANDLE_SIZE, check,
    cuda, failed, ipc_handle_t, is_ours, load,
)

cdef enum:
    PORTABLE = 1                        # of cuMemHostRegister: pinned for every GPU
    PER_THREAD = 2                      # the number of the default stream of each thread


cdef class GpuContext:
    """The primary context of a GPU. It is kept until the process ends, as other libraries keep it."""

    def __init__(self, int index):
        cdef int code, handle = 0
        cdef void* context = NULL
        load()
        self.index = index
        check(cuda.cuDeviceGet(&handle, index), f"GPU {index}")
        with nogil:
            code = cuda.cuDevicePrimaryCtxRetain(&context, handle)
        check(code, f"the context of GPU {index}")
        self.context = context

    cdef int enter(self) except -1:
        """Makes it the thread's context, until `leave`."""
        load()
        return check(cuda.cuCtxPushCurrent_v2(self.context), f"the context of GPU {self.index}")

    def __enter__(self):
        """It is the thread's context until `__exit__`, for calls of other libraries. Each thread may enter it
        several times."""
        self.enter()
        return self

    def __exit__(self, *_):
        leave()

    def allocate(self, size_t nbytes):
        """The address of new memory, which other processes can map."""
        cdef int code
        cdef uint64_t pointer = 0
        self.enter()
        with nogil:
            code = cuda.cuMemAlloc_v2(&pointer, nbytes)
        leave()
        check(code, f"{nbytes} bytes of GPU {self.index}")
        return pointer

    def free(self, uint64_t pointer):
        """Waits until the GPU does not use it any more."""
        cdef int code
        self.enter()
        with nogil:
            code = cuda.cuMemFree_v2(pointer)
        leave()
        check(code, "freeing memory of a GPU")

    def pin(self, size_t address, size_t nbytes):
        """Pins memory of the host, which all GPUs copy from and to by themselves then."""
        cdef int code
        self.enter()
        with nogil:
            code = cuda.cuMemHostRegister_v2(<void*>address, nbytes, PORTABLE)
        leave()
        check(code, f"pinning {nbytes} bytes")

    def unpin(self, size_t address):
        """Of `pin`. Waits for the copies."""
        cdef int code
        self.enter()
        with nogil:
            code = cuda.cuMemHostUnregister(<void*>address)
        leave()
        check(code, "unpinning memory")

    def copy(self, uint64_t target, uint64_t source, size_t nbytes, size_t stream):
        """Starts a copy between memory of any kind, behind the work of this stream. With memory of the host
        that is not pinned it may wait."""
        cdef int code
        self.enter()
        with nogil:
            code = cuda.cuMemcpyAsync(target, source, nbytes, <void*> stream)
        leave()
        check(code, f"a copy of {nbytes} bytes")

    def synchronize(self, size_t stream):
        """Waits until the work of this stream is done."""
        cdef int code
        self.enter()
        with nogil:
            code = cuda.cuStreamSynchronize(<void*> stream)
        leave()
        check(code, "waiting for a stream")

    def export(self, uint64_t base):
        """The handle, 64 bytes, by which another process maps this allocation. base: its first address."""
        cdef ipc_handle_t handle
        self.enter()
        code = cuda.cuIpcGetMemHandle(&handle, base)
        leave()
        check(code, "a handle for another process")
        return handle.reserved[:HANDLE_SIZE]

    def map(self, bytes handle):
        """The address here of another process's allocation. The same one for a handle that is mapped already:
        it has to be unmapped as often."""
        cdef ipc_handle_t taken
        cdef uint64_t pointer = 0
        cdef int code
        take_handle(&taken, handle)
        self.enter()
        with nogil:
            code = cuda.cuIpcOpenMemHandle_v2(&pointer, taken, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        leave()
        check(code, "mapping memory of another process")
        return pointer

    def unmap(self, uint64_t pointer):
        """Waits for its use, as `free`."""
        cdef int code
        self.enter()
        with nogil:
            code = cuda.cuIpcCloseMemHandle(pointer)
        leave()
        check(code, "unmapping memory of another process")

    def export_dmabuf(self, uint64_t begin, size_t nbytes):
        """A descriptor of a dma-buf with this memory, whole pages of the host. The caller closes it. Raises
        RegistrationError("dmabuf")."""
        cdef int fd = -1
        cdef int code = 801
        self.enter()
        if cuda.cuMemGetHandleForAddressRange != NULL:
            with nogil:
                code = cuda.cuMemGetHandleForAddressRange(&fd, begin, nbytes,
                                                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)
        leave()
        if code:
            raise RegistrationError(
                "dmabuf", str(failed(code, f"no dma-buf of {nbytes} bytes at {begin:#x}")),
                hint="memory of cudaMalloc can be exported; load nvidia_peermem for the other way")
        return fd

    def flush_writes(self):
        """What network cards have written to this GPU's memory by now is seen by work that begins later."""
        cdef int code = 801
        self.enter()
        if cuda.cuFlushGPUDirectRDMAWrites != NULL:
            with nogil:
                code = cuda.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
        leave()
        check(code, "making a network card's writes visible")


cdef void leave() noexcept:
    cdef void* context
    cuda.cuCtxPopCurrent_v2(&context)


cdef int take_handle(ipc_handle_t* taken, bytes handle) except -1:
    if len(handle) != HANDLE_SIZE:
        raise DeviceError("cuda", f"a handle of {len(handle)} bytes, it has {HANDLE_SIZE}")
    memcpy(taken.reserved, <const char*> handle, HANDLE_SIZE)
    return 0


# This and GpuStream need their context at their end: the collector must not clear it before.
@cython.no_gc
cdef class GpuEvent:
    """A moment in the work of a GPU. It can be recorded again, after which it is the new moment for those who
    begin to wait then. shared: other processes can wait for it. handle: of another process's event."""

    def __init__(self, GpuContext owner, *, bint shared=False, bytes handle=None):
        cdef ipc_handle_t taken
        cdef unsigned int flags = CU_EVENT_DISABLE_TIMING | (CU_EVENT_INTERPROCESS if shared else 0)
        cdef int code
        self.owner = owner
        if handle is not None:
            take_handle(&taken, handle)
        owner.enter()
        if handle is None:
            code = cuda.cuEventCreate(&self.event, flags)
        else:
            code = cuda.cuIpcOpenEventHandle(&self.event, taken)
        leave()
        check(code, "an event")

    @property
    def handle(self):
        """64 bytes for another process."""
        cdef ipc_handle_t handle
        self.owner.enter()
        code = cuda.cuIpcGetEventHandle(&handle, self.event)
        leave()
        check(code, "the handle of an event")
        return handle.reserved[:HANDLE_SIZE]

    def record(self, size_t stream):
        """The moment when what this stream has by now is done."""
        self.owner.enter()
        code = cuda.cuEventRecord(self.event, <void*> stream)
        leave()
        check(code, "recording an event")

    def record_all(self):
        """The moment when what all streams of the GPU have by now is done. It waits for that where the driver
        is older than CUDA 12.5."""
        cdef int code
        self.owner.enter()
        if cuda.cuCtxRecordEvent != NULL:
            code = cuda.cuCtxRecordEvent(self.owner.context, self.event)
        else:
            with nogil:
                code = cuda.cuCtxSynchronize()
        leave()
        check(code, "recording an event of all streams")

    def wait_in(self, size_t stream, GpuContext where=None):
        """Work that the stream gets from now on waits for the moment. Does not wait itself. where: the
        context of the stream, if it is another GPU's."""
        (self.owner if where is None else where).enter()
        code = cuda.cuStreamWaitEvent(<void*> stream, self.event, 0)
        leave()
        check(code, "waiting for an event in a stream")

    @property
    def done(self):
        """Whether the moment has come; of an event that was never recorded it has."""
        self.owner.enter()
        code = cuda.cuEventQuery(self.event)
        leave()
        if code == CUDA_ERROR_NOT_READY:
            return False
        check(code, "asking for an event")
        return True

    def synchronize(self):
        """Waits for the moment."""
        cdef int code
        self.owner.enter()
        with nogil:
            code = cuda.cuEventSynchronize(self.event)
        leave()
        check(code, "waiting for an event")

    def __dealloc__(self):
        if self.event != NULL and is_ours():
            cuda.cuCtxPushCurrent_v2(self.owner.context)
            cuda.cuEventDestroy_v2(self.event)
            leave()


def event_after(kept, size_t stream, GpuContext context):
    """A new event, when the work that a stream has by now is done. kept: not used (see GpuPayload.use)."""
    cdef GpuEvent event = GpuEvent(context)
    if stream == PER_THREAD:  # maybe of another thread than this one
        event.record_all()
    else:
        event.record(stream)
    return event


@cython.no_gc
cdef class GpuStream:
    """A stream of our own, for copies that must not wait for the work of others."""

    cdef GpuContext owner
    cdef void* stream

    def __init__(self, GpuContext owner):
        self.owner = owner
        owner.enter()
        code = cuda.cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING)
        leave()
        check(code, "a stream")

    @property
    def number(self):
        """For the calls of this module."""
        return <size_t> self.stream

    def __dealloc__(self):
        if self.stream != NULL and is_ours():
            cuda.cuCtxPushCurrent_v2(self.owner.context)
            cuda.cuStreamDestroy_v2(self.stream)
            leave()
