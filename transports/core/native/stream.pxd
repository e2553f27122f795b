# One connection. See stream.pyx.

from transfer.transports.core.native.flusher cimport reader_t
from transfer.transports.core.native.incoming cimport Incoming


cdef class Stream(Incoming):
    cdef bint entered               # a thread is in `receive`

    cdef object receive_by(self, reader_t* reader)
