# The flusher thread. See thread.pyx.

from transfer.transports.core.native.kernel_writes cimport flusher_t, link_t

cdef flusher_t* flusher_new() noexcept nogil
cdef int flusher_start(flusher_t* flusher) noexcept nogil
cdef void flusher_join(flusher_t* flusher) noexcept nogil
cdef void flusher_end(flusher_t* flusher) noexcept
cdef void flusher_free(flusher_t* flusher) noexcept nogil
cdef void link_dispose(link_t* link) noexcept nogil
cdef void watch_forks() noexcept nogil
