# Messages of several parts. See parts.pyx.

from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.atomic cimport add, load_int
from transfer.transports.core.native.attachment cimport Attachments
from transfer.transports.core.native.kernel_writes cimport link_arm_credit, link_t
from transfer.transports.core.native.reading cimport PLAIN_TURN, TURN_MESSAGES
from transfer.transports.core.native.req_rep_turn cimport Turn
from transfer.transports.core.native.stream cimport Stream

cdef enum:
    DONTWAIT = 1
    SNDMORE = 2


cdef class UnfinishedMessages:
    cdef readonly Py_ssize_t reading
    cdef readonly Py_ssize_t sending
    cdef void* newest               # the SocketThread that asked last, and its number; it lives, or NULL
    cdef uint64_t number


cdef class SocketThread:
    cdef public object given
    cdef public object stream
    cdef readonly object rest
    cdef readonly list begun
    cdef UnfinishedMessages counted
    cdef object __weakref__

    cdef object checked(self, object made, bint all_parts)
    cpdef object begin(self, frames)
    cpdef object end(self)
    cpdef object leave(self, parts)
    cpdef object put_back(self, part)
    cpdef object take(self)
    cpdef object clear(self)


cdef class Parts(Attachments):
    cdef public bint _general_send
    cdef public bint _general_recv
    cdef public dict _routes
    cdef public bint _with_identity
    cdef public bint _keeps_properties
    cdef public Turn _turn
    cdef readonly UnfinishedMessages _unfinished
    cdef int64_t looked             # when the kernel was asked last, while another socket had messages ready

    cdef bint push_parts(self, tuple parts) except -1
    cdef bint keep_part(self, bytes data) except -1
    cdef bint send_last(self, SocketThread here, bytes data) except -1
    cdef size_t plain_end(self, Py_ssize_t* count, uint64_t* total) noexcept
    cdef list plain_parts(self)
    cdef SocketThread thread_here(self)
    cdef object next_part(self, bint copy)
    cdef list inproc_parts(self)
    cdef object inproc_part(self)
    cdef bint is_all_wanted(self) noexcept


cdef int bits_of(object flags) except -1


cdef inline bint is_usable(Parts self) noexcept:
    """Whether a plain message can be sent at once: nothing has to be checked or sent before it."""
    return (not self.closed and not self._behind
            and self.generation == native_link.fork_generation)


cdef inline void count_one(Parts self, Stream stream, size_t size) noexcept:
    cdef link_t* link = stream.link
    add(&link.received, 1)
    link.received_bytes += size
    self.turn_messages += 1
    self.own_turn += 1
    self.messages_received += 1
    self.bytes_received += size
    if link.credits and not load_int(&link.credit_armed):
        link_arm_credit(link)


cdef inline bint is_in_order(Parts self, Stream stream) noexcept:
    """Whether the next message is the one in the reader."""
    return not (self.receiving or self.stash is not None or self.again is not None
                or self.closed
                or (self.foreign_ins and (not self.inproc_only or self.own_turn >= TURN_MESSAGES))
                or self.generation != native_link.fork_generation
                or stream.parts is not None or stream.large is not None
                or (self.turn_messages >= PLAIN_TURN and self.reader.reads >= 0))


cdef inline bint is_same(Parts self, Stream stream, uint64_t number, size_t start) noexcept:
    """Whether the reader is as it was: no other call has received."""
    return (self.messages_received == number and self.reader.start == start
            and self.current is stream and not self.receiving and not self.closed)
