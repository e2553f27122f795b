# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Large: the large frame that a Stream receives.

Its payload is read straight into its final memory: a sink's, a lease or bytes. The end of every read, also of
those of incoming.pyx, is handled here too.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EPROTO, errno
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from posix.unistd cimport close as close_fd

from transfer.transports.errors import Broken, InternalError, ProtocolError

from transfer.transports.core.native.atomic cimport load_int, store_int, store_signed
from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.header cimport frame_of
from transfer.transports.core.native.kernel_writes cimport (
    F_CONTROL, F_LZ4, F_MORE, F_TENSOR, SLICE, header_t, link_t, now_ns, slice_of,
)
from transfer.transports.core.native.pool cimport (
    Frame, HeldBuffer, Lease, copy_bytes, fill, no_memory, room_for,
)
from transfer.transports.core.native.ring cimport ring_read
from transfer.transports.core.native.ring_requests cimport ring_end
from transfer.transports.core.native.system cimport (
    EPOLL_CTL_DEL, MADV_HUGEPAGE, MSG_DONTWAIT, epoll_ctl, iovec, madvise, pthread_mutex_unlock, readv,
    recv, sched_yield,
)
from transfer.transports.core.native.tls cimport SPILL, tls_read

cdef enum:
    HUGE = 4 * 1024 * 1024
    PIECE = 4 * 1024 * 1024         # what has come is reported to the sink after so many bytes


