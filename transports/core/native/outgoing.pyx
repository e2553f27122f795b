# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Outgoing: the sending half of a Stream."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from transfer.transports.errors import Broken, InternalError, UsageError, not_a_buffer
from transfer.transports.core.wire import MAX_FRAMES

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.atomic cimport add, load_int, load_signed, store_signed
from transfer.transports.core.native.borrowed_memory cimport link_settle
from transfer.transports.core.native.connection cimport Connection
from transfer.transports.core.native.flusher cimport inform, release_segments
from transfer.transports.core.native.sizes cimport LARGE, VERY_LARGE
from transfer.transports.core.native.filling cimport Filling
from transfer.transports.core.native.kernel_writes cimport (
    BROKEN, BY_REFERENCE, FULL, NO_MEMORY, OK, REFERENCE_SIZE, is_unready, link_give_up_begun, link_is_full,
    link_notice_fetched, link_notice_room, link_room, link_write, load_segment, segment_t, store_segment,
)
from transfer.transports.core.native.message cimport (
    add_segments, drop_segments, enqueue, has_large, outgoing_t, payload_of, prepare, unsent_count,
    unsent_messages,
)
from transfer.transports.core.native.pool cimport HeldBuffer
from transfer.transports.core.native.ring cimport (
    ring_announce, ring_flushed, ring_look, ring_peer_fetched, ring_recall,
)
from transfer.transports.core.native.ring_requests cimport ring_room_fd
from transfer.transports.core.native.system cimport SHUT_RDWR, pthread_mutex_unlock, shutdown

cdef Py_ssize_t MOST_FRAMES = MAX_FRAMES


cdef bint any_large(frames, bint devices) except -1:
    """devices: a frame in a device's memory is one, too: the connection itself could not read it."""
    for frame in frames:
        if payload_size(frame[4]) >= LARGE:
            return True
        if devices and type(frame[4]) is not bytes and hasattr(frame[4], "__cuda_array_interface__"):
            return True
    return False


cdef Py_ssize_t payload_size(data) except -1:
    if type(data) is bytes:
        return PyBytes_GET_SIZE(data)
    if type(data) is HeldBuffer:
        return (<HeldBuffer>data).view.len
    if type(data) is Filling:
        return (<Filling>data).view.len
    try:
        return memoryview(data).nbytes
    except TypeError:
        if hasattr(data, "__cuda_array_interface__"):  # for a foreign stream; others refuse it
            return data.nbytes
        raise not_a_buffer(data) from None


cdef int release_exports(list owners) except -1:
    """Written or copied memory returns to the caller as its call ends. The flusher may still hold its
    segment, which the next thread with the GIL releases."""
    for owner in owners:
        if type(owner) is HeldBuffer:
            (<HeldBuffer>owner).release()
    return 0


