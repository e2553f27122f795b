# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The CUDA driver, looked up when memory of a GPU is first used.

Not linked: installing needs no CUDA. `load` makes no context, and takes no memory of a GPU. Errors are
DeviceError: "no_cuda" where there is no driver or no GPU, "version", "cuda" for calls that fail.
"""

from libc.stdint cimport uint64_t
from posix.dlfcn cimport RTLD_LOCAL, RTLD_NOW, dlerror, dlopen, dlsym

from transfer.transports import config
from transfer.transports.errors import DeviceError, ForkedError

from transfer.transports.core.native cimport kernel_writes as native_link
from transfer.transports.core.native.thread cimport watch_forks

cdef bint loaded = False
cdef int generation = 0         # of the process that loaded it


cdef int find(void* library, const char* name, void** place) except -1:
    place[0] = dlsym(library, name)
    if place[0] == NULL:
        raise DeviceError("version", f"this CUDA driver has no {name.decode()}",
                          hint="install the driver of CUDA 11.4 or newer, or unset TRANSFER_LIBCUDA")
    return 0


cdef int load() except -1:
    """Looks up all functions, and initialises the driver, once. Raises DeviceError."""
    global loaded, generation
    cdef void* library
    cdef int code
    cdef bytes path
    if loaded and not is_ours():
        raise ForkedError("CUDA began before the process forked",
                          hint="start the child with spawn or forkserver")
    if loaded:
        return 0
    path = config.libcuda().encode()
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise DeviceError(
            "no_cuda", f"the CUDA driver cannot be loaded: {dlerror().decode(errors='replace')}",
            hint="install NVIDIA's driver, or give the container its GPUs (nvidia-container-toolkit)")
    find(library, "cuInit", <void**>&cuda.cuInit)
    find(library, "cuDriverGetVersion", <void**>&cuda.cuDriverGetVersion)
    find(library, "cuGetErrorName", <void**>&cuda.cuGetErrorName)
    find(library, "cuDeviceGetCount", <void**>&cuda.cuDeviceGetCount)
    find(library, "cuDeviceGet", <void**>&cuda.cuDeviceGet)
    find(library, "cuDeviceGetUuid_v2", <void**>&cuda.cuDeviceGetUuid_v2)
    find(library, "cuDeviceGetAttribute", <void**>&cuda.cuDeviceGetAttribute)
    find(library, "cuDevicePrimaryCtxRetain", <void**>&cuda.cuDevicePrimaryCtxRetain)
    find(library, "cuDevicePrimaryCtxGetState", <void**>&cuda.cuDevicePrimaryCtxGetState)
    find(library, "cuCtxGetDevice", <void**>&cuda.cuCtxGetDevice)
    find(library, "cuCtxPushCurrent_v2", <void**>&cuda.cuCtxPushCurrent_v2)
    find(library, "cuCtxPopCurrent_v2", <void**>&cuda.cuCtxPopCurrent_v2)
    find(library, "cuCtxSynchronize", <void**>&cuda.cuCtxSynchronize)
    find(library, "cuPointerGetAttribute", <void**>&cuda.cuPointerGetAttribute)
    find(library, "cuMemAlloc_v2", <void**>&cuda.cuMemAlloc_v2)
    find(library, "cuMemFree_v2", <void**>&cuda.cuMemFree_v2)
    find(library, "cuMemHostRegister_v2", <void**>&cuda.cuMemHostRegister_v2)
    find(library, "cuMemHostUnregister", <void**>&cuda.cuMemHostUnregister)
    find(library, "cuMemcpyAsync", <void**>&cuda.cuMemcpyAsync)
    find(library, "cuStreamCreate", <void**>&cuda.cuStreamCreate)
    find(library, "cuStreamDestroy_v2", <void**>&cuda.cuStreamDestroy_v2)
    find(library, "cuStreamSynchronize", <void**>&cuda.cuStreamSynchronize)
    find(library, "cuStreamWaitEvent", <void**>&cuda.cuStreamWaitEvent)
    find(library, "cuEventCreate", <void**>&cuda.cuEventCreate)
    find(library, "cuEventDestroy_v2", <void**>&cuda.cuEventDestroy_v2)
    find(library, "cuEventRecord", <void**>&cuda.cuEventRecord)
    find(library, "cuEventQuery", <void**>&cuda.cuEventQuery)
    find(library, "cuEventSynchronize", <void**>&cuda.cuEventSynchronize)
    find(library, "cuIpcGetMemHandle", <void**>&cuda.cuIpcGetMemHandle)
    find(library, "cuIpcOpenMemHandle_v2", <void**>&cuda.cuIpcOpenMemHandle_v2)
    find(library, "cuIpcCloseMemHandle", <void**>&cuda.cuIpcCloseMemHandle)
    find(library, "cuIpcGetEventHandle", <void**>&cuda.cuIpcGetEventHandle)
    find(library, "cuIpcOpenEventHandle", <void**>&cuda.cuIpcOpenEventHandle)
    find(library, "cuMemGetAddressRange_v2", <void**>&cuda.cuMemGetAddressRange_v2)
    find(library, "cuMemRetainAllocationHandle", <void**>&cuda.cuMemRetainAllocationHandle)
    find(library, "cuMemExportToShareableHandle", <void**>&cuda.cuMemExportToShareableHandle)
    find(library, "cuMemImportFromShareableHandle", <void**>&cuda.cuMemImportFromShareableHandle)
    find(library, "cuMemRelease", <void**>&cuda.cuMemRelease)
    find(library, "cuMemAddressReserve", <void**>&cuda.cuMemAddressReserve)
    find(library, "cuMemAddressFree", <void**>&cuda.cuMemAddressFree)
    find(library, "cuMemMap", <void**>&cuda.cuMemMap)
    find(library, "cuMemUnmap", <void**>&cuda.cuMemUnmap)
    find(library, "cuMemSetAccess", <void**>&cuda.cuMemSetAccess)
    cuda.cuCtxRecordEvent = <int (*)(void*, void*) noexcept nogil> dlsym(library, "cuCtxRecordEvent")
    (<void**>&cuda.cuMemGetHandleForAddressRange)[0] = dlsym(library, "cuMemGetHandleForAddressRange")
    (<void**>&cuda.cuFlushGPUDirectRDMAWrites)[0] = dlsym(library, "cuFlushGPUDirectRDMAWrites")
    with nogil:
        code = cuda.cuInit(0)
    if code:
        raise DeviceError(
            "no_cuda", f"the CUDA driver finds no GPU to use: {error_name(code)}",
            hint="does nvidia-smi show one? may this process use /dev/nvidia*? see CUDA_VISIBLE_DEVICES")
    watch_forks()
    generation = native_link.fork_generation
    loaded = True
    return 0


cdef bint is_ours() noexcept:
    """Whether what CUDA has made may be used and freed: not in a fork of the process that began it."""
    return generation == native_link.fork_generation


cdef str error_name(int code):
    cdef const char* name = NULL
    if cuda.cuGetErrorName(code, &name) or name == NULL:
        return f"error {code}"
    return name.decode()


cdef object failed(int code, str what):
    hint = ""
    if code == CUDA_ERROR_OUT_OF_MEMORY:
        hint = "the GPU's memory is used up: free tensors, or torch.cuda.empty_cache()"
    return DeviceError("cuda", f"{what}: {error_name(code)}", hint=hint)


cdef int check(int code, str what) except -1:
    """Raises DeviceError("cuda") unless the call succeeded."""
    if code:
        raise failed(code, what)
    return 0


def version():
    """The CUDA version of the driver, 12090 for 12.9. Raises DeviceError."""
    cdef int number = 0
    load()
    check(cuda.cuDriverGetVersion(&number), "the driver's version")
    return number


def device_count():
    """GPUs that this process sees, by CUDA_VISIBLE_DEVICES. Raises DeviceError."""
    cdef int count = 0
    load()
    check(cuda.cuDeviceGetCount(&count), "counting the GPUs")
    return count


def device_uuid(int index):
    """The 16 bytes by which all processes know this GPU, whatever number it has there. Raises DeviceError."""
    cdef char uuid[16]
    load()
    check(cuda.cuDeviceGetUuid_v2(uuid, device_handle(index)), f"the identity of GPU {index}")
    return uuid[:16]


cdef int device_handle(int index) except -1:
    cdef int handle = 0
    load()
    check(cuda.cuDeviceGet(&handle, index), f"GPU {index}")
    return handle


def device_attribute(int index, int number):
    """An attribute of a GPU; None: this driver does not know it. Raises DeviceError."""
    cdef int value = 0
    cdef int handle = device_handle(index)
    return None if cuda.cuDeviceGetAttribute(&value, number, handle) else value


def used_gpu():
    """The number of the GPU that this thread uses, else of the first one that this process uses; None: there
    is none yet. Makes no context. Raises DeviceError."""
    cdef int handle = 0
    cdef int is_active = 0
    cdef unsigned int flags = 0
    cdef int is_current
    load()
    is_current = not cuda.cuCtxGetDevice(&handle)
    for index in range(device_count()):
        if is_current:
            if device_handle(index) == handle:
                return index
        elif not cuda.cuDevicePrimaryCtxGetState(device_handle(index), &flags, &is_active) and is_active:
            return index
    return None


def pointer_attribute(uint64_t pointer, int number):
    """An attribute of memory; None: this driver does not know it, or the memory. Raises DeviceError."""
    cdef uint64_t value = 0
    load()
    return None if cuda.cuPointerGetAttribute(&value, number, pointer) else value
