# The CUDA driver's calls that are used, by the names under which the library exports them, as declared by
# NVIDIA's cuda.h of CUDA 12.9. `tests/cuda` compares the numbers with the vendor's.

from libc.stdint cimport uint64_t

cdef enum:
    HANDLE_SIZE = 64
    CU_EVENT_DISABLE_TIMING = 2
    CU_EVENT_INTERPROCESS = 4
    CU_STREAM_NON_BLOCKING = 1
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
    CU_MEM_LOCATION_TYPE_DEVICE = 1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_READY = 600

cdef struct ipc_handle_t:
    char reserved[HANDLE_SIZE]

cdef struct access_t:                   # CUmemAccessDesc
    int location_type
    int location_id
    int flags

cdef struct cuda_t:
    int (*cuInit)(unsigned int) noexcept nogil
    int (*cuDriverGetVersion)(int*) noexcept nogil
    int (*cuGetErrorName)(int, const char**) noexcept nogil
    int (*cuDeviceGetCount)(int*) noexcept nogil
    int (*cuDeviceGet)(int*, int) noexcept nogil
    int (*cuDeviceGetUuid_v2)(char*, int) noexcept nogil
    int (*cuDeviceGetAttribute)(int*, int, int) noexcept nogil
    int (*cuDevicePrimaryCtxRetain)(void**, int) noexcept nogil
    int (*cuDevicePrimaryCtxGetState)(int, unsigned int*, int*) noexcept nogil
    int (*cuCtxGetDevice)(int*) noexcept nogil
    int (*cuCtxPushCurrent_v2)(void*) noexcept nogil
    int (*cuCtxPopCurrent_v2)(void**) noexcept nogil
    int (*cuCtxSynchronize)() noexcept nogil
    int (*cuPointerGetAttribute)(void*, int, uint64_t) noexcept nogil
    int (*cuMemAlloc_v2)(uint64_t*, size_t) noexcept nogil
    int (*cuMemFree_v2)(uint64_t) noexcept nogil
    int (*cuMemHostRegister_v2)(void*, size_t, unsigned int) noexcept nogil
    int (*cuMemHostUnregister)(void*) noexcept nogil
    int (*cuMemcpyAsync)(uint64_t, uint64_t, size_t, void*) noexcept nogil
    int (*cuStreamCreate)(void**, unsigned int) noexcept nogil
    int (*cuStreamDestroy_v2)(void*) noexcept nogil
    int (*cuStreamSynchronize)(void*) noexcept nogil
    int (*cuStreamWaitEvent)(void*, void*, unsigned int) noexcept nogil
    int (*cuEventCreate)(void**, unsigned int) noexcept nogil
    int (*cuEventDestroy_v2)(void*) noexcept nogil
    int (*cuEventRecord)(void*, void*) noexcept nogil
    int (*cuEventQuery)(void*) noexcept nogil
    int (*cuEventSynchronize)(void*) noexcept nogil
    int (*cuIpcGetMemHandle)(ipc_handle_t*, uint64_t) noexcept nogil
    int (*cuIpcOpenMemHandle_v2)(uint64_t*, ipc_handle_t, unsigned int) noexcept nogil
    int (*cuIpcCloseMemHandle)(uint64_t) noexcept nogil
    int (*cuIpcGetEventHandle)(ipc_handle_t*, void*) noexcept nogil
    int (*cuIpcOpenEventHandle)(void**, ipc_handle_t) noexcept nogil
    int (*cuMemGetAddressRange_v2)(uint64_t*, size_t*, uint64_t) noexcept nogil
    int (*cuMemRetainAllocationHandle)(uint64_t*, void*) noexcept nogil
    int (*cuMemExportToShareableHandle)(void*, uint64_t, int, unsigned long long) noexcept nogil
    int (*cuMemImportFromShareableHandle)(uint64_t*, void*, int) noexcept nogil
    int (*cuMemRelease)(uint64_t) noexcept nogil
    int (*cuMemAddressReserve)(uint64_t*, size_t, size_t, uint64_t, unsigned long long) noexcept nogil
    int (*cuMemAddressFree)(uint64_t, size_t) noexcept nogil
    int (*cuMemMap)(uint64_t, size_t, size_t, uint64_t, unsigned long long) noexcept nogil
    int (*cuMemUnmap)(uint64_t, size_t) noexcept nogil
    int (*cuMemSetAccess)(uint64_t, size_t, const access_t*, size_t) noexcept nogil
    # in newer drivers only; NULL elsewhere
    int (*cuCtxRecordEvent)(void*, void*) noexcept nogil
    int (*cuMemGetHandleForAddressRange)(void*, uint64_t, size_t, int, unsigned long long) noexcept nogil
    int (*cuFlushGPUDirectRDMAWrites)(int, int) noexcept nogil

cdef cuda_t cuda

cdef int load() except -1
cdef bint is_ours() noexcept
cdef object failed(int code, str what)
cdef int check(int code, str what) except -1
