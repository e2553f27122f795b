# Objects of libibverbs as Python sees them. See verbs.pyx.

from libc.stdint cimport uint32_t, uint64_t

from transfer.transports.core.native.libibverbs cimport ibv_context, ibv_mr, ibv_pd, ibv_qp


cdef class VerbsDevice:
    cdef ibv_context* context
    cdef ibv_pd* domain
    cdef int pid
    cdef unsigned int queues
    cdef readonly str name
    cdef int end(self) noexcept
    cdef int check(self) except -1
    cdef int next_vector(self) noexcept


cdef class VerbsRegion:
    cdef VerbsDevice device
    cdef ibv_mr* region
    cdef readonly uint64_t address
    cdef readonly size_t length
    cdef readonly uint32_t lkey
    cdef readonly uint32_t rkey
    cdef int end(self) noexcept


cdef int connect_qp(ibv_qp* qp, unsigned int access, uint32_t number, bytes gid, int lid, uint32_t psn,
                    int mtu, int reads, int timeout, int retries, int port, int gid_index,
                    uint32_t our_psn, int pkey_index, int service_level, int traffic_class) except -1
