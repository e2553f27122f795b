# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Turn: the state of the dialogue of a REQ or REP. transports/req_rep_turn.py describes the methods.

The GIL makes each method atomic: nothing in it releases it. Replaced values are kept until the end of the
method, since dropping an object may run Python.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t

from transfer.transports.errors import InternalError, StateError

cdef extern from "pythread.h" nogil:
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    int PyThread_acquire_lock(PyThread_type_lock, int)
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock)
    unsigned long PyThread_get_thread_ident()
    int PY_LOCK_ACQUIRED
    int PY_LOCK_INTR


cdef class Turn:
    """State of one socket's dialogue; see transports/req_rep_turn.py. Any thread may call."""

    def __cinit__(self):
        self.simple = True
        for side in range(2):
            self.locks[side] = PyThread_allocate_lock()
            if self.locks[side] == NULL:
                raise InternalError("no memory for the locks of a socket")

    def __dealloc__(self):
        for side in range(2):
            if self.locks[side] != NULL:
                PyThread_free_lock(self.locks[side])

    @property
    def counts(self):
        return [self.buckets[index] for index in range(BUCKETS)]

    # --- one thread at a time -----------------------------------------------------------------------

    cdef bint take(self, int side) noexcept:
        if not PyThread_acquire_lock(self.locks[side], 0):
            return False
        self.holders[side] = PyThread_get_thread_ident()
        return True

    cdef void give(self, int side) noexcept:
        self.holders[side] = 0
        PyThread_release_lock(self.locks[side])

    def enter(self, int side, double seconds):
        cdef int answer
        cdef PyThread_type_lock lock = self.locks[side]
        cdef long long wait = <long long>(seconds * 1e6)
        if self.take(side):
            return True
        if self.holders[side] == PyThread_get_thread_ident():
            raise StateError(
                "this thread is in the middle of such a call", hint="do not use a socket in a signal handler")
        if wait <= 0:
            return False
        with nogil:
            answer = PyThread_acquire_lock_timed(lock, wait, 1)
        if answer == PY_LOCK_ACQUIRED:
            self.holders[side] = PyThread_get_thread_ident()
            return True
        if answer == PY_LOCK_INTR:
            PyErr_CheckSignals()
        return False

    def leave(self, int side):
        if self.holders[side] == PyThread_get_thread_ident():  # a caller that was interrupted calls again
            self.give(side)

    # --- REQ ------------------------------------------------------------------------------------------

    cpdef void asks(self, stream, uint64_t number, int64_t now):
        cdef object _before = self.stream, _failure = self.failure
        self.requested_ns = now
        self.number = number if self.pending == number else 0
        self.pending = 0
        self.stream = stream
        self.failure = None

    cpdef bint answers(self, stream, uint64_t number):
        cdef object _failure = self.failure
        if number and number == self.pending:
            self.pending = 0
            self.requested_ns = 0
            return True
        if number == 0 or number != self.number or (self.stream is not None and self.stream is not stream):
            return False
        self.number = 0
        self.failure = None
        return True

    def fails(self, stream, error):
        cdef object _failure = self.failure
        if self.number == 0 or self.stream is not stream:
            return False
        self.failure = error
        return True

    def gives_up(self):
        cdef object failure = self.failure
        if self.number and failure is not None:
            self.number = 0
            self.failure = None
            return failure
        return None

    cpdef void answered(self, int64_t now) noexcept:
        cdef int64_t took = now - self.requested_ns
        cdef int64_t bound = 16000
        cdef int index = 0
        if self.requested_ns == 0:
            return
        while index < BUCKETS - 1 and took > bound:
            bound <<= 1
            index += 1
        self.buckets[index] += 1
        self.total_ns += took

    # --- REP ------------------------------------------------------------------------------------------

    def request_received(self, stream, uint64_t number, bint simple):
        cdef object _before = self.stream
        self.stream = stream
        self.number = number
        self.simple = simple
        self.open = True

    def closes(self, stream):
        if not self.open or self.stream is not stream:
            return False
        self.open = False
        return True
