# Headers of tensors that were sent before. See known_tensors.pyx.

cdef tuple known_frame(object tensor)
cdef int note_header(object tensor, int flags, bytes header) except -1
