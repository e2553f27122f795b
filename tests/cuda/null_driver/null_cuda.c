/* A CUDA driver without a GPU: see the package. Names, null_numbers and results are those of NVIDIA's cuda.h. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "null_memory.h"

/* --- what processes share: one file for each allocation and each event ------------------------------------- */

struct shared_event {
    _Atomic uint64_t recorded, completed;
    _Atomic pid_t owner;
};

struct handle {                         /* what the 64 bytes of a handle hold */
    char name[40];
    uint64_t size;
    pid_t owner;
    int device;
};

struct event {
    struct shared_event *shared;
    char name[40];
    int mine;
};

/* --- streams ------------------------------------------------------------------------------------------------ */

enum kind { COPY, FILL, RECORD, WAIT, PART, CALL };

typedef void callback_t(void *stream, int status, void *argument);

struct group { _Atomic int left; struct shared_event *event; uint64_t moment; };

struct work {
    struct work *next;
    enum kind kind;
    char *target;
    const char *source;
    size_t size;
    int byte;
    useconds_t delay;
    long rate;                          /* bytes in a µs; nothing is copied */
    struct shared_event *event;
    uint64_t moment;
    struct group *group;
    callback_t *call;
    void *stream, *argument;
};

struct stream {
    struct stream *next;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct work *head, *tail;
    int busy, ending;
    pthread_t thread;
};

pthread_mutex_t null_lock = PTHREAD_MUTEX_INITIALIZER;
struct allocation *null_allocations;
static struct stream *streams;
static struct stream *default_stream;
static int begun;
static unsigned files;
static size_t used;
uint64_t null_numbers;
static char contexts[16];               /* a context is the address of its byte */
static char retained[16];
static _Atomic uint64_t counted[5];     /* copies, bytes, maps, contexts, flushes */
static __thread void *stack[32];
static __thread int depth;

static const char *prefix(void) {
    const char *name = getenv("NULL_CUDA_NAME");
    return name ? name : "null_cuda";
}

long null_number(const char *variable, long otherwise) {
    const char *text = getenv(variable);
    return text && *text ? atol(text) : otherwise;
}

/* A process that ends has no memory mapped, although its parent has not waited for it, nor the kernel closed all
   of its files. */
static int alive(pid_t pid) {
    enum { EXITING = 4 };               /* PF_EXITING of the kernel */
    char path[32], line[512] = "", state = 'Z';
    unsigned flags = EXITING;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    char *name_end = read ? strrchr(line, ')') : NULL;
    if (name_end) sscanf(name_end + 2, "%c %*d %*d %*d %*d %*d %u", &state, &flags);
    return state != 'Z' && state != 'X' && !(flags & EXITING);
}

static void complete(struct shared_event *event, uint64_t moment) {
    uint64_t before = atomic_load(&event->completed);
    while (before < moment && !atomic_compare_exchange_weak(&event->completed, &before, moment)) {}
}

static void do_work(struct work *work) {
    switch (work->kind) {
    case COPY: case FILL:
        if (work->delay) usleep(work->delay);
        if (work->rate) usleep(work->size / work->rate);
        else if (work->kind == FILL) memset(work->target, work->byte, work->size);
        else memmove(work->target, work->source, work->size);
        break;
    case RECORD:
        complete(work->event, work->moment);
        break;
    case WAIT:
        while (atomic_load(&work->event->completed) < work->moment) {
            if (!alive(atomic_load(&work->event->owner))) break;
            usleep(20);
        }
        break;
    case CALL:
        work->call(work->stream, SUCCESS, work->argument);
        break;
    case PART:
        if (atomic_fetch_sub(&work->group->left, 1) == 1) {
            complete(work->group->event, work->group->moment);
            free(work->group);
        }
    }
    free(work);
}

static void *run(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (!stream->head && !stream->ending) pthread_cond_wait(&stream->changed, &stream->mutex);
        struct work *work = stream->head;
        if (!work) break;
        stream->head = work->next;
        if (!stream->head) stream->tail = NULL;
        stream->busy = 1;
        pthread_mutex_unlock(&stream->mutex);
        do_work(work);
        pthread_mutex_lock(&stream->mutex);
        stream->busy = 0;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

static struct stream *make_stream(void) {
    struct stream *stream = calloc(1, sizeof *stream);
    sigset_t all, before;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&stream->thread, NULL, run, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&null_lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&null_lock);
    return stream;
}

