# One connection. See stream.pyx.

from transports.native.incoming cimport Incoming


cdef class Stream(Incoming):
    pass
