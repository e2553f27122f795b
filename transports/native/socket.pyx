# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The compiled SocketBase: distributors over streams, a fair reader, waiting.
Contract: core_contract.pyi.

The common message goes through `send` or `recv` without a call into Python. All else goes through
`_send_frames` and `_recv_message`. The GIL guards the lists; the receive lock guards the reader.
"""

import time

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport close as close_fd
from posix.unistd cimport read as read_fd
from posix.unistd cimport usleep
from posix.unistd cimport write as write_fd

from transports.errors import Again, Broken, Closed, ForkedError, InternalError, NotSupported, ProtocolError

from transports.native cimport link as native_link
from transports.native.link cimport (
    BROKEN, F_CONTROL, F_CRC, F_MORE, FULL, HEADER, LARGE, MAGIC, NO_MEMORY, OK, VERSION, WOULD_BLOCK,
    header_t, link_arm, link_arm_credit, link_give_up_begun, link_push, link_settle, link_t, link_write, now_ns,
    pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock,
)
from transports.native.pool cimport Frame, Lease, Pool
from transports.native.stream cimport Flusher, Stream, group, prepare_reader, reader_t

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event*)
    int epoll_wait(int, epoll_event*, int, int)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_DEL
    uint32_t EPOLLIN

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int, int)
    int EFD_CLOEXEC
    int EFD_NONBLOCK

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd*, unsigned long, int)
    short POLLIN
    short POLLOUT

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    int PyThread_acquire_lock(PyThread_type_lock, int)
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock)
    int PY_LOCK_ACQUIRED
    int PY_LOCK_INTR

cdef enum:
    DONTWAIT = 1
    ROUND_ROBIN = 1
    FANOUT = 2
    FAIR = 1
    FILTERED = 2
    MAX_EVENTS = 64
    MAX_POLLED = 256
    REQ = 0
    REP = 1
    BUCKETS = 21
    LOOK_MS = 50               # a REQ looks this often whether its peer still lives
    PATIENCE_MS = 20           # how long a send waits for the kernel before it copies


cdef class Turn:
    """Whose turn it is on a REQ or REP; see transports/turn.py."""

    cdef public uint64_t number
    cdef public uint64_t last
    cdef public object stream
    cdef public object failure
    cdef public bint open
    cdef public bint simple
    cdef readonly uint64_t total_ns
    cdef uint64_t buckets[BUCKETS]
    cdef public int64_t asked

    def __cinit__(self):
        self.simple = True

    @property
    def counts(self):
        return [self.buckets[index] for index in range(BUCKETS)]

    cpdef void answered(self, int64_t now) noexcept:
        cdef int64_t took = now - self.asked
        cdef int64_t bound = 16000
        cdef int index = 0
        while index < BUCKETS - 1 and took > bound:
            bound <<= 1
            index += 1
        self.buckets[index] += 1
        self.total_ns += took


cdef class SocketBase:
    """Base of transfer.Socket: everything that happens for each message. Any thread may call."""

    cdef readonly int socket_type
    cdef readonly int send_mode
    cdef readonly int receive_mode
    cdef readonly Flusher flusher
    cdef readonly Pool pool
    cdef public long long send_timeout
    cdef public long long receive_timeout
    cdef public Py_ssize_t copy_threshold
    cdef public long long spin_us
    cdef public bint _general_send
    cdef public bint _general_recv
    cdef public bint _lockstep       # the core may take the common turns of a REQ or REP
    cdef public Turn _turn
    cdef readonly bint closed
    cdef public uint64_t messages_sent
    cdef public uint64_t messages_received
    cdef public uint64_t bytes_sent
    cdef public uint64_t bytes_received
    cdef public uint64_t dropped_no_peer
    cdef public uint64_t filtered
    cdef public uint64_t blocked_ns
    cdef public uint64_t waited_ns
    cdef int generation
    # streams: `outs` and `foreign_outs` in turn; `by_fd` finds a native stream of an event
    cdef list outs
    cdef list foreign_outs
    cdef list foreign_ins
    cdef dict by_fd
    cdef list lazy
    cdef Py_ssize_t next_out
    cdef bint foreign_first
    # receiving
    cdef PyThread_type_lock lock
    cdef bint receiving
    cdef reader_t reader
    cdef Stream current
    cdef int ready[MAX_EVENTS]
    cdef int ready_count
    cdef int ready_next
    cdef object stash
    cdef Stream sinking
    cdef int64_t last_wait
    # own subscriptions
    cdef dict prefixes
    cdef tuple prefix_lengths
    cdef bint wants_all
    # descriptors
    cdef int epoll_fd
    cdef int receive_event
    cdef int send_event
    cdef bint exposed
    cdef bint event_set
    cdef int waiting
    cdef object __weakref__

    def __cinit__(self, int socket_type, int send_mode, int receive_mode, Flusher flusher, Pool pool,
                  *args, **kwargs):
        cdef epoll_event event
        self.socket_type = socket_type
        self.send_mode = send_mode
        self.receive_mode = receive_mode
        self.flusher = flusher
        self.pool = pool
        self.send_timeout = -1
        self.receive_timeout = -1
        self.copy_threshold = LARGE
        self.generation = native_link.fork_generation
        self.outs = []
        self.foreign_outs = []
        self.foreign_ins = []
        self.lazy = []
        self.by_fd = {}
        self.prefixes = {}
        self.prefix_lengths = ()
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.receive_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        self.send_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        self.lock = PyThread_allocate_lock()
        if self.epoll_fd < 0 or self.receive_event < 0 or self.send_event < 0 or self.lock == NULL:
            self.close_descriptors()
            raise InternalError("no descriptors left for a socket", hint="raise `ulimit -n`")
        event.events = EPOLLIN
        event.data.fd = self.receive_event
        epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, self.receive_event, &event)

    def __init__(self, socket_type, send_mode, receive_mode, flusher, pool):
        pass

    def __dealloc__(self):
        self.close_descriptors()
        free(self.reader.data)
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef void close_descriptors(self) noexcept:
        if self.epoll_fd >= 0:
            close_fd(self.epoll_fd)
        if self.receive_event >= 0:
            close_fd(self.receive_event)
        if self.send_event >= 0:
            close_fd(self.send_event)
        self.epoll_fd = self.receive_event = self.send_event = -1

    # --- sending: the fast path -----------------------------------------------------------------

    def send(self, data, int flags=0, bint copy=True, bint track=False):
        """Sends one part. Returns None, or a tracker if `track`. Raises Again after send_timeout
        (at once with DONTWAIT), Closed, StateError. Any thread may call."""
        if (type(data) is bytes and not (flags & ~DONTWAIT) and not track and self.is_usable()
                and PyBytes_GET_SIZE(data) < self.copy_threshold):
            if self._lockstep:
                if self.send_in_turn(data):
                    return None
            elif self._general_send:
                pass
            elif self.send_mode == ROUND_ROBIN:
                if self.push_one(data, 0) is not None:
                    return None
            elif self.send_mode == FANOUT:
                self.push_all(data)
                return None
        return self.send_slowly(data, flags, copy, track)

    cdef inline bint is_usable(self):
        return (not self.closed and self.generation == native_link.fork_generation
                and not self.foreign_outs)

    cdef bint send_in_turn(self, bytes data) except -1:
        """The common send of a REQ or REP; False: the pattern has to look."""
        cdef Turn turn = self._turn
        cdef Stream stream
        if not turn.simple:
            return False
        if self.socket_type == REQ:
            if turn.number or turn.failure is not None:
                return False
            stream = self.push_one(data, turn.last + 1)
            if stream is None:
                return False
            turn.last += 1
            turn.number = turn.last
            turn.stream = stream
            turn.asked = now_ns()
            return True
        if not turn.open or type(turn.stream) is not Stream:
            return False
        stream = <Stream>turn.stream
        if stream.socket is not self or self.push(stream, data, turn.number) != OK:
            return False
        self.messages_sent += 1
        self.bytes_sent += PyBytes_GET_SIZE(data)
        turn.open = False
        return True

    cdef object send_slowly(self, data, int flags, bint copy, bint track):
        self.check_usable()
        if self.send_mode == 0 or self._general_send or track or flags & ~DONTWAIT:
            return self._send_general(data, flags, copy, track)
        self.send_frames([(0, 0, None, None, data)], 0 if flags & DONTWAIT else self.send_timeout,
                         None, None, not copy, None, True)
        return None

    cdef Stream push_one(self, bytes data, uint64_t sequence):
        """Round robin over the streams with room: who took it, or None."""
        cdef Py_ssize_t count = len(self.outs)
        cdef Py_ssize_t tried
        cdef Stream stream
        cdef int answer
        for tried in range(count):
            if self.next_out >= count:
                self.next_out = 0
            stream = <Stream>self.outs[self.next_out]
            self.next_out += 1
            answer = self.push(stream, data, sequence)
            if answer == OK:
                self.messages_sent += 1
                self.bytes_sent += PyBytes_GET_SIZE(data)
                return stream
            if answer == BROKEN:
                self.lose(stream, stream.broken)
                return self.push_one(data, sequence)
        return None

    cdef int push_all(self, bytes data) except -2:
        """To every stream whose peer subscribed to this; a full one misses it, and that is counted."""
        cdef Stream stream
        cdef Py_ssize_t taken = 0
        cdef int answer
        cdef list broken = None
        for stream in self.outs:
            if not stream.wants_all and not stream.match(data):
                continue
            answer = self.push(stream, data, 0)
            taken += 1
            if answer == OK:
                self.messages_sent += 1
                self.bytes_sent += PyBytes_GET_SIZE(data)
            elif answer == FULL:
                stream.link.dropped += 1
            elif answer == BROKEN:
                broken = [stream] if broken is None else broken + [stream]
        if broken is not None:
            for stream in broken:
                self.lose(stream, stream.broken)
        if taken == 0:
            self.dropped_no_peer += 1
        return OK

    cdef int push(self, Stream stream, bytes data, uint64_t sequence) except -2:
        cdef link_t* link = stream.link
        cdef int answer
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if pthread_mutex_trylock(&link.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&link.mutex)
        if sequence:
            link.turn = 1         # somebody waits for it: no company
        answer = link_push(link, PyBytes_AS_STRING(data), size, sequence)
        if answer == WOULD_BLOCK:
            # Enough has gathered: worth a system call without the GIL.
            with nogil:
                link_write(link)
                pthread_mutex_unlock(&link.mutex)
            answer = OK
        else:
            pthread_mutex_unlock(&link.mutex)
        if answer == NO_MEMORY:
            raise InternalError("no memory to queue a message", hint="lower the high-water marks")
        if link.finished != NULL:
            stream.reap()
        return answer

    # --- sending: everything else ---------------------------------------------------------------

    def _send_frames(self, frames, long long timeout, *, stream=None, topic=None, bint hold=False,
                     released=None):
        """One message by the distributor, or to `stream`. The stream that took it; for a fan-out
        how many took it. Raises Again, Closed, and Broken with `stream`."""
        self.check_usable()
        return self.send_frames(frames, timeout, stream, topic, hold, released, not hold)

    cdef object send_frames(self, frames, long long timeout, stream, topic, bint hold, released,
                            bint patient):
        cdef int64_t deadline = -1
        cdef int64_t size = 0
        cdef object taker
        if stream is None and self.send_mode == FANOUT:
            return self.fan_out(frames, topic, hold, released)
        for frame in frames:
            size += payload_size(frame[4])
        if timeout > 0:
            deadline = now_ns() + timeout * 1000000
        while True:
            taker = (self.offer_by_name(stream, frames, hold, released) if stream is not None
                     else self.offer_in_turn(frames, hold, released))
            if taker is not None:
                break
            if timeout == 0 and self.exposed and self.ask_for_room(stream):
                continue
            if timeout == 0 or not self.wait_for_room(stream, deadline):
                raise Again(
                    "no peer has room for the message" if self.outs or self.foreign_outs
                    else "no peer is connected",
                    hint="" if self.outs or self.foreign_outs else
                    "is anybody there? see peers() and wait_for_peers()")
        self.messages_sent += 1
        self.bytes_sent += size
        if type(taker) is Stream and size >= LARGE:
            self.drain(<Stream>taker, timeout == 0 or not patient, hold)
        return taker

    cdef bint ask_for_room(self, only) except -1:
        """Lets the descriptor become readable when a full stream has room; True: it has some now."""
        cdef Stream stream
        cdef uint64_t drained
        cdef bint room = False
        read_fd(self.receive_event, &drained, 8)
        self.event_set = False
        for candidate in (self.outs if only is None else (only,)):
            if type(candidate) is Stream:
                stream = <Stream>candidate
                stream.take_mutex()
                stream.link.notify_fd = self.receive_event
                room = room or not is_full(stream.link)
                pthread_mutex_unlock(&stream.link.mutex)
        self.signal()
        return room

    cdef object offer_to(self, stream, frames, bint hold, released):
        if type(stream) is Stream:
            if (<Stream>stream).offer(frames, False, hold, released, True) == OK:
                return stream
            return None
        if stream.broken is not None:
            raise stream.broken
        return stream if stream.send(frames, hold=hold, released=released) else None

    cdef object offer_by_name(self, stream, frames, bint hold, released):
        try:
            return self.offer_to(stream, frames, hold, released)
        except Broken as error:
            self.lose(stream, error)
            raise

    cdef object offer_in_turn(self, frames, bint hold, released):
        """Round robin over native and foreign streams alike."""
        cdef Py_ssize_t native = len(self.outs)
        cdef Py_ssize_t count = native + len(self.foreign_outs)
        cdef Py_ssize_t tried
        cdef object stream
        for tried in range(count):
            if self.next_out >= count:
                self.next_out = 0
            stream = self.outs[self.next_out] if self.next_out < native else self.foreign_outs[self.next_out - native]
            self.next_out += 1
            try:
                if self.offer_to(stream, frames, hold, released) is not None:
                    return stream
            except (Broken, Closed) as error:
                self.lose(stream, error)
                return self.offer_in_turn(frames, hold, released)
        return None

    cdef object fan_out(self, frames, topic, bint hold, released):
        cdef list takers
        cdef list all_streams = self.outs + self.foreign_outs
        cdef Py_ssize_t taken = 0
        cdef object stream
        if topic is None:
            topic = frames[0][2]
        if topic is None:
            topic = self.first_bytes(frames[0][4], all_streams)
        takers = [stream for stream in all_streams if stream.matches(topic)]
        if not takers:
            self.dropped_no_peer += 1
            if released is not None:
                released(None)
            return 0
        if len(takers) > 1:
            if not hold:
                # One copy for all: after that every queue may keep it as long as it likes.
                frames = [shared(frame) for frame in frames]
            if released is not None:
                released = Countdown(len(takers), released)
        for stream in takers:
            try:
                if type(stream) is Stream:
                    took = (<Stream>stream).offer(frames, False, hold, released, False) == OK
                else:
                    took = stream.send(frames, hold=hold, released=released)
            except (Broken, Closed) as error:
                self.lose(stream, error)
                took = False
            else:
                if not took:
                    stream.dropped += 1
            if took:
                taken += 1
            elif released is not None:
                released(None)
        self.messages_sent += taken
        for frame in frames:
            self.bytes_sent += payload_size(frame[4]) * taken
        return taken

    cdef bytes first_bytes(self, data, list streams):
        """As much of a payload as the longest subscription can ask for."""
        cdef Py_ssize_t longest = 0
        if type(data) is bytes:
            return data
        for stream in streams:
            for prefix in stream.subscriptions:
                longest = max(longest, len(prefix))
        return bytes(memoryview(data).cast("B")[:longest])

    cdef int drain(self, Stream stream, bint at_once, bint hold) except -1:
        """Writes while the kernel makes progress, so that large memory need not be copied. What is
        left after PATIENCE_MS without any is held (bytes, `hold`) or copied."""
        cdef link_t* link = stream.link
        cdef pollfd room
        cdef uint64_t target
        cdef int answer = 0
        cdef int64_t begin
        if link.queued_bytes == 0:
            return 0
        target = link.written + link.queued_bytes
        begin = now_ns()
        stream.take_mutex()
        link.waiters += 1
        pthread_mutex_unlock(&link.mutex)
        try:
            while not at_once and link.written < target and link.queued_bytes:
                if link.fd < 0 or link.error or link.closed:
                    break
                with nogil:
                    room.fd = link.fd
                    room.events = POLLOUT
                    answer = poll(&room, 1, PATIENCE_MS)
                    if answer > 0:
                        pthread_mutex_lock(&link.mutex)
                        if not link.closed:
                            link_write(link)
                        pthread_mutex_unlock(&link.mutex)
                if answer == 0:
                    break
                if answer < 0:
                    PyErr_CheckSignals()
        except BaseException as error:
            # Half a frame is out and its memory is the caller's again: this connection is over.
            interrupted = Broken("a send was interrupted inside a message")
            interrupted.__cause__ = error
            stream.fail(interrupted)
            raise
        finally:
            stream.take_mutex()
            link.waiters -= 1
            if link.error:
                link_give_up_begun(link)
            answer = link_settle(link) if link.borrowed and not hold else OK
            if link.queued_bytes and not link.wants_output and link.fd >= 0:
                link_arm(link)
            pthread_mutex_unlock(&link.mutex)
            link.blocked_ns += now_ns() - begin
            if link.finished != NULL:
                stream.reap()
        if answer == NO_MEMORY:
            raise InternalError("no memory to queue a message", hint="lower the high-water marks")
        return 0

    def _wait_writable(self, long long timeout):
        """Until a send may succeed; False when the time is over."""
        cdef int64_t deadline = -1 if timeout < 0 else now_ns() + timeout * 1000000
        self.check_usable()
        while not self.has_room(None):
            if timeout == 0 or not self.wait_for_room(None, deadline):
                return False
        return True

    def _writable(self):
        return not self.closed and (self.send_mode == FANOUT or self.has_room(None))

    cdef bint has_room(self, only):
        cdef Stream stream
        for candidate in (self.outs + self.foreign_outs if only is None else (only,)):
            if type(candidate) is not Stream:
                if candidate.broken is not None or not getattr(candidate, "full", False):
                    return True
                continue
            stream = <Stream>candidate
            if stream.link.error or stream.link.closed or not is_full(stream.link):
                return True
            stream.write_out(False)
            if not is_full(stream.link):
                return True
        return False

    cdef bint wait_for_room(self, only, int64_t deadline) except -1:
        """Sleeps until a full stream drains, a peer comes, or the socket is told to look again.
        False when the deadline has passed."""
        cdef pollfd watched[MAX_POLLED]
        cdef list streams = []
        cdef Stream stream
        cdef int count = 1
        cdef int answer
        cdef int error
        cdef int wait = -1
        cdef int64_t begin = now_ns()
        cdef uint64_t drained
        if deadline >= 0:
            if begin >= deadline:
                return False
            wait = <int>min((deadline - begin + 999999) // 1000000, 1 << 30)
        watched[0].fd = self.send_event
        watched[0].events = POLLIN
        watched[0].revents = 0
        for candidate in (self.outs if only is None else (only,)):
            if type(candidate) is Stream and count < MAX_POLLED and (<Stream>candidate).link.fd >= 0:
                stream = <Stream>candidate
                streams.append(stream)
                stream.link.waiters += 1
                watched[count].fd = stream.link.fd
                # One that waits for company only has room already.
                watched[count].events = POLLOUT
                watched[count].revents = 0
                count += 1
        self.waiting += 1
        try:
            with nogil:
                answer = poll(watched, count, wait)
                error = errno
        finally:
            self.waiting -= 1
            for stream in streams:
                stream.link.waiters -= 1
        if answer > 0 and watched[0].revents:
            read_fd(self.send_event, &drained, 8)
        count = 1
        for stream in streams:
            if answer > 0 and watched[count].revents:
                stream.write_out(True)
            elif stream.link.queued_bytes:
                stream.take_mutex()
                if not stream.link.wants_output and stream.link.fd >= 0:
                    link_arm(stream.link)
                pthread_mutex_unlock(&stream.link.mutex)
            stream.link.blocked_ns += now_ns() - begin
            count += 1
        self.blocked_ns += now_ns() - begin
        if answer < 0 and error == EINTR:
            PyErr_CheckSignals()
        self.check_usable()
        return True

    # --- receiving: the fast path ---------------------------------------------------------------

    def recv(self, int flags=0, bint copy=True, bint track=False):
        """Receives one part: bytes, or a Frame if not `copy`. Raises Again after receive_timeout
        (at once with DONTWAIT), Closed, StateError. Any thread may call."""
        cdef Stream stream = self.current
        cdef header_t* header
        cdef size_t available
        cdef size_t size
        cdef bytes data
        if (stream is not None and not self.receiving and not self._general_recv and self.stash is None
                and self.receive_mode == FAIR and not self.closed and not self.foreign_ins
                and self.generation == native_link.fork_generation):
            available = self.reader.end - self.reader.start
            if available >= HEADER and stream.parts is None and stream.large is None:
                header = <header_t*>(self.reader.data + self.reader.start)
                size = header.data_length
                if (header.flags == 0 and size <= available - HEADER and header.magic == MAGIC
                        and header.version == VERSION and header.topic_length == 0
                        and header.socket_type <= 8 and size <= stream.link.max_message):
                    data = PyBytes_FromStringAndSize(self.reader.data + self.reader.start + HEADER, size)
                    self.reader.start += HEADER + size
                    stream.expect_size = 0
                    self.count_one(stream, size)
                    if self.exposed:
                        self.signal()
                    if copy:
                        return data
                    return plain_frame(data, header)
        return self.recv_slowly(flags, copy, track)

    cdef inline void count_one(self, Stream stream, size_t size) noexcept:
        cdef link_t* link = stream.link
        link.received += 1
        link.received_bytes += size
        self.messages_received += 1
        self.bytes_received += size
        if link.credits and not link.credit_armed:
            link_arm_credit(link)

    cdef object recv_slowly(self, int flags, bint copy, bint track):
        cdef tuple message
        cdef list frames
        cdef Frame frame
        if self._lockstep and flags == 0:
            return self.recv_in_turn(copy, track)
        if self.receive_mode == 0 or self._general_recv or flags & ~DONTWAIT:
            self.check_usable()
            return self._recv_general(flags, copy, track)
        message = self.next_message(0 if flags & DONTWAIT else self.receive_timeout, copy, None)
        frames = <list>message[1]
        if len(frames) == 1:
            frame = <Frame>frames[0]
            if frame.flags & ~F_CRC == 0:
                return frame.data if copy and type(frame.data) is bytes else (
                    frame.bytes if copy else frame)
        return self._deliver(message[0], frames, flags, copy)

    cdef object recv_in_turn(self, bint copy, bint track):
        """The common receive of a REQ or REP; what is not common goes to the pattern."""
        cdef Turn turn = self._turn
        cdef tuple message
        cdef Frame frame
        cdef bint asks = self.socket_type == REQ
        if asks:
            if (turn.number == 0 or not turn.simple or turn.failure is not None
                    or 0 <= self.receive_timeout <= LOOK_MS):
                return self._recv_general(0, copy, track)
            try:
                message = self.next_message(LOOK_MS, copy, None)
            except Again:
                return self._recv_general(0, copy, track)
        elif turn.open:
            return self._recv_general(0, copy, track)
        else:
            message = self.next_message(self.receive_timeout, copy, None)
        if len(<list>message[1]) == 1:
            frame = <Frame>(<list>message[1])[0]
            if frame.flags == 0 and frame.sequence:
                if asks and message[0] is turn.stream and frame.sequence == turn.number:
                    turn.number = 0
                    turn.answered(now_ns())
                    return frame.data if copy and type(frame.data) is bytes else (
                        frame.bytes if copy else frame)
                if not asks and frame.socket_type == REQ and type(message[0]) is Stream:
                    turn.stream = message[0]
                    turn.number = frame.sequence
                    turn.open = True
                    turn.simple = True
                    return frame.data if copy and type(frame.data) is bytes else (
                        frame.bytes if copy else frame)
        return self._turn_message(message[0], message[1], copy)

    def _recv_message(self, long long timeout, sink=None):
        """One whole message: (stream, frames). Raises Again, Closed."""
        return self.next_message(timeout, False, sink)

    def _readable(self):
        """Whether a recv would return at once. Exact: a message found is kept for the next recv."""
        if self.stash is not None:
            return True
        if self.closed or self.receiving:
            return False
        try:
            self.stash = self.next_message(0, False, None, True)
        except Again:
            return False
        if self.exposed:
            self.signal()
        return True

    cdef tuple next_message(self, long long timeout, bint as_bytes, sink, bint peek=False):
        cdef int64_t deadline = -1
        cdef tuple message
        self.check_usable()
        if timeout > 0:
            deadline = now_ns() + timeout * 1000000
        self.take_lock(timeout, deadline)
        self.receiving = True
        try:
            while True:
                message = self.poll_once(as_bytes, sink)
                if message is not None:
                    if not peek:
                        self.count_message(message)
                    return message
                if timeout == 0 and not self.look():
                    raise Again("no message is there")
                if timeout != 0 and not self.wait_for_input(deadline):
                    raise Again("no message came in time")
        finally:
            if self.sinking is not None:
                self.sinking.leave_sink()
                self.sinking = None
            self.receiving = False
            if self.exposed:
                self.signal()
            PyThread_release_lock(self.lock)

    cdef int count_message(self, tuple message) except -1:
        cdef object stream = message[0]
        cdef Frame frame
        self.messages_received += 1
        for frame in <list>message[1]:
            self.bytes_received += len(frame.data)
        if type(stream) is Stream:
            (<Stream>stream).count(<list>message[1])
            (<Stream>stream).link.waited_ns += self.last_wait
            self.last_wait = 0
        return 0

    cdef int take_lock(self, long long timeout, int64_t deadline) except -1:
        """The receive lock, within the caller's time. Waiting threads see a close within 100 ms."""
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

    cdef tuple poll_once(self, bint as_bytes, sink):
        """The next message without waiting, or None when everything known to be ready was read."""
        cdef object stash = self.stash
        cdef tuple message
        if stash is not None and sink is None:
            self.stash = None
            return stash
        if stash is not None:
            message = poured(stash, sink)
            self.stash = None
            return message
        prepare_reader(&self.reader)
        if self.foreign_ins and self.foreign_first:
            self.foreign_first = False
            message = self.next_foreign(sink)
            if message is not None:
                return message
        self.foreign_first = True
        if self.foreign_ins and self.current is None and self.ready_next >= self.ready_count:
            # Foreign streams must not keep us from asking for the others.
            self.look()
        while True:
            if self.current is None and not self.next_ready():
                break
            message = self.next_of_current(as_bytes, sink)
            if message is not None:
                return message
        return self.next_foreign(sink) if self.foreign_ins else None

    cdef bint next_ready(self):
        """Takes the next stream that epoll named."""
        while self.ready_next < self.ready_count:
            self.current = <Stream>self.by_fd.get(self.ready[self.ready_next])
            self.ready_next += 1
            if self.current is not None:
                self.reader.start = self.reader.end = 0
                self.reader.drained = 0
                # With several peers each has one read-ahead a turn.
                self.reader.reads = -1 if len(self.by_fd) == 1 else 1
                if self.sinking is not None and self.sinking is not self.current:
                    self.sinking.leave_sink()
                    self.sinking = None
                return True
        return False

    cdef tuple next_of_current(self, bint as_bytes, sink):
        """A message of the current stream; None: it has no more, and another's turn has come."""
        cdef Stream stream = self.current
        cdef object frame
        cdef list frames
        while True:
            try:
                frame = stream.next_frame(&self.reader, as_bytes, sink)
                if frame is None:
                    self.current = None
                    if stream.large_hold is not None:
                        self.sinking = stream
                    return None
                if (<Frame>frame).flags & F_CONTROL:
                    self._on_control(stream, frame)
                    if self.current is not stream:
                        return None
                    continue
                frames = group(stream, <Frame>frame)
            except (Broken, ProtocolError) as error:
                self.reader.start = self.reader.end = 0
                self.current = None
                self.lose(stream, error)
                return None
            if frames is None:
                continue
            if self.receive_mode == FILTERED and not self.wanted(frames):
                self.filtered += 1
                continue
            return (stream, frames)

    cdef tuple next_foreign(self, sink):
        cdef Py_ssize_t tried
        cdef object stream
        cdef object frames
        cdef tuple message
        for tried in range(len(self.foreign_ins)):
            if not self.foreign_ins:
                break
            stream = self.foreign_ins.pop(0)
            self.foreign_ins.append(stream)
            while True:
                try:
                    frames = stream.receive()
                except (Broken, Closed, ProtocolError) as error:
                    self.lose(stream, error)
                    break
                if frames is None:
                    break
                if (<Frame>frames[0]).flags & F_CONTROL:
                    self._on_control(stream, frames[0])
                    continue
                if self.receive_mode == FILTERED and not self.wanted(frames):
                    self.filtered += 1
                    continue
                if sink is None:
                    return (stream, frames)
                # It stays unread if the sink refuses.
                self.stash = (stream, frames)
                message = poured(self.stash, sink)
                self.stash = None
                return message
        return None

    cdef bint wanted(self, list frames):
        """Whether one of our own subscriptions matches; the publisher has checked before."""
        cdef Frame first = <Frame>frames[0]
        cdef Py_ssize_t length
        if self.wants_all:
            return True
        if not self.prefix_lengths:
            return False
        topic = first.topic
        if topic is None:
            topic = first.data
            if type(topic) is not bytes:
                topic = bytes(memoryview(topic).cast("B")[:self.prefix_lengths[len(self.prefix_lengths) - 1]])
        for length in self.prefix_lengths:
            if topic[:length] in self.prefixes:
                return True
        return False

    cdef bint look(self) except -1:
        """Asks epoll once, without waiting. Whether a stream is ready."""
        cdef epoll_event events[MAX_EVENTS]
        cdef int count = epoll_wait(self.epoll_fd, events, MAX_EVENTS, 0)
        return self.take_events(events, count)

    cdef bint take_events(self, epoll_event* events, int count) except -1:
        cdef int i
        cdef uint64_t drained
        self.ready_next = self.ready_count = 0
        for i in range(count):
            if events[i].data.fd == self.receive_event:
                read_fd(self.receive_event, &drained, 8)
                self.event_set = False
            else:
                self.ready[self.ready_count] = events[i].data.fd
                self.ready_count += 1
        return self.ready_count > 0

    cdef bint wait_for_input(self, int64_t deadline) except -1:
        """Sleeps until something came or the socket is told to look again. False: time is over."""
        cdef epoll_event events[MAX_EVENTS]
        cdef int count = 0
        cdef int error = 0
        cdef int wait = -1
        cdef int64_t begin = now_ns()
        cdef int64_t spin_until = begin + self.spin_us * 1000
        if deadline >= 0:
            if begin >= deadline:
                return False
            wait = <int>min((deadline - begin + 999999) // 1000000, 1 << 30)
        self.waiting += 1
        with nogil:
            if self.spin_us:
                while count == 0 and now_ns() < spin_until:
                    count = epoll_wait(self.epoll_fd, events, MAX_EVENTS, 0)
            if count == 0:
                count = epoll_wait(self.epoll_fd, events, MAX_EVENTS, wait)
                error = errno
        self.waiting -= 1
        self.last_wait = now_ns() - begin
        self.waited_ns += self.last_wait
        self.take_events(events, count)
        if count < 0 and error == EINTR:
            PyErr_CheckSignals()
        self.check_usable()
        return True

    # --- descriptors ----------------------------------------------------------------------------

    def fileno(self):
        """A descriptor that is readable when recv may succeed; watch it for reading only."""
        self.check_usable()
        if not self.exposed:
            self.exposed = True
            self.signal()
        return self.epoll_fd

    cdef int signal(self) except -1:
        """Keeps the descriptor readable exactly while decoded messages are left."""
        cdef uint64_t one = 1
        cdef bint left = (self.stash is not None or self.reader.end != self.reader.start
                          or self.ready_next < self.ready_count)
        if left == self.event_set:
            return 0
        self.event_set = left
        if left:
            write_fd(self.receive_event, &one, 8)
        else:
            read_fd(self.receive_event, &one, 8)
        return 0

    def _notify(self):
        """Wakes everybody who waits in this socket; they look again."""
        cdef uint64_t one = 1
        if self.receive_event < 0:
            return
        self.event_set = True
        write_fd(self.receive_event, &one, 8)
        write_fd(self.send_event, &one, 8)

    def _close_core(self):
        """Wakes waiters, who raise Closed, and gives the descriptors back. Twice is fine."""
        cdef int patience = 5000
        self.closed = True
        while self.waiting and patience:
            self._notify()
            patience -= 1
            with nogil:
                usleep(200)
        for stream in self._streams():
            self._detach(stream)
        self.stash = None
        self.current = None
        if not self.waiting:
            self.close_descriptors()

    cdef int check_usable(self) except -1:
        if self.closed:
            raise Closed("this socket is closed")
        if self.generation != native_link.fork_generation:
            raise ForkedError(
                "this socket was made before the process forked",
                hint="make a new Context in the child, or start it with spawn or forkserver")
        return 0

    # --- streams --------------------------------------------------------------------------------

    def _attach(self, stream, bint sends, bint receives):
        """Uses the stream for sending, receiving or both."""
        self.check_usable()
        if type(stream) is not Stream:
            stream.on_readable = self._notify
            stream.on_writable = self._notify
            if sends:
                self.foreign_outs.append(stream)
            if receives:
                self.foreign_ins.append(stream)
        else:
            (<Stream>stream).socket = self
            if sends:
                self.outs.append(stream)
            if receives:
                if (<Stream>stream).link.fd >= 0:
                    self.watch(<Stream>stream)
                else:
                    self.lazy.append(stream)
        self._notify()

    cdef int watch(self, Stream stream) except -1:
        cdef epoll_event event
        cdef int fd = stream.link.fd
        event.events = EPOLLIN
        event.data.fd = fd
        self.by_fd[fd] = stream
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0:
            del self.by_fd[fd]
            raise InternalError(f"cannot watch descriptor {fd}: errno {errno}")
        return 0

    def _opened(self, stream):
        """The stream was given its descriptor."""
        if stream in self.lazy:
            self.lazy.remove(stream)
            self.watch(stream)
        self._notify()

    def _detach(self, stream):
        """Forgets the stream; it is not closed. Not attached: nothing happens."""
        for streams in (self.outs, self.foreign_outs, self.foreign_ins, self.lazy):
            if stream in streams:
                streams.remove(stream)
        if type(stream) is not Stream:
            stream.on_readable = stream.on_writable = None
            return
        (<Stream>stream).socket = None
        (<Stream>stream).link.notify_fd = -1
        for known, other in list(self.by_fd.items()):
            if other is stream:
                del self.by_fd[known]
                if self.generation == native_link.fork_generation:
                    epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, known, NULL)
        if self.current is stream and not self.receiving:
            (<Stream>stream).park(&self.reader)
            self.current = None

    def _streams(self):
        cdef list found = []
        for streams in (self.outs, self.by_fd.values(), self.lazy, self.foreign_outs, self.foreign_ins):
            for stream in streams:
                if stream not in found:
                    found.append(stream)
        return found

    cdef int lose(self, stream, error) except -1:
        if type(stream) is Stream:
            (<Stream>stream).fail(error)
        self._detach(stream)
        self._on_lost(stream, error)
        return 0

    # --- own subscriptions ----------------------------------------------------------------------

    def _filter_add(self, bytes prefix):
        self.prefixes[prefix] = self.prefixes.get(prefix, 0) + 1
        self.index_prefixes()

    def _filter_remove(self, bytes prefix):
        if prefix not in self.prefixes:
            return False
        self.prefixes[prefix] -= 1
        if not self.prefixes[prefix]:
            del self.prefixes[prefix]
        self.index_prefixes()
        return True

    cdef int index_prefixes(self) except -1:
        self.wants_all = b"" in self.prefixes
        self.prefix_lengths = tuple(sorted({len(prefix) for prefix in self.prefixes}))
        return 0

    # --- hooks ----------------------------------------------------------------------------------

    def _send_general(self, data, flags, copy, track):
        raise NotSupported("this socket type cannot send")

    def _recv_general(self, flags, copy, track):
        raise NotSupported("this socket type cannot receive")

    def _deliver(self, stream, frames, flags, copy):
        frame = frames[len(frames) - 1]
        return frame.bytes if copy else frame

    def _turn_message(self, stream, frames, copy):
        return self._deliver(stream, frames, 0, copy)

    def _on_control(self, stream, frame):
        pass

    def _on_lost(self, stream, error):
        pass


