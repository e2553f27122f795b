# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""A connection's out-queue, and the system calls that write it, without the GIL. thread.pyx is the flusher.

Small messages are copied into the tail chunk and share a write; large payloads lie in separate segments that
point into the user's memory. `link_t.mutex` guards the queue. Rules against deadlock: never block on a link's
mutex with the GIL, since its holder may wait for the GIL; the order is link, then flusher; Python objects of
finished segments wait in `finished` for the next caller that has the GIL.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport write

from transfer.transports.core.native.atomic cimport (
    add, add_signed, load, load_int, load_signed, store_int, store_signed,
)
from transfer.transports.core.native.system cimport (
    MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, iovec, msghdr, pollfd, sched_yield, sendmsg,
)
from transfer.transports.core.native.filling cimport load_ready
from transfer.transports.core.native.ring cimport ring_look, ring_pause, ring_unread_messages, ring_write
from transfer.transports.core.native.ring_requests cimport ring_free, ring_room_fd
from transfer.transports.core.native.tls cimport SEAL, tls_free, tls_push, tls_seal, tls_unsent
from transfer.transports.core.native.system cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)

cdef enum:
    MAX_IOV = 64
    YIELD = 4 * 1024 * 1024         # after so many bytes other threads get the processor
    ROUND = 4 * 1024 * 1024         # bytes of one link_write: others wait for the mutex, or for the flusher
    PAUSE_NS = 20 * 1000            # a send after a pause of this length is written at once
    BURST = 64                      # so many of them, by all connections of a context
    BURST_NS = 100 * 1000           # within this time payloads that are copied apart are gathered

fork_generation = 0
main_thread = 0


cdef int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


# --- the out-queue ----------------------------------------------------------------------------

cdef link_t* link_new(flusher_t* flusher) noexcept nogil:
    cdef link_t* link = <link_t*>calloc(1, sizeof(link_t))
    if link != NULL:
        pthread_mutex_init(&link.mutex, NULL)
        link.flusher = flusher
        link.fd = -1
        link.notify_fd = -1
    return link


cdef void link_free(link_t* link) noexcept nogil:
    """Frees the rest. The Python objects of segments were taken before (see Stream.close)."""
    cdef segment_t* segment = link.head
    cdef segment_t* following
    while segment != NULL:
        following = segment.next
        if segment.capacity:
            free(segment.data)
        free(segment)
        segment = following
    tls_free(link.tls)
    ring_free(link.ring)
    pthread_mutex_destroy(&link.mutex)
    free(link)


cdef segment_t* new_chunk(size_t size) noexcept nogil:
    cdef segment_t* chunk = <segment_t*>calloc(1, sizeof(segment_t))
    if chunk == NULL:
        return NULL
    chunk.capacity = size if size > CHUNK else CHUNK
    chunk.data = <char*>malloc(chunk.capacity)
    if chunk.data == NULL:
        free(chunk)
        return NULL
    return chunk


cdef void link_append(link_t* link, segment_t* segment) noexcept nogil:
    link.appended += 1
    segment.serial = link.appended
    segment.next = NULL
    if link.tail == NULL:
        link.head = segment
    else:
        link.tail.next = segment
    link.tail = segment


cdef char* link_reserve(link_t* link, size_t size, int inside) noexcept nogil:
    """`size` bytes in one piece at the end of the queue. A frame never crosses chunks, so a chunk always
    begins with a header; take_unsent relies on it."""
    cdef segment_t* tail = link.tail
    if tail == NULL or tail.capacity - tail.size < size or tail.capacity == 0:
        tail = new_chunk(size)
        if tail == NULL:
            return NULL
        link_append(link, tail)
    if tail.size == 0:
        tail.starts_inside = inside
    tail.size += size
    add_signed(&link.queued_bytes, size)
    return tail.data + tail.size - size


cdef int link_is_full(link_t* link, size_t payload) noexcept nogil:
    """Whether the high-water marks refuse one more message of this size."""
    cdef int64_t high_water = load_signed(&link.high_water)
    cdef int64_t high_water_bytes = load_signed(&link.high_water_bytes)
    cdef int64_t queued = load_signed(&link.queued) + load_signed(&link.sealed)
    cdef int64_t bytes_queued = load_signed(&link.queued_payload) + <int64_t>payload
    cdef int64_t unfetched = link_unfetched(link)
    if unfetched:
        bytes_queued += load(&link.ring.unfetched_bytes)
    if high_water and queued + unfetched >= high_water:
        # A message may have many payloads: they are counted, under a mutex, only if that decides.
        if not unfetched or queued + <int64_t> ring_unread_messages(link.ring) >= high_water:
            return True
    return high_water_bytes and queued + unfetched and bytes_queued > high_water_bytes


