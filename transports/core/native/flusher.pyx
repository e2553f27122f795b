# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Flusher: the native thread as Python sees it, and the release of finished Python objects."""

import threading

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from posix.unistd cimport read as read_fd

from transfer.transports.descriptors import descriptor_hint
from transfer.transports.errors import Broken, OutOfDescriptors

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.kernel_writes cimport flusher_t, segment_t
from transfer.transports.core.native.system cimport pthread_mutex_lock, pthread_mutex_unlock
from transfer.transports.core.native.thread cimport flusher_end, flusher_free, flusher_join, flusher_new

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*call)(void*) except -1, void* argument)
    int Py_MakePendingCalls() except -1

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()


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
    cdef object reason
    cdef object interruption = None
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
            reason = Broken("the connection ended while this message was sent") if segment.failed else error
            interruption = call_whole(released, reason, interruption)
        if segment.capacity:
            free(segment.data)
        free(segment)
        segment = following
    return raise_soon(interruption)


cdef int inform(object released, object error) except -1:
    """Calls back about a message that has no segments here; None: no owner waits for it."""
    return 0 if released is None else raise_soon(call_whole(released, error, None))


cdef object call_whole(object released, object error, object interruption):
    """Calls it again if it raises, since a signal handler did (see Countdown): each message is reported.
    Returns the first exception, or `interruption` if there was one before."""
    cdef int attempts = 10
    while attempts:
        attempts -= 1
        try:
            released(error)
            break
        except BaseException as raised:
            if interruption is None:
                interruption = raised
    return interruption


cdef int raise_soon(object interruption) except -1:
    """The main thread raises it as soon as it runs Python code again: what sends here has queued its message,
    and its caller must not hear that it failed. `check_signals` raises it, too."""
    if interruption is None:
        return 0
    if PyThread_get_thread_ident() == native_link.main_thread:
        Py_INCREF(interruption)
        if Py_AddPendingCall(raise_now, <void*>interruption) == 0:
            return 0
        Py_DECREF(interruption)
    raise interruption


cdef int raise_now(void* interruption) except -1:
    cdef object raised = <object>interruption
    Py_DECREF(raised)
    raise raised


cdef int check_signals() except -1:
    """For a wait: calls the handlers of signals, and raises what `raise_soon` has left."""
    return Py_MakePendingCalls()


native_link.main_thread = threading.main_thread().ident
