# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Memory of a GPU in other processes: an allocation by its handle, or pieces, as of PyTorch's expandable
segments.

The owner of pieces exports each as a descriptor. Another process imports them, and maps them behind each
other. A piece's physical memory stays while one process has mapped it. What is mapped is an object, which
unmaps it at its end: a signal handler that raises leaves nothing. Errors: DeviceError("cuda").
"""

cimport cython
from libc.stdint cimport uint64_t
from posix.unistd cimport close

from transfer.transports.errors import DeviceError

from transfer.transports.core.native.cuda cimport GpuContext, leave
from transfer.transports.core.native.libcuda cimport (
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    access_t, check, cuda, is_ours,
)


def piece_at(GpuContext owner, uint64_t address):
    """(first address, bytes) of the piece, or of the allocation, that has this address."""
    cdef uint64_t begin = 0
    cdef size_t size = 0
    owner.enter()
    code = cuda.cuMemGetAddressRange_v2(&begin, &size, address)
    leave()
    check(code, f"the piece of memory at {address:#x}")
    return begin, size


cdef int export(GpuContext owner, uint64_t address) except -1:
    """A descriptor of the piece that is mapped there. The caller closes it."""
    cdef uint64_t handle = 0
    cdef int code, fd = -1
    owner.enter()
    with nogil:
        code = cuda.cuMemRetainAllocationHandle(&handle, <void*> address)
        if code == 0:
            code = cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
            cuda.cuMemRelease(handle)
    leave()
    check(code, f"a descriptor of the memory at {address:#x}")
    return fd


@cython.no_gc
cdef class ExportedPieces:
    """Descriptors of the pieces at these addresses. They are closed with this object."""

    cdef readonly list descriptors

    def __init__(self, GpuContext owner, list addresses):
        self.descriptors = []
        for address in addresses:
            self.descriptors.append(export(owner, address))

    def __dealloc__(self):
        for descriptor in self.descriptors or ():
            close(descriptor)


# These need their context at their end: the collector must not clear it before.
@cython.no_gc
cdef class ImportedPiece:
    """Another process's piece. descriptor: may be closed afterwards."""

    cdef GpuContext owner
    cdef uint64_t handle
    cdef bint is_imported
    cdef readonly size_t size

    def __init__(self, GpuContext owner, int descriptor, size_t size):
        cdef int code
        self.owner, self.size = owner, size
        owner.enter()
        with nogil:
            code = cuda.cuMemImportFromShareableHandle(&self.handle, <void*><size_t> descriptor,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        leave()
        check(code, f"importing {size} bytes of another process")
        self.is_imported = True

    def __dealloc__(self):
        if self.is_imported and is_ours():
            cuda.cuMemRelease(self.handle)


@cython.no_gc
cdef class MappedAllocation:
    """Another process's allocation, by the handle that `GpuContext.export` made there. Mapped until `close`,
    or its end."""

    cdef GpuContext owner
    cdef readonly uint64_t pointer

    def __init__(self, GpuContext owner, bytes handle):
        self.owner = owner
        self.pointer = owner.map(handle)

    def close(self):
        """Waits for the GPU's use of it. Idempotent."""
        pointer, self.pointer = self.pointer, 0
        if pointer and is_ours():
            self.owner.unmap(pointer)

    def __dealloc__(self):
        try:
            self.close()
        except DeviceError:
            pass


@cython.no_gc
cdef class MappedPieces:
    """ImportedPieces behind each other, from the address `pointer` on. Mapped until `close`, or its end."""

    cdef GpuContext owner
    cdef list pieces
    cdef size_t size, mapped
    cdef readonly uint64_t pointer

    def __init__(self, GpuContext owner, list pieces):
        self.owner, self.pieces = owner, pieces
        self.size = sum([piece.size for piece in pieces])
        owner.enter()
        code = cuda.cuMemAddressReserve(&self.pointer, self.size, 0, 0, 0)
        for piece in pieces:
            code = code or self.add(piece)
        code = code or self.allow()
        leave()
        if code:
            self.close()
        check(code, f"mapping {len(pieces)} pieces of another process's memory")

    cdef int add(self, ImportedPiece piece) noexcept:
        cdef int code
        with nogil:
            code = cuda.cuMemMap(self.pointer + self.mapped, piece.size, 0, piece.handle, 0)
        if code == 0:
            self.mapped += piece.size
        return code

    cdef int allow(self) noexcept:
        cdef access_t access
        cdef int code
        access.location_type = CU_MEM_LOCATION_TYPE_DEVICE
        access.location_id = self.owner.index
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        with nogil:
            code = cuda.cuMemSetAccess(self.pointer, self.size, &access, 1)
        return code

    def close(self):
        """The GPU must not use it any more. Idempotent."""
        cdef uint64_t pointer = self.pointer
        cdef size_t at = 0, end = self.mapped, size
        self.pointer = self.mapped = 0
        if not pointer or not is_ours():
            return
        cuda.cuCtxPushCurrent_v2(self.owner.context)
        for piece in self.pieces:
            size = (<ImportedPiece?> piece).size
            if at < end:
                with nogil:
                    cuda.cuMemUnmap(pointer + at, size)
            at += size
        cuda.cuMemAddressFree(pointer, self.size)
        leave()

    def __dealloc__(self):
        self.close()
