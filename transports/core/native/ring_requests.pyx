# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""What a ring posts to its queue pair and what completes there, without the GIL. ring.pyx explains it.

Everything that comes from the peer is checked here: a count of bytes for which there is no room, and a report
beyond what was sent, end the connection. A report that is smaller than an earlier one is late: the order in
which WRITEs are placed is not promised. The counts that a thread waits for come as immediate data, in order.

Functions without `ring_` in their name are called with the mutex held.
"""

from libc.errno cimport ECONNRESET, EIO, EPROTO, ETIMEDOUT, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.mman cimport munmap
from posix.unistd cimport close, write

from transfer.transports.core.native.atomic cimport add, store_int
from transfer.transports.core.native.libibverbs cimport (
    IBV_QP_STATE, IBV_QPS_ERR, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, ibv_cq, ibv_qp_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, verbs,
)
from transfer.transports.core.native.system cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, SHUT_RDWR, epoll_create1, epoll_ctl,
    epoll_event, eventfd, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    shutdown,
)

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t htonl(uint32_t)
    uint32_t ntohl(uint32_t)

# What the device writes meanwhile.
cdef extern from *:
    """
    #define ACQUIRE(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    #define RELEASE(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    """
    uint64_t acquire "ACQUIRE" (uint64_t* at) nogil
    void release "RELEASE" (uint64_t* at, uint64_t value) nogil

cdef enum:
    BATCH = 32                      # completions of one poll, and receives of one post
    SIGNAL_EVERY = 16               # requests
    READ_KIND = 1                   # in the lowest bit of a request's number
    # of enum ibv_wc_status and ibv_wc_opcode
    RETRIES_EXCEEDED = 12
    RECEIVED_IMMEDIATE = 129


cdef ring_t* ring_new() noexcept nogil:
    cdef ring_t* ring = <ring_t*> calloc(1, sizeof(ring_t))
    if ring != NULL:
        pthread_mutex_init(&ring.mutex, NULL)
        ring.connection_fd = ring.channel_fd = -1
        ring.watch_fd = ring.reader_wake_fd = ring.room_watch_fd = ring.writer_wake_fd = -1
    return ring


cdef void ring_free(ring_t* ring) noexcept nogil:
    """After its end."""
    if ring != NULL:
        pthread_mutex_destroy(&ring.mutex)
        free(ring)


# --- completions ------------------------------------------------------------------------------------


cdef int broken(ring_t* ring, int error) noexcept nogil:
    """The connection has ended; the first reason stays. Wakes all who sleep: no completion may come."""
    if ring.error == 0:
        ring.error = error
        wake_reader(ring)
        wake_writer(ring)
    return -1


cdef int poll_cq(ring_t* ring) noexcept nogil:
    """Takes all completions that are there. Returns their number. The mutex is held."""
    cdef ibv_wc found[BATCH]
    cdef int count = BATCH
    cdef int total = 0
    cdef int at
    if ring.ended:
        return 0
    while count == BATCH:
        count = ring.cq.context.ops.poll_cq(ring.cq, BATCH, found)
        if count < 0:
            broken(ring, EIO)
            break
        for at in range(count):
            completed(ring, &found[at])
        total += count
    if total:
        ring.news = 1
        if ring.taken - ring.posted_again >= RECEIVES // 4:
            post_receives(ring, <int> (ring.taken - ring.posted_again))
        post_reads(ring)
        report_if_due(ring)
        if ring.writer_sleeps and (ring.room_news or ring.error):
            wake_writer(ring)
        ring.room_news = 0
    return total


cdef void completed(ring_t* ring, ibv_wc* one) noexcept nogil:
    cdef uint32_t immediate
    if one.status:
        if ring.status == 0:
            ring.status = one.status
            broken(ring, ETIMEDOUT if one.status == RETRIES_EXCEEDED else EIO)
        return
    if one.opcode != RECEIVED_IMMEDIATE:
        ring.completed = one.wr_id >> 1
        ring.room_news = 1
        if one.wr_id & READ_KIND:
            read_completed(ring)
        return
    ring.taken += 1
    immediate = ntohl(one.imm_data)
    if immediate == ASK:
        ring.peer_waits = 1
    elif immediate == ROOM:
        ring.asking = 0
        ring.room_news = 1
    elif immediate & FETCHED == FETCHED:
        ring.room_news = 1
        take_lower_fetched(ring, immediate)
    else:
        if not 0 < immediate <= ring.incoming_size - (ring.arrived - ring.consumed):
            broken(ring, EPROTO)
        else:
            ring.arrived += immediate


