# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""A connection's bytes by RDMA, without the GIL: as a socket's, for kernel_writes.pyx and incoming.pyx.

Each side lends its peer a ring of memory. The peer has one of the same size, copies bytes there, and writes
them to the same place of the ring by RDMA WRITE with their number as immediate data, which takes one of the
receives that this side posted; these have no buffers. What the reader consumed, the receives that were posted
again, and the payloads that were READ stand in a report, which a plain WRITE brings into the peer's memory:
it costs the peer neither a receive nor a wake-up, and the peer looks there when it needs room. A writer that
finds none asks to be woken, and sleeps on the completion channel.

`ring_t.mutex` guards the ring; order: link, then ring. Only one thread reads at a time, so it copies without
the mutex. ring_requests.pyx talks to the device.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EPIPE, EPROTO, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from posix.unistd cimport read

from transfer.transports.core.native.atomic cimport add
from transfer.transports.core.native.ring_requests cimport (
    ANNOUNCED, ASK, RECEIVES, REQUESTS, RESERVED, arm, broken, fetch_t, may_post, post_reads, post_write,
    refresh, report_if_due, poll_cq, ring_t, wake_reader, wake_writer,
)
from transfer.transports.core.native.system cimport (
    MSG_DONTWAIT, MSG_PEEK, pthread_mutex_lock, pthread_mutex_unlock, recv,
)

cdef extern from *:
    """
    #include <errno.h>
    static inline void errno_is(int value) { errno = value; }
    """
    void errno_is(int) nogil

cdef enum:
    PIECE = 64 * 1024               # bytes of one WRITE: the device sends while more is copied


# --- writing ----------------------------------------------------------------------------------------


cdef size_t room_of(ring_t* ring) noexcept nogil:
    """Bytes that may be written now."""
    if ring.requests - ring.completed >= REQUESTS - RESERVED:
        return 0
    if ring.immediates - ring.last_valid.posted >= RECEIVES - RESERVED:
        return 0
    return ring.outgoing_size - (ring.written - ring.last_valid.consumed)


cdef size_t find_room(ring_t* ring) noexcept nogil:
    cdef size_t room = room_of(ring)
    if room == 0:
        poll_cq(ring)
        refresh(ring)
        room = room_of(ring)
    return room


cdef size_t sleep_for_room(ring_t* ring) noexcept nogil:
    """Asks for it, and makes the channel readable when it is there. Returns room that came meanwhile."""
    ring.blocked = 1
    want_room(ring)
    if room_of(ring) == 0:
        notice_end(ring)
    return room_of(ring)


cdef void ring_pause(ring_t* ring) noexcept nogil:
    """The caller writes more when the channel is readable: at once if there is room."""
    pthread_mutex_lock(&ring.mutex)
    if not ring.error and not ring.ended:
        sleep_for_room(ring)
    pthread_mutex_unlock(&ring.mutex)


cdef void want_room(ring_t* ring) noexcept nogil:
    """The caller may sleep on `room_watch_fd` then, if it finds none."""
    cdef uint64_t drained
    if ring.writer_woken:
        ring.writer_woken = 0
        read(ring.writer_wake_fd, &drained, 8)
    arm(ring, True)
    refresh(ring)
    ring.writer_sleeps = 1
    # The event may have been for another thread, which waits to write; and the answer that it brought may be
    # to an earlier question, with room that is used up.
    if ring.blocked and room_of(ring):
        wake_writer(ring)
    elif ring.blocked and not ring.asking and may_post(ring):
        ring.asking = 1
        post_write(ring, NULL, 0, ring.remote, True, ASK, True)


cdef void notice_end(ring_t* ring) noexcept nogil:
    """For who is no reader. When the ring has ended, the descriptor is another's."""
    cdef int found
    if ring.ended:
        return
    found = has_ended(ring)
    if found >= 0 or errno != EAGAIN:
        broken(ring, EPROTO if found > 0 else EPIPE if found == 0 else errno)


cdef int has_ended(ring_t* ring) noexcept nogil:
    """Whether the peer has closed the TCP connection: 0. 1: it sent something there; -1: errno."""
    cdef char byte
    return <int> recv(ring.connection_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)


cdef ssize_t ring_write(ring_t* ring, iovec* vectors, int count) noexcept nogil:
    """As writev: bytes taken, or -1 with errno EAGAIN or the end's."""
    cdef size_t room
    cdef size_t total = 0
    cdef size_t done = 0
    cdef size_t piece
    cdef int vector = 0
    pthread_mutex_lock(&ring.mutex)
    while not ring.error and not ring.ended and vector < count:
        room = find_room(ring)
        if room == 0 and total == 0:
            room = sleep_for_room(ring)
        if room == 0 or ring.error:
            break
        piece = gather_piece(ring, room, vectors, count, &vector, &done)
        if post_write(ring, ring.outgoing + ring.written % ring.outgoing_size, piece,
                      ring.remote + ring.written % ring.outgoing_size, True, <uint32_t> piece):
            break
        ring.blocked = 0
        ring.written += piece
        total += piece
    if total == 0:
        errno_is(ring.error if ring.error else ECONNRESET if ring.ended else EAGAIN)
    pthread_mutex_unlock(&ring.mutex)
    return <ssize_t> total if total else -1


