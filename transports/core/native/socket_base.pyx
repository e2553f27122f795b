# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""SocketBase: the methods that users call. Contract: core/contract.pyi.

The common message passes `send` or `recv` without a call into Python; everything else is in peer_choice.pyx
and receiving.pyx. The receive lock guards the reader.
"""

from cpython.bytearray cimport PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from posix.unistd cimport usleep

from transfer.transports.errors import Again, Broken, NotSupported, TransferError

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.flusher cimport Flusher
from transfer.transports.core.native.inproc_calls cimport push_plain
from transfer.transports.core.native.known_tensors cimport known_frame, note_header
from transfer.transports.core.native.sizes cimport LARGE
from transfer.transports.core.native.kernel_writes cimport (
    F_CRC, F_MORE, HEADER, MAGIC, OK, VERSION, header_t, now_ns,
)
from transfer.transports.core.native.parts cimport (
    DONTWAIT, SNDMORE, Parts, SocketThread, bits_of, count_one, is_in_order, is_same, is_usable,
)
from transfer.transports.core.native.pool cimport Frame, Pool
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.req_rep_turn cimport Turn

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)

cdef enum:
    ROUND_ROBIN = 1
    FANOUT = 2
    FILTERED = 2
    REQ = 0
    COPIED = 8192              # a bytearray up to this size is copied first, which costs less than to hold it
    TRIES = 100                # to keep a message whose receive signals interrupt again and again
    SENDING = 0                # sides of a turn
    RECEIVING = 1
    LOOK_MS = 50               # a REQ checks this often whether its peer is alive


cdef class SocketBase(Parts):
    """Base of transfer.Socket: the work for each message. Any thread may call."""

    def __cinit__(self, int socket_type, int send_mode, int receive_mode, Flusher flusher, Pool pool,
                  *args, **kwargs):
        self.socket_type = socket_type
        self.send_mode = send_mode
        self.receive_mode = receive_mode
        self.flusher = flusher
        self.pool = pool
        self.send_timeout = -1
        self.receive_timeout = -1
        self.copy_threshold = LARGE
        self._long_wait = 5000
        self.generation = native_link.fork_generation
        self.outs = []
        self.foreign_outs = []
        self.foreign_ins = []
        self.lazy = []
        self.by_fd = {}
        self.waiting_turn = {}
        self.foreign_fds = {}
        self.prefixes = {}
        self.prefix_lengths = ()
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __init__(self, socket_type, send_mode, receive_mode, flusher, pool):
        pass

    def __dealloc__(self):
        free(self.reader.data)
        if self.lock != NULL:  # else `__cinit__` has failed before
            PyThread_free_lock(self.lock)

    # --- sending --------------------------------------------------------------------------------

    def send(self, data, flags=0, bint copy=True, bint track=False):
        """Sends one part. Returns None, or a tracker if `track`. Raises Again after send_timeout
        (at once with DONTWAIT), Closed, StateError. Any thread may call."""
        cdef int bits = bits_of(flags)
        if (type(data) is bytes and not (bits & ~DONTWAIT) and not track and is_usable(self)
                and PyBytes_GET_SIZE(data) < self.copy_threshold):
            if self._unfinished.sending and self.thread_here().begun:
                if self.send_last(self.thread_here(), data):
                    return None
            elif self.foreign_outs:
                if (not self._lockstep and not self._general_send
                        and push_plain(self, data, None, PyBytes_GET_SIZE(data))):
                    return None
            elif self._lockstep:
                if self.send_in_turn(data):
                    return None
            elif self._general_send:
                pass
            elif self.send_mode == ROUND_ROBIN:
                if self.push_one(data, None, PyBytes_GET_SIZE(data), 0) is not None:
                    return None
            elif self.send_mode == FANOUT:
                self.push_all(data, None, PyBytes_GET_SIZE(data))
                return None
        elif bits == SNDMORE and type(data) is bytes and not track and self.keep_part(data):
            return None
        elif type(data) is bytearray and not track and PyByteArray_GET_SIZE(data) <= COPIED:
            return SocketBase.send(self, bytes(data), flags, copy)  # that of a subclass may be a coroutine
        return self.send_slowly(data, bits, copy, track)

    cdef bint send_in_turn(self, bytes data) except -1:
        """The common send of a REQ or REP; False: the pattern has to handle it."""
        cdef Turn turn = self._turn
        if not turn.take(SENDING):
            return False
        try:
            return self.ask(turn, data) if self.socket_type == REQ else self.reply(turn, data)
        finally:
            turn.give(SENDING)

    cdef bint ask(self, Turn turn, bytes data) except -1:
        cdef Stream stream
        cdef uint64_t number = (turn.last + 1) | turn.mark
        if (turn.number and not turn.relaxed) or turn.failure is not None:
            return False
        turn.pending = number
        stream = self.push_one(data, None, PyBytes_GET_SIZE(data), number)
        if stream is None:
            return False
        turn.last += 1
        turn.asks(stream, number, now_ns())
        if turn.number and stream.socket != <void*>self:  # lost in the meantime: no other call reports it
            turn.failure = Broken("the peer went before it could answer")
        return True

    cdef bint reply(self, Turn turn, bytes data) except -1:
        cdef Stream stream
        if not turn.open or not turn.simple or type(turn.stream) is not Stream:
            return False
        stream = <Stream>turn.stream
        if stream.socket != <void*>self or self.push(
                stream, data, None, 0, PyBytes_GET_SIZE(data), turn.number) != OK:
            return False
        self.messages_sent += 1
        self.bytes_sent += PyBytes_GET_SIZE(data)
        turn.open = False
        return True

    def _send_known(self, tensor, int flags):
        cdef tuple frame
        if self._general_send or self._unfinished.sending or self.foreign_outs or self._lent:
            return False
        frame = known_frame(tensor)
        if frame is None:
            return False
        self.check_usable()
        self.send_frames((frame,), 0 if flags & DONTWAIT else self.send_timeout,
                         None, None, False, None, None, True)
        return True

    def _note_known(self, tensor, int flags, bytes header):
        note_header(tensor, flags, header)

    cdef object send_slowly(self, data, int flags, bint copy, bint track):
        if self._frame_class is not None and (track or type(data) is not bytes):
            return self._send_object(data, flags, copy, track)
        return self._send_one(data, flags, copy, track)

    def _send_one(self, data, int flags, bint copy, bint track):
        """`send` in the general way."""
        self.check_usable()
        if (self.send_mode == 0 or self._general_send or self._unfinished.sending or track
                or flags & ~DONTWAIT):
            return self._send_general(data, flags, copy, track)
        self.send_frames([(0, 0, None, None, data)], 0 if flags & DONTWAIT else self.send_timeout,
                         None, None, not copy, None, None, True)
        return None

    # --- receiving ------------------------------------------------------------------------------

    def recv(self, flags=0, bint copy=True, bint track=False):
        """Receives one part: bytes, or a Frame if not `copy`. Raises Again after receive_timeout
        (at once with DONTWAIT), Closed, StateError. Any thread may call."""
        cdef Stream stream
        cdef header_t* header
        cdef Py_ssize_t size = plain_size(self)
        cdef size_t start
        cdef uint64_t number
        cdef bytes data
        cdef int bits = bits_of(flags)
        if size >= 0 and (copy or not self._keeps_properties):
            stream = self.current
            header = <header_t*>(self.reader.data + self.reader.start)
            data = PyBytes_FromStringAndSize(self.reader.data + self.reader.start + HEADER, size)
            number = self.messages_received
            start = self.reader.start
            # A signal handler that raises here finds the message unread. One that does not may have received
            # on this socket, or let other threads do so.
            PyErr_CheckSignals()
            if (is_same(self, stream, number, start)
                    and (self.receive_mode != FILTERED or self.is_subscribed(data))):
                self.reader.start += HEADER + size
                stream.expect_size = 0
                count_one(self, stream, size)
                if self.exposed:
                    self.signal()
                if copy:
                    return data
                return self.framed(plain_frame(data, header))
        if self.foreign_ins and copy and not bits & ~DONTWAIT and not self._general_recv:
            made = self.inproc_part()
            if made is not None:
                return made
        if (bits == DONTWAIT and self.receive_mode and not self._general_recv and not self._unfinished.reading
                and not self.receiving and not self.closed
                and self.generation == native_link.fork_generation and self.finds_nothing()):
            raise Again.__new__(Again, "no message is there")  # programs ask in loops: `__init__` costs more
        made = self.recv_slowly(bits, copy, track)
        return made if copy else self.framed(made)

    cdef object framed(self, given):
        """The frame as the program gets it: of a subclass' class, in memory that it may change."""
        cdef Frame made
        cdef Frame frame
        if self._frame_class is None or type(given) is self._frame_class:
            return given
        frame = <Frame?>given
        made = <Frame>Frame.__new__(self._frame_class)
        made.data = bytearray(frame.data) if type(frame.data) is bytes else frame.data
        made.flags = frame.flags & ~F_MORE | (F_MORE if self._has_rest() else 0)
        made.sequence = frame.sequence
        made.socket_type = frame.socket_type
        made.topic = frame.topic
        made.meta = frame.meta
        return made

    def _read_ahead(self, Py_ssize_t most):
        """Plain messages of one part that were read ahead: (their stream, payloads), at most `most`.
        None: the next one is of another kind, or not read yet."""
        cdef list payloads = []
        cdef Stream stream = self.current
        cdef Py_ssize_t size = plain_size(self)
        while size >= 0 and len(payloads) < most:
            data = PyBytes_FromStringAndSize(self.reader.data + self.reader.start + HEADER, size)
            if self.receive_mode == FILTERED and not self.is_subscribed(<bytes>data):
                break
            payloads.append(data)
            self.reader.start += HEADER + size
            stream.expect_size = 0
            count_one(self, stream, size)
            size = plain_size(self)
        if self.exposed and payloads:
            self.signal()
        return (stream, payloads) if payloads else None

    cdef object recv_slowly(self, int flags, bint copy, bint track):
        cdef tuple message
        cdef list frames
        cdef Frame frame
        cdef SocketThread here
        cdef Stream stream
        cdef bint general
        if (self._unfinished.reading and self.thread_here().rest and not flags & ~DONTWAIT
                and not (self._keeps_properties and not copy)):
            made = self.next_part(copy)
            return SocketBase.recv(self, flags, copy) if made is None else made
        if not flags & ~DONTWAIT and (copy or not self._keeps_properties):
            here = self.thread_here()
            stream = self.current
            frames = self.plain_parts()
            if frames is None:
                stream = None
            if frames is None and self.foreign_ins and self._with_identity:
                frames = self.inproc_parts()
            if frames is not None:
                here.leave(frames[1:])
                if self._keeps_properties:  # a later part may be asked for them
                    here.stream = stream
                return frames[0] if copy else Frame(frames[0], flags=F_MORE if len(frames) > 1 else 0)
        general = self._general_recv or (self._keeps_properties and not copy)
        if self._lockstep and flags == 0 and not general:
            return self.recv_in_turn(copy, track)
        if self.receive_mode == 0 or general or flags & ~DONTWAIT:
            self.check_usable()
            return self.thread_here().checked(self._recv_general(flags, copy, track), False)
        message = self.next_message(0 if flags & DONTWAIT else self.receive_timeout, copy, None)
        frames = <list>message[1]
        if len(frames) == 1:
            frame = <Frame>frames[0]
            if frame.flags & ~F_CRC == 0:
                return self.payload(message, frame, copy)
        return self.deliver(message, frames, flags, copy, track)

    cdef object payload(self, tuple message, Frame frame, bint copy):
        """The program's object for a plain frame. If a signal handler raises before the end, as during the
        copy of a large payload, the next receive has the message."""
        cdef object data = frame
        try:
            if copy:
                data = frame.data if type(frame.data) is bytes else frame.bytes
            PyErr_CheckSignals()
        except BaseException:
            self._give_again(message[0], message[1])
            raise
        return data

    cdef object deliver(self, tuple message, frames, int flags, bint copy, bint track):
        """Python converts a message for the program. If a signal handler raises in it, the next receive has
        the message."""
        cdef object made
        if self._keeps_properties:  # a later part may be asked for them
            self.thread_here().stream = message[0]
        try:
            made = self._deliver(message[0], frames, flags, copy)
        except TransferError:
            raise
        except BaseException:
            self.take_back(message)
            raise
        # The frames are invalid: their connection is lost.
        return self._recv_general(flags, copy, track) if made is NotImplemented else made

    cdef int take_back(self, tuple message) except -1:
        """Although more handlers of signals may raise meanwhile."""
        cdef list given = [message]
        cdef int left = TRIES
        while given and left:
            left -= 1
            try:
                if self._turn is None:
                    self.thread_here().clear()
                    given.clear()
                    self._give_again(message[0], message[1])
                else:
                    self._take_back(given)
            except BaseException:
                pass
        return 0

    cdef object admit(self, tuple message):
        try:
            return self._admitted(message[0], message[1])
        except TransferError:
            raise
        except BaseException:
            self.take_back(message)
            raise

    cdef object recv_in_turn(self, bint copy, bint track):
        """The common receive of a REQ or REP; the pattern handles other messages."""
        cdef Turn turn = self._turn
        cdef tuple message = None
        cdef Frame frame
        cdef object admitted
        cdef object data
        if self.socket_type == REQ:
            if (turn.number and turn.failure is None
                    and not 0 <= self.receive_timeout <= LOOK_MS):
                try:
                    message = self.next_message(LOOK_MS, copy, None)
                except Again:
                    message = None
            if message is None:
                return self.thread_here().checked(self._recv_general(0, copy, track), False)
            frame = only_frame(message)
            if frame is not None:
                data = self.payload(message, frame, copy)
            # A reply that a tracker waits for needs more work.
            if frame is not None and self._lockstep and turn.answers(message[0], frame.sequence):
                turn.answered(now_ns())
                return data
            admitted = self.admit(message)
        else:
            if turn.open or not turn.take(RECEIVING):
                return self.thread_here().checked(self._recv_general(0, copy, track), False)
            try:
                message = self.next_message(self.receive_timeout, copy, None)
                frame = only_frame(message)
                if frame is not None and frame.socket_type == REQ and type(message[0]) is Stream:
                    data = self.payload(message, frame, copy)
                    turn.stream = message[0]
                    turn.number = frame.sequence
                    turn.open = True
                    turn.simple = True
                    return data
                admitted = self.admit(message)
            finally:
                turn.give(RECEIVING)
        if admitted is None:
            return self.thread_here().checked(self._recv_general(0, copy, track), False)
        return self.deliver(message, list(admitted), 0, copy, track)

    # --- descriptors ----------------------------------------------------------------------------

    def fileno(self):
        """A descriptor that is readable when recv may succeed; watch it for reading only."""
        self.check_usable()
        if not self.exposed:
            self.epoll_of_all()
            self.exposed = True
            self.signal()
        return self.epoll_fd

    def _close_core(self):
        """Wakes waiting calls, which raise Closed, and closes the descriptors. Twice is fine."""
        cdef int patience = 5000
        self.closed = True
        while self.waiting and patience:
            self._notify()
            patience -= 1
            with nogil:
                usleep(200)
        for stream in self._streams():
            self._detach(stream)
        self.stash = self.again = self.counted = None
        self.current = None
        self.left = None
        if not self.waiting:
            self.close_descriptors()

    # --- hooks ----------------------------------------------------------------------------------

    def _send_general(self, data, flags, copy, track):
        raise NotSupported("this socket type cannot send")

    def _recv_general(self, flags, copy, track):
        raise NotSupported("this socket type cannot receive")

    def _deliver(self, stream, frames, flags, copy):
        frame = frames[len(frames) - 1]
        return frame.bytes if copy else frame

    def _admitted(self, stream, frames):
        return frames

    def _take_back(self, given):
        self._give_again(*given.pop())

    def _on_control(self, stream, frame):
        pass

    def _no_message(self):
        return Again("no message came in time")

    def _on_long_wait(self):
        pass

    def _on_refused(self, stream, error):
        pass

    def _on_lost(self, stream, error):
        pass


