# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The compiled Stream: one connection as Python sees it. Contract: core_contract.pyi.

Writing stands on link.pyx. Reading is here: small frames are cut out of a read-ahead that the
socket lends; the payload of a large frame is read straight to where it will stay.
"""

import os
import zlib

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, EPROTO, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport close as close_fd
from posix.unistd cimport read as read_fd

from transports.errors import Broken, ForkedError, InternalError, ProtocolError
from transports.wire import EXTENDED_MAX, EXTENDED_MIN, MAX_CONTROL, MAX_TOPIC

from transports.native cimport link as native_link
from transports.native.link cimport (
    BROKEN, BUSY, F_CONTROL, F_CRC, F_EXTENDED, F_MORE, F_TENSOR, F_TOPIC, FULL, HEADER, LARGE, MAGIC,
    NO_MEMORY, OK, VERSION, WOULD_BLOCK, flusher_free, flusher_new, flusher_stop, flusher_t, header_t,
    link_append, link_arm, link_arm_credit, link_bury, link_new, link_put_header, link_reserve, link_room, link_settle,
    link_t, link_write, now_ns, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock,
    segment_t,
)
from transports.native.pool cimport Frame, HeldBuffer, Lease, Pool

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void*, size_t, int)
    int shutdown(int, int)
    int MSG_DONTWAIT
    int SHUT_RDWR

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t readv(int, const iovec*, int)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void*, size_t, int)
    int MADV_HUGEPAGE

cdef extern from "<sys/epoll.h>" nogil:
    struct epoll_event:
        pass
    int epoll_ctl(int, int, int, epoll_event*)
    int EPOLL_CTL_DEL

cdef enum:
    READ_AHEAD = 256 * 1024
    TURN = 64 * 1024               # read-ahead of one stream among several
    PROBE = 128 * 1024             # of an expected payload, before its header was seen
    HUGE = 4 * 1024 * 1024
    F_LZ4 = 128
    MAX_FRAMES = 1 << 20

cdef size_t TOPIC_LIMIT = MAX_TOPIC
cdef size_t CONTROL_LIMIT = MAX_CONTROL
cdef uint32_t SHORTEST_EXTENSION = EXTENDED_MIN
cdef uint32_t LONGEST_EXTENSION = EXTENDED_MAX


cdef class Flusher:
    """The native thread of a context; it starts with the first stream that needs it."""

    def __cinit__(self):
        self.state = flusher_new()
        if self.state == NULL:
            raise InternalError("no descriptors left for the flusher", hint="raise `ulimit -n`")
        self.state.references = 1

    def fileno(self):
        return self.state.reap_fd

    def reap(self):
        """Lets go of user memory that is written, and tells whoever asked."""
        cdef uint64_t count
        cdef segment_t* finished
        read_fd(self.state.reap_fd, &count, 8)
        pthread_mutex_lock(&self.state.mutex)
        finished = self.state.finished
        self.state.finished = NULL
        pthread_mutex_unlock(&self.state.mutex)
        release_segments(finished, None)

    def close(self):
        """Joins the thread. Twice is fine."""
        self.reap()
        with nogil:
            flusher_stop(self.state)
        release_segments(self.state.finished, None)
        self.state.finished = NULL

    def __dealloc__(self):
        free(self.reader.data)
        if self.state != NULL:
            with nogil:
                flusher_stop(self.state)
            release_segments(self.state.finished, None)
            self.state.finished = NULL
            let_go(self.state)


cdef void let_go(flusher_t* state) noexcept:
    """One owner less. A stream may outlive its Flusher when both die as garbage."""
    state.references -= 1
    if state.references == 0:
        flusher_free(state)


cdef int release_segments(segment_t* segment, object error) except -1:
    """Under the GIL and without any mutex: what Python code runs here may call us again."""
    cdef segment_t* following
    cdef object released
    while segment != NULL:
        following = segment.next
        if segment.owner != NULL:
            Py_DECREF(<object>segment.owner)
        if segment.released != NULL:
            released = <object>segment.released
            Py_DECREF(released)
            released(Broken("the connection ended while this message was sent")
                     if segment.failed else error)
        if segment.capacity:
            free(segment.data)
        free(segment)
        segment = following
    return 0


cdef struct outgoing_t:
    int flags
    uint64_t sequence
    const char* topic
    size_t topic_size
    const char* meta
    size_t meta_size
    const char* data
    size_t size
    unsigned int checksum
    segment_t* segment


cdef class Stream:
    def __cinit__(self, int fd, int socket_type, Flusher flusher, Pool pool, *,
                  long long send_high_water=1000, long long send_high_water_bytes=64 << 20,
                  unsigned long long max_message=16 << 30, bint checksum=False, bint credits=False):
        if flusher.state.generation != native_link.fork_generation:
            raise ForkedError("this flusher was made before the process forked",
                              hint="make a new Context in the child")
        self.link = link_new(flusher.state)
        if self.link == NULL:
            raise MemoryError()
        flusher.state.references += 1
        self.flusher = flusher
        self.pool = pool
        self.link.fd = fd
        self.link.socket_type = socket_type
        self.link.high_water = send_high_water
        self.link.high_water_bytes = send_high_water_bytes
        self.link.max_message = max_message
        self.link.checksum = checksum
        self.link.credits = credits
        self.link.last_received = self.link.last_sent = 0
        self.prefix_lengths = ()

    # --- counters and limits ------------------------------------------------------------------

    @property
    def fd(self):
        return self.link.fd

    def fileno(self):
        return self.link.fd

    @property
    def sent(self):
        return self.link.sent

    @property
    def sent_bytes(self):
        return self.link.sent_bytes

    @property
    def queued(self):
        return self.link.queued

    @property
    def queued_bytes(self):
        return self.link.queued_payload

    @property
    def received(self):
        return self.link.received

    @property
    def received_bytes(self):
        return self.link.received_bytes

    @property
    def consumed(self):
        return self.link.received

    @property
    def confirmed(self):
        return self.link.confirmed

    @confirmed.setter
    def confirmed(self, uint64_t value):
        self.link.confirmed = value

    @property
    def dropped(self):
        return self.link.dropped

    @dropped.setter
    def dropped(self, uint64_t value):
        self.link.dropped = value

    @property
    def blocked_ns(self):
        return self.link.blocked_ns

    @property
    def waited_ns(self):
        return self.link.waited_ns

    @property
    def last_received_ns(self):
        return self.link.last_received

    @property
    def last_sent_ns(self):
        return self.link.last_sent

    @property
    def send_high_water(self):
        return self.link.high_water

    @send_high_water.setter
    def send_high_water(self, long long value):
        self.link.high_water = value

    @property
    def send_high_water_bytes(self):
        return self.link.high_water_bytes

    @send_high_water_bytes.setter
    def send_high_water_bytes(self, long long value):
        self.link.high_water_bytes = value

    @property
    def max_message(self):
        return self.link.max_message

    @max_message.setter
    def max_message(self, unsigned long long value):
        self.link.max_message = value

    @property
    def credits(self):
        return bool(self.link.credits)

    @credits.setter
    def credits(self, bint value):
        self.link.credits = value

    @property
    def checksum(self):
        return bool(self.link.checksum)

    @checksum.setter
    def checksum(self, bint value):
        self.link.checksum = value

    @property
    def broken(self):
        """Why this stream takes no more, or None."""
        if self.failure is None and self.link.error:
            self.failure = Broken("the connection ended")
            self.failure.__cause__ = OSError(self.link.error, os.strerror(self.link.error))
        return self.failure

    # --- subscriptions of the peer ------------------------------------------------------------

    def subscribe(self, bytes prefix):
        if self.prefixes is None:
            self.prefixes = {}
        self.prefixes[prefix] = self.prefixes.get(prefix, 0) + 1
        self.index_prefixes()

    def unsubscribe(self, bytes prefix):
        if not self.prefixes or prefix not in self.prefixes:
            return False
        self.prefixes[prefix] -= 1
        if not self.prefixes[prefix]:
            del self.prefixes[prefix]
        self.index_prefixes()
        return True

    def index_prefixes(self):
        self.wants_all = b"" in self.prefixes
        self.prefix_lengths = tuple(sorted({len(prefix) for prefix in self.prefixes}))

    @property
    def subscriptions(self):
        return tuple(self.prefixes or ())

    def matches(self, bytes topic):
        return self.match(topic)

    cdef bint match(self, bytes topic):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic)
        cdef Py_ssize_t length
        if self.wants_all:
            return True
        for length in self.prefix_lengths:
            if length > size:
                return False
            if topic[:length] in self.prefixes:
                return True
        return False

    # --- sending ------------------------------------------------------------------------------

    def open(self, int fd):
        """Gives a stream that was made without one its descriptor; what is queued goes out."""
        if self.link.fd >= 0 or self.link.closed:
            raise InternalError("this stream was opened before")
        self.link.fd = fd
        if self.socket is not None:
            self.socket._opened(self)
        self.write_out(True)

    def send(self, frames, *, bint force=False, bint hold=False, released=None):
        """Queues one message whole and writes what the kernel takes. False: full, nothing taken."""
        return self.offer(frames, force, hold, released, False) == OK

    def flush(self):
        """Writes what the kernel takes; True when nothing is queued."""
        self.write_out(True)
        return self.link.queued_bytes == 0

    cdef int offer(self, object frames, bint force, bint hold, object released, bint borrow) except -1:
        """OK or FULL. With `borrow` user memory that the kernel did not take stays where it is and
        counts in link.borrowed, for the caller to wait or to settle; else it is copied."""
        cdef outgoing_t one
        cdef outgoing_t* out = &one
        cdef Py_ssize_t count = len(frames)
        cdef Py_ssize_t i
        cdef int answer
        cdef size_t total = 0
        cdef list owners = []
        if count < 1 or count > MAX_FRAMES:
            raise InternalError("a message has 1 to 2**20 frames")
        if count > 1:
            out = <outgoing_t*>calloc(count, sizeof(outgoing_t))
            if out == NULL:
                raise MemoryError()
        try:
            for i in range(count):
                prepare(self.link, &out[i], frames[i], i + 1 < count, owners)
                total += out[i].size
            add_segments(out, count, owners, hold, released)
            if total < 4096:
                self.take_mutex()
                answer = enqueue(self.link, out, count, total, force, not (hold or borrow))
            else:
                self.take_mutex()
                with nogil:
                    answer = enqueue(self.link, out, count, total, force, not (hold or borrow))
            if answer != OK:
                drop_segments(out, count)
        finally:
            if count > 1:
                free(out)
        if answer == BROKEN:
            self.raise_broken()
        if answer == NO_MEMORY:
            raise InternalError("no memory to queue a message", hint="lower the high-water marks")
        if self.link.finished != NULL:
            self.reap()
        if answer == OK and released is not None and not has_large(owners):
            released(None)
        return answer

    cdef int check_process(self) except -1:
        if self.flusher.state.generation != native_link.fork_generation:
            raise ForkedError(
                "this stream was made before the process forked",
                hint="make a new Context in the child, or start it with spawn or forkserver")
        return 0

    cdef int take_mutex(self) except -1:
        """The link's mutex, without holding the GIL while somebody else has it."""
        self.check_process()
        if pthread_mutex_trylock(&self.link.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&self.link.mutex)
        return 0

    cdef int write_out(self, bint no_gil) except -1:
        """1 when nothing is queued any more, else 0; finished Python objects are let go."""
        cdef int answer
        self.take_mutex()
        if no_gil:
            with nogil:
                answer = link_write(self.link) if not self.link.closed else BROKEN
                pthread_mutex_unlock(&self.link.mutex)
        else:
            answer = link_write(self.link) if not self.link.closed else BROKEN
            pthread_mutex_unlock(&self.link.mutex)
        if self.link.finished != NULL:
            self.reap()
        return answer == OK

    cdef int reap(self) except -1:
        cdef segment_t* finished
        self.take_mutex()
        finished = self.link.finished
        self.link.finished = NULL
        pthread_mutex_unlock(&self.link.mutex)
        release_segments(finished, None)
        return 0

    cdef object raise_broken(self):
        failure = self.broken
        if isinstance(failure, Broken):
            raise failure
        raise Broken("the connection ended") from failure

    def take_unsent(self):
        """Removes and returns the messages of which no byte was given to the kernel."""
        cdef segment_t* segment
        cdef list pieces = []
        cdef list taken = []
        self.take_mutex()
        segment = self.link.head
        self.link.head = self.link.tail = NULL
        self.link.queued = 0
        self.link.queued_bytes = self.link.queued_payload = 0
        self.link.borrowed = 0
        pthread_mutex_unlock(&self.link.mutex)
        cdef segment_t* first = segment
        while segment != NULL:
            if segment.owner != NULL:
                payload = <object>segment.owner
            else:
                payload = PyBytes_FromStringAndSize(segment.data, segment.size)
            pieces.append((payload, segment.done, segment.size, not segment.payload,
                           bool(segment.starts_inside)))
            segment = segment.next
        release_segments(first, Broken("the connection ended before this message was sent"))
        return unsent_messages(pieces)

    def close(self):
        """Ends at once. How many queued messages are lost."""
        cdef segment_t* left
        cdef Py_ssize_t lost
        cdef int fd
        if self.link == NULL or self.link.closed:
            return 0
        if self.flusher.state.generation != native_link.fork_generation:
            self.link.closed = 1
            close_fd(self.link.fd)
            return 0
        self.take_mutex()
        self.link.closed = 1
        fd = self.link.fd
        if self.link.reading:
            # A thread is in recv: its descriptor must not become somebody else's under it.
            shutdown(fd, SHUT_RDWR)
            fd = -1
        else:
            self.link.fd = -1
        lost = self.link.queued
        left = self.link.head
        self.link.head = self.link.tail = NULL
        self.link.queued = 0
        self.link.queued_bytes = self.link.queued_payload = 0
        pthread_mutex_unlock(&self.link.mutex)
        if fd >= 0:
            # Another process may share the descriptor, so closing alone would not end the watch.
            epoll_ctl(self.flusher.state.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
            close_fd(fd)
        self.reap()
        release_segments(left, Broken("the stream was closed before this message was sent"))
        if self.failure is None and not self.link.error:
            self.failure = Broken("this end closed the stream")
        free(self.saved)
        self.saved = NULL
        self.saved_size = 0
        self.large = None
        self.large_hold = None
        self.spare = None
        self.parts = None
        return lost

    def __dealloc__(self):
        cdef flusher_t* state
        if self.link == NULL:
            return
        if not self.link.closed:
            self.link.closed = 1
            if self.link.fd >= 0:
                close_fd(self.link.fd)
                self.link.fd = -1
            release_segments(self.link.head, None)
            self.link.head = self.link.tail = NULL
        release_segments(self.link.finished, None)
        self.link.finished = NULL
        free(self.saved)
        state = self.link.flusher
        with nogil:
            link_bury(self.link)
        self.link = NULL
        let_go(state)

    # --- receiving ----------------------------------------------------------------------------

    def receive(self):
        """One message, or one control frame, without waiting; None: nothing there."""
        cdef reader_t* reader = &self.flusher.reader
        cdef object frame
        cdef object message
        self.check_process()
        if self.link.fd < 0 and not self.link.closed:
            return None
        prepare_reader(reader)
        reader.start = reader.end = 0
        try:
            while True:
                reader.drained = 0
                reader.reads = -1
                frame = self.next_frame(reader, False, None)
                if frame is None:
                    return None
                if (<Frame>frame).flags & F_CONTROL:
                    return [frame]
                message = group(self, <Frame>frame)
                if message is not None:
                    self.count(message)
                    return message
        except (Broken, ProtocolError) as error:
            self.fail(error)
            raise
        finally:
            # The reader is shared: what is left of this stream moves out.
            self.park(reader)

    cdef int count(self, list message) except -1:
        """One more message was handed over; the peer will be told."""
        cdef Frame frame
        for frame in message:
            self.link.received_bytes += len(frame.data)
        self.link.received += 1
        if self.link.credits and not self.link.credit_armed:
            link_arm_credit(self.link)
        return 0

    cdef object next_frame(self, reader_t* reader, bint as_bytes, object sink):
        """The next frame, or None when the kernel has no more. Raises ProtocolError, Broken."""
        cdef size_t available
        cdef size_t head = 0
        cdef header_t* header
        cdef Frame frame
        while True:
            if self.large is not None:
                if not self.read_large():
                    return None
                frame = self.large
                self.large = None
                self.check(frame, self.large_checksum)
                if sink is not None and self.large_hold is None:
                    self.pour(frame, sink)
                self.large_hold = None
                return frame
            if self.saved_size and reader.end == reader.start:
                memcpy(reader.data, self.saved, self.saved_size)
                reader.start = 0
                reader.end = self.saved_size
                self.saved_size = 0
                reader.drained = 0
            available = reader.end - reader.start
            if available >= HEADER:
                header = <header_t*>(reader.data + reader.start)
                if self.head_size(reader.data + reader.start, available, &head):
                    if header.data_length <= available and head + header.data_length <= available:
                        frame = self.whole_frame(reader.data + reader.start, head, as_bytes, sink)
                        reader.start += head + header.data_length
                        if reader.start == reader.end:
                            reader.start = reader.end = 0
                        self.expect_size = 0
                        return self.check(frame, header.checksum)
                    if header.data_length >= LARGE and head <= available:
                        self.begin_large(reader, head, as_bytes, sink)
                        continue
            if not self.refill(reader, as_bytes, sink):
                self.park(reader)
                return None

    cdef int park(self, reader_t* reader) except -1:
        """Moves what is left in the reader into the stream's own memory."""
        cdef size_t rest = reader.end - reader.start
        if rest:
            free(self.saved)
            self.saved = <char*>malloc(rest)
            if self.saved == NULL:
                raise MemoryError()
            memcpy(self.saved, reader.data + reader.start, rest)
            self.saved_size = rest
        elif self.saved != NULL and self.saved_size == 0:
            free(self.saved)
            self.saved = NULL
        reader.start = reader.end = 0
        return 0

    cdef int head_size(self, const char* at, size_t available, size_t* head) except -1:
        """The bytes before the payload, once they can be known (1), else 0. Checks every length."""
        cdef header_t* header = <header_t*>at
        cdef uint32_t extension = 0
        cdef int flags = header.flags
        if header.magic != MAGIC:
            raise ProtocolError("magic", f"no frame begins with {header.magic:#010x}")
        if header.version != VERSION:
            raise ProtocolError("version", f"frame version {header.version}, this is {VERSION}")
        if header.socket_type > 8 or (flags & F_EXTENDED and not flags & F_TENSOR):
            raise ProtocolError("flags", f"flags {flags:#04x} of socket type {header.socket_type}")
        if header.topic_length > TOPIC_LIMIT or (header.topic_length and not flags & F_TOPIC):
            raise ProtocolError("topic", f"a topic of {header.topic_length} bytes")
        if header.data_length >> 63:
            raise ProtocolError("length", f"a length of {header.data_length} bytes")
        if flags & F_CONTROL:
            if flags & ~(F_CONTROL | F_CRC) or not 1 <= header.data_length <= CONTROL_LIMIT:
                raise ProtocolError("control", f"a control frame of {header.data_length} bytes")
        elif header.data_length > self.link.max_message:
            raise ProtocolError(
                "too_large", f"a frame of {header.data_length} bytes, the limit is "
                f"{self.link.max_message}", hint="raise `maxmsgsize` on the receiving socket")
        head[0] = HEADER + header.topic_length
        if flags & F_EXTENDED:
            if available < HEADER + 4:
                return 0
            memcpy(&extension, at + HEADER, 4)
            if not SHORTEST_EXTENSION <= extension <= LONGEST_EXTENSION:
                raise ProtocolError("tensor", f"an extended tensor header of {extension} bytes")
            head[0] += extension
        elif flags & F_TENSOR:
            head[0] += 48
        return 1

    cdef Frame whole_frame(self, const char* at, size_t head, bint as_bytes, object sink):
        """A frame that lies in the reader whole."""
        cdef header_t* header = <header_t*>at
        cdef Frame frame = frame_of(at, head)
        cdef size_t size = header.data_length
        cdef object target = None
        cdef Lease lease
        cdef Py_buffer view
        if sink is not None and not header.flags & (F_CONTROL | F_LZ4):
            target = sink(frame.meta, frame.topic, size)
        if target is not None:
            PyObject_GetBuffer(target, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
            try:
                if <size_t>view.len != size:
                    raise InternalError(f"a sink gave {view.len} bytes for {size}")
                memcpy(view.buf, at + head, size)
            finally:
                PyBuffer_Release(&view)
            frame.data = target
        elif header.flags & F_TENSOR or (size >= LARGE and not as_bytes):
            lease = self.pool.take(size)
            memcpy(lease.pointer, at + head, size)
            frame.data = lease
        else:
            frame.data = PyBytes_FromStringAndSize(at + head, size)
        return frame

    cdef object check(self, Frame frame, unsigned int checksum):
        """The frame, if its checksum is right or there is none."""
        cdef unsigned int found
        if frame.flags & F_CRC:
            found = checksum_of(frame.meta, frame.topic, frame.data)
            if found != checksum:
                raise ProtocolError("checksum", f"CRC-32 {found:#010x}, the frame says {checksum:#010x}")
        return frame

    cdef object place(self, size_t size, bint lease, char** data):
        """Memory for a large payload, and where it begins."""
        cdef object target
        if self.spare is not None and self.expect_size == size and lease == (type(self.spare) is Lease):
            target = self.spare
            self.spare = None
            data[0] = self.spare_data
            return target
        self.spare = None
        if lease:
            target = self.pool.take(size)
            data[0] = (<Lease>target).pointer
            return target
        try:
            target = PyBytes_FromStringAndSize(NULL, size)
        except MemoryError as error:
            raise InternalError(f"no memory for a message of {size} bytes") from error
        data[0] = PyBytes_AS_STRING(target)
        if size >= HUGE:
            madvise(<void*>((<size_t>data[0] + 4095) & ~<size_t>4095), size - 4096, MADV_HUGEPAGE)
        return target

    cdef int begin_large(self, reader_t* reader, size_t head, bint as_bytes, object sink) except -1:
        """Prepares the payload's place and moves there what was read ahead."""
        cdef const char* at = reader.data + reader.start
        cdef header_t* header = <header_t*>at
        cdef size_t size = header.data_length
        cdef size_t here = reader.end - reader.start - head
        cdef Frame frame = frame_of(at, head)
        cdef object target = None
        cdef HeldBuffer held
        cdef bint lease = not as_bytes or header.flags & F_TENSOR
        if sink is not None and not header.flags & F_LZ4:
            target = sink(frame.meta, frame.topic, size)
        if target is not None:
            held = HeldBuffer(target)
            if held.view.readonly or <size_t>held.view.len != size:
                raise InternalError(f"a sink gave {held.view.len} bytes for {size}, or read-only ones")
            self.large_hold = held
            self.large_data = <char*>held.view.buf
        else:
            target = self.place(size, lease, &self.large_data)
            self.expect_head = head
            self.expect_size = size
            self.expect_lease = lease
        frame.data = target
        memcpy(self.large_data, at + head, here)
        self.large = frame
        self.large_size = size
        self.large_done = here
        self.large_checksum = header.checksum
        reader.start = reader.end = 0
        return 0

    cdef object pour(self, Frame frame, object sink):
        """Copies a payload that was read before this sink was known to where the sink wants it."""
        cdef object target
        if frame.flags & (F_CONTROL | F_LZ4):
            return None
        target = sink(frame.meta, frame.topic, len(frame.data))
        if target is not None:
            memoryview(target).cast("B")[:] = memoryview(frame.data).cast("B")
            frame.data = target

    cdef int leave_sink(self) except -1:
        """A sink's memory is the caller's again when its call ends: the rest goes to a lease."""
        cdef Lease lease
        if self.large is None or self.large_hold is None:
            return 0
        lease = self.pool.take(self.large_size)
        memcpy(lease.pointer, self.large_data, self.large_done)
        self.large.data = lease
        self.large_data = lease.pointer
        self.large_hold = None
        return 0

    cdef int fail(self, object error) except -1:
        """No more goes through this stream; the first reason stays."""
        if self.failure is None:
            self.failure = error
        if self.link.error == 0:
            self.link.error = EPROTO
        return 0

    cdef int read_large(self) except -1:
        """1 when the payload is complete, 0 when the kernel has no more of it now."""
        cdef ssize_t count = 0
        cdef int error = 0
        if self.large_done < self.large_size:
            self.link.reading = 1
            with nogil:
                while self.large_done < self.large_size:
                    count = recv(self.link.fd, self.large_data + self.large_done,
                                 self.large_size - self.large_done, MSG_DONTWAIT)
                    if count <= 0:
                        error = errno
                        if count < 0 and error == EINTR:
                            continue
                        break
                    self.large_done += count
                self.link.last_received = now_ns()
            self.done_reading()
            if self.large_done < self.large_size:
                if count < 0 and (error == EAGAIN):
                    return 0
                self.large = None
                self.large_hold = None
                self.took(NULL, count, error)
        self.link.turn = 1
        return 1

    cdef int refill(self, reader_t* reader, bint as_bytes, object sink) except -1:
        """Reads ahead once. 0 when the kernel has nothing."""
        cdef ssize_t count
        cdef int error
        cdef size_t room
        cdef bint limited = reader.reads >= 0
        if reader.drained or reader.reads == 0:
            reader.drained = 0
            return 0
        reader.reads -= 1
        if reader.start == reader.end:
            reader.start = reader.end = 0
            if self.expect_size and sink is None and self.parts is None:
                return self.refill_expected(reader, as_bytes)
        elif reader.start:
            memmove(reader.data, reader.data + reader.start, reader.end - reader.start)
            reader.end -= reader.start
            reader.start = 0
        room = reader.capacity - reader.end
        if sink is not None and self.expect_size:
            # The header alone, so that the payload goes straight to where the sink wants it.
            room = min(room, self.expect_head)
        elif limited:
            room = min(room, <size_t>TURN)
        self.link.reading = 1
        with nogil:
            count = recv(self.link.fd, reader.data + reader.end, room, MSG_DONTWAIT)
            error = errno
        self.done_reading()
        if count > 0:
            reader.end += count
            reader.drained = <size_t>count < room
        return self.took(reader, count, error)

    cdef int refill_expected(self, reader_t* reader, bint as_bytes) except -1:
        """The last frame was large: reads a header like its header and a payload like its payload,
        each to its place. If something else came, what landed in the payload moves back."""
        cdef iovec vectors[2]
        cdef char* data = NULL
        cdef bint lease = self.expect_lease or not as_bytes
        cdef size_t probe = min(self.expect_size, <size_t>PROBE)
        cdef size_t head = 0
        cdef size_t beyond
        cdef ssize_t count
        cdef int error
        cdef header_t* header = <header_t*>reader.data
        cdef object target = self.place(self.expect_size, lease, &data)
        vectors[0].iov_base = reader.data
        vectors[0].iov_len = self.expect_head
        vectors[1].iov_base = data
        vectors[1].iov_len = probe
        self.link.reading = 1
        with nogil:
            count = readv(self.link.fd, vectors, 2)
            error = errno
        self.done_reading()
        self.spare = target
        self.spare_data = data
        if count <= 0 or <size_t>count <= self.expect_head:
            if count > 0:
                reader.end = count
                reader.drained = 1
            return self.took(reader, count, error)
        reader.end = self.expect_head
        beyond = count - self.expect_head
        self.took(reader, count, error)
        if (self.head_size(reader.data, self.expect_head, &head) and head == self.expect_head
                and header.data_length == self.expect_size
                and lease == (not as_bytes or (header.flags & F_TENSOR) != 0)):
            self.large = frame_of(reader.data, head)
            self.large.data = target
            self.spare = None
            self.large_data = data
            self.large_size = self.expect_size
            self.large_done = beyond
            self.large_checksum = header.checksum
            reader.start = reader.end = 0
            return 1
        memcpy(reader.data + reader.end, data, beyond)
        reader.end += beyond
        self.expect_size = 0
        return 1

    cdef int done_reading(self) except -1:
        self.link.reading = 0
        if self.link.closed and self.link.fd >= 0:
            close_fd(self.link.fd)
            self.link.fd = -1
        return 0

    cdef int took(self, reader_t* reader, ssize_t count, int error) except -1:
        """What a read's result means: 1 something came, 0 nothing there; raises at the end."""
        if count > 0:
            self.link.last_received = now_ns()
            self.link.turn = 1
            return 1
        if count < 0 and (error == EAGAIN or error == EINTR):
            return 0
        if count == 0 and (reader == NULL or reader.end != reader.start or self.parts is not None):
            raise ProtocolError("truncated", "the connection ended inside a message")
        failure = Broken("the peer closed the connection" if count == 0 else "the connection broke")
        if count < 0:
            failure.__cause__ = OSError(error, os.strerror(error))
        raise failure


cdef object group(Stream stream, Frame frame):
    """The whole message that this frame ends, or None."""
    cdef list message
    if frame.flags & F_MORE:
        if stream.parts is None:
            stream.parts = []
        if len(stream.parts) >= MAX_FRAMES:
            raise ProtocolError("length", "a message of more than 2**20 frames")
        stream.parts.append(frame)
        return None
    if stream.parts is None:
        return [frame]
    message = stream.parts
    stream.parts = None
    message.append(frame)
    return message


cdef Frame frame_of(const char* at, size_t head):
    """A frame without its payload, from bytes whose lengths were checked."""
    cdef header_t* header = <header_t*>at
    cdef Frame frame = Frame.__new__(Frame)
    cdef size_t meta = head - HEADER - header.topic_length
    frame.flags = header.flags
    frame.sequence = header.sequence
    frame.socket_type = header.socket_type
    if meta:
        frame.meta = PyBytes_FromStringAndSize(at + HEADER, meta)
    if header.flags & F_TOPIC:
        frame.topic = PyBytes_FromStringAndSize(at + HEADER + meta, header.topic_length)
    return frame


cdef unsigned int checksum_of(object meta, object topic, object data):
    cdef unsigned int value = 0
    if meta is not None:
        value = zlib.crc32(meta, value)
    if topic is not None:
        value = zlib.crc32(topic, value)
    return zlib.crc32(data, value)


cdef int prepare_reader(reader_t* reader) except -1:
    if reader.data == NULL:
        reader.data = <char*>malloc(READ_AHEAD)
        if reader.data == NULL:
            raise MemoryError()
        reader.capacity = READ_AHEAD
    return 0


# --- one outgoing message -----------------------------------------------------------------------

cdef int prepare(link_t* link, outgoing_t* out, object frame, bint more, list owners) except -1:
    """Takes the pointers out of one OutFrame and keeps its objects alive in `owners`."""
    cdef HeldBuffer held
    cdef object topic
    cdef object meta
    cdef object data
    flags, sequence, topic, meta, data = frame
    out.flags = flags | (F_MORE if more else 0)
    out.sequence = sequence
    out.segment = NULL
    out.checksum = 0
    out.topic = NULL
    out.topic_size = 0
    out.meta = NULL
    out.meta_size = 0
    if topic is not None:
        out.flags |= F_TOPIC
        out.topic = PyBytes_AS_STRING(<bytes?>topic)
        out.topic_size = PyBytes_GET_SIZE(topic)
        if out.topic_size > TOPIC_LIMIT:
            raise InternalError(f"a topic of {out.topic_size} bytes", hint=f"the limit is {TOPIC_LIMIT}")
        owners.append(topic)
    if meta is not None:
        out.meta = PyBytes_AS_STRING(<bytes?>meta)
        out.meta_size = PyBytes_GET_SIZE(meta)
        owners.append(meta)
    if type(data) is bytes:
        out.data = PyBytes_AS_STRING(data)
        out.size = PyBytes_GET_SIZE(data)
        owners.append(data)
    else:
        held = HeldBuffer(data)
        out.data = <const char*>held.view.buf
        out.size = held.view.len
        owners.append(held)
    if (link.checksum or out.flags & F_CRC) and not out.flags & F_CONTROL:
        out.flags |= F_CRC
        out.checksum = checksum_of(meta, topic, owners[len(owners) - 1])
    return 0


cdef int add_segments(outgoing_t* out, Py_ssize_t count, list owners, bint hold, object released) except -1:
    """A segment for each large payload, made while we have the GIL. `owners` holds the payload of
    each frame last among its objects; the callback goes with the last large one."""
    cdef Py_ssize_t i
    cdef Py_ssize_t last = -1
    cdef Py_ssize_t place = 0
    cdef segment_t* segment
    cdef object owner
    for i in range(count):
        place += (out[i].topic != NULL) + (out[i].meta != NULL)
        owner = owners[place]
        place += 1
        if out[i].size < LARGE:
            continue
        segment = <segment_t*>calloc(1, sizeof(segment_t))
        if segment == NULL:
            drop_segments(out, i)
            raise MemoryError()
        segment.data = <char*>out[i].data
        segment.size = out[i].size
        segment.payload = 1
        segment.starts_inside = 1
        # bytes cannot change, so holding them is as good as a copy.
        segment.borrowed = type(owner) is not bytes and not hold
        Py_INCREF(owner)
        segment.owner = <PyObject*>owner
        out[i].segment = segment
        last = i
    if last >= 0 and released is not None:
        Py_INCREF(released)
        out[last].segment.released = <PyObject*>released
    return 0


cdef int drop_segments(outgoing_t* out, Py_ssize_t count) except -1:
    """The message was not taken: its segments go, and nobody is told."""
    cdef Py_ssize_t i
    for i in range(count):
        if out[i].segment != NULL:
            if out[i].segment.released != NULL:
                Py_DECREF(<object>out[i].segment.released)
            Py_DECREF(<object>out[i].segment.owner)
            free(out[i].segment)
            out[i].segment = NULL
    return 0


cdef bint has_large(list owners):
    for owner in owners:
        if type(owner) is HeldBuffer:
            if (<HeldBuffer>owner).view.len >= LARGE:
                return True
        elif PyBytes_GET_SIZE(owner) >= LARGE:
            return True
    return False


cdef int enqueue(link_t* link, outgoing_t* out, Py_ssize_t count, size_t total, bint force,
                 bint settle) noexcept nogil:
    """Appends one message and writes. Enters with the mutex held and leaves without it."""
    cdef int answer = append_message(link, out, count, total, force)
    if answer == OK and link.fd >= 0 and not link.kernel_full:
        link.turn = 0
        link.last_sent = now_ns()
        if link_write(link) == BROKEN:
            answer = OK        # it is queued: take_unsent finds it, and the next send tells
    if answer == OK and settle and link.borrowed:
        answer = link_settle(link)
    pthread_mutex_unlock(&link.mutex)
    return answer


cdef int append_message(link_t* link, outgoing_t* out, Py_ssize_t count, size_t total,
                        bint force) noexcept nogil:
    cdef Py_ssize_t i
    cdef int answer
    cdef bint control = out[0].flags & F_CONTROL
    cdef uint64_t sequence
    cdef size_t head
    cdef char* at
    if link.error or link.closed:
        return BROKEN
    if not force:
        answer = link_room(link, total)
        if answer != OK:
            return answer
    if not control:
        link.sent += 1
    for i in range(count):
        head = HEADER + out[i].meta_size + out[i].topic_size
        at = link_reserve(link, head if out[i].segment != NULL else head + out[i].size, i > 0)
        if at == NULL:
            return NO_MEMORY
        sequence = out[i].sequence
        if sequence == 0 and not control:
            sequence = link.sent
        link_put_header(at, link.socket_type, out[i].flags, sequence, out[i].topic_size, out[i].size,
                        out[i].checksum)
        memcpy(at + HEADER, out[i].meta, out[i].meta_size)
        memcpy(at + HEADER + out[i].meta_size, out[i].topic, out[i].topic_size)
        if out[i].segment == NULL:
            memcpy(at + head, out[i].data, out[i].size)
        else:
            link_append(link, out[i].segment)
            link.queued_bytes += out[i].size
            link.borrowed += out[i].segment.borrowed
            out[i].segment = NULL
        if not control:
            link.sent_bytes += out[i].size
    if not control:
        link.queued += 1
        link.queued_payload += total
        link.tail.messages += 1
        link.tail.payloads += total
    return OK


# --- what was never sent --------------------------------------------------------------------------

cdef list unsent_messages(list pieces):
    """Cuts queued memory back into messages; only those of which nothing was written.

    A piece is (bytes or buffer, bytes written, size, is a chunk, begins inside a message). Chunks
    begin with a header; the payload of a large frame is the piece after its header's chunk.
    """
    cdef list messages = []
    cdef list message = []
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t offset = 0
    cdef bint lost = False       # the message that we are in was begun
    cdef const char* at
    cdef header_t* header
    cdef Py_ssize_t head
    cdef uint32_t extension
    cdef bytes chunk
    if pieces and pieces[0][4]:
        # Written before: the rest of that message, and of that frame's payload, cannot be sent again.
        lost = True
        if not pieces[0][3]:
            index = 1
            lost = len(pieces) > 1 and pieces[1][4]
    while index < len(pieces):
        piece, done, size, is_chunk, inside = pieces[index]
        if not is_chunk or offset >= size:
            index += 1
            offset = 0
            continue
        chunk = piece
        at = PyBytes_AS_STRING(chunk) + offset
        header = <header_t*>at
        head = HEADER + header.topic_length
        if header.flags & F_EXTENDED:
            memcpy(&extension, at + HEADER, 4)
            head += extension
        elif header.flags & F_TENSOR:
            head += 48
        if done > offset:
            lost = True
        frame = chunk[offset:offset + head]
        if offset + head + <Py_ssize_t>header.data_length <= size and not payload_follows(
                pieces, index, offset + head, header.data_length):
            data = chunk[offset + head:offset + head + header.data_length]
            offset += head + header.data_length
        else:
            data = pieces[index + 1][0]
            lost = lost or pieces[index + 1][1] > 0
            index += 2
            offset = 0
        if header.flags & F_CONTROL:
            lost = False
            continue
        message.append(out_frame(frame, data))
        if not header.flags & F_MORE:
            if not lost:
                messages.append(message)
            message = []
            lost = False
    return messages


cdef bint payload_follows(list pieces, Py_ssize_t index, Py_ssize_t end, uint64_t size):
    """Whether the payload of the frame whose head ends at `end` is a piece of its own."""
    return (size >= LARGE and end == pieces[index][2] and index + 1 < len(pieces)
            and not pieces[index + 1][3])


cdef tuple out_frame(bytes head, object data):
    cdef header_t* header = <header_t*>PyBytes_AS_STRING(head)
    cdef Py_ssize_t split = len(head) - header.topic_length
    meta = head[HEADER:split] or None
    topic = head[split:] if header.flags & F_TOPIC else None
    flags = header.flags & ~(F_MORE | F_TOPIC)
    return (flags, header.sequence, topic, meta, data)
