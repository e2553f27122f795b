# A link as Python sees it. See connection.pyx.

from transfer.transports.core.native.flusher cimport Flusher
from transfer.transports.core.native.kernel_writes cimport link_t
from transfer.transports.core.native.pool cimport Pool
from transfer.transports.core.native.ring_channel cimport RingChannel
from transfer.transports.core.native.verbs cimport VerbsDevice


cdef class Connection:
    cdef link_t* link
    cdef readonly Flusher flusher
    cdef readonly Pool pool
    cdef public object peer
    cdef public bytes identity      # of the peer of a ROUTER whose plain messages need no pattern; else None
    cdef VerbsDevice device         # of `link.ring`
    cdef void* socket               # the SocketBase that it is attached to: for comparison only
    cdef object opened              # called when there is a descriptor; does not keep the socket
    cdef object failure
    cdef object __weakref__

    cdef int watched_fd(self) noexcept
    cdef int check_process(self) except -1
    cdef int take_ring(self, RingChannel channel, int fd) except -1
    cdef int take_mutex(self) except -1
    cdef object raise_broken(self)
    cdef int fail(self, object error) except -1