static void drain(struct stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    while (stream->head || stream->busy) pthread_cond_wait(&stream->changed, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
}

static void drain_all(void) {
    pthread_mutex_lock(&null_lock);
    struct stream *stream = streams;
    pthread_mutex_unlock(&null_lock);
    for (; stream; stream = stream->next) drain(stream);
}

static struct stream *stream_of(void *given) {
    if ((uintptr_t)given > 2) return given;
    if (!default_stream) default_stream = make_stream();
    return default_stream;
}

static void submit(struct stream *stream, struct work work) {
    struct work *kept = malloc(sizeof *kept);
    *kept = work;
    kept->next = NULL;
    pthread_mutex_lock(&stream->mutex);
    if (stream->tail) stream->tail->next = kept; else stream->head = kept;
    stream->tail = kept;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
}

/* --- memory ------------------------------------------------------------------------------------------------- */

static void *open_file(const char *name, size_t size, int create) {
    int fd = shm_open(name, O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0) return NULL;
    void *found = MAP_FAILED;
    if (!create || !ftruncate(fd, size)) found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return found == MAP_FAILED ? NULL : found;
}

static void name_file(char *name) {
    snprintf(name, 40, "/%.20s-%d-%u", prefix(), getpid(), ++files);
}

struct allocation *null_find(pointer_t pointer) {
    for (struct allocation *one = null_allocations; one; one = one->next)
        if (pointer >= (pointer_t)one->address && pointer < (pointer_t)one->address + one->size) return one;
    return NULL;
}

/* What the driver reads or writes there. host: it is no memory of a device. */
static char *bytes_at(pointer_t pointer, size_t size, int *host) {
    char *data = (char *)pointer;
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(pointer);
    *host = !one;
    if (one) {
        pointer_t end = (pointer_t)one->address + one->size;
        data = one->data + (pointer - (pointer_t)one->address);
        int whole = !one->piece || one->accessible;
        for (; whole && end < pointer + size; end += one->size) {   /* pieces that follow each other */
            one = one->piece ? null_find(end) : NULL;
            whole = one && one->piece && one->accessible;
            if (!whole) break;
        }
        if (!whole) data = NULL;
    }
    pthread_mutex_unlock(&null_lock);
    return data;
}

static int add(const char *name, size_t size, int device, int create, struct allocation **made) {
    struct allocation *one = calloc(1, sizeof *one);
    char *data = open_file(name, size + PAGE, create);
    char *address = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!data || address == MAP_FAILED) { free(one); return create ? OUT_OF_MEMORY : INVALID_HANDLE; }
    strcpy(one->name, name);
    one->shared = (struct shared_memory *)data;
    one->data = data + PAGE;
    one->address = address;
    one->size = size;
    one->device = device;
    one->number = ++null_numbers;
    one->next = null_allocations;
    null_allocations = one;
    *made = one;
    return SUCCESS;
}

void null_unlist(struct allocation *one) {
    struct allocation **place = &null_allocations;
    while (*place != one) place = &(*place)->next;
    *place = one->next;
}

static void drop(struct allocation *one) {
    null_unlist(one);
    munmap(one->shared, one->size + PAGE);
    munmap(one->address, one->size);
    free(one);
}

/* Memory of the host that is pinned: what copies from and to it returns at once. */
static struct range { uintptr_t begin, end; } pinned[4096];

static int is_pinned(const char *address, size_t size) {
    uintptr_t begin = (uintptr_t)address;
    int found = 0;
    pthread_mutex_lock(&null_lock);
    for (int i = 0; i < 4096 && !found; i++) found = begin >= pinned[i].begin && begin + size <= pinned[i].end;
    pthread_mutex_unlock(&null_lock);
    return found;
}

