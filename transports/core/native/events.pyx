# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Events: the descriptors that a socket's threads sleep on, each made when the first of them sleeps.

Most sockets only send and never wait for room, or are closed before: they need none. An event is made
readable, since what would have set it before it existed is not known. The GIL guards these methods.
"""

from posix.unistd cimport close as close_fd

from transfer.transports.descriptors import descriptor_hint
from transfer.transports.errors import OutOfDescriptors

from transfer.transports.core.native.system cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, epoll_create1, epoll_ctl,
    epoll_event, eventfd,
)


cdef class Events:
    """Two events wake the waiting threads of a socket; that of receivers lies in the epoll set."""

    def __cinit__(self, *args, **kwargs):
        self.epoll_fd = self.receive_event = self.send_event = -1

    def __dealloc__(self):
        self.close_descriptors()

    cdef int epoll_of_streams(self) except -1:
        """The epoll set, for its streams."""
        if self.epoll_fd < 0:
            self.epoll_fd = made(self, epoll_create1(EPOLL_CLOEXEC))
        return self.epoll_fd

    cdef int epoll_of_all(self) except -1:
        """The epoll set, to sleep on: with the event in it."""
        cdef epoll_event event
        cdef int epoll_fd = self.epoll_of_streams()
        if self.receive_event < 0:
            self.receive_event = event.data.fd = made(self, eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
            self.event_set = True
            event.events = EPOLLIN
            epoll_ctl(epoll_fd, EPOLL_CTL_ADD, self.receive_event, &event)
        return epoll_fd

    cdef int event_of_senders(self) except -1:
        if self.send_event < 0:
            self.send_event = made(self, eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
        return self.send_event

    cdef void close_descriptors(self) noexcept:
        cdef int[3] fds = [self.epoll_fd, self.receive_event, self.send_event]
        cdef int fd
        for fd in fds:
            if fd >= 0:
                close_fd(fd)
        self.epoll_fd = self.receive_event = self.send_event = -1


cdef int made(Events self, int fd) except -1:
    """Raises Closed, OutOfDescriptors."""
    if self.closed:
        if fd >= 0:
            close_fd(fd)
        raise (<object>self)._closed_error()
    if fd < 0:
        raise OutOfDescriptors("no descriptors left for a socket", hint=descriptor_hint())
    return fd
