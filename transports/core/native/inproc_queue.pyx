# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""InprocEnd: the queues of a pair of streams inside one process. Contract: core/contract.pyi.

A plain message lies in the queue as it was sent: `bytes`, or a list of `bytes` for several parts. It is put
in and taken out by C code alone. `inproc_stream.py` handles all else, whose messages are objects of its own
in the same queue, so that their order is kept.

The GIL is the lock. Each change is one step: no object is made or freed in it and no callback is called,
since another thread may run there (see Attachments). A callback wakes the other side, if it has to be woken:

- The reader, when it has found nothing since the last message. It may sleep then, or look at a descriptor.
- The writer, when it has met a high-water mark. One that sleeps looks again by itself from time to time, so
  it is woken when half of the queue is free: with less, each message would cost two changes of threads.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport write as write_fd

from weakref import ref

from transfer.transports.core.native.kernel_writes cimport F_MORE
from transfer.transports.core.native.peer_choice cimport Sending
from transfer.transports.core.native.pool cimport Frame

cdef extern from *:
    """
    #include <time.h>
    /* Some milliseconds late at most: enough to know whether the other side lives, at a fifth of the cost */
    static inline long long coarse_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    """
    int64_t coarse_ns() noexcept

cdef enum:
    SMALL = 64                 # messages for which a queue has places at first
    MOST_KEPT = 8192           # places that an empty queue keeps


cdef class Wake:
    """Wakes a socket of the other end, without Python code, in which a signal handler could raise. Does not
    keep the socket: dropping it ends it."""

    cdef int notify(self) except -1:
        cdef uint64_t one = 1
        cdef Sending core = <Sending>self.core()
        if core is None:
            return 0
        if self.room and core.send_event >= 0:  # else no thread has slept on it: one that will looks first
            write_fd(core.send_event, &one, 8)
        if (not self.room or core.exposed) and not core.event_set and core.receive_event >= 0:
            core.event_set = True
            write_fd(core.receive_event, &one, 8)
        return 0

    def __call__(self):
        self.notify()


cdef Wake wake_of(object core, bint room):
    """room: for a writer; else for a reader."""
    cdef Wake made = Wake.__new__(Wake)
    made.core = ref(core)
    made.room = room
    return made