cdef bint take_event(ring_t* ring) noexcept nogil:
    cdef ibv_cq* cq
    cdef void* unused
    if verbs.ibv_get_cq_event(ring.channel, &cq, &unused):
        return False
    ring.events += 1
    if ring.events >= BATCH:  # acknowledging takes a mutex: for many at once
        verbs.ibv_ack_cq_events(ring.cq, ring.events)
        ring.events = 0
    return True


cdef int arm(ring_t* ring, bint tell) noexcept nogil:
    """Nothing is there: the next completion makes the channel readable. Takes what came meanwhile, and
    returns its number.

    Completions from before the queue was armed raise no event, and one that another thread takes is the
    reader's too. tell: then `reader_wake_fd` tells the reader.
    """
    cdef int found
    if ring.ended:
        return 0
    if ring.armed:
        if not take_event(ring):
            return 0  # it is still to come
        ring.armed = 0
    if ring.cq.context.ops.req_notify_cq(ring.cq, 0):
        broken(ring, EIO)
    ring.armed = 1
    found = poll_cq(ring)
    if tell:
        wake_reader(ring)
    return found


cdef void wake_reader(ring_t* ring) noexcept nogil:
    cdef uint64_t one = 1
    if ring.reader_woken or ring.ended:
        return
    if ring.reader_wake_fd < 0:
        ring.reader_wake_fd = new_wake_fd(ring, ring.watch_fd)
    ring.reader_woken = 1
    write(ring.reader_wake_fd, &one, 8)


cdef void wake_writer(ring_t* ring) noexcept nogil:
    cdef uint64_t one = 1
    ring.writer_sleeps = 0
    if not ring.writer_woken and ring.writer_wake_fd >= 0:
        ring.writer_woken = 1
        write(ring.writer_wake_fd, &one, 8)


cdef int new_wake_fd(ring_t* ring, int epoll_fd) noexcept nogil:
    """An eventfd that an epoll watches, made when it is first needed."""
    cdef int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if fd < 0 or watch(epoll_fd, fd) < 0:
        broken(ring, errno)
        shutdown(ring.connection_fd, SHUT_RDWR)  # which wakes all who wait, here and there
    return fd


cdef int watch(int epoll_fd, int fd) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN
    event.data.fd = fd
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event)


cdef int ring_room_fd(ring_t* ring) noexcept nogil:
    """What a writer polls for input when it found no room. Made when it is first needed. -1: it has ended."""
    cdef int fd
    pthread_mutex_lock(&ring.mutex)
    if ring.room_watch_fd < 0 and not ring.ended:
        ring.room_watch_fd = epoll_create1(EPOLL_CLOEXEC)
        ring.writer_wake_fd = new_wake_fd(ring, ring.room_watch_fd)
        watch(ring.room_watch_fd, ring.channel_fd)
        watch(ring.room_watch_fd, ring.connection_fd)
        wake_writer(ring)  # what came before may have been for this thread
    fd = ring.room_watch_fd
    pthread_mutex_unlock(&ring.mutex)
    return fd


# --- requests ---------------------------------------------------------------------------------------


cdef bint may_post(ring_t* ring) noexcept nogil:
    return ring.requests - ring.completed < REQUESTS


cdef int post(ring_t* ring, ibv_send_wr* request, ibv_sge* piece, int kind, bint signaled) noexcept nogil:
    cdef ibv_send_wr* bad
    cdef int error
    if ring.ended or ring.error:
        return -1
    ring.requests += 1
    if signaled or ring.requests % SIGNAL_EVERY == 0:
        request.send_flags |= IBV_SEND_SIGNALED
        ring.signaled = ring.requests
    request.wr_id = ring.requests << 1 | kind
    request.sg_list = piece
    request.num_sge = 1 if piece.length else 0
    error = ring.qp.context.ops.post_send(ring.qp, request, &bad)
    return broken(ring, EIO) if error else 0


