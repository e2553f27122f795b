# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Flusher: the native thread as Python sees it, and the release of finished Python objects."""

from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from posix.unistd cimport read as read_fd

from transfer.transports.descriptors import descriptor_hint
from transfer.transports.errors import Broken, OutOfDescriptors

from transfer.transports.core.native.kernel_writes cimport flusher_t, segment_t
from transfer.transports.core.native.system cimport pthread_mutex_lock, pthread_mutex_unlock
from transfer.transports.core.native.thread cimport flusher_end, flusher_free, flusher_join, flusher_new


cdef class Flusher:
    """The native thread of a context; it starts with the first stream that needs it."""

    def __cinit__(self):
        self.state = flusher_new()
        if self.state == NULL:
            raise OutOfDescriptors("no descriptors left for the flusher", hint=descriptor_hint())
        self.state.references = 1

    def fileno(self):
        return self.state.reap_fd

    def reap(self):
        """Releases user memory that is written, and calls the callbacks."""
        cdef uint64_t count
        read_fd(self.state.reap_fd, &count, 8)
        release_segments(self.take_finished(), None)

    cdef segment_t* take_finished(self) noexcept:
        cdef segment_t* finished
        pthread_mutex_lock(&self.state.mutex)
        finished = self.state.finished
        self.state.finished = NULL
        pthread_mutex_unlock(&self.state.mutex)
        return finished

    def close(self):
        """Joins the thread. Twice is fine."""
        self.reap()
        self.end()

    cdef int end(self) except -1:
        with nogil:
            flusher_join(self.state)
        flusher_end(self.state)
        return release_segments(self.take_finished(), None)

    def __dealloc__(self):
        free(self.reader.data)
        if self.state != NULL:
            self.end()
            let_go(self.state)


cdef void let_go(flusher_t* state) noexcept:
    """Drops one owner. A stream may outlive its Flusher when the collector frees both."""
    state.references -= 1
    if state.references == 0:
        flusher_free(state)


cdef int release_segments(segment_t* segment, object error) except -1:
    """Under the GIL and without any mutex: Python code that runs here may call this class again."""
    cdef segment_t* following = segment
    cdef object released
    # All memory first: the last written segment comes first, and one callback may be for several segments.
    while following != NULL:
        if following.owner != NULL:
            Py_DECREF(<object>following.owner)
        following = following.next
    while segment != NULL:
        following = segment.next
        if segment.released != NULL:
            released = <object>segment.released
            Py_DECREF(released)
            released(Broken("the connection ended while this message was sent")
                     if segment.failed else error)
        if segment.capacity:
            free(segment.data)
        free(segment)
        segment = following
    return 0
