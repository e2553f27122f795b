# Objects of libibverbs as Python sees them. See verbs.pyx.

from libc.stdint cimport uint32_t, uint64_t

from transfer.transports.core.native.libibverbs cimport (
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_srq,
)


cdef class VerbsDevice:
    cdef ibv_context* context
    cdef ibv_pd* domain
    cdef int pid
    cdef readonly str name
    cdef int end(self) noexcept
    cdef int check(self) except -1


cdef class VerbsRegion:
    cdef VerbsDevice device
    cdef ibv_mr* region
    cdef readonly uint64_t address
    cdef readonly size_t length
    cdef readonly uint32_t lkey
    cdef readonly uint32_t rkey
    cdef int end(self) noexcept


cdef class VerbsQueue:
    cdef VerbsDevice device
    cdef ibv_comp_channel* channel
    cdef ibv_cq* queue
    cdef object make
    cdef unsigned int taken  # events that are not acknowledged
    cdef int end(self) noexcept


cdef class VerbsSharedQueue:
    cdef VerbsDevice device
    cdef ibv_srq* queue
    cdef int end(self) noexcept


cdef class VerbsPair:
    cdef VerbsDevice device
    cdef VerbsQueue queue
    cdef VerbsSharedQueue shared
    cdef ibv_qp* pair
    cdef readonly uint32_t number
    cdef int end(self) noexcept
    cdef int check(self) except -1
    cdef int modify(self, ibv_qp_attr* wanted, int mask) except -1
    cdef int post(self, uint64_t wr_id, int opcode, uint64_t address, uint32_t length, uint32_t lkey,
                  uint64_t remote, uint32_t rkey, unsigned int flags) except -1
