# The methods that users call. See socket_base.pyx.

from transfer.transports.core.native.parts cimport Parts
from transfer.transports.core.native.pool cimport Frame
from transfer.transports.core.native.req_rep_turn cimport Turn


cdef class SocketBase(Parts):
    cdef public dict _lent          # memory that is held in place when it is sent; empty: none
    cdef public bint _lockstep      # the core may handle the common messages of a REQ or REP
    cdef public object _frame_class  # of a subclass that converts data and trackers; else None

    cdef bint send_in_turn(self, bytes data) except -1
    cdef bint ask(self, Turn turn, bytes data) except -1
    cdef bint reply(self, Turn turn, bytes data) except -1
    cdef object send_slowly(self, data, int flags, bint copy, bint track)
    cdef object framed(self, given)
    cdef object recv_slowly(self, int flags, bint copy, bint track)
    cdef object payload(self, tuple message, Frame frame, bint copy)
    cdef object deliver(self, tuple message, frames, int flags, bint copy, bint track)
    cdef int take_back(self, tuple message) except -1
    cdef object admit(self, tuple message)
    cdef object recv_in_turn(self, bint copy, bint track)
