/* One end of a connection, for bench.c and checks.c. */
#ifndef ENDS_H
#define ENDS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "verbs_abi.h"

/* memory: DEPTH receive buffers, then MEMORY bytes. */
enum { DEPTH = 64, BUFFER = 8192, MEMORY = 2 << 20, RECEIVED = DEPTH * BUFFER };

/* What `begin` makes: 0 is the default. unposted: no receive buffers are there yet. */
struct wish {
    bool own_receives, unposted, read_only;
    bool waits; /* for a receive buffer, without end */
    int completions;
    uint32_t requests;
};

struct end {
    struct wish wish;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
};

struct address {
    uint32_t number, rkey;
    uint64_t memory;
};

#define check(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec * 1e9 + (double) time.tv_nsec;
}

static inline int try_post_buffer(struct end *end, uint64_t which, uint32_t length)
{
    struct ibv_sge piece = {(uintptr_t) end->memory + which * BUFFER, length, end->mr->lkey};
    struct ibv_recv_wr request = {.wr_id = which, .sg_list = &piece, .num_sge = 1}, *bad;
    return end->srq ? end->context->ops.post_srq_recv(end->srq, &request, &bad)
                    : end->context->ops.post_recv(end->qp, &request, &bad);
}

static inline void post_buffer(struct end *end, uint64_t which)
{
    check(!try_post_buffer(end, which, BUFFER));
}

/* From the memory behind the buffers; `at`: an offset there, and in the peer's. */
static inline int try_post(struct end *end, int opcode, uint32_t length, unsigned flags,
                           struct address remote, uint64_t at)
{
    struct ibv_sge piece = {(uintptr_t) end->memory + RECEIVED + at, length, end->mr->lkey};
    struct ibv_send_wr request = {
        .wr_id = 1000, .sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = flags, .imm_data = 77,
    }, *bad;
    request.wr.rdma.remote_addr = remote.memory + RECEIVED + at;
    request.wr.rdma.rkey = remote.rkey;
    return end->context->ops.post_send(end->qp, &request, &bad);
}

static inline void post(struct end *end, int opcode, uint32_t length, unsigned flags, struct address remote)
{
    check(!try_post(end, opcode, length, flags, remote, 0));
}

static inline int poll_any(struct end *end, int limit, struct ibv_wc *found)
{
    int count = end->context->ops.poll_cq(end->cq, limit, found);
    check(count >= 0);
    return count;
}

static inline int poll_good(struct end *end, int limit, struct ibv_wc *found)
{
    int count = poll_any(end, limit, found);
    for (int at = 0; at < count; at++)
        check(!found[at].status);
    return count;
}

/* The next completion, which has to come within two seconds. */
static inline struct ibv_wc expect(struct end *end, int status)
{
    struct ibv_wc found;
    double until = now() + 2e9;
    while (!poll_any(end, 1, &found))
        check(now() < until);
    check(found.status == status);
    return found;
}

static inline struct address begin(struct end *end, struct wish wish)
{
    *end = (struct end) {.wish = wish};
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(end->context = ibv_open_device(list[0]));
    ibv_free_device_list(list);
    check(end->pd = ibv_alloc_pd(end->context));
    check(end->channel = ibv_create_comp_channel(end->context));
    check(end->cq = ibv_create_cq(end->context, wish.completions ? wish.completions : 4 * DEPTH, NULL,
                                  end->channel, 0));
    struct ibv_srq_init_attr buffers = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    if (!wish.own_receives)
        check(end->srq = ibv_create_srq(end->pd, &buffers));
    struct ibv_qp_init_attr wanted = {
        .send_cq = end->cq, .recv_cq = end->cq, .srq = end->srq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = wish.requests ? wish.requests : DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4,
                .max_recv_sge = 1, .max_inline_data = 128},
    };
    check(end->qp = ibv_create_qp(end->pd, &wanted));
    end->memory = mmap(NULL, RECEIVED + MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(end->memory != MAP_FAILED);
    memset(end->memory, 0, RECEIVED + MEMORY);
    int access = wish.read_only ? IBV_ACCESS_REMOTE_READ
                                : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    check(end->mr = ibv_reg_mr(end->pd, end->memory, RECEIVED + MEMORY, access));
    return (struct address) {end->qp->qp_num, end->mr->rkey, (uintptr_t) end->memory};
}

enum {
    TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
             | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
    TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
             | IBV_QP_MAX_QP_RD_ATOMIC,
};

/* access: of the queue pair, for the peer. */
static inline struct ibv_qp_attr attr_for(struct address to, unsigned access)
{
    struct ibv_qp_attr attr = {.port_num = 1, .qp_access_flags = access, .path_mtu = IBV_MTU_4096};
    attr.dest_qp_num = to.number;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 16;
    attr.ah_attr.is_global = attr.ah_attr.port_num = attr.ah_attr.grh.sgid_index = 1;
    static const uint8_t gid[16] = {[10] = 0xff, 0xff, 127, 0, 0, 1};
    memcpy(attr.ah_attr.grh.dgid.raw, gid, sizeof(gid));
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 6;
    return attr;
}

static inline void join_with(struct end *end, struct address to, unsigned access)
{
    static const int masks[] = {TO_INIT, TO_RTR, TO_RTS};
    struct ibv_qp_attr attr = attr_for(to, access);
    if (end->wish.waits)
        attr.rnr_retry = 7;
    for (int at = 0; at < 3; at++) {
        attr.qp_state = IBV_QPS_INIT + at;
        check(!ibv_modify_qp(end->qp, &attr, masks[at]));
    }
    for (uint64_t which = 0; which < DEPTH && !end->wish.unposted; which++)
        post_buffer(end, which);
}

static inline void join(struct end *end, struct address to)
{
    join_with(end, to, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

static inline void finish(struct end *end)
{
    if (end->qp)
        check(!ibv_destroy_qp(end->qp));
    if (end->srq)
        check(!ibv_destroy_srq(end->srq));
    check(!ibv_destroy_cq(end->cq));
    check(!ibv_destroy_comp_channel(end->channel));
    if (end->mr)
        check(!ibv_dereg_mr(end->mr));
    check(!ibv_dealloc_pd(end->pd));
    check(!ibv_close_device(end->context));
    munmap(end->memory, RECEIVED + MEMORY);
}

#endif
