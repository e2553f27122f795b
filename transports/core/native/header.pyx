# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Parses the first bytes of a frame: every length is checked here, before memory is allocated."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from transfer.transports.errors import ProtocolError
from transfer.transports.core.wire import EXTENDED_MAX, EXTENDED_MIN, MAX_CONTROL, MAX_TOPIC

from transfer.transports.core.native.kernel_writes cimport (
    F_CONTROL, F_CRC, F_EXTENDED, F_TENSOR, F_TOPIC, HEADER, MAGIC, REFERENCE_BIT, REFERENCE_SIZE,
    VERSION, header_t,
)
from transfer.transports.core.native.pool cimport Frame

cdef size_t TOPIC_LIMIT = MAX_TOPIC
cdef size_t CONTROL_LIMIT = MAX_CONTROL
cdef uint32_t SHORTEST_EXTENSION = EXTENDED_MIN
cdef uint32_t LONGEST_EXTENSION = EXTENDED_MAX


cdef int head_size(const char* at, size_t available, size_t* head, uint64_t max_message,
                   bint references) except -1:
    """The bytes before the payload, once they are known (1), else 0. Checks every length."""
    cdef header_t* header = <header_t*>at
    cdef uint32_t extension = 0
    cdef int flags = header.flags
    if header.magic != MAGIC:
        raise ProtocolError("magic", f"no frame begins with {header.magic:#010x}")
    if header.version != VERSION:
        raise ProtocolError("version", f"frame version {header.version}, this is {VERSION}")
    if header.socket_type & REFERENCE_BIT:
        if not references or flags & F_CONTROL or header.data_length != REFERENCE_SIZE:
            raise ProtocolError("flags", "a reference to a payload that this connection cannot have")
    if header.socket_type & ~REFERENCE_BIT > 8 or (flags & F_EXTENDED and not flags & F_TENSOR):
        raise ProtocolError("flags", f"flags {flags:#04x} of socket type {header.socket_type}")
    if header.topic_length > TOPIC_LIMIT or (header.topic_length and not flags & F_TOPIC):
        raise ProtocolError("topic", f"a topic of {header.topic_length} bytes")
    if header.data_length >> 63:
        raise ProtocolError("length", f"a length of {header.data_length} bytes")
    if flags & F_CONTROL:
        if flags & ~(F_CONTROL | F_CRC) or not 1 <= header.data_length <= CONTROL_LIMIT:
            raise ProtocolError("control", f"a control frame of {header.data_length} bytes")
    elif header.data_length > max_message:
        raise ProtocolError(
            "too_large", f"a frame of {header.data_length} bytes, the limit is "
            f"{max_message}", hint="raise `maxmsgsize` on the receiving socket")
    head[0] = HEADER + header.topic_length
    if flags & F_EXTENDED:
        if available < HEADER + 4:
            return 0
        memcpy(&extension, at + HEADER, 4)
        if not SHORTEST_EXTENSION <= extension <= LONGEST_EXTENSION:
            raise ProtocolError("tensor", f"an extended tensor header of {extension} bytes")
        head[0] += extension
    elif flags & F_TENSOR:
        head[0] += 48
    return 1


cdef Frame frame_of(const char* at, size_t head):
    """A frame without its payload, from bytes whose lengths were checked."""
    cdef header_t* header = <header_t*>at
    cdef Frame frame = Frame.__new__(Frame)
    cdef size_t meta = head - HEADER - header.topic_length
    frame.flags = header.flags
    frame.sequence = header.sequence
    frame.socket_type = header.socket_type & ~REFERENCE_BIT
    if meta:
        frame.meta = PyBytes_FromStringAndSize(at + HEADER, meta)
    if header.flags & F_TOPIC:
        frame.topic = PyBytes_FromStringAndSize(at + HEADER + meta, header.topic_length)
    return frame