cdef int post_write(ring_t* ring, const char* data, size_t size, uint64_t remote, bint immediate,
                    uint32_t value, bint signaled=False) noexcept nogil:
    """Writes `size` bytes of our outgoing region."""
    cdef ibv_send_wr request
    cdef ibv_sge piece
    memset(&request, 0, sizeof(request))
    piece.addr, piece.length, piece.lkey = <uint64_t> data, <uint32_t> size, ring.outgoing_region.lkey
    request.opcode = IBV_WR_RDMA_WRITE
    request.remote_addr, request.rkey = remote, ring.rkey
    if 0 < size <= ring.inline_bytes:
        request.send_flags = IBV_SEND_INLINE
    if immediate:
        request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM
        request.imm_data = htonl(value)
        ring.immediates += 1
    return post(ring, &request, &piece, 0, signaled)


cdef int post_receives(ring_t* ring, int count) noexcept nogil:
    cdef ibv_recv_wr requests[BATCH]
    cdef ibv_recv_wr* bad
    cdef int some, at
    ring.posted_again += count
    while count > 0:
        some = min(count, BATCH)
        memset(requests, 0, sizeof(requests))
        for at in range(some - 1):
            requests[at].next = &requests[at + 1]
        if ring.qp.context.ops.post_recv(ring.qp, requests, &bad):
            return broken(ring, EIO)
        count -= some
    return 0


cdef int ring_start(ring_t* ring) noexcept nogil:
    """Posts the receives, before the peer can write."""
    cdef int answer = post_receives(ring, RECEIVES)
    ring.posted_again = 0
    return answer


cdef void post_reads(ring_t* ring) noexcept nogil:
    cdef fetch_t* fetch
    cdef ibv_send_wr request
    cdef ibv_sge piece
    while ring.fetch_unposted != NULL and ring.reads < ring.most_reads:
        fetch = ring.fetch_unposted
        memset(&request, 0, sizeof(request))
        piece.addr, piece.lkey = <uint64_t> fetch.target + fetch.posted, fetch.lkey
        piece.length = <uint32_t> min(fetch.size - fetch.posted, <size_t> CHUNK_OF_READ)
        request.opcode = IBV_WR_RDMA_READ
        request.remote_addr, request.rkey = fetch.source + fetch.posted, fetch.rkey
        if post(ring, &request, &piece, READ_KIND, True):
            return
        ring.reads += 1
        fetch.posted += piece.length
        if fetch.posted == fetch.size:
            ring.fetch_unposted = fetch.next


cdef void read_completed(ring_t* ring) noexcept nogil:
    """READs of a queue pair complete in order."""
    cdef fetch_t* fetch = ring.fetch_head
    ring.reads -= 1
    # The reader looks at it without the mutex, and then at what the device wrote.
    release(<uint64_t*> &fetch.done, fetch.done + min(fetch.size - fetch.done, <size_t> CHUNK_OF_READ))
    if fetch.done == fetch.size:
        ring.fetch_head = fetch.next
        ring.fetched += 1


# --- reports ----------------------------------------------------------------------------------------


cdef void report(ring_t* ring, uint32_t immediate) noexcept nogil:
    """Writes the counts of this side into the peer's memory. immediate: 0, or what wakes the peer."""
    if not may_post(ring):
        return  # the next report says it too
    ring.last_sent.consumed = ring.report_out.consumed = ring.consumed
    ring.last_sent.posted = ring.report_out.posted = ring.posted_again
    ring.report_out.fetched = ring.fetched
    post_write(ring, <char*> ring.report_out, sizeof(report_t), ring.remote_report, immediate != 0, immediate)
    if immediate == ROOM:
        ring.peer_waits = 0


