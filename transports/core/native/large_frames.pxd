# The large frame on its way into a Stream. See large_frames.pyx.

from libc.stdint cimport uint64_t

from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.kernel_writes cimport link_t
from transfer.transports.core.native.outgoing cimport Outgoing
from transfer.transports.core.native.pool cimport Frame
from transfer.transports.core.native.system cimport iovec


cdef class Large(Outgoing):
    cdef list parts                 # frames of an incomplete message
    cdef bint refused               # a sink refused a frame of it: the rest is read without one
    cdef bint hungry                # the kernel had no more, and a message is not complete
    cdef Frame large                # the frame that is being received
    cdef object large_hold          # the sink's memory, if it goes there
    cdef object large_sink          # the sink that was called for it
    cdef object large_landed        # tells it how much has come, from time to time; None: it does not ask
    cdef size_t large_report        # the next time
    cdef char* large_data
    cdef size_t large_size
    cdef size_t large_done
    cdef unsigned int large_checksum
    # the shape of the last frame, if it was large: the next one is read straight into place
    cdef size_t expect_head
    cdef size_t expect_size
    cdef bint expect_lease
    cdef object spare
    cdef char* spare_data

    cdef object ask(self, object sink, Frame frame, uint64_t size)
    cdef object place(self, size_t size, bint lease, char** data)
    cdef int begin_large(self, reader_t* reader, size_t head, bint as_bytes, object sink) except -1
    cdef object pour(self, Frame frame, object sink)
    cdef int leave_sink(self) except -1
    cdef int read_large(self, reader_t* reader) except -1
    cdef bint report(self) except -1
    cdef int took(self, reader_t* reader, ssize_t count, int error) except -1
    cdef object failed_ring(self, int error)
    cdef int done_reading(self) except -1
    cdef int end_reading(self) except -1
    cdef int close_descriptor(self, int fd) noexcept
    cdef int drop_unread(self) except -1


cdef bint is_on_gpu(data)
cdef ssize_t receive(link_t* link, iovec* vectors, int count) noexcept nogil
