# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The choice of a stream for a plain message, by the rules of `patterns/`, and the wait for room."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport read as read_fd

from transfer.transports.countdown import Countdown
from transfer.transports.errors import (
    PLAIN_HINT, TOO_NEW, Again, Broken, Closed, ForkedError, InternalError, NotSupported, UsageError,
)

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.atomic cimport add_int, load_int, load_signed, store_int
from transfer.transports.core.native.draining cimport drain
from transfer.transports.core.native.events cimport Events
from transfer.transports.core.native.flusher cimport check_signals, inform
from transfer.transports.core.native.sizes cimport LARGE
from transfer.transports.core.native.kernel_writes cimport (
    BROKEN, FULL, NO_MEMORY, OK, WOULD_BLOCK, link_arm, link_is_full, link_t, link_watch_room,
    link_write, load_segment, now_ns,
)
from transfer.transports.core.native.small_messages cimport link_push, push_messages, push_parts
from transfer.transports.core.native.outgoing cimport payload_size
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.system cimport (
    POLLIN, poll, pollfd, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock,
)

cdef enum:
    FANOUT = 2
    MAX_POLLED = 256
    # A sender that waits for room checks this often: one of several may take the notice for all.
    LOOK_MS = 100


cdef class Sending(Events):
    """Distributors over streams: round robin that skips full ones, and fan-out by subscription."""

    cdef Stream push_one(self, bytes data, tuple parts, Py_ssize_t size, uint64_t sequence):
        """Round robin over the streams with room: the one that took it, or None. The message is `data`, or
        `parts`; size: of all payload."""
        cdef Stream stream
        cdef int answer
        cdef Py_ssize_t place = self.next_out
        for _ in range(len(self.outs)):
            # `push` may release the GIL. Streams may leave then: the length is read again. Others send: the
            # index is local, so that no stream with room is skipped.
            if place >= len(self.outs):
                place = 0
                if not self.outs:
                    break
            stream = <Stream>self.outs[place]
            place += 1
            self.next_out = place
            answer = self.push(stream, data, parts, 0, size, sequence)
            if answer == OK:
                self.messages_sent += 1
                self.bytes_sent += size
                return stream
            if answer == BROKEN:
                self.lose(stream, stream.broken)
                return None       # its unsent messages go first
            if self._behind:      # a loss, while `push` had released the GIL
                return None
        return None

    cdef int push_all(self, bytes data, tuple parts, Py_ssize_t size) except -2:
        """To every stream whose peer subscribed to this; a full one misses it, which is counted."""
        cdef Stream stream
        cdef Py_ssize_t taken = 0
        cdef int answer
        cdef list broken = None
        cdef bytes topic = data if parts is None else <bytes>parts[0]
        for stream in self.outs:
            if not stream.wants_all and not stream.match(topic):
                continue
            answer = self.push(stream, data, parts, 0, size, 0)
            taken += 1
            if answer == OK:
                self.messages_sent += 1
                self.bytes_sent += size
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

    cdef int push(self, Stream stream, bytes data, tuple parts, Py_ssize_t first, Py_ssize_t size,
                  uint64_t sequence) except -2:
        """first: of the parts. As `push_one`."""
        cdef link_t* link = stream.link
        cdef int answer
        if link.plain and parts is not None:
            raise NotSupported(TOO_NEW, hint=PLAIN_HINT)
        if pthread_mutex_trylock(&link.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&link.mutex)
        if sequence:
            store_int(&link.turn, 1)         # the peer waits for it: no gathering
        if parts is None:
            answer = link_push(link, PyBytes_AS_STRING(data), size, sequence)
        else:
            answer = push_parts(link, parts, first, size)
        if answer == WOULD_BLOCK:
            # The queue is long enough: worth a system call without the GIL.
            with nogil:
                link_write(link)
                pthread_mutex_unlock(&link.mutex)
            answer = OK
        else:
            pthread_mutex_unlock(&link.mutex)
        if answer == NO_MEMORY:
            raise InternalError("no memory to queue a message", hint="lower the high-water marks")
        if load_segment(&link.finished) != NULL:
            stream.reap()
        return answer

    cdef Py_ssize_t push_run(self, Stream stream, tuple messages, Py_ssize_t first) except -1:
        """Pushes small messages of `bytes`, from `first` on, until one is of another kind or has no room: how
        many. The mutex is taken once for as many as are written at a time."""
        cdef link_t* link = stream.link
        cdef Py_ssize_t place = first
        cdef Py_ssize_t count
        cdef int64_t size
        cdef int answer = WOULD_BLOCK
        while answer == WOULD_BLOCK:
            if pthread_mutex_trylock(&link.mutex) != 0:
                with nogil:
                    pthread_mutex_lock(&link.mutex)
            count = push_messages(link, messages, place, self.copy_threshold, &size, &answer)
            place += count
            self.messages_sent += count
            self.bytes_sent += size
            if answer == WOULD_BLOCK:
                with nogil:
                    link_write(link)
                    pthread_mutex_unlock(&link.mutex)
            else:
                pthread_mutex_unlock(&link.mutex)
        if load_segment(&link.finished) != NULL:
            stream.reap()
        return place - first

    def _send_frames(self, frames, long long timeout, *, stream=None, topic=None, bint hold=False,
                     released=None, taken=None, bint first=False, bint again=False):
        """Sends one message to the peer whose turn it is, or to `stream`. Returns the stream that took it;
        for a fan-out how many took it. Raises Again, Closed, and Broken with `stream`."""
        self.check_usable()
        return self.send_frames(frames, timeout, stream, topic, hold, released, taken, not hold, first, again)

    cdef object send_frames(self, frames, long long timeout, stream, topic, bint hold, released,
                            taken, bint patient, bint first=False, bint again=False):
        cdef int64_t deadline = -1
        cdef uint64_t number = 0
        cdef int64_t size = 0
        cdef list lent = None if hold else []
        cdef uint64_t losses
        cdef object taker
        cdef int64_t due = 0
        if not frames:
            raise UsageError("a message has at least one part")
        for frame in frames:
            size += payload_size(frame[4])
        if stream is None and self.send_mode == FANOUT:
            return self.fan_out(frames, topic, hold, released)
        if timeout > 0:
            deadline = now_ns() + timeout * 1000000
        while True:
            losses = self.losses
            if stream is not None:
                taker = self.offer_by_name(stream, frames, hold, released, lent, &number)
            elif first or self.may_go():
                taker = self.offer_in_turn(frames, hold, released, lent, &number, first)
            else:
                taker = None
            if taker is not None:
                break
            if losses != self.losses and not first:
                continue
            if timeout == 0 and self.exposed and self.ask_for_room(stream, size):
                continue
            if timeout:
                due = self.note_wait(due)
            if timeout == 0 or not self.wait_for_room(stream, deadline):
                self.refused_size = size
                if self.outs or self.foreign_outs:
                    raise self._no_room()
                raise Again("no peer is connected", hint="is a peer running? see peers(), wait_for_peers()")
        self.refused_size = 0
        if taken is not None:
            taken(taker, number)
        if not again:
            self.messages_sent += 1
            self.bytes_sent += size
        if type(taker) is Stream and size >= LARGE:
            self.blocked_ns += drain(<Stream>taker, timeout == 0 or not patient, hold, lent)
        return taker

    cdef bint may_go(self) except -1:
        """Whether no messages of lost connections are left; else they are offered first."""
        if self._behind:
            self._send_orphans()
        return not self._behind

    cdef bint ask_for_room(self, only, int64_t size) except -1:
        """Makes the descriptor readable when a full stream has room; True: it has room now for this many
        bytes. Less room would be reported again and again."""
        cdef Stream stream
        cdef uint64_t drained
        cdef bint room = False
        if not self.receiving:  # else a notice may be for the receiver that sleeps
            read_fd(self.receive_event, &drained, 8)
            self.event_set = False
        for candidate in (self.outs if only is None else (only,)):
            if type(candidate) is Stream:
                stream = <Stream>candidate
                stream.notify_room(self.receive_event, <void*>self)
                room = room or not link_is_full(stream.link, <size_t>size)
        self.signal()
        return room and (only is not None or not self._behind)

    cdef object offer_to(self, stream, frames, bint hold, released, list lent, uint64_t* number):
        if type(stream) is Stream:
            if (<Stream>stream).offer(frames, False, hold, released, lent, number) == OK:
                return stream
            return None
        if stream.broken is not None:
            raise stream.broken
        number[0] = stream.send(frames, hold=hold, released=released)
        return stream if number[0] else None

    cdef object offer_by_name(self, stream, frames, bint hold, released, list lent,
                              uint64_t* number):
        try:
            return self.offer_to(stream, frames, hold, released, lent, number)
        except Broken as error:
            self.lose(stream, error)
            raise

    cdef object offer_in_turn(self, frames, bint hold, released, list lent, uint64_t* number,
                              bint first):
        """Round robin over native and foreign streams alike. None: no room, or a stream was lost, and its
        messages go before this one."""
        cdef Py_ssize_t native
        cdef object stream
        cdef Py_ssize_t place = self.next_out
        for _ in range(len(self.outs) + len(self.foreign_outs)):
            # As in `push_one`.
            native = len(self.outs)
            if place >= native + len(self.foreign_outs):
                place = 0
                if not native and not self.foreign_outs:
                    break
            stream = self.outs[place] if place < native else self.foreign_outs[place - native]
            place += 1
            self.next_out = place
            try:
                if self.offer_to(stream, frames, hold, released, lent, number) is not None:
                    return stream
            except (Broken, Closed) as error:
                self.lose(stream, error)
                return None
            if self._behind and not first:
                return None
        return None

    cdef object fan_out(self, frames, topic, bint hold, released):
        cdef list takers
        cdef list all_streams = self.outs + self.foreign_outs
        cdef Py_ssize_t taken = 0, offered = 0
        cdef uint64_t number = 0
        cdef object stream
        if topic is None:
            topic = frames[0][2]
        if topic is None:
            topic = self.first_bytes(frames[0][4], all_streams)
        takers = [stream for stream in all_streams if stream.matches(topic)]
        if not takers:
            self.dropped_no_peer += 1
            inform(released, None)
            return 0
        if len(takers) > 1:
            if not hold:
                # One copy for all: after that every queue may keep it.
                frames = [shared(frame) for frame in frames]
            if released is not None:
                released = Countdown(released, len(takers)).ended
        try:
            for stream in takers:
                offered += 1
                try:
                    if type(stream) is Stream:
                        (<Stream>stream).several = len(takers) > 1
                        took = (<Stream>stream).offer(frames, False, hold, released, None, &number) == OK
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
                else:
                    inform(released, None)
        finally:
            for stream in takers[offered:]:  # that miss it by an error, of a signal's handler or of memory
                stream.dropped += 1
                inform(released, None)
            self.messages_sent += taken
            for frame in frames:
                self.bytes_sent += payload_size(frame[4]) * taken
        return taken

    cdef bytes first_bytes(self, data, list streams):
        """As much of a payload as the longest subscription needs."""
        cdef Py_ssize_t longest = 0
        if type(data) is bytes:
            return data
        for stream in streams:
            for prefix in stream.subscriptions:
                longest = max(longest, len(prefix))
        return bytes(memoryview(data).cast("B")[:longest])

    cdef int64_t note_wait(self, int64_t due) except -1:
        """A call sleeps, or has slept. due: 0 at first; later the last result."""
        cdef int64_t now = now_ns()
        if due == 0:
            return now + self._long_wait * 1000000
        if now < due:
            return due
        self._on_long_wait()
        return now + self._long_wait * 1000000

    def _wait_writable(self, long long timeout):
        """Waits until a send may succeed; False when the time-out expired."""
        cdef int64_t deadline = -1 if timeout < 0 else now_ns() + timeout * 1000000
        self.check_usable()
        while not self.has_room():
            if timeout == 0 or not self.wait_for_room(None, deadline):
                return False
        return True

    def _writable(self):
        return not self.closed and (self.send_mode == FANOUT or self.has_room())

    cdef bint has_room(self) except -1:
        """For a message as large as the last refused one: a poll that says less would spin."""
        cdef Stream stream
        cdef size_t size = self.refused_size or 1
        if not self.may_go():
            return False
        for candidate in self.outs + self.foreign_outs:
            if type(candidate) is not Stream:
                if candidate.broken is not None or not getattr(candidate, "full", False):
                    return True
                continue
            stream = <Stream>candidate
            if link_is_full(stream.link, size):
                stream.write_out(False)
            if load_int(&stream.link.error) or stream.link.closed or not link_is_full(stream.link, size):
                return True
        return False

    cdef bint wait_for_room(self, only, int64_t deadline) except -1:
        """Sleeps until a full stream drains, a peer connects, or the socket is notified. False when the
        deadline has passed."""
        cdef pollfd watched[MAX_POLLED]
        cdef list streams = []
        cdef Stream stream
        cdef int answer, error, count = 1
        cdef int wait = LOOK_MS
        cdef int64_t begin = now_ns()
        cdef uint64_t drained
        cdef bint interrupted = True
        if deadline >= 0:
            if begin >= deadline:
                return False
            wait = <int>min((deadline - begin + 999999) // 1000000, LOOK_MS)
        watched[0].fd = self.event_of_senders()
        watched[0].events = POLLIN
        watched[0].revents = 0
        for candidate in (self.outs if only is None else (only,)):
            if type(candidate) is Stream and count < MAX_POLLED and (<Stream>candidate).link.fd >= 0:
                stream = <Stream>candidate
                streams.append(stream)
                add_int(&stream.link.waiters, 1)
                # One that only gathers has room already.
                link_watch_room(stream.link, &watched[count])
                count += 1
                if stream.link.ring != NULL:    # the reactor may take what would make that readable
                    stream.notify_room(self.send_event, <void*>self)
            elif type(candidate) is Stream:
                # More than one poll takes: the flusher drains these and notifies.
                (<Stream>candidate).notify_room(self.send_event, <void*>self)
        self.waiting += 1
        try:
            check_signals()
            with nogil:
                answer = poll(watched, count, wait)
                error = errno
            interrupted = False
        finally:
            self.waiting -= 1
            for stream in streams:
                add_int(&stream.link.waiters, -1)
                if interrupted:  # the flusher has left its queue to this thread
                    self.arm(stream)
        if answer > 0 and watched[0].revents:
            read_fd(self.send_event, &drained, 8)
        count = 1
        for stream in streams:
            if answer > 0 and watched[count].revents:
                stream.write_out(True)
            else:
                self.arm(stream)
            stream.link.blocked_ns += now_ns() - begin
            count += 1
        self.blocked_ns += now_ns() - begin
        if answer < 0 and error == EINTR:
            PyErr_CheckSignals()
        self.check_usable()
        return True

    cdef int arm(self, Stream stream) except -1:
        """Leaves what is queued to the flusher."""
        if load_signed(&stream.link.queued_bytes):
            stream.take_mutex()
            if not stream.link.wants_output and stream.link.fd >= 0:
                link_arm(stream.link)
            pthread_mutex_unlock(&stream.link.mutex)
        return 0

    cdef int check_usable(self) except -1:
        if self.closed:
            raise self._closed_error()
        if self.generation != native_link.fork_generation:
            raise ForkedError(
                "this socket was made before the process forked",
                hint="make a new Context in the child, or start it with spawn or forkserver")
        return 0

    # --- overridden by the classes below ------------------------------------------------------------

    cdef int signal(self) except -1:
        return 0

    cdef int lose(self, stream, error) except -1:
        return 0

    def _send_orphans(self):
        pass

    def _closed_error(self):
        return Closed("this socket is closed")

    def _no_room(self):
        return Again("no peer has room for the message")


cdef tuple shared(tuple frame):
    """The frame with an immutable payload."""
    if type(frame[4]) is bytes:
        return frame
    return frame[:4] + (bytes(memoryview(frame[4])),)
