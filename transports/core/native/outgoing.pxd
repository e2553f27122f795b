# The sending half of a Stream. See outgoing.pyx.

from libc.stdint cimport uint64_t

from transfer.transports.core.native.connection cimport Connection
from transfer.transports.core.native.kernel_writes cimport segment_t


cdef class Outgoing(Connection):
    cdef public object carrier      # carries large payloads apart from the connection; see core/contract.pyi
    cdef uint64_t fetched_seen      # payloads that the peer has READ, as the carrier knows
    cdef bint several               # the message goes to other streams too
    # the peer's subscriptions
    cdef dict prefixes
    cdef tuple prefix_lengths
    cdef bint wants_all

    cdef bint match(self, bytes topic)
    cdef int offer(self, object frames, bint force, bint hold, object released, list lent,
                   uint64_t* number) except -1
    cdef int offer_carried(self, object frames, bint hold, object released, uint64_t* number) except -2
    cdef int notice_fetched(self) except -1
    cdef bint flushed_ring(self) except -1
    cdef Py_ssize_t put_carried(self, object frames, bint hold, object released, uint64_t* number) except -2
    cdef int announce(self, list placed) except -1
    cdef int recall(self, int announced) except -1
    cdef int queue_message(self, object frames, bint force, bint hold, bint lends, object released,
                           list owners, uint64_t* number, bint gather) except -9
    cdef int after_queueing(self, int answer, bint hold, object released, list lent, list owners) except -1
    cdef int put(self, object frames, bint force, bint hold, object released, list lent,
                 uint64_t* number, bint gather=*) except -1
    cdef int write_out(self, bint no_gil) except -1
    cdef int let_go_copied(self) except -1
    cdef int own_all(self) except -1
    cdef bint complete_all(self) except -1
    cdef segment_t* empty_queue(self) noexcept
    cdef int notify_room(self, int fd, void* socket) except -1
    cdef int reap(self) except -1


cdef Py_ssize_t payload_size(data) except -1
cdef int release_exports(list owners) except -1
