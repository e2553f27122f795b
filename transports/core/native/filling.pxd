# Memory that is sent while it is filled. See filling.pyx.

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #define ACQUIRE_LOAD(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    #define RELEASE_STORE(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    """
    # A thread that sees the number sees the bytes that were there before it was stored.
    uint64_t load_ready "ACQUIRE_LOAD" (uint64_t* at) nogil
    void store_ready "RELEASE_STORE" (uint64_t* at, uint64_t value) nogil


cdef class Filling:
    cdef Py_buffer view
    cdef bint held
    cdef bint peeked          # by `hold`: no wait
    cdef uint64_t ready       # bytes from the beginning that are there
    cdef object finish
    cdef list writers         # streams that have it in their queues

    cdef object hold(self)
    cdef int add_writer(self, stream) except -1
