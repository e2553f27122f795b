# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Reading: the fair reader over the streams of a socket. It takes what has arrived, and never waits."""

from libc.stdint cimport uint64_t
from posix.unistd cimport read as read_fd
from posix.unistd cimport usleep

from transfer.transports.errors import (
    Broken, Closed, DeviceError, OutOfDescriptors, ProtocolError, TransferError,
)

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.atomic cimport store_int
from transfer.transports.core.native.flusher cimport raise_soon
from transfer.transports.core.native.incoming cimport STEP_US, STEPS, group, prepare_reader
from transfer.transports.core.native.inproc_queue cimport InprocEnd, is_inproc
from transfer.transports.core.native.kernel_writes cimport F_CONTROL, F_LZ4
from transfer.transports.core.native.large_frames cimport is_on_gpu
from transfer.transports.core.native.pool cimport Frame, Lease, fill, room_for
from transfer.transports.core.native.peer_choice cimport Sending
from transfer.transports.core.native.stream cimport Stream
from transfer.transports.core.native.system cimport epoll_event, epoll_wait

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef enum:
    FILTERED = 2


cdef class Reading(Sending):
    """Reads the ready streams, each in its turn. One thread at a time, under its caller's lock."""

    cdef tuple poll_once(self, bint as_bytes, sink):
        """The next message without waiting, or None when all ready streams were read."""
        cdef object stash
        cdef tuple message
        if self.stash is None and self.again is not None:
            self.stash = self.counted = <tuple>self.again.pop(0)
            if not self.again:
                self.again = None
        stash = self.stash
        if stash is not None and sink is None:
            self.stash = None
            return stash
        if stash is not None:
            message = self.pour_stash(sink)
            if message is not None:
                return message
        prepare_reader(&self.reader)
        if self.foreign_ins and self.foreign_first:
            self.foreign_first = False
            message = self.next_foreign(sink)
            if message is not None:
                return message
        self.foreign_first = True
        if self.foreign_ins and self.by_fd and self.current is None and self.ready_next >= self.ready_count:
            # Foreign streams must not keep native ones from being polled.
            self.look()
        while True:
            if self.current is None and not self.next_ready():
                break
            if self.foreign_sinking is not None:
                self.leave_sink()  # the sink's memory is for one message
            # Checked right before each read: another thread may have attached the unread messages of a lost
            # peer since the last one.
            if self.foreign_ins and self.foreign_ins[0].ended:
                message = self.next_foreign(sink)
            else:
                message = self.next_of_current(as_bytes, sink)
            if message is not None:
                return message
            if self.unwanted >= MOST_UNWANTED:
                return None
        return self.next_foreign(sink) if self.foreign_ins else None

    cdef bint look(self) except -1:
        """Calls epoll once, without waiting. Returns whether a stream is ready."""
        cdef epoll_event events[MAX_EVENTS]
        cdef int count = 0
        if self.epoll_fd >= 0:
            count = epoll_wait(self.epoll_fd, events, MAX_EVENTS, 0)
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

    cdef bint next_ready(self):
        """Takes the next stream that epoll reported, or that had a turn and has more: the present ones of one
        kind all come before the other kind."""
        cdef bint looked = False
        while True:
            while self.ready_next < self.ready_count:
                self.ready_next += 1
                if self.begin_turn(<Stream>self.by_fd.get(self.ready[self.ready_next - 1])):
                    return True
            if self.turns_left > 0 and self.waiting_turn:
                self.turns_left -= 1
                # None: detached meanwhile
                return self.begin_turn(<Stream>next(iter(self.waiting_turn), None))
            if looked or not self.waiting_turn:
                self.turns_left = 0
                return False
            looked = True
            self.look()
            self.turns_left = len(self.waiting_turn)

    cdef bint begin_turn(self, Stream stream):
        """Starts the stream's turn. False: it is detached."""
        self.current = stream
        if stream is None:
            return False
        self.waiting_turn.pop(stream, None)
        self.reader.start = self.reader.end = 0
        self.reader.drained = self.reader.large = self.turn_messages = 0
        # With several peers each gets one read-ahead a turn.
        self.reader.reads = -1 if len(self.by_fd) == 1 else 1
        if self.sinking is not stream:
            self.leave_sink()
        return True

    cdef int count_turn(self, Stream stream) except -1:
        self.turn_messages += 1
        if self.turn_messages >= TURN_MESSAGES and self.current is stream:
            self.end_turn(stream)
        return 0

    cdef int end_turn(self, Stream stream) except -1:
        """Other streams come before its next messages, which were read already. A single stream continues."""
        if self.reader.reads >= 0 and self.reader.end != self.reader.start:
            self.current = None
            stream.park(&self.reader)
            self.waiting_turn[stream] = None
        return 0

    # --- streams of the core ---------------------------------------------------------------------

    cdef tuple next_of_current(self, bint as_bytes, sink):
        """A message of the current stream; None: it has no more, and another stream's turn has come."""
        cdef Stream stream = self.current
        if stream is None:  # detached by another thread a moment ago
            return None
        self.enter(stream)
        try:
            return self.read_current(stream, as_bytes, sink)
        except (DeviceError, OutOfDescriptors):
            # A payload cannot be mapped now, and stays unread: other peers come first.
            if self.current is stream:
                self.end_turn(stream)
            raise
        finally:
            self.inside = None

    cdef tuple read_current(self, Stream stream, bint as_bytes, sink):
        cdef object frame
        cdef list frames
        cdef bint refused
        while self.current is stream and self.unwanted < MOST_UNWANTED:
            try:
                frame = stream.next_frame(&self.reader, as_bytes, sink)
                if stream.socket != <void*>self:  # detached during the read
                    self.give_back(stream)
                if frame is None:
                    self.current = None
                    if stream.large_hold is not None:
                        self.sinking = stream
                    return None
                if (<Frame>frame).flags & F_CONTROL:
                    self.unwanted += 1
                    self._on_control(stream, frame)
                    self.count_turn(stream)
                    continue
                frames = group(stream, <Frame>frame)
            except (Broken, ProtocolError) as error:
                self.reader.start = self.reader.end = 0
                self.current = None
                self.lose(stream, error)
                return None
            if frames is None:
                continue
            self.count_turn(stream)
            refused = stream.refused
            stream.refused = False
            if self.receive_mode == FILTERED and not self.wanted(frames):
                self.filtered += 1
                self.unwanted += 1
                continue
            if refused and sink is not None:
                self.stash = (stream, frames)   # it stays unread if the sink refuses it again
                return self.pour_stash(sink)
            return (stream, frames)
        return None

    cdef int give_back(self, Stream stream) except -1:
        """Read-ahead bytes, and a half message in the sink's memory, return to the stream: the thread that
        detached it continues from there."""
        self.current = None
        stream.park(&self.reader)
        stream.leave_sink()
        return 0

    cdef int enter(self, object stream) except -1:
        self.inside = stream
        self.inside_thread = PyThread_get_thread_ident()
        return 0

    cdef int take_out(self, object stream) except -1:
        """The stream was detached. When this returns, no receiver reads it any more, and none of its messages
        is here: those left in it come after all that were returned before."""
        cdef int steps = STEPS
        if self.generation == native_link.fork_generation:
            if self.inside_thread != PyThread_get_thread_ident():
                if type(stream) is Stream and self.inside is stream:
                    store_int(&(<Stream>stream).link.leaving, 1)
                while self.inside is stream and steps:
                    steps -= 1
                    with nogil:
                        usleep(STEP_US)
                if type(stream) is Stream and self.inside is not stream:
                    store_int(&(<Stream>stream).link.leaving, 0)
        if self.inside is stream and steps == 0:
            return 0
        self.waiting_turn.pop(stream, None)
        try:
            if self.current is stream:
                self.give_back(<Stream>stream)
            if self.sinking is stream:
                self.sinking = None
                (<Stream>stream).leave_sink()
            if self.foreign_sinking is stream:
                self.foreign_sinking = None
                stream.leave_sink()
        except TransferError as error:  # half a message is lost, so the stream cannot continue
            if type(stream) is Stream:
                (<Stream>stream).fail(error)
        return 0

    # --- foreign streams -------------------------------------------------------------------------

    cdef tuple next_foreign(self, sink):
        cdef object stream
        cdef object frames
        cdef tuple message
        if self.foreign_sinking is not None and self.foreign_sinking in self.foreign_ins:
            # Before another stream's message, for which it would have to leave the sink's memory.
            self.foreign_ins.remove(self.foreign_sinking)
            self.foreign_ins.insert(0, self.foreign_sinking)
        for _ in range(len(self.foreign_ins)):
            if not self.foreign_ins:
                break
            stream = self.foreign_ins[0]
            if not stream.ended:
                self.foreign_ins.append(self.foreign_ins.pop(0))
            while self.unwanted < MOST_UNWANTED:
                try:
                    frames = self.ask_foreign(stream, sink)
                except (Broken, Closed, ProtocolError) as error:
                    self.lose(stream, error)
                    break
                if frames is None:
                    break
                if (<Frame>frames[0]).flags & F_CONTROL:
                    self.unwanted += 1
                    self._on_control(stream, frames[0])
                    continue
                if self.receive_mode == FILTERED and not self.wanted(frames):
                    self.filtered += 1
                    self.unwanted += 1
                    continue
                if sink is None or (stream.takes_sink and stream.placed):
                    return (stream, frames)
                # It stays unread if the sink refuses.
                self.stash = (stream, frames)
                message = self.pour_stash(sink)
                if message is not None:
                    return message
                break
        return None

    cdef object ask_foreign(self, object stream, sink):
        """A message or None. One stream at a time may use the sink's memory; those of others are copied."""
        cdef object frames
        self.enter(stream)
        try:
            # A thread that detaches it from now on waits until this one has left it.
            if stream not in self.foreign_ins:
                return None
            if not is_inproc(stream):
                frames = self.take_foreign(stream, sink)
            elif (<InprocEnd>stream).is_idle():
                return None
            else:
                frames = (<InprocEnd>stream).take_frames()
                if frames is None:
                    frames = stream.take()
            stream.handed = None  # it is stored here: from now on no signal handler runs before `claim`
            return frames
        finally:
            self.inside = None

    cdef object take_foreign(self, object stream, sink):
        cdef object frames
        if (sink is None or not stream.takes_sink or self.sinking is not None
                or (self.foreign_sinking is not None and self.foreign_sinking is not stream)):
            return stream.take()
        self.foreign_sinking = stream
        try:
            frames = stream.take(sink)
        except (Broken, Closed, ProtocolError):
            raise
        except Exception:  # the sink refuses: it is called again when the message is complete
            self.leave_sink()
            return stream.take()
        if not stream.sinking:
            self.foreign_sinking = None
        return frames

    # --- sinks -----------------------------------------------------------------------------------

    cdef tuple pour_stash(self, sink):
        """The message that was found before its sink was known: one more copy. None: the sink found that it
        breaks the protocol, and its stream is lost."""
        cdef tuple message = self.stash
        cdef list frames = message[1]
        cdef list targets = []
        cdef Frame frame
        self.leave_sink()  # half messages of others would be mixed with it
        try:
            for frame in frames:
                unseen = frame.flags & (F_CONTROL | F_LZ4)
                asked = getattr(sink, "arrives_on_gpu", sink) if is_on_gpu(frame.data) else sink
                targets.append(None if unseen else asked(frame.meta, frame.topic, len(frame.data)))
        except ProtocolError as error:
            self.stash = None
            self.lose(message[0], error)
            return None
        except BaseException:
            self.own(frames)
            raise
        for frame, target in zip(frames, targets):
            if target is not None and target is not frame.data:
                fill(target, frame.data)
                frame.data = target
        self.stash = None
        return message

    cdef int own(self, list frames) except -1:
        """Moves frames that a sink placed before it refused the message out of the caller's memory."""
        cdef Frame frame
        cdef Lease lease
        for frame in frames:
            if type(frame.data) is not bytes and type(frame.data) is not Lease and not is_on_gpu(frame.data):
                lease = room_for(self.pool, len(frame.data))
                fill(lease, frame.data)
                frame.data = lease
        return 0

    cdef int leave_sink(self) except -1:
        """Moves a half read message out of the sink's memory, or its stream is lost."""
        cdef Stream stream = self.sinking
        cdef object other = self.foreign_sinking
        cdef object interruption = None
        if stream is not None:
            self.sinking = None
            try:
                stream.leave_sink()
            except ProtocolError as error:
                self.lose(stream, error)
        if other is not None:
            self.foreign_sinking = None
            interruption = self.leave_foreign_sink(other)
        return raise_soon(interruption)

    cdef object leave_foreign_sink(self, other):
        """It takes the call's memory away from the transport, so a signal handler that raises does not end
        it. Returns what one raised."""
        cdef object interruption = None
        cdef int attempts = 10
        while attempts:
            attempts -= 1
            try:
                other.leave_sink()
                return interruption
            except TransferError as error:
                self.lose(other, error)
                return interruption
            except BaseException as raised:
                interruption = interruption or raised
        self.lose(other, Broken("a receive was interrupted inside a message"))
        return interruption

    # --- own subscriptions -----------------------------------------------------------------------

    cdef bint wanted(self, list frames):
        """Whether one of this socket's subscriptions matches; the publisher has checked before."""
        cdef Frame first = <Frame>frames[0]
        if self.wants_all:
            return True
        if not self.prefix_lengths:
            return False
        topic = first.topic
        if topic is None:
            topic = first.data
            if type(topic) is not bytes:
                topic = bytes(memoryview(topic).cast("B")[:self.prefix_lengths[len(self.prefix_lengths) - 1]])
        return self.is_subscribed(topic)

    cdef bint is_subscribed(self, bytes topic):
        cdef Py_ssize_t length
        if self.wants_all:
            return True
        for length in self.prefix_lengths:
            if topic[:length] in self.prefixes:
                return True
        return False

    def _filter_add(self, bytes prefix):
        self.prefixes[prefix] = self.prefixes.get(prefix, 0) + 1
        self.wants_all = b"" in self.prefixes
        if len(prefix) not in self.prefix_lengths:
            self.prefix_lengths = tuple(sorted((len(prefix), *self.prefix_lengths)))

    def _filter_remove(self, bytes prefix):
        if prefix not in self.prefixes:
            return False
        self.prefixes[prefix] -= 1
        if not self.prefixes[prefix]:
            del self.prefixes[prefix]
        self.wants_all = b"" in self.prefixes
        if not self.prefixes:  # see Outgoing
            self.prefix_lengths = ()
        return True