cdef class Outgoing(Connection):
    """The out-queue of one connection, and the subscriptions of its peer."""

    def __cinit__(self, *args, **kwargs):
        self.prefix_lengths = ()

    # --- subscriptions of the peer ------------------------------------------------------------

    def subscribe(self, bytes prefix):
        if self.prefixes is None:
            self.prefixes = {}
        self.prefixes[prefix] = self.prefixes.get(prefix, 0) + 1
        self.wants_all = b"" in self.prefixes
        if len(prefix) not in self.prefix_lengths:
            self.prefix_lengths = tuple(sorted((len(prefix), *self.prefix_lengths)))

    def unsubscribe(self, bytes prefix):
        if not self.prefixes or prefix not in self.prefixes:
            return False
        self.prefixes[prefix] -= 1
        if not self.prefixes[prefix]:
            del self.prefixes[prefix]
        self.wants_all = b"" in self.prefixes
        if not self.prefixes:  # until then an unused length costs a lookup: to count them all costs more
            self.prefix_lengths = ()
        return True

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

    def send(self, frames, *, bint force=False, bint hold=False, released=None):
        """Queues one message whole and writes what the kernel takes: its number. 0: full, nothing taken."""
        cdef uint64_t number = 0
        if self.offer(frames, force, hold, released, None, &number) != OK:
            return 0
        return number or 1

    def flush(self):
        """Writes what the kernel takes; True when the queue is empty."""
        self.write_out(True)
        if load_signed(&self.link.queued_bytes):
            return False
        return self.link.ring == NULL or self.link.closed or self.flushed_ring()

    cdef bint flushed_ring(self) except -1:
        """Whether the peer has all of it: else it would be lost with this end's queue pair."""
        cdef bint done
        self.take_mutex()
        done = self.link.closed or ring_flushed(self.link.ring)
        pthread_mutex_unlock(&self.link.mutex)
        self.notice_fetched()
        return done

    cdef int notice_fetched(self) except -1:
        """The memory of payloads that the peer has READ is free again."""
        cdef uint64_t total
        if self.link.ring == NULL or self.carrier is None:
            return 0
        total = ring_peer_fetched(self.link.ring)
        if total > self.fetched_seen:
            self.fetched_seen = total
            self.take_mutex()
            link_notice_room(self.link)
            pthread_mutex_unlock(&self.link.mutex)
            self.carrier.fetched(total)
        return 0

    def room_fileno(self):
        """Readable when the peer may have READ a payload, or there is room: by rdma only."""
        return ring_room_fd(self.link.ring)

    def notice(self):
        """Takes what the peer reports, until which `room_fileno` is readable. False: it reports no more."""
        if self.link.closed:
            return False
        cdef int error
        with nogil:
            error = ring_look(self.link.ring, True)
        self.notice_fetched()
        return error == 0

    cdef int offer(self, object frames, bint force, bint hold, object released, list lent,
                   uint64_t* number) except -1:
        """OK or FULL; number: of the message. With `lent` user memory that the kernel did not take stays in
        place and counts in link.borrowed: the caller waits or settles, and then releases the objects in
        `lent`; else it is copied."""
        cdef int answer
        if self.carrier is not None and not force and any_large(frames, self.link.ring != NULL):
            answer = self.offer_carried(frames, hold, released, number)
            if answer >= 0:
                return answer
        return self.put(frames, force, hold, released, lent, number)

    cdef int offer_carried(self, object frames, bint hold, object released, uint64_t* number) except -2:
        """As `offer`, with large payloads in the carrier; -1: the connection has to take them itself."""
        cdef Py_ssize_t saved
        cdef size_t size = 0
        cdef int answer
        if self.link.ring != NULL:  # the payload lies in memory of this process until it is READ
            self.notice_fetched()
            for frame in frames:
                size += payload_size(frame[4])
        if link_is_full(self.link, size):
            self.write_out(True)
            self.take_mutex()
            answer = link_room(self.link, size)
            pthread_mutex_unlock(&self.link.mutex)
            if answer == BROKEN or load_int(&self.link.error):
                self.raise_broken()
            if answer == FULL:
                return FULL
        if self.link.ring != NULL:
            with self.carrier.order:  # announcements are numbered
                saved = self.put_carried(frames, hold, released, number)
        else:
            saved = self.put_carried(frames, hold, released, number)
        if saved < 0:
            return -1
        self.take_mutex()
        add(&self.link.sent_bytes, <uint64_t>saved)
        pthread_mutex_unlock(&self.link.mutex)
        return OK

    cdef Py_ssize_t put_carried(self, object frames, bint hold, object released, uint64_t* number) except -2:
        """Payload bytes that do not go by the connection, or -1."""
        cdef object carried = self.carrier.place(frames, hold, released, self.several)
        cdef list owners = []
        cdef int announced = 0
        cdef int answer = BROKEN
        if carried is None:
            return -1
        placed, released, saved = carried
        try:
            if self.link.ring != NULL:
                announced = self.announce(placed)
            # Some frames may be as they were, and in the caller's memory.
            answer = self.queue_message(placed, True, hold, False, released, owners, number,
                                        saved < VERY_LARGE)
        finally:
            if answer != OK:
                self.recall(announced)
                self.carrier.withdraw(placed)
        # It is queued: no error takes it back any more.
        try:
            self.after_queueing(answer, hold, released, None, owners)
        finally:
            if announced and answer == OK:
                self.carrier.await_reads(self)
        return saved

    cdef int announce(self, list placed) except -1:
        """Counts the payloads that the peer is to READ. All or none."""
        cdef int count = 0
        cdef uint64_t size, begin
        self.take_mutex()
        begin = self.link.written + <uint64_t>self.link.queued_bytes
        pthread_mutex_unlock(&self.link.mutex)
        announced = [frame[4] for frame in placed if frame[0] & BY_REFERENCE]
        for reference in announced:
            memcpy(&size, PyBytes_AS_STRING(reference) + REFERENCE_SIZE - 8, 8)
            if not ring_announce(self.link.ring, size, begin, count + 1 == len(announced)):
                self.recall(count)
                raise InternalError("more payloads are announced than a connection may have")
            count += 1
        return count

    cdef int recall(self, int announced) except -1:
        """Their message was not queued."""
        while announced:
            announced -= 1
            ring_recall(self.link.ring)
        return 0

    cdef int put(self, object frames, bint force, bint hold, object released, list lent,
                 uint64_t* number, bint gather=False) except -1:
        """Queues the message unchanged, and writes what the kernel takes. OK or FULL."""
        cdef list owners = []
        cdef int answer = self.queue_message(frames, force, hold, lent is not None, released, owners, number,
                                             gather)
        return self.after_queueing(answer, hold, released, lent, owners)

    cdef int queue_message(self, object frames, bint force, bint hold, bint lends, object released,
                           list owners, uint64_t* number, bint gather) except -9:
        """What `enqueue` answers, of which -1 is one; after an error nothing is queued. owners: gets what
        keeps the memory."""
        cdef outgoing_t one
        cdef outgoing_t* out = &one
        cdef Py_ssize_t count = len(frames)
        cdef Py_ssize_t i
        cdef int answer
        cdef size_t total = 0
        if count < 1 or count > MOST_FRAMES:
            raise UsageError(f"a message of {count} frames, it has 1 to {MOST_FRAMES}")
        if count > 1:
            out = <outgoing_t*>calloc(count, sizeof(outgoing_t))
            if out == NULL:
                raise MemoryError()
        try:
            for i in range(count):
                prepare(self.link, &out[i], frames[i], i + 1 < count, hold, owners)
                total += out[i].size
            add_segments(out, count, owners, hold, released)
            if total < 4096:
                self.take_mutex()
                # Nothing of it is borrowed; memory that another thread lent is not copied under the GIL.
                answer = enqueue(self.link, out, count, total, force, False, gather)
            else:
                self.take_mutex()
                with nogil:
                    answer = enqueue(self.link, out, count, total, force, not hold and not lends, gather)
            if answer != OK:
                drop_segments(out, count)
            else:
                number[0] = out[0].number
                for i in range(count):
                    if out[i].ready != NULL:
                        (<Filling>frames[i][4]).add_writer(self)
        finally:
            if count > 1:
                free(out)
        return answer

    cdef int after_queueing(self, int answer, bint hold, object released, list lent, list owners) except -1:
        """Raises what `enqueue` answered, or informs the owners of what is written. OK or FULL."""
        if answer == BROKEN:
            self.raise_broken()
        if answer == NO_MEMORY:
            raise InternalError("no memory to queue a message", hint="lower the high-water marks")
        if load_segment(&self.link.finished) != NULL:
            self.reap()
        if answer != OK:
            return answer
        if lent is not None:
            lent.extend(owners)
        elif not hold or not has_large(owners):
            release_exports(owners)
        if not has_large(owners):
            inform(released, None)
        return OK

    cdef int notify_room(self, int fd, void* socket) except -1:
        """Sets the eventfd for reports of room, of the socket that it is attached to; -1: none. The earlier
        one is not written to any more: its number may be reused. Does nothing where the stream was detached
        meanwhile, nor in a forked child, which has no flusher thread."""
        if self.link.flusher.generation == native_link.fork_generation:
            self.take_mutex()
            if self.socket == socket:
                self.link.notify_fd = fd
                if self.link.ring != NULL:
                    link_notice_fetched(self.link)
            pthread_mutex_unlock(&self.link.mutex)
        return 0

    cdef int write_out(self, bint no_gil) except -1:
        """1 when the queue is empty, else 0; finished Python objects are released."""
        cdef int answer
        self.take_mutex()
        if no_gil:
            with nogil:
                answer = link_write(self.link) if not self.link.closed else BROKEN
                pthread_mutex_unlock(&self.link.mutex)
        else:
            answer = link_write(self.link) if not self.link.closed else BROKEN
            pthread_mutex_unlock(&self.link.mutex)
        if load_segment(&self.link.finished) != NULL:
            self.reap()
        return answer == OK

    cdef int reap(self) except -1:
        cdef segment_t* finished
        self.take_mutex()
        finished = self.link.finished
        store_segment(&self.link.finished, NULL)
        pthread_mutex_unlock(&self.link.mutex)
        release_segments(finished, None)
        return 0

    def take_unsent(self):
        """Removes and returns the messages of which no byte was written to the kernel. They are in new
        memory: their senders may change theirs by the time that they go to another peer."""
        cdef segment_t* segment
        cdef segment_t* first
        cdef list pieces = []
        cdef bint foreign
        self.own_all()
        segment = first = self.empty_queue()
        try:
            while segment != NULL:
                # Still the user's: there was no memory for a copy, so it counts as written.
                foreign = segment.owner != NULL and type(<object>segment.owner) is not bytes
                pieces.append((payload_of(segment, segment == first, foreign), 1 if foreign else segment.done,
                               segment.size, not segment.payload, bool(segment.starts_inside)))
                segment = segment.next
        finally:
            self.let_go_copied()
            release_segments(first, Broken("the connection ended before this message was sent"))
        messages = unsent_messages(pieces)
        if self.carrier is not None:
            messages = [self.carrier.take_back(message) for message in messages]
        return messages

    def drop_unsent(self):
        """As `take_unsent`, for messages that go to no other peer: returns their number. Copies nothing."""
        cdef int64_t count
        cdef segment_t* first
        self.take_mutex()
        count = unsent_count(self.link)
        first = self.empty_queue()
        self.let_go_copied()
        release_segments(first, Broken("the connection ended before this message was sent"))
        return count

    cdef segment_t* empty_queue(self) noexcept:
        """Empties the queue and returns it. Enters with the mutex held and leaves without it."""
        cdef segment_t* first = self.link.head
        self.link.head = self.link.tail = NULL
        store_signed(&self.link.queued, 0)
        store_signed(&self.link.queued_bytes, 0)
        store_signed(&self.link.queued_payload, 0)
        self.link.borrowed = 0
        pthread_mutex_unlock(&self.link.mutex)
        return first

    cdef int let_go_copied(self) except -1:
        """Before an owner learns that the memory is free again: the flusher may have had the mutex since,
        and with it the segments that hold that memory."""
        self.reap()
        self.flusher.reap()
        return 0

    cdef bint complete_all(self) except -1:
        """Whether a message of which nothing was written had to be waited for: it was still being filled.
        Enters and leaves with the mutex held. One that cannot be filled counts as written."""
        cdef segment_t* segment = self.link.head
        while segment != NULL and (segment.done or not is_unready(segment)):
            segment = segment.next
        if segment == NULL:
            return False
        filling = <object>(<HeldBuffer>segment.owner).view.obj
        pthread_mutex_unlock(&self.link.mutex)
        try:
            filling.complete()
        except Exception:  # it ended this stream, which has it as its reason
            self.take_mutex()
            segment = self.link.head
            while segment != NULL:
                if is_unready(segment):
                    segment.done = max(segment.done, <size_t>1)
                segment = segment.next
            return True
        self.take_mutex()
        return True

    def end_writing(self, error):
        """The rest of a message that has begun does not come: this connection ends."""
        ended = Broken("a message could not be filled while it was sent")
        ended.__cause__ = error
        self.fail(ended)
        self.take_mutex()
        if self.link.fd >= 0:
            shutdown(self.link.fd, SHUT_RDWR)
        pthread_mutex_unlock(&self.link.mutex)

    cdef int own_all(self) except -1:
        """Copies users' memory in the queue, before its senders return or are informed. Leaves with the mutex
        held."""
        cdef segment_t* segment
        cdef int answer = OK
        self.take_mutex()
        while answer == OK:
            if load_int(&self.link.error):
                link_give_up_begun(self.link)
            if self.complete_all():
                continue
            segment = self.link.head
            while segment != NULL:
                if (segment.owner != NULL and not segment.borrowed and not segment.done
                        and type(<object>segment.owner) is not bytes):
                    segment.borrowed = 1
                    self.link.borrowed += 1
                segment = segment.next
            if not self.link.borrowed:
                break
            with nogil:
                answer = link_settle(self.link)  # others may send while it releases the mutex
        return 0
