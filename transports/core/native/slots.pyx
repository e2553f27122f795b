# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Slots: equal pieces of memory that two processes share. Contract: core/contract.pyi."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.string cimport memchr, memcpy
from posix.unistd cimport getpid

from transfer.transports.core.native.pool cimport HeldBuffer, Mapping
from transfer.transports.core.native.sizes cimport LARGE

cdef extern from *:
    """
    /* What the other process wrote before it changed a state is seen after the state was. */
    static inline void slot_set(char* at, char state) { __atomic_store_n(at, state, __ATOMIC_RELEASE); }
    static inline char slot_state(char* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    """
    void slot_set(char* at, char state) nogil
    char slot_state(char* at) nogil

cdef enum:
    MOST = 64
    FREE = 0
    USED = 1


@cython.no_gc
cdef class Slots:
    """A state byte for each slot at the beginning, the slots from `start` on. Thread-safe."""

    cdef Mapping mapping
    cdef char* states
    cdef char* first
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef char lent[MOST]
    cdef int process

    def __cinit__(self, Mapping mapping, Py_ssize_t start, Py_ssize_t size, Py_ssize_t count):
        # Divided, since the product may overflow.
        if (not 1 <= count <= MOST or not count <= start <= mapping.size
                or not 1 <= size <= (mapping.size - start) // count):
            raise ValueError(f"{count} slots of {size} bytes from {start} on do not fit {mapping.size} bytes")
        self.mapping = mapping
        self.states = <char*>mapping.address
        self.first = self.states + start
        self.start = start
        self.size = size
        self.count = count
        self.process = getpid()

    def take(self):
        """The first free slot, which is used then; -1: there is none."""
        cdef char* found = <char*>memchr(self.states, FREE, self.count)
        # It stays free, since only this side takes slots; the peer's writes there are visible from here on.
        if found == NULL or slot_state(found) != FREE:
            return -1
        slot_set(found, USED)
        return found - self.states

    def fill(self, Py_ssize_t index, data):
        """Copies a contiguous buffer to the beginning of a slot; returns its bytes. Raises BufferError."""
        cdef HeldBuffer held = HeldBuffer(data)
        cdef char* to = self.first + index * self.size
        if not 0 <= index < self.count or held.view.len > self.size:
            raise BufferError(f"{held.view.len} bytes do not fit slot {index}")
        if held.view.len < LARGE:  # a smaller copy takes no longer than releasing the GIL
            memcpy(to, held.view.buf, held.view.len)
        else:
            with nogil:
                memcpy(to, held.view.buf, held.view.len)
        return held.view.len

    def free(self, Py_ssize_t index):
        """Frees a slot. Does nothing in a forked child, which has no slots."""
        if 0 <= index < self.count and self.process == getpid():
            self.lent[index] = 0
            slot_set(self.states + index, FREE)

    def lend(self, Py_ssize_t index, Py_ssize_t nbytes):
        """The first bytes of a slot, which is free when their last view is deleted; None: already lent."""
        cdef SlotRegion region
        if not 0 <= index < self.count or not 0 < nbytes <= self.size:
            raise ValueError(f"{nbytes} bytes of slot {index}")
        if self.lent[index]:
            return None
        region = SlotRegion.__new__(SlotRegion)
        region.slots = self
        region.index = index
        region.nbytes = nbytes
        self.lent[index] = 1
        return region

    @property
    def idle(self):
        """Whether every slot is free."""
        cdef Py_ssize_t index
        for index in range(self.count):
            if slot_state(self.states + index) != FREE:
                return False
        return True


# Not tracked by the collector, which would drop the slots first. Neither class can be in a cycle.
@cython.no_gc
cdef class SlotRegion:
    """Writable bytes of a slot, like Region."""

    cdef Slots slots
    cdef Py_ssize_t index
    cdef readonly Py_ssize_t nbytes
    cdef object __weakref__

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.slots.first + self.index * self.slots.size, self.nbytes, 0, flags)

    def __dealloc__(self):
        if self.slots is not None:
            self.slots.free(self.index)
