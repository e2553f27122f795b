# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""X25519 (RFC 7748): two sides agree on a secret by their keys, of 32 bytes each, by OpenSSL."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from transfer.transports.errors import SecurityError

from transfer.transports.core.native.openssl cimport load, openssl, ptr

cdef enum:
    SIZE = 32
    KIND = 1034                    # EVP_PKEY_X25519


def x25519(bytes secret not None, bytes public not None):
    """See core/contract.pyi."""
    cdef unsigned char shared[SIZE]
    cdef size_t size = SIZE
    cdef ptr ours = NULL
    cdef ptr theirs = NULL
    cdef ptr context = NULL
    cdef bint good = False
    if len(secret) != SIZE or len(public) != SIZE:
        raise SecurityError(f"a key of X25519 has {SIZE} bytes")
    load()
    ours = openssl.EVP_PKEY_new_raw_private_key(KIND, NULL, <unsigned char*>PyBytes_AS_STRING(secret), SIZE)
    theirs = openssl.EVP_PKEY_new_raw_public_key(KIND, NULL, <unsigned char*>PyBytes_AS_STRING(public), SIZE)
    if ours != NULL and theirs != NULL:
        context = openssl.EVP_PKEY_CTX_new(ours, NULL)
    # OpenSSL refuses public keys that give the same secret whatever the other key is.
    if context != NULL:
        good = (openssl.EVP_PKEY_derive_init(context) == 1
                and openssl.EVP_PKEY_derive_set_peer(context, theirs) == 1
                and openssl.EVP_PKEY_derive(context, shared, &size) == 1 and size == SIZE)
    openssl.EVP_PKEY_CTX_free(context)
    openssl.EVP_PKEY_free(theirs)
    openssl.EVP_PKEY_free(ours)
    openssl.ERR_clear_error()
    if not good:
        raise SecurityError("this is no public key of X25519")
    return PyBytes_FromStringAndSize(<char*>shared, SIZE)
