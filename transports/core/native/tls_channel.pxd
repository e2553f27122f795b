# TLS contexts and channels as Python sees them. See tls_channel.pyx.

from transfer.transports.core.native.openssl cimport ptr
from transfer.transports.core.native.tls cimport tls_t


cdef class TlsContext:
    cdef ptr context
    cdef bytes protocols            # as on the wire: each after its length
    cdef readonly bint server
    cdef readonly bint keyed        # a key that both sides have authenticates, and no certificate


cdef class TlsChannel:
    cdef tls_t* tls
    cdef readonly TlsContext context
    cdef readonly bint done         # the handshake is complete
    cdef bytes staged               # decrypted bytes for which there was no room
    cdef str why                    # why it failed
    cdef bytes identity             # of a client with a key, and the key
    cdef bytes secret
    cdef object finds               # of a server: returns the key for an identity

    cdef tls_t* give(self) except NULL
    cdef int expect(self, str server_name) except -1
    cdef int check(self) except -1
    cdef object failure(self)
    cdef int step(self) except -1
    cdef Py_ssize_t unstage(self, char* data, Py_ssize_t size) except -1
    cdef bytes more(self)
    cdef Py_ssize_t read(self, char* data, Py_ssize_t size) except -1
