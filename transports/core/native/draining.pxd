# A send of large memory. See draining.pyx.

from libc.stdint cimport int64_t

from transfer.transports.core.native.stream cimport Stream

cdef int64_t drain(Stream stream, bint at_once, bint hold, list lent) except -1
