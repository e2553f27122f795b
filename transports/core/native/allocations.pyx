# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Counts the allocations of this process' Python, for measurements.

The allocators of objects and of buffers get a layer that counts and passes on, as PEP 445 provides. The raw
allocator gets none: the other two call it for large blocks. Objects from a free list (small tuples, floats),
and memory that the core leases or maps, are not counted.
"""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #define COUNT_ONE(at) __atomic_fetch_add(at, 1, __ATOMIC_RELAXED)
    """
    uint64_t count_one "COUNT_ONE" (uint64_t* at) noexcept nogil

cdef extern from "Python.h" nogil:
    ctypedef struct PyMemAllocatorEx:
        void* ctx
        void* (*malloc)(void* ctx, size_t size) noexcept nogil
        void* (*calloc)(void* ctx, size_t count, size_t size) noexcept nogil
        void* (*realloc)(void* ctx, void* block, size_t size) noexcept nogil
        void (*free)(void* ctx, void* block) noexcept nogil
    ctypedef enum PyMemAllocatorDomain:
        PYMEM_DOMAIN_MEM
        PYMEM_DOMAIN_OBJ
    void PyMem_GetAllocator(PyMemAllocatorDomain domain, PyMemAllocatorEx* allocator)
    void PyMem_SetAllocator(PyMemAllocatorDomain domain, PyMemAllocatorEx* allocator)

cdef PyMemAllocatorEx[2] beneath
cdef uint64_t counted = 0
cdef bint counting = False


cdef void* _malloc(void* ctx, size_t size) noexcept nogil:
    cdef PyMemAllocatorEx* real = <PyMemAllocatorEx*>ctx
    count_one(&counted)
    return real.malloc(real.ctx, size)


cdef void* _calloc(void* ctx, size_t count, size_t size) noexcept nogil:
    cdef PyMemAllocatorEx* real = <PyMemAllocatorEx*>ctx
    count_one(&counted)
    return real.calloc(real.ctx, count, size)


cdef void* _realloc(void* ctx, void* block, size_t size) noexcept nogil:
    cdef PyMemAllocatorEx* real = <PyMemAllocatorEx*>ctx
    count_one(&counted)
    return real.realloc(real.ctx, block, size)


cdef void _free(void* ctx, void* block) noexcept nogil:
    cdef PyMemAllocatorEx* real = <PyMemAllocatorEx*>ctx
    real.free(real.ctx, block)


def count_allocations():
    """Starts to count, until the end of the process. Idempotent."""
    global counting
    cdef PyMemAllocatorEx layer
    cdef PyMemAllocatorDomain[2] domains = [PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ]
    cdef int number
    if counting:
        return
    counting = True
    layer.malloc, layer.calloc, layer.realloc, layer.free = _malloc, _calloc, _realloc, _free
    for number in range(2):
        PyMem_GetAllocator(domains[number], &beneath[number])
        layer.ctx = &beneath[number]
        PyMem_SetAllocator(domains[number], &layer)


def allocations():
    """Blocks allocated since then, new and reallocated ones; None: they are not counted."""
    return counted if counting else None