cdef class InprocEnd:
    """One end: the messages that came for it, and the counters of both directions. Any thread may call."""

    def __cinit__(self, *args, **kwargs):
        self.ring = [None] * SMALL
        self.reader_looks = True
        self.send_high_water = 1000
        self.send_high_water_bytes = 64 << 20

    def _join(self, InprocEnd other):
        """Makes the two ends a pair."""
        self._other, other._other = other, self

    # --- the sending end ---------------------------------------------------------------------------

    cdef bint is_full(self, int64_t size) noexcept:
        if self.queued == 0:
            return False  # a single message is always accepted, however large
        if 0 < self.send_high_water <= self.queued:
            return True
        return 0 < self.send_high_water_bytes < self.queued_bytes + size

    def _has_no_room(self, int64_t size):
        """Whether a message of this size has to wait. If so, `on_writable` reports room."""
        if not self.is_full(size):
            return False
        self.room_wanted = 1
        return True

    cdef int64_t put(self, object message, int64_t size, bint control, bint force) except -2:
        """Queues a message: its number among those sent. 0: there is no room; -1: the pair has ended."""
        cdef InprocEnd other = self._other
        cdef int64_t number
        if other is not None:  # else the pair is being collected
            other.fit()
        if other is None or self.broken is not None:
            return -1
        if not force and self.is_full(size):
            self.room_wanted = 1
            return 0
        other.ring[(other.first + other.count) & (PyList_GET_SIZE(other.ring) - 1)] = message
        other.count += 1
        number = self.sent + 1
        if not control:
            self.sent += 1
            self.sent_bytes += size
            self.queued += 1
            self.queued_bytes += size
        self.last_sent_ns = coarse_ns()
        return number

    def _put(self, message, int64_t size, bint control, bint force):
        return self.put(message, size, control, force)

    cdef int fit(self) except -1:
        """Makes room for one more message, and gives back what a long queue took. Other threads may run while
        a list is made."""
        cdef list before = self.ring
        cdef list after
        cdef Py_ssize_t places = PyList_GET_SIZE(before)
        cdef Py_ssize_t index
        while self.count == places or (self.count == 0 and places > MOST_KEPT):
            after = [None] * (2 * places if self.count else SMALL)
            if self.ring is before and self.count < PyList_GET_SIZE(after):
                for index in range(self.count):
                    after[index] = before[(self.first + index) & (places - 1)]
                self.first = 0
                self.ring = after
            before = self.ring
            places = PyList_GET_SIZE(before)
        return 0

    cdef int push(self, object message, int64_t size) except -2:
        """Queues a plain message. 1: the reader is to be woken; 0: it is not; -1: not queued."""
        if self.put(message, size, False, False) <= 0:
            return -1
        if not self._other.reader_looks:
            return 0
        self._other.reader_looks = False
        return 1

    cdef object offer_plain(self, frames, uint64_t* number):
        """Queues a message that no program follows, if it is plain. False: there is no room, or the pair has
        ended; None: it is not plain."""
        cdef int64_t size = 0
        cdef list parts = []
        cdef int answer
        for frame in frames:
            flags, sequence, topic, meta, data = frame
            if flags or sequence or topic is not None or meta is not None or type(data) is not bytes:
                return None
            size += PyBytes_GET_SIZE(data)
            parts.append(data)
        if self.broken is not None:
            return None  # the general way raises the error
        answer = self.push(parts if len(parts) != 1 else parts[0], size)
        if answer < 0:
            return False
        number[0] = self.sent
        if answer:
            self.wake_reader()
        return True

    cdef bint match(self, bytes topic) except -1:
        """Whether the peer subscribed to it: as `matches`."""
        cdef dict counts = self._prefixes.counts
        cdef Py_ssize_t length
        for length in <tuple>self._prefixes.lengths:
            if topic[:length] in counts:
                return True
        return False

    cdef int wake_reader(self) except -1:
        return call(self._other.on_readable)

    # --- the receiving end -------------------------------------------------------------------------

    def _first(self):
        """The first message, which stays queued; None: there is none, and the next one wakes the reader."""
        if self._closed or self.count == 0:
            self.reader_looks = True
            return None
        return self.ring[self.first]

    cdef bint has_unread(self) noexcept:
        """Whether `take` has something to return. If not, the next message wakes the reader."""
        if self._credit_due or self.handed is not None or (self.count and not self._closed):
            return True
        self.reader_looks = True
        return False

    cdef bint is_idle(self) noexcept:
        """Whether `take` would return None."""
        return not self.has_unread() and self.broken is None

    cdef object pop(self):
        """There is a message."""
        cdef object message = self.ring[self.first]
        self.ring[self.first] = None
        self.first = (self.first + 1) & (PyList_GET_SIZE(self.ring) - 1)
        self.count -= 1
        return message

    cdef int left_queue(self, int64_t size) except -1:
        """A message, not a control frame, was taken."""
        cdef InprocEnd other = self._other
        self.taken += 1
        if other.queued:
            other.queued -= 1
            other.queued_bytes -= size
        return 0

    def _hand(self, queued, message, list frames, int64_t size, bint control):
        """The first message leaves the queue. Its frames are `handed`, and the message is `_given`. Does
        nothing if it was removed."""
        if self.count == 0 or self.ring[self.first] is not queued:
            return
        self.last_received_ns = coarse_ns()
        if not control:
            self.left_queue(size)
            self.credit_at = self.taken
        self.handed, self._given = frames, message
        self.pop()

    def _remove(self, queued):
        """The first message is refused."""
        if self.count and self.ring[self.first] is queued:
            self.pop()

    @property
    def _next_number(self):
        """The number of the next message among those that its sender has sent."""
        return self.taken + 1

    cdef object first_plain(self):
        """The first message if it is plain, and nothing else comes before it."""
        cdef object message
        if (self.count == 0 or self._closed or self._credit_due or self.handed is not None
                or self._other is None):
            return None
        message = self.ring[self.first]
        return message if type(message) is bytes or type(message) is list else None

    cdef bint wakes_in_c(self) noexcept:
        """Whether no signal handler can raise where a message was taken."""
        return self._other.on_writable is None or type(self._other.on_writable) is Wake

    cdef int take_plain(self, object message, int64_t size) except -1:
        """The application takes the first message, which is this one."""
        self.last_received_ns = coarse_ns()
        self.left_queue(size)
        self.pop()
        self.count_received(size)
        return 0

    cdef list take_frames(self):
        """The frames of a plain message, which are `handed`; None: the next message is not plain."""
        cdef object message = self.first_plain()
        cdef list parts
        cdef list frames = []
        cdef Frame frame
        cdef uint64_t size = 0
        if message is None:
            return None
        parts = <list>message if type(message) is list else [message]
        for part in parts:
            frame = Frame.__new__(Frame)
            frame.data = part
            frame.flags = F_MORE
            frame.socket_type = self._other.socket_type
            size += PyBytes_GET_SIZE(part)
            frames.append(frame)
        frame.flags = 0
        # Other threads may have run while the frames were made.
        if size > self.max_message or self.first_plain() is not message:
            return None
        self.last_received_ns = coarse_ns()
        self.left_queue(size)
        for frame in frames:
            frame.sequence = self.taken
        self.handed = frames
        self.pop()
        self.wake_writer()
        return frames

    def consume(self, list frames):
        """The application has this message from `take`: it may be reported to the peer."""
        cdef Py_ssize_t size = 0
        for frame in frames:
            size += len(frame)
        self.count_received(size)
        if self.credits and 0 < self.credit_at <= self.consumed:
            self.credit_at = 0
            if not self._other._credit_due:
                self._other._credit_due = True
                call(self._other.on_readable)

    cdef int count_received(self, int64_t size) except -1:
        """The other end learns at once how many messages were consumed. Where a program may wait for that,
        Python informs it by a credit: after messages that Python sent."""
        self.received += 1
        self.received_bytes += size
        self.consumed = self.received
        if self.credits and self._other.confirmed < self.consumed:
            self._other.confirmed = self.consumed
        return 0

    cdef bint room_is_due(self) noexcept:
        """Whether the other end, which sends, waits for room and is to be woken now."""
        cdef InprocEnd other = self._other
        if other.room_wanted == 0 or other.is_full(1):
            return False
        if other.room_wanted == PATIENT and other.queued:
            if 2 * other.queued > other.send_high_water > 0:
                return False
            if 2 * other.queued_bytes > other.send_high_water_bytes > 0:
                return False
        return True

    cdef int wake_writer(self) except -1:
        """Wakes the other end's writer if that is due."""
        if not self.room_is_due():
            return 0
        self._other.room_wanted = 0
        return call(self._other.on_writable)

    def _wake_writer(self):
        self.wake_writer()

    # --- the end -----------------------------------------------------------------------------------

    def _clear(self):
        """Removes all messages for this end, and returns them."""
        cdef list fresh = [None] * SMALL
        cdef list left = []
        cdef list ring = self.ring
        cdef Py_ssize_t first = self.first
        cdef Py_ssize_t count = self.count
        # As one step. What was queued before may be long.
        self.first = self.count = 0
        self.ring = fresh
        for index in range(count):
            left.append(ring[(first + index) & (PyList_GET_SIZE(ring) - 1)])
        return left


