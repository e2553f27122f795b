# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The common send and receive of a socket with peers in this process, and maybe others over descriptors.

A plain message passes without a copy, a lock or Python code. What these calls do not handle is left to the
general way, the same for all foreign streams: they return False or None then, and nothing has changed.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.attachment cimport Attachments
from transfer.transports.core.native.inproc_queue cimport InprocEnd, all_inproc, is_inproc
from transfer.transports.core.native.kernel_writes cimport BROKEN, OK
from transfer.transports.core.native.peer_choice cimport Sending
from transfer.transports.core.native.reading cimport TURN_MESSAGES
from transfer.transports.core.native.stream cimport Stream

cdef enum:
    ROUND_ROBIN = 1
    FANOUT = 2
    FILTERED = 2


cdef bint push_plain(Sending core, bytes data, tuple parts, Py_ssize_t size) except -1:
    """Sends to one peer or, in a fan-out, to all that subscribed. False: the general way has to offer it. The
    message is `data`, or `parts`; size: of all payload."""
    cdef object message = data
    if parts is not None:
        message = list(parts) if len(parts) > 1 else parts[0]
    if core.send_mode == ROUND_ROBIN:
        return push_in_turn(core, data, parts, message, size)
    if core.send_mode == FANOUT and not core.outs and all_inproc(core.foreign_outs):
        return push_to_all(core, data if parts is None else <bytes>parts[0], message, size)
    return False


cdef bint push_to_end(object stream, tuple parts, Py_ssize_t size) except -1:
    """Sends a ROUTER's message, without its first part, to the peer with that identity."""
    cdef InprocEnd end
    cdef int answer
    if not is_inproc(stream):
        return False
    end = <InprocEnd>stream
    if end.identity is None:
        return False
    answer = end.push(list(parts[1:]) if len(parts) > 2 else parts[1], size)
    if answer > 0:
        end.wake_reader()
    return answer >= 0


cdef bint push_in_turn(Sending core, bytes data, tuple parts, object message, Py_ssize_t size) except -1:
    """To the peer whose turn it is, over a descriptor or in this process: the round of `offer_in_turn`."""
    cdef Py_ssize_t place = core.next_out
    cdef Py_ssize_t native
    cdef InprocEnd end
    cdef object stream
    cdef int answer
    for _ in range(len(core.outs) + len(core.foreign_outs)):
        native = len(core.outs)
        if place >= native + len(core.foreign_outs):
            place = 0
            if not native and not core.foreign_outs:
                return False
        stream = core.outs[place] if place < native else core.foreign_outs[place - native]
        if place < native:
            answer = core.push(<Stream>stream, data, parts, 0, size, 0)
            place += 1
            core.next_out = place
            if answer == OK:
                count_sent(core, size)
                return True
            if answer == BROKEN:
                core.lose(stream, (<Stream>stream).broken)
            if answer == BROKEN or core._behind:
                return False
        elif not is_inproc(stream):
            core.next_out = place
            return False
        else:
            end = <InprocEnd>stream
            answer = end.push(message, size)
            place += 1
            if answer >= 0:
                core.next_out = place
                count_sent(core, size)
                if answer:
                    end.wake_reader()
                return True
    return False


cdef bint push_to_all(Sending core, bytes topic, object message, Py_ssize_t size) except -1:
    """The queues share one object. A full one misses it, which is counted."""
    cdef InprocEnd end
    cdef list asleep = None
    cdef list broken = None
    cdef bint wanted = False
    cdef int answer
    for end in core.foreign_outs:
        if not end.match(topic):
            continue
        wanted = True
        answer = end.push(message, size)
        if answer >= 0:
            count_sent(core, size)
        elif end.broken is None:
            end.dropped += 1
            end.room_wanted = 0
        if answer > 0:
            asleep = [end] if asleep is None else asleep + [end]
        elif answer < 0 and end.broken is not None:
            broken = [end] if broken is None else broken + [end]
    if not wanted:
        core.dropped_no_peer += 1
    if asleep is not None:
        wake_all(asleep)
    if broken is not None:
        for end in broken:
            core.lose(end, end.broken)
    return True


cdef int wake_all(list asleep) except -1:
    """Although a signal handler may raise in a callback."""
    cdef InprocEnd end
    while asleep:
        end = <InprocEnd>asleep.pop()
        try:
            end.wake_reader()
        except BaseException:
            wake_all(asleep)
            raise
    return 0


cdef inline void count_sent(Sending core, Py_ssize_t size) noexcept:
    core.messages_sent += 1
    core.bytes_sent += size


cdef object take_plain(Attachments core, bint named):
    """Receives from the peer in this process whose turn it is: `bytes`, or a list of several. None: no plain
    message is the next one. named: only of peers with an identity, which is the first of the list then.

    The peers over descriptors have turns, too: at the end of this turn the general way asks them first, and
    at the end of theirs `recv` comes here.
    """
    cdef list streams
    cdef InprocEnd end
    cdef object message
    cdef object made
    cdef int64_t size
    cdef Py_ssize_t place
    # As in `recv`: a signal handler that raises finds the message unread.
    PyErr_CheckSignals()
    if (not core.inproc_only or core.receiving or core.stash is not None or core.again is not None
            or core.receive_mode == 0 or core.closed or core.generation != native_link.fork_generation):
        return None
    if core.inproc_turn >= TURN_MESSAGES and core.by_fd:
        core.inproc_turn = core.own_turn = 0
        core.foreign_first = False
        return None
    streams = core.foreign_ins
    for place in range(len(streams)):
        end = <InprocEnd>streams[place]
        message = end.first_plain()
        if message is not None:
            size = size_of(message)
            if (<uint64_t>size > end.max_message or not is_wanted(core, message) or not end.wakes_in_c()
                    or (named and end.identity is None)):
                return None
            made = message
            if type(message) is list or named:  # a list is shared by all that were sent it
                made = [end.identity] if named else []
                made += message if type(message) is list else [message]
                # Other threads may run while a list is made.
                if end.first_plain() is not message or core.receiving or core.closed:
                    return None
            if place + 1 < len(streams):  # the others come before its next message
                streams.append(streams.pop(place))
            end.take_plain(message, size)
            core.messages_received += 1
            core.bytes_received += size
            core.inproc_turn += 1
            end.wake_writer()
            if core.exposed:
                core.signal()
            return made
        if end.has_unread():
            return None
    core.inproc_turn = core.own_turn = 0
    return None


cdef bint has_plain(Attachments core) except -1:
    """Whether a peer in this process has a plain message that `take_plain` would return, but for its turn."""
    cdef InprocEnd end
    if not core.inproc_only or core.receiving or core.stash is not None or core.again is not None:
        return False
    for end in core.foreign_ins:
        message = end.first_plain()
        if message is not None:
            return is_wanted(core, message)
    return False


cdef int64_t size_of(object message) noexcept:
    cdef int64_t size = 0
    if type(message) is bytes:
        return PyBytes_GET_SIZE(message)
    for part in <list>message:
        size += PyBytes_GET_SIZE(part)
    return size


cdef bint is_wanted(Attachments core, object message) except -1:
    """As `wanted`."""
    if core.receive_mode != FILTERED:
        return True
    return core.is_subscribed(<bytes>(message if type(message) is bytes else (<list>message)[0]))
