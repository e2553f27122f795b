# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""One outgoing message: from OutFrames to segments in a link's queue, and back again.

The pointers are extracted under the GIL; appending needs none.
"""

import zlib

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from transfer.transports.errors import PLAIN_HINT, TOO_NEW, InternalError, NotSupported
from transfer.transports.core.wire import MAX_TOPIC

from transfer.transports.core.native.atomic cimport add, add_signed, load_int, store_int
from transfer.transports.core.native.borrowed_memory cimport link_settle
from transfer.transports.core.native.filling cimport Filling
from transfer.transports.core.native.sizes cimport LARGE
from transfer.transports.core.native.kernel_writes cimport (
    BROKEN, BY_REFERENCE, F_CONTROL, F_CRC, F_EXTENDED, F_LZ4, F_MORE, F_TENSOR, F_TOPIC, HEADER,
    NO_MEMORY, OK, REFERENCE_BIT, header_t, link_append, link_arm, link_gathers, link_reserve,
    link_room, link_t, link_write, put_header, segment_t,
)
from transfer.transports.core.native.pool cimport HeldBuffer
from transfer.transports.core.native.system cimport pthread_mutex_unlock

cdef size_t TOPIC_LIMIT = MAX_TOPIC


cdef unsigned int checksum_of(object meta, object topic, object data):
    cdef unsigned int value = 0
    if meta is not None:
        value = zlib.crc32(meta, value)
    if topic is not None:
        value = zlib.crc32(topic, value)
    return zlib.crc32(data, value)


cdef int prepare(link_t* link, outgoing_t* out, object frame, bint more, bint hold, list owners) except -1:
    """Extracts the pointers of one OutFrame and keeps its objects alive in `owners`. hold: memory stays until
    it is written, so it may still be filled."""
    cdef HeldBuffer held
    cdef object topic
    cdef object meta
    cdef object data
    flags, sequence, topic, meta, data = frame
    out.flags = flags | (F_MORE if more else 0)
    out.sequence = sequence
    out.segment = NULL
    out.ready = NULL
    out.checksum = 0
    out.topic = NULL
    out.topic_size = 0
    out.meta = NULL
    out.meta_size = 0
    if topic is not None:
        out.flags |= F_TOPIC
        out.topic = PyBytes_AS_STRING(<bytes?>topic)
        out.topic_size = PyBytes_GET_SIZE(topic)
        if out.topic_size > TOPIC_LIMIT:
            raise InternalError(f"a topic of {out.topic_size} bytes", hint=f"the limit is {TOPIC_LIMIT}")
        owners.append(topic)
    if meta is not None:
        out.meta = PyBytes_AS_STRING(<bytes?>meta)
        out.meta_size = PyBytes_GET_SIZE(meta)
        owners.append(meta)
    if type(data) is bytes:
        out.data = PyBytes_AS_STRING(data)
        out.size = PyBytes_GET_SIZE(data)
        owners.append(data)
    elif type(data) is Filling and hold and len(data) >= LARGE and not (link.checksum or flags & F_CRC):
        held = (<Filling>data).hold()
        out.data = <const char*>held.view.buf
        out.size = held.view.len
        out.ready = &(<Filling>data).ready
        owners.append(held)
    else:
        held = <HeldBuffer>data if type(data) is HeldBuffer else HeldBuffer(data)
        out.data = <const char*>held.view.buf
        out.size = held.view.len
        owners.append(held)
    if link.plain and out.flags & (F_MORE | F_CRC | F_EXTENDED | F_LZ4):
        raise NotSupported(TOO_NEW, hint=PLAIN_HINT)
    if (link.checksum or out.flags & F_CRC) and not out.flags & F_CONTROL and not link.plain:
        out.flags |= F_CRC
        out.checksum = checksum_of(meta, topic, owners[len(owners) - 1])
    return 0


cdef int add_segments(outgoing_t* out, Py_ssize_t count, list owners, bint hold, object released) except -1:
    """Makes a segment for each large payload, under the GIL. `owners` holds the payload of each frame last
    among its objects; the last large segment gets the callback."""
    cdef Py_ssize_t i
    cdef Py_ssize_t last = -1
    cdef Py_ssize_t place = 0
    cdef segment_t* segment
    cdef object owner
    for i in range(count):
        place += (out[i].topic != NULL) + (out[i].meta != NULL)
        owner = owners[place]
        place += 1
        if out[i].size < LARGE:
            continue
        segment = <segment_t*>calloc(1, sizeof(segment_t))
        if segment == NULL:
            drop_segments(out, i)
            raise MemoryError()
        segment.data = <char*>out[i].data
        segment.size = out[i].size
        segment.ready = out[i].ready
        segment.payload = 1
        segment.starts_inside = 1
        # bytes cannot change, so a reference is as good as a copy.
        segment.borrowed = type(owner) is not bytes and not hold
        Py_INCREF(owner)
        segment.owner = <PyObject*>owner
        out[i].segment = segment
        last = i
    if last >= 0 and released is not None:
        Py_INCREF(released)
        out[last].segment.released = <PyObject*>released
    return 0


cdef int drop_segments(outgoing_t* out, Py_ssize_t count) except -1:
    """The message was not taken: drops its segments without a callback."""
    cdef Py_ssize_t i
    for i in range(count):
        if out[i].segment != NULL:
            if out[i].segment.released != NULL:
                Py_DECREF(<object>out[i].segment.released)
            Py_DECREF(<object>out[i].segment.owner)
            free(out[i].segment)
            out[i].segment = NULL
    return 0


cdef bint has_large(list owners):
    for owner in owners:
        if type(owner) is HeldBuffer:
            if (<HeldBuffer>owner).view.len >= LARGE:
                return True
        elif PyBytes_GET_SIZE(owner) >= LARGE:
            return True
    return False


cdef int enqueue(link_t* link, outgoing_t* out, Py_ssize_t count, size_t total, bint force,
                 bint settle, bint gather) noexcept nogil:
    """Appends one message and writes it, or leaves it to be gathered with `gather`. Enters with the mutex
    held and leaves without it."""
    cdef int answer = append_message(link, out, count, total, force)
    if answer == OK and link.fd >= 0 and not link.kernel_full:
        if link_gathers(link) and gather:
            link_arm(link)
            if not link.armed:  # there is no thread for it
                link_write(link)
        elif link_write(link) == BROKEN:
            answer = OK        # it is queued: take_unsent finds it, and the next send raises
    if answer == OK and settle and link.borrowed:
        answer = link_settle(link)
    pthread_mutex_unlock(&link.mutex)
    return answer


cdef int append_message(link_t* link, outgoing_t* out, Py_ssize_t count, size_t total,
                        bint force) noexcept nogil:
    cdef Py_ssize_t i
    cdef int answer
    cdef bint control = out[0].flags & F_CONTROL
    cdef uint64_t sequence
    cdef size_t head
    cdef char* at
    if load_int(&link.error) or link.closed:
        return BROKEN
    if not force:
        answer = link_room(link, total)
        if answer != OK:
            return answer
    if not control:
        add(&link.sent, 1)
    out[0].number = link.sent
    for i in range(count):
        head = HEADER + out[i].meta_size + out[i].topic_size
        at = link_reserve(link, head if out[i].segment != NULL else head + out[i].size, i > 0)
        if at == NULL:
            if i > 0:  # the peer must not take the next message for its end
                store_int(&link.error, ENOMEM)
            return NO_MEMORY
        sequence = out[i].sequence
        if sequence == 0 and not control:
            sequence = link.sent
        put_header(at, link.socket_type, out[i].flags, sequence, out[i].topic_size, out[i].size,
                   out[i].checksum)
        if out[i].meta_size:      # a copy of 0 bytes from NULL is undefined
            memcpy(at + HEADER, out[i].meta, out[i].meta_size)
        if out[i].topic_size:
            memcpy(at + HEADER + out[i].meta_size, out[i].topic, out[i].topic_size)
        if out[i].segment == NULL:
            memcpy(at + head, out[i].data, out[i].size)
        else:
            link_append(link, out[i].segment)
            add_signed(&link.queued_bytes, out[i].size)
            link.borrowed += out[i].segment.borrowed
            out[i].segment = NULL
        if not control:
            add(&link.sent_bytes, out[i].size)
    if not control:
        add_signed(&link.queued, 1)
        add_signed(&link.queued_payload, total)
        link.tail.messages += 1
        link.tail.payloads += total
    return OK


# --- unsent messages ------------------------------------------------------------------------------

cdef int64_t unsent_count(link_t* link) noexcept nogil:
    """The number of queued messages of which nothing is written; the caller holds the mutex."""
    cdef segment_t* head = link.head
    cdef size_t offset = 0
    cdef bint inside
    cdef int64_t begun
    cdef header_t* header
    if head == NULL or head.size == 0:      # an empty chunk waits for the next message
        return link.queued
    inside = head.starts_inside
    begun = inside
    while not head.payload and offset < head.done:      # later segments are not begun
        header = <header_t*>(head.data + offset)
        if not header.flags & F_CONTROL:
            begun += not inside
            inside = header.flags & F_MORE
        # A large payload lies in the next segment: the offset is past the end then.
        offset += head_size(head.data + offset) + header.data_length
    return link.queued - begun


cdef size_t head_size(const char* at) noexcept nogil:
    """Bytes of a frame before its payload."""
    cdef header_t* header = <header_t*>at
    cdef uint32_t extension
    cdef size_t size = HEADER + header.topic_length
    if header.flags & F_EXTENDED:
        memcpy(&extension, at + HEADER, 4)
        size += extension
    elif header.flags & F_TENSOR:
        size += 48
    return size


cdef class Copy:
    """The copy of a payload, taken out of the queue without another copy: it may be gigabytes."""

    cdef char* data
    cdef Py_ssize_t size

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __dealloc__(self):
        free(self.data)


cdef object payload_of(segment_t* segment, bint first, bint foreign):
    """A segment for `unsent_messages`; memory of this library is passed on."""
    cdef Copy copy
    if foreign:
        return b""      # it counts as sent, and no reference may be left when its owner is informed
    if segment.owner != NULL:
        return <object>segment.owner
    if not segment.payload:
        return PyBytes_FromStringAndSize(segment.data, segment.size)
    if first:
        return b""      # its header is written, so it is never sent again
    copy = Copy.__new__(Copy)
    copy.data = segment.data
    copy.size = segment.size
    segment.capacity = 0
    return copy


cdef list unsent_messages(list pieces):
    """Splits queued memory into messages; only those of which nothing was written.

    A piece is (bytes or buffer, bytes written, size, is a chunk, begins inside a message). Chunks
    begin with a header; the payload of a large frame is the piece after its header's chunk.
    """
    cdef list messages = []
    cdef list message = []
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t offset = 0
    cdef bint lost = False       # the current message is partly written
    cdef const char* at
    cdef header_t* header
    cdef Py_ssize_t head
    cdef bytes chunk
    if pieces and pieces[0][4]:
        # Partly written: the rest of that message, and of that frame's payload, cannot be sent again.
        lost = True
        if not pieces[0][3]:
            index = 1
            lost = len(pieces) > 1 and pieces[1][4]
    while index < len(pieces):
        piece, done, size, is_chunk = pieces[index][:4]
        if not is_chunk or offset >= size:
            index += 1
            offset = 0
            continue
        chunk = piece
        at = PyBytes_AS_STRING(chunk) + offset
        header = <header_t*>at
        head = head_size(at)
        if done > offset:
            lost = True
        frame = chunk[offset:offset + head]
        if offset + head + <Py_ssize_t>header.data_length <= size and not payload_follows(
                pieces, index, offset + head, header.data_length):
            data = chunk[offset + head:offset + head + header.data_length]
            offset += head + header.data_length
        else:
            data = pieces[index + 1][0]
            lost = lost or pieces[index + 1][1] > 0
            index += 2
            offset = 0
        if header.flags & F_CONTROL:
            lost = False
            continue
        message.append(out_frame(frame, data))
        if not header.flags & F_MORE:
            if lost:
                messages.clear()     # the remaining ones are the last ones that were sent, without a gap
            else:
                messages.append(message)
            message = []
            lost = False
    return messages


cdef bint payload_follows(list pieces, Py_ssize_t index, Py_ssize_t end, uint64_t size):
    """Whether the payload of the frame whose header ends at `end` is a separate piece."""
    return (size >= LARGE and end == pieces[index][2] and index + 1 < len(pieces)
            and not pieces[index + 1][3])


cdef tuple out_frame(bytes head, object data):
    cdef header_t* header = <header_t*>PyBytes_AS_STRING(head)
    cdef Py_ssize_t split = len(head) - header.topic_length
    meta = head[HEADER:split] or None
    topic = head[split:] if header.flags & F_TOPIC else None
    flags = header.flags & ~(F_MORE | F_TOPIC)
    if header.socket_type & REFERENCE_BIT:
        flags |= BY_REFERENCE
    return (flags, header.sequence, topic, meta, data)
