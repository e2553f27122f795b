# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""TLS 1.3 between a connection's queues and its descriptor, by OpenSSL, without the GIL.

OpenSSL never touches the descriptor: it reads ciphertext from `came` and writes it to `goes`, so that one
system call moves many records. A read leaves neither plain bytes nor a whole record behind: it reads no more
ciphertext from the kernel than fits in the caller's room once it is decrypted. So a descriptor that is not
readable means that there are no bytes, as without TLS, and epoll needs no help.
"""

from libc.errno cimport EAGAIN, EINTR, ENOMEM, EPROTO, errno
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove

from transfer.transports.core.native.atomic cimport load_int, store_int
from transfer.transports.core.native.openssl cimport openssl
from transfer.transports.core.native.system cimport (
    MSG_DONTWAIT, MSG_NOSIGNAL, iovec, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, recv, send,
)

cdef enum:
    PREFIX = 5                     # bytes of a record's header: type, version, length
    MESSAGE_HEAD = 4               # bytes of a handshake message's header: type, length
    HANDSHAKE = 22                 # types of records, and of messages
    CLIENT_HELLO = 1
    LARGEST = 16 * 1024 + 256      # ciphertext of a record (RFC 8446, 5.2)
    LITTLE = 36 * 1024             # read at once where little is expected
    MUCH = 144 * 1024              # and while a large payload is received
    IDLE = 16                      # consecutive reads without data
    THIN = 2                       # and with hardly any: for instance each byte in a separate record
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_ZERO_RETURN = 6
    BIO_FLAGS_RETRY = 0x09         # BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY
    BIO_CTRL_FLUSH = 11
    SSL_CTRL_MODE = 33
    SSL_CTRL_SET_MAX_CERT_LIST = 51
    SSL_MODES = 0x1 | 0x2 | 0x10   # ENABLE_PARTIAL_WRITE, ACCEPT_MOVING_WRITE_BUFFER, RELEASE_BUFFERS
    BIO_TYPE_SOURCE_SINK = 0x0400

cdef extern from *:
    """
    static inline void errno_is(int value) { errno = value; }
    """
    void errno_is(int value) nogil

cdef ptr method = NULL


# --- buffers ----------------------------------------------------------------------------------

cdef size_t held(buffer_t* buffer) noexcept nogil:
    return buffer.end - buffer.start


cdef int room_in(buffer_t* buffer, size_t wanted) noexcept nogil:
    """Makes room for `wanted` more bytes behind `end`. 0: no memory."""
    cdef size_t have = held(buffer)
    cdef char* grown
    if buffer.size - buffer.end >= wanted:
        return 1
    if buffer.start:
        memmove(buffer.data, buffer.data + buffer.start, have)
        buffer.start = 0
        buffer.end = have
        if buffer.size - have >= wanted:
            return 1
    grown = <char*>realloc(buffer.data, have + wanted)
    if grown == NULL:
        return 0
    buffer.data = grown
    buffer.size = have + wanted
    return 1


cdef void empty(buffer_t* buffer) noexcept nogil:
    """Frees an empty buffer: thousands of waiting connections hold none."""
    free(buffer.data)
    buffer.data = NULL
    buffer.start = buffer.end = buffer.size = 0


# --- callbacks of OpenSSL ---------------------------------------------------------------------

cdef int bio_read(ptr bio, char* data, int size) noexcept nogil:
    cdef tls_t* tls = <tls_t*>openssl.BIO_get_data(bio)
    cdef size_t have = held(&tls.came)
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RETRY | 0x06)
    if have == 0:
        openssl.BIO_set_flags(bio, BIO_FLAGS_RETRY)
        return -1
    if have > <size_t>size:
        have = size
    memcpy(data, tls.came.data + tls.came.start, have)
    tls.came.start += have
    return <int>have


cdef int bio_write(ptr bio, const char* data, int size) noexcept nogil:
    cdef tls_t* tls = <tls_t*>openssl.BIO_get_data(bio)
    cdef buffer_t* buffer = &tls.replies if tls.reading else &tls.goes
    openssl.BIO_clear_flags(bio, BIO_FLAGS_RETRY | 0x06)
    if not room_in(buffer, size):
        return -1
    memcpy(buffer.data + buffer.end, data, size)
    buffer.end += size
    return size


cdef long bio_ctrl(ptr bio, int command, long number, void* pointer) noexcept nogil:
    return 1 if command == BIO_CTRL_FLUSH else 0


# --- one connection ---------------------------------------------------------------------------

cdef tls_t* tls_new(ptr context, int fd, int server) noexcept nogil:
    """OpenSSL must have been loaded. NULL: no memory."""
    global method
    cdef ptr bio = NULL
    cdef tls_t* tls = <tls_t*>calloc(1, sizeof(tls_t))
    if tls == NULL:
        return NULL
    if method == NULL:
        method = openssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK | 0x70, "transfer")
        if method != NULL:
            openssl.BIO_meth_set_read(method, bio_read)
            openssl.BIO_meth_set_write(method, bio_write)
            openssl.BIO_meth_set_ctrl(method, bio_ctrl)
    tls.fd = fd
    tls.exact = 1
    tls.ssl = openssl.SSL_new(context)
    if method != NULL:
        bio = openssl.BIO_new(method)
    if tls.ssl == NULL or bio == NULL:
        if tls.ssl != NULL:
            openssl.SSL_free(tls.ssl)
        free(tls)
        return NULL
    openssl.BIO_set_data(bio, tls)
    openssl.BIO_set_init(bio, 1)
    openssl.SSL_set_bio(tls.ssl, bio, bio)      # one reference, for both directions
    openssl.SSL_ctrl(tls.ssl, SSL_CTRL_MODE, SSL_MODES, NULL)
    openssl.SSL_ctrl(tls.ssl, SSL_CTRL_SET_MAX_CERT_LIST, CERTIFICATES, NULL)
    if server:
        openssl.SSL_set_accept_state(tls.ssl)
    else:
        openssl.SSL_set_connect_state(tls.ssl)
    pthread_mutex_init(&tls.mutex, NULL)
    return tls


cdef void tls_free(tls_t* tls) noexcept nogil:
    if tls == NULL:
        return
    openssl.SSL_free(tls.ssl)
    empty(&tls.came)
    empty(&tls.goes)
    empty(&tls.replies)
    pthread_mutex_destroy(&tls.mutex)
    free(tls)


# --- reading ----------------------------------------------------------------------------------

cdef size_t tls_missing(tls_t* tls) noexcept nogil:
    """Bytes until the current record is complete: 0 when it is. -1: this is no record."""
    cdef size_t have = held(&tls.came)
    cdef unsigned char* at
    cdef size_t size
    if have < PREFIX:
        return PREFIX - have
    at = <unsigned char*>tls.came.data + tls.came.start
    size = (<size_t>at[3] << 8) | at[4]
    # Types 20 to 24, version 3.x: other bytes are no TLS, which is reported before they are gathered.
    if at[0] < 20 or at[0] > 24 or at[1] != 3 or size > LARGEST:
        return <size_t>-1
    return size + PREFIX - have if have < size + PREFIX else 0


cdef int tls_is_hello(tls_t* tls) noexcept nogil:
    """Whether the current unencrypted handshake record, of a client, holds a whole ClientHello, as far as it
    has arrived. transports/core/first_record.py explains the rule."""
    cdef size_t have = held(&tls.came)
    cdef unsigned char* at = <unsigned char*>tls.came.data + tls.came.start
    cdef size_t size
    if have < PREFIX or at[0] != HANDSHAKE:
        return 1
    size = (<size_t>at[3] << 8) | at[4]
    if size <= MESSAGE_HEAD or size > RECORD or (have > PREFIX and at[PREFIX] != CLIENT_HELLO):
        return 0
    return have < PREFIX + MESSAGE_HEAD or (
        size - MESSAGE_HEAD == ((<size_t>at[6] << 16) | (<size_t>at[7] << 8) | at[8]))


cdef int tls_fill(tls_t* tls, size_t most) noexcept nogil:
    """Reads from the kernel, once: the missing bytes of the current record, and up to `most` bytes.

    1: bytes were read. 0: the peer has closed. -1: errno.
    """
    cdef size_t need = tls_missing(tls)
    cdef size_t wanted
    cdef ssize_t count
    if need == <size_t>-1:
        errno_is(EPROTO)
        store_int(&tls.failed, 1)
        return -1
    if tls.exact and tls.taken > STRANGE:
        errno_is(EPROTO)
        store_int(&tls.failed, 1)
        return -1
    wanted = need if tls.exact or most < need else most
    if not room_in(&tls.came, wanted):
        errno_is(ENOMEM)
        return -1
    while True:
        count = recv(tls.fd, tls.came.data + tls.came.end, wanted, MSG_DONTWAIT)
        if count >= 0 or errno != EINTR:
            break
    if count <= 0:
        tls.drained = 1
        return <int>count
    tls.drained = <size_t>count < wanted
    tls.came.end += count
    tls.taken += count
    return 1


cdef int decrypt(tls_t* tls, char* data, size_t size, size_t* got) noexcept nogil:
    """One call of OpenSSL. 1: plain bytes. 0: it needs more. -1: it has ended, or failed."""
    cdef int answer
    cdef int why
    cdef size_t owed
    pthread_mutex_lock(&tls.mutex)
    tls.reading = 1
    openssl.ERR_clear_error()
    answer = openssl.SSL_read_ex(tls.ssl, data, size, got)
    why = 0 if answer else openssl.SSL_get_error(tls.ssl, answer)
    tls.reading = 0
    owed = held(&tls.replies)
    pthread_mutex_unlock(&tls.mutex)
    if answer:
        return 1
    if why == SSL_ERROR_WANT_READ and owed <= REPLIES:
        return 0
    if why == SSL_ERROR_ZERO_RETURN:
        tls.ended = 1
    else:
        store_int(&tls.failed, 1)
    return -1


cdef ssize_t tls_read(tls_t* tls, iovec* vectors, int count) noexcept nogil:
    """As readv, of plain bytes. The vectors have room for SPILL in total, unless `exact` is set."""
    cdef size_t room = 0
    cdef size_t done = 0
    cdef size_t got = 0
    cdef size_t at = 0               # in the current vector
    cdef size_t most
    cdef int i = 0
    cdef int idle = 0
    cdef int thin = 0
    cdef size_t data = 0             # `done` and `tls.taken` at the last read
    cdef size_t taken = tls.taken
    cdef int answer
    for answer in range(count):
        room += vectors[answer].iov_len
    if load_int(&tls.failed):
        errno_is(EPROTO)
        return -1
    tls.drained = 0
    while room and not tls.ended:
        # Bytes that have arrived.
        while room and (tls_missing(tls) == 0 or openssl.SSL_pending(tls.ssl) > 0):
            while at == vectors[i].iov_len:
                i += 1
                at = 0
            answer = decrypt(tls, <char*>vectors[i].iov_base + at, vectors[i].iov_len - at, &got)
            if answer < 0:
                break
            if answer:
                at += got
                done += got
                room -= got
                tls.barren = 0
        if load_int(&tls.failed):
            if done:
                break                # the next read reports it
            errno_is(EPROTO)
            return -1
        if tls.ended or tls.drained or (done and tls.exact):
            break
        if room < LARGEST and done:
            break                    # a whole record might not fit any more
        # Endless key updates do not block this thread: the descriptor stays readable.
        idle = 0 if done else idle + 1
        thin = thin + 1 if (done - data) * 16 < tls.taken - taken else 0
        if (idle > IDLE or (thin > THIN and done)) and not tls.exact:
            break
        data = done
        taken = tls.taken
        most = MUCH if room > 2 * SPILL else LITTLE
        if most > room:
            most = room
        most -= held(&tls.came) if most > held(&tls.came) else most
        if tls.barren > BARREN:
            store_int(&tls.failed, 1)
            errno_is(EPROTO)
            return -1
        tls.barren -= tls.taken
        answer = tls_fill(tls, most)
        tls.barren += tls.taken
        if answer == 0:
            tls.ended = 1
        elif answer < 0:
            if errno != EAGAIN and not done:
                return -1
            break
    if held(&tls.came) == 0 and tls.came.data != NULL:
        empty(&tls.came)
    if done or tls.ended:
        return done
    errno_is(EPROTO if load_int(&tls.failed) else EAGAIN)
    return -1


# --- writing ----------------------------------------------------------------------------------

cdef ssize_t tls_seal(tls_t* tls, iovec* vectors, int count) noexcept nogil:
    """Encrypts all of these plain bytes, at most SEAL, for the next write to the kernel. Returns their
    number; -1: errno. The caller has the link's mutex, and all earlier output is written."""
    cdef char* staging = NULL
    cdef size_t staged = 0
    cdef size_t total = 0
    cdef size_t size
    cdef size_t part
    cdef char* data
    cdef int i
    cdef int good = 1
    pthread_mutex_lock(&tls.mutex)
    openssl.ERR_clear_error()
    if held(&tls.replies):
        good = room_in(&tls.goes, held(&tls.replies))
        if good:
            memcpy(tls.goes.data + tls.goes.end, tls.replies.data + tls.replies.start, held(&tls.replies))
            tls.goes.end += held(&tls.replies)
            empty(&tls.replies)
    for i in range(count):
        total += vectors[i].iov_len
    # Room for all records at once: each adds 22 bytes.
    good = good and room_in(&tls.goes, total + (total // RECORD + count + 1) * 64)
    if good and count > 1:
        staging = <char*>malloc(RECORD)
        good = staging != NULL
    for i in range(count):
        data = <char*>vectors[i].iov_base
        size = vectors[i].iov_len
        while good and size:
            if staged == 0 and (size >= RECORD or count == 1):
                part = size if size < RECORD else RECORD
                good = write_record(tls, data, part)
            else:
                # A short piece shares a record with the next one.
                part = size if size < RECORD - staged else RECORD - staged
                memcpy(staging + staged, data, part)
                staged += part
                if staged == RECORD:
                    good = write_record(tls, staging, staged)
                    staged = 0
            data += part
            size -= part
    if good and staged:
        good = write_record(tls, staging, staged)
    pthread_mutex_unlock(&tls.mutex)
    free(staging)
    if good:
        return total
    store_int(&tls.failed, 1)
    errno_is(EPROTO)
    return -1


cdef int write_record(tls_t* tls, const char* data, size_t size) noexcept nogil:
    cdef size_t written = 0
    return openssl.SSL_write_ex(tls.ssl, data, size, &written) and written == size


cdef ssize_t tls_push(tls_t* tls) noexcept nogil:
    """Writes encrypted bytes as far as the kernel takes them; returns their number. -1: errno."""
    cdef size_t left = held(&tls.goes)
    cdef ssize_t written
    if left == 0:
        return 0
    written = send(tls.fd, tls.goes.data + tls.goes.start, left, MSG_DONTWAIT | MSG_NOSIGNAL)
    if written > 0:
        tls.goes.start += written
        if tls.goes.start == tls.goes.end:
            empty(&tls.goes)
    return written


cdef size_t tls_unsent(tls_t* tls) noexcept nogil:
    return held(&tls.goes)
