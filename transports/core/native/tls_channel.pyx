# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""TlsContext and TlsChannel: Python sets them up, runs the handshake, and passes them to a Stream.

Contract: core/contract.pyi. tls.pyx handles the bytes.
"""

import ipaddress
import os

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EPROTO, errno
from libc.string cimport memcpy

from transfer.transports.errors import InternalError, NotSupported, SecurityError

from transfer.transports.core.native.openssl cimport (
    load, openssl, psk_client_f, psk_server_f, ptr, reasons,
)
from transfer.transports.core.native.system cimport iovec, pthread_mutex_lock, pthread_mutex_unlock
from transfer.transports.core.native.tls cimport (
    BARREN, REPLIES, SEAL, SPILL, STRANGE, tls_fill, tls_free, tls_is_hello, tls_missing, tls_new, tls_push,
    tls_read, tls_seal, tls_t, tls_unsent,
)

cdef enum:
    MAX_HANDSHAKE = 64 * 1024      # bytes of an unauthenticated peer
    MAX_BUFFERS = 512
    FILETYPE_PEM = 1
    VERIFY_PEER = 1
    VERIFY_REQUIRED = 3            # with SSL_VERIFY_FAIL_IF_NO_PEER_CERT
    CTRL_MIN_VERSION = 123
    CTRL_MAX_VERSION = 124
    CTRL_SERVER_NAME = 55
    HOST_FLAGS = 0x04 | 0x20  # no w*ld.names; the names are those of subjectAltName, never the subject's CN
    TLS_1_3 = 0x0304
    WANT_READ = 2
    ALPN_OK = 0
    ALPN_REFUSE = 2
    NEGOTIATED = 1                 # OPENSSL_NPN_NEGOTIATED
    APP_DATA = 0                   # the index of SSL_set_app_data
    EXPORTED = 32

_LATER = (EAGAIN, EINTR)
# AES-128 first: as strong as needed, and a tenth faster.
CIPHERS = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
# Those with SHA-256, the hash of keys that both sides have already.
KEYED_CIPHERS = b"TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
EXPORTER = b"EXPORTER-transfer-binding"


cdef int no_password(char* buffer, int size, int writing, void* user) noexcept nogil:
    """Without it OpenSSL would prompt on the terminal."""
    return 0


cdef int select_protocol(ptr ssl, const unsigned char** chosen, unsigned char* size,
                         const unsigned char* offered, unsigned int offered_size, void* user) noexcept nogil:
    cdef const char* ours = <const char*>user
    cdef unsigned int length = (<unsigned char>ours[0] << 8) | <unsigned char>ours[1]
    if openssl.SSL_select_next_proto(<unsigned char**>chosen, size, <const unsigned char*>ours + 2, length,
                                     offered, offered_size) == NEGOTIATED:
        return ALPN_OK
    return ALPN_REFUSE


cdef unsigned int give_key(ptr ssl, const char* hint, char* identity, unsigned int most,
                           unsigned char* key, unsigned int most_key) noexcept with gil:
    """The identity and the key of a client; the length of the key."""
    cdef ptr owner = openssl.SSL_get_ex_data(ssl, APP_DATA)
    cdef TlsChannel channel
    cdef Py_ssize_t name, size
    if owner == NULL:
        return 0
    channel = <TlsChannel>owner
    name, size = len(channel.identity), len(channel.secret)
    if name >= most or size > most_key:
        return 0
    memcpy(identity, PyBytes_AS_STRING(channel.identity), name + 1)
    memcpy(key, PyBytes_AS_STRING(channel.secret), size)
    return size


cdef unsigned int find_key(ptr ssl, const char* identity, unsigned char* key,
                           unsigned int most) noexcept with gil:
    """The key of the client with this identity; its length. 0: there is none, and the handshake fails."""
    cdef ptr channel = openssl.SSL_get_ex_data(ssl, APP_DATA)
    if channel == NULL:
        return 0
    try:
        found = (<TlsChannel>channel).finds(<bytes>identity)
        if not isinstance(found, bytes):
            raise TypeError("a key is bytes")  # bytes(32) would be a key that everyone knows
    except Exception:  # an identity that names no key
        return 0
    if len(found) > most:
        return 0
    memcpy(key, PyBytes_AS_STRING(found), len(found))
    return len(found)


cdef class TlsContext:
    """The credentials and requirements of one side: see core/contract.pyi."""

    def __cinit__(self, *, bint server, str certificate="", str key="", str authorities="",
                  str clients="none", tuple protocols=(), bint keyed=False):
        cdef bytes listed
        load()
        self.server = server
        self.keyed = keyed
        self.context = openssl.SSL_CTX_new(openssl.TLS_server_method() if server
                                           else openssl.TLS_client_method())
        if self.context == NULL:
            raise InternalError(f"OpenSSL makes no context: {reasons()}")
        openssl.SSL_CTX_ctrl(self.context, CTRL_MIN_VERSION, TLS_1_3, NULL)
        openssl.SSL_CTX_ctrl(self.context, CTRL_MAX_VERSION, TLS_1_3, NULL)
        openssl.SSL_CTX_set_ciphersuites(self.context, CIPHERS)
        # Sessions are not resumed: a ticket would outlive its certificate.
        openssl.SSL_CTX_set_num_tickets(self.context, 0)
        openssl.SSL_CTX_set_default_passwd_cb(self.context, no_password)
        if keyed:
            self.use_keys()
        else:
            self.show(certificate, key)
            self.ask(authorities, clients)
        listed = b"".join(bytes([len(name)]) + name.encode() for name in protocols)
        self.protocols = len(listed).to_bytes(2, "big") + listed
        if listed and server:
            openssl.SSL_CTX_set_alpn_select_cb(self.context, select_protocol,
                                               <void*>PyBytes_AS_STRING(self.protocols))
        elif listed:
            openssl.SSL_CTX_set_alpn_protos(
                self.context, <const unsigned char*>PyBytes_AS_STRING(self.protocols) + 2, len(listed))

    def __dealloc__(self):
        if self.context != NULL:
            openssl.SSL_CTX_free(self.context)

    def use_keys(self):
        """No certificate is shown, and a client trusts none: only the key authenticates."""
        if (openssl.SSL_CTX_set_psk_client_callback == NULL
                or openssl.SSL_CTX_set_psk_server_callback == NULL):
            raise NotSupported("this OpenSSL has no TLS with a key that both sides have (no-psk)",
                               hint="TRANSFER_LIBSSL names another libssl")
        if openssl.SSL_CTX_set_ciphersuites(self.context, KEYED_CIPHERS) != 1:
            raise NotSupported(f"this OpenSSL has none of the ciphers of CURVE: {reasons()}",
                               hint="TRANSFER_LIBSSL names another libssl")
        if self.server:
            openssl.SSL_CTX_set_psk_server_callback(self.context, <psk_server_f>find_key)
        else:
            openssl.SSL_CTX_set_verify(self.context, VERIFY_REQUIRED, NULL)
            openssl.SSL_CTX_set_psk_client_callback(self.context, <psk_client_f>give_key)

    def show(self, str certificate, str key):
        openssl.ERR_clear_error()
        if certificate:
            if openssl.SSL_CTX_use_certificate_chain_file(self.context, os.fsencode(certificate)) != 1:
                raise SecurityError(f"the certificate {certificate} cannot be used: {reasons()}",
                                    hint="a PEM file, the server's own certificate first")
            if openssl.SSL_CTX_use_PrivateKey_file(self.context, os.fsencode(key), FILETYPE_PEM) != 1:
                raise SecurityError(f"the key {key} cannot be used: {reasons()}",
                                    hint="the PEM file of this certificate's key, without a password")
            if openssl.SSL_CTX_check_private_key(self.context) != 1:
                raise SecurityError(f"the key {key} is not that of {certificate}")

    def ask(self, str authorities, str clients):
        openssl.ERR_clear_error()
        if authorities:
            if openssl.SSL_CTX_load_verify_locations(self.context, os.fsencode(authorities), NULL) != 1:
                raise SecurityError(f"the authorities {authorities} cannot be used: {reasons()}",
                                    hint="a PEM file of certificates")
        elif not self.server:
            openssl.SSL_CTX_set_default_verify_paths(self.context)
        if not self.server or clients == "required":
            openssl.SSL_CTX_set_verify(self.context, VERIFY_REQUIRED, NULL)
        elif clients == "optional":
            openssl.SSL_CTX_set_verify(self.context, VERIFY_PEER, NULL)


cdef class TlsChannel:
    """TLS 1.3 over a descriptor that the caller owns: see core/contract.pyi."""

    def __cinit__(self, TlsContext context, int fd, str server_name="", *, tuple key=None, finds=None):
        if context.keyed:
            if (finds if context.server else key) is None:
                raise InternalError("keyed TLS needs key= at a client and finds= at a server")
        elif not context.server and not server_name:
            raise InternalError("TLS needs server_name= at a client")
        self.finds = finds
        self.identity, self.secret = (b"", b"") if key is None else key
        self.context = context
        self.staged = b""
        self.why = ""
        self.tls = tls_new(context.context, fd, context.server)
        if self.tls == NULL:
            raise InternalError("no memory for a TLS connection")
        if context.keyed:
            openssl.SSL_set_ex_data(self.tls.ssl, APP_DATA, <void*>self)
        elif not context.server:
            self.expect(server_name)

    def __dealloc__(self):
        tls_free(self.tls)

    cdef int expect(self, str server_name) except -1:
        """Sets the expected name. OpenSSL does not check a name that it refused."""
        cdef ptr ssl = self.tls.ssl
        cdef int good
        # The zone of a link-local address names an interface of this machine, and is in no certificate.
        name = server_name.partition("%")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            try:
                written = name.encode("ascii" if name.isascii() else "idna")
            except UnicodeError:
                written = b""
            good = bool(written) and written[:1] != b"." and b"\0" not in written
            openssl.X509_VERIFY_PARAM_set_hostflags(openssl.SSL_get0_param(ssl), HOST_FLAGS)
            good = (good and openssl.SSL_ctrl(ssl, CTRL_SERVER_NAME, 0, <char*>written) == 1
                    and openssl.SSL_set1_host(ssl, written) == 1)
        else:
            written = name.encode()
            good = openssl.X509_VERIFY_PARAM_set1_ip_asc(openssl.SSL_get0_param(ssl), written) == 1
        if not good:
            raise SecurityError(f"{server_name!r} is no name that a certificate could have")
        return 0

    def handshake(self):
        """Continues the handshake: True when it is complete and our last bytes are sent."""
        self.check()
        while not self.done:
            if not self.step():
                return False
        return self.flush()

    cdef int step(self) except -1:
        """One step: 1 to continue, 0 to wait for the peer."""
        cdef tls_t* tls = self.tls
        cdef int answer = 0
        cdef int why = 0
        cdef int filled
        cdef int error
        # OpenSSL gets whole records only: bytes of a partial one could not be counted any more.
        if tls.came.end == tls.came.start or tls_missing(tls) == 0:
            with nogil:
                pthread_mutex_lock(&tls.mutex)
                openssl.ERR_clear_error()
                answer = openssl.SSL_do_handshake(tls.ssl)
                if answer != 1:
                    why = openssl.SSL_get_error(tls.ssl, answer)
                pthread_mutex_unlock(&tls.mutex)
            if answer != 1 and why != WANT_READ:
                raise self.failure()
            self.flush()
            if answer == 1:
                if self.context.keyed and not openssl.SSL_session_reused(tls.ssl):
                    self.why = "the peer did not use the key"
                    raise OSError(EPROTO, self.why)
                self.done = True
                return 1
        if tls_unsent(tls):
            return 0
        filled = tls_fill(tls, 0)
        error = errno
        if filled > 0:
            if tls.taken > MAX_HANDSHAKE:
                self.why = f"a TLS handshake of more than {MAX_HANDSHAKE} bytes"
                raise OSError(EPROTO, self.why)
            if tls_missing(tls) == <size_t>-1:
                self.why = "the peer does not speak TLS"
                raise OSError(EPROTO, self.why)
            if self.context.server and not tls_is_hello(tls):
                self.why = "the peer begins with no ClientHello in one record"
                raise OSError(EPROTO, self.why)
            return 1
        if filled == 0:
            self.why = "the peer closed in the TLS handshake"
            raise OSError(ECONNRESET, self.why)
        if error in _LATER:
            return 0
        raise OSError(error, os.strerror(error))

    cdef object failure(self):
        """Sends the reason to the peer, as TLS does; returns the error to raise."""
        cdef long verified
        text = reasons()
        verified = openssl.SSL_get_verify_result(self.tls.ssl)
        if "certificate verify failed" in text and verified:
            text = openssl.X509_verify_cert_error_string(verified).decode()
            text = f"the peer's certificate is refused: {text}"
        if self.tls.exact and self.tls.taken > STRANGE:
            text = f"more than {STRANGE} bytes of an unauthenticated peer"
        elif self.tls.barren > BARREN:
            text = f"more than {BARREN} bytes of records without data"
        elif self.tls.replies.end - self.tls.replies.start > REPLIES:
            text = "the peer requests new keys again and again"
        self.why = text or "the peer broke the TLS protocol"
        tls_push(self.tls)
        return OSError(EPROTO, self.why)

    cdef int check(self) except -1:
        if self.tls == NULL:
            raise InternalError("this TLS channel belongs to a stream")
        if self.why:
            raise OSError(EPROTO, self.why)
        return 0

    cdef tls_t* give(self) except NULL:
        """Passes the connection to a stream, which frees it."""
        cdef tls_t* tls = self.tls
        self.check()
        if self.staged or openssl.SSL_pending(tls.ssl) or tls.came.end != tls.came.start:
            raise OSError(EPROTO, "the peer sent more than its part of the handshake")
        tls.exact = 0
        openssl.SSL_set_ex_data(tls.ssl, APP_DATA, NULL)  # the stream may outlive this channel
        self.tls = NULL
        return tls

    # --- bytes --------------------------------------------------------------------------------

    def ahead(self):
        """From now on reads take more than one record from the kernel."""
        self.check()
        self.tls.exact = 0

    @property
    def unsent(self):
        """Bytes that the kernel has not taken."""
        return tls_unsent(self.tls) if self.tls != NULL else 0

    @property
    def pending(self):
        """Decrypted bytes, which the descriptor does not report."""
        return len(self.staged) + (openssl.SSL_pending(self.tls.ssl) if self.tls != NULL else 0)

    def recv(self, Py_ssize_t size):
        """As a socket's."""
        memory = bytearray(size)
        del memory[self.recv_into(memory):]
        return bytes(memory)

    def recv_into(self, memory):
        """As a socket's. Less room than 32 KiB may leave some `pending`."""
        cdef Py_buffer view
        self.check()
        PyObject_GetBuffer(memory, &view, PyBUF_CONTIG_RO | PyBUF_WRITABLE)
        try:
            if self.staged:
                return self.unstage(<char*>view.buf, view.len)
            if view.len < SPILL and not self.tls.exact:
                self.staged = self.more()
                return self.unstage(<char*>view.buf, view.len)
            return self.read(<char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t unstage(self, char* data, Py_ssize_t size) except -1:
        size = min(size, len(self.staged))
        memcpy(data, PyBytes_AS_STRING(self.staged), size)
        self.staged = self.staged[size:]
        return size

    cdef bytes more(self):
        """The next bytes, for a caller with less room than a read needs."""
        cdef bytes room = PyBytes_FromStringAndSize(NULL, SPILL)
        return room[:self.read(PyBytes_AS_STRING(room), SPILL)]

    cdef Py_ssize_t read(self, char* data, Py_ssize_t size) except -1:
        cdef iovec vector
        cdef ssize_t count
        cdef int error
        vector.iov_base = data
        vector.iov_len = size
        with nogil:
            count = tls_read(self.tls, &vector, 1)
            error = errno
        if count >= 0:
            return count
        if self.tls.failed:
            raise self.failure()
        raise OSError(error, os.strerror(error))   # BlockingIOError among them

    def send(self, data):
        """As a socket's; the bytes taken may be `unsent` for a while."""
        return self.sendmsg((data,))

    def sendmsg(self, buffers, *_):
        """As a socket's: returns the number of plain bytes taken, all of them sent or `unsent`. It flushes
        earlier ones first, and raises BlockingIOError if it cannot."""
        cdef iovec vectors[MAX_BUFFERS]
        cdef Py_buffer views[MAX_BUFFERS]
        cdef int count = 0
        cdef size_t total = 0
        cdef ssize_t taken
        cdef int i
        self.check()
        if not self.flush():
            raise BlockingIOError(EAGAIN, os.strerror(EAGAIN))
        try:
            for buffer in buffers:
                if count == MAX_BUFFERS or total >= SEAL:
                    break
                PyObject_GetBuffer(buffer, &views[count], PyBUF_CONTIG_RO)
                vectors[count].iov_base = views[count].buf
                vectors[count].iov_len = min(<size_t>views[count].len, SEAL - total)
                total += vectors[count].iov_len
                count += 1
            with nogil:
                taken = tls_seal(self.tls, vectors, count)
        finally:
            for i in range(count):
                PyBuffer_Release(&views[i])
        if taken < 0:
            raise self.failure()
        self.flush()
        return taken

    def flush(self):
        """Writes unsent bytes as far as the kernel takes them. True when none are left."""
        cdef ssize_t written
        cdef int error
        while tls_unsent(self.tls):
            with nogil:
                written = tls_push(self.tls)
                error = errno
            if written < 0:
                if error in _LATER:
                    return False
                raise OSError(error, os.strerror(error))
        return True

    def close(self):
        """Sends the end of TLS, if the kernel takes it; the descriptor stays open. Idempotent."""
        if self.tls == NULL or self.why or not self.done:
            return
        self.why = "the channel is closed"
        openssl.ERR_clear_error()
        openssl.SSL_shutdown(self.tls.ssl)
        tls_push(self.tls)

    # --- the identities -------------------------------------------------------------------------

    @property
    def alpn(self):
        """The protocol that both sides have chosen, or ""."""
        cdef const unsigned char* name = NULL
        cdef unsigned int size = 0
        self.check()
        openssl.SSL_get0_alpn_selected(self.tls.ssl, &name, &size)
        return PyBytes_FromStringAndSize(<const char*>name, size).decode() if size else ""

    @property
    def binding(self):
        """Bytes that only the two ends of this connection have: equal for both, different for a relay's two
        connections."""
        cdef unsigned char exported[EXPORTED]
        self.check()
        if openssl.SSL_export_keying_material(self.tls.ssl, exported, EXPORTED, EXPORTER, len(EXPORTER),
                                              NULL, 0, 0) != 1:
            raise InternalError(f"OpenSSL exports no key: {reasons()}")
        return PyBytes_FromStringAndSize(<char*>exported, EXPORTED)

    @property
    def peer_certificate(self):
        """The peer's, as DER, or b"" if it sent none."""
        cdef ptr found
        self.check()
        found = openssl.SSL_get1_peer_certificate(self.tls.ssl)
        try:
            return encoded(found)
        finally:
            if found != NULL:
                openssl.X509_free(found)

    @property
    def own_certificate(self):
        """Ours, as DER, or b""."""
        self.check()
        return encoded(openssl.SSL_get_certificate(self.tls.ssl))


cdef bytes encoded(ptr certificate):
    cdef int size
    cdef bytes der
    cdef unsigned char* at
    if certificate == NULL:
        return b""
    size = openssl.i2d_X509(certificate, NULL)
    if size <= 0:
        return b""
    der = PyBytes_FromStringAndSize(NULL, size)
    at = <unsigned char*>PyBytes_AS_STRING(der)
    openssl.i2d_X509(certificate, &at)
    return der
