# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Small plain messages: copied into a queue behind their headers. The caller holds the mutex of the link."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from transfer.transports.core.native.atomic cimport add_signed, load_int
from transfer.transports.core.native.kernel_writes cimport (
    BROKEN, COALESCE, F_MORE, HEADER, NO_MEMORY, OK, WOULD_BLOCK, link_bytes_left, link_count, link_is_full,
    link_messages_left, link_pushed, link_reserve, link_room, link_t, put_header, segment_t,
)


cdef int link_admit(link_t* link, size_t payload, size_t size, char** at) noexcept nogil:
    """Makes room for one message: `size` bytes with its headers, which begin at `at`. As `link_push`."""
    cdef int answer
    if load_int(&link.error) or link.closed:
        return BROKEN
    if link_is_full(link, payload):
        answer = link_room(link, payload)
        if answer != OK:
            return answer
    at[0] = link_reserve(link, size, 0)
    if at[0] == NULL:
        return NO_MEMORY
    link_count(link, 1, payload)
    return OK


cdef int link_push(link_t* link, const char* data, size_t size, uint64_t sequence) noexcept nogil:
    """Queues one plain message of one frame and writes it if it is time.

    The caller holds the mutex. OK, FULL, BROKEN, NO_MEMORY, or WOULD_BLOCK: queued, and the queue is long
    enough that the caller should call link_write without the GIL. BROKEN means that nothing was queued:
    take_unsent finds queued messages of an ended connection, and they would be sent twice if the caller
    offered the message elsewhere, too.
    """
    cdef int64_t before = link.queued_bytes
    cdef char* at
    cdef int answer = link_admit(link, size, HEADER + size, &at)
    if answer != OK:
        return answer
    put_header(at, link.socket_type, 0, sequence if sequence else link.sent, 0, size, 0)
    memcpy(at + HEADER, data, size)
    return link_pushed(link, before)


cdef int push_parts(link_t* link, tuple parts, Py_ssize_t first, size_t total) noexcept:
    """As `link_push`: a message of parts of `bytes` from `first` on, of so many bytes together."""
    cdef Py_ssize_t count = PyTuple_GET_SIZE(parts)
    cdef int64_t before = link.queued_bytes
    cdef Py_ssize_t i
    cdef size_t size
    cdef char* at
    cdef int answer = link_admit(link, total, (count - first) * HEADER + total, &at)
    if answer != OK:
        return answer
    for i in range(first, count):
        size = PyBytes_GET_SIZE(<object>PyTuple_GET_ITEM(parts, i))
        put_header(at, link.socket_type, F_MORE if i + 1 < count else 0, link.sent, 0, size, 0)
        memcpy(at + HEADER, PyBytes_AS_STRING(<object>PyTuple_GET_ITEM(parts, i)), size)
        at += HEADER + size
    return link_pushed(link, before)


cdef Py_ssize_t push_messages(link_t* link, tuple messages, Py_ssize_t first, Py_ssize_t limit,
                              int64_t* total, int* answer) noexcept:
    """As `link_push`: messages of `bytes` below `limit`, from `first` on, until one is of another kind or has
    no room, or enough is queued for a write. Returns how many; total: their bytes; answer: the last one's."""
    cdef Py_ssize_t place = first
    cdef Py_ssize_t count
    cdef int64_t before
    cdef object message
    answer[0] = OK
    total[0] = 0
    while place < PyTuple_GET_SIZE(messages) and answer[0] == OK:
        before = link.queued_bytes
        count = fill_tail(link, messages, place, limit, total)
        if count:
            answer[0] = link_pushed(link, before)
            place += count
            continue
        message = <object>PyTuple_GET_ITEM(messages, place)
        if type(message) is not bytes or PyBytes_GET_SIZE(message) >= limit:
            break
        answer[0] = link_push(link, PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message), 0)
        if answer[0] == OK or answer[0] == WOULD_BLOCK:
            total[0] += PyBytes_GET_SIZE(message)
            place += 1
    return place - first


cdef Py_ssize_t fill_tail(link_t* link, tuple messages, Py_ssize_t first, Py_ssize_t limit,
                          int64_t* total) noexcept:
    """Copies as many as fit into the tail chunk and below the marks: the counters are set once for all. 0:
    `link_push` decides."""
    cdef segment_t* tail = link.tail
    cdef Py_ssize_t most = min(PyTuple_GET_SIZE(messages), first + link_messages_left(link))
    cdef Py_ssize_t place = first
    cdef int64_t bytes_left = link_bytes_left(link)
    cdef int64_t payload = 0
    cdef size_t used = 0
    cdef size_t size
    cdef char* at
    cdef PyObject* message
    if load_int(&link.error) or link.closed or link.ring != NULL or tail == NULL or tail.capacity == 0:
        return 0
    at = tail.data + tail.size
    while place < most and link.queued_bytes + <int64_t>used < COALESCE:
        message = PyTuple_GET_ITEM(messages, place)
        if not PyBytes_CheckExact(<object>message) or PyBytes_GET_SIZE(<object>message) >= limit:
            break
        size = PyBytes_GET_SIZE(<object>message)
        if used + HEADER + size > tail.capacity - tail.size or payload + <int64_t>size > bytes_left:
            break
        place += 1
        put_header(at + used, link.socket_type, 0, link.sent + (place - first), 0, size, 0)
        memcpy(at + used + HEADER, PyBytes_AS_STRING(<object>message), size)
        used += HEADER + size
        payload += size
    if place > first:
        if tail.size == 0:
            tail.starts_inside = 0
        tail.size += used
        add_signed(&link.queued_bytes, used)
        link_count(link, place - first, payload)
        total[0] += payload
    return place - first
