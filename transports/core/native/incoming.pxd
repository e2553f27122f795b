# The receiving half of a Stream. See incoming.pyx.

from libc.stdint cimport uint64_t

from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.fetched_frames cimport Fetched
from transfer.transports.core.native.pool cimport Frame

cdef enum:
    STEP_US = 50                    # how often a thread checks whether another one has left a stream
    STEPS = 200000                  # 10 s: a read from the kernel takes less


cdef class Incoming(Fetched):
    cdef uint64_t parts_size        # bytes of the parts: data, topics, tensor headers
    # a partial frame that left the reader
    cdef char* saved
    cdef size_t saved_size
    cdef bint first_small           # the last message began with a small frame
    cdef size_t ahead               # bytes to read ahead when nothing is expected

    cdef int count(self, list message) except -1
    cdef object next_frame(self, reader_t* reader, bint as_bytes, object sink)
    cdef int park(self, reader_t* reader) except -1
    cdef int understands(self, const char* at, size_t available, size_t* head) except -1
    cdef int admit(self, uint64_t size) except -1
    cdef Frame whole_frame(self, const char* at, size_t head, bint as_bytes, object sink)
    cdef Frame reference(self, const char* at, size_t head)
    cdef Frame referred(self, const char* at, size_t head, object sink)
    cdef object check(self, Frame frame, unsigned int checksum)
    cdef int refill(self, reader_t* reader, bint as_bytes, object sink) except -1
    cdef int refill_expected(self, reader_t* reader, bint as_bytes) except -1


cdef object group(Incoming stream, Frame frame)
cdef int prepare_reader(reader_t* reader) except -1
