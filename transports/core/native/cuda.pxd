from libc.stdint cimport uint64_t

cdef class GpuContext:
    cdef readonly int index
    cdef void* context

    cdef int enter(self) except -1


cdef class GpuEvent:
    cdef GpuContext owner
    cdef void* event


cdef void leave() noexcept
