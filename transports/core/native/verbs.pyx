# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Devices, regions, queues and queue pairs of libibverbs.

What posts and polls goes through the device's own table of functions, as the inline functions of
infiniband/verbs.h do. An object belongs to the process that made it: in a forked child `close` does nothing,
since the child shares the device's descriptor with its parent. An object keeps those that it needs alive
(`no_gc_clear`: until its own end, also when it is collected), and they have to be closed after it. Nothing
here has a lock: what `transports/rdma/driver.py` says about threads holds. Calls release the GIL. Errors are
OSError with libibverbs' errno.
"""

cimport cython
from libc.errno cimport EINVAL, EIO, ENODEV, ENOSYS, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.unistd cimport getpid

from transfer.transports.core.native.libibverbs cimport (
    IBV_ACCESS_REMOTE_READ, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_SM_CHANGE, IBV_LINK_LAYER_ETHERNET,
    IBV_PORT_ACTIVE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ,
    IBV_WR_SEND, failed, ibv_async_event, ibv_cq, ibv_device_attr, ibv_mr, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr, ibv_wc,
    load, verbs,
)

cdef enum:
    BATCH = 64  # completions of one poll


cdef int closed(int error) noexcept nogil:
    """The result of closing an object: on a device that is gone there is nothing left to close."""
    return 0 if error == EIO else error


cdef class VerbsDevice:
    """An open device with one protection domain."""

    def __cinit__(self, str name):
        """Raises DeviceError, OSError (ENODEV: there is no such device)."""
        cdef int count = 0, at
        cdef void** found
        self.pid = getpid()
        self.name = name
        load()
        found = verbs.ibv_get_device_list(&count)
        if found == NULL:
            raise failed(errno or ENOSYS, "listing the devices")
        try:
            for at in range(count):
                if verbs.ibv_get_device_name(found[at]).decode() == name:
                    with nogil:
                        self.context = verbs.ibv_open_device(found[at])
                    if self.context == NULL:
                        raise failed(errno or ENODEV, "opening the device")
                    break
            else:
                raise failed(ENODEV, "opening the device")
        finally:
            verbs.ibv_free_device_list(found)
        self.domain = verbs.ibv_alloc_pd(self.context)
        if self.domain == NULL:
            raise failed(errno or EINVAL, "making a protection domain")  # __dealloc__ closes the device
        fcntl(self.context.async_fd, F_SETFL, fcntl(self.context.async_fd, F_GETFL) | O_NONBLOCK)

    def __dealloc__(self):
        self.end()

    cdef int end(self) noexcept:
        """What cannot be closed yet stays open."""
        cdef int error
        if self.pid == getpid():
            if self.domain != NULL:
                error = closed(verbs.ibv_dealloc_pd(self.domain))
                if error:
                    return error
            self.domain = NULL
            if self.context != NULL:
                error = closed(verbs.ibv_close_device(self.context))
                if error:
                    return error
        self.domain = NULL
        self.context = NULL
        return 0

    cdef int check(self) except -1:
        if self.context == NULL or self.pid != getpid():
            raise failed(ENODEV, "the device is closed, or belongs to the parent of this process")
        return 0

    @property
    def async_fd(self):
        """Readable when `take_event` has something; -1 when closed."""
        return self.context.async_fd if self.context != NULL else -1

    def limits(self):
        """(queue pairs, entries of a completion queue, requests of a queue pair, of a shared receive queue,
        regions, READs at once as target, as initiator)."""
        cdef ibv_device_attr found
        cdef int error
        self.check()
        memset(&found, 0, sizeof(found))
        with nogil:
            error = verbs.ibv_query_device(self.context, &found)
        if error:
            raise failed(error, "asking for the device's limits")
        return (found.max_qp, found.max_cqe, found.max_qp_wr, found.max_srq_wr, found.max_mr,
                found.max_qp_rd_atom, found.max_qp_init_rd_atom)

    def port(self, uint8_t number):
        """(whether its link is up, bytes of a packet, LID, whether it is Ethernet)."""
        cdef ibv_port_attr found
        cdef int error
        self.check()
        memset(&found, 0, sizeof(found))
        with nogil:
            error = verbs.ibv_query_port(self.context, number, &found)
        if error:
            raise failed(error, f"asking for port {number}")
        return (found.state == IBV_PORT_ACTIVE, 128 << found.active_mtu, found.lid,
                found.link_layer == IBV_LINK_LAYER_ETHERNET)

    def gid(self, uint8_t port, int index):
        """The 16 bytes of a GID."""
        cdef uint8_t found[16]
        cdef int error
        self.check()
        with nogil:
            error = verbs.ibv_query_gid(self.context, port, index, found)
        if error:
            raise failed(errno or EINVAL, f"asking for GID {index} of port {port}")
        return (<char*> found)[:16]

    def take_event(self):
        """(type, port or 0) of the next asynchronous event, by libibverbs' numbers; None: there is none."""
        cdef ibv_async_event event
        cdef int error
        self.check()
        with nogil:
            error = verbs.ibv_get_async_event(self.context, &event)
            if not error:
                verbs.ibv_ack_async_event(&event)
        if error:
            return None
        about_a_port = IBV_EVENT_PORT_ACTIVE <= event.event_type <= IBV_EVENT_SM_CHANGE
        return event.event_type, <int> event.element if about_a_port else 0

    def close(self):
        """Closes protection domain and device. Idempotent. Raises OSError: something made from it is open."""
        cdef int error = self.end()
        if error:
            raise failed(error, "closing the device")


