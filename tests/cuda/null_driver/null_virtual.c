/* Physical memory in pieces, ranges of addresses, and the one mapped into the other, as PyTorch's expandable
   segments are. Other processes map a piece by its descriptor. */

#define _GNU_SOURCE
#include "null_memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE (64 << 10)              /* 2 MiB on a GPU */
#define NAME "null_piece-"

enum { POSIX_FD = 1, DEVICE = 1, PINNED = 1, READ_WRITE = 3 };

typedef uint64_t handle_t;              /* the address of a piece */

struct location { int type, id; };
struct properties { int type, handle_types; struct location location; void *rest[3]; };
struct access { struct location location; int flags; };

struct piece {
    int fd, device, handle_types;       /* fd: of the process that made it */
    char *imported;                     /* the bytes, in another one, which needs no descriptor */
    size_t size;
    int handles, mappings;
};

struct range {
    struct range *next;
    char *address, *data;               /* as of an allocation */
    size_t size;
};

static struct range *ranges;
static int pieces;

/* Pieces that this process has a handle of, or has mapped. */
API int null_cuda_pieces(void) { return pieces; }

static struct piece *make(int fd, size_t size, int device, int handle_types) {
    struct piece *piece = calloc(1, sizeof *piece);
    *piece = (struct piece){.fd = fd, .size = size, .device = device, .handle_types = handle_types, .handles = 1};
    pieces++;
    return piece;
}

static void end_unused(struct piece *piece) {
    if (piece->handles || piece->mappings) return;
    if (piece->imported) munmap(piece->imported, piece->size);
    else close(piece->fd);
    free(piece);
    pieces--;
}

API int cuMemGetAllocationGranularity(size_t *size, const struct properties *wanted, int option) {
    (void)wanted, (void)option;
    *size = GRANULE;
    return SUCCESS;
}

API int cuMemCreate(handle_t *handle, size_t size, const struct properties *wanted, unsigned long long flags) {
    char name[40];
    if (flags || !size || size % GRANULE || wanted->type != PINNED || wanted->location.type != DEVICE)
        return INVALID_VALUE;
    if (wanted->handle_types & ~POSIX_FD) return NOT_SUPPORTED;     /* fabric handles */
    snprintf(name, sizeof name, NAME "%ld", wanted->location.id + null_number("NULL_CUDA_FIRST", 0));
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) return OUT_OF_MEMORY;
    pthread_mutex_lock(&null_lock);
    *handle = (handle_t)make(fd, size, wanted->location.id, wanted->handle_types);
    pthread_mutex_unlock(&null_lock);
    return SUCCESS;
}