cdef size_t gather_piece(ring_t* ring, size_t room, iovec* vectors, int count, int* vector,
                         size_t* done) noexcept nogil:
    """Copies the next bytes to their place, as one piece: `vector` and `done` tell where they begin."""
    cdef size_t place = ring.written % ring.outgoing_size
    cdef size_t most = min(min(room, ring.outgoing_size - place), <size_t> PIECE)
    cdef size_t piece = 0
    cdef size_t part
    while piece < most and vector[0] < count:
        part = min(vectors[vector[0]].iov_len - done[0], most - piece)
        memcpy(ring.outgoing + place + piece, <char*> vectors[vector[0]].iov_base + done[0], part)
        piece += part
        done[0] += part
        if done[0] == vectors[vector[0]].iov_len:
            vector[0] += 1
            done[0] = 0
    return piece


cdef bint ring_flushed(ring_t* ring) noexcept nogil:
    """Whether the peer's device has all that was written, and the peer has READ all that was announced. If
    not, the channel becomes readable."""
    cdef bint done
    pthread_mutex_lock(&ring.mutex)
    poll_cq(ring)
    refresh(ring)
    if ring.completed != ring.requests and ring.signaled != ring.requests and may_post(ring):
        post_write(ring, NULL, 0, ring.remote, False, 0, True)  # it completes all before it
    done = nothing_left(ring)
    if not done:
        want_room(ring)
        done = nothing_left(ring)  # by completions that raise no event any more
    pthread_mutex_unlock(&ring.mutex)
    return done


cdef bint nothing_left(ring_t* ring) noexcept nogil:
    return (ring.error != 0 or ring.ended
            or (ring.completed == ring.requests and ring.peer_fetched == ring.announced))


cdef bint ring_is_destroyed(ring_t* ring) noexcept nogil:
    """The device writes nowhere any more."""
    cdef bint ended
    pthread_mutex_lock(&ring.mutex)  # which the destroying thread holds until it is done
    ended = ring.ended
    pthread_mutex_unlock(&ring.mutex)
    return ended


cdef int ring_look(ring_t* ring, bint sleeps) noexcept nogil:
    """Takes what the peer reports. sleeps: the caller may wait for the channel then. Returns the errno that
    ended the connection, or 0."""
    cdef int error
    pthread_mutex_lock(&ring.mutex)
    poll_cq(ring)
    refresh(ring)
    if sleeps:
        want_room(ring)
        notice_end(ring)
    error = ring.error if ring.error else ECONNRESET if ring.ended else 0
    pthread_mutex_unlock(&ring.mutex)
    return error


# --- reading ----------------------------------------------------------------------------------------


cdef ssize_t ring_read(ring_t* ring, iovec* vectors, int count) noexcept nogil:
    """As readv: bytes, 0 at the end, or -1 with errno. With EAGAIN the watched descriptor becomes readable
    when there is something."""
    cdef size_t total = 0
    cdef size_t part, place
    cdef uint64_t arrived
    cdef int vector = 0
    cdef int answer
    pthread_mutex_lock(&ring.mutex)
    if ring.arrived == ring.consumed:
        poll_cq(ring)
    if ring.arrived == ring.consumed:
        answer = nothing_arrived(ring)
        if answer <= 0:
            pthread_mutex_unlock(&ring.mutex)
            return answer
    arrived = ring.arrived
    pthread_mutex_unlock(&ring.mutex)
    while vector < count and ring.consumed + total < arrived:
        place = (ring.consumed + total) % ring.incoming_size
        part = min(min(<size_t> (arrived - ring.consumed - total), ring.incoming_size - place),
                   vectors[vector].iov_len)
        memcpy(vectors[vector].iov_base, ring.incoming + place, part)
        total += part
        if part == vectors[vector].iov_len:
            vector += 1
        else:
            vectors[vector].iov_base = <char*> vectors[vector].iov_base + part
            vectors[vector].iov_len -= part
    pthread_mutex_lock(&ring.mutex)
    ring.consumed += total
    report_if_due(ring)
    pthread_mutex_unlock(&ring.mutex)
    return <ssize_t> total


cdef int nothing_arrived(ring_t* ring) noexcept nogil:
    """There are no bytes. 1: now there are; 0: the connection has ended; -1: errno tells. The mutex is
    held."""
    cdef int answer
    silence_reader(ring)
    arm(ring, False)
    if ring.arrived == ring.consumed:
        answer = end_or_later(ring)
        if answer:
            return answer
        poll_cq(ring)  # bytes that were written before the end
        if ring.arrived == ring.consumed:
            return 0
    wake_reader(ring)  # it may leave before it has read them all
    return 1


cdef void silence_reader(ring_t* ring) noexcept nogil:
    cdef uint64_t drained
    if ring.reader_woken:
        ring.reader_woken = 0
        read(ring.reader_wake_fd, &drained, 8)


