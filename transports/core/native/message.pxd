# One outgoing message. See message.pyx.

from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native.kernel_writes cimport link_t, segment_t

cdef struct outgoing_t:
    int flags
    uint64_t sequence
    uint64_t number         # the message's number; set in the first entry
    const char* topic
    size_t topic_size
    const char* meta
    size_t meta_size
    const char* data
    size_t size
    unsigned int checksum
    uint64_t* ready         # NULL, or of memory that is still being filled
    segment_t* segment

cdef unsigned int checksum_of(object meta, object topic, object data)
cdef int prepare(link_t* link, outgoing_t* out, object frame, bint more, bint hold, list owners) except -1
cdef int add_segments(outgoing_t* out, Py_ssize_t count, list owners, bint hold, object released) except -1
cdef int drop_segments(outgoing_t* out, Py_ssize_t count) except -1
cdef bint has_large(list owners)
cdef int enqueue(link_t* link, outgoing_t* out, Py_ssize_t count, size_t total, bint force,
                 bint settle, bint gather) noexcept nogil
cdef int64_t unsent_count(link_t* link) noexcept nogil
cdef object payload_of(segment_t* segment, bint first, bint foreign)
cdef list unsent_messages(list pieces)
