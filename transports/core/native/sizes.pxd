# The sizes of transports/sizes.py, as constants of C. tests/core/test_sizes.py compares them.

cdef enum:
    LARGE = 64 * 1024
    VERY_LARGE = 256 * 1024