static int change_pinned(uintptr_t begin, uintptr_t end, uintptr_t before) {
    int answer = before ? NOT_REGISTERED : OUT_OF_MEMORY;
    pthread_mutex_lock(&null_lock);
    for (int i = 0; i < 4096 && answer; i++)
        if (pinned[i].begin == before) { pinned[i] = (struct range){begin, end}; answer = SUCCESS; }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

int null_entered(void) { return depth ? SUCCESS : INVALID_CONTEXT; }

API int cuMemAlloc_v2(pointer_t *pointer, size_t size) {
    struct allocation *made;
    char name[40];
    if (null_entered()) return INVALID_CONTEXT;
    if (!size) return INVALID_VALUE;
    size = (size + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&null_lock);
    int answer = OUT_OF_MEMORY;
    if (used + size <= (size_t)null_number("NULL_CUDA_MEMORY", 1L << 30)) {
        name_file(name);
        answer = add(name, size, (char *)stack[depth - 1] - contexts, 1, &made);
    }
    if (!answer) {
        used += size;
        *pointer = (pointer_t)made->address;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

API int cuMemFree_v2(pointer_t pointer) {
    if (null_entered()) return INVALID_CONTEXT;
    drain_all();
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(pointer);
    if (!one || one->opened || (pointer_t)one->address != pointer) {
        pthread_mutex_unlock(&null_lock);
        return INVALID_VALUE;
    }
    for (int i = 0; i < MOST_MAPPERS; i++) {
        pid_t mapper = atomic_load(&one->shared->mappers[i]);
        if (mapper && alive(mapper) && !null_number("NULL_CUDA_UCX", 0)) {
            fprintf(stderr, "null_cuda: memory was freed that process %d has mapped\n", mapper);
            abort();
        }
    }
    used -= one->size;
    shm_unlink(one->name);
    drop(one);
    pthread_mutex_unlock(&null_lock);
    return SUCCESS;
}

API int cuMemcpyAsync(pointer_t target, pointer_t source, size_t size, void *stream) {
    int to_host, from_host;
    struct work work = {.kind = COPY, .size = size, .delay = null_number("NULL_CUDA_DELAY_US", 0),
                        .rate = null_number("NULL_CUDA_RATE", 0)};
    if (null_entered()) return INVALID_CONTEXT;
    work.target = bytes_at(target, size, &to_host);
    work.source = bytes_at(source, size, &from_host);
    if (!work.target || !work.source) return INVALID_VALUE;
    atomic_fetch_add(&counted[0], 1);
    atomic_fetch_add(&counted[1], size);
    submit(stream_of(stream), work);
    if ((to_host && !is_pinned(work.target, size)) || (from_host && !is_pinned(work.source, size)))
        drain(stream_of(stream));
    return SUCCESS;
}

API int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    if (null_entered()) return INVALID_CONTEXT;
    if (flags != 1 || !size) return INVALID_VALUE;
    if (!null_number("NULL_CUDA_PINNED", 1)) return OUT_OF_MEMORY;
    return change_pinned((uintptr_t)address, (uintptr_t)address + size, 0);
}

API int cuMemHostUnregister(void *address) {
    if (null_entered()) return INVALID_CONTEXT;
    drain_all();
    return change_pinned(0, 0, (uintptr_t)address);
}

/* A kernel of the tests: fills memory after a delay. */
API int null_cuda_fill(pointer_t target, int byte, size_t size, void *stream, unsigned delay_us) {
    int host;
    struct work work = {.kind = FILL, .size = size, .byte = byte, .delay = delay_us};
    work.target = bytes_at(target, size, &host);
    if (!work.target || host) return INVALID_VALUE;
    submit(stream_of(stream), work);
    return SUCCESS;
}

/* What the memory holds at this moment, whatever work is under way. */
API int null_cuda_peek(pointer_t source, void *target, size_t size) {
    int host;
    char *data = bytes_at(source, size, &host);
    if (!data || host) return INVALID_VALUE;
    memcpy(target, data, size);
    return SUCCESS;
}

/* copies, bytes, maps, contexts, flushes */
API uint64_t null_cuda_count(int what) { return atomic_load(&counted[what]); }

API int cuPointerGetAttribute(void *value, int attribute, pointer_t pointer) {
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(pointer);
    struct allocation copy = one ? *one : (struct allocation){0};
    pthread_mutex_unlock(&null_lock);
    if (!one) return INVALID_VALUE;
    if (copy.piece && null_piece_attribute(value, attribute, &copy)) return SUCCESS;
    switch (attribute) {
    case 1: *(void **)value = &contexts[copy.device]; return SUCCESS;
    case 2: *(unsigned *)value = 2; return SUCCESS;
    case 3: *(pointer_t *)value = pointer; return SUCCESS;
    case 7: *(uint64_t *)value = copy.number; return SUCCESS;
    case 8: *(unsigned *)value = 0; return SUCCESS;
    case 9: *(int *)value = copy.device; return SUCCESS;
    case 10: *(int *)value = !copy.opened; return SUCCESS;
    case 11: *(pointer_t *)value = (pointer_t)copy.address; return SUCCESS;
    case 12: *(size_t *)value = copy.size; return SUCCESS;
    case 13: *(int *)value = 1; return SUCCESS;
    case 14: *(uint64_t *)value = 0; return SUCCESS;
    case 17: *(void **)value = NULL; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

API int cuMemGetAddressRange_v2(pointer_t *begin, size_t *size, pointer_t pointer) {
    if (null_entered()) return INVALID_CONTEXT;
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(pointer);
    if (one) {
        if (begin) *begin = (pointer_t)one->address;
        if (size) *size = one->size;
    }
    pthread_mutex_unlock(&null_lock);
    return one ? SUCCESS : NOT_FOUND;
}

API int cuMemGetHandleForAddressRange(void *handle, pointer_t begin, size_t size, int kind, unsigned long long flags) {
    int host;
    if (null_entered()) return INVALID_CONTEXT;
    if (kind != 1 || flags || begin % PAGE || size % PAGE) return INVALID_VALUE;
    if (!bytes_at(begin, size, &host) || host) return INVALID_VALUE;
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(begin);
    int fd = one->opened ? -1 : shm_open(one->name, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) lseek(fd, PAGE + (begin - (pointer_t)one->address), SEEK_SET);  /* where the range begins */
    pthread_mutex_unlock(&null_lock);
    *(int *)handle = fd;
    return fd < 0 ? NOT_SUPPORTED : SUCCESS;
}

/* --- between processes -------------------------------------------------------------------------------------- */

API int cuIpcGetMemHandle(struct handle *handle, pointer_t pointer) {
    int answer = INVALID_VALUE;
    if (null_entered()) return INVALID_CONTEXT;
    memset(handle, 0, 64);
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(pointer);
    if (one && !one->opened && ((pointer_t)one->address == pointer || null_number("NULL_CUDA_UCX", 0))) {
        strcpy(handle->name, one->name);
        handle->size = one->size;
        handle->owner = getpid();
        handle->device = one->device;
        answer = SUCCESS;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

struct ipc { struct handle handle; char rest[64 - sizeof(struct handle)]; };

API int cuIpcOpenMemHandle_v2(pointer_t *pointer, struct ipc given, unsigned flags) {
    struct handle *handle = &given.handle;
    struct allocation *one;
    int answer = SUCCESS;
    if (null_entered() || handle->owner == getpid()) return INVALID_CONTEXT;
    if (!null_number("NULL_CUDA_IPC", 1)) return MAP_FAILED_;
    if (flags != 1) return INVALID_VALUE;
    if (strncmp(handle->name + 1, prefix(), strlen(prefix()))) return INVALID_HANDLE;
    pthread_mutex_lock(&null_lock);
    for (one = null_allocations; one && strcmp(one->name, handle->name); one = one->next) {}
    if (!one) answer = add(handle->name, handle->size, (char *)stack[depth - 1] - contexts, 0, &one);
    if (!answer) {
        if (!one->opened++) {
            atomic_fetch_add(&counted[2], 1);
            for (int i = 0; i < MOST_MAPPERS; i++) {
                pid_t before = atomic_load(&one->shared->mappers[i]);
                if ((!before || !alive(before))
                    && atomic_compare_exchange_strong(&one->shared->mappers[i], &before, getpid())) break;
            }
        }
        *pointer = (pointer_t)one->address;
    }
    pthread_mutex_unlock(&null_lock);
    return answer;
}

API int cuIpcCloseMemHandle(pointer_t pointer) {
    if (null_entered()) return INVALID_CONTEXT;
    drain_all();
    pthread_mutex_lock(&null_lock);
    struct allocation *one = null_find(pointer);
    if (!one || !one->opened) {
        pthread_mutex_unlock(&null_lock);
        return INVALID_VALUE;
    }
    if (!--one->opened) {
        for (int i = 0; i < MOST_MAPPERS; i++) {
            pid_t me = getpid();
            if (atomic_compare_exchange_strong(&one->shared->mappers[i], &me, 0)) break;
        }
        drop(one);
    }
    pthread_mutex_unlock(&null_lock);
    return SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------- */

API int cuEventCreate(struct event **made, unsigned flags) {
    struct event *event = calloc(1, sizeof *event);
    if (null_entered()) return INVALID_CONTEXT;
    if (flags & ~7u || (flags & 4 && !(flags & 2))) return INVALID_VALUE;
    if (flags & 4) {
        pthread_mutex_lock(&null_lock);
        name_file(event->name);
        pthread_mutex_unlock(&null_lock);
        event->shared = open_file(event->name, sizeof *event->shared, 1);
    } else
        event->shared = calloc(1, sizeof *event->shared);
    if (!event->shared) return OUT_OF_MEMORY;
    atomic_store(&event->shared->owner, getpid());
    event->mine = 1;
    *made = event;
    return SUCCESS;
}

API int cuIpcGetEventHandle(struct handle *handle, struct event *event) {
    memset(handle, 0, 64);
    if (null_entered()) return INVALID_CONTEXT;
    if (!event->name[0]) return INVALID_HANDLE;
    strcpy(handle->name, event->name);
    handle->owner = getpid();
    return SUCCESS;
}

API int cuIpcOpenEventHandle(struct event **made, struct ipc given) {
    if (null_entered() || given.handle.owner == getpid()) return INVALID_CONTEXT;
    if (strncmp(given.handle.name + 1, prefix(), strlen(prefix()))) return INVALID_HANDLE;
    struct event *event = calloc(1, sizeof *event);
    event->shared = open_file(given.handle.name, sizeof *event->shared, 0);
    if (!event->shared) { free(event); return MAP_FAILED_; }
    strcpy(event->name, given.handle.name);
    *made = event;
    return SUCCESS;
}

API int cuEventDestroy_v2(struct event *event) {
    if (null_entered()) return INVALID_CONTEXT;
    if (event->mine && event->name[0]) shm_unlink(event->name);
    free(event);                        /* work may still use what is shared: it stays */
    return SUCCESS;
}

API int cuEventRecord(struct event *event, void *stream) {
    if (null_entered()) return INVALID_CONTEXT;
    submit(stream_of(stream), (struct work){.kind = RECORD, .event = event->shared,
                                            .moment = atomic_fetch_add(&event->shared->recorded, 1) + 1});
    return SUCCESS;
}

API int cuCtxRecordEvent(void *context, struct event *event) {
    int count = 0;
    if (context < (void *)contexts || context >= (void *)(contexts + sizeof contexts)) return INVALID_CONTEXT;
    stream_of(NULL);
    pthread_mutex_lock(&null_lock);
    struct stream *first = streams;
    pthread_mutex_unlock(&null_lock);
    for (struct stream *one = first; one; one = one->next) count++;
    struct group *group = calloc(1, sizeof *group);
    atomic_store(&group->left, count);
    group->event = event->shared;
    group->moment = atomic_fetch_add(&event->shared->recorded, 1) + 1;
    for (struct stream *one = first; one; one = one->next) submit(one, (struct work){.kind = PART, .group = group});
    return SUCCESS;
}

API int cuEventQuery(struct event *event) {
    return atomic_load(&event->shared->completed) >= atomic_load(&event->shared->recorded) ? SUCCESS : NOT_READY;
}

API int cuEventSynchronize(struct event *event) {
    while (cuEventQuery(event)) {
        if (!alive(atomic_load(&event->shared->owner))) return SUCCESS;
        usleep(20);
    }
    return SUCCESS;
}

API int cuStreamWaitEvent(void *stream, struct event *event, unsigned flags) {
    if (null_entered()) return INVALID_CONTEXT;
    if (flags) return INVALID_VALUE;
    submit(stream_of(stream), (struct work){.kind = WAIT, .event = event->shared,
                                            .moment = atomic_load(&event->shared->recorded)});
    return SUCCESS;
}

/* --- streams, devices, contexts ----------------------------------------------------------------------------- */

API int cuStreamCreate(struct stream **stream, unsigned flags) {
    if (null_entered()) return INVALID_CONTEXT;
    if (flags & ~1u) return INVALID_VALUE;
    *stream = make_stream();
    return SUCCESS;
}

/* Stays in the list: others may look through it. */
API int cuStreamDestroy_v2(struct stream *stream) {
    if (null_entered()) return INVALID_CONTEXT;
    drain(stream);
    return SUCCESS;
}

API int cuStreamAddCallback(void *stream, callback_t *call, void *argument, unsigned flags) {
    if (null_entered()) return INVALID_CONTEXT;
    if (flags) return INVALID_VALUE;
    submit(stream_of(stream), (struct work){.kind = CALL, .call = call, .stream = stream, .argument = argument});
    return SUCCESS;
}

API int cuStreamSynchronize(void *stream) { drain(stream_of(stream)); return SUCCESS; }

API int cuCtxSynchronize(void) {
    if (null_entered()) return INVALID_CONTEXT;
    drain_all();
    return SUCCESS;
}

API int cuInit(unsigned flags) {
    begun = 1;
    return flags ? INVALID_VALUE : null_number("NULL_CUDA_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}

API int cuDriverGetVersion(int *version) { *version = 12090; return SUCCESS; }

API int cuGetErrorName(int code, const char **name) {
    switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return SUCCESS;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return SUCCESS;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; return SUCCESS;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return SUCCESS;
    case MAP_FAILED_: *name = "CUDA_ERROR_MAP_FAILED"; return SUCCESS;
    case NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; return SUCCESS;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

/* NULL_CUDA_DEVICES GPUs, of which NULL_CUDA_FIRST is the first that this process sees. */
API int cuDeviceGetCount(int *count) {
    *count = null_number("NULL_CUDA_DEVICES", 1) - null_number("NULL_CUDA_FIRST", 0);
    return SUCCESS;
}

API int cuDeviceGet(int *handle, int index) {
    int count;
    cuDeviceGetCount(&count);
    if (index < 0 || index >= count) return INVALID_DEVICE;
    *handle = index;
    return SUCCESS;
}

API int cuDeviceGetUuid_v2(char *uuid, int handle) {
    memset(uuid, 0, 16);
    snprintf(uuid, 16, "null-gpu-%ld", handle + null_number("NULL_CUDA_FIRST", 0));
    return SUCCESS;
}

API int cuDeviceGetAttribute(int *value, int attribute, int handle) {
    (void)handle;
    switch (attribute) {
    case 33: *value = 1 + handle; return SUCCESS;
    case 34: case 50: *value = 0; return SUCCESS;
    case 75: *value = 9; return SUCCESS;
    case 76: *value = 0; return SUCCESS;
    case 117: *value = 1; return SUCCESS;
    case 118: *value = (int)null_number("NULL_CUDA_ORDERING", 100); return SUCCESS;
    case 124: *value = (int)null_number("NULL_CUDA_DMABUF", 1); return SUCCESS;
    default: return INVALID_VALUE;
    }
}

API int cuDevicePrimaryCtxRetain(void **context, int handle) {
    if (!begun) return 3;
    atomic_fetch_add(&counted[3], 1);
    retained[handle] = 1;
    *context = &contexts[handle];
    return SUCCESS;
}

API int cuDevicePrimaryCtxGetState(int handle, unsigned *flags, int *active) {
    *flags = 0;
    *active = retained[handle];
    return SUCCESS;
}

API int cuCtxGetCurrent(void **context) {
    *context = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}

API int cuCtxGetDevice(int *handle) {
    if (null_entered()) return INVALID_CONTEXT;
    *handle = (int)((char *)stack[depth - 1] - contexts);
    return SUCCESS;
}

API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
    if (null_entered()) return INVALID_CONTEXT;
    if (target || scope != 100) return INVALID_VALUE;
    atomic_fetch_add(&counted[4], 1);
    return SUCCESS;
}

API int cuCtxPushCurrent_v2(void *context) {
    if (depth == 32) return INVALID_VALUE;
    stack[depth++] = context;
    return SUCCESS;
}

API int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return SUCCESS;
}

__attribute__((destructor)) static void end(void) {
    for (struct allocation *one = null_allocations; one; one = one->next)
        if (!one->opened) shm_unlink(one->name);
}
