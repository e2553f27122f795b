# What users call. See socket.pyx.

from transports.native.receiving cimport Receiving
from transports.native.stream cimport Stream
from transports.native.turn cimport Turn


cdef class SocketBase(Receiving):
    cdef public bint _general_send
    cdef public bint _general_recv
    cdef public dict _lent          # memory that is held where it lies when it is sent; empty: none
    cdef public bint _lockstep      # the core may take the common turns of a REQ or REP
    cdef public Turn _turn
    # the stream that left the round last, and where it stood
    cdef object left
    cdef Py_ssize_t left_at
    cdef bint left_was_next
    cdef list lazy                  # streams to receive from that have no descriptor yet

    cdef void close_descriptors(self) noexcept
    cdef bint send_in_turn(self, bytes data) except -1
    cdef bint ask(self, Turn turn, bytes data) except -1
    cdef bint reply(self, Turn turn, bytes data) except -1
    cdef object send_slowly(self, data, int flags, bint copy, bint track)
    cdef object recv_slowly(self, int flags, bint copy, bint track)
    cdef object deliver(self, tuple message, frames, int flags, bint copy, bint track)
    cdef object admit(self, tuple message)
    cdef object recv_in_turn(self, bint copy, bint track)
    cdef int leave_round(self, stream) except -1
    cdef int join_round(self, stream) except -1
    cdef Py_ssize_t count_ended(self)
    cdef int watch(self, Stream stream) except -1
    cdef int watch_foreign(self, int fd) except -1
    cdef int unwatch_foreign(self, int fd) except -1
