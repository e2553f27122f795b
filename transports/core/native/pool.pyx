# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Memory of the compiled core: pool, lease, held buffer, frame. Contract: core/contract.pyi."""

import os

cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdlib cimport free
from libc.string cimport memcpy

from transfer.transports.errors import InternalError, ProtocolError
from transfer.transports.core.wire import Flag
from transfer.transports.core.native.sizes cimport LARGE

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void** pointer, size_t alignment, size_t size)

cdef extern from "sys/mman.h" nogil:
    int madvise(void* address, size_t length, int advice)
    int MADV_HUGEPAGE
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MAP_PRIVATE
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)

cdef extern from *:
    """
    static inline int highest_bit(unsigned long long n) { return 63 - __builtin_clzll(n); }
    """
    int highest_bit(unsigned long long n) nogil

cdef enum:
    SMALLEST = 256
    HUGE_PAGE = 2 * 1024 * 1024
    MORE = 16
    LONG = 1024 * 1024         # bytes of a long copy


cdef inline int size_class(size_t nbytes, size_t* rounded) noexcept nogil:
    """Four classes for each power of two: at most a quarter is wasted."""
    cdef size_t n = nbytes if nbytes > SMALLEST else SMALLEST
    cdef int bit = highest_bit(n)
    cdef size_t step = (<size_t>1) << (bit - 2)
    cdef size_t quarters = (n - ((<size_t>1) << bit) + step - 1) // step
    rounded[0] = ((<size_t>1) << bit) + quarters * step
    return bit * 4 + <int>quarters


cdef class Pool:
    """Receive buffers in size classes; returned ones are kept up to `limit` bytes.

    Thread-safe under the GIL: the flusher never touches it.
    """

    def __cinit__(self, size_t limit=1 << 28):
        self.limit = limit

    def lease(self, size_t nbytes):
        """`nbytes` of writable memory, 64-byte aligned. Raises InternalError when there is none."""
        return self.take(nbytes)

    cdef Lease take(self, size_t nbytes):
        cdef size_t rounded = 0
        cdef int index = size_class(nbytes, &rounded)
        cdef void* pointer = self.free_lists[index]
        if pointer != NULL:
            self.free_lists[index] = (<void**>pointer)[0]
            self.cached -= rounded
        else:
            pointer = allocate(rounded)
            if pointer == NULL:
                raise InternalError(
                    f"no memory for a message of {nbytes} bytes",
                    hint="lower `maxmsgsize`, or free received tensors sooner")
        cdef Lease lease = Lease.__new__(Lease)
        lease.pointer = <char*>pointer
        lease.size = nbytes
        lease.index = index
        lease.pool = self
        self.in_use += rounded
        return lease

    cdef void give_back(self, void* pointer, int index):
        cdef int bit = index >> 2
        cdef size_t rounded = ((<size_t>1) << bit) + (index & 3) * ((<size_t>1) << (bit - 2))
        self.in_use -= rounded
        if self.closed or self.cached + rounded > self.limit:
            free(pointer)
            return
        # The list runs through the free buffers themselves.
        (<void**>pointer)[0] = self.free_lists[index]
        self.free_lists[index] = pointer
        self.cached += rounded

    def close(self):
        """Frees cached buffers; leases in use free themselves. Twice is fine."""
        cdef int index
        cdef void* pointer
        self.closed = True
        for index in range(256):
            while self.free_lists[index] != NULL:
                pointer = self.free_lists[index]
                self.free_lists[index] = (<void**>pointer)[0]
                free(pointer)
        self.cached = 0

    def __dealloc__(self):
        Pool.close(self)


cdef void* allocate(size_t nbytes) noexcept nogil:
    """For `free`. NULL: there is none."""
    cdef void* pointer = NULL
    # Huge pages make paging in fresh memory four times cheaper, but only where they are aligned; and freeing
    # gigabytes of small pages blocks allocations of the whole process for a second.
    if posix_memalign(&pointer, HUGE_PAGE if nbytes >= 2 * HUGE_PAGE else 64, nbytes) != 0:
        return NULL
    # The first part is in small pages: announced data that does not come costs little.
    if nbytes >= 2 * HUGE_PAGE:
        madvise(<char*>pointer + HUGE_PAGE, nbytes - HUGE_PAGE, MADV_HUGEPAGE)
    return pointer


cdef class Lease:
    """Writable bytes of a pool; they return to it when the last view of the lease is deleted."""

    @property
    def nbytes(self):
        return self.size

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.pointer, self.size, 0, flags)

    def __dealloc__(self):
        if self.pool is not None and self.pointer != NULL:
            self.pool.give_back(self.pointer, self.index)


# The collector must not track this and HeldBuffer: it would clear a memoryview whose memory they export
# before they end, and CPython crashes then.
@cython.no_gc
cdef class Region:
    """Bytes that belong to another object, which is called back when their last view is deleted."""

    def __cinit__(self, memory, released=None, *, bint readonly=False):
        PyObject_GetBuffer(memory, &self.view, PyBUF_ANY_CONTIGUOUS | (0 if readonly else PyBUF_WRITABLE))
        self.readonly = readonly
        self.held = True
        self.released = released

    @property
    def nbytes(self):
        return self.view.len

    def __len__(self):
        return self.view.len

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.view.buf, self.view.len, self.readonly, flags)

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)
            if self.released is not None:
                call_released(self.released)


