# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Stream: one connection as Python sees it, from opening to closing. Contract: core/contract.pyi.

The halves are in outgoing.pyx and incoming.pyx. It keeps its device and the memory of READs until its own
end, also when it is collected (`no_gc_clear`).
"""

cimport cython
from libc.stdlib cimport free
from libc.string cimport memset
from posix.unistd cimport close as close_fd
from posix.unistd cimport usleep

from transfer.transports.errors import Broken, InternalError, ProtocolError

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.atomic cimport load_int, store_int, store_signed
from transfer.transports.core.native.tls_channel cimport TlsChannel
from transfer.transports.core.native.flusher cimport let_go, reader_t, release_segments
from transfer.transports.core.native.incoming cimport STEP_US, STEPS, Incoming, group, prepare_reader
from transfer.transports.core.native.kernel_writes cimport F_CONTROL, flusher_t, segment_t
from transfer.transports.core.native.pool cimport Frame
from transfer.transports.core.native.ring_channel cimport RingChannel
from transfer.transports.core.native.ring_requests cimport ring_fail
from transfer.transports.core.native.system cimport SHUT_RDWR, pthread_mutex_unlock, shutdown
from transfer.transports.core.native.thread cimport link_dispose


@cython.no_gc_clear
cdef class Stream(Incoming):
    """Frames over a connected, non-blocking stream socket that belongs to it. Any thread may call."""

    def open(self, int fd, channel=None):
        """Sets the descriptor of a stream that was made without one; writes the queue."""
        # Not under the GIL: the holder of the mutex may wait for that. Under the mutex no thread closes the
        # stream.
        self.take_mutex()
        try:
            if self.link.fd >= 0 or self.link.closed:
                raise InternalError("this stream was opened before")
            if type(channel) is TlsChannel:
                self.link.tls = (<TlsChannel>channel).give()
            elif channel is not None:
                self.take_ring(<RingChannel?>channel, fd)
            self.link.fd = fd  # a thread that sees it sees the TLS too
        finally:
            pthread_mutex_unlock(&self.link.mutex)
        if self.opened is not None:
            self.opened(self)
        self.write_out(True)

    def receive(self):
        """One message, or one control frame, without waiting; None: there is none."""
        cdef reader_t own
        cdef bint alone = not self.flusher.reader_taken
        cdef int steps = STEPS
        self.check_process()
        if self.link.fd < 0 and not self.link.closed:
            return None
        while self.entered or self.link.reading:  # another thread reads, and half a message is not shared
            if not steps:
                return None
            steps -= 1
            with nogil:
                usleep(STEP_US)
            alone = not self.flusher.reader_taken
        self.entered = True
        try:
            if alone:
                self.flusher.reader_taken = True
                return self.receive_by(&self.flusher.reader)
            memset(&own, 0, sizeof(own))
            return self.receive_by(&own)
        finally:
            self.entered = False
            if alone:
                self.flusher.reader_taken = False
            else:
                free(own.data)

    cdef object receive_by(self, reader_t* reader):
        cdef object frame
        cdef object message
        prepare_reader(reader)
        reader.start = reader.end = 0
        try:
            while True:
                reader.drained = 0
                reader.reads = -1
                frame = self.next_frame(reader, False, None)
                if frame is None:
                    return None
                if (<Frame>frame).flags & F_CONTROL:
                    return [frame]
                message = group(self, <Frame>frame)
                if message is not None:
                    self.count(message)
                    return message
        except (Broken, ProtocolError) as error:
            self.fail(error)
            raise
        finally:
            # All streams share the reader: the rest of this stream moves out.
            self.park(reader)

    def close(self):
        """Ends at once. Returns how many queued messages are lost."""
        cdef segment_t* left
        cdef Py_ssize_t lost
        cdef int fd
        if self.link == NULL or self.link.closed:
            return 0
        if self.flusher.state.generation != native_link.fork_generation:
            store_int(&self.link.closed, 1)
            close_fd(self.link.fd)
            return 0
        if self.link.ring != NULL and self.carrier is not None:
            self.carrier.leave(for_good=True)  # before its descriptor is closed
        self.take_mutex()
        store_int(&self.link.closed, 1)
        fd = self.link.fd
        if self.link.ring != NULL:
            ring_fail(self.link.ring)  # before memory is freed that the peer reads
        if self.link.reading:
            # A thread is in recv: its descriptor must not be reused during that.
            shutdown(fd, SHUT_RDWR)
            fd = -1
        else:
            self.link.fd = -1
        lost = self.link.queued + self.link.sealed
        left = self.link.head
        self.link.head = self.link.tail = NULL
        store_signed(&self.link.queued, 0)
        store_signed(&self.link.sealed, 0)
        store_signed(&self.link.queued_bytes, 0)
        store_signed(&self.link.queued_payload, 0)
        pthread_mutex_unlock(&self.link.mutex)
        self.close_descriptor(fd)
        self.let_go_copied()
        release_segments(left, Broken("the stream was closed before this message was sent"))
        if self.failure is None and not load_int(&self.link.error):
            self.failure = Broken("this end closed the stream")
        if self.carrier is not None:
            self.carrier.close()
        self.drop_unread()
        return lost

    def __del__(self):
        """It is collected without a close; what it refers to is whole still."""
        self.close()

    def __dealloc__(self):
        cdef flusher_t* state
        if self.link == NULL:
            return
        release_segments(self.link.finished, None)
        self.link.finished = NULL
        free(self.saved)
        state = self.link.flusher
        with nogil:
            link_dispose(self.link)
        self.link = NULL
        let_go(state)
