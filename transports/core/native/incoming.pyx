# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Incoming: the receiving half of a Stream.

Small frames are cut out of a read-ahead buffer that the caller lends; large_frames.pyx reads large ones.
"""

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from transfer.transports.errors import InternalError, ProtocolError
from transfer.transports.core.wire import MAX_FRAMES

from transfer.transports.core.native.atomic cimport add, load_int
from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.fetched_frames cimport Fetched
from transfer.transports.core.native.header cimport frame_of, head_size
from transfer.transports.core.native.large_frames cimport receive
from transfer.transports.core.native.sizes cimport LARGE
from transfer.transports.core.native.kernel_writes cimport (
    F_CONTROL, F_CRC, F_LZ4, F_MORE, F_TENSOR, HEADER, ON_GPU, REFERENCE_BIT, REFERENCE_KIND,
    REFERENCE_SIZE, header_t, link_arm_credit,
)
from transfer.transports.core.native.message cimport checksum_of
from transfer.transports.core.native.pool cimport Frame, Lease, room_for
from transfer.transports.core.native.pool import copy_into
from transfer.transports.core.native.system cimport iovec, readv
from transfer.transports.core.native.tls cimport SPILL

cdef enum:
    READ_AHEAD = 256 * 1024
    CAUTIOUS = 4 * 1024            # the first read-ahead after a large frame; it doubles
    TURN = 64 * 1024               # read-ahead of one stream among several
    PROBE = 128 * 1024             # of an expected payload, before its header was seen

cdef Py_ssize_t MOST_FRAMES = MAX_FRAMES


cdef class Incoming(Fetched):
    """Decodes frames of one connection; checks every length before memory is allocated."""

    def __cinit__(self, *args, **kwargs):
        self.ahead = READ_AHEAD
        self.fetches = []

    cdef int count(self, list message) except -1:
        """Counts one more delivered message; the flusher will report it to the peer."""
        cdef Frame frame
        for frame in message:
            self.link.received_bytes += len(frame.data)
        add(&self.link.received, 1)
        if self.link.credits and not load_int(&self.link.credit_armed):
            link_arm_credit(self.link)
        return 0

    cdef object next_frame(self, reader_t* reader, bint as_bytes, object sink):
        """The next frame, or None when the kernel has no more. Raises ProtocolError, Broken."""
        cdef size_t available
        cdef size_t head = 0
        cdef header_t* header
        cdef Frame frame
        cdef bint over
        while True:
            over = False
            if self.saved_size and reader.end == reader.start:
                memcpy(reader.data, self.saved, self.saved_size)
                reader.start = 0
                reader.end = self.saved_size
                self.saved_size = 0
                reader.drained = 0
            if self.large is not None and self.fetching is not None:
                if not self.read_fetched(reader):
                    self.park(reader)
                    self.hungry = True
                    return None
                frame = self.large
                self.large = None
                if sink is not None:
                    self.pour(frame, sink)
                return frame
            if self.large is not None:
                if not self.read_large(reader):
                    self.hungry = True
                    return None
                frame = self.large
                self.large = None
                self.check(frame, self.large_checksum)
                if sink is not None and self.large_hold is None and self.large_sink is not sink:
                    self.pour(frame, sink)
                self.large_hold = self.large_sink = self.large_landed = None
                return frame
            available = reader.end - reader.start
            if available >= HEADER:
                header = <header_t*>(reader.data + reader.start)
                if self.understands(reader.data + reader.start, available, &head):
                    if header.data_length <= available and head + header.data_length <= available:
                        if header.socket_type & REFERENCE_BIT and self.link.ring != NULL:
                            self.begin_fetch(self.reference(reader.data + reader.start, head), sink)
                            reader.start += head + header.data_length
                            continue
                        frame = self.whole_frame(reader.data + reader.start, head, as_bytes, sink)
                        reader.start += head + header.data_length
                        if reader.start == reader.end:
                            reader.start = reader.end = 0
                        if self.parts is None:
                            self.first_small = True
                        self.expect_size = 0
                        return self.check(frame, header.checksum)
                    # With TLS the last record contains the beginning of the next frame, which is for another
                    # turn: its rest has not arrived, so the descriptor becomes readable.
                    over = reader.reads >= 0 and reader.large
                    if header.data_length >= LARGE and head <= available and not over:
                        self.begin_large(reader, head, as_bytes, sink)
                        # Read-ahead of a large payload is copied, and after one large payload more may
                        # follow.
                        self.ahead = CAUTIOUS
                        if self.parts is None:
                            self.first_small = False
                        continue
            if over or not self.refill(reader, as_bytes, sink):
                self.park(reader)
                self.hungry = self.saved_size != 0 or self.parts is not None
                return None

    @property
    def midway(self):
        return self.hungry and not self.link.reading

    cdef int park(self, reader_t* reader) except -1:
        """Moves the rest of the reader into the stream's memory."""
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

    cdef int understands(self, const char* at, size_t available, size_t* head) except -1:
        cdef header_t* header = <header_t*>at
        if not head_size(at, available, head, self.link.max_message, self.carrier is not None):
            return 0
        if self.parts is not None and not header.flags & F_CONTROL:
            self.admit(header.data_length + head[0] - HEADER)
        return 1

    cdef int admit(self, uint64_t size) except -1:
        """Checks the limit for all parts of a message. No memory was allocated for this one yet."""
        if self.parts is not None:
            size += self.parts_size
        if size > self.link.max_message:
            raise ProtocolError(
                "too_large", f"a message of {size} bytes, the limit is {self.link.max_message}",
                hint="raise `maxmsgsize` on the receiving socket")
        return 0

    cdef Frame whole_frame(self, const char* at, size_t head, bint as_bytes, object sink):
        """A frame that is complete in the reader."""
        cdef header_t* header = <header_t*>at
        cdef Frame frame = frame_of(at, head)
        cdef size_t size = header.data_length
        cdef object target = None
        cdef Lease lease
        cdef Py_buffer view
        if header.socket_type & REFERENCE_BIT:
            return self.referred(at, head, sink)
        if sink is not None and not header.flags & (F_CONTROL | F_LZ4):
            target = self.ask(sink, frame, size)
        if target is not None:
            PyObject_GetBuffer(target, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
            try:
                check_size(&view, size)
                memcpy(view.buf, at + head, size)
            finally:
                PyBuffer_Release(&view)
            frame.data = target
        elif header.flags & F_TENSOR or (size >= LARGE and not as_bytes):
            lease = room_for(self.pool, size)
            memcpy(lease.pointer, at + head, size)
            frame.data = lease
        else:
            frame.data = PyBytes_FromStringAndSize(at + head, size)
        return frame

    cdef Frame referred(self, const char* at, size_t head, object sink):
        """A frame whose payload travels apart from the connection. The checksum is that of the reference."""
        cdef Frame frame = self.reference(at, head)
        cdef object target = None
        cdef object payload
        cdef uint64_t size
        memcpy(&size, at + head + REFERENCE_SIZE - 8, 8)
        if sink is not None and not frame.flags & F_LZ4:
            if (at + head)[REFERENCE_KIND] == ON_GPU:
                sink = getattr(sink, "arrives_on_gpu", sink)
            target = self.ask(sink, frame, size)
            if target is not None:
                check_room(target, size)  # what is fetched is gone from where it was
        payload = self.carrier.fetch(frame.data)
        if target is not None:
            copy_into(target, payload)
            payload = target
        frame.data = payload
        return frame

    cdef Frame reference(self, const char* at, size_t head):
        """The same with the reference as its data."""
        cdef header_t* header = <header_t*>at
        cdef Frame frame = frame_of(at, head)
        cdef uint64_t size
        frame.data = PyBytes_FromStringAndSize(at + head, REFERENCE_SIZE)
        self.check(frame, header.checksum)
        frame.flags &= ~F_CRC
        memcpy(&size, at + head + REFERENCE_SIZE - 8, 8)
        self.admit(size)
        return frame

    cdef object check(self, Frame frame, unsigned int checksum):
        """The frame, if its checksum is correct or there is none."""
        cdef unsigned int found
        if frame.flags & F_CRC:
            found = checksum_of(frame.meta, frame.topic, frame.data)
            if found != checksum:
                raise ProtocolError("checksum", f"CRC-32 {found:#010x}, the frame says {checksum:#010x}")
        return frame

    cdef int refill(self, reader_t* reader, bint as_bytes, object sink) except -1:
        """Reads ahead once. 0 when the kernel has no bytes."""
        cdef iovec vector
        cdef ssize_t count
        cdef int error
        cdef size_t room
        cdef bint limited = reader.reads >= 0
        if reader.drained or reader.reads == 0:
            reader.drained = 0
            return 0
        reader.reads -= 1
        if self.link.closed:
            self.end_reading()
        if reader.start == reader.end:
            reader.start = reader.end = 0
            if (self.expect_size and sink is None and self.link.tls == NULL and self.link.ring == NULL
                    and not (self.first_small and self.parts is None)):
                return self.refill_expected(reader, as_bytes)
        elif reader.start:
            memmove(reader.data, reader.data + reader.start, reader.end - reader.start)
            reader.end -= reader.start
            reader.start = 0
        room = min(reader.capacity - reader.end, self.ahead)
        if self.link.tls != NULL:
            if limited:
                room = min(room, <size_t>TURN)
            room = min(reader.capacity - reader.end, max(room, <size_t>SPILL))
        elif (sink is not None and self.expect_size and reader.end == 0
                and not (self.first_small and self.parts is None)):
            # The header alone, so that the payload goes straight into the sink's memory.
            room = self.expect_head
        elif limited:
            room = min(room, <size_t>TURN)
        self.link.reading = 1
        with nogil:
            vector.iov_base = reader.data + reader.end
            vector.iov_len = room
            count = receive(self.link, &vector, 1)
            error = errno
        self.done_reading()
        if count > 0:
            reader.end += count
            if self.link.ring != NULL:
                reader.drained = 0  # only a read that finds nothing makes its descriptor tell of more
            else:
                reader.drained = <size_t>count < room if self.link.tls == NULL else self.link.tls.drained
            if not reader.drained and self.ahead < READ_AHEAD:
                self.ahead *= 2
        return self.took(reader, count, error)

    cdef int refill_expected(self, reader_t* reader, bint as_bytes) except -1:
        """The last frame was large: reads a header like its header and a payload like its payload, each to
        its place. If another frame came, its bytes move back from the payload's memory."""
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
        if (self.understands(reader.data, self.expect_head, &head) and head == self.expect_head
                and header.data_length == self.expect_size
                and lease == (not as_bytes or (header.flags & F_TENSOR) != 0)):
            self.large = frame_of(reader.data, head)
            self.large.data = target
            self.spare = None
            self.large_data = data
            self.large_size = self.large_report = self.expect_size
            self.large_landed = None
            self.large_done = beyond
            self.large_checksum = header.checksum
            reader.start = reader.end = 0
            return 1
        memcpy(reader.data + reader.end, data, beyond)
        reader.end += beyond
        self.expect_size = 0
        return 1

    cdef int drop_unread(self) except -1:
        free(self.saved)
        self.saved = NULL
        self.saved_size = 0
        return Fetched.drop_unread(self)


cdef object group(Incoming stream, Frame frame):
    """The complete message that this frame ends, or None."""
    cdef list message
    if frame.flags & F_MORE:
        if stream.parts is None:
            stream.parts = []
            stream.parts_size = 0
        if len(stream.parts) >= MOST_FRAMES:
            raise ProtocolError("length", f"a message of more than {MOST_FRAMES} frames")
        stream.parts.append(frame)
        stream.parts_size += len(frame.data) + len(frame.topic or b"") + len(frame.meta or b"")
        return None
    if stream.parts is None:
        return [frame]
    message = stream.parts
    stream.parts = None
    message.append(frame)
    return message


cdef int prepare_reader(reader_t* reader) except -1:
    if reader.data == NULL:
        reader.data = <char*>malloc(READ_AHEAD)
        if reader.data == NULL:
            raise MemoryError()
        reader.capacity = READ_AHEAD
    return 0


cdef int check_room(object target, uint64_t size) except -1:
    """Of memory that a sink gave. Raises BufferError, InternalError."""
    cdef Py_buffer view
    PyObject_GetBuffer(target, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
    try:
        return check_size(&view, size)
    finally:
        PyBuffer_Release(&view)


cdef int check_size(Py_buffer* view, uint64_t size) except -1:
    if <uint64_t>view.len != size:
        raise InternalError(f"a sink gave {view.len} bytes for {size}")
    return 0
