/* Protection domains and memory regions. */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <sys/mman.h>
#include <unistd.h>

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *base)
{
    struct null_context *context = (struct null_context *) base;
    if (device_gone) {
        errno = EIO;
        return NULL;
    }
    struct null_pd *pd = calloc(1, sizeof(*pd));
    if (!pd)
        return NULL;
    pthread_mutex_lock(&node.lock);
    pd->base.handle = ++node.next_pd;
    context->children++;
    pthread_mutex_unlock(&node.lock);
    pd->base.context = base;
    return &pd->base;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *base)
{
    struct null_pd *pd = (struct null_pd *) base;
    if (pd->users)
        return EBUSY;
    pthread_mutex_lock(&node.lock);
    ((struct null_context *) base->context)->children--;
    pthread_mutex_unlock(&node.lock);
    free(pd);
    return 0;
}

/* Places and keys come round as late as possible. Under node.lock. 0: none is free, or a limit is reached. */
static uint32_t new_key(size_t length)
{
    if (node.regions >= REGIONS - 1 || length > memlock_limit() || node.registered > memlock_limit() - length)
        return 0;
    struct shared_region *region;
    do {
        node.next_region = (node.next_region + 1) % REGIONS;
        region = &node.shared->regions[node.next_region];
    } while (atomic_load(&region->key));
    region->last = (region->last + 1) % 65536;
    if (!region->last)
        region->last = 1;
    node.regions++;
    node.registered += length;
    return region->last << 16 | node.next_region;
}

struct null_mr {
    struct ibv_mr base;
    void *mapped; /* of a dma-buf */
    size_t bytes;
};

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    int error = device_gone ? EIO : fault_hits(FAULT_REGISTER, -1);
    if (!error && (!length || (uintptr_t) address + length < (uintptr_t) address
                   || ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC))
                       && !(access & IBV_ACCESS_LOCAL_WRITE))))
        error = EINVAL;
    struct ibv_mr *mr = error ? NULL : calloc(1, sizeof(struct null_mr));
    if (!mr) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&node.lock);
    uint32_t key = new_key(length);
    if (key) {
        struct shared_region *region = &node.shared->regions[key % REGIONS];
        region->pd = pd->handle;
        region->access = (uint32_t) access;
        region->address = (uintptr_t) address;
        region->length = length;
        region->shift = 0;
        atomic_store_explicit(&region->key, key, memory_order_release);
    }
    pthread_mutex_unlock(&node.lock);
    if (!key) {
        free(mr);
        errno = ENOMEM;
        return NULL;
    }
    ((struct null_pd *) pd)->users++;
    *mr = (struct ibv_mr) {pd->context, pd, address, length, key, key, key};
    return mr;
}

/* A dma-buf is what can be mapped, from the position of its descriptor on. */
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                        int fd, int access)
{
    off_t start = lseek(fd, 0, SEEK_CUR);
    uint64_t begin = offset & ~(uint64_t) 4095;
    int rights = access & IBV_ACCESS_LOCAL_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    void *mapped = device_gone || start < 0
        ? MAP_FAILED
        : mmap(NULL, offset - begin + length, rights, MAP_SHARED, fd, start + (off_t) begin);
    if (mapped == MAP_FAILED) {
        errno = device_gone ? EIO : EOPNOTSUPP;
        return NULL;
    }
    struct ibv_mr *mr = ibv_reg_mr(pd, (void *) (uintptr_t) iova, length, access);
    if (!mr) {
        munmap(mapped, offset - begin + length);
        return NULL;
    }
    struct null_mr *made = (struct null_mr *) mr;
    made->mapped = mapped;
    made->bytes = offset - begin + length;
    node.shared->regions[mr->rkey % REGIONS].shift = (uintptr_t) mapped + offset - begin - iova;
    return mr;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    pthread_mutex_lock(&node.lock);
    atomic_store(&node.shared->regions[mr->rkey % REGIONS].key, 0);
    node.regions--;
    node.registered -= mr->length;
    pthread_mutex_unlock(&node.lock);
    ((struct null_pd *) mr->pd)->users--;
    if (((struct null_mr *) mr)->mapped)
        munmap(((struct null_mr *) mr)->mapped, ((struct null_mr *) mr)->bytes);
    free(mr);
    return 0;
}
