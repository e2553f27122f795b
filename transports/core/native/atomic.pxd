# Fields that one thread reads while another may change them: ThreadSanitizer knows that values are read and
# written whole. The GIL or a mutex orders what depends on a value, so no memory order is needed here: on
# x86-64 and ARMv8 these are plain loads and stores. At any time at most one thread changes a field.

from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    #define RELAXED_LOAD(at) __atomic_load_n(at, __ATOMIC_RELAXED)
    #define RELAXED_STORE(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
    #define RELAXED_ADD(at, value) __atomic_store_n(at, *(at) + (value), __ATOMIC_RELAXED)
    """
    int load_int "RELAXED_LOAD" (int* at) nogil
    void store_int "RELAXED_STORE" (int* at, int value) nogil
    void add_int "RELAXED_ADD" (int* at, int value) nogil
    int64_t load_signed "RELAXED_LOAD" (int64_t* at) nogil
    void store_signed "RELAXED_STORE" (int64_t* at, int64_t value) nogil
    void add_signed "RELAXED_ADD" (int64_t* at, int64_t value) nogil
    uint64_t load "RELAXED_LOAD" (uint64_t* at) nogil
    void store "RELAXED_STORE" (uint64_t* at, uint64_t value) nogil
    void add "RELAXED_ADD" (uint64_t* at, uint64_t value) nogil
