# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Headers of tensors that were sent before, found by what the buffer protocol reports of the next one.

A training loop sends the same few shapes for ever. Computing a header in Python costs more than the header:
after a large copy no code of the interpreter is left in the processor's cache.
"""

from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset, strlen

from transfer.transports.core.native.pool cimport HeldBuffer

cdef enum:
    MAX_DIMS = 8               # with more the header costs least of all
    MAX_FORMAT = 3             # "f", "?", ">i", "Zd": a structured type's is not unique
    MOST_TYPES = 16
    MOST_HEADERS = 1024

# type -> {format and shape: (flags, header)}; these types export their memory unchanged
cdef dict known = {}


cdef bytes key_of(Py_buffer* view):
    """Format and shape, or None for a tensor that is not kept."""
    cdef char key[8 + 8 * MAX_DIMS]
    cdef size_t length
    if view.format == NULL or view.ndim > MAX_DIMS or view.len == 0:
        return None
    length = strlen(view.format)
    if length > MAX_FORMAT:
        return None
    memset(key, 0, 8)
    memcpy(key, view.format, length)
    if view.ndim:  # the shape of a scalar is NULL
        memcpy(key + 8, view.shape, 8 * view.ndim)
    return PyBytes_FromStringAndSize(key, 8 + 8 * view.ndim)


cdef tuple known_frame(object tensor):
    """The frame of a C-contiguous tensor that looks like a known one, else None."""
    cdef dict of_type = <dict>known.get(type(tensor))
    cdef HeldBuffer held
    cdef tuple entry
    cdef bytes key
    if of_type is None:
        return None
    try:
        held = HeldBuffer(tensor)
    except BufferError:
        return None
    key = key_of(&held.view)
    entry = None if key is None else <tuple>of_type.get(key)
    if entry is None or not PyBuffer_IsContiguous(&held.view, c'C'):
        return None
    return (entry[0], 0, None, entry[1], held)


cdef int note_header(object tensor, int flags, bytes header) except -1:
    """Notes the header of a tensor that exports its memory unchanged, for the next one that looks like it."""
    cdef HeldBuffer held
    cdef bytes key
    cdef dict of_type
    if type(tensor) is bytes:
        return 0               # the queue keeps bytes unchanged; it would copy an exported buffer
    held = HeldBuffer(tensor)
    key = key_of(&held.view)
    if key is None or not PyBuffer_IsContiguous(&held.view, c'C'):
        return 0
    if type(tensor) not in known and len(known) >= MOST_TYPES:
        known.clear()
    of_type = <dict>known.setdefault(type(tensor), {})
    if len(of_type) >= MOST_HEADERS:
        of_type.clear()
    of_type[key] = (flags, header)
    return 0