cdef void report_if_due(ring_t* ring) noexcept nogil:
    cdef bint enough = (ring.consumed - ring.last_sent.consumed >= ring.incoming_size // 4
                        or ring.posted_again - ring.last_sent.posted >= RECEIVES // 4)
    if ring.peer_waits and (enough or ring.arrived == ring.consumed):
        report(ring, ROOM)
    elif enough:
        report(ring, 0)
    if ring.fetched != ring.last_sent.fetched and may_post(ring):
        refresh(ring)
        ring.last_sent.fetched = ring.fetched
        # It may use receives that data leave free. A peer without those, too, has many completions to look at
        # yet: it will see the report then.
        report(ring, FETCHED | <uint32_t> (ring.fetched & FETCHED_BITS)
               if ring.immediates - ring.last_valid.posted < RECEIVES - RESERVED // 2 else 0)


cdef int refresh(ring_t* ring) noexcept nogil:
    """Takes over what the peer reports of itself, if it can be true."""
    cdef uint64_t consumed, posted
    if ring.ended:
        return -1
    consumed = acquire(&ring.report_in.consumed)
    posted = acquire(&ring.report_in.posted)
    if consumed > ring.written or posted > ring.immediates:
        return broken(ring, EPROTO)
    if consumed > ring.last_valid.consumed:
        ring.last_valid.consumed = consumed
    if posted > ring.last_valid.posted:
        ring.last_valid.posted = posted
    return take_fetched(ring, acquire(&ring.report_in.fetched))


cdef int take_fetched(ring_t* ring, uint64_t fetched) noexcept nogil:
    """The peer has READ so many payloads, of which it saw the announcements."""
    cdef uint64_t place
    if fetched > ring.announced:
        return broken(ring, EPROTO)
    while ring.peer_fetched < fetched:
        place = ring.peer_fetched % ANNOUNCED
        if ring.begins[place] >= ring.written:
            return broken(ring, EPROTO)
        add(&ring.unfetched_bytes, -ring.sizes[place])
        if ring.left == ring.peer_fetched:
            ring.left += 1
            ring.left_messages += ring.ends[place]
        ring.fetched_messages += ring.ends[place]
        add(&ring.peer_fetched, 1)
    return 0


cdef int take_lower_fetched(ring_t* ring, uint32_t lower) noexcept nogil:
    """As `take_fetched`, of a count's lower bits. One that a report has overtaken is older than what is
    known."""
    cdef uint32_t late = (<uint32_t> ring.peer_fetched - lower) & FETCHED_BITS
    if late <= ANNOUNCED and late <= ring.peer_fetched:
        return 0
    return take_fetched(ring, ring.peer_fetched + ((lower - <uint32_t> ring.peer_fetched) & FETCHED_BITS))


# --- its end ----------------------------------------------------------------------------------------


cdef void ring_fail(ring_t* ring) noexcept nogil:
    """From now on the peer can neither write to our memory nor READ it."""
    cdef ibv_qp_attr wanted
    pthread_mutex_lock(&ring.mutex)
    if not ring.ended and ring.qp != NULL:
        memset(&wanted, 0, sizeof(wanted))
        wanted.qp_state = IBV_QPS_ERR
        verbs.ibv_modify_qp(ring.qp, &wanted, IBV_QP_STATE)
        if ring.error == 0:
            ring.error = ECONNRESET
        wake_writer(ring)  # the reader is this thread, or its descriptor is closed next
    pthread_mutex_unlock(&ring.mutex)


cdef void ring_end(ring_t* ring) noexcept nogil:
    """Closes all of it. No thread reads. Idempotent."""
    cdef int watch_fd
    pthread_mutex_lock(&ring.mutex)
    ring.ended = 1
    ring.fetch_head = ring.fetch_tail = ring.fetch_unposted = NULL
    if ring.qp != NULL:
        verbs.ibv_destroy_qp(ring.qp)
    if ring.cq != NULL:
        if ring.events:  # destroying waits until all events are acknowledged
            verbs.ibv_ack_cq_events(ring.cq, ring.events)
        verbs.ibv_destroy_cq(ring.cq)
    if ring.channel != NULL:
        verbs.ibv_destroy_comp_channel(ring.channel)
    ring.qp, ring.cq, ring.channel = NULL, NULL, NULL
    if ring.incoming_region != NULL:
        verbs.ibv_dereg_mr(ring.incoming_region)
    if ring.outgoing_region != NULL:
        verbs.ibv_dereg_mr(ring.outgoing_region)
    ring.incoming_region = ring.outgoing_region = NULL
    if ring.incoming != NULL:
        munmap(ring.incoming, ring.incoming_size + REPORT_ROOM)
    if ring.outgoing != NULL:
        munmap(ring.outgoing, ring.outgoing_size + REPORT_ROOM)
    ring.incoming = ring.outgoing = NULL
    watch_fd = ring.watch_fd
    store_int(&ring.watch_fd, -1)  # threads ask for it without the mutex
    if watch_fd >= 0:
        close(watch_fd)
    if ring.reader_wake_fd >= 0:
        close(ring.reader_wake_fd)
    if ring.room_watch_fd >= 0:
        close(ring.room_watch_fd)
    if ring.writer_wake_fd >= 0:
        close(ring.writer_wake_fd)
    ring.reader_wake_fd = ring.room_watch_fd = ring.writer_wake_fd = -1
    pthread_mutex_unlock(&ring.mutex)
