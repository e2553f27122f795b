# The state of the dialogue of a REQ or REP. See req_rep_turn.pyx.

from libc.stdint cimport int64_t, uint64_t

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock

cdef enum:
    BUCKETS = 21


cdef class Turn:
    cdef public uint64_t number
    cdef public uint64_t last
    cdef public uint64_t mark
    cdef public uint64_t pending
    cdef public object stream
    cdef public object failure
    cdef public bint open
    cdef public bint relaxed
    cdef public bint simple
    cdef readonly uint64_t total_ns
    cdef uint64_t buckets[BUCKETS]
    cdef public int64_t requested_ns
    cdef PyThread_type_lock locks[2]       # of the sender, of the receiver
    cdef unsigned long holders[2]          # their threads, 0: none

    cdef bint take(self, int side) noexcept
    cdef void give(self, int side) noexcept
    cpdef void asks(self, stream, uint64_t number, int64_t now)
    cpdef bint answers(self, stream, uint64_t number)
    cpdef void answered(self, int64_t now) noexcept
