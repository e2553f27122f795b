# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Parts: messages of several parts. Those of plain `bytes` are sent and received here, and a ROUTER's with
its peers' identities; all others by the hooks, in Python.
"""

from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_AsTuple, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_Check
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from transfer.transports.arguments import flags_of, sequence, whole
from transfer.transports.core.wire import MAX_FRAMES
from transfer.transports.errors import Again, NotSupported, TransferError

from transfer.transports.core.native.inproc_calls cimport has_plain, push_plain, push_to_end, take_plain
from transfer.transports.core.native.kernel_writes cimport F_MORE, HEADER, MAGIC, OK, VERSION, header_t
from transfer.transports.core.native.pool cimport Frame

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState* PyThreadState_Get()
    uint64_t PyThreadState_GetID(PyThreadState*)

cdef enum:
    TRIES = 100                # to keep a message whose receive signals interrupt again and again
    ROUND_ROBIN = 1
    FANOUT = 2
    FAIR = 1
    FILTERED = 2
    MANY = 1 << 20             # of one `recv_many`
    RCVMORE = 13               # ZeroMQ's number

cdef Py_ssize_t MOST_PARTS = MAX_FRAMES


cdef int bits_of(object flags) except -1:
    """The flags of a call; Python checks other objects."""
    cdef int overflow = 0
    cdef long bits = -1
    if PyLong_Check(flags):
        bits = PyLong_AsLongAndOverflow(flags, &overflow)
    return <int>bits if 0 <= bits <= 3 else flags_of(flags)


cdef class UnfinishedMessages:
    """How many threads have begun a message of a socket and not read all its parts, or not sent its last
    one; and the thread that asked last, for whom no look-up is needed."""


@cython.no_gc_clear
cdef class SocketThread:
    """One thread that uses a socket. Attributes, not items: they are written without a call, in which a
    signal handler could raise.

    given: the core's message, until the call that receives it ends: its stream and frames. stream: that of
    its newest message, if that passed through `_recv_frames`. rest: the parts of a message that `recv` has
    not returned yet. begun: those sent with SNDMORE, as frames. Both change by the methods.
    """

    def __cinit__(self, UnfinishedMessages counted):
        self.counted = counted
        self.rest = deque()
        self.begun = []

    def __dealloc__(self):
        self.counted.reading -= bool(self.rest)
        self.counted.sending -= bool(self.begun)
        if self.counted.newest == <void*>self:
            self.counted.newest = NULL

    cpdef object begin(self, frames):
        """Keeps frames for the message that this thread sends part by part."""
        cdef bint had = bool(self.begun)
        self.begun.extend(frames)
        self.counted.sending += <bint>bool(self.begun) - had

    cpdef object end(self):
        """That message is sent, or given up."""
        if self.begun:
            self.begun.clear()
            self.counted.sending -= 1

    cdef object checked(self, object made, bint all_parts):
        """What Python has received: a part, or a whole message. A signal that came meanwhile is handled here,
        since its handler would run between this call and its caller, and what was received would be lost: if
        it raises, the next receive of this thread has it."""
        try:
            PyErr_CheckSignals()
        except BaseException:
            if all_parts:
                self.leave(made)
            else:
                self.put_back(made)
            raise
        return made

    cpdef object leave(self, parts):
        """Keeps parts for the next calls."""
        cdef bint had = bool(self.rest)
        self.rest.extend(parts)
        self.counted.reading += <bint>bool(self.rest) - had

    cpdef object put_back(self, part):
        """The part is the next one again."""
        cdef bint had = bool(self.rest)
        self.rest.appendleft(part)
        self.counted.reading += not had

    cpdef object take(self):
        """The next part, of which there is one."""
        part = self.rest.popleft()
        self.counted.reading -= not self.rest
        return part

    cpdef object clear(self):
        if self.rest:
            self.rest.clear()
            self.counted.reading -= 1


cdef class Parts(Attachments):
    """The parts of a socket's messages."""

    def __cinit__(self, *args, **kwargs):
        self._unfinished = UnfinishedMessages()

    # --- sending --------------------------------------------------------------------------------

    def send_multipart(self, msg_parts, flags=0, bint copy=True, bint track=False):
        """Sends several parts as one message, completely or not at all. As `send`."""
        cdef int bits = bits_of(flags)
        if (type(msg_parts) is list and not bits & ~DONTWAIT and not track and is_usable(self)
                and not self._unfinished.sending and self.push_parts(PyList_AsTuple(msg_parts))):
            return None
        return self._send_multipart(msg_parts, bits, copy, track)

    cdef bint push_parts(self, tuple parts) except -1:
        """False: Python has to send them."""
        cdef Py_ssize_t count = PyTuple_GET_SIZE(parts)
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t i
        cdef object part
        cdef Stream stream
        if not 0 < count <= MOST_PARTS:
            return False
        for i in range(count):
            part = <object>PyTuple_GET_ITEM(parts, i)
            if type(part) is not bytes:
                return False
            size += PyBytes_GET_SIZE(part)
        if size >= self.copy_threshold:
            return False
        if self._routes is not None:
            if count == 1:
                return False
            target = self._routes.get(<object>PyTuple_GET_ITEM(parts, 0))
            size -= PyBytes_GET_SIZE(<object>PyTuple_GET_ITEM(parts, 0))
            if type(target) is Stream:
                stream = <Stream>target
                if stream.identity is None or self.push(stream, None, parts, 1, size, 0) != OK:
                    return False
            elif not push_to_end(target, parts, size):
                return False
            self.messages_sent += 1
            self.bytes_sent += size
            return True
        if self._general_send:
            return False
        if self.foreign_outs:
            return push_plain(self, None, parts, size)
        if self.send_mode == ROUND_ROBIN:
            return self.push_one(None, parts, size, 0) is not None
        return self.send_mode == FANOUT and self.push_all(None, parts, size) == OK

    cdef bint keep_part(self, bytes data) except -1:
        """A part that more follow. False: Python has to keep it, since the message will need it."""
        cdef SocketThread here
        if not is_usable(self) or (
                self._routes is None and (self._general_send or self.send_mode != ROUND_ROBIN)):
            return False
        here = self.thread_here()
        if self._routes is not None and not here.begun and data not in self._routes:
            return False
        here.begin(((0, 0, None, None, data),))
        return True

    cdef bint send_last(self, SocketThread here, bytes data) except -1:
        """The last part of this thread's message. False: Python has to send it."""
        cdef list parts = []
        if not is_usable(self):
            return False
        for frame in here.begun:
            parts.append((<tuple>frame)[4])
            if (<tuple>frame)[0] or (<tuple>frame)[2] is not None:
                return False
        parts.append(data)
        if not self.push_parts(PyList_AsTuple(parts)):
            return False
        here.end()
        return True

    def send_many(self, messages, flags=0):
        """Sends each of these as a message of one part, in order. As `send`; returns how many were sent, if
        not all of them had room in time."""
        cdef int bits = bits_of(flags)
        cdef tuple given = tuple(messages if type(messages) is list else
                                 sequence(messages, "the messages", "bytes; send() sends one"))
        cdef Py_ssize_t done = 0
        while done < PyTuple_GET_SIZE(given):
            if (self.send_mode == ROUND_ROBIN and is_usable(self) and not self._general_send
                    and not self._unfinished.sending and not self.foreign_outs and not bits & ~DONTWAIT
                    and len(self.outs) == 1):
                done += self.push_run(<Stream>self.outs[0], given, done)
                if done == PyTuple_GET_SIZE(given):
                    break
            elif (is_usable(self) and not self._unfinished.sending and not bits & ~DONTWAIT
                    and self.push_parts((given[done],))):
                done += 1
                continue
            try:
                self._send_one(given[done], bits, True, False)
            except Again:
                if done:
                    return done
                raise
            done += 1
        return done

    # --- receiving ------------------------------------------------------------------------------

    def recv_many(self, most, flags=0):
        """Receives the messages that are there, at most so many, as `bytes`, or lists of `bytes` for those of
        several parts. Waits for the first one, as `recv`."""
        cdef list found = []
        cdef object stream = None
        cdef object ahead
        if type(most) is not int or not 0 < most < MANY:
            most = min(whole(most, "most", 1), MANY)
        ahead = self._read_ahead(most)
        if ahead is None:
            message = Parts.recv_multipart(self, flags)
            return [message[0] if len(message) == 1 else message]
        stream, found = ahead
        try:
            PyErr_CheckSignals()  # a handler that ran later, and raised, would lose them
        except BaseException:
            for data in found:
                self._give_again(stream, [Frame(data)])
            raise
        return found

    def recv_multipart(self, flags=0, bint copy=True, bint track=False):
        """Receives all parts of one message. As `recv`."""
        cdef int bits = bits_of(flags)
        cdef list parts
        cdef SocketThread here
        if copy and not bits & ~DONTWAIT and (not self._unfinished.reading or not self.thread_here().rest):
            parts = self.plain_parts()
            if parts is None and self.foreign_ins:
                parts = self.inproc_parts()
            if parts is not None:
                return parts
        here = self.thread_here()
        return here.checked(self._recv_multipart(bits, copy), True)

    cdef size_t plain_end(self, Py_ssize_t* count, uint64_t* total) noexcept:
        """Where the next message ends in the reader, if all its parts are plain and were read ahead, else 0.
        count, total: of its parts, and of their bytes."""
        cdef Stream stream = self.current
        cdef size_t at = self.reader.start
        cdef header_t* header
        count[0] = total[0] = 0
        if (stream is None or not is_in_order(self, stream) or not self.receive_mode
                or (self._with_identity and stream.identity is None)
                or (self._general_recv and not self._with_identity)):
            return 0
        while True:
            header = <header_t*>(self.reader.data + at)
            if (self.reader.end - at < HEADER or header.flags & ~F_MORE or header.topic_length != 0
                    or header.data_length > self.reader.end - at - HEADER or header.magic != MAGIC
                    or header.version != VERSION or header.socket_type > 8 or count[0] == MOST_PARTS):
                return 0
            total[0] += header.data_length
            at += HEADER + header.data_length
            count[0] += 1
            if not header.flags & F_MORE:
                return at if total[0] <= stream.link.max_message else 0

    cdef list plain_parts(self):
        """The next message, if all its parts are plain and were read ahead; None: it is received in the
        general way."""
        cdef Stream stream = self.current
        cdef header_t* header
        cdef list parts
        cdef object part
        cdef size_t start = self.reader.start
        cdef size_t at = start
        cdef uint64_t number = self.messages_received
        cdef uint64_t total = 0
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t i
        cdef bint named = self._with_identity
        if not self.plain_end(&count, &total):
            return None
        parts = PyList_New(count + named)
        # That may collect garbage, and so let other threads receive, as the signal handlers below may.
        if not is_same(self, stream, number, start):
            return None
        if named:
            Py_INCREF(stream.identity)
            PyList_SET_ITEM(parts, 0, stream.identity)
        at = start
        for i in range(count):
            header = <header_t*>(self.reader.data + at)
            part = PyBytes_FromStringAndSize(self.reader.data + at + HEADER, header.data_length)
            Py_INCREF(part)
            PyList_SET_ITEM(parts, i + named, part)
            at += HEADER + header.data_length
        if self.receive_mode == FILTERED and not self.is_subscribed(<bytes>parts[0]):
            return None
        # A signal handler that raises here finds the message unread.
        PyErr_CheckSignals()
        if not is_same(self, stream, number, start):
            return None
        self.reader.start = at
        stream.expect_size = 0
        count_one(self, stream, total)
        if self.exposed:
            self.signal()
        return parts

    cdef bint is_all_wanted(self) noexcept:
        """Whether no message that arrives is left out by a subscription."""
        return self.receive_mode == FAIR or self.wants_all

    def _has_rest(self):
        """Whether this thread has received a part of a message, and not all of them."""
        return self._unfinished.reading > 0 and len(self.thread_here().rest) > 0

    def _getsockopt(self, option):
        """An option of ZeroMQ; RCVMORE, which programs ask for at each part, without Python."""
        if isinstance(option, int) and option == RCVMORE and not self.closed:
            return 1 if self._unfinished.reading and self.thread_here().rest else 0
        return self._get_option(option)

    def _get_option(self, option):
        raise NotSupported("this socket has no options of ZeroMQ")

    cdef list inproc_parts(self):
        """The next message, if it is a plain one of a peer in this process."""
        if self._general_recv and not self._with_identity:
            return None
        message = take_plain(self, self._with_identity)
        return [message] if type(message) is bytes else <list>message

    cdef object inproc_part(self):
        """The same, of one part or more: the first, and this thread has the others."""
        cdef SocketThread here = self.thread_here()
        if here.rest:
            return None
        message = take_plain(self, False)
        if type(message) is not list:
            return message
        here.leave((<list>message)[1:])
        return (<list>message)[0]

    cdef bint has_message(self) except -1:
        return (len(self.foreign_ins) > 0 and has_plain(self)) or Attachments.has_message(self)

    cdef SocketThread thread_here(self):
        cdef uint64_t number = PyThreadState_GetID(PyThreadState_Get())  # of no other thread, ever
        cdef UnfinishedMessages counted = self._unfinished
        cdef SocketThread here
        if counted.newest != NULL and counted.number == number:
            return <SocketThread>counted.newest
        here = self._socket_thread()  # others may ask meanwhile
        counted.newest = <void*>here
        counted.number = number
        return here

    def _give_back(self, SocketThread here, error):
        """A receive of this thread was ended by this error. If it is of a signal's handler, what was taken is
        the next receive's. In one step, as another handler may raise behind it."""
        cdef tuple given = here.given
        cdef list left = [given]
        cdef int tries = TRIES
        here.given = None
        if given is None or isinstance(error, TransferError):
            return
        if self._turn is None:
            here.clear()
            self._give_again(given[0], given[1])
            return
        while left and tries:
            tries -= 1
            try:
                self._take_back(left)  # asks the pattern, which is Python
            except BaseException:  # of one more handler: the caller raises the first one's
                pass

    cdef object next_part(self, bint copy):
        """The next part of the message that this thread has begun. None: a signal handler took it."""
        cdef SocketThread here = self.thread_here()
        cdef object part = here.rest[0]
        cdef object made = part
        self.check_usable()
        if copy and type(part) is not bytes:
            made = part.bytes
        elif not copy and type(part) is bytes:
            made = Frame(part, flags=F_MORE if len(here.rest) > 1 else 0)
        PyErr_CheckSignals()
        if not here.rest or here.rest[0] is not part:  # a handler received it
            return None
        here.take()
        return made

    # --- hooks ----------------------------------------------------------------------------------

    def _socket_thread(self):
        return SocketThread(self._unfinished)
