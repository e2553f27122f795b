# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Connection: a link as Python sees it: its counters and limits, and why it ended."""

import os

from libc.errno cimport EPROTO
from libc.stdint cimport int64_t, uint64_t

from transfer.transports.errors import Broken, ForkedError, unraised

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.atomic cimport load, load_int, load_signed, store_int, store_signed
from transfer.transports.core.native.tls_channel cimport TlsChannel
from transfer.transports.core.native.flusher cimport Flusher
from transfer.transports.core.native.kernel_writes cimport link_new, link_t, link_unfetched
from transfer.transports.core.native.pool cimport Pool
from transfer.transports.core.native.ring cimport ring_unread, ring_unread_messages
from transfer.transports.core.native.ring_channel cimport RingChannel
from transfer.transports.core.native.system cimport (
    FIONREAD, ioctl, pthread_mutex_lock, pthread_mutex_trylock,
)
from transfer.transports.core.native.tls cimport tls_free, tls_t


cdef class Connection:
    """The link of a Stream."""

    def __cinit__(self, int fd, int socket_type, Flusher flusher, Pool pool, *,
                  long long send_high_water=1000, long long send_high_water_bytes=64 << 20,
                  unsigned long long max_message=16 << 30, bint checksum=False, bint credits=False,
                  channel=None):
        cdef tls_t* tls = NULL
        cdef link_t* link
        if flusher.state.generation != native_link.fork_generation:
            raise ForkedError("this flusher was made before the process forked",
                              hint="make a new Context in the child")
        if type(channel) is TlsChannel:
            tls = (<TlsChannel>channel).give()
        link = link_new(flusher.state)
        if link == NULL:
            tls_free(tls)
            raise MemoryError()
        # Nothing raises from here on: `__dealloc__` frees all of it, once there is a link.
        self.link = link
        link.tls = tls
        flusher.state.references += 1
        self.flusher = flusher
        self.pool = pool
        self.link.fd = fd
        self.link.socket_type = socket_type
        self.link.high_water = send_high_water
        self.link.high_water_bytes = send_high_water_bytes
        self.link.max_message = max_message
        self.link.checksum = checksum
        self.link.credits = credits
        self.link.last_received = self.link.last_sent = 0
        if type(channel) is RingChannel:
            self.take_ring(<RingChannel>channel, fd)

    cdef int take_ring(self, RingChannel channel, int fd) except -1:
        """The bytes go by RDMA from now on."""
        self.link.ring = channel.give(fd)
        self.device = channel.device
        return 0

    cdef int watched_fd(self) noexcept:
        """Readable when there is something to receive."""
        return self.link.fd if self.link.ring == NULL else load_int(&self.link.ring.watch_fd)

    # --- counters and limits ---------------------------------------------------------------------

    @property
    def fd(self):
        return self.link.fd

    def fileno(self):
        return self.watched_fd()

    @property
    def by_rdma(self):
        return self.link.ring != NULL

    @property
    def registers_device_memory(self):
        return self.link.ring != NULL and not self.link.checksum

    @property
    def unread(self):
        cdef int count = 0
        if self.link.ring != NULL:
            return ring_unread(self.link.ring)
        ioctl(self.link.fd, FIONREAD, &count)
        return count

    @property
    def sent(self):
        return load(&self.link.sent)

    @property
    def sent_bytes(self):
        return load(&self.link.sent_bytes)

    @property
    def queued(self):
        cdef int64_t count = load_signed(&self.link.queued) + load_signed(&self.link.sealed)
        if link_unfetched(self.link):
            count += <int64_t> ring_unread_messages(self.link.ring)
        return count

    @property
    def queued_bytes(self):
        cdef int64_t size = load_signed(&self.link.queued_payload)
        if self.link.ring != NULL:
            size += <int64_t> load(&self.link.ring.unfetched_bytes)
        return size

    @property
    def received(self):
        return self.link.received

    @property
    def received_bytes(self):
        return self.link.received_bytes

    @property
    def consumed(self):
        return self.link.received

    @property
    def confirmed(self):
        return self.link.confirmed

    @confirmed.setter
    def confirmed(self, uint64_t value):
        self.link.confirmed = value

    @property
    def dropped(self):
        return self.link.dropped

    @dropped.setter
    def dropped(self, uint64_t value):
        self.link.dropped = value

    @property
    def blocked_ns(self):
        return self.link.blocked_ns

    @property
    def waited_ns(self):
        return self.link.waited_ns

    @property
    def last_received_ns(self):
        return load_signed(&self.link.last_received)

    @property
    def last_sent_ns(self):
        return load_signed(&self.link.last_sent)

    @property
    def send_high_water(self):
        return self.link.high_water

    @send_high_water.setter
    def send_high_water(self, long long value):
        store_signed(&self.link.high_water, value)

    @property
    def send_high_water_bytes(self):
        return self.link.high_water_bytes

    @send_high_water_bytes.setter
    def send_high_water_bytes(self, long long value):
        store_signed(&self.link.high_water_bytes, value)

    @property
    def max_message(self):
        return self.link.max_message

    @max_message.setter
    def max_message(self, unsigned long long value):
        self.link.max_message = value

    @property
    def credits(self):
        return bool(self.link.credits)

    @credits.setter
    def credits(self, bint value):
        self.link.credits = value

    @property
    def checksum(self):
        return bool(self.link.checksum)

    @checksum.setter
    def checksum(self, bint value):
        self.link.checksum = value

    @property
    def plain(self):
        return bool(self.link.plain)

    @plain.setter
    def plain(self, bint value):
        self.link.plain = value

    # --- its end ---------------------------------------------------------------------------------

    @property
    def broken(self):
        """The error that ended this stream, or None."""
        cdef int error = load_int(&self.link.error)
        if self.failure is None and error:
            self.failure = Broken("the connection ended")
            self.failure.__cause__ = OSError(error, os.strerror(error))
        return self.failure

    cdef object raise_broken(self):
        failure = self.broken
        if isinstance(failure, Broken):
            raise unraised(failure)
        raise Broken("the connection ended") from failure

    cdef int fail(self, object error) except -1:
        """Ends this stream; the first reason stays."""
        if self.failure is None:
            self.failure = unraised(error)
        if load_int(&self.link.error) == 0:
            store_int(&self.link.error, EPROTO)
        return 0

    # --- the process and the mutex ---------------------------------------------------------------

    cdef int check_process(self) except -1:
        if self.flusher.state.generation != native_link.fork_generation:
            raise ForkedError(
                "this stream was made before the process forked",
                hint="make a new Context in the child, or start it with spawn or forkserver")
        return 0

    cdef int take_mutex(self) except -1:
        """Takes the link's mutex; waits for another thread without the GIL."""
        self.check_process()
        if pthread_mutex_trylock(&self.link.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&self.link.mutex)
        return 0
