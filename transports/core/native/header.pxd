# The first bytes of a frame. See header.pyx.

from libc.stdint cimport uint64_t

from transfer.transports.core.native.pool cimport Frame

cdef int head_size(const char* at, size_t available, size_t* head, uint64_t max_message,
                   bint references) except -1
cdef Frame frame_of(const char* at, size_t head)
