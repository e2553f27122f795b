# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Users' memory in a link's queue, which is copied before its owner may change it, without the GIL."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from transfer.transports.core.native.atomic cimport load_int
from transfer.transports.core.native.kernel_writes cimport (
    GONE, NO_MEMORY, OK, link_t, link_write, segment_t, store_segment,
)
from transfer.transports.core.native.pool cimport allocate
from transfer.transports.core.native.system cimport (
    pthread_mutex_lock, pthread_mutex_unlock, sched_yield,
)

cdef enum:
    PIECE = 1024 * 1024             # bytes of one copy under the mutex


cdef int link_settle(link_t* link) noexcept nogil:
    """Copies the rest of borrowed memory, so that its owner may change it.

    Enters and leaves with the mutex held. During a long copy it releases it, and writes what the kernel
    takes: heartbeats, credits and other links do not wait for gigabytes.
    """
    cdef segment_t* segment = link.head
    cdef int answer
    while segment != NULL:
        answer = settle_one(link, segment) if segment.borrowed else OK
        if answer == GONE:
            segment = link.head      # the queue may have changed
        elif answer != OK:
            return answer
        else:
            segment = segment.next
    return OK


cdef int settle_one(link_t* link, segment_t* segment) noexcept nogil:
    """Copies from the end on, since the kernel takes the beginning in the meantime. OK: the segment is in the
    queue; GONE: it may not be."""
    cdef char* data = segment.data
    cdef uint64_t serial = segment.serial
    cdef size_t first = segment.done
    cdef size_t size = segment.size
    cdef size_t at = size
    cdef size_t part
    cdef char* copy = <char*>allocate(size - first if size > first else 1)
    cdef segment_t* husk = <segment_t*>calloc(1, sizeof(segment_t))
    if copy == NULL or husk == NULL:
        free(copy)
        free(husk)
        return NO_MEMORY
    while at > segment.done:
        part = min(at - segment.done, <size_t>PIECE)
        at -= part
        memcpy(copy + at - first, data + at, part)
        if at > segment.done:
            if not load_int(&link.error) and not link.closed:
                link_write(link)
            pthread_mutex_unlock(&link.mutex)
            sched_yield()
            pthread_mutex_lock(&link.mutex)
            if not still_borrowed(link, serial):
                free(copy)
                free(husk)
                return GONE
    husk.owner = segment.owner
    husk.next = link.finished
    store_segment(&link.finished, husk)
    segment.owner = NULL
    segment.borrowed = 0
    link.borrowed -= 1
    segment.data = copy
    segment.ready = NULL            # it is full: see Outgoing.own_all
    segment.size = size - first
    segment.done -= first
    segment.capacity = size - first if size > first else 1
    return OK


cdef bint still_borrowed(link_t* link, uint64_t serial) noexcept nogil:
    """Whether it was neither written to its end, nor copied, nor taken back while the mutex was free."""
    cdef segment_t* segment = link.head
    while segment != NULL and segment.serial != serial:
        segment = segment.next
    return segment != NULL and segment.borrowed
