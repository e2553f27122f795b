# Small plain messages. See small_messages.pyx.

from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native.kernel_writes cimport link_t

cdef int link_push(link_t* link, const char* data, size_t size, uint64_t sequence) noexcept nogil
cdef int push_parts(link_t* link, tuple parts, Py_ssize_t first, size_t total) noexcept
cdef Py_ssize_t push_messages(link_t* link, tuple messages, Py_ssize_t first, Py_ssize_t limit,
                              int64_t* total, int* answer) noexcept
