/* What the parts of the null provider know of each other. README of it: __init__.py. */
#ifndef NULL_VERBS_H
#define NULL_VERBS_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared.h"
#include "verbs_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define unlikely(condition) __builtin_expect(!!(condition), 0)

enum {
    MAX_PIECES = 16,
    MAX_INLINE = 512,
    MAX_REQUESTS = 32768,
    MAX_COMPLETIONS = 4194303,
    MAX_READS = 16,
};

#define MS 1000000ull
/* What a card would take until it gives up on a receiver without buffers; the rdma transport waits in
 * seconds. */
#define RNR_NS (500 * MS)

/* -- node.c: this process, and other ones ------------------------------------------------------------- */

struct peer {
    struct peer *next;
    struct shared_node *node;
    uint32_t pid;
    int pidfd, users;
    _Atomic bool dead;
    _Atomic uint64_t checked;
};

struct null_cq;
struct null_qp;
struct null_srq;
struct null_context;

/* users: open devices. bell: the socket that all wake-ups are sent with. */
struct node {
    pthread_mutex_t lock;
    int users, bell;
    uint32_t pid, next_pd, next_channel, next_region, next_number, regions;
    uint64_t registered;
    struct shared_node *shared;
    struct peer *peers;
    struct null_context *contexts;
    struct null_cq *cqs[QUEUES];
    struct null_srq *srqs[QUEUES];
    struct null_qp *pairs;
    char prefix[48];
};

extern struct node node;

int node_open(void);
void node_close(void);
struct shared_pair *pair_create(uint32_t *number);
struct shared_pair *pair_open(uint32_t number, uint32_t producer);
void pair_forget(uint32_t number);
void pair_unmap(struct shared_pair *pair);
struct peer *peer_get(uint32_t pid);
void peer_put(struct peer *peer);
bool peer_is_alive(struct peer *peer);

enum { BELL_EVENT = 'e', BELL_KICK = 'k' };
struct bell_message {
    uint32_t cq, generation;
};
int bell_bind(uint32_t channel, char kind);
void bell_ring(uint32_t pid, uint32_t channel, char kind, struct bell_message message);

static inline uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t) now.tv_sec * 1000000000ull + (uint64_t) now.tv_nsec;
}

/* -- device.c, region.c ------------------------------------------------------------------------------- */

struct async_event {
    struct async_event *next;
    struct ibv_async_event event;
};

struct null_context {
    struct ibv_context base;
    struct null_context *next;
    pthread_mutex_t lock;
    struct async_event *first, **last;
    int children;
};

struct null_pd {
    struct ibv_pd base;
    _Atomic int users;
};

void report(struct null_context *context, struct ibv_async_event event);
void report_to_all(int type);
void forget_events_of(struct null_context *context, void *element);

/* -- completion.c ------------------------------------------------------------------------------------- */

struct null_channel {
    struct ibv_comp_channel base;
    uint32_t number;
    int events, kicks, timer;
    _Atomic uint64_t timer_at; /* 0: not set */
    pthread_mutex_t lock;
};

/* posted: how many requests of its queue pair are done with it. held: for so many polls it is withheld. */
struct entry {
    struct ibv_wc wc;
    struct null_qp *pair;
    uint64_t posted;
    int held;
};

/* lock: guards it, and of its pairs the sending half (`send_cq`), the receiving half (`recv_cq`). */
struct null_cq {
    struct ibv_cq base;
    pthread_mutex_t lock;
    pthread_cond_t acknowledged;
    struct shared_cq *shared;
    struct null_channel *channel;
    struct entry *entries;
    uint32_t index, generation, first, count, acked, empty_polls, turn;
    _Atomic uint32_t taken;
    bool overflown, holds;
    uint64_t again_summary, again[WORDS];
    struct null_qp *slots[SLOTS];
    struct null_qp *blocked;
    int users;
};

/* announced: its sender has woken the owner already, if that was due. */
void cq_add(struct null_cq *cq, struct null_qp *pair, const struct ibv_wc *wc, uint64_t posted,
            bool announced);
void cq_drop(struct null_cq *cq, struct null_qp *pair);
/* What waits in it gets a poll in time even if its owner sleeps. */
void cq_care(struct null_cq *cq);
void cq_progress(struct null_cq *cq, uint32_t limit);
int null_poll_cq(struct ibv_cq *cq, int limit, struct ibv_wc *found);
int null_req_notify_cq(struct ibv_cq *cq, int solicited);

/* -- channel.c ---------------------------------------------------------------------------------------- */

/* The pair in this slot has something to look at: after that was made visible. */
void cq_mark(struct shared_node *owner, uint32_t cq, uint32_t slot);
/* A completion came: wakes the owner if the queue is armed. */
void cq_announce(struct shared_node *owner, uint32_t cq, bool solicited);
/* There is something to do, but no completion: wakes a sleeping owner, whose next poll does it. */
void cq_kick(struct shared_node *owner, uint32_t cq);
/* Those of one queue, or with QUEUES all. False: there was none at all. */
bool channel_take_kicks(struct null_channel *channel, uint32_t cq);
void channel_take_timer(struct null_channel *channel);
void channel_set_timer(struct null_channel *channel, uint64_t when);
/* Drops the events of this queue that were not taken; those of others stay. */
void channel_drop_events(struct null_cq *cq);

