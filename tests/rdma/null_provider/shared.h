/* What lies in shared memory.
 *
 * Each process with an open device has one `shared_node`, and each queue pair one `shared_pair` with the ring
 * of what comes in. Nothing here is locked: every field has one writer, or is atomic.
 */
#ifndef SHARED_H
#define SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    REGIONS = 65536,
    QUEUES = 1024,  /* completion queues of a process, and shared receive queues */
    SLOTS = 1024,   /* queue pairs of a completion queue */
    WORDS = SLOTS / 64,
    /* a whole grant of the rdma transport (32 buffers of 8 KiB) fits, as it fits into posted buffers */
    RING = 512 * 1024,
    FRAGMENT = 64 * 1024,
    LINE = 64,
};

#define ALIGNED _Alignas(LINE)

/* key 0: free. Its lower half is the index in the table; the upper half changes at each registration.
 * shift: from an address in work requests to that in its process; 0 but for a dma-buf. */
struct shared_region {
    _Atomic uint32_t key;
    uint32_t access, pd, last;
    uint64_t address, length, shift, unused;
};

/* summary: the words of `ready` that may have bits; ready: queue pairs with something to look at.
 * armed: 1 for any completion, 2 for a solicited one. kicked: the channel is readable until the next poll.
 * channel: number of its channel, 0 without one. generation: of this place in the table. */
struct shared_cq {
    ALIGNED _Atomic uint64_t summary;
    _Atomic uint32_t armed, kicked;
    uint32_t channel, generation;
    _Atomic uint64_t ready[WORDS];
};

/* Receive buffers of a queue: totals, so that each counter has one kind of writer. waiting: a sender was
 * refused. */
struct shared_receives {
    ALIGNED _Atomic uint32_t posted;
    ALIGNED _Atomic uint32_t reserved;
    ALIGNED _Atomic uint32_t waiting;
};

struct shared_node {
    uint32_t pid;
    _Atomic uint32_t port_down;
    struct shared_cq cqs[QUEUES];
    struct shared_receives srqs[QUEUES];
    struct shared_region regions[REGIONS];
};

/* A queue pair that was destroyed, besides ibv_qp_state. */
enum { STATE_GONE = 100 };

struct shared_pair {
    /* by its owner, before anybody knows its number */
    uint32_t pid, number, pd, send_cq, send_slot, recv_cq, recv_slot;
    int32_t srq; /* -1: `receives` */
    /* by its owner at ibv_modify_qp; the peer too sets the state, to IBV_QPS_ERR */
    ALIGNED _Atomic uint32_t state;
    _Atomic uint32_t access, peer, rq_psn, target_reads;
    /* by the peer: the queue pair that fills the ring; an access of it was refused */
    _Atomic uint32_t producer, refused;
    ALIGNED _Atomic uint64_t head;    /* by its owner */
    ALIGNED _Atomic uint64_t tail;    /* by its peer, */
    _Atomic uint32_t arrivals;        /* and how many records make a completion */
    ALIGNED _Atomic uint32_t blocked; /* by its peer: it waits for buffers, room or a state */
    struct shared_receives receives;
    ALIGNED unsigned char ring[RING];
};

enum { KIND_PAD, KIND_SEND, KIND_WRITE };
enum { RECORD_LAST = 1, RECORD_IMM = 2, RECORD_SOLICITED = 4 };

/* size: of all, with what fills up the last line. length: of the payload that follows. */
struct record {
    uint32_t size, length;
    uint8_t kind, flags;
    uint16_t unused;
    uint32_t imm, rkey;
    uint64_t remote;
};

_Static_assert(sizeof(struct record) == 32, "records");
_Static_assert(sizeof(struct shared_cq) % LINE == 0 && sizeof(struct shared_region) == 48, "tables");

static inline bool region_allows(struct shared_node *node, uint32_t key, uint32_t pd, uint64_t address,
                                 uint64_t length, uint32_t access)
{
    struct shared_region *region = &node->regions[key % REGIONS];
    if (!key || atomic_load_explicit(&region->key, memory_order_acquire) != key)
        return false;
    bool allowed = region->pd == pd && (region->access & access) == access && address >= region->address
                   && length <= region->length && address - region->address <= region->length - length;
    atomic_thread_fence(memory_order_acquire);
    return allowed && atomic_load_explicit(&region->key, memory_order_relaxed) == key;
}

#endif