cdef int64_t link_messages_left(link_t* link) noexcept nogil:
    """Below its mark, without a ring."""
    cdef int64_t high_water = load_signed(&link.high_water)
    return high_water - link.queued - link.sealed if high_water else COALESCE


cdef int64_t link_bytes_left(link_t* link) noexcept nogil:
    cdef int64_t high_water = load_signed(&link.high_water_bytes)
    return high_water - link.queued_payload if high_water else COALESCE


cdef void link_count(link_t* link, int64_t messages, size_t payload) noexcept nogil:
    """New ones that end in the tail."""
    add(&link.sent, messages)
    add(&link.sent_bytes, payload)
    add_signed(&link.queued, messages)
    add_signed(&link.queued_payload, payload)
    link.tail.messages += messages
    link.tail.payloads += payload


cdef int64_t link_unfetched(link_t* link) noexcept nogil:
    """Payloads that are announced, and that the peer has not READ."""
    return 0 if link.ring == NULL else load(&link.ring.announced) - load(&link.ring.peer_fetched)


cdef int link_room(link_t* link, size_t payload) noexcept nogil:
    """OK if the high-water marks allow one more message of this size, else FULL or BROKEN."""
    cdef int error
    if not link_is_full(link, payload):
        return OK
    # Gathered messages are not a backlog: write them first.
    if link.fd < 0 or link.kernel_full:
        return FULL
    if link_write(link) == BROKEN:
        return BROKEN
    if link_is_full(link, payload) and link_unfetched(link):
        # Its room may lack for this message only: what a sleeper polls is silent now until there is news.
        error = ring_look(link.ring, True)
        link_notice_fetched(link)
        if error:
            return link_broken(link, error)
    if not link_is_full(link, payload):
        return OK
    if link.ring != NULL:
        link.fetched_when_full = load(&link.ring.peer_fetched)
    return FULL


cdef int link_pushed(link_t* link, int64_t before) noexcept nogil:
    """Writes the queue if it is time. before: bytes in it without the new message."""
    cdef int64_t now
    cdef bint quiet
    if link.fd < 0 or link.kernel_full:
        return OK
    if link.queued_bytes >= COALESCE:
        return WOULD_BLOCK
    if load_int(&link.turn):
        store_int(&link.turn, 0)
        link_write(link)
        return OK
    # The clock is read for the first message after a write only: that costs as much as the rest.
    if before == 0:
        now = now_ns()
        quiet = now - link.last_sent > PAUSE_NS and now - link.last_write > PAUSE_NS
        store_signed(&link.last_sent, now)
        if quiet and takes_token(link.flusher, now):
            link_write(link)
            return OK
    if not link.armed:
        link_arm(link)
    return OK


cdef bint takes_token(flusher_t* flusher, int64_t now) noexcept nogil:
    """Whether a message after a pause of its connection is written at once. A program that sends to many in
    turn pauses at each, so the connections of a context share a token bucket: BURST tokens, and one more each
    PAUSE_NS. Two threads may take the same one, which is harmless."""
    cdef int64_t until = max(load_signed(&flusher.tokens_until), now) + PAUSE_NS
    if until - now > BURST * PAUSE_NS:
        return False
    store_signed(&flusher.tokens_until, until)
    return True


cdef bint link_gathers(link_t* link) noexcept nogil:
    """Whether a message whose payload travels apart from the connection is gathered with others: within a
    burst, and if no peer waits for the answer. Notes its turn and time."""
    cdef int64_t now = now_ns()
    cdef bint burst = now - link.last_sent <= BURST_NS or now - link.last_write <= BURST_NS
    cdef bint turn = load_int(&link.turn)
    store_int(&link.turn, 0)
    store_signed(&link.last_sent, now)
    return burst and not turn and link.queued_bytes < COALESCE


cdef int link_broken(link_t* link, int error) noexcept nogil:
    if load_int(&link.error) == 0:
        store_int(&link.error, error)
        link_give_up_begun(link)
    return BROKEN


