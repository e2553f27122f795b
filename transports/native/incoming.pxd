# The receiving half of a Stream. See incoming.pyx.

from libc.stdint cimport uint64_t

from transports.native.flusher cimport reader_t
from transports.native.outgoing cimport Outgoing
from transports.native.pool cimport Frame

cdef enum:
    STEP_US = 50                    # how often a thread looks whether another one has left a stream
    STEPS = 200000                  # 10 s: a read of what the kernel has takes less


cdef class Incoming(Outgoing):
    cdef list parts                 # frames of a message whose end is still to come
    cdef bint refused               # a sink refused a frame of it: the rest is read without one
    cdef uint64_t parts_size        # bytes of those: data, topics, tensor headers
    cdef bint hungry                # the kernel had no more, and a message is not complete
    # a partial frame that left the reader
    cdef char* saved
    cdef size_t saved_size
    # a large frame on its way in
    cdef Frame large
    cdef object large_hold          # the sink's memory, if it goes there
    cdef object large_sink          # the sink that was asked where it goes
    cdef char* large_data
    cdef size_t large_size
    cdef size_t large_done
    cdef unsigned int large_checksum
    # what the last frame was like, if it was large: the next is read straight into place
    cdef size_t expect_head
    cdef size_t expect_size
    cdef bint expect_lease
    cdef bint first_small           # the last message began with a small frame
    cdef size_t ahead               # bytes to read ahead when nothing is expected
    cdef object spare
    cdef char* spare_data

    cdef int count(self, list message) except -1
    cdef object next_frame(self, reader_t* reader, bint as_bytes, object sink)
    cdef int refill(self, reader_t* reader, bint as_bytes, object sink) except -1
    cdef int refill_expected(self, reader_t* reader, bint as_bytes) except -1
    cdef int took(self, reader_t* reader, ssize_t count, int error) except -1
    cdef int done_reading(self) except -1
    cdef int end_reading(self) except -1
    cdef int close_descriptor(self, int fd) except -1
    cdef int drop_unread(self) except -1
    cdef int park(self, reader_t* reader) except -1
    cdef int admit(self, uint64_t size) except -1
    cdef int understands(self, const char* at, size_t available, size_t* head) except -1
    cdef Frame whole_frame(self, const char* at, size_t head, bint as_bytes, object sink)
    cdef object check(self, Frame frame, unsigned int checksum)
    cdef object ask(self, object sink, Frame frame, uint64_t size)
    cdef Frame referred(self, const char* at, size_t head, object sink)
    cdef int begin_large(self, reader_t* reader, size_t head, bint as_bytes, object sink) except -1
    cdef int read_large(self, reader_t* reader) except -1
    cdef int leave_sink(self) except -1
    cdef object pour(self, Frame frame, object sink)
    cdef object place(self, size_t size, bint lease, char** data)

cdef object group(Incoming stream, Frame frame)
cdef int prepare_reader(reader_t* reader) except -1
