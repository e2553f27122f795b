# The sending half of a SocketBase. See peer_choice.pyx.

from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native.events cimport Events
from transfer.transports.core.native.flusher cimport Flusher
from transfer.transports.core.native.pool cimport Pool
from transfer.transports.core.native.stream cimport Stream


cdef class Sending(Events):
    cdef readonly int socket_type
    cdef readonly int send_mode
    cdef readonly Flusher flusher
    cdef readonly Pool pool
    cdef public long long send_timeout
    cdef public Py_ssize_t copy_threshold
    cdef public long long _long_wait  # ms in one call after which `_on_long_wait` is called, and again
    cdef public uint64_t messages_sent
    cdef public uint64_t bytes_sent
    cdef public uint64_t dropped_no_peer
    cdef public uint64_t blocked_ns
    cdef uint64_t losses            # found by this core
    cdef public bint _behind        # messages left by lost connections go first
    cdef int generation
    cdef list outs                  # native streams, in turn; then the foreign ones
    cdef list foreign_outs
    cdef Py_ssize_t next_out
    cdef size_t refused_size        # payload bytes of the message that no peer had room for
    cdef bint exposed               # the user has the descriptor
    cdef bint receiving             # a thread is in a receive
    cdef int waiting                # threads that sleep in poll or epoll
    cdef object __weakref__

    cdef Stream push_one(self, bytes data, tuple parts, Py_ssize_t size, uint64_t sequence)
    cdef int push_all(self, bytes data, tuple parts, Py_ssize_t size) except -2
    cdef Py_ssize_t push_run(self, Stream stream, tuple messages, Py_ssize_t first) except -1
    cdef int push(self, Stream stream, bytes data, tuple parts, Py_ssize_t first, Py_ssize_t size,
                  uint64_t sequence) except -2
    cdef object send_frames(self, frames, long long timeout, stream, topic, bint hold, released,
                            taken, bint patient, bint first=*, bint again=*)
    cdef bint may_go(self) except -1
    cdef bint ask_for_room(self, only, int64_t size) except -1
    cdef object offer_to(self, stream, frames, bint hold, released, list lent, uint64_t* number)
    cdef object offer_by_name(self, stream, frames, bint hold, released, list lent,
                              uint64_t* number)
    cdef object offer_in_turn(self, frames, bint hold, released, list lent, uint64_t* number,
                              bint first)
    cdef object fan_out(self, frames, topic, bint hold, released)
    cdef bytes first_bytes(self, data, list streams)
    cdef bint has_room(self) except -1
    cdef bint wait_for_room(self, only, int64_t deadline) except -1
    cdef int arm(self, Stream stream) except -1
    # of the classes below
    cdef int check_usable(self) except -1
    cdef int64_t note_wait(self, int64_t due) except -1
    cdef int signal(self) except -1
    cdef int lose(self, stream, error) except -1