cdef int link_write(link_t* link) noexcept nogil:
    """Writes what the kernel takes, up to ROUND. The caller holds the mutex. OK: nothing is left.
    WOULD_BLOCK: the kernel is full, or the round is over, and the flusher continues. UNREADY: the thread that
    fills the next bytes continues. BROKEN."""
    cdef size_t done = 0
    cdef ssize_t written
    cdef int error
    if link.fd < 0:
        return OK
    if link_unfetched(link):
        error = ring_look(link.ring, False)
        if error == 0 and link_is_full(link, 0):
            error = ring_look(link.ring, True)
        link_notice_fetched(link)
        if error:
            return link_broken(link, error)
    while link.queued_bytes > 0:
        if link_unready(link):
            link.kernel_full = 0
            return UNREADY
        if link.ring != NULL:
            written = write_by_rdma(link)
        else:
            written = write_once(link) if link.tls == NULL else write_sealed(link)
        if written < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                link.kernel_full = 1
                return leave_rest(link)
            return link_broken(link, errno)
        done += written
        if done >= ROUND and link.queued_bytes > 0:
            # A fast receiver would keep this thread here until the end of a very large message.
            if link.ring != NULL:
                ring_pause(link.ring)
            return leave_rest(link)
        if load_int(&link.waiters) and link.queued_bytes >= YIELD and written >= SLICE // 2:
            # A long copy in the kernel must not delay the small message of another thread.
            sched_yield()
    link.kernel_full = 0
    link.last_write = now_ns()
    return OK


cdef bint is_unready(segment_t* segment) noexcept nogil:
    return segment.ready != NULL and load_ready(segment.ready) < segment.size


cdef bint link_unready(link_t* link) noexcept nogil:
    """Whether there is nothing to write, although something is queued: it is still being filled."""
    cdef segment_t* segment = link.head
    if link.tls != NULL and tls_unsent(link.tls):
        return False
    while segment != NULL and segment.done == segment.size:
        segment = segment.next
    return segment != NULL and segment.ready != NULL and load_ready(segment.ready) <= segment.done


cdef int gather(link_t* link, iovec* vectors, size_t slice) noexcept nogil:
    """Collects the front of the queue, up to about `slice` bytes; returns the number of vectors."""
    cdef segment_t* segment = link.head
    cdef int count = 0
    cdef size_t total = 0
    cdef size_t end
    while segment != NULL and count < MAX_IOV and total < slice:
        end = segment.size if segment.ready == NULL else load_ready(segment.ready)
        if end > segment.done:
            vectors[count].iov_base = segment.data + segment.done
            vectors[count].iov_len = slice_of(end - segment.done, slice - total, slice)
            total += vectors[count].iov_len
            count += 1
        if end < segment.size:
            break
        segment = segment.next
    return count


