# The functions of OpenSSL that the core calls, looked up when they are first needed. See openssl.pyx.

ctypedef void* ptr
ctypedef int (*verify_f)(int, ptr) noexcept nogil
ctypedef int (*password_f)(char*, int, int, void*) noexcept nogil
ctypedef int (*bio_read_f)(ptr, char*, int) noexcept nogil
ctypedef int (*bio_write_f)(ptr, const char*, int) noexcept nogil
ctypedef long (*bio_ctrl_f)(ptr, int, long, void*) noexcept nogil
ctypedef unsigned int (*psk_client_f)(ptr, const char*, char*, unsigned int, unsigned char*,
                                      unsigned int) noexcept nogil
ctypedef unsigned int (*psk_server_f)(ptr, const char*, unsigned char*, unsigned int) noexcept nogil
ctypedef void (*psk_client_set_f)(ptr, psk_client_f) noexcept nogil
ctypedef void (*psk_server_set_f)(ptr, psk_server_f) noexcept nogil
ctypedef int (*alpn_f)(ptr, const unsigned char**, unsigned char*, const unsigned char*, unsigned int,
                       void*) noexcept nogil

cdef struct openssl_t:
    ptr (*TLS_server_method)() noexcept nogil
    ptr (*TLS_client_method)() noexcept nogil
    ptr (*SSL_CTX_new)(ptr) noexcept nogil
    void (*SSL_CTX_free)(ptr) noexcept nogil
    long (*SSL_CTX_ctrl)(ptr, int, long, void*) noexcept nogil
    int (*SSL_CTX_set_ciphersuites)(ptr, const char*) noexcept nogil
    void (*SSL_CTX_set_default_passwd_cb)(ptr, password_f) noexcept nogil
    int (*SSL_CTX_set_num_tickets)(ptr, size_t) noexcept nogil
    int (*SSL_CTX_use_certificate_chain_file)(ptr, const char*) noexcept nogil
    int (*SSL_CTX_use_PrivateKey_file)(ptr, const char*, int) noexcept nogil
    int (*SSL_CTX_check_private_key)(ptr) noexcept nogil
    int (*SSL_CTX_load_verify_locations)(ptr, const char*, const char*) noexcept nogil
    int (*SSL_CTX_set_default_verify_paths)(ptr) noexcept nogil
    void (*SSL_CTX_set_verify)(ptr, int, verify_f) noexcept nogil
    int (*SSL_CTX_set_alpn_protos)(ptr, const unsigned char*, unsigned int) noexcept nogil
    void (*SSL_CTX_set_alpn_select_cb)(ptr, alpn_f, void*) noexcept nogil
    int (*SSL_select_next_proto)(unsigned char**, unsigned char*, const unsigned char*, unsigned int,
                                 const unsigned char*, unsigned int) noexcept nogil
    psk_client_set_f SSL_CTX_set_psk_client_callback
    psk_server_set_f SSL_CTX_set_psk_server_callback
    ptr (*SSL_new)(ptr) noexcept nogil
    int (*SSL_set_ex_data)(ptr, int, void*) noexcept nogil
    void* (*SSL_get_ex_data)(ptr, int) noexcept nogil
    int (*SSL_session_reused)(ptr) noexcept nogil
    int (*SSL_export_keying_material)(ptr, unsigned char*, size_t, const char*, size_t, const unsigned char*,
                                      size_t, int) noexcept nogil
    void (*SSL_free)(ptr) noexcept nogil
    void (*SSL_set_bio)(ptr, ptr, ptr) noexcept nogil
    void (*SSL_set_accept_state)(ptr) noexcept nogil
    void (*SSL_set_connect_state)(ptr) noexcept nogil
    long (*SSL_ctrl)(ptr, int, long, void*) noexcept nogil
    int (*SSL_set1_host)(ptr, const char*) noexcept nogil
    ptr (*SSL_get0_param)(ptr) noexcept nogil
    int (*SSL_do_handshake)(ptr) noexcept nogil
    int (*SSL_read_ex)(ptr, void*, size_t, size_t*) noexcept nogil
    int (*SSL_write_ex)(ptr, const void*, size_t, size_t*) noexcept nogil
    int (*SSL_pending)(ptr) noexcept nogil
    int (*SSL_shutdown)(ptr) noexcept nogil
    int (*SSL_get_error)(ptr, int) noexcept nogil
    long (*SSL_get_verify_result)(ptr) noexcept nogil
    ptr (*SSL_get1_peer_certificate)(ptr) noexcept nogil
    ptr (*SSL_get_certificate)(ptr) noexcept nogil
    void (*SSL_get0_alpn_selected)(ptr, const unsigned char**, unsigned int*) noexcept nogil
    # of libcrypto
    ptr (*BIO_meth_new)(int, const char*) noexcept nogil
    int (*BIO_meth_set_read)(ptr, bio_read_f) noexcept nogil
    int (*BIO_meth_set_write)(ptr, bio_write_f) noexcept nogil
    int (*BIO_meth_set_ctrl)(ptr, bio_ctrl_f) noexcept nogil
    ptr (*BIO_new)(ptr) noexcept nogil
    void (*BIO_set_data)(ptr, void*) noexcept nogil
    void* (*BIO_get_data)(ptr) noexcept nogil
    void (*BIO_set_init)(ptr, int) noexcept nogil
    void (*BIO_set_flags)(ptr, int) noexcept nogil
    void (*BIO_clear_flags)(ptr, int) noexcept nogil
    int (*X509_VERIFY_PARAM_set1_ip_asc)(ptr, const char*) noexcept nogil
    void (*X509_VERIFY_PARAM_set_hostflags)(ptr, unsigned int) noexcept nogil
    const char* (*X509_verify_cert_error_string)(long) noexcept nogil
    int (*i2d_X509)(ptr, unsigned char**) noexcept nogil
    void (*X509_free)(ptr) noexcept nogil
    ptr (*EVP_PKEY_new_raw_private_key)(int, ptr, const unsigned char*, size_t) noexcept nogil
    ptr (*EVP_PKEY_new_raw_public_key)(int, ptr, const unsigned char*, size_t) noexcept nogil
    void (*EVP_PKEY_free)(ptr) noexcept nogil
    ptr (*EVP_PKEY_CTX_new)(ptr, ptr) noexcept nogil
    void (*EVP_PKEY_CTX_free)(ptr) noexcept nogil
    int (*EVP_PKEY_derive_init)(ptr) noexcept nogil
    int (*EVP_PKEY_derive_set_peer)(ptr, ptr) noexcept nogil
    int (*EVP_PKEY_derive)(ptr, unsigned char*, size_t*) noexcept nogil
    const char* (*OpenSSL_version)(int) noexcept nogil
    void (*ERR_clear_error)() noexcept nogil
    unsigned long (*ERR_get_error)() noexcept nogil
    const char* (*ERR_reason_error_string)(unsigned long) noexcept nogil

cdef openssl_t openssl

cdef int load() except -1
cdef str reasons()
