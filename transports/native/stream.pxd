# Layout of the compiled Stream and Flusher. See stream.pyx.

from libc.stdint cimport int64_t, uint64_t

from transports.native.link cimport flusher_t, header_t, link_t
from transports.native.pool cimport Frame, Pool

# Bytes read ahead of one connection. `drained`: the last read emptied the kernel's buffer.
cdef struct reader_t:
    char* data
    size_t start
    size_t end
    size_t capacity
    int drained
    int reads                 # so many more before it is another stream's turn; -1: no limit


cdef class Flusher:
    cdef flusher_t* state
    cdef reader_t reader
    cdef object __weakref__


cdef class Stream:
    cdef link_t* link
    cdef readonly Flusher flusher
    cdef readonly Pool pool
    cdef public object peer
    cdef object socket              # the SocketBase that it is attached to
    cdef object failure
    cdef list parts                 # frames of a message whose end is still to come
    # a partial frame that left the reader
    cdef char* saved
    cdef size_t saved_size
    # a large frame on its way in
    cdef Frame large
    cdef object large_hold
    cdef char* large_data
    cdef size_t large_size
    cdef size_t large_done
    cdef unsigned int large_checksum
    # what the last frame was like, if it was large: the next is read straight into place
    cdef size_t expect_head
    cdef size_t expect_size
    cdef bint expect_lease
    cdef object spare
    cdef char* spare_data
    # the peer's subscriptions
    cdef dict prefixes
    cdef tuple prefix_lengths
    cdef bint wants_all
    cdef object __weakref__

    cdef int count(self, list message) except -1
    cdef object next_frame(self, reader_t* reader, bint as_bytes, object sink)
    cdef int refill(self, reader_t* reader, bint as_bytes, object sink) except -1
    cdef int refill_expected(self, reader_t* reader, bint as_bytes) except -1
    cdef int took(self, reader_t* reader, ssize_t count, int error) except -1
    cdef int done_reading(self) except -1
    cdef int park(self, reader_t* reader) except -1
    cdef int head_size(self, const char* at, size_t available, size_t* head) except -1
    cdef Frame whole_frame(self, const char* at, size_t head, bint as_bytes, object sink)
    cdef object check(self, Frame frame, unsigned int checksum)
    cdef int begin_large(self, reader_t* reader, size_t head, bint as_bytes, object sink) except -1
    cdef int read_large(self) except -1
    cdef int leave_sink(self) except -1
    cdef object pour(self, Frame frame, object sink)
    cdef int fail(self, object error) except -1
    cdef object place(self, size_t size, bint lease, char** data)
    cdef int offer(self, object frames, bint force, bint hold, object released, bint borrow) except -1
    cdef int write_out(self, bint no_gil) except -1
    cdef int check_process(self) except -1
    cdef int take_mutex(self) except -1
    cdef int reap(self) except -1
    cdef object raise_broken(self)
    cdef bint match(self, bytes topic)

cdef object group(Stream stream, Frame frame)
cdef int prepare_reader(reader_t* reader) except -1