cdef inline Py_ssize_t plain_size(SocketBase self) noexcept:
    """The length of the next message if it is plain, of one part, and read ahead; -1: it is not, or Python
    has to handle it."""
    cdef Stream stream = self.current
    cdef header_t* header
    cdef size_t available
    if (stream is None or self._general_recv or self._unfinished.reading or not self.receive_mode
            or not is_in_order(self, stream)):
        return -1
    available = self.reader.end - self.reader.start
    header = <header_t*>(self.reader.data + self.reader.start)
    if (available < HEADER or header.flags != 0 or header.data_length > available - HEADER
            or header.magic != MAGIC or header.version != VERSION or header.topic_length != 0
            or header.socket_type > 8 or header.data_length > stream.link.max_message):
        return -1
    return header.data_length


cdef inline Frame only_frame(tuple message):
    """The plain frame of a numbered message, if it consists of that alone."""
    cdef Frame frame
    if len(<list>message[1]) != 1:
        return None
    frame = <Frame>(<list>message[1])[0]
    return frame if frame.flags == 0 and frame.sequence else None


cdef Frame plain_frame(bytes data, header_t* header):
    # Before the frame is made, which may collect garbage: then other threads read into the same memory.
    cdef uint64_t sequence = header.sequence
    cdef unsigned char socket_type = header.socket_type
    cdef Frame frame = Frame.__new__(Frame)
    frame.data = data
    frame.sequence = sequence
    frame.socket_type = socket_type
    return frame
