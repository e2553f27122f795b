# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""DLPack's capsules, given and read: where a tensor lies, on which device, in which order.

Declared by dlpack.h 1.1 (https://github.com/dmlc/dlpack). A capsule of version 0 or 1; a reader leaves it as
it is and keeps it, for its end frees the memory.
"""

from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    MOST_DIMS = 64

cdef struct dl_tensor_t:
    void* data
    int32_t device_type
    int32_t device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

cdef struct managed_t:
    dl_tensor_t tensor
    void* context
    void (*deleter)(managed_t*) noexcept

cdef struct versioned_t:
    uint32_t major
    uint32_t minor
    void* context
    void (*deleter)(versioned_t*) noexcept
    uint64_t flags
    dl_tensor_t tensor

cdef const char* PLAIN = b"dltensor"
cdef const char* VERSIONED = b"dltensor_versioned"


def capsule(owner, uint64_t pointer, int device_type, int device_id, int code, int bits, tuple shape,
            tuple strides, bint versioned):
    """A capsule of memory that `owner` keeps. shape, strides: in elements."""
    cdef size_t count = len(shape)
    cdef managed_t* managed = NULL
    cdef versioned_t* newer = NULL
    cdef dl_tensor_t* tensor
    cdef size_t at
    if count > MOST_DIMS or len(strides) != count:
        raise ValueError(f"a tensor of {count} dimensions")
    if versioned:
        newer = <versioned_t*>calloc(1, sizeof(versioned_t) + 2 * 8 * MOST_DIMS)
    else:
        managed = <managed_t*>calloc(1, sizeof(managed_t) + 2 * 8 * MOST_DIMS)
    if newer == NULL and managed == NULL:
        raise MemoryError()
    tensor = &newer.tensor if versioned else &managed.tensor
    tensor.data = <void*> pointer
    tensor.device_type, tensor.device_id = device_type, device_id
    tensor.ndim, tensor.code, tensor.bits, tensor.lanes = count, code, bits, 1
    tensor.shape = <int64_t*> ((newer + 1) if versioned else <versioned_t*> (managed + 1))
    tensor.strides = tensor.shape + MOST_DIMS
    for at in range(count):
        tensor.shape[at] = shape[at]
        tensor.strides[at] = strides[at]
    Py_INCREF(owner)
    if versioned:
        newer.major, newer.minor = 1, 1
        newer.context, newer.deleter = <void*> owner, end_versioned
        return PyCapsule_New(newer, VERSIONED, end_capsule)
    managed.context, managed.deleter = <void*> owner, end_plain
    return PyCapsule_New(managed, PLAIN, end_capsule)


cdef void end_plain(managed_t* managed) noexcept with gil:
    Py_DECREF(<object> managed.context)
    free(managed)


cdef void end_versioned(versioned_t* managed) noexcept with gil:
    Py_DECREF(<object> managed.context)
    free(managed)


cdef void end_capsule(object ending) noexcept:
    """Of a capsule that no reader has taken."""
    cdef managed_t* managed
    cdef versioned_t* newer
    if PyCapsule_IsValid(ending, PLAIN):
        managed = <managed_t*> PyCapsule_GetPointer(ending, PLAIN)
        managed.deleter(managed)
    elif PyCapsule_IsValid(ending, VERSIONED):
        newer = <versioned_t*> PyCapsule_GetPointer(ending, VERSIONED)
        newer.deleter(newer)


def read(given):
    """(address, device type, device, code, bits, shape, strides or None for C order; in elements) of a
    capsule. Raises ValueError for one that was taken, or that is of another version."""
    cdef dl_tensor_t* tensor
    cdef versioned_t* newer
    cdef int at
    if PyCapsule_IsValid(given, PLAIN):
        tensor = &(<managed_t*> PyCapsule_GetPointer(given, PLAIN)).tensor
    elif PyCapsule_IsValid(given, VERSIONED):
        newer = <versioned_t*> PyCapsule_GetPointer(given, VERSIONED)
        if newer.major != 1:
            raise ValueError(f"a capsule of DLPack {newer.major}, 0 and 1 are read")
        tensor = &newer.tensor
    else:
        name = PyCapsule_GetName(given)
        raise ValueError(f"no capsule of DLPack that is unread: {name!r}")
    if tensor.lanes != 1 or not 0 <= tensor.ndim <= MOST_DIMS:
        raise ValueError(f"a tensor of {tensor.ndim} dimensions with {tensor.lanes} lanes")
    shape = tuple([tensor.shape[at] for at in range(tensor.ndim)])
    strides = None
    if tensor.strides != NULL:
        strides = tuple([tensor.strides[at] for at in range(tensor.ndim)])
    return (<uint64_t> tensor.data + tensor.byte_offset, tensor.device_type, tensor.device_id, tensor.code,
            tensor.bits, shape, strides)