cdef int end_or_later(ring_t* ring) noexcept nogil:
    """Nothing came. 0: the connection has ended; -1: errno tells, EAGAIN if there may be more."""
    cdef int found = -1
    if ring.error or ring.ended:
        errno_is(ring.error if ring.error else ECONNRESET)
        return -1
    errno_is(EAGAIN)
    if not ring.news:  # something else made the descriptor readable
        found = has_ended(ring)
    ring.news = 0
    if found > 0:
        errno_is(EPROTO)
        return -1
    return found


cdef int ring_wait(ring_t* ring) noexcept nogil:
    """A payload is not complete. 1: look again; 0: the connection has ended; -1: errno tells, EAGAIN after
    which the watched descriptor becomes readable, whatever lies in the ring."""
    cdef int answer = 1
    pthread_mutex_lock(&ring.mutex)
    if not poll_cq(ring):
        silence_reader(ring)
        if not arm(ring, False):
            answer = end_or_later(ring)
            if answer == 0 and poll_cq(ring):
                answer = 1
    pthread_mutex_unlock(&ring.mutex)
    return answer


cdef void ring_wake_for_unread(ring_t* ring) noexcept nogil:
    """The payload is complete: what came behind it meanwhile may have raised no event."""
    pthread_mutex_lock(&ring.mutex)
    if ring.arrived != ring.consumed:
        wake_reader(ring)
    pthread_mutex_unlock(&ring.mutex)


cdef size_t ring_unread(ring_t* ring) noexcept nogil:
    """Bytes that wait to be read."""
    cdef size_t count
    pthread_mutex_lock(&ring.mutex)
    if poll_cq(ring):
        wake_reader(ring)
    count = ring.arrived - ring.consumed
    pthread_mutex_unlock(&ring.mutex)
    return count


cdef bint ring_has_news(ring_t* ring) noexcept nogil:
    """For a thread that spins: whether something completed."""
    cdef int found
    pthread_mutex_lock(&ring.mutex)
    found = poll_cq(ring)
    pthread_mutex_unlock(&ring.mutex)
    return found != 0


cdef void ring_arm(ring_t* ring) noexcept nogil:
    """From now on the watched descriptor becomes readable when there is something."""
    pthread_mutex_lock(&ring.mutex)
    arm(ring, False)
    if ring.arrived != ring.consumed:
        wake_reader(ring)
    pthread_mutex_unlock(&ring.mutex)


# --- payloads that are READ -------------------------------------------------------------------------


cdef void ring_fetch(ring_t* ring, fetch_t* fetch) noexcept nogil:
    """Begins to READ a payload: those before it first. `done` counts its bytes."""
    pthread_mutex_lock(&ring.mutex)
    fetch.next = NULL
    fetch.posted = fetch.done = 0
    if ring.fetch_head == NULL:
        ring.fetch_head = fetch
    else:
        ring.fetch_tail.next = fetch
    ring.fetch_tail = fetch
    if ring.fetch_unposted == NULL:
        ring.fetch_unposted = fetch
    post_reads(ring)
    pthread_mutex_unlock(&ring.mutex)


cdef bint ring_announce(ring_t* ring, size_t size, uint64_t begin, bint ends) noexcept nogil:
    """Counts a payload that is announced next, behind at least `begin` bytes of the connection. ends: its
    message has no further one. False: too many are not READ."""
    cdef bint few
    pthread_mutex_lock(&ring.mutex)
    few = ring.announced - ring.peer_fetched < ANNOUNCED
    if few:
        ring.sizes[ring.announced % ANNOUNCED] = size
        ring.begins[ring.announced % ANNOUNCED] = begin
        ring.ends[ring.announced % ANNOUNCED] = ends
        add(&ring.announced, 1)
        add(&ring.unfetched_bytes, size)
    pthread_mutex_unlock(&ring.mutex)
    return few


cdef void ring_recall(ring_t* ring) noexcept nogil:
    """The last payload is not announced after all."""
    pthread_mutex_lock(&ring.mutex)
    add(&ring.announced, -1)
    add(&ring.unfetched_bytes, -ring.sizes[ring.announced % ANNOUNCED])
    if ring.left > ring.announced:
        ring.left = ring.announced
        ring.left_messages -= ring.ends[ring.announced % ANNOUNCED]
    pthread_mutex_unlock(&ring.mutex)


cdef uint64_t ring_unread_messages(ring_t* ring) noexcept nogil:
    """Messages of which the peer can know, and has payloads to READ: their announcements are written."""
    cdef uint64_t count
    pthread_mutex_lock(&ring.mutex)
    while ring.left < ring.announced and ring.begins[ring.left % ANNOUNCED] < ring.written:
        ring.left_messages += ring.ends[ring.left % ANNOUNCED]
        ring.left += 1
    count = ring.left_messages - ring.fetched_messages
    pthread_mutex_unlock(&ring.mutex)
    return count


cdef uint64_t ring_peer_fetched(ring_t* ring) noexcept nogil:
    """Announced payloads that the peer has READ."""
    cdef uint64_t fetched
    pthread_mutex_lock(&ring.mutex)
    refresh(ring)
    fetched = ring.peer_fetched
    pthread_mutex_unlock(&ring.mutex)
    return fetched
