# Layout of the compiled memory and frame classes. See pool.pyx.

cdef class Pool:
    cdef void* free_lists[256]
    cdef readonly size_t limit
    cdef readonly size_t in_use
    cdef readonly size_t cached
    cdef bint closed
    cdef Lease take(self, size_t nbytes)
    cdef void give_back(self, void* pointer, int index)


cdef class Lease:
    cdef char* pointer
    cdef Py_ssize_t size
    cdef int index
    cdef Pool pool
    cdef Py_ssize_t shape[1]
    cdef object __weakref__


cdef class Region:
    cdef Py_buffer view
    cdef bint readonly
    cdef bint held
    cdef object released
    cdef object __weakref__


cdef class Mapping:
    cdef void* address
    cdef Py_ssize_t size
    cdef bint readonly
    cdef object __weakref__


cdef class HeldBuffer:
    cdef Py_buffer view
    cdef bint held


cdef class Frame:
    cdef public object data
    cdef public object topic
    cdef public object meta
    cdef public unsigned long long sequence
    cdef public int flags
    cdef public int socket_type
    cdef object __weakref__


cdef void* allocate(size_t nbytes) noexcept nogil
cdef object no_memory(size_t size)
cdef Lease room_for(Pool pool, size_t size)
cdef int copy_bytes(char* target, const char* source, size_t size) except -1
cdef int fill(object target, object source) except -1
