# The common calls of sockets with peers in this process. See inproc_calls.pyx.

from transfer.transports.core.native.attachment cimport Attachments
from transfer.transports.core.native.peer_choice cimport Sending


cdef bint push_plain(Sending core, bytes data, tuple parts, Py_ssize_t size) except -1
cdef bint push_to_end(object stream, tuple parts, Py_ssize_t size) except -1
cdef object take_plain(Attachments core, bint named)
cdef bint has_plain(Attachments core) except -1