class Countdown:
    """Calls `released` once, when the last of `count` parties has."""

    def __init__(self, count, released):
        self.count = count
        self.released = released
        self.error = None

    def __call__(self, error):
        self.error = self.error or error
        self.count -= 1
        if self.count == 0:
            self.released(self.error)


cdef inline bint is_full(link_t* link) noexcept:
    return ((link.high_water and link.queued >= link.high_water)
            or (link.high_water_bytes and link.queued and link.queued_payload >= link.high_water_bytes))


cdef Frame plain_frame(bytes data, header_t* header):
    cdef Frame frame = Frame.__new__(Frame)
    frame.data = data
    frame.sequence = header.sequence
    frame.socket_type = header.socket_type
    return frame


cdef Py_ssize_t payload_size(data) except -1:
    if type(data) is bytes:
        return PyBytes_GET_SIZE(data)
    return memoryview(data).nbytes


cdef tuple shared(tuple frame):
    """The frame with a payload that nobody can change."""
    if type(frame[4]) is bytes:
        return frame
    return frame[:4] + (bytes(memoryview(frame[4])),)


cdef tuple poured(tuple message, sink):
    """A message that was read before its sink was known: one more copy."""
    cdef Frame frame
    for frame in message[1]:
        target = sink(frame.meta, frame.topic, len(frame.data))
        if target is not None:
            memoryview(target).cast("B")[:] = memoryview(frame.data).cast("B")
            frame.data = target
    return message
