# The part of a connection that works without the GIL. kernel_writes.pyx explains it; thread.pyx is the
# flusher; outgoing.pyx and peer_choice.pyx use it.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from cpython.object cimport PyObject

from transfer.transports.core.native.system cimport pollfd, pthread_mutex_t, pthread_t
from transfer.transports.core.native.ring cimport ring_t
from transfer.transports.core.native.tls cimport tls_t

cdef packed struct header_t:
    uint32_t magic
    uint32_t version
    uint8_t socket_type
    uint8_t flags
    uint64_t sequence
    uint32_t topic_length
    uint64_t data_length
    uint32_t checksum

cdef enum:
    HEADER = 34
    MAGIC = 0x5A4D5121
    VERSION = 1
    F_TENSOR = 1
    F_TOPIC = 2
    F_CONTROL = 8
    F_MORE = 16
    F_CRC = 32
    F_EXTENDED = 64
    F_LZ4 = 128
    BY_REFERENCE = 0x100      # of an OutFrame: its data is a reference to the payload
    REFERENCE_BIT = 0x80      # the same on the wire, in the byte of the socket type
    REFERENCE_SIZE = 24
    REFERENCE_KIND = 4        # the byte that tells where the payload is
    ON_GPU = 3
    CREDIT_KIND = 5
    CREDIT_NS = 20 * 1000 * 1000
    COALESCE = 64 * 1024      # bytes that are written without waiting for the flusher
    CHUNK = 80 * 1024         # out-buffer: one gathered write and the message that completes it
    SLICE = 512 * 1024        # of one system call: other threads on this processor get their turn

# Results of link_push and link_write.
cdef enum:
    OK = 0
    FULL = 1
    WOULD_BLOCK = 3
    GONE = 4                  # of settle_one: the segment may have left the queue
    UNREADY = 5               # of link_write: the next bytes are still being filled (filling.pyx)
    BROKEN = -1
    NO_MEMORY = -2

cdef struct segment_t:
    segment_t* next
    char* data
    size_t size               # bytes filled
    size_t capacity           # 0: the memory has another owner
    size_t done               # bytes that the kernel has taken
    uint64_t serial           # of its link: its place in memory may be another segment's later
    int64_t messages          # messages that end here
    int64_t payloads          # payload bytes of the messages that end here
    int failed                # the connection ended before this was written
    int starts_inside         # the first byte continues an earlier message
    int borrowed              # the caller needs it back soon: link_settle copies the rest
    int payload               # the payload of the frame whose header ends the previous segment
    uint64_t* ready           # NULL, or how much of it is there: it is written while it is filled
    PyObject* owner           # keeps the memory alive; touched under the GIL only
    PyObject* released        # called once when the segment is finished

cdef struct link_t:
    pthread_mutex_t mutex
    int fd
    int error                 # errno that ended it; -1: end of stream
    int socket_type
    int kernel_full           # the last write met a full kernel buffer
    int wants_output          # the flusher's epoll has it
    int notify_fd             # eventfd of a socket that waits for room; -1: none
    int waiters               # callers that poll for room themselves
    int turn                  # a message was received since the last send: answer at once
    int closed
    int credits
    int checksum
    int plain                 # the peer sent no hello: it knows flags 0 to 2 only
    segment_t* head
    segment_t* tail
    uint64_t appended         # segments, ever
    uint64_t fetched_when_full  # payloads that the peer had READ when a message found no room
    segment_t* finished       # written segments with Python objects, for the next GIL holder
    int next_inside           # the next frame appended continues a message
    int64_t queued
    int64_t queued_bytes      # bytes to be written, headers too
    int64_t queued_payload    # payload bytes of the messages in the queue
    int64_t borrowed
    uint64_t written          # total of bytes that the kernel has taken
    tls_t* tls                # NULL: plain TCP, or a Unix socket
    ring_t* ring              # NULL, or the bytes go by RDMA and `fd` tells the peer's end; its Stream's
    int64_t sealed            # encrypted messages that are not entirely written
    int reading               # a thread reads without the GIL; it closes the descriptor for close()
    int leaving               # that thread has to stop between two reads: its stream is being detached
    uint64_t sent
    uint64_t sent_bytes
    uint64_t received
    uint64_t received_bytes
    uint64_t confirmed
    uint64_t dropped
    uint64_t blocked_ns
    uint64_t waited_ns
    int64_t last_sent
    int64_t last_write
    int64_t last_received
    int64_t high_water
    int64_t high_water_bytes
    uint64_t max_message
    # -- used by the flusher
    flusher_t* flusher
    link_t* next_pending
    int armed
    link_t* next_credit
    int credit_listed
    int credit_armed
    int64_t credit_due
    uint64_t credited
    uint64_t credit_end       # of the last credit, in bytes like `written`
    link_t* next_dead

