# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""A payload in memory of a GPU, as a frame's data."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint64_t

from transfer.transports.core.native.cuda cimport GpuContext, GpuEvent
from transfer.transports.core.native.pool cimport Lease, Pool

from transfer.transports.core.native.cuda import GpuStream
from transfer.transports.gpu import PAYLOADS


# As Region: the collector would clear `released` before the end.
@cython.no_gc
cdef class GpuPayload:
    """Bytes in memory of a GPU, where their sender has left them or a transport has received them, until this
    is deleted.

    Who asks for a buffer of it gets a copy in memory of the host, which is made once. ready: when the sender
    has written it. released: called at the end with the last `use`, None if there was none; the
    memory may be written again when the work of that stream is done. route: see `gpu.GpuRoute`.
    """

    cdef readonly GpuContext context
    cdef readonly uint64_t pointer
    cdef readonly size_t nbytes
    cdef readonly str route
    cdef GpuEvent ready
    cdef Pool pool
    cdef object released
    cdef object used
    cdef Lease host

    def __init__(self, GpuContext context, uint64_t pointer, size_t nbytes, GpuEvent ready, Pool pool,
                 released, str route="mapped"):
        self.context = context
        self.pointer = pointer
        self.nbytes = nbytes
        self.ready = ready
        self.pool = pool
        self.released = released
        self.route = route

    def use(self, stream, size_t number, GpuContext where=None):
        """Work that a stream gets from now on may use the memory. stream: kept as long as that takes. where:
        the context of the stream, if it is another GPU's."""
        cdef GpuContext context = self.context if where is None else where
        self.ready.wait_in(number, context)
        self.used = (stream, number, context)

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer* view, int flags):
        cdef Lease host = self.on_host()
        PyBuffer_FillInfo(view, self, host.pointer, self.nbytes, 0, flags)

    cpdef Lease on_host(self):
        """The copy in memory of the host, which may outlive this."""
        cdef Lease host
        if self.host is None:
            host = self.copied()
            if self.host is None:  # the first of two threads
                self.host = host
        return self.host

    cdef Lease copied(self):
        cdef Lease host = self.pool.take(self.nbytes)
        stream = GpuStream(self.context)
        self.ready.wait_in(stream.number)
        self.context.copy(<uint64_t> host.pointer, self.pointer, self.nbytes, stream.number)
        self.context.synchronize(stream.number)
        return host

    def __dealloc__(self):
        if self.released is not None:
            call_released_with(self.released, self.used)


cdef void call_released_with(released, used) noexcept:
    # An exception here reaches no caller: Cython prints it.
    released(used)


PAYLOADS.add(GpuPayload)
