# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""CRC-32C, for the records of the log. google-crc32c accepts only `bytes`: a copy of every tensor."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t


cdef extern from "crc32c.h" nogil:
    void transfer_crc_prepare()
    uint32_t transfer_crc_software(uint32_t value, const unsigned char* at, size_t n)
    uint32_t transfer_crc_hardware(uint32_t value, const unsigned char* at, size_t n)
    int transfer_crc_has_hardware()

#: bytes from which the GIL is released
cdef Py_ssize_t NO_GIL_FROM = 16 * 1024

transfer_crc_prepare()
cdef bint in_hardware = transfer_crc_has_hardware()


cdef uint32_t continued(uint32_t value, const unsigned char* at, size_t n, bint hardware) noexcept nogil:
    if hardware:
        return transfer_crc_hardware(value, at, n)
    return transfer_crc_software(value, at, n)


def crc32c(data, uint32_t value=0, *, bint software=False):
    cdef Py_buffer view
    cdef bint hardware = in_hardware and not software
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        value = ~value
        if view.len < NO_GIL_FROM:
            value = continued(value, <unsigned char*>view.buf, view.len, hardware)
        else:
            with nogil:
                value = continued(value, <unsigned char*>view.buf, view.len, hardware)
    finally:
        PyBuffer_Release(&view)
    return ~value
