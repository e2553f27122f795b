# The sending half of a Stream. See outgoing.pyx.

from libc.stdint cimport uint64_t

from transports.native.flusher cimport Flusher
from transports.native.link cimport link_t, segment_t
from transports.native.pool cimport Pool


cdef class Outgoing:
    cdef link_t* link
    cdef readonly Flusher flusher
    cdef readonly Pool pool
    cdef public object peer
    cdef void* socket               # the SocketBase that it is attached to: which one, no more
    cdef object opened              # to be called when there is a descriptor; does not keep the socket
    cdef object failure
    cdef public object carrier      # carries large payloads beside the connection; see transports/base.py
    cdef bint several               # the message goes to other streams too
    # the peer's subscriptions
    cdef dict prefixes
    cdef tuple prefix_lengths
    cdef bint wants_all
    cdef object __weakref__

    cdef bint match(self, bytes topic)
    cdef int offer(self, object frames, bint force, bint hold, object released, list lent,
                   uint64_t* number) except -1
    cdef int offer_carried(self, object frames, bint hold, object released, uint64_t* number) except -2
    cdef int put(self, object frames, bint force, bint hold, object released, list lent,
                 uint64_t* number, bint gather=*) except -1
    cdef int write_out(self, bint no_gil) except -1
    cdef int let_go_copied(self) except -1
    cdef int own_all(self) except -1
    cdef segment_t* empty_queue(self) noexcept
    cdef int check_process(self) except -1
    cdef int take_mutex(self) except -1
    cdef int tell_of_room(self, int fd) except -1
    cdef int reap(self) except -1
    cdef object raise_broken(self)
    cdef int fail(self, object error) except -1


cdef Py_ssize_t payload_size(data) except -1
cdef int release_exports(list owners) except -1
