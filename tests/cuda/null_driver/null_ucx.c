/* What UCX asks of the driver beyond what transfer does, made of the other calls. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef uint64_t pointer_t;

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

int cuCtxGetCurrent(void **context);
int cuDeviceGetUuid_v2(char *uuid, int handle);
int cuGetErrorName(int code, const char **name);
int cuMemcpyAsync(pointer_t target, pointer_t source, size_t size, void *stream);
int cuPointerGetAttribute(void *value, int attribute, pointer_t pointer);
int cuStreamSynchronize(void *stream);

/* By the name alone, or with the suffix of the version that this driver has. */
API int cuGetProcAddress_v2(const char *symbol, void **place, int version, uint64_t flags, int *status) {
    char name[80];
    (void)version, (void)flags;
    *place = NULL;
    for (int i = 2; !*place && i >= 0; i--) {
        snprintf(name, sizeof name, i == 2 ? "%s_v2" : "%s", symbol);
        *place = dlsym(RTLD_DEFAULT, name);
        Dl_info ours, found;
        dladdr((void *)cuGetProcAddress_v2, &ours);
        if (!*place) {
            void *self = dlopen(ours.dli_fname, RTLD_NOW | RTLD_NOLOAD);
            *place = self ? dlsym(self, name) : NULL;
            if (self) dlclose(self);
        }
        if (*place && dladdr(*place, &found) && strcmp(found.dli_fname, ours.dli_fname)) *place = NULL;
    }
    if (status) *status = *place ? 0 : 1;
    return *place ? SUCCESS : NOT_FOUND;
}

API int cuCtxGetId(void *context, unsigned long long *id) {
    if (!context && cuCtxGetCurrent(&context)) return INVALID_VALUE;
    *id = (uintptr_t)context;
    return context ? SUCCESS : 201;
}

API int cuDeviceGetName(char *name, int size, int handle) {
    snprintf(name, size, "null GPU %d", handle);
    return SUCCESS;
}

API int cuDeviceGetUuid(char *uuid, int handle) { return cuDeviceGetUuid_v2(uuid, handle); }

API int cuDevicePrimaryCtxRelease_v2(int handle) { (void)handle; return SUCCESS; }

API int cuDeviceTotalMem_v2(size_t *bytes, int handle) {
    (void)handle;
    *bytes = 1L << 30;
    return SUCCESS;
}

API int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

API int cuMemcpyDtoDAsync_v2(pointer_t target, pointer_t source, size_t size, void *stream) {
    return cuMemcpyAsync(target, source, size, stream);
}

API int cuMemcpyHtoD_v2(pointer_t target, const void *source, size_t size) {
    int error = cuMemcpyAsync(target, (pointer_t)source, size, NULL);
    return error ? error : cuStreamSynchronize(NULL);
}

/* As the driver: what an attribute has no value for is zero. */
API int cuPointerGetAttributes(unsigned count, const int *attributes, void **values, pointer_t pointer) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t value = 0;
        int error = cuPointerGetAttribute(&value, attributes[i], pointer);
        if (error) value = 0;
        switch (attributes[i]) {
        case 2: case 8: case 9: case 10: memcpy(values[i], &value, 4); break;
        default: memcpy(values[i], &value, 8);
        }
    }
    return SUCCESS;
}

API int cuPointerSetAttribute(const void *value, int attribute, pointer_t pointer) {
    (void)value, (void)attribute, (void)pointer;
    return SUCCESS;
}

API int cuMemRangeGetAttribute(void *value, size_t size, int attribute, pointer_t pointer, size_t count) {
    (void)value, (void)size, (void)attribute, (void)pointer, (void)count;
    return INVALID_VALUE;
}

/* What is not there: managed memory and memory pools. */
#define MISSING(name) API int name(void) { return NOT_SUPPORTED; }
MISSING(cuMemAllocManaged)
MISSING(cuMemGetAllocationPropertiesFromHandle)
MISSING(cuMemPoolDestroy)
MISSING(cuMemPoolExportPointer)
MISSING(cuMemPoolExportToShareableHandle)
MISSING(cuMemPoolImportFromShareableHandle)
MISSING(cuMemPoolImportPointer)
MISSING(cuMemPoolSetAccess)
