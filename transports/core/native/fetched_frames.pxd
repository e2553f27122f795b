# Payloads that a Stream READs by RDMA. See fetched_frames.pyx.

from libc.stdint cimport uint32_t, uint64_t

from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.large_frames cimport Large
from transfer.transports.core.native.pool cimport Frame
from transfer.transports.core.native.ring cimport fetch_t

cdef packed struct announcement_t:
    uint32_t rkey
    uint32_t number
    uint64_t address
    uint64_t length


cdef class PayloadFetch:
    cdef fetch_t state
    cdef uint32_t number
    cdef uint64_t noticed           # bytes of it that counted as a sign of life
    cdef object memory

    cdef bint complete(self) noexcept


cdef class Fetched(Large):
    cdef list fetches               # begun READs of payloads whose frames come after the present one
    cdef PayloadFetch fetching             # of `large`
    cdef uint32_t announced         # the number of the last announcement that was READ, or is
    cdef uint32_t begun             # the same of the last READ that has begun
    cdef object gpu_for             # the GPU where a payload is wanted, by its header; None: the host

    cdef int begin_fetch(self, Frame frame, object sink) except -1
    cdef PayloadFetch begin_read(self, announcement_t* announced, Frame frame)
    cdef int read_fetched(self, reader_t* reader) except -1
    cdef int look_further(self, reader_t* reader) except -1
