# TLS 1.3 of one connection, without the GIL. See tls.pyx.

from transfer.transports.core.native.openssl cimport ptr
from transfer.transports.core.native.system cimport iovec, pthread_mutex_t

cdef enum:
    SEAL = 64 * 1024         # plain bytes that are encrypted for one write
    RECORD = 16 * 1024        # plain bytes of a record at most
    SPILL = 32 * 1024         # room that a read is given at least: one record always fits, with what follows
    STRANGE = 256 * 1024      # bytes of a peer of whom nobody knows who it is: handshake, hello, proof
    CERTIFICATES = 24 * 1024  # bytes of a peer's certificates: OpenSSL takes at once what they announce
    BARREN = 128 * 1024       # bytes of records without data, one behind the other: new keys without end
    ASIDE = 64 * 1024         # bytes owed to a peer that asks for new keys, as long as we have nothing to say

cdef struct buffer_t:
    char* data
    size_t start
    size_t end
    size_t size

cdef struct tls_t:
    pthread_mutex_t mutex     # OpenSSL's object: one thread at a time
    ptr ssl
    int fd
    buffer_t came             # ciphertext from the kernel; the reading thread's
    buffer_t goes             # ciphertext for the kernel; whoever has the link's mutex
    buffer_t aside            # what OpenSSL wants to say while it reads: goes along with the next write
    size_t taken              # bytes that came, in all
    size_t barren             # bytes that came since the last data
    int reading               # OpenSSL is called to read
    int exact                 # nothing behind the record at hand is taken from the kernel
    int drained               # the last read met an empty kernel buffer
    int ended                 # the peer said that nothing follows
    int failed                # what came is no good TLS, or nothing can be encrypted; see atomic.pxd

cdef tls_t* tls_new(ptr context, int fd, int server) noexcept nogil
cdef void tls_free(tls_t* tls) noexcept nogil
cdef ssize_t tls_read(tls_t* tls, iovec* vectors, int count) noexcept nogil
cdef ssize_t tls_seal(tls_t* tls, iovec* vectors, int count) noexcept nogil
cdef ssize_t tls_push(tls_t* tls) noexcept nogil
cdef size_t tls_unsent(tls_t* tls) noexcept nogil
cdef size_t tls_missing(tls_t* tls) noexcept nogil
cdef int tls_is_hello(tls_t* tls) noexcept nogil
cdef int tls_fill(tls_t* tls, size_t most) noexcept nogil
