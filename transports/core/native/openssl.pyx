# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""OpenSSL, looked up when TLS is first used: the same library that Python's `ssl` has loaded.

Not linked: installing needs no headers of OpenSSL, and a process has one copy of it. The functions are called
by address; all of them exist since OpenSSL 3.0 and are stable.
"""

from posix.dlfcn cimport RTLD_LOCAL, RTLD_NOW, dlopen, dlsym

from transfer.transports import config
from transfer.transports.errors import NotSupported

cdef bint loaded = False


cdef void* library_of_python() except NULL:
    """A lookup searches the dependencies of a library, too: so this finds the one that `_ssl` is linked
    to."""
    cdef void* library = NULL
    import _ssl

    wished = config.libssl()
    for path in (wished, getattr(_ssl, "__file__", ""), "libssl.so.3"):
        if not path:
            continue
        library = dlopen(path.encode(), RTLD_NOW | RTLD_LOCAL)
        if library != NULL and dlsym(library, "SSL_get1_peer_certificate") != NULL:
            return library
        if path == wished:
            raise NotSupported(f"TRANSFER_LIBSSL names {wished}, which is no libssl of OpenSSL 3",
                               hint="unset it to use the one that Python's own ssl uses")
    raise NotSupported(
        "there is no OpenSSL 3 that the compiled core can use",
        hint="install libssl3, or set TRANSFER_CORE=pure, which uses Python's own")


cdef int find(void* library, const char* name, void** place) except -1:
    place[0] = dlsym(library, name)
    if place[0] == NULL:
        raise NotSupported(f"this OpenSSL has no {name.decode()}", hint="TLS needs OpenSSL 3.0 or newer")
    return 0


cdef int load() except -1:
    """Looks up all functions, once. Raises NotSupported."""
    global loaded
    cdef void* library
    if loaded:
        return 0
    library = library_of_python()
    find(library, "TLS_server_method", <void**>&openssl.TLS_server_method)
    find(library, "TLS_client_method", <void**>&openssl.TLS_client_method)
    find(library, "SSL_CTX_new", <void**>&openssl.SSL_CTX_new)
    find(library, "SSL_CTX_free", <void**>&openssl.SSL_CTX_free)
    find(library, "SSL_CTX_ctrl", <void**>&openssl.SSL_CTX_ctrl)
    find(library, "SSL_CTX_set_ciphersuites", <void**>&openssl.SSL_CTX_set_ciphersuites)
    find(library, "SSL_CTX_set_default_passwd_cb", <void**>&openssl.SSL_CTX_set_default_passwd_cb)
    find(library, "SSL_CTX_set_num_tickets", <void**>&openssl.SSL_CTX_set_num_tickets)
    find(library, "SSL_CTX_use_certificate_chain_file", <void**>&openssl.SSL_CTX_use_certificate_chain_file)
    find(library, "SSL_CTX_use_PrivateKey_file", <void**>&openssl.SSL_CTX_use_PrivateKey_file)
    find(library, "SSL_CTX_check_private_key", <void**>&openssl.SSL_CTX_check_private_key)
    find(library, "SSL_CTX_load_verify_locations", <void**>&openssl.SSL_CTX_load_verify_locations)
    find(library, "SSL_CTX_set_default_verify_paths", <void**>&openssl.SSL_CTX_set_default_verify_paths)
    find(library, "SSL_CTX_set_verify", <void**>&openssl.SSL_CTX_set_verify)
    find(library, "SSL_CTX_set_alpn_protos", <void**>&openssl.SSL_CTX_set_alpn_protos)
    find(library, "SSL_CTX_set_alpn_select_cb", <void**>&openssl.SSL_CTX_set_alpn_select_cb)
    find(library, "SSL_select_next_proto", <void**>&openssl.SSL_select_next_proto)
    # Some builds have no keys that both sides share: NULL there.
    openssl.SSL_CTX_set_psk_client_callback = <psk_client_set_f>dlsym(
        library, "SSL_CTX_set_psk_client_callback")
    openssl.SSL_CTX_set_psk_server_callback = <psk_server_set_f>dlsym(
        library, "SSL_CTX_set_psk_server_callback")
    find(library, "SSL_new", <void**>&openssl.SSL_new)
    find(library, "SSL_set_ex_data", <void**>&openssl.SSL_set_ex_data)
    find(library, "SSL_get_ex_data", <void**>&openssl.SSL_get_ex_data)
    find(library, "SSL_session_reused", <void**>&openssl.SSL_session_reused)
    find(library, "SSL_export_keying_material", <void**>&openssl.SSL_export_keying_material)
    find(library, "SSL_free", <void**>&openssl.SSL_free)
    find(library, "SSL_set_bio", <void**>&openssl.SSL_set_bio)
    find(library, "SSL_set_accept_state", <void**>&openssl.SSL_set_accept_state)
    find(library, "SSL_set_connect_state", <void**>&openssl.SSL_set_connect_state)
    find(library, "SSL_ctrl", <void**>&openssl.SSL_ctrl)
    find(library, "SSL_set1_host", <void**>&openssl.SSL_set1_host)
    find(library, "SSL_get0_param", <void**>&openssl.SSL_get0_param)
    find(library, "SSL_do_handshake", <void**>&openssl.SSL_do_handshake)
    find(library, "SSL_read_ex", <void**>&openssl.SSL_read_ex)
    find(library, "SSL_write_ex", <void**>&openssl.SSL_write_ex)
    find(library, "SSL_pending", <void**>&openssl.SSL_pending)
    find(library, "SSL_shutdown", <void**>&openssl.SSL_shutdown)
    find(library, "SSL_get_error", <void**>&openssl.SSL_get_error)
    find(library, "SSL_get_verify_result", <void**>&openssl.SSL_get_verify_result)
    find(library, "SSL_get1_peer_certificate", <void**>&openssl.SSL_get1_peer_certificate)
    find(library, "SSL_get_certificate", <void**>&openssl.SSL_get_certificate)
    find(library, "SSL_get0_alpn_selected", <void**>&openssl.SSL_get0_alpn_selected)
    find(library, "BIO_meth_new", <void**>&openssl.BIO_meth_new)
    find(library, "BIO_meth_set_read", <void**>&openssl.BIO_meth_set_read)
    find(library, "BIO_meth_set_write", <void**>&openssl.BIO_meth_set_write)
    find(library, "BIO_meth_set_ctrl", <void**>&openssl.BIO_meth_set_ctrl)
    find(library, "BIO_new", <void**>&openssl.BIO_new)
    find(library, "BIO_set_data", <void**>&openssl.BIO_set_data)
    find(library, "BIO_get_data", <void**>&openssl.BIO_get_data)
    find(library, "BIO_set_init", <void**>&openssl.BIO_set_init)
    find(library, "BIO_set_flags", <void**>&openssl.BIO_set_flags)
    find(library, "BIO_clear_flags", <void**>&openssl.BIO_clear_flags)
    find(library, "X509_VERIFY_PARAM_set1_ip_asc", <void**>&openssl.X509_VERIFY_PARAM_set1_ip_asc)
    find(library, "X509_VERIFY_PARAM_set_hostflags", <void**>&openssl.X509_VERIFY_PARAM_set_hostflags)
    find(library, "X509_verify_cert_error_string", <void**>&openssl.X509_verify_cert_error_string)
    find(library, "i2d_X509", <void**>&openssl.i2d_X509)
    find(library, "X509_free", <void**>&openssl.X509_free)
    find(library, "EVP_PKEY_new_raw_private_key", <void**>&openssl.EVP_PKEY_new_raw_private_key)
    find(library, "EVP_PKEY_new_raw_public_key", <void**>&openssl.EVP_PKEY_new_raw_public_key)
    find(library, "EVP_PKEY_free", <void**>&openssl.EVP_PKEY_free)
    find(library, "EVP_PKEY_CTX_new", <void**>&openssl.EVP_PKEY_CTX_new)
    find(library, "EVP_PKEY_CTX_free", <void**>&openssl.EVP_PKEY_CTX_free)
    find(library, "EVP_PKEY_derive_init", <void**>&openssl.EVP_PKEY_derive_init)
    find(library, "EVP_PKEY_derive_set_peer", <void**>&openssl.EVP_PKEY_derive_set_peer)
    find(library, "EVP_PKEY_derive", <void**>&openssl.EVP_PKEY_derive)
    find(library, "ERR_clear_error", <void**>&openssl.ERR_clear_error)
    find(library, "ERR_get_error", <void**>&openssl.ERR_get_error)
    find(library, "ERR_reason_error_string", <void**>&openssl.ERR_reason_error_string)
    find(library, "OpenSSL_version", <void**>&openssl.OpenSSL_version)
    loaded = True
    return 0


def openssl_version():
    """The version of the OpenSSL that the core uses. Raises NotSupported."""
    load()
    return openssl.OpenSSL_version(0).decode()


cdef str reasons():
    """Takes OpenSSL's errors of this thread, the first cause first, and clears them."""
    cdef unsigned long code = openssl.ERR_get_error()
    cdef const char* text
    cdef list words = []
    while code:
        text = openssl.ERR_reason_error_string(code)
        if text != NULL:
            word = text.decode("utf-8", "replace")
            if word not in words:
                words.append(word)
        code = openssl.ERR_get_error()
    return "; ".join(words)
