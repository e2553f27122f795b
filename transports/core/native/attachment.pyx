# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Attachments: the streams of a socket, from attaching to detaching or loss."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t

from transfer.transports.callbacks import weakly
from transfer.transports.errors import InternalError, ProtocolError

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.inproc_queue cimport (
    InprocEnd, all_inproc, is_inproc, wait_patiently, wake_of,
)
from transfer.transports.core.native.peer_choice cimport Sending
from transfer.transports.core.native.receiving cimport Receiving
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.system cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, epoll_ctl, epoll_event,
)

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()


cdef class Attachments(Receiving):
    """The streams of a socket, their descriptors, and their order. The GIL guards the lists.

    Another thread may run wherever an object is freed, for a finalizer may give the GIL away, and where one
    is made, for that may collect garbage (Python 3.11). So a change is either one step, or made in a copy
    that replaces only the list it was made from. The two lists of outgoing streams are never changed in
    place: a fan-out iterates over them.
    """

    def _attach(self, stream, bint sends, bint receives):
        """Uses the stream for sending, receiving or both."""
        self.check_usable()
        if type(stream) is not Stream:
            if is_inproc(stream):
                stream.on_readable, stream.on_writable = wake_of(self, False), wake_of(self, True)
            else:
                stream.on_readable = stream.on_writable = weakly(self, "_notify")
            if sends:
                self.join_foreign(stream)
            if receives:
                before = self.inproc_only or not self.foreign_ins
                self.inproc_only = False
                place = self.count_ended() if stream.ended else len(self.foreign_ins)
                self.foreign_ins.insert(place, stream)
                self.inproc_only = before and is_inproc(stream)
                for fd in getattr(stream, "wait_fds", ()):
                    self.watch_foreign(fd)
        else:
            (<Stream>stream).opened = weakly(self, "_opened")
            self.check_usable()  # another thread may have closed it during that call
            (<Stream>stream).socket = <void*>self
            if sends:
                self.join_round(stream)
            if receives:
                if (<Stream>stream).link.fd >= 0:
                    self.watch(<Stream>stream)
                else:
                    self.lazy.append(stream)
        self._notify()

    cdef Py_ssize_t count_ended(self):
        """The number of foreign streams with unread messages of a lost peer: they come first, in order."""
        cdef Py_ssize_t count = 0
        while count < len(self.foreign_ins) and self.foreign_ins[count].ended:
            count += 1
        return count

    cdef int watch(self, Stream stream) except -1:
        cdef epoll_event event
        cdef int fd = stream.watched_fd()
        cdef int epoll_fd = self.epoll_of_streams()
        event.events = EPOLLIN
        event.data.fd = fd
        self.by_fd[fd] = stream
        if epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0:
            del self.by_fd[fd]
            raise InternalError(f"cannot watch descriptor {fd}: errno {errno}")
        if self.reader.reads < 0 and len(self.by_fd) > 1:
            self.reader.reads = 1  # the turn of a peer that was alone would go on while it sends
        return 0

    cdef int watch_foreign(self, int fd) except -1:
        """Foreign streams that share a descriptor share its entry in the epoll set."""
        cdef epoll_event event
        cdef int epoll_fd = self.epoll_of_streams()
        event.events = EPOLLIN
        event.data.fd = fd
        if fd not in self.foreign_fds and epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0:
            raise InternalError(f"cannot watch descriptor {fd}: errno {errno}")
        self.foreign_fds[fd] = self.foreign_fds.get(fd, 0) + 1
        return 0

    cdef int unwatch_foreign(self, int fd) except -1:
        cdef Py_ssize_t left = self.foreign_fds.get(fd, 1) - 1
        if left:
            self.foreign_fds[fd] = left
        elif self.foreign_fds.pop(fd, 0) and self.generation == native_link.fork_generation:
            epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
        return 0

    def _opened(self, stream):
        """The stream was given its descriptor."""
        if stream in self.lazy:
            self.lazy.remove(stream)
            self.watch(stream)
        self._notify()

    def _detach(self, stream):
        """Removes the stream, without closing it. Does nothing if it is not attached."""
        self.leave_round(stream)
        if stream in self.foreign_outs:
            self.leave_foreign(stream)
        if stream in self.foreign_ins:
            for fd in getattr(stream, "wait_fds", ()):
                self.unwatch_foreign(fd)
        for streams in (self.foreign_ins, self.lazy):
            if stream in streams:
                streams.remove(stream)
        self.inproc_only = self.inproc_only or all_inproc(self.foreign_ins)
        if type(stream) is not Stream:
            stream.on_readable = stream.on_writable = None
            self.take_out(stream)
            return
        (<Stream>stream).socket = NULL
        (<Stream>stream).opened = None
        (<Stream>stream).notify_room(-1, NULL)
        if self.by_fd.get((<Stream>stream).watched_fd()) is stream:
            numbers = [(<Stream>stream).watched_fd()]
        else:  # closed before, or never watched
            numbers = [known for known, other in self.by_fd.items() if other is stream]
        for known in numbers:
            if self.by_fd.get(known) is not stream:  # another thread detached it meanwhile
                continue
            del self.by_fd[known]
            if self.generation == native_link.fork_generation:
                epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, known, NULL)
        self.take_out(stream)

    def _pause_reading(self, stream):
        """See the contract."""
        if type(stream) is not Stream:
            return False
        watched = (<Stream>stream).watched_fd()
        if self.by_fd.get(watched) is not stream:
            return False
        del self.by_fd[watched]
        if self.generation == native_link.fork_generation:
            epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, watched, NULL)
        self.take_out(stream)
        return True

    def _resume_reading(self, stream):
        """See the contract."""
        if type(stream) is not Stream or (<Stream>stream).socket != <void*>self:
            return  # it was lost meanwhile
        if (<Stream>stream).link.fd >= 0 and (<Stream>stream).watched_fd() not in self.by_fd:
            self.watch(stream)
            self.waiting_turn[stream] = None  # a part of it may have been read ahead
            self._notify()

    cdef int leave_round(self, stream) except -1:
        """Keeps the order of the others. The position is kept, for a stream that returns at once: one that
        waits for its connection is taken out while it gets it."""
        cdef list before = None, after = None
        cdef Py_ssize_t index = 0
        cdef object _freed_last = self.left  # when all is consistent
        while before is not self.outs:
            before = self.outs
            if stream not in before:
                return 0
            index = before.index(stream)
            after = before[:index] + before[index + 1:]
        self.outs = after
        if self.next_out >= len(before):
            self.next_out = 0
        self.left = stream
        self.left_at = index
        self.left_was_next = index == self.next_out
        if index < self.next_out:
            self.next_out -= 1
        return 0

    cdef int join_round(self, stream) except -1:
        cdef list before = None, after = None
        cdef Py_ssize_t index = 0
        cdef bint returns = False
        while before is not self.outs:
            before = self.outs
            returns = stream is self.left and self.left_at <= len(before)
            index = self.left_at if returns else len(before)
            after = before[:index] + [stream] + before[index:]
        self.outs = after
        if returns:
            self.left = None
            if self.left_was_next:
                self.next_out = index
            elif index <= self.next_out:
                self.next_out += 1
        return 0

    cdef int join_foreign(self, stream) except -1:
        cdef list before = None, after = None
        while before is not self.foreign_outs:
            before = self.foreign_outs
            after = before + [stream]
        self.foreign_outs = after
        return 0

    cdef int leave_foreign(self, stream) except -1:
        cdef list before = None, after = None
        while before is not self.foreign_outs:
            before = self.foreign_outs
            after = [other for other in before if other is not stream]
        self.foreign_outs = after
        return 0

    cdef object offer_to(self, stream, frames, bint hold, released, list lent, uint64_t* number):
        if not hold and released is None and is_inproc(stream):
            answer = (<InprocEnd>stream).offer_plain(frames, number)
            if answer is not None:
                return stream if answer else None
        return Sending.offer_to(self, stream, frames, hold, released, lent, number)

    cdef bint wait_for_room(self, only, int64_t deadline) except -1:
        if not self.exposed:  # else a program may wait for the descriptor alone
            wait_patiently(self.foreign_outs if only is None else [only])
        return Sending.wait_for_room(self, only, deadline)

    def _streams(self):
        cdef dict found = {}
        for streams in (self.outs, self.by_fd.values(), self.lazy, self.foreign_outs, self.foreign_ins):
            for stream in streams:
                found[stream] = None
        return list(found)

    cdef int lose(self, stream, error) except -1:
        self.losses += 1
        if self.inside is stream and self.inside_thread == PyThread_get_thread_ident():
            self.inside = None  # this thread does not read it any more: a detaching thread need not wait
        try:
            if type(stream) is Stream and isinstance(error, ProtocolError):
                self._on_refused(stream, error)
        finally:  # a signal handler may raise in there
            self.end_stream(stream, error)
        return 0

    cdef int end_stream(self, stream, error) except -1:
        if type(stream) is Stream:
            (<Stream>stream).fail(error)
        try:
            self._on_lost(stream, error)  # first: it sees that no message overtakes those left in the stream
        except BaseException:  # from a signal handler before the call started: later the loss is known
            self._on_lost(stream, error)
            raise
        finally:
            self._detach(stream)
        return 0
