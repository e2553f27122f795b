# The descriptors of a SocketBase. See events.pyx.


cdef class Events:
    cdef readonly bint closed
    cdef bint event_set             # as far as is known, `receive_event` is readable
    cdef int epoll_fd               # the streams that receive, and `receive_event`
    cdef int receive_event
    cdef int send_event

    cdef int epoll_of_streams(self) except -1
    cdef int epoll_of_all(self) except -1
    cdef int event_of_senders(self) except -1
    cdef void close_descriptors(self) noexcept