cdef class Large(Outgoing):
    """Chooses the memory of a large payload, and reads it there; ends the reads of a closed stream."""

    # --- the large frame -------------------------------------------------------------------------

    cdef object ask(self, object sink, Frame frame, uint64_t size):
        """The sink's memory for the payload, or None. A message that the sink refuses is read to its end: the
        socket calls it again when the message is complete, and lets the error out."""
        if self.refused:
            return None
        try:
            return sink(frame.meta, frame.topic, size)
        except ProtocolError:
            raise
        except Exception:
            self.refused = True
            return None

    cdef object place(self, size_t size, bint lease, char** data):
        """Memory for a large payload, and its address."""
        cdef object target
        if self.spare is not None and self.expect_size == size and lease == (type(self.spare) is Lease):
            target = self.spare
            self.spare = None
            data[0] = self.spare_data
            return target
        self.spare = None
        if lease:
            target = room_for(self.pool, size)
            data[0] = (<Lease>target).pointer
            return target
        try:
            target = PyBytes_FromStringAndSize(NULL, size)
        except (MemoryError, OverflowError):
            raise no_memory(size) from None
        data[0] = PyBytes_AS_STRING(target)
        if size >= HUGE:  # not the first part: see pool.pyx
            madvise(<void*>((<size_t>data[0] + 4095 + HUGE // 2) & ~<size_t>4095), size - 4096 - HUGE // 2,
                    MADV_HUGEPAGE)
        return target

    cdef int begin_large(self, reader_t* reader, size_t head, bint as_bytes, object sink) except -1:
        """Prepares the payload's memory and moves the bytes there that were read ahead."""
        cdef const char* at = reader.data + reader.start
        cdef header_t* header = <header_t*>at
        cdef size_t size = header.data_length
        cdef size_t here = reader.end - reader.start - head
        cdef Frame frame = frame_of(at, head)
        cdef object target = None
        cdef HeldBuffer held
        cdef bint lease = not as_bytes or header.flags & F_TENSOR
        if sink is not None and not header.flags & F_LZ4:
            target = self.ask(sink, frame, size)
            self.large_sink = sink
        self.large_landed = None
        self.large_report = size
        if target is not None:
            self.large_landed = getattr(sink, "landed", None)
            if self.large_landed is not None:
                self.large_report = min(size, here + PIECE)
            held = HeldBuffer(target)
            if held.view.readonly or <size_t>held.view.len != size:
                raise InternalError(f"a sink gave {held.view.len} bytes for {size}, or read-only ones")
            self.large_hold = held
            self.large_data = <char*>held.view.buf
        else:
            target = self.place(size, lease, &self.large_data)
            self.expect_lease = lease
        self.expect_head = head
        self.expect_size = size
        frame.data = target
        memcpy(self.large_data, at + head, here)
        self.large = frame
        self.large_size = size
        self.large_done = here
        self.large_checksum = header.checksum
        reader.start = reader.end = 0
        return 0

    cdef object pour(self, Frame frame, object sink):
        """Copies a payload that was read before this sink was known to the sink's memory."""
        if frame.flags & (F_CONTROL | F_LZ4):
            return None
        if is_on_gpu(frame.data):
            sink = getattr(sink, "arrives_on_gpu", sink)
        target = self.ask(sink, frame, len(frame.data))
        if target is not None:
            fill(target, frame.data)
            frame.data = target

    cdef int leave_sink(self) except -1:
        """A sink's memory returns to the caller when its call ends: the rest is read into a lease."""
        cdef Lease lease
        cdef Frame frame = self.large
        cdef HeldBuffer held = self.large_hold
        self.large_sink = self.large_landed = None
        self.large_report = self.large_size
        if frame is None or held is None:
            return 0
        self.large = None
        self.large_hold = None
        lease = room_for(self.pool, self.large_size)   # if it raises, the stream is lost
        copy_bytes(lease.pointer, self.large_data, self.large_done)
        if self.link.closed:  # by another thread during the copy: `drop_unread` did not see this frame
            return 0
        frame.data = lease
        self.large_data = lease.pointer
        self.large = frame
        return 0

    cdef int read_large(self, reader_t* reader) except -1:
        """1 when the payload is complete, 0 when the kernel has no more of it now. If a frame must follow,
        its header is read too. The frame is held here: another thread may close the stream in the
        meantime."""
        cdef object _frame = self.large
        cdef object _hold = self.large_hold
        cdef iovec vectors[2]
        cdef ssize_t count = -1
        cdef size_t left
        cdef size_t following = 0
        cdef int error = EAGAIN
        if self.large_done < self.large_size:
            if reader.start == reader.end:
                reader.start = reader.end = 0
                if self.link.tls != NULL:
                    following = SPILL         # the last record may hold bytes behind the payload
                elif self.large.flags & F_MORE:
                    following = self.expect_head
            vectors[1].iov_base = reader.data
            vectors[1].iov_len = following
            while True:
                if self.link.closed:
                    self.end_reading()
                self.link.reading = 1
                with nogil:
                    while (self.large_done < self.large_report and not load_int(&self.link.leaving)
                           and not load_int(&self.link.closed)):
                        left = self.large_size - self.large_done
                        vectors[0].iov_base = self.large_data + self.large_done
                        vectors[0].iov_len = slice_of(left, SLICE, SLICE)
                        count = receive(self.link, vectors, 2 if vectors[0].iov_len == left else 1)
                        if count <= 0:
                            error = errno
                            if count < 0 and error == EINTR:
                                continue
                            break
                        if <size_t>count > left:
                            reader.end = count - left
                            count = left
                        self.large_done += count
                        store_signed(&self.link.last_received, now_ns())   # for checks of signs of life
                        if count >= SLICE // 2 and self.large_size >= HUGE:
                            sched_yield()
                self.done_reading()
                if not self.report():
                    break
            if self.large_done < self.large_size:
                if count > 0 or (count < 0 and error == EAGAIN):
                    return 0
                self.large = None
                self.large_hold = self.large_sink = self.large_landed = None
                self.took(NULL, count, error)
        store_int(&self.link.turn, 1)
        self.hungry = False
        reader.large = 1
        return 1

    cdef bint report(self) except -1:
        """Tells the sink how much has come, if it is time: whether more is to be read."""
        if self.large_landed is None or self.large_done < self.large_report:
            return False
        self.large_report = min(self.large_size, self.large_done + PIECE)
        try:
            self.large_landed(self.large_done)
        except Exception:  # the receiving call does the same for the rest, and raises
            self.large_landed = None
            self.large_report = self.large_size
        return self.large_done < self.large_size

    # --- every read ------------------------------------------------------------------------------

    cdef int took(self, reader_t* reader, ssize_t count, int error) except -1:
        """The result of a read: 1 bytes were read, 0 there are none; raises at the end."""
        if count > 0:
            store_signed(&self.link.last_received, now_ns())
            store_int(&self.link.turn, 1)
            self.hungry = False
            return 1
        if count < 0 and (error == EAGAIN or error == EINTR):
            if self.link.ring != NULL:
                self.notice_fetched()
            return 0
        if self.link.ring != NULL and count < 0:
            raise self.failed_ring(error)
        if count == 0 and (reader == NULL or reader.end != reader.start or self.parts is not None):
            raise ProtocolError("truncated", "the connection ended inside a message")
        if self.link.tls != NULL and load_int(&self.link.tls.failed):
            raise ProtocolError("tls", "invalid TLS: the bytes were changed on the way")
        failure = Broken("the peer closed the connection" if count == 0 else "the connection broke")
        if count < 0:
            failure.__cause__ = OSError(error, os.strerror(error))
        raise failure

    cdef object failed_ring(self, int error):
        """The error of a connection by RDMA that broke."""
        if error == EPROTO:
            return ProtocolError("rendezvous", "the peer wrote more than there is room for, or reports that "
                                 "cannot be true")
        failure = Broken("the connection broke")
        failure.__cause__ = OSError(error, os.strerror(error))
        if self.link.ring.status and self.carrier is not None:
            answered = self.link.ring.completed or self.link.ring.taken or self.link.ring.last_valid.posted
            failure = self.carrier.failure(self.link.ring.status, bool(answered))
        return failure

    cdef int done_reading(self) except -1:
        self.link.reading = 0
        if self.link.closed:
            self.end_reading()
        return 0

    cdef int end_reading(self) except -1:
        """Another thread closed the stream, before or during a read."""
        cdef int fd
        self.take_mutex()
        fd = self.link.fd
        self.link.fd = -1
        pthread_mutex_unlock(&self.link.mutex)
        self.close_descriptor(fd)
        self.drop_unread()
        raise (self.failure or Broken("this end closed the stream")).with_traceback(None)

    cdef int close_descriptor(self, int fd) noexcept:
        if fd >= 0 and self.link.ring != NULL:
            if self.link.ring.room_watch_fd >= 0:
                epoll_ctl(self.link.flusher.epoll_fd, EPOLL_CTL_DEL, self.link.ring.room_watch_fd, NULL)
            with nogil:
                ring_end(self.link.ring)
        if fd >= 0:
            # Another process may share the descriptor, so closing alone would not end the watch.
            epoll_ctl(self.link.flusher.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
            close_fd(fd)
        return 0

    cdef int drop_unread(self) except -1:
        """Frees the memory of undelivered messages. A read in progress holds the memory that it writes to."""
        self.large = None
        self.large_hold = self.large_sink = self.large_landed = None
        self.spare = None
        self.parts = None
        self.refused = False
        return 0


cdef bint is_on_gpu(data):
    """Whether it is a GpuPayload, whose module is loaded where there are some only."""
    return type(data) is not bytes and hasattr(data, "on_host")


cdef ssize_t receive(link_t* link, iovec* vectors, int count) noexcept nogil:
    """Reads plain bytes of the connection, as readv."""
    if link.tls != NULL:
        return tls_read(link.tls, vectors, count)
    if link.ring != NULL:
        return ring_read(link.ring, vectors, count)
    return readv(link.fd, vectors, count) if count > 1 else recv(
        link.fd, vectors[0].iov_base, vectors[0].iov_len, MSG_DONTWAIT)
