# The ring of a connection as Python sees it. See ring_channel.pyx.

from libc.stdint cimport uint32_t

from transfer.transports.core.native.libibverbs cimport ibv_mr
from transfer.transports.core.native.ring cimport ring_t
from transfer.transports.core.native.verbs cimport VerbsDevice


cdef class RingChannel:
    cdef ring_t* ring
    cdef VerbsDevice device
    cdef object reclaim
    cdef readonly uint32_t number
    cdef readonly int vector
    cdef int make(self, size_t size) except -1
    cdef ibv_mr* registered(self, char* memory, size_t size, int access) except NULL
    cdef ring_t* give(self, int fd) except NULL
    cdef int check(self) except -1
    cdef void end(self) noexcept
