# The streams of a SocketBase. See attachment.pyx.

from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native.receiving cimport Receiving
from transfer.transports.core.native.stream cimport Stream


cdef class Attachments(Receiving):
    cdef dict foreign_fds           # descriptor -> the number of foreign streams that sleep on it
    cdef list lazy                  # receiving streams without a descriptor so far
    # the stream that left the round last, and its position
    cdef object left
    cdef Py_ssize_t left_at
    cdef bint left_was_next

    cdef Py_ssize_t count_ended(self)
    cdef int end_stream(self, stream, error) except -1
    cdef int watch(self, Stream stream) except -1
    cdef int watch_foreign(self, int fd) except -1
    cdef int unwatch_foreign(self, int fd) except -1
    cdef int leave_round(self, stream) except -1
    cdef int join_round(self, stream) except -1
    cdef int join_foreign(self, stream) except -1
    cdef int leave_foreign(self, stream) except -1
    cdef object offer_to(self, stream, frames, bint hold, released, list lent, uint64_t* number)
    cdef bint wait_for_room(self, only, int64_t deadline) except -1
