# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Draining: a send of large memory stays until the kernel has it, as long as that makes progress."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t

from transfer.transports.errors import Broken, InternalError

from transfer.transports.core.native.atomic cimport add_int, load, load_int, load_signed
from transfer.transports.core.native.borrowed_memory cimport link_settle
from transfer.transports.core.native.kernel_writes cimport (
    NO_MEMORY, OK, link_arm, link_give_up_begun, link_t, link_watch_room, link_write, load_segment, now_ns,
)
from transfer.transports.core.native.outgoing cimport release_exports
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.system cimport (
    poll, pollfd, pthread_mutex_lock, pthread_mutex_unlock,
)

cdef enum:
    PATIENCE_MS = 20           # how long a send waits for the kernel before it copies


cdef int64_t drain(Stream stream, bint at_once, bint hold, list lent) except -1:
    """Writes while the kernel makes progress, so that large memory need not be copied. The rest after
    PATIENCE_MS without progress is held (bytes, `hold`) or copied. Returns the ns that it took."""
    cdef link_t* link = stream.link
    cdef pollfd room
    cdef uint64_t target
    cdef int answer = 0
    cdef int64_t begin
    cdef int64_t spent = 0
    if load_signed(&link.queued_bytes) == 0:
        if not hold:
            release_exports(lent)
        return 0
    begin = now_ns()
    stream.take_mutex()
    target = link.written + link.queued_bytes
    add_int(&link.waiters, 1)
    pthread_mutex_unlock(&link.mutex)
    try:
        while not at_once and load(&link.written) < target and load_signed(&link.queued_bytes):
            if link.fd < 0 or load_int(&link.error) or link.closed:
                break
            PyErr_CheckSignals()
            link_watch_room(link, &room)
            with nogil:
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
        # Half a frame is written and its memory returns to the caller: this connection ends.
        interrupted = Broken("a send was interrupted inside a message")
        interrupted.__cause__ = error
        stream.fail(interrupted)
        raise
    finally:
        answer = OK
        if not hold:
            stream.check_process()
            with nogil:  # gigabytes may be left
                pthread_mutex_lock(&link.mutex)
                if load_int(&link.error):
                    link_give_up_begun(link)
                if link.borrowed:
                    answer = link_settle(link)
                pthread_mutex_unlock(&link.mutex)
        stream.take_mutex()
        add_int(&link.waiters, -1)
        if load_int(&link.error):
            link_give_up_begun(link)
        if link.queued_bytes and not link.wants_output and link.fd >= 0:
            link_arm(link)
        pthread_mutex_unlock(&link.mutex)
        spent = now_ns() - begin
        link.blocked_ns += spent
        if load_segment(&link.finished) != NULL:
            stream.reap()
        if not hold and answer == OK:
            release_exports(lent)
    if answer == NO_MEMORY:
        raise InternalError("no memory to queue a message", hint="lower the high-water marks")
    return spent
