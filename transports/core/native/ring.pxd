# A connection's bytes by RDMA, without the GIL. See ring.pyx; ring_channel.pyx sets it up.

from libc.stdint cimport uint64_t

from transfer.transports.core.native.ring_requests cimport fetch_t, ring_t
from transfer.transports.core.native.system cimport iovec

cdef ssize_t ring_write(ring_t* ring, iovec* vectors, int count) noexcept nogil
cdef ssize_t ring_read(ring_t* ring, iovec* vectors, int count) noexcept nogil
cdef int ring_wait(ring_t* ring) noexcept nogil
cdef void ring_wake_for_unread(ring_t* ring) noexcept nogil
cdef void ring_fetch(ring_t* ring, fetch_t* fetch) noexcept nogil
cdef bint ring_flushed(ring_t* ring) noexcept nogil
cdef void ring_arm(ring_t* ring) noexcept nogil
cdef size_t ring_unread(ring_t* ring) noexcept nogil
cdef bint ring_has_news(ring_t* ring) noexcept nogil
cdef bint ring_announce(ring_t* ring, size_t size, uint64_t begin, bint ends) noexcept nogil
cdef void ring_recall(ring_t* ring) noexcept nogil
cdef void ring_pause(ring_t* ring) noexcept nogil
cdef bint ring_is_destroyed(ring_t* ring) noexcept nogil
cdef int ring_look(ring_t* ring, bint sleeps) noexcept nogil
cdef uint64_t ring_unread_messages(ring_t* ring) noexcept nogil
cdef uint64_t ring_peer_fetched(ring_t* ring) noexcept nogil