API int cuMemRelease(handle_t handle) {
    struct piece *piece = (struct piece *)handle;
    pthread_mutex_lock(&null_lock);
    int answer = piece->handles ? SUCCESS : INVALID_VALUE;
    if (!answer) {
        piece->handles--;
        end_unused(piece);
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

API int cuMemRetainAllocationHandle(handle_t *handle, void *address) {
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find((pointer_t)address);
    int answer = one && one->piece ? SUCCESS : INVALID_VALUE;
    if (!answer) {
        one->piece->handles++;
        *handle = (handle_t)one->piece;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

API int cuMemExportToShareableHandle(int *fd, handle_t handle, int type, unsigned long long flags) {
    struct piece *piece = (struct piece *)handle;
    if (flags || type != POSIX_FD || !(piece->handle_types & POSIX_FD) || piece->imported) return INVALID_VALUE;
    *fd = fcntl(piece->fd, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? OUT_OF_MEMORY : SUCCESS;
}

API int cuMemImportFromShareableHandle(handle_t *handle, void *given, int type) {
    char path[40], target[80] = "";
    const char *start = "/memfd:" NAME;
    struct stat file;
    snprintf(path, sizeof path, "/proc/self/fd/%d", (int)(intptr_t)given);
    if (type != POSIX_FD || readlink(path, target, sizeof target - 1) < 0) return INVALID_VALUE;
    if (strncmp(target, start, strlen(start)) || fstat((int)(intptr_t)given, &file)) return INVALID_VALUE;
    if (!null_number("NULL_CUDA_PIECES", 1)) return NOT_SUPPORTED;
    int device = atoi(target + strlen(start)) - (int)null_number("NULL_CUDA_FIRST", 0);
    char *imported = mmap(NULL, file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)(intptr_t)given, 0);
    if (imported == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&null_lock);
    struct piece *piece = make(-1, file.st_size, device, POSIX_FD);
    piece->imported = imported;
    *handle = (handle_t)piece;
    pthread_mutex_unlock(&null_lock);
    return SUCCESS;
}

static void *nothing(size_t size) {
    return mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

API int cuMemAddressReserve(pointer_t *pointer, size_t size, size_t alignment, pointer_t wanted,
                            unsigned long long flags) {
    struct range *range = calloc(1, sizeof *range);
    (void)alignment, (void)wanted;
    if (flags || !size || size % GRANULE) { free(range); return INVALID_VALUE; }
    *range = (struct range){.address = nothing(size), .data = nothing(size), .size = size};
    pthread_mutex_lock(&null_lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&null_lock);
    *pointer = (pointer_t)range->address;
    return SUCCESS;
}

static struct range *range_at(pointer_t pointer, size_t size) {
    for (struct range *one = ranges; one; one = one->next)
        if (pointer >= (pointer_t)one->address && pointer + size <= (pointer_t)one->address + one->size) return one;
    return NULL;
}

API int cuMemAddressFree(pointer_t pointer, size_t size) {
    int answer = INVALID_VALUE;
    pthread_mutex_lock(&null_lock);
    for (struct range **place = &ranges; *place; place = &(*place)->next) {
        struct range *one = *place;
        if ((pointer_t)one->address != pointer || one->size != size) continue;
        for (struct allocation *mapped = null_allocations; mapped; mapped = mapped->next)
            if (mapped->piece && range_at((pointer_t)mapped->address, 1) == one) abort();   /* still mapped */
        *place = one->next;
        munmap(one->address, size);
        munmap(one->data, size);
        free(one);
        answer = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

API int cuMemMap(pointer_t pointer, size_t size, size_t offset, handle_t handle, unsigned long long flags) {
    struct piece *piece = (struct piece *)handle;
    int answer = INVALID_VALUE;
    pthread_mutex_lock(&null_lock);
    struct range *range = range_at(pointer, size);
    if (range && !offset && !flags && size == piece->size && !null_find(pointer)) {
        struct allocation *one = calloc(1, sizeof *one);
        one->address = (char *)pointer;
        one->data = range->data + (pointer - (pointer_t)range->address);
        one->size = size;
        one->device = piece->device;
        one->piece = piece;
        one->number = ++null_numbers;
        one->next = null_allocations;
        null_allocations = one;
        piece->mappings++;
        if (piece->imported) mremap(piece->imported, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, one->data);
        else mmap(one->data, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece->fd, 0);
        answer = SUCCESS;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

/* Waits for nothing: work that still reads or writes there ends the process. */
API int cuMemUnmap(pointer_t pointer, size_t size) {
    int answer = SUCCESS;
    pthread_mutex_lock(&null_lock);
    for (pointer_t end = pointer + size; !answer && pointer < end;) {
        struct allocation *one = null_find(pointer);
        if (!one || !one->piece || (pointer_t)one->address != pointer || pointer + one->size > end) {
            answer = INVALID_VALUE;
            break;
        }
        pointer += one->size;
        mmap(one->data, one->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        null_unlist(one);
        one->piece->mappings--;
        end_unused(one->piece);
        free(one);
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

API int cuMemSetAccess(pointer_t pointer, size_t size, const struct access *access, size_t count) {
    int answer = SUCCESS;
    pthread_mutex_lock(&null_lock);
    for (pointer_t end = pointer + size; pointer < end;) {
        struct allocation *one = null_find(pointer);
        if (!one || !one->piece || count != 1 || access->location.type != DEVICE
            || access->location.id != one->device || access->flags != READ_WRITE) {
            answer = INVALID_VALUE;
            break;
        }
        one->accessible = 1;
        pointer = (pointer_t)one->address + one->size;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

int null_piece_attribute(void *value, int attribute, struct allocation *one) {
    int found = 1;
    pthread_mutex_lock(&null_lock);
    struct range *range = range_at((pointer_t)one->address, one->size);
    switch (attribute) {
    case 10: *(int *)value = 0; break;
    case 11: *(pointer_t *)value = (pointer_t)range->address; break;
    case 12: *(size_t *)value = range->size; break;
    case 14: *(uint64_t *)value = one->piece->handle_types; break;
    default: found = 0;
    }
    pthread_mutex_unlock(&null_lock);
    return found;
}