@cython.no_gc_clear
cdef class VerbsRegion:
    """Registered memory, to which it holds no reference. address: in work requests."""

    def __cinit__(self, VerbsDevice device, uint64_t address, size_t length, int access, int dmabuf=-1):
        """dmabuf: a descriptor, in which the memory begins at `address`. Raises OSError."""
        self.device = device
        self.address, self.length = address, length
        device.check()
        if dmabuf >= 0 and verbs.ibv_reg_dmabuf_mr == NULL:
            raise failed(ENOSYS, "registering a dma-buf")
        with nogil:
            if dmabuf < 0:
                self.region = verbs.ibv_reg_mr(device.domain, <void*> address, length, access)
            else:
                self.region = verbs.ibv_reg_dmabuf_mr(device.domain, address, length, address, dmabuf, access)
        if self.region == NULL:
            raise failed(errno or EINVAL, "registering memory")
        self.lkey, self.rkey = self.region.lkey, self.region.rkey

    def __dealloc__(self):
        self.end()

    cdef int end(self) noexcept:
        cdef ibv_mr* region = self.region
        cdef int error = 0
        self.region = NULL  # first: another thread may close it meanwhile
        if region != NULL and self.device.pid == getpid():
            with nogil:
                error = closed(verbs.ibv_dereg_mr(region))
            if error:
                self.region = region
        return error

    def close(self):
        """Idempotent. Pending READs of the peer fail."""
        cdef int error = self.end()
        if error:
            raise failed(error, "deregistering memory")


@cython.no_gc_clear
cdef class VerbsQueue:
    """A completion queue with its completion channel.

    make: called with (wr_id, status, length, number of the queue pair) of each completion.
    """

    def __cinit__(self, VerbsDevice device, int depth, object make):
        """Raises OSError."""
        self.device = device
        self.make = make
        device.check()
        with nogil:
            self.channel = verbs.ibv_create_comp_channel(device.context)
        if self.channel == NULL:
            raise failed(errno or EINVAL, "making a completion channel")
        fcntl(self.channel.fd, F_SETFL, fcntl(self.channel.fd, F_GETFL) | O_NONBLOCK)
        with nogil:
            self.queue = verbs.ibv_create_cq(device.context, depth, NULL, self.channel, 0)
        if self.queue == NULL:
            raise failed(errno or EINVAL, f"making a completion queue of {depth}")

    def __dealloc__(self):
        self.end()

    cdef int end(self) noexcept:
        cdef ibv_cq* queue = self.queue
        cdef ibv_comp_channel* channel = self.channel
        cdef int error = 0
        self.queue = NULL  # first: another thread may close it meanwhile
        self.channel = NULL
        if self.device is None or self.device.pid != getpid():
            return 0
        with nogil:
            if queue != NULL:
                if self.taken:  # destroying waits until all events are acknowledged
                    verbs.ibv_ack_cq_events(queue, self.taken)
                    self.taken = 0
                error = closed(verbs.ibv_destroy_cq(queue))
            if channel != NULL and not error:
                error = closed(verbs.ibv_destroy_comp_channel(channel))
        if error:
            self.queue, self.channel = queue, channel
        return error

    @property
    def fd(self):
        """Readable when the queue was armed and a completion came afterwards; -1 when closed."""
        return self.channel.fd if self.channel != NULL else -1

    def poll(self, int limit):
        """Up to `limit` completions, without waiting. Raises OSError: the queue has failed."""
        cdef ibv_wc found[BATCH]
        cdef int count, at
        if self.queue == NULL:
            return []
        with nogil:
            count = self.queue.context.ops.poll_cq(self.queue, limit if limit < BATCH else BATCH, found)
        if count < 0:
            raise failed(-count, "polling the completion queue")
        return [self.make(found[at].wr_id, found[at].status, found[at].byte_len, found[at].qp_num)
                for at in range(count)]

    def arm(self):
        """The next completion makes `fd` readable."""
        cdef int error
        if self.queue == NULL:
            return
        with nogil:
            error = self.queue.context.ops.req_notify_cq(self.queue, 0)
        if error:
            raise failed(error, "arming the completion queue")

    def take_event(self):
        """Takes one event that made `fd` readable, without waiting. False: there is none."""
        cdef ibv_cq* queue
        cdef void* unused
        cdef int error
        if self.channel == NULL:
            return False
        with nogil:
            error = verbs.ibv_get_cq_event(self.channel, &queue, &unused)
            if not error:
                self.taken += 1
                if self.taken >= BATCH:  # acknowledging takes a mutex: for many at once
                    verbs.ibv_ack_cq_events(self.queue, self.taken)
                    self.taken = 0
        return not error

    def close(self):
        """Idempotent. Queue pairs and shared receive queues that use it have to be closed before."""
        cdef int error = self.end()
        if error:
            raise failed(error, "closing the completion queue")