cdef ssize_t write_once(link_t* link) noexcept nogil:
    """One system call, as sendmsg."""
    cdef iovec vectors[MAX_IOV]
    cdef msghdr message
    cdef ssize_t written
    memset(&message, 0, sizeof(message))
    message.msg_iov = vectors
    message.msg_iovlen = gather(link, vectors, SLICE)
    written = sendmsg(link.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    if written > 0:
        retire(link, written)
    return written


cdef ssize_t write_by_rdma(link_t* link) noexcept nogil:
    """The same into the ring that the peer lent."""
    cdef iovec vectors[MAX_IOV]
    cdef ssize_t written = ring_write(link.ring, vectors, gather(link, vectors, SLICE))
    if written > 0:
        retire(link, written)
    return written


cdef void link_watch_room(link_t* link, pollfd* room) noexcept nogil:
    """What to poll for room to write, after a write that found none."""
    room.fd = link.fd if link.ring == NULL else ring_room_fd(link.ring)
    room.events = POLLOUT if link.ring == NULL else POLLIN
    room.revents = 0


cdef ssize_t write_sealed(link_t* link) noexcept nogil:
    """The same with TLS. Encrypted bytes have left the queue for their owners: they cannot be taken back.
    Until the kernel has them, they count in `queued_bytes` and `sealed`."""
    cdef iovec vectors[MAX_IOV]
    cdef ssize_t written
    cdef int64_t messages
    if tls_unsent(link.tls) == 0:
        written = tls_seal(link.tls, vectors, gather(link, vectors, SEAL))
        if written < 0:
            return -1
        messages = link.queued
        retire(link, written)
        store_signed(&link.sealed, messages - link.queued)
        add_signed(&link.queued_bytes, tls_unsent(link.tls))
    written = tls_push(link.tls)
    if written > 0:
        add_signed(&link.queued_bytes, -written)
        if tls_unsent(link.tls) == 0:
            store_signed(&link.sealed, 0)
    return written


cdef size_t slice_of(size_t left, size_t room, size_t slice) noexcept nogil:
    """The bytes of one system call: a short rest is included instead of a separate call."""
    return left if left <= room + slice // 2 else room


cdef int leave_rest(link_t* link) noexcept nogil:
    if not link.armed and not link.wants_output and not load_int(&link.waiters):
        link_arm(link)
    return WOULD_BLOCK


cdef void retire(link_t* link, size_t written) noexcept nogil:
    """Removes written bytes from the queue, and notifies senders that wait for room."""
    drop_written(link, written)
    link_notice_room(link)


cdef void link_notice_room(link_t* link) noexcept nogil:
    """Notifies senders that wait for room, if there is some."""
    cdef uint64_t one = 1
    if link.notify_fd >= 0 and not link_is_full(link, 0):
        write(link.notify_fd, &one, 8)
        link.notify_fd = -1


cdef void link_notice_fetched(link_t* link) noexcept nogil:
    """The same, if the peer has READ payloads since a message found no room: any thread may be the one that
    sees it."""
    if load(&link.ring.peer_fetched) != link.fetched_when_full:
        link_notice_room(link)


cdef void drop_written(link_t* link, size_t written) noexcept nogil:
    cdef segment_t* segment
    cdef size_t part
    add_signed(&link.queued_bytes, -written)
    add(&link.written, written)
    link.kernel_full = 0
    while link.head != NULL:
        segment = link.head
        part = segment.size - segment.done
        if part > written:
            segment.done += written
            return
        written -= part
        segment.done = segment.size
        add_signed(&link.queued, -segment.messages)
        add_signed(&link.queued_payload, -segment.payloads)
        if (segment.capacity and segment.next == NULL and not segment.payload
                and segment.capacity <= CHUNK):
            # The last chunk stays for the next message.
            segment.size = segment.done = 0
            segment.messages = segment.payloads = 0
            return
        link.head = segment.next
        if link.head == NULL:
            link.tail = NULL
        link.borrowed -= segment.borrowed
        if segment.capacity:
            free(segment.data)
            segment.capacity = 0
        if segment.owner != NULL or segment.released != NULL:
            segment.next = link.finished
            store_segment(&link.finished, segment)
        else:
            free(segment)


cdef void link_give_up_begun(link_t* link) noexcept nogil:
    """No peer can use the rest of a partly written payload: its owner gets it back now."""
    cdef segment_t* segment = link.head
    if segment == NULL or not segment.payload or segment.owner == NULL:
        return
    link.head = segment.next
    if link.head == NULL:
        link.tail = NULL
    add_signed(&link.queued, -segment.messages)
    add_signed(&link.queued_payload, -segment.payloads)
    add_signed(&link.queued_bytes, -(segment.size - segment.done))
    link.borrowed -= segment.borrowed
    segment.failed = 1
    segment.next = link.finished
    store_segment(&link.finished, segment)


cdef void link_arm(link_t* link) noexcept nogil:
    """Makes the flusher check this link at its next tick."""
    cdef flusher_t* flusher = link.flusher
    if link.armed or link.closed:
        return
    pthread_mutex_lock(&flusher.mutex)
    # Only the thread takes it out of the list when it ends.
    if flusher.running or flusher.start(flusher) == 0:
        link.armed = 1
        link.next_pending = flusher.pending
        flusher.pending = link
        wake(flusher)
    pthread_mutex_unlock(&flusher.mutex)


cdef void wake(flusher_t* flusher) noexcept nogil:
    """Wakes the thread if it sleeps. The caller holds the mutex, as `flusher_end` does to close `wake_fd`."""
    cdef uint64_t one = 1
    if flusher.asleep:
        flusher.asleep = 0
        write(flusher.wake_fd, &one, 8)


cdef void link_arm_credit(link_t* link) noexcept nogil:
    """Lets the flusher report to the peer, within CREDIT_NS, how much was consumed."""
    cdef flusher_t* flusher = link.flusher
    pthread_mutex_lock(&flusher.mutex)
    store_int(&link.credit_armed, 1)
    if (not link.credit_listed and not load_int(&link.closed)
            and (flusher.running or flusher.start(flusher) == 0)):
        link.credit_listed = 1
        link.credit_due = now_ns() + CREDIT_NS
        link.next_credit = NULL
        if flusher.credit_tail == NULL:
            flusher.credit_head = link
            wake(flusher)  # only the first one needs a new sleeping time; later ones are due later
        else:
            flusher.credit_tail.next_credit = link
        flusher.credit_tail = link
    pthread_mutex_unlock(&flusher.mutex)