cdef int call(object callback) except -1:
    """Wakes by a callback. If it is Python code, and a signal handler raises in it, the other side is woken
    all the same."""
    if type(callback) is Wake:
        (<Wake>callback).notify()
    elif callback is not None:
        try:
            callback()
        except BaseException:
            callback()
            raise
    return 0


cdef int wait_patiently(list streams) except -1:
    """A writer sleeps, and looks for room again by itself."""
    for stream in streams:
        if isinstance(stream, InprocEnd) and (<InprocEnd>stream).room_wanted:
            (<InprocEnd>stream).room_wanted = PATIENT
    return 0


cdef bint is_inproc(object stream) noexcept:
    return isinstance(stream, InprocEnd)


cdef bint all_inproc(list streams) noexcept:
    for stream in streams:
        if not isinstance(stream, InprocEnd):
            return False
    return True


cdef bint has_unread(list streams) noexcept:
    """Whether a message waits in one of these streams that are ends. If not, the next one wakes the
    reader."""
    for stream in streams:
        if isinstance(stream, InprocEnd) and (<InprocEnd>stream).has_unread():
            return True
    return False


cdef bint all_idle(list streams) noexcept:
    """Whether all of these streams are ends, and none has anything for the reader. If so, the next message
    wakes it."""
    cdef bint idle = True
    for stream in streams:
        if not isinstance(stream, InprocEnd) or not (<InprocEnd>stream).is_idle():
            idle = False
    return idle
