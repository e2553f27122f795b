# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Fetched: payloads that the peer announced, and that this side READs by RDMA.

An announcement stands in the frame instead of its data: `wire.REFERENCE` with remote key, number, address,
length. While one payload arrives, those announced behind it are READ too, as far as the reader holds their
frames. READs complete in order, so their number tells the peer whose memory is free again. The memory comes
from the stream's carrier, which knows registered memory.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from transfer.transports.errors import Broken, ProtocolError, RegistrationError, TransferError

from transfer.transports.core.native.atomic cimport store_int, store_signed
from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.header cimport frame_of, head_size
from transfer.transports.core.native.kernel_writes cimport (
    F_LZ4, HEADER, REFERENCE_BIT, header_t, now_ns,
)
from transfer.transports.core.native.large_frames cimport Large, is_on_gpu, receive
from transfer.transports.core.native.pool cimport Frame
from transfer.transports.core.native.ring cimport (
    ring_fetch, ring_is_destroyed, ring_wait, ring_wake_for_unread,
)
from transfer.transports.core.native.system cimport iovec

# As ring_requests.pyx releases it.
cdef extern from *:
    """
    #define ACQUIRE(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    """
    uint64_t acquire "ACQUIRE" (uint64_t* at) nogil

cdef enum:
    MOST_AHEAD = 16                 # payloads that are READ before the one in front of them is complete
    MOST_AHEAD_BYTES = 64 * 1024 * 1024
    FURTHER = 4 * 1024              # bytes to read ahead for their frames


cdef class PayloadFetch:
    """One payload on its way into registered memory."""

    cdef bint complete(self) noexcept:
        return acquire(<uint64_t*> &self.state.done) == self.state.size


cdef class Fetched(Large):
    """READs payloads."""

    cdef int begin_fetch(self, Frame frame, object sink) except -1:
        """frame: its data is the announcement, whose number is checked here."""
        cdef announcement_t announced
        memcpy(&announced, PyBytes_AS_STRING(frame.data), sizeof(announced))
        if announced.number != <uint32_t> (self.announced + 1):
            raise ProtocolError("rendezvous", f"announcement {announced.number} where "
                                f"{<uint32_t> (self.announced + 1)} is due")
        if not announced.length or announced.address + announced.length < announced.address:
            raise ProtocolError("rendezvous",
                                f"{announced.length} bytes announced at {announced.address:#x}")
        self.gpu_for = getattr(sink, "gpu_for", None)
        if self.fetches:
            self.fetching = <PayloadFetch> self.fetches.pop(0)
        else:
            try:
                self.fetching = self.begin_read(&announced, frame)
            except RegistrationError as error:
                self.carrier.give_up(error)
                raise Broken("no memory can be registered for a payload") from error
        self.announced += 1
        frame.data = b""
        self.large = frame
        self.large_size = announced.length
        self.large_done = 0
        self.expect_size = 0
        return 0

    cdef PayloadFetch begin_read(self, announcement_t* announced, Frame frame):
        cdef PayloadFetch fetch = PayloadFetch.__new__(PayloadFetch)
        cdef object gpu = None
        cdef uint64_t address
        if self.gpu_for is not None and not frame.flags & F_LZ4:
            gpu = self.gpu_for(frame.meta)
        fetch.memory, address, fetch.state.lkey = self.carrier.room(announced.length, gpu, self.pool)
        fetch.number = announced.number
        fetch.state.target = <char*> address
        fetch.state.size = announced.length
        fetch.state.source = announced.address
        fetch.state.rkey = announced.rkey
        self.begun = announced.number
        ring_fetch(self.link.ring, &fetch.state)
        return fetch

    cdef int read_fetched(self, reader_t* reader) except -1:
        """1 when the payload is complete, and in `large.data`; 0: not yet. Raises as `took`."""
        cdef PayloadFetch fetch = self.fetching
        cdef int answer = 1
        cdef int error = 0
        while not fetch.complete():
            if acquire(<uint64_t*> &fetch.state.done) != fetch.noticed:
                fetch.noticed = acquire(<uint64_t*> &fetch.state.done)
                store_signed(&self.link.last_received, now_ns())  # as bytes that arrive: it is alive
            if answer < 0 and error == EAGAIN:
                return 0
            if self.link.closed:
                self.end_reading()
            self.look_further(reader)
            self.link.reading = 1
            with nogil:
                answer = ring_wait(self.link.ring)
                error = errno
            self.done_reading()
            if answer <= 0 and not (answer < 0 and error == EAGAIN) and not fetch.complete():
                self.large = None
                self.took(NULL, answer, error)
        ring_wake_for_unread(self.link.ring)
        if is_on_gpu(fetch.memory):
            self.carrier.arrived(fetch.memory)
        self.large.data = fetch.memory
        self.fetching = None
        store_signed(&self.link.last_received, now_ns())
        store_int(&self.link.turn, 1)
        self.hungry = False
        reader.large = 1
        return 1

    cdef int look_further(self, reader_t* reader) except -1:
        """Begins READs of what is announced behind the present frame."""
        cdef iovec vector
        cdef ssize_t count
        cdef size_t at, head, ahead
        cdef header_t* header
        cdef announcement_t announced
        cdef PayloadFetch fetch
        if reader.start == reader.end:
            reader.start = reader.end = 0
        if reader.end < FURTHER:
            vector.iov_base, vector.iov_len = reader.data + reader.end, FURTHER - reader.end
            self.link.reading = 1  # a close waits with the memory of the ring
            with nogil:
                count = receive(self.link, &vector, 1)
            self.done_reading()
            if count > 0:
                reader.end += count
        ahead = self.large_size
        for fetch in self.fetches:
            ahead += fetch.state.size
        at = reader.start
        try:
            while reader.end - at >= HEADER and len(self.fetches) < MOST_AHEAD:
                header = <header_t*> (reader.data + at)
                head = 0
                if (not head_size(reader.data + at, reader.end - at, &head, self.link.max_message, True)
                        or header.data_length > reader.end - at
                        or head + header.data_length > reader.end - at):
                    break
                if header.socket_type & REFERENCE_BIT:
                    memcpy(&announced, reader.data + at + head, sizeof(announced))
                    if announced.number == <uint32_t> (self.begun + 1):
                        ahead += announced.length
                        if announced.length > self.link.max_message or ahead > MOST_AHEAD_BYTES:
                            break
                        self.fetches.append(self.begin_read(&announced, frame_of(reader.data + at, head)))
                at += head + header.data_length
        except TransferError:
            pass  # it is found again when its turn comes
        return 0

    cdef int drop_unread(self) except -1:
        # The device may write to their memory until its queue pair is destroyed, by the thread that reads.
        if self.link.ring == NULL or ring_is_destroyed(self.link.ring):
            self.fetching = None
            self.fetches = []
        return Large.drop_unread(self)
