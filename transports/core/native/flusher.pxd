# Layout of the compiled Flusher. See flusher.pyx.

from transfer.transports.core.native.kernel_writes cimport flusher_t, segment_t

# Bytes read ahead of one connection. `drained`: the last read emptied the kernel's buffer.
cdef struct reader_t:
    char* data
    size_t start
    size_t end
    size_t capacity
    int drained
    int reads                 # remaining reads before another stream's turn; -1: no limit
    int large                 # a large frame was read in this turn


cdef class Flusher:
    cdef flusher_t* state
    cdef reader_t reader      # for streams that no socket reads, and whether a thread has it now
    cdef bint reader_taken
    cdef object __weakref__

    cdef segment_t* take_finished(self) noexcept
    cdef int end(self) except -1

cdef void let_go(flusher_t* state) noexcept
cdef int release_segments(segment_t* segment, object error) except -1
cdef int inform(object released, object error) except -1
cdef int raise_soon(object interruption) except -1
cdef int check_signals() except -1
