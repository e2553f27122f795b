# One end of a pair inside a process. See inproc_queue.pyx.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    PATIENT = 2                # values of `room_wanted`; see there


cdef class Wake:
    cdef object core                # a weak reference to the socket's core
    cdef bint room

    cdef int notify(self) except -1


cdef class InprocEnd:
    cdef public InprocEnd _other
    # messages for this end
    cdef list ring                  # its length is a power of two; None where there is no message
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef bint reader_looks          # it found nothing: the next message wakes it
    cdef uint64_t taken             # messages, without control frames
    cdef uint64_t credit_at         # the sender of this one waits for a credit; 0: none does
    # messages from this end
    cdef int room_wanted            # 0; 1: as soon as there is some; PATIENT: when half of the queue is free
    cdef public uint64_t sent
    cdef public int64_t sent_bytes
    cdef public int64_t queued
    cdef public int64_t queued_bytes
    cdef public int64_t send_high_water
    cdef public int64_t send_high_water_bytes
    cdef public int64_t last_sent_ns
    cdef public uint64_t confirmed
    cdef public uint64_t dropped
    cdef public bint _credit_due    # the other end consumed more since the last credit
    # of the messages that came
    cdef public uint64_t received
    cdef public int64_t received_bytes
    cdef public uint64_t consumed
    cdef public int64_t last_received_ns
    cdef public uint64_t max_message
    cdef public bint credits
    cdef public object handed
    cdef public object _given       # its frames are `handed`, and its sender still waits for the result
    # both
    cdef public bytes identity      # as that of a Stream
    cdef public object _prefixes    # the subscriptions of the peer; see transports/prefixes.py
    cdef public int socket_type
    cdef public object broken
    cdef public bint _closed
    cdef public object on_readable
    cdef public object on_writable

    cdef bint is_full(self, int64_t size) noexcept
    cdef int64_t put(self, object message, int64_t size, bint control, bint force) except -2
    cdef int fit(self) except -1
    cdef object pop(self)
    cdef int left_queue(self, int64_t size) except -1
    cdef int push(self, object message, int64_t size) except -2
    cdef object offer_plain(self, frames, uint64_t* number)
    cdef bint match(self, bytes topic) except -1
    cdef int wake_reader(self) except -1
    cdef bint has_unread(self) noexcept
    cdef bint is_idle(self) noexcept
    cdef object first_plain(self)
    cdef bint wakes_in_c(self) noexcept
    cdef int take_plain(self, object message, int64_t size) except -1
    cdef list take_frames(self)
    cdef int count_received(self, int64_t size) except -1
    cdef bint room_is_due(self) noexcept
    cdef int wake_writer(self) except -1


cdef Wake wake_of(object core, bint room)
cdef int wait_patiently(list streams) except -1
cdef bint is_inproc(object stream) noexcept
cdef bint all_inproc(list streams) noexcept
cdef bint has_unread(list streams) noexcept
cdef bint all_idle(list streams) noexcept
