# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""libibverbs, looked up when the rdma transport is first used.

Not linked: installing needs no headers of rdma-core, and one build works with every release of it. Errors are
OSError with libibverbs' errno, and DeviceError if there is no libibverbs.
"""

import os

from libc.errno cimport ENOSYS, errno
from posix.dlfcn cimport RTLD_LOCAL, RTLD_NOW, dlerror, dlopen, dlsym

from transfer.transports import config
from transfer.transports.errors import DeviceError

cdef enum:
    IBV_FORK_UNNEEDED = 2

cdef extern from "<dlfcn.h>" nogil:
    ctypedef struct Dl_info:
        const char* dli_fname
    int dladdr(const void*, Dl_info*)

cdef bint loaded = False
cdef str file_name = ""
cdef int fork_status = 0


cdef int find(void* library, const char* name, void** place) except -1:
    place[0] = dlsym(library, name)
    if place[0] == NULL:
        raise DeviceError("version", f"this libibverbs has no {name.decode()}",
                          hint="install rdma-core 15 or newer (libibverbs1), or unset TRANSFER_LIBIBVERBS")
    return 0


cdef int load() except -1:
    """Looks up all functions, once. Raises DeviceError."""
    global loaded, file_name, fork_status
    cdef void* library
    cdef int (*fork_init)() noexcept nogil
    cdef int (*is_initialized)() noexcept nogil
    cdef Dl_info info
    cdef bytes path
    if loaded:
        return 0
    path = config.libibverbs().encode()
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        named = path != config.SYSTEMS_LIBIBVERBS.encode()
        raise DeviceError(
            "library",
            f"libibverbs cannot be loaded: {dlerror().decode(errors='replace')}"
            + (" (TRANSFER_LIBIBVERBS)" if named else ""),
            hint="unset TRANSFER_LIBIBVERBS, or name another libibverbs.so.1" if named else
            "install rdma-core (Debian, Ubuntu: libibverbs1 ibverbs-providers)")
    find(library, "ibv_get_device_list", <void**>&verbs.ibv_get_device_list)
    find(library, "ibv_free_device_list", <void**>&verbs.ibv_free_device_list)
    find(library, "ibv_get_device_name", <void**>&verbs.ibv_get_device_name)
    find(library, "ibv_open_device", <void**>&verbs.ibv_open_device)
    find(library, "ibv_close_device", <void**>&verbs.ibv_close_device)
    find(library, "ibv_query_device", <void**>&verbs.ibv_query_device)
    find(library, "ibv_query_port", <void**>&verbs.ibv_query_port)
    find(library, "ibv_query_gid", <void**>&verbs.ibv_query_gid)
    find(library, "ibv_get_async_event", <void**>&verbs.ibv_get_async_event)
    find(library, "ibv_ack_async_event", <void**>&verbs.ibv_ack_async_event)
    find(library, "ibv_alloc_pd", <void**>&verbs.ibv_alloc_pd)
    find(library, "ibv_dealloc_pd", <void**>&verbs.ibv_dealloc_pd)
    find(library, "ibv_reg_mr", <void**>&verbs.ibv_reg_mr)
    find(library, "ibv_dereg_mr", <void**>&verbs.ibv_dereg_mr)
    find(library, "ibv_create_comp_channel", <void**>&verbs.ibv_create_comp_channel)
    find(library, "ibv_destroy_comp_channel", <void**>&verbs.ibv_destroy_comp_channel)
    find(library, "ibv_create_cq", <void**>&verbs.ibv_create_cq)
    find(library, "ibv_destroy_cq", <void**>&verbs.ibv_destroy_cq)
    find(library, "ibv_get_cq_event", <void**>&verbs.ibv_get_cq_event)
    find(library, "ibv_ack_cq_events", <void**>&verbs.ibv_ack_cq_events)
    find(library, "ibv_create_qp", <void**>&verbs.ibv_create_qp)
    find(library, "ibv_modify_qp", <void**>&verbs.ibv_modify_qp)
    find(library, "ibv_destroy_qp", <void**>&verbs.ibv_destroy_qp)
    (<void**>&verbs.ibv_reg_dmabuf_mr)[0] = dlsym(library, "ibv_reg_dmabuf_mr")
    # Before Linux 5.12 a fork could move registered pages away from the parent. Newer ones need nothing.
    fork_init = <int (*)() noexcept nogil> dlsym(library, "ibv_fork_init")
    is_initialized = <int (*)() noexcept nogil> dlsym(library, "ibv_is_fork_initialized")
    if fork_init != NULL:
        fork_init()
    fork_status = is_initialized() if is_initialized != NULL else 0
    if dladdr(<void*> verbs.ibv_open_device, &info):
        file_name = os.path.realpath(info.dli_fname.decode(errors="replace"))
    loaded = True
    return 0


cdef object failed(int number, str what):
    return OSError(number, f"{what}: {os.strerror(number)}")


def library_file():
    """The path of the loaded libibverbs. Raises DeviceError."""
    load()
    return file_name


def forget():
    """The next use looks it up again: another TRANSFER_LIBIBVERBS takes effect. No device may be open."""
    global loaded
    loaded = False


def forks_freely():
    """Whether a forked child keeps memory that is registered here: newer kernels copy it for the child, on
    older ones libibverbs takes it away from the child. Raises DeviceError."""
    load()
    return fork_status == IBV_FORK_UNNEEDED


def has_dmabuf():
    """Whether this libibverbs registers a dma-buf (rdma-core 34). Raises DeviceError."""
    load()
    return verbs.ibv_reg_dmabuf_mr != NULL


def device_names():
    """The names of the devices. Raises DeviceError, OSError."""
    cdef int count = 0
    cdef void** found
    load()
    with nogil:
        found = verbs.ibv_get_device_list(&count)
    if found == NULL:
        raise failed(errno or ENOSYS, "listing the devices")
    try:
        return [verbs.ibv_get_device_name(found[at]).decode() for at in range(count)]
    finally:
        verbs.ibv_free_device_list(found)