@cython.no_gc_clear
cdef class VerbsSharedQueue:
    """A shared receive queue."""

    def __cinit__(self, VerbsDevice device, uint32_t depth):
        """Raises OSError."""
        cdef ibv_srq_init_attr wanted
        self.device = device
        device.check()
        memset(&wanted, 0, sizeof(wanted))
        wanted.attr.max_wr = depth
        wanted.attr.max_sge = 1
        with nogil:
            self.queue = verbs.ibv_create_srq(device.domain, &wanted)
        if self.queue == NULL:
            raise failed(errno or EINVAL, f"making a shared receive queue of {depth}")

    def __dealloc__(self):
        self.end()

    cdef int end(self) noexcept:
        cdef ibv_srq* queue = self.queue
        cdef int error = 0
        self.queue = NULL  # first: another thread may close it meanwhile
        if queue != NULL and self.device.pid == getpid():
            with nogil:
                error = closed(verbs.ibv_destroy_srq(queue))
            if error:
                self.queue = queue
        return error

    def post(self, uint64_t wr_id, uint64_t address, uint32_t length, uint32_t lkey):
        """Passes a buffer to the device until its completion."""
        cdef ibv_sge piece
        cdef ibv_recv_wr request
        cdef ibv_recv_wr* bad
        cdef int error
        if self.queue == NULL:
            raise failed(EINVAL, "the shared receive queue is closed")
        piece.addr, piece.length, piece.lkey = address, length, lkey
        request.wr_id, request.next, request.sg_list, request.num_sge = wr_id, NULL, &piece, 1
        with nogil:
            error = self.queue.context.ops.post_srq_recv(self.queue, &request, &bad)
        if error:
            raise failed(error, "posting a receive buffer")

    def close(self):
        """Idempotent."""
        cdef int error = self.end()
        if error:
            raise failed(error, "closing the shared receive queue")


