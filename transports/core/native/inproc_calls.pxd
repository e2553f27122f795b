# The common calls of sockets with peers in this process. See inproc_calls.pyx.

from transfer.transports.core.native.attachment cimport Attachments
from transfer.transports.core.native.peer_choice cimport Sending


cdef bint push_plain(Sending core, bytes data) except -1
cdef object recv_plain(Attachments core, bint copy)