cdef struct flusher_t:
    pthread_t thread
    int (*start)(flusher_t*) noexcept nogil   # starts the thread; the mutex is held
    int references            # the Flusher and its Streams, counted under the GIL
    int running
    int stopping
    int asleep
    int generation
    int64_t tokens_until      # when the bucket of writes at once is full again
    pthread_mutex_t mutex
    int wake_fd
    int reap_fd
    int epoll_fd
    link_t* pending
    link_t* credit_head
    link_t* credit_tail
    link_t* dead
    segment_t* finished

# A segment's offset, accessed as in atomic.pxd.
cdef extern from *:
    segment_t* load_segment "RELAXED_LOAD" (segment_t** at) nogil
    void store_segment "RELAXED_STORE" (segment_t** at, segment_t* value) nogil

cdef int fork_generation
cdef unsigned long main_thread    # the interpreter's, which runs the handlers of signals

cdef int64_t now_ns() noexcept nogil
cdef link_t* link_new(flusher_t* flusher) noexcept nogil
cdef void link_free(link_t* link) noexcept nogil
cdef int link_is_full(link_t* link, size_t payload) noexcept nogil
cdef int64_t link_messages_left(link_t* link) noexcept nogil
cdef int64_t link_bytes_left(link_t* link) noexcept nogil
cdef void link_count(link_t* link, int64_t messages, size_t payload) noexcept nogil
cdef int link_pushed(link_t* link, int64_t before) noexcept nogil
cdef int64_t link_unfetched(link_t* link) noexcept nogil
cdef void link_notice_fetched(link_t* link) noexcept nogil
cdef int link_room(link_t* link, size_t payload) noexcept nogil
cdef char* link_reserve(link_t* link, size_t size, int inside) noexcept nogil
cdef void link_append(link_t* link, segment_t* segment) noexcept nogil
cdef bint link_gathers(link_t* link) noexcept nogil
cdef int link_write(link_t* link) noexcept nogil
cdef bint is_unready(segment_t* segment) noexcept nogil
cdef void link_notice_room(link_t* link) noexcept nogil
cdef void link_watch_room(link_t* link, pollfd* room) noexcept nogil
cdef size_t slice_of(size_t left, size_t room, size_t slice) noexcept nogil
cdef void link_give_up_begun(link_t* link) noexcept nogil
cdef void link_arm(link_t* link) noexcept nogil
cdef void wake(flusher_t* flusher) noexcept nogil
cdef void link_arm_credit(link_t* link) noexcept nogil


cdef inline void put_header(char* at, int socket_type, int flags, uint64_t sequence,
                            uint32_t topic, uint64_t data, uint32_t checksum) noexcept nogil:
    cdef header_t* header = <header_t*>at
    header.magic = MAGIC
    header.version = VERSION
    header.socket_type = socket_type | (REFERENCE_BIT if flags & BY_REFERENCE else 0)
    header.flags = flags & 0xFF
    header.sequence = sequence
    header.topic_length = topic
    header.data_length = data
    header.checksum = checksum
