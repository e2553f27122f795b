# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Receiving: one receive at a time, which sleeps until a message comes, and counts what it returns."""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport read as read_fd
from posix.unistd cimport write as write_fd

from transfer.transports.errors import Again

from transfer.transports.core.native.flusher cimport check_signals
from transfer.transports.core.native.inproc_queue cimport all_idle, has_unread
from transfer.transports.core.native.kernel_writes cimport now_ns
from transfer.transports.core.native.pool cimport Frame
from transfer.transports.core.native.reading cimport MAX_EVENTS, MOST_UNWANTED, Reading
from transfer.transports.core.native.ring cimport ring_has_news
from transfer.transports.core.native.ring_requests cimport ring_t
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.system cimport epoll_event, epoll_wait

cdef extern from "pythread.h" nogil:
    int PyThread_acquire_lock(PyThread_type_lock, int)
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock)
    int PY_LOCK_ACQUIRED
    int PY_LOCK_INTR

cdef enum:
    MOST_SPUN = 16                 # connections by RDMA that are asked; epoll has all
    SPUN_FOR_ONE = 16              # rounds of that for one of epoll
    SPUN_NS = 20_000_000           # until signals are looked for
    LOOK_MS = 1000                 # the longest sleep


cdef class Receiving(Reading):
    """The receives of a socket: which thread reads, until when, and how it is woken."""

    def _recv_message(self, long long timeout, sink=None):
        """One whole message: (stream, frames). Raises Again, Closed."""
        return self.next_message(timeout, False, sink)

    def _readable(self):
        """Whether a recv would return at once. Exact: a message found is kept for the next recv."""
        return self.has_message()

    cdef bint has_message(self) except -1:
        if self.stash is not None or self.again is not None:
            return True
        if self.closed or self.receiving or self.finds_nothing():
            return False
        try:
            self.stash = self.next_message(0, False, None, True)
        except Again:
            return False
        if self.exposed:
            self.signal()
        return True

    cdef bint finds_nothing(self) except -1:
        """Asks the kernel, if that is all that a receive without a wait would do: True if there is nothing.
        The caller holds the GIL, and no thread receives."""
        if (self.current is not None or self.stash is not None or self.again is not None
                or (self.foreign_ins and not all_idle(self.foreign_ins))
                or self.ready_next < self.ready_count or self.waiting_turn or self.sinking is not None):
            return False
        if self.look():
            return False
        if self.exposed:
            self.signal()
        return True

    cdef tuple next_message(self, long long timeout, bint as_bytes, sink, bint peek=False):
        cdef int64_t deadline = -1
        cdef int64_t due = 0
        cdef tuple message
        self.check_usable()
        if timeout > 0:
            deadline = now_ns() + timeout * 1000000
        self.take_lock(timeout, deadline)
        self.receiving = True
        self.last_wait = self.unwanted = 0
        try:
            while True:
                message = self.poll_once(as_bytes, sink)
                if message is not None:
                    if not peek:
                        self.claim(message)
                    return message
                if self.unwanted >= MOST_UNWANTED:  # and more of them may come, without end
                    self.check_usable()
                    PyErr_CheckSignals()
                    if timeout == 0:
                        raise Again("no message was found yet")
                    if deadline >= 0 and now_ns() >= deadline:
                        raise self._no_message()
                    self.unwanted = 0
                    continue
                if timeout == 0 and not self.look():
                    raise Again("no message is there")
                if timeout == 0:
                    continue
                due = self.note_wait(due)
                if not self.wait_for_input(deadline):
                    raise self._no_message()
        finally:
            try:
                self.leave_sink()
            finally:
                self.receiving = False
                PyThread_release_lock(self.lock)
                if self.exposed:
                    self.signal()

    def _pass_turn(self):
        """Handling the last messages took long: other streams come before the next ones of theirs.
        Any thread may call."""
        if not PyThread_acquire_lock(self.lock, 0):
            return
        try:
            if self.current is not None:
                self.end_turn(self.current)
        finally:
            PyThread_release_lock(self.lock)

    def _found(self):
        """See the contract."""
        cdef list found = [] if self.again is None else list(self.again)
        cdef tuple stash = self.stash
        if stash is not None:
            found.append(stash)
        return found

    def _give_again(self, stream, list frames):
        """A message of `_recv_message` that its call could not return to the program: the next receive has
        it. It is counted already. Any thread may call."""
        cdef list first = []  # made before the check: see Attachments
        cdef tuple message = (stream, frames)
        cdef tuple newer = None
        cdef bint counted
        self.own(frames)
        if self.again is None:
            self.again = first
        if not self.receiving and self.stash is not None:  # it was found after this one
            newer, counted = self.stash, self.stash is self.counted
            self.stash = self.counted = None
        self.again.append(message)
        if newer is not None:
            self.again.append(newer)
            if not counted:
                self.count_message(newer)
        self._notify()

    cdef int claim(self, tuple message) except -1:
        """The message becomes the caller's. If a signal came during the read, its handler would raise before
        the caller has it. So the handler is called here, and the message stays for the next receive."""
        try:
            PyErr_CheckSignals()
            if message is not self.counted:
                self.count_message(message)
        except BaseException:
            self.own(<list>message[1])  # a sink's memory is the caller's
            self.stash = message
            raise
        self.counted = None
        return 0

    cdef int count_message(self, tuple message) except -1:
        cdef object stream = message[0]
        cdef Frame frame
        if type(stream) is not Stream:
            self.count_foreign(stream, message)
        self.messages_received += 1
        for frame in <list>message[1]:
            self.bytes_received += len(frame.data)
        if type(stream) is Stream:
            (<Stream>stream).count(<list>message[1])
            (<Stream>stream).link.waited_ns += self.last_wait
            self.last_wait = 0
        return 0

    cdef int count_foreign(self, object stream, tuple message) except -1:
        """Python code, in which a handler may raise: after its count or before it."""
        cdef object before = stream.received
        try:
            stream.consume(message[1])
        except BaseException:
            if stream.received != before:
                self.messages_received += 1
                self.counted = message
            raise
        return 0

    cdef int take_lock(self, long long timeout, int64_t deadline) except -1:
        """Takes the receive lock, within the caller's time. Waiting threads see a close within 100 ms."""
        cdef long long wait
        cdef int answer
        if PyThread_acquire_lock(self.lock, 0):
            return 0
        if timeout == 0:
            raise Again("another thread is receiving on this socket")
        while True:
            wait = 100000
            if deadline >= 0:
                wait = min(wait, (deadline - now_ns()) // 1000)
                if wait <= 0:
                    raise Again("another thread was receiving on this socket all the time")
            with nogil:
                answer = PyThread_acquire_lock_timed(self.lock, wait, 1)
            if answer == PY_LOCK_ACQUIRED:
                if self.closed:
                    PyThread_release_lock(self.lock)
                    self.check_usable()
                return 0
            if answer == PY_LOCK_INTR:
                PyErr_CheckSignals()
            self.check_usable()

    cdef bint wait_for_input(self, int64_t deadline) except -1:
        """Sleeps until a message came or the socket is notified. False: the time-out expired."""
        cdef epoll_event events[MAX_EVENTS]
        cdef int count = 0
        cdef int error = 0
        cdef int wait = LOOK_MS
        cdef int64_t begin = now_ns()
        self.check_usable()  # a close during the read has woken only threads that slept then
        if deadline >= 0:
            if begin >= deadline:
                return False
        self.epoll_of_all()
        self.waiting += 1
        try:
            if self.spin_us:
                count = self.spin(events, begin + self.spin_us * 1000, deadline)
            if deadline >= 0:
                wait = <int>max(0, min((deadline - now_ns() + 999999) // 1000000, <int64_t>LOOK_MS))
            # A signal just before it would not end the sleep, and between this check and the sleep
            # there is a gap, too: so no sleep is endless.
            check_signals()
            if count == 0:
                with nogil:
                    count = epoll_wait(self.epoll_fd, events, MAX_EVENTS, wait)
                    error = errno
        finally:
            self.waiting -= 1
        self.last_wait += now_ns() - begin
        self.waited_ns += now_ns() - begin
        self.take_events(events, count)
        if count < 0 and error == EINTR:
            PyErr_CheckSignals()
        self.check_usable()
        return True

    cdef int spin(self, epoll_event* events, int64_t until, int64_t deadline) except -1:
        """Checks for input until then, or the deadline unless that is negative: the number of events.
        Connections by RDMA are asked themselves, which costs neither a system call nor an interrupt of the
        device."""
        cdef ring_t* rings[MOST_SPUN]
        cdef int fds[MOST_SPUN]
        cdef int spun = 0
        cdef int turn = 0
        cdef int count = 0
        cdef int at
        cdef int64_t pause
        cdef Stream stream
        cdef list streams = list(self.by_fd.values())  # alive until the end: another thread may close them
        for stream in streams:
            if stream.link.ring != NULL and spun < MOST_SPUN:
                rings[spun] = stream.link.ring
                fds[spun] = stream.watched_fd()
                spun += 1
        if deadline >= 0:
            until = min(until, deadline)
        while count == 0 and now_ns() < until:
            PyErr_CheckSignals()
            pause = min(until, now_ns() + SPUN_NS)
            with nogil:
                while count == 0 and now_ns() < pause:
                    for at in range(spun):
                        if ring_has_news(rings[at]):
                            events[count].data.fd = fds[at]
                            count += 1
                    turn += 1
                    if count == 0 and (spun == 0 or turn % SPUN_FOR_ONE == 0):
                        count = epoll_wait(self.epoll_fd, events, MAX_EVENTS, 0)
        return count

    cdef int signal(self) except -1:
        """Keeps the descriptor readable exactly while decoded messages are left."""
        cdef uint64_t one = 1
        cdef bint left = (self.stash is not None or self.again is not None
                          or self.reader.end != self.reader.start
                          or self.ready_next < self.ready_count or len(self.waiting_turn) > 0
                          or self.unwanted >= MOST_UNWANTED
                          or (len(self.foreign_ins) > 0 and has_unread(self.foreign_ins)))
        if left == self.event_set:
            return 0
        self.event_set = left
        if left:
            write_fd(self.receive_event, &one, 8)
        else:
            read_fd(self.receive_event, &one, 8)
        return 0

    def _notify(self):
        """Wakes every thread that waits in this socket; they check again."""
        cdef uint64_t one = 1
        if self.receive_event >= 0:
            self.event_set = True
            write_fd(self.receive_event, &one, 8)
        if self.send_event >= 0:
            write_fd(self.send_event, &one, 8)
