# The streams of a SocketBase. See attachment.pyx.

from transfer.transports.core.native.receiving cimport Receiving
from transfer.transports.core.native.stream cimport Stream


cdef class Attachments(Receiving):
    cdef dict foreign_fds           # descriptor -> how many foreign streams sleep on it
    cdef list lazy                  # streams to receive from that have no descriptor yet
    # the stream that left the round last, and where it stood
    cdef object left
    cdef Py_ssize_t left_at
    cdef bint left_was_next

    cdef Py_ssize_t count_ended(self)
    cdef int watch(self, Stream stream) except -1
    cdef int watch_foreign(self, int fd) except -1
    cdef int unwatch_foreign(self, int fd) except -1
    cdef int leave_round(self, stream) except -1
    cdef int join_round(self, stream) except -1