cdef class BlockReturn:
    """Gives a block of a SlabPool back (slab_pool.py), when what has lain in it is deleted: in any statement
    of any thread, and no signal handler can come between. used: what still works with it."""

    cdef dict returned
    cdef object pool
    cdef object block

    def __init__(self, pool, dict returned, block):
        self.pool = pool
        self.returned = returned
        self.block = block

    def __call__(self, used=None):
        self.returned[self.block] = used
        if self.pool.closed:  # no block is given out any more
            self.returned.clear()


cdef void call_released(released) noexcept:
    # An exception here reaches no caller: Cython prints it.
    released()


cdef class Mapping:
    """Shared memory, unmapped when its last view is deleted: by dealloc, since a finalizer or a weak
    reference would be called too early where views are in a cycle. Keeps no descriptor."""

    def __cinit__(self, int fd, Py_ssize_t size, *, long offset=0, bint private=False,
                  bint readonly=False):
        self.size = size
        self.readonly = readonly
        cdef int flags = MAP_PRIVATE if private else MAP_SHARED
        cdef int protection = PROT_READ if readonly else PROT_READ | PROT_WRITE
        self.address = mmap(NULL, size, protection, flags, fd, offset)
        if <Py_ssize_t>self.address == -1:
            self.address = NULL
            raise OSError(errno, os.strerror(errno))

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.size, self.readonly, flags)

    def __dealloc__(self):
        if self.address != NULL:
            munmap(self.address, self.size)


def address_of(memory):
    """The address of the first byte of a contiguous buffer."""
    return <size_t>HeldBuffer(memory).view.buf


def copy_into(target, source):
    """Copies the bytes of one buffer into another of the same size, without the GIL.

    Raises BufferError if the sizes differ or the target is read-only.
    """
    cdef HeldBuffer held = HeldBuffer(source)
    cdef Py_buffer view
    PyObject_GetBuffer(target, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
    try:
        if view.len != held.view.len:
            raise BufferError(f"{held.view.len} bytes do not fit {view.len}")
        if view.len < LARGE:  # a smaller copy takes no longer than releasing the GIL
            memcpy(view.buf, held.view.buf, view.len)
        else:
            with nogil:
                memcpy(view.buf, held.view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


@cython.no_gc
cdef class HeldBuffer:
    """A user's object, exported until this is deleted: a bytearray in a queue cannot be resized."""

    def __cinit__(self, obj):
        try:
            PyObject_GetBuffer(obj, &self.view, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT)
        except ValueError as error:
            # numpy's error for memory that is not flat; memoryview raises BufferError.
            raise BufferError(str(error)) from error
        self.held = True

    @property
    def nbytes(self):
        return self.view.len

    def release(self):
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer* view, int flags):
        # Allows a queued payload to be sent again without a copy after its peer has gone.
        PyBuffer_FillInfo(view, self, self.view.buf, self.view.len, 1, flags)

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Frame:
    """One frame as received; also pyzmq's Frame."""

    def __init__(self, data=b"", *, int flags=0, unsigned long long sequence=0, int socket_type=0,
                 topic=None, meta=None):
        self.data = data
        self.flags = flags
        self.sequence = sequence
        self.socket_type = socket_type
        self.topic = topic
        self.meta = meta

    def __copy__(self):
        """Another frame of the same memory."""
        return Frame(self.data, flags=self.flags, sequence=self.sequence, socket_type=self.socket_type,
                     topic=self.topic, meta=self.meta)

    @property
    def more(self):
        return bool(self.flags & MORE)

    @property
    def bytes(self):
        """The payload as bytes: the object itself if it is bytes, else a copy."""
        if type(self.data) is bytes:
            return self.data
        cdef HeldBuffer held = HeldBuffer(self.data)
        cdef object copy = PyBytes_FromStringAndSize(NULL, held.view.len)
        cdef char* to = PyBytes_AS_STRING(copy)
        if held.view.len < LARGE:  # a smaller copy takes no longer than releasing the GIL
            memcpy(to, held.view.buf, held.view.len)
        else:
            with nogil:
                memcpy(to, held.view.buf, held.view.len)
        return copy

    @property
    def buffer(self):
        return memoryview(self.data)

    def __bytes__(self):
        return self.bytes

    def __len__(self):
        return len(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        # view.obj becomes the payload, so a view may outlive its frame.
        PyObject_GetBuffer(self.data, view, flags)

    def __repr__(self):
        return f"<Frame {len(self.data)} bytes, flags {Flag(self.flags)!r}, sequence {self.sequence}>"


cdef object no_memory(size_t size):
    return ProtocolError("no_memory", f"a frame of {size} bytes",
                         hint="lower `maxmsgsize`, or free received tensors sooner")


cdef Lease room_for(Pool pool, size_t size):
    """Memory for a payload. Raises ProtocolError: without any, its connection ends."""
    try:
        return pool.take(size)
    except InternalError:
        raise no_memory(size) from None


cdef int copy_bytes(char* target, const char* source, size_t size) except -1:
    """Copies bytes. Both must stay valid without the GIL, which long copies release."""
    if size < LONG:
        memcpy(target, source, size)
    else:
        with nogil:
            memcpy(target, source, size)
    return 0


cdef int fill(object target, object source) except -1:
    """Copies a payload into a sink's memory."""
    cdef HeldBuffer place = HeldBuffer(target)
    cdef HeldBuffer held = HeldBuffer(source)
    if place.view.readonly or place.view.len != held.view.len:
        raise InternalError(f"a sink gave {place.view.len} bytes for {held.view.len}, or read-only ones")
    copy_bytes(<char*>place.view.buf, <const char*>held.view.buf, held.view.len)
    return 0
