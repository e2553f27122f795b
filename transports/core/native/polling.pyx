# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Polling: the wait for the first of several sockets that has a message."""

from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_AsTuple
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.flusher cimport check_signals
from transfer.transports.core.native.inproc_calls cimport has_plain
from transfer.transports.core.native.kernel_writes cimport now_ns
from transfer.transports.core.native.socket_base cimport SocketBase
from transfer.transports.core.native.system cimport POLLIN, poll, pollfd

cdef enum:
    READABLE = 1               # the bit of an entry: to receive
    LOOK_MS = 200              # the longest sleep: closing a descriptor in another thread does not end it
    LOOK_NS = 50_000           # how often the kernel is asked for others while one socket has messages ready


def poll_sockets(list entries, timeout):
    """See the contract."""
    cdef tuple polled = PyList_AsTuple(entries)  # other threads may change the list meanwhile
    cdef list ready = read_ahead(polled) if polled else None
    cdef int64_t deadline = -1
    if ready or ready is None:
        return ready
    if timeout is not None and timeout >= 0:
        deadline = now_ns() + <int64_t>(timeout * 1_000_000)
    return wait_for_one(polled, deadline)


cdef list read_ahead(tuple polled):
    """The entries whose next message was read ahead; with one of them, also those that the kernel has one
    for, if it was not asked a moment ago. None: there is an entry that Python has to poll."""
    cdef list ready = []
    cdef list others = None
    cdef SocketBase socket
    cdef Py_ssize_t count
    cdef uint64_t total
    cdef int64_t now
    for entry in polled:
        if type(entry) is not tuple or PyTuple_GET_SIZE(entry) != 2:
            return None
        thing = <object>PyTuple_GET_ITEM(entry, 0)
        if not isinstance(thing, SocketBase) or not (<object>PyTuple_GET_ITEM(entry, 1) == READABLE):
            return None
        socket = <SocketBase>thing
        if not is_plain(socket):
            return None
        if (socket.is_all_wanted() and socket.plain_end(&count, &total)) or (
                socket.foreign_ins and has_plain(socket)):
            ready.append(entry)
        elif others is None:
            others = [entry]
        else:
            others.append(entry)
    if ready and others is not None:
        now = now_ns()
        for entry in others:
            socket = <SocketBase>(<tuple>entry)[0]
            if now - socket.looked > LOOK_NS:
                socket.looked = now
                if socket.has_message():
                    ready.append(entry)
    return ready


cdef bint is_plain(SocketBase socket) noexcept:
    """Whether the socket may receive at any time, and its descriptor tells when it can."""
    return not (socket.closed or socket.generation != native_link.fork_generation
                or not socket.receive_mode or (socket._general_recv and not socket._with_identity)
                or socket._unfinished.reading)


cdef list wait_for_one(tuple polled, int64_t deadline):
    """Sleeps until a message is there, or the deadline (negative: none). None as `read_ahead`."""
    cdef Py_ssize_t count = PyTuple_GET_SIZE(polled)
    cdef Py_ssize_t i
    cdef pollfd* fds = <pollfd*>calloc(count, sizeof(pollfd))
    cdef list ready
    cdef SocketBase socket
    cdef int64_t now, due = 0
    cdef int64_t patience = -1
    cdef int answer, error, wait
    if fds == NULL:
        raise MemoryError()
    try:
        for i in range(count):
            socket = <SocketBase>(<tuple>PyTuple_GET_ITEM(polled, i))[0]
            fds[i].fd = socket.fileno()  # before the first check: it tells of all from now on
            fds[i].events = POLLIN
            patience = socket._long_wait if patience < 0 else min(patience, socket._long_wait)
        while True:
            ready = []
            for i in range(count):
                socket = <SocketBase>(<tuple>PyTuple_GET_ITEM(polled, i))[0]
                if not is_plain(socket):
                    return None
                if socket.has_message():
                    ready.append(<object>PyTuple_GET_ITEM(polled, i))
            now = now_ns()
            if ready or 0 <= deadline <= now:
                return ready
            if due == 0:
                due = now + patience * 1_000_000
            elif now >= due:
                for entry in polled:
                    entry[0]._on_long_wait()
                due = now + patience * 1_000_000
            wait = LOOK_MS if deadline < 0 else <int>min((deadline - now + 999_999) // 1_000_000, LOOK_MS)
            check_signals()
            with nogil:
                answer = poll(fds, count, wait)
                error = errno
            if answer < 0 and error == EINTR:
                PyErr_CheckSignals()
    finally:
        free(fds)
