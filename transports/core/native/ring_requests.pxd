# What a ring posts, and what completes. See ring_requests.pyx.

from libc.stdint cimport uint32_t, uint64_t

from transfer.transports.core.native.libibverbs cimport ibv_comp_channel, ibv_cq, ibv_mr, ibv_qp
from transfer.transports.core.native.system cimport pthread_mutex_t

cdef enum:
    RECEIVES = 128                  # receives that a peer finds posted, one for each WRITE with immediate
    RESERVED = 8                    # of them, and of requests, for what is not data
    REQUESTS = 128                  # posted at once; READS more fit in
    READS = 16                      # READs posted at once
    CHUNK_OF_READ = 1024 * 1024     # bytes of each READ of a payload but the last
    ANNOUNCED = 1024                # payloads that the peer has not READ; as carrier.py's MOST_OPEN
    REPORT_ROOM = 4096              # bytes behind a ring, for a report

# Immediate data: a number of bytes, or one of these. They come in order, as WRITEs themselves need not.
cdef enum:
    ASK = 0xFE000001                # the peer waits for room
    ROOM = 0xFE000002               # the answer
    FETCHED = 0xFF000000            # and the lower 24 bits of the count of payloads that were READ
    FETCHED_BITS = 0x00FFFFFF

# What a side writes into its peer's memory, by a plain WRITE. Totals, which only grow.
cdef struct report_t:
    uint64_t consumed               # bytes that its reader took out of its ring
    uint64_t posted                 # receives that it posted again
    uint64_t fetched                # payloads that it READ, in the order of their announcements

# A payload that is READ into registered memory.
cdef struct fetch_t:
    fetch_t* next
    char* target
    uint64_t source
    uint32_t lkey
    uint32_t rkey
    size_t size
    size_t posted
    size_t done

cdef struct ring_t:
    pthread_mutex_t mutex
    ibv_qp* qp
    ibv_cq* cq
    ibv_comp_channel* channel
    ibv_mr* incoming_region
    ibv_mr* outgoing_region
    uint32_t inline_bytes
    int connection_fd               # TCP, whose end is the peer's
    int channel_fd                  # readable when something completed since it was armed
    int armed                       # the next completion raises an event, or one is on its way
    unsigned int events             # taken and not acknowledged
    int error                       # errno that ended it
    int status                      # libibverbs' status of the completion that ended it
    int ended                       # closed: nothing of it may be used
    # -- the reader sleeps on `watch_fd`: an epoll of the channel, its eventfd, and the TCP connection
    int watch_fd
    int reader_wake_fd                 # eventfd: another thread took the event, and something is left to read
    int reader_woken
    int news                        # something completed since the reader last found nothing
    # -- writers sleep on `room_watch_fd`: the same with their eventfd
    int room_watch_fd
    int writer_wake_fd                 # eventfd: another thread took the event, and there may be room
    int writer_woken
    int writer_sleeps
    int blocked                     # the last write found no room
    int room_news                   # a completion of this poll may have made room
    # -- incoming: the peer writes to `incoming` and `report_in`
    char* incoming
    size_t incoming_size
    report_t* report_in
    uint64_t arrived                # totals of bytes
    uint64_t consumed
    uint64_t taken                  # receives that completed, and those that were posted again
    uint64_t posted_again
    report_t last_sent              # report
    int peer_waits
    # -- outgoing: of the same size as the peer's ring, and with the same offsets
    char* outgoing
    size_t outgoing_size
    report_t* report_out
    uint64_t remote
    uint64_t remote_report
    uint32_t rkey
    uint64_t written                # bytes
    uint64_t immediates             # WRITEs with immediate
    report_t last_valid             # the largest counts of `report_in` that can be true
    int asking                      # the peer will say when there is room
    # -- requests
    uint64_t requests               # totals: posted, the last signaled one, completed
    uint64_t signaled
    uint64_t completed
    # -- READs, in order
    uint64_t announced              # payloads that this side has announced, and which the peer has READ
    uint64_t peer_fetched
    uint64_t unfetched_bytes        # of those in between
    uint64_t left                   # payloads whose announcement was seen written
    uint64_t left_messages          # that end with one of those, and that end with one of those READ
    uint64_t fetched_messages
    size_t sizes[ANNOUNCED]
    uint64_t begins[ANNOUNCED]      # bytes that are written before its announcement, or fewer
    char ends[ANNOUNCED]            # a message ends with it: 1
    fetch_t* fetch_head
    fetch_t* fetch_tail
    fetch_t* fetch_unposted             # the first one that is not entirely posted
    int reads
    int most_reads
    uint64_t fetched

cdef ring_t* ring_new() noexcept nogil
cdef void ring_free(ring_t* ring) noexcept nogil
cdef int ring_start(ring_t* ring) noexcept nogil
cdef void ring_fail(ring_t* ring) noexcept nogil
cdef void ring_end(ring_t* ring) noexcept nogil
cdef int poll_cq(ring_t* ring) noexcept nogil
cdef int broken(ring_t* ring, int error) noexcept nogil
cdef int arm(ring_t* ring, bint tell) noexcept nogil
cdef int watch(int epoll_fd, int fd) noexcept nogil
cdef int ring_room_fd(ring_t* ring) noexcept nogil
cdef void wake_reader(ring_t* ring) noexcept nogil
cdef void wake_writer(ring_t* ring) noexcept nogil
cdef bint may_post(ring_t* ring) noexcept nogil
cdef int post_write(ring_t* ring, const char* data, size_t size, uint64_t remote, bint immediate,
                    uint32_t value, bint signaled=*) noexcept nogil
cdef void post_reads(ring_t* ring) noexcept nogil
cdef void report_if_due(ring_t* ring) noexcept nogil
cdef int refresh(ring_t* ring) noexcept nogil
