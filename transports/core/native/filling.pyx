# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Memory that is sent while it is filled, from its beginning on, as a GPU copies it there.

The writer of a connection takes the bytes that are there (kernel_writes.pyx). All others get a buffer of it,
for which they wait until it is full.
"""

cimport cython
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer

from transfer.transports.core.native.pool cimport HeldBuffer


@cython.no_gc
cdef class Filling:
    """memory: a buffer. finish: called for all of it, in any thread, maybe twice; it waits until
    the memory is full and calls `advance` on the way. What it raises ends the connections that have begun to
    write the memory."""

    def __init__(self, memory, finish):
        PyObject_GetBuffer(memory, &self.view, PyBUF_ANY_CONTIGUOUS)
        self.held = True
        self.finish = finish
        self.writers = []

    @property
    def nbytes(self):
        return self.view.len

    def __len__(self):
        return self.view.len

    def advance(self, uint64_t ready):
        """The first `ready` bytes are there."""
        if ready > self.ready:
            store_ready(&self.ready, ready)
        for stream in list(self.writers):
            stream.flush()
        if self.ready >= <uint64_t>self.view.len:
            self.writers.clear()

    def complete(self):
        """Returns when all of it is there. Raises what `finish` raises."""
        if self.ready < <uint64_t>self.view.len or self.writers:
            try:
                self.finish(self)
            except Exception as error:
                for stream in self.writers:
                    stream.end_writing(error)
                self.writers.clear()
                raise

    cdef object hold(self):
        """Its memory as it is now, for a writer that knows `ready`. Only this call sees `peeked`: no other
        thread has the GIL in between."""
        self.peeked = True
        try:
            return HeldBuffer(self)
        finally:
            self.peeked = False

    cdef int add_writer(self, stream) except -1:
        """A stream that has it in its queue since a moment, in which it may have become full."""
        self.writers.append(stream)
        if self.ready >= <uint64_t>self.view.len:
            self.advance(self.ready)
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not self.peeked:
            self.complete()
        PyBuffer_FillInfo(view, self, self.view.buf, self.view.len, 1, flags)

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)
