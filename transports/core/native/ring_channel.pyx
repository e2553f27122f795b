# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""RingChannel: Python sets a ring up, connects it, and passes it to a Stream. ring.pyx handles the bytes."""

cimport cython
from libc.errno cimport EAGAIN, EINVAL, ENOMEM, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap
from posix.unistd cimport getpid

from transfer.transports.core.native.libibverbs cimport (
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, failed, ibv_mr,
    ibv_qp_init_attr, verbs,
)
from transfer.transports.core.native.ring cimport ring_arm
from transfer.transports.core.native.ring_requests cimport (
    READS, RECEIVES, REPORT_ROOM, REQUESTS, report_t, ring_end, ring_free, ring_new, ring_start, ring_t,
    watch,
)
from transfer.transports.core.native.system cimport EPOLL_CLOEXEC, epoll_create1
from transfer.transports.core.native.verbs cimport VerbsDevice, connect_qp

cdef enum:
    INLINE = 220                    # bytes: what devices of the last ten years take, asked for in this order
    LESS_INLINE = 64


cdef char* mapped(size_t size) except NULL:
    cdef void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if memory == MAP_FAILED:
        raise MemoryError()
    return <char*> memory


@cython.no_gc_clear
cdef class RingChannel:
    """The bytes of one connection by RDMA. Not thread-safe until it is connected; a Stream has it then.

    size: bytes of the ring that is lent to the peer, a power of two. number: of the queue pair.
    vector: of the device, for its completions.
    """

    def __cinit__(self, VerbsDevice device, size_t size, reclaim=None):
        """reclaim: called when memory cannot be registered; whether to try again. Raises OSError,
        MemoryError."""
        self.device = device
        self.reclaim = reclaim
        device.check()
        self.ring = ring_new()
        if self.ring == NULL:
            raise MemoryError()
        self.make(size)  # what it made before an error ends with this object

    cdef int make(self, size_t size) except -1:
        cdef ibv_qp_init_attr wanted
        self.ring.incoming = mapped(size + REPORT_ROOM)
        self.ring.incoming_size = size
        self.ring.report_in = <report_t*> (self.ring.incoming + size)
        self.ring.incoming_region = self.registered(
            self.ring.incoming, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        with nogil:
            self.ring.channel = verbs.ibv_create_comp_channel(self.device.context)
        if self.ring.channel == NULL:
            raise failed(errno or EINVAL, "making a completion channel")
        self.ring.channel_fd = self.ring.channel.fd
        fcntl(self.ring.channel_fd, F_SETFL, fcntl(self.ring.channel_fd, F_GETFL) | O_NONBLOCK)
        self.vector = self.device.next_vector()
        with nogil:
            self.ring.cq = verbs.ibv_create_cq(
                self.device.context, REQUESTS + READS + RECEIVES, NULL, self.ring.channel, self.vector)
        if self.ring.cq == NULL:
            raise failed(errno or EINVAL, "making a completion queue")
        for inline_bytes in (INLINE, LESS_INLINE, 0):
            memset(&wanted, 0, sizeof(wanted))
            wanted.send_cq = wanted.recv_cq = self.ring.cq
            wanted.cap.max_send_wr = REQUESTS + READS
            wanted.cap.max_recv_wr = RECEIVES
            wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1
            wanted.cap.max_inline_data = inline_bytes
            wanted.qp_type = IBV_QPT_RC
            with nogil:
                self.ring.qp = verbs.ibv_create_qp(self.device.domain, &wanted)
            if self.ring.qp != NULL:
                break
        if self.ring.qp == NULL:
            raise failed(errno or EINVAL, "making a queue pair")
        self.ring.inline_bytes = wanted.cap.max_inline_data
        self.number = self.ring.qp.qp_num
        self.ring.watch_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.ring.watch_fd < 0 or watch(self.ring.watch_fd, self.ring.channel_fd) < 0:
            raise failed(errno, "making a descriptor")
        return 0

    cdef ibv_mr* registered(self, char* memory, size_t size, int access) except NULL:
        """A ring with the report behind it."""
        cdef ibv_mr* region
        cdef int error
        with nogil:
            region = verbs.ibv_reg_mr(self.device.domain, memory, size + REPORT_ROOM, access)
            error = errno
        if region == NULL and error in (ENOMEM, EAGAIN) and self.reclaim is not None and self.reclaim():
            with nogil:
                region = verbs.ibv_reg_mr(self.device.domain, memory, size + REPORT_ROOM, access)
                error = errno
        if region == NULL:
            raise failed(error or EINVAL, f"registering {size + REPORT_ROOM} bytes")
        return region

    def __dealloc__(self):
        self.end()

    cdef void end(self) noexcept:
        """In a forked child nothing: it shares the device's descriptor with its parent."""
        cdef ring_t* ring = self.ring
        self.ring = NULL
        if ring != NULL and self.device.pid == getpid():
            with nogil:
                ring_end(ring)
                ring_free(ring)

    cdef int check(self) except -1:
        if self.ring == NULL:
            raise failed(EINVAL, "the channel is closed, or belongs to a stream")
        return 0

    cdef ring_t* give(self, int fd) except NULL:
        """Passes the ring to a stream, which ends and frees it before the device is closed. fd: the TCP
        connection, whose end is the peer's."""
        cdef ring_t* ring = self.ring
        self.check()
        if watch(ring.watch_fd, fd) < 0:
            raise failed(errno, "watching a connection")
        ring.connection_fd = fd
        self.ring = NULL
        with nogil:
            ring_arm(ring)
        return ring

    @property
    def address(self):
        """Of the ring that the peer writes to; its report follows behind it."""
        self.check()
        return <uint64_t> self.ring.incoming

    @property
    def rkey(self):
        self.check()
        return self.ring.incoming_region.rkey

    @property
    def size(self):
        self.check()
        return self.ring.incoming_size

    @property
    def inline_bytes(self):
        """Writes up to this size need no second access of the device to our memory."""
        self.check()
        return self.ring.inline_bytes

    def connect(self, uint64_t remote, uint32_t rkey, size_t size, uint32_t number, bytes gid, int lid,
                uint32_t psn, int mtu, int reads, int timeout, int retries, int port, int gid_index,
                uint32_t our_psn, int pkey_index, int service_level, int traffic_class):
        """remote, rkey, size: of the ring that the peer lends. The rest: see `connect_qp`. Raises OSError,
        MemoryError."""
        self.check()
        if self.ring.outgoing != NULL:
            raise failed(EINVAL, "the channel was connected before")
        self.ring.outgoing = mapped(size + REPORT_ROOM)
        self.ring.outgoing_size = size
        self.ring.report_out = <report_t*> (self.ring.outgoing + size)
        self.ring.outgoing_region = self.registered(self.ring.outgoing, size, 0)
        self.ring.remote, self.ring.rkey, self.ring.remote_report = remote, rkey, remote + size
        self.ring.most_reads = min(reads, <int> READS)
        connect_qp(self.ring.qp, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, number, gid, lid, psn,
                   mtu, reads, timeout, retries, port, gid_index, our_psn, pkey_index,
                   service_level, traffic_class)
        if ring_start(self.ring):
            raise failed(EINVAL, "posting receives")

    def close(self):
        """Idempotent. Nothing once a stream has the ring."""
        self.end()