@cython.no_gc_clear
cdef class VerbsPair:
    """A queue pair of a reliable connection (RC). number: by which the peer connects."""

    def __cinit__(self, VerbsDevice device, VerbsQueue queue, VerbsSharedQueue shared, uint32_t depth):
        """depth: requests posted at once. Raises OSError."""
        cdef ibv_qp_init_attr wanted
        self.device, self.queue, self.shared = device, queue, shared
        device.check()
        if queue.queue == NULL or shared.queue == NULL:
            raise failed(EINVAL, "a queue is closed")
        memset(&wanted, 0, sizeof(wanted))
        wanted.send_cq = wanted.recv_cq = queue.queue
        wanted.srq = shared.queue
        wanted.cap.max_send_wr = depth
        wanted.cap.max_send_sge = 1
        wanted.qp_type = IBV_QPT_RC
        with nogil:
            self.pair = verbs.ibv_create_qp(device.domain, &wanted)
        if self.pair == NULL:
            raise failed(errno or EINVAL, "making a queue pair")
        self.number = self.pair.qp_num

    def __dealloc__(self):
        self.end()

    cdef int end(self) noexcept:
        cdef ibv_qp* pair = self.pair
        cdef int error = 0
        self.pair = NULL  # first: another thread may close it meanwhile
        if pair != NULL and self.device.pid == getpid():
            with nogil:
                error = closed(verbs.ibv_destroy_qp(pair))
            if error:
                self.pair = pair
        return error

    cdef int check(self) except -1:
        if self.pair == NULL:
            raise failed(EINVAL, "the queue pair is closed")
        return 0

    def connect(self, uint32_t number, bytes gid, int lid, uint32_t psn, int mtu, int reads, int timeout,
                int retries, int port, int gid_index, uint32_t our_psn):
        """From reset to ready to send. number, gid (16 bytes), lid, psn: of the peer; the rest as in
        `driver.Destination`. mtu: bytes. Raises OSError."""
        cdef ibv_qp_attr wanted
        self.check()
        if len(gid) != 16:
            raise failed(EINVAL, "a GID has 16 bytes")
        memset(&wanted, 0, sizeof(wanted))
        wanted.qp_state = IBV_QPS_INIT
        wanted.port_num = port
        wanted.qp_access_flags = IBV_ACCESS_REMOTE_READ
        self.modify(&wanted, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
        wanted.qp_state = IBV_QPS_RTR
        wanted.path_mtu = mtu.bit_length() - 8  # IBV_MTU_256 is 1
        wanted.dest_qp_num = number
        wanted.rq_psn = psn
        wanted.max_dest_rd_atomic = reads
        wanted.min_rnr_timer = 12
        memcpy(wanted.ah_attr.dgid, <char*> gid, 16)
        wanted.ah_attr.sgid_index = gid_index
        wanted.ah_attr.hop_limit = 64
        wanted.ah_attr.is_global = 1
        wanted.ah_attr.port_num = port
        wanted.ah_attr.dlid = lid
        self.modify(&wanted, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
        wanted.qp_state = IBV_QPS_RTS
        wanted.timeout = timeout
        wanted.retry_cnt = wanted.rnr_retry = retries
        wanted.sq_psn = our_psn
        wanted.max_rd_atomic = reads
        self.modify(&wanted, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

    cdef int modify(self, ibv_qp_attr* wanted, int mask) except -1:
        cdef int error
        with nogil:
            error = verbs.ibv_modify_qp(self.pair, wanted, mask)
        if error:
            raise failed(error, "connecting a queue pair")
        return 0

    def send(self, uint64_t wr_id, uint64_t address, uint32_t length, uint32_t lkey, bint signaled):
        """Sends a buffer into one that the peer has posted."""
        self.post(wr_id, IBV_WR_SEND, address, length, lkey, 0, 0, IBV_SEND_SIGNALED if signaled else 0)

    def read(self, uint64_t wr_id, uint64_t address, uint32_t length, uint32_t lkey, uint64_t remote,
             uint32_t rkey):
        """Reads the peer's memory at `remote` into ours. Always signaled."""
        self.post(wr_id, IBV_WR_RDMA_READ, address, length, lkey, remote, rkey, IBV_SEND_SIGNALED)

    cdef int post(self, uint64_t wr_id, int opcode, uint64_t address, uint32_t length, uint32_t lkey,
                  uint64_t remote, uint32_t rkey, unsigned int flags) except -1:
        cdef ibv_sge piece
        cdef ibv_send_wr request
        cdef ibv_send_wr* bad
        cdef int error
        self.check()
        memset(&request, 0, sizeof(request))
        piece.addr, piece.length, piece.lkey = address, length, lkey
        request.wr_id, request.opcode, request.send_flags = wr_id, opcode, flags
        request.sg_list, request.num_sge = &piece, 1
        request.remote_addr, request.rkey = remote, rkey
        with nogil:
            error = self.pair.context.ops.post_send(self.pair, &request, &bad)
        if error:
            raise failed(error, "posting a request")
        return 0

    def fail(self):
        """Nothing arrives any more, and what is posted completes with an error. Never raises."""
        cdef ibv_qp_attr wanted
        if self.pair != NULL and self.device.pid == getpid():
            memset(&wanted, 0, sizeof(wanted))
            wanted.qp_state = IBV_QPS_ERR
            with nogil:
                verbs.ibv_modify_qp(self.pair, &wanted, IBV_QP_STATE)

    def close(self):
        """From now on the peer cannot access our memory through it. Idempotent."""
        cdef int error = self.end()
        if error:
            raise failed(error, "closing a queue pair")