/* -- receive.c: receive queues, and the consumer of rings --------------------------------------------- */

struct receive_request {
    uint64_t wr_id;
    uint32_t length;
    int count;
    struct ibv_sge pieces[];
};

/* Posted buffers, in order; `shared` says how many there were. */
struct receive_queue {
    pthread_mutex_t lock;
    struct shared_receives *shared;
    unsigned char *requests;
    size_t size; /* of a request */
    uint32_t depth, first, count, max_pieces, pd;
    struct null_qp *pairs; /* for which it receives */
};

struct null_srq {
    struct ibv_srq base;
    struct receive_queue queue;
    uint32_t index;
    int users;
};

/* Its `shared`, `pd`, `depth` and `max_pieces` are set. Returns errno. */
int receives_begin(struct receive_queue *queue);
void receives_end(struct receive_queue *queue);
int null_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *request, struct ibv_recv_wr **bad);
int null_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad);
/* Places what came in, until `limit` completions are there. True: more is there. */
bool pair_receive(struct null_qp *pair, uint32_t limit);
/* What came in and was never polled is lost, with its buffers, as completions of a queue pair that ends. */
void pair_drop_received(struct null_qp *pair);

/* -- send.c, transmit.c: requests, and the producer of rings ------------------------------------------ */

enum wait { WAIT_NO, WAIT_ROOM, WAIT_BUFFER, WAIT_PEER, WAIT_ORDER };
enum { WORK_DONE, WORK_FAILED, WORK_WAITS };

/* done: bytes that are in the ring. since: when it began to wait. reserved: it has a receive buffer. */
struct work {
    uint64_t wr_id, remote, since, length, done, posted;
    uint32_t opcode, flags, imm, rkey;
    int count;
    enum wait wait;
    bool checked, reserved;
    const struct ibv_sge *pieces;
};

/* One that waits, with its own copy of what it refers to. */
struct stored_work {
    struct work work;
    struct ibv_sge pieces[MAX_PIECES];
    unsigned char inlined[MAX_INLINE];
};

/* Appends bytes of its pieces, from `skip` on. */
void gather(const struct work *work, unsigned char *to, uint64_t skip, uint32_t length);
void send_completed(struct null_qp *pair, const struct work *work, int status);
int request_attempt(struct null_qp *pair, struct work *work);
int request_fails(struct null_qp *pair, struct work *work, int status);
int null_post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad);
/* Tries what waits again. Under the lock of its send_cq. */
void pair_send(struct null_qp *pair);
/* For pairs that wait: when something happens without anybody's doing, 0 for never. */
uint64_t pair_deadline(const struct null_qp *pair);

/* -- queue_pair.c, states.c --------------------------------------------------------------------------- */

struct null_qp {
    struct ibv_qp base;
    struct shared_pair *shared;
    _Atomic(struct shared_pair *) remote;
    struct peer *peer;
    struct null_cq *send_cq, *recv_cq;
    struct receive_queue *receives;
    struct receive_queue own_receives;
    struct ibv_qp_cap cap;
    uint32_t port, initiator_reads, sq_psn;
    uint64_t timeout_ns;
    bool signal_all, endless_rnr, linked, reported;
    /* sending */
    uint64_t tail, known_head, write_mark, posted, freed;
    uint32_t arrivals;
    struct shared_receives *peer_receives;
    struct stored_work *stored;
    uint32_t stored_first, stored_count;
    struct null_qp *next_blocked, **blocked_at;
    /* receiving */
    uint64_t head;
    struct receive_request *current;
    bool receiving, receive_failed;
    uint32_t received, written, arrived;
    struct null_qp *next_of_receives, *next_of_node;
};

static inline uint32_t pair_state(const struct null_qp *pair)
{
    return atomic_load_explicit(&pair->shared->state, memory_order_acquire);
}

/* Both halves. */
void pair_lock(struct null_qp *pair);
void pair_unlock(struct null_qp *pair);
/* To IBV_QPS_ERR; what it has posted is flushed by the next polls. */
void pair_fail(struct null_qp *pair);
void pair_fail_remote(struct null_qp *pair, bool refused);
void pair_wake_sender(struct null_qp *pair);

/* -- faults.c ----------------------------------------------------------------------------------------- */

enum fault {
    FAULT_LOSE, FAULT_LATE, FAULT_STATUS, FAULT_REGISTER, FAULT_PAIR, FAULT_MEMLOCK, FAULT_GOES, FAULT_DOWN,
    FAULT_UP, FAULTS,
};
/* The last two are those of the last queue pair. */
enum count {
    COUNT_SENDS, COUNT_READS, COUNT_WRITES, COUNT_WAKEUPS, COUNT_KICKS, COUNT_WAITS, TRAFFIC_CLASS,
    SERVICE_LEVEL, COUNTS,
};

extern _Atomic bool faults_set;
extern _Atomic bool device_gone, port_is_down;
extern bool copies_payload;
extern _Atomic uint64_t counts[COUNTS];

void faults_begin(void);
/* The value of the fault if it happens now, else 0. opcode: of a completion, or -1. */
int fault_hits(enum fault fault, int opcode);
/* At each posted request: device and port may go. */
void fault_step(void);
uint64_t memlock_limit(void);

static inline void counted(enum count what)
{
    atomic_store_explicit(&counts[what], atomic_load_explicit(&counts[what], memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

#endif
