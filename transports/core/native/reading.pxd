# The fair reader over the streams of a SocketBase. See reading.pyx.

from libc.stdint cimport uint64_t

from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.peer_choice cimport Sending
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.system cimport epoll_event

cdef enum:
    MAX_EVENTS = 64
    TURN_MESSAGES = 64             # of one stream among several: handling each may take long
    MOST_UNWANTED = 256            # the most frames of one check that are not for the program
    PLAIN_TURN = 256               # of those that `recv` returns without a check: changing streams costs more


cdef class Reading(Sending):
    cdef readonly int receive_mode
    cdef public uint64_t filtered
    cdef dict by_fd                 # native streams by descriptor, for events
    cdef list foreign_ins
    cdef bint foreign_first
    cdef bint inproc_only           # all of `foreign_ins` are ends of pairs in this process
    cdef int inproc_turn            # messages of theirs in this turn, and since then of the others
    cdef int own_turn
    cdef reader_t reader
    cdef Stream current             # whose bytes are in the reader
    cdef object inside              # the stream that is read at this moment, and by which thread
    cdef unsigned long inside_thread
    cdef int ready[MAX_EVENTS]
    cdef int ready_count
    cdef int ready_next
    cdef dict waiting_turn          # streams with complete frames, for the time after the others' turns
    cdef int turns_left             # of them, before epoll is called again
    cdef int turn_messages          # of the current stream, in this turn
    cdef int unwanted               # frames in this receive that are not for the program
    cdef object stash               # a message found by a check, for the next receive
    cdef list again                 # messages whose receive was interrupted; None: there are none
    cdef tuple counted              # the message in the stash, if it was counted when it was first received
    cdef Stream sinking             # has half a frame in the caller's memory
    cdef object foreign_sinking     # the same of a foreign stream
    # own subscriptions
    cdef dict prefixes
    cdef tuple prefix_lengths
    cdef bint wants_all

    cdef tuple poll_once(self, bint as_bytes, sink)
    cdef bint look(self) except -1
    cdef bint take_events(self, epoll_event* events, int count) except -1
    cdef bint next_ready(self)
    cdef bint begin_turn(self, Stream stream)
    cdef int count_turn(self, Stream stream) except -1
    cdef int end_turn(self, Stream stream) except -1
    cdef tuple next_of_current(self, bint as_bytes, sink)
    cdef tuple read_current(self, Stream stream, bint as_bytes, sink)
    cdef int give_back(self, Stream stream) except -1
    cdef int enter(self, object stream) except -1
    cdef int take_out(self, object stream) except -1
    cdef tuple next_foreign(self, sink)
    cdef object ask_foreign(self, object stream, sink)
    cdef object take_foreign(self, object stream, sink)
    cdef tuple pour_stash(self, sink)
    cdef int own(self, list frames) except -1
    cdef int leave_sink(self) except -1
    cdef object leave_foreign_sink(self, other)
    cdef bint wanted(self, list frames)
    cdef bint is_subscribed(self, bytes topic)
