# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Devices and regions of libibverbs. The queues of a connection are in ring.pyx.

An object belongs to the process that made it: in a forked child `close` does nothing, since the child shares
the device's descriptor with its parent. An object keeps those that it needs alive (`no_gc_clear`: until its
own end, also when it is collected), and they have to be closed after it. Calls release the GIL. Errors are
OSError with libibverbs' errno.
"""

cimport cython
from libc.errno cimport EINVAL, EIO, ENODEV, ENOSYS, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.unistd cimport getpid

from transfer.transports.core.native.libibverbs cimport (
    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_SM_CHANGE, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE,
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_RTS, failed, ibv_async_event, ibv_device_attr, ibv_mr, ibv_port_attr, ibv_qp, ibv_qp_attr, load,
    verbs,
)


cdef enum:
    # Tries where the peer has no receive posted, which this transport never lets happen. 7 is without end.
    RNR_RETRIES = 6


cdef int closed(int error) noexcept nogil:
    """The result of closing an object: on a device that is gone there is nothing left to close."""
    return 0 if error == EIO else error


cdef int connect_qp(ibv_qp* qp, unsigned int access, uint32_t number, bytes gid, int lid, uint32_t psn,
                    int mtu, int reads, int timeout, int retries, int port, int gid_index,
                    uint32_t our_psn, int pkey_index, int service_level, int traffic_class) except -1:
    """From reset to ready to send. access: of the peer. number, gid (16 bytes), lid, psn: of its queue pair.
    mtu: bytes, the smaller one of both ends. timeout: 4.096 µs × 2^timeout, then a packet is sent again, up
    to `retries` times, 7 at most. port, gid_index, our_psn, pkey_index: of this side. Raises OSError."""
    cdef ibv_qp_attr wanted
    if len(gid) != 16:
        raise failed(EINVAL, "a GID has 16 bytes")
    memset(&wanted, 0, sizeof(wanted))
    wanted.qp_state = IBV_QPS_INIT
    wanted.port_num = port
    wanted.pkey_index = pkey_index
    wanted.qp_access_flags = access
    modify(qp, &wanted, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    wanted.qp_state = IBV_QPS_RTR
    wanted.path_mtu = mtu.bit_length() - 8  # IBV_MTU_256 is 1
    wanted.dest_qp_num = number
    wanted.rq_psn = psn
    wanted.max_dest_rd_atomic = reads
    wanted.min_rnr_timer = 12
    memcpy(wanted.ah_attr.dgid, <char*> gid, 16)
    wanted.ah_attr.sgid_index = gid_index
    wanted.ah_attr.hop_limit = 64
    wanted.ah_attr.traffic_class = traffic_class
    wanted.ah_attr.sl = service_level
    wanted.ah_attr.is_global = 1
    wanted.ah_attr.port_num = port
    wanted.ah_attr.dlid = lid
    modify(qp, &wanted, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
           | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
    wanted.qp_state = IBV_QPS_RTS
    wanted.timeout = timeout
    wanted.retry_cnt = retries
    wanted.rnr_retry = RNR_RETRIES
    wanted.sq_psn = our_psn
    wanted.max_rd_atomic = reads
    modify(qp, &wanted, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
           | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
    return 0


cdef int modify(ibv_qp* qp, ibv_qp_attr* wanted, int mask) except -1:
    cdef int error
    with nogil:
        error = verbs.ibv_modify_qp(qp, wanted, mask)
    if error:
        raise failed(error, "connecting a queue pair")
    return 0


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

    cdef int next_vector(self) noexcept:
        """For the next completion queue: their interrupts are for the device's vectors in turn."""
        self.queues += 1
        return <int> (self.queues % <unsigned int> max(self.context.num_comp_vectors, 1))

    @property
    def async_fd(self):
        """Readable when `take_event` has something; -1 when closed."""
        return self.context.async_fd if self.context != NULL else -1

    def limits(self):
        """(queue pairs, entries of a completion queue, requests of a queue pair, regions, READs at once as
        target, as initiator)."""
        cdef ibv_device_attr found
        cdef int error
        self.check()
        memset(&found, 0, sizeof(found))
        with nogil:
            error = verbs.ibv_query_device(self.context, &found)
        if error:
            raise failed(error, "asking for the device's limits")
        return (found.max_qp, found.max_cqe, found.max_qp_wr, found.max_mr,
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
