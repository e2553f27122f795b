# Copies of users' memory in a link's queue. See borrowed_memory.pyx.

from transfer.transports.core.native.kernel_writes cimport link_t

cdef int link_settle(link_t* link) noexcept nogil
