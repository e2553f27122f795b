# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Checks whether JSON decoders can read a peer's text, without the GIL: in a decoder, one message of 16 MiB
blocks all threads for a second."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

#: bytes from which the GIL is released
cdef Py_ssize_t NO_GIL_FROM = 16 * 1024
#: the most digits of an integer, with its sign: msgspec's limit, and one less than Python's
cdef Py_ssize_t MOST_DIGITS = 4300
#: the decimal exponent of the largest double, and the largest exponent that is counted
cdef Py_ssize_t LARGEST_EXPONENT = 308, MOST_EXPONENT = 1 << 58
#: the smallest decimal number that is rounded to infinity
cdef bytes _infinite = b"%d" % (2**1024 - 2**970)
cdef const unsigned char* INFINITE = _infinite
cdef Py_ssize_t INFINITE_DIGITS = len(_infinite)


cdef enum Fault:
    NONE, DEEP, LONG, LARGE


cdef inline bint is_digit(unsigned char byte) noexcept nogil:
    return c"0" <= byte <= c"9"


cdef inline const unsigned char* past_digits(
    const unsigned char* at, const unsigned char* end
) noexcept nogil:
    while at < end and is_digit(at[0]):
        at += 1
    return at


cdef const unsigned char* past_string(const unsigned char* at, const unsigned char* end) noexcept nogil:
    while at < end and at[0] != c'"':
        at += 2 if at[0] == c"\\" else 1
    return at + 1


cdef bint is_infinite(
    const unsigned char* at, const unsigned char* end, Py_ssize_t exponent
) noexcept nogil:
    """Digits, with or without a point; exponent: the first digit's."""
    cdef Py_ssize_t place
    while at < end and (at[0] == c"0" or at[0] == c"."):
        exponent -= at[0] == c"0"
        at += 1
    if at == end or exponent != LARGEST_EXPONENT:
        return at < end and exponent > LARGEST_EXPONENT
    for place in range(INFINITE_DIGITS):
        if at < end and at[0] == c".":
            at += 1
        if at == end or at[0] != INFINITE[place]:
            return at < end and at[0] > INFINITE[place]
        at += 1
    return True


cdef const unsigned char* past_number(
    const unsigned char* first, const unsigned char* end, bint signed, Fault* fault
) noexcept nogil:
    cdef const unsigned char* at = past_digits(first, end)
    cdef const unsigned char* digits
    cdef Py_ssize_t whole = at - first, exponent = 0
    cdef bint negative = False
    if at < end and at[0] == c".":
        at = past_digits(at + 1, end)
    digits = at
    if at < end and at[0] | 32 == c"e":
        at += 1
        if at < end and (at[0] == c"-" or at[0] == c"+"):
            negative = at[0] == c"-"
            at += 1
        while at < end and is_digit(at[0]):
            if exponent < MOST_EXPONENT:
                exponent = exponent * 10 + at[0] - c"0"
            at += 1
        if negative:
            exponent = -exponent
    if at - first == whole:
        if whole + signed > MOST_DIGITS:
            fault[0] = LONG
    elif whole + exponent > LARGEST_EXPONENT and is_infinite(first, digits, whole - 1 + exponent):
        fault[0] = LARGE
    return at


cdef Fault scan(
    const unsigned char* at, const unsigned char* end, Py_ssize_t deepest
) noexcept nogil:
    cdef Fault fault = NONE
    cdef Py_ssize_t depth = 0
    cdef unsigned char byte = 0, before
    while at < end and fault == NONE:
        before, byte = byte, at[0]
        if is_digit(byte):
            at = past_number(at, end, before == c"-", &fault)
            continue
        at += 1
        if byte == c'"':
            at = past_string(at, end)
        elif byte == c"[" or byte == c"{":
            depth += 1
            if depth > deepest:
                fault = DEEP
        elif byte == c"]" or byte == c"}":
            depth -= 1
    return fault


def check_json(text, Py_ssize_t deepest):
    cdef Py_buffer view
    cdef const unsigned char* first
    cdef Fault fault
    PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
    try:
        first = <const unsigned char*>view.buf
        if view.len < NO_GIL_FROM:
            fault = scan(first, first + view.len, deepest)
        else:
            with nogil:
                fault = scan(first, first + view.len, deepest)
    finally:
        PyBuffer_Release(&view)
    if fault == DEEP:
        raise ValueError(f"more than {deepest} arrays and objects within each other")
    if fault == LONG:
        raise ValueError(f"an integer of more than {MOST_DIGITS:,} digits")
    if fault == LARGE:
        raise ValueError("a number that is larger than any that a double holds")
