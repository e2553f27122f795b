# The receiving half of a SocketBase. See receiving.pyx.

from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native.reading cimport Reading
from transfer.transports.core.native.system cimport epoll_event

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock

cdef class Receiving(Reading):
    cdef public long long receive_timeout
    cdef public long long spin_us
    cdef public uint64_t messages_received
    cdef public uint64_t bytes_received
    cdef public uint64_t waited_ns
    cdef PyThread_type_lock lock    # held by the receiving thread
    cdef int64_t last_wait

    cdef tuple next_message(self, long long timeout, bint as_bytes, sink, bint peek=*)
    cdef bint has_message(self) except -1
    cdef bint finds_nothing(self) except -1
    cdef int claim(self, tuple message) except -1
    cdef int count_message(self, tuple message) except -1
    cdef int count_foreign(self, object stream, tuple message) except -1
    cdef int take_lock(self, long long timeout, int64_t deadline) except -1
    cdef int spin(self, epoll_event* events, int64_t until, int64_t deadline) except -1
    cdef bint wait_for_input(self, int64_t deadline) except -1
