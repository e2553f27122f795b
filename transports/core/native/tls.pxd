# TLS 1.3 of one connection, without the GIL. See tls.pyx.

from transfer.transports.core.native.openssl cimport ptr
from transfer.transports.core.native.system cimport iovec, pthread_mutex_t

cdef enum:
    SEAL = 64 * 1024         # plain bytes that are encrypted for one write
    RECORD = 16 * 1024        # the most plain bytes of a record
    SPILL = 32 * 1024         # the least room of a read: one record always fits, with the bytes after it
    STRANGE = 256 * 1024      # bytes of an unauthenticated peer: handshake, hello, proof
    CERTIFICATES = 24 * 1024  # bytes of a peer's certificates: OpenSSL allocates at once what they announce
    BARREN = 128 * 1024       # bytes of consecutive records without data: endless key updates
    REPLIES = 64 * 1024       # bytes of replies to key updates, while there is nothing else to send

cdef struct buffer_t:
    char* data
    size_t start
    size_t end
    size_t size

cdef struct tls_t:
    pthread_mutex_t mutex     # OpenSSL's object: one thread at a time
    ptr ssl
    int fd
    buffer_t came             # ciphertext from the kernel; used by the reading thread
    buffer_t goes             # ciphertext for the kernel; under the link's mutex
    buffer_t replies          # output of OpenSSL while it reads: sent with the next write
    size_t taken              # total of bytes received
    size_t barren             # bytes received since the last data
    int reading               # OpenSSL is called to read
    int exact                 # no byte behind the current record is read from the kernel
    int drained               # the last read met an empty kernel buffer
    int ended                 # the peer sent the end of TLS
    int failed                # invalid TLS was received, or encryption failed; see atomic.pxd

cdef tls_t* tls_new(ptr context, int fd, int server) noexcept nogil
cdef void tls_free(tls_t* tls) noexcept nogil
cdef ssize_t tls_read(tls_t* tls, iovec* vectors, int count) noexcept nogil
cdef ssize_t tls_seal(tls_t* tls, iovec* vectors, int count) noexcept nogil
cdef ssize_t tls_push(tls_t* tls) noexcept nogil
cdef size_t tls_unsent(tls_t* tls) noexcept nogil
cdef size_t tls_missing(tls_t* tls) noexcept nogil
cdef int tls_is_hello(tls_t* tls) noexcept nogil
cdef int tls_fill(tls_t* tls, size_t most) noexcept nogil
