# The receiving half of a SocketBase. See receiving.pyx.

from libc.stdint cimport int64_t, uint64_t

from transports.native.flusher cimport reader_t
from transports.native.link cimport link_arm_credit, link_t
from transports.native.sending cimport Sending
from transports.native.stream cimport Stream
from transports.native.system cimport epoll_event

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock

cdef enum:
    MAX_EVENTS = 64


cdef bint is_ended(object stream) except -1


cdef class Receiving(Sending):
    cdef readonly int receive_mode
    cdef public long long receive_timeout
    cdef public long long spin_us
    cdef public uint64_t messages_received
    cdef public uint64_t bytes_received
    cdef public uint64_t filtered
    cdef public uint64_t waited_ns
    cdef dict by_fd                 # native streams, to find the one of an event
    cdef list foreign_ins
    cdef dict foreign_fds           # descriptor -> how many foreign streams sleep on it
    cdef bint foreign_first
    cdef PyThread_type_lock lock    # who receives
    cdef reader_t reader
    cdef Stream current             # whose bytes are in the reader
    cdef object inside              # the stream that is read at this moment, and by which thread
    cdef unsigned long inside_thread
    cdef int ready[MAX_EVENTS]
    cdef int ready_count
    cdef int ready_next
    cdef object stash               # a message found by looking, for the next receive
    cdef list again                 # messages whose receive was interrupted; None: there are none
    cdef tuple counted              # the message in the stash, if it was counted when it was first received
    cdef Stream sinking             # has half a frame in the caller's memory
    cdef object foreign_sinking     # a foreign stream that has
    cdef int64_t last_wait
    # own subscriptions
    cdef dict prefixes
    cdef tuple prefix_lengths
    cdef bint wants_all

    cdef tuple next_message(self, long long timeout, bint as_bytes, sink, bint peek=*)
    cdef int claim(self, tuple message) except -1
    cdef int count_message(self, tuple message) except -1
    cdef int count_foreign(self, object stream, tuple message) except -1
    cdef int take_lock(self, long long timeout, int64_t deadline) except -1
    cdef tuple poll_once(self, bint as_bytes, sink)
    cdef tuple pour_stash(self, sink)
    cdef int own(self, list frames) except -1
    cdef bint next_ready(self)
    cdef int leave_sink(self) except -1
    cdef tuple next_of_current(self, bint as_bytes, sink)
    cdef tuple read_current(self, Stream stream, bint as_bytes, sink)
    cdef int give_back(self, Stream stream) except -1
    cdef int enter(self, object stream) except -1
    cdef int take_out(self, object stream) except -1
    cdef tuple next_foreign(self, sink)
    cdef object ask_foreign(self, object stream, sink)
    cdef object take_foreign(self, object stream, sink)
    cdef bint wanted(self, list frames)
    cdef bint look(self) except -1
    cdef bint take_events(self, epoll_event* events, int count) except -1
    cdef bint wait_for_input(self, int64_t deadline) except -1
