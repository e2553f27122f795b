/* What the null provider promises, at the level of verbs: `checks NAME` runs one check, `checks` prints the names.
 * tests/rdma/test_null_provider.py compiles and runs them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "ends.h"

#define SIGNALED IBV_SEND_SIGNALED

static const struct address nowhere;

/* Both ends in this process, connected. */
static void pair_of(struct end ends[2], struct address addresses[2], struct wish left, struct wish right)
{
    addresses[0] = begin(&ends[0], left);
    addresses[1] = begin(&ends[1], right);
    join(&ends[0], addresses[1]);
    join(&ends[1], addresses[0]);
}

static void finish_both(struct end ends[2])
{
    finish(&ends[0]);
    finish(&ends[1]);
}

static void nothing(struct end *end)
{
    struct ibv_wc found;
    check(!poll_any(end, 1, &found));
}

static bool is_readable(int fd, int patience)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    return poll(&readable, 1, patience) > 0;
}

static int event_of(struct end *end)
{
    struct ibv_async_event event;
    if (!is_readable(end->context->async_fd, 0))
        return -1;
    check(!ibv_get_async_event(end->context, &event));
    ibv_ack_async_event(&event);
    return event.event_type;
}

static void arm(struct end *end)
{
    check(!end->context->ops.req_notify_cq(end->cq, 0));
}

static void take_event(struct end *end)
{
    struct ibv_cq *cq;
    void *unused;
    check(!ibv_get_cq_event(end->channel, &cq, &unused) && cq == end->cq);
    ibv_ack_cq_events(cq, 1);
}

/* Sleeps until a completion is there, as a program does. */
static struct ibv_wc await(struct end *end)
{
    struct ibv_wc found;
    for (;;) {
        if (poll_any(end, 1, &found))
            return found;
        arm(end);
        if (poll_any(end, 1, &found))
            return found;
        check(is_readable(end->channel->fd, 5000));
        struct ibv_cq *cq;
        void *unused;
        int flags = fcntl(end->channel->fd, F_GETFL);
        fcntl(end->channel->fd, F_SETFL, flags | O_NONBLOCK);
        if (!ibv_get_cq_event(end->channel, &cq, &unused))
            ibv_ack_cq_events(cq, 1);
        fcntl(end->channel->fd, F_SETFL, flags);
    }
}

static char *data_of(struct end *end)
{
    return end->memory + RECEIVED;
}

static struct end ends[2];
static struct address addresses[2];
#define left (&ends[0])
#define right (&ends[1])
#define to_right (addresses[1])

/* -- messages ------------------------------------------------------------------------------------------------ */

static void sends(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    strcpy(data_of(left), "first");
    post(left, IBV_WR_SEND, 6, 0, nowhere);
    strcpy(data_of(left), "second");
    post(left, IBV_WR_SEND_WITH_IMM, 7, SIGNALED, nowhere);
    post(left, IBV_WR_SEND, 0, 0, nowhere);
    struct ibv_wc sent = expect(left, IBV_WC_SUCCESS), got = expect(right, IBV_WC_SUCCESS);
    check(sent.wr_id == 1000 && sent.opcode == IBV_WC_SEND && sent.qp_num == left->qp->qp_num);
    nothing(left);
    check(got.wr_id == 0 && got.opcode == IBV_WC_RECV && got.byte_len == 6 && !got.wc_flags);
    check(got.qp_num == right->qp->qp_num && got.src_qp == left->qp->qp_num && !strcmp(right->memory, "first"));
    got = expect(right, IBV_WC_SUCCESS);
    check(got.wr_id == 1 && got.byte_len == 7 && got.wc_flags == IBV_WC_WITH_IMM && got.imm_data == 77);
    check(!strcmp(right->memory + BUFFER, "second"));
    check(expect(right, IBV_WC_SUCCESS).byte_len == 0);
    nothing(right);
    finish_both(ends);
}

static void writes(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    memset(data_of(left), 'w', MEMORY);
    post(left, IBV_WR_RDMA_WRITE, 100, SIGNALED, to_right);
    check(expect(left, IBV_WC_SUCCESS).opcode == IBV_WC_RDMA_WRITE);
    check(!*data_of(right)); /* nobody polled: no card does that */
    nothing(right);
    check(data_of(right)[99] == 'w' && !data_of(right)[100]);
    check(!try_post(left, IBV_WR_RDMA_WRITE_WITH_IMM, 10, 0, to_right, 5000));
    struct ibv_wc got = expect(right, IBV_WC_SUCCESS);
    check(got.opcode == IBV_WC_RECV_RDMA_WITH_IMM && got.byte_len == 10 && got.imm_data == 77 && got.wr_id == 0);
    check(data_of(right)[5009] == 'w' && !data_of(right)[5010]);
    /* More than the ring holds goes on as the target polls. */
    post(left, IBV_WR_RDMA_WRITE_WITH_IMM, MEMORY, SIGNALED, to_right);
    nothing(left);
    for (int at = 0; at < 20; at++) {
        struct ibv_wc found;
        poll_good(left, 0, &found);
        poll_good(left, 1, &found);
        if (poll_good(right, 1, &found)) {
            check(found.byte_len == MEMORY && found.wr_id == 1);
            check(!memcmp(data_of(left), data_of(right), MEMORY));
            finish_both(ends);
            return;
        }
    }
    check(!"arrived");
}

static void reads(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    memset(data_of(right), 'r', MEMORY);
    check(!try_post(left, IBV_WR_RDMA_READ, 1000, SIGNALED, to_right, 8));
    struct ibv_wc got = expect(left, IBV_WC_SUCCESS);
    check(got.opcode == IBV_WC_RDMA_READ && got.byte_len == 1000);
    check(!data_of(left)[7] && data_of(left)[8] == 'r' && data_of(left)[1007] == 'r' && !data_of(left)[1008]);
    post(left, IBV_WR_RDMA_READ, 0, SIGNALED, to_right);
    check(!expect(left, IBV_WC_SUCCESS).byte_len);
    /* Into several pieces. */
    strcpy(data_of(right), "0123456789");
    struct ibv_sge pieces[2] = {{(uintptr_t) data_of(left), 3, left->mr->lkey},
                                {(uintptr_t) data_of(left) + 100, 8, left->mr->lkey}};
    struct ibv_send_wr request = {.sg_list = pieces, .num_sge = 2, .opcode = IBV_WR_RDMA_READ,
                                  .send_flags = SIGNALED}, *bad;
    request.wr.rdma.remote_addr = to_right.memory + RECEIVED;
    request.wr.rdma.rkey = to_right.rkey;
    check(!left->context->ops.post_send(left->qp, &request, &bad));
    expect(left, IBV_WC_SUCCESS);
    check(!strncmp(data_of(left), "012", 3) && !strcmp(data_of(left) + 100, "3456789"));
    /* A READ sees the WRITE before it, for which it waits until the target polls. */
    strcpy(data_of(left), "written");
    post(left, IBV_WR_RDMA_WRITE, 8, 0, to_right);
    strcpy(data_of(left), "nothing");
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    nothing(left);
    nothing(right);
    expect(left, IBV_WC_SUCCESS);
    check(!strcmp(data_of(left), "written"));
    finish_both(ends);
}

static void inlined(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    for (int at = 0; at < 3; at++) { /* each waits for a buffer; the memory need not be registered */
        char text[20];
        snprintf(text, sizeof(text), "message %d", at % 10);
        struct ibv_sge piece = {(uintptr_t) text, sizeof(text), 0};
        struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
                                      .send_flags = IBV_SEND_INLINE}, *bad;
        check(!left->context->ops.post_send(left->qp, &request, &bad));
        memset(text, 'x', sizeof(text));
    }
    check(try_post(left, IBV_WR_SEND, 129, IBV_SEND_INLINE, nowhere, 0) == ENOMEM);
    check(try_post(left, IBV_WR_RDMA_READ, 8, IBV_SEND_INLINE, to_right, 0) == EINVAL);
    for (uint64_t which = 0; which < 3; which++)
        post_buffer(right, which);
    nothing(left);
    for (int at = 0; at < 3; at++) {
        struct ibv_wc got = expect(right, IBV_WC_SUCCESS);
        check(got.wr_id == (uint64_t) at && right->memory[at * BUFFER + 8] == '0' + at);
    }
    finish_both(ends);
}

/* -- rights and bounds --------------------------------------------------------------------------------------- */

static void is_refused(int opcode, struct address remote, uint32_t length, uint64_t beyond, unsigned access)
{
    addresses[0] = begin(left, (struct wish) {0});
    addresses[1] = begin(right, (struct wish) {.own_receives = true});
    join(left, addresses[1]);
    join_with(right, addresses[0], access);
    remote.memory = remote.memory ? remote.memory : to_right.memory + beyond;
    remote.rkey = remote.rkey == 1 ? to_right.rkey ^ 0x5a5a00 : remote.rkey ? remote.rkey : to_right.rkey;
    check(!try_post(left, opcode, length, 0, remote, 0));
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    expect(left, IBV_WC_REM_ACCESS_ERR);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    check(!try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0));
    expect(left, IBV_WC_WR_FLUSH_ERR);
    for (int buffer = 0; buffer < DEPTH; buffer++)
        check(expect(right, IBV_WC_WR_FLUSH_ERR).wr_id == (uint64_t) buffer);
    nothing(right);
    check(event_of(right) == IBV_EVENT_QP_ACCESS_ERR && event_of(right) == -1);
    check(!memcmp(data_of(left), data_of(right), MEMORY)); /* all zero */
    finish_both(ends);
}

static void rights(void)
{
    unsigned all = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    for (int opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_RDMA_READ; opcode += IBV_WR_RDMA_READ) {
        is_refused(opcode, (struct address) {.rkey = 1}, 8, 0, all);                 /* key */
        is_refused(opcode, (struct address) {.rkey = 0xfffffff0}, 8, 0, all);        /* no such key */
        is_refused(opcode, (struct address) {0}, 9, MEMORY - 8, all);                /* past the end */
        is_refused(opcode, (struct address) {.memory = 0x1000}, 8, 0, all);          /* before it */
        is_refused(opcode, (struct address) {.memory = UINT64_MAX - RECEIVED - 3}, 8, 0, all); /* around */
        is_refused(opcode, (struct address) {0}, 8, 0, all & ~(opcode ? 4u : 2u));   /* of the queue pair */
    }
    /* The region's own right, and a key of another protection domain. */
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.read_only = true, .unposted = true});
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    expect(left, IBV_WC_SUCCESS);
    post(left, IBV_WR_RDMA_WRITE, 8, SIGNALED, to_right);
    expect(left, IBV_WC_REM_ACCESS_ERR);
    finish_both(ends);
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    struct ibv_pd *other = ibv_alloc_pd(right->context);
    struct ibv_mr *mr = ibv_reg_mr(other, right->memory, RECEIVED + MEMORY, IBV_ACCESS_REMOTE_READ);
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, (struct address) {.rkey = mr->rkey, .memory = to_right.memory});
    expect(left, IBV_WC_REM_ACCESS_ERR);
    nothing(right); /* sees that it failed */
    check(event_of(right) == IBV_EVENT_QP_ACCESS_ERR && event_of(right) == IBV_EVENT_QP_LAST_WQE_REACHED);
    check(ibv_dealloc_pd(other) == EBUSY && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
    finish_both(ends);
}

static void keys(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    uint32_t seen[1000];
    for (int at = 0; at < 1000; at++) {
        struct ibv_mr *mr = ibv_reg_mr(right->pd, data_of(right), 8, IBV_ACCESS_REMOTE_READ);
        seen[at] = mr->rkey;
        for (int before = 0; before < at; before++)
            check(seen[before] != seen[at]);
        check(!ibv_dereg_mr(mr));
    }
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED,
         (struct address) {.rkey = seen[999], .memory = to_right.memory}); /* deregistered */
    expect(left, IBV_WC_REM_ACCESS_ERR);
    check(!ibv_reg_mr(right->pd, data_of(right), 8, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    check(!ibv_reg_dmabuf_mr(right->pd, 0, 8, 0, 1, 0) && errno == EOPNOTSUPP);
    finish_both(ends);
}

static void local_keys(void)
{
    struct ibv_wc found;
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    check(!ibv_dereg_mr(left->mr) && (left->mr = ibv_reg_mr(left->pd, left->memory, RECEIVED + 100, 1)));
    post(left, IBV_WR_SEND, 101, 0, nowhere);
    expect(left, IBV_WC_LOC_PROT_ERR);
    check(!poll_any(right, 1, &found));
    finish_both(ends);
    /* A READ writes into our memory. */
    pair_of(ends, addresses, (struct wish) {.read_only = true, .unposted = true}, (struct wish) {0});
    post(left, IBV_WR_RDMA_READ, 8, 0, to_right);
    expect(left, IBV_WC_LOC_PROT_ERR);
    finish_both(ends);
    /* A receive buffer that is too short. */
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    check(!try_post_buffer(right, 5, 100));
    post(left, IBV_WR_SEND, 101, 0, nowhere);
    check(expect(right, IBV_WC_LOC_LEN_ERR).wr_id == 5);
    post(left, IBV_WR_SEND, 1, 0, nowhere);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    finish_both(ends);
}

/* -- waiting ------------------------------------------------------------------------------------------------- */

static void not_ready(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    data_of(left)[0] = 'a';
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right); /* in order */
    nothing(left);
    arm(left);
    nothing(left);
    check(!is_readable(left->channel->fd, 20));
    post_buffer(right, 3);
    check(is_readable(left->channel->fd, 1000)); /* it was woken to go on */
    check(expect(left, IBV_WC_SUCCESS).opcode == IBV_WC_SEND);
    check(expect(left, IBV_WC_SUCCESS).opcode == IBV_WC_RDMA_READ);
    take_event(left);
    check(!is_readable(left->channel->fd, 20));
    check(expect(right, IBV_WC_SUCCESS).wr_id == 3 && right->memory[3 * BUFFER] == 'a');
    /* Too long. */
    double began = now();
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RNR_RETRY_EXC_ERR);
    double took = now() - began;
    check(took > 0.4e9 && took < 2e9);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    finish_both(ends);
}

static void no_answer(void)
{
    /* A queue pair that does not exist. */
    begin(left, (struct wish) {0});
    join(left, (struct address) {.number = 15});
    double began = now();
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    double took = now() - began;
    check(took > 0.4e9 && took < 2e9);
    finish(left);
    /* One that is not connected yet, and then is. */
    addresses[0] = begin(left, (struct wish) {0});
    addresses[1] = begin(right, (struct wish) {0});
    join(left, addresses[1]);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    arm(left);
    nothing(left);
    join(right, addresses[0]);
    check(is_readable(left->channel->fd, 1000));
    expect(left, IBV_WC_SUCCESS);
    expect(right, IBV_WC_SUCCESS);
    /* One that is destroyed. */
    check(!ibv_destroy_qp(right->qp));
    right->qp = NULL;
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    finish_both(ends);
    /* Packets that begin with another number are not the expected ones. */
    addresses[0] = begin(left, (struct wish) {0});
    addresses[1] = begin(right, (struct wish) {0});
    join(right, addresses[0]);
    struct ibv_qp_attr attr = attr_for(addresses[1], 0);
    attr.sq_psn = 1;
    attr.timeout = 10;
    static const int masks[] = {TO_INIT, TO_RTR, TO_RTS};
    for (int at = 0; at < 3; at++) {
        attr.qp_state = IBV_QPS_INIT + at;
        check(!ibv_modify_qp(left->qp, &attr, masks[at]));
    }
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    finish_both(ends);
}

/* A large message goes on although its receiver sleeps: more than the ring holds. */
static void large_to_a_sleeper(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    struct ibv_sge whole = {(uintptr_t) data_of(right), MEMORY, right->mr->lkey};
    struct ibv_recv_wr buffer = {.wr_id = 9, .sg_list = &whole, .num_sge = 1}, *bad;
    check(!right->context->ops.post_srq_recv(right->srq, &buffer, &bad));
    memset(data_of(left), 'l', MEMORY);
    arm(right);
    nothing(right);
    post(left, IBV_WR_SEND, MEMORY, SIGNALED, nowhere);
    nothing(left);
    struct ibv_wc got;
    int rounds = 0;
    for (arm(left); !poll_good(left, 1, &got); rounds++) {
        check(is_readable(right->channel->fd, 1000));
        nothing(right);
        check(is_readable(left->channel->fd, 1000));
    }
    got = expect(right, IBV_WC_SUCCESS);
    check(rounds > 1 && got.wr_id == 9 && got.byte_len == MEMORY && data_of(right)[MEMORY - 1] == 'l');
    take_event(right);
    check(!is_readable(right->channel->fd, 10));
    finish_both(ends);
}

/* -- limits, states, order ----------------------------------------------------------------------------------- */

static void queues_are_full(void)
{
    pair_of(ends, addresses, (struct wish) {.requests = 4}, (struct wish) {0});
    for (int at = 0; at < 4; at++)
        post(left, IBV_WR_SEND, 8, at == 3 ? SIGNALED : 0, nowhere);
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == ENOMEM); /* until a completion says so */
    expect(left, IBV_WC_SUCCESS);
    for (int at = 0; at < 4; at++)
        post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(try_post(left, IBV_WR_SEND, 8, SIGNALED, nowhere, 0) == ENOMEM); /* nothing will say so any more */
    check(try_post_buffer(right, 0, BUFFER) == ENOMEM);
    expect(right, IBV_WC_SUCCESS);
    post_buffer(right, 0);
    finish_both(ends);
    /* More completions than the queue holds. */
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.completions = 5});
    for (int at = 0; at < 7; at++)
        post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    struct ibv_wc found;
    while (right->context->ops.poll_cq(right->cq, 1, &found) > 0)
        ;
    check(event_of(right) == IBV_EVENT_CQ_ERR);
    check(right->context->ops.poll_cq(right->cq, 1, &found) < 0);
    finish_both(ends);
}

static void states(void)
{
    begin(left, (struct wish) {.own_receives = true});
    struct ibv_qp_attr attr = attr_for((struct address) {.number = 77}, 4);
    check(try_post_buffer(left, 0, 8) == EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    check(ibv_modify_qp(left->qp, &attr, TO_RTR) == EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    check(ibv_modify_qp(left->qp, &attr, TO_INIT & ~IBV_QP_PORT) == EINVAL);
    attr.port_num = 2;
    check(ibv_modify_qp(left->qp, &attr, TO_INIT) == EINVAL);
    attr.port_num = 1;
    check(!ibv_modify_qp(left->qp, &attr, TO_INIT));
    post_buffer(left, 0);
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    check(ibv_modify_qp(left->qp, &attr, TO_RTR & ~IBV_QP_AV) == EINVAL);
    attr.ah_attr.grh.sgid_index = 9;
    check(ibv_modify_qp(left->qp, &attr, TO_RTR) == EINVAL);
    attr.ah_attr.grh.sgid_index = 1;
    check(!ibv_modify_qp(left->qp, &attr, TO_RTR));
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == EINVAL);
    attr.qp_state = IBV_QPS_RTS;
    check(!ibv_modify_qp(left->qp, &attr, TO_RTS));
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    attr.qp_state = IBV_QPS_ERR;
    check(!ibv_modify_qp(left->qp, &attr, IBV_QP_STATE));
    check(expect(left, IBV_WC_WR_FLUSH_ERR).wr_id == 1000);
    check(expect(left, IBV_WC_WR_FLUSH_ERR).wr_id == 0);
    post_buffer(left, 1);
    check(expect(left, IBV_WC_WR_FLUSH_ERR).wr_id == 1);
    attr.qp_state = IBV_QPS_RTS;
    check(ibv_modify_qp(left->qp, &attr, TO_RTS) == EINVAL);
    finish(left);
}

static void closing_order(void)
{
    begin(left, (struct wish) {0});
    check(ibv_destroy_cq(left->cq) == EBUSY && ibv_destroy_srq(left->srq) == EBUSY);
    check(ibv_dealloc_pd(left->pd) == EBUSY && ibv_destroy_comp_channel(left->channel) == EBUSY);
    check(ibv_close_device(left->context) == EBUSY);
    check(!ibv_destroy_qp(left->qp) && ibv_dealloc_pd(left->pd) == EBUSY);
    check(!ibv_destroy_srq(left->srq) && ibv_dealloc_pd(left->pd) == EBUSY);
    check(!ibv_dereg_mr(left->mr) && !ibv_dealloc_pd(left->pd));
    check(ibv_destroy_comp_channel(left->channel) == EBUSY && !ibv_destroy_cq(left->cq));
    check(!ibv_destroy_comp_channel(left->channel) && !ibv_close_device(left->context));
}

/* -- events -------------------------------------------------------------------------------------------------- */

static void events(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    int fd = right->channel->fd;
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    arm(right); /* about what comes later */
    check(!is_readable(fd, 10));
    expect(right, IBV_WC_SUCCESS);
    post(left, IBV_WR_RDMA_WRITE, 8, 0, to_right); /* makes no completion */
    check(!is_readable(fd, 10));
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(is_readable(fd, 1000));
    take_event(right); /* one for each arming */
    check(!is_readable(fd, 10));
    for (int at = 0; at < 2; at++)
        expect(right, IBV_WC_SUCCESS);
    check(!right->context->ops.req_notify_cq(right->cq, 1)); /* solicited ones only */
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(!is_readable(fd, 10));
    post(left, IBV_WR_SEND, 8, IBV_SEND_SOLICITED, nowhere);
    check(is_readable(fd, 1000));
    take_event(right);
    arm(left); /* an own completion too */
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(is_readable(left->channel->fd, 1000));
    finish_both(ends); /* events that nobody took go with the queue */
}

/* -- two processes ------------------------------------------------------------------------------------------- */

static int pipes[2][2];
static pid_t child;
static int here;

/* The same program goes on in both; `left` is this process's end, `to_right` the other one. */
static void fork_ends(struct wish wish)
{
    check(!pipe(pipes[0]) && !pipe(pipes[1]));
    child = fork();
    here = child ? 0 : 1;
    struct address own = begin(left, wish);
    check(write(pipes[here][1], &own, sizeof(own)) == sizeof(own));
    check(read(pipes[!here][0], &to_right, sizeof(to_right)) == sizeof(to_right));
    join(left, to_right);
}

static void meet(void)
{
    char word = 0;
    check(write(pipes[here][1], &word, 1) == 1 && read(pipes[!here][0], &word, 1) == 1);
}

static void end_both(void)
{
    int status;
    finish(left);
    if (!child)
        exit(0);
    check(waitpid(child, &status, 0) == child && !status);
}

/* Nobody waits for ever, whoever sleeps when. */
static void wakes_between_processes(void)
{
    enum { TURNS = 20000 };
    fork_ends((struct wish) {0});
    uint64_t *number = (uint64_t *) data_of(left), expected = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        int burst = 1 + turn % 7;
        for (int at = 0; at < burst && turn % 2 == here; at++) {
            *number = expected + (uint64_t) at;
            post(left, IBV_WR_SEND, 8 + (uint32_t) (turn % 50) * 100, at + 1 == burst ? SIGNALED : 0, nowhere);
        }
        for (int at = 0; at < burst && turn % 2 != here;) {
            struct ibv_wc found = await(left);
            check(!found.status);
            if (found.opcode != IBV_WC_RECV)
                continue;
            check(*(uint64_t *) (left->memory + found.wr_id * BUFFER) == expected + (uint64_t) at++);
            check(found.byte_len == 8 + (uint32_t) (turn % 50) * 100);
            post_buffer(left, found.wr_id);
        }
        expected += (uint64_t) burst;
    }
    meet();
    end_both();
}

static void reads_between_processes(void)
{
    fork_ends((struct wish) {0});
    memset(data_of(left), 'a' + here, MEMORY);
    meet();
    for (int at = 0; at < 100; at++) {
        check(!try_post(left, IBV_WR_RDMA_READ, MEMORY / 2, SIGNALED, to_right, here ? MEMORY / 2 : 0));
        check(expect(left, IBV_WC_SUCCESS).byte_len == MEMORY / 2);
    }
    check(data_of(left)[0] == 'b' && data_of(left)[MEMORY - 1] == 'a');
    meet();
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, (struct address) {.rkey = to_right.rkey + 1, .memory = to_right.memory});
    struct ibv_wc found = await(left); /* of both, one is refused first, and then the other has failed already */
    check(found.status == IBV_WC_REM_ACCESS_ERR || found.status == IBV_WC_WR_FLUSH_ERR);
    meet();
    end_both();
}

/* A process that is killed answers nothing any more. */
static void a_killed_peer(void)
{
    fork_ends((struct wish) {0});
    if (here) {
        meet();
        pause();
    }
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    expect(left, IBV_WC_SUCCESS);
    meet();
    check(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    arm(left);
    nothing(left);
    check(!is_readable(left->channel->fd, 50)); /* who waits learns nothing */
    usleep(10000);
    double began = now();
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR && now() - began < 2e9);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    finish(left);
    /* The next process removes what it left. */
    begin(left, (struct wish) {0});
    finish(left);
}

/* -- threads ------------------------------------------------------------------------------------------------- */

enum { THREADS = 3, EACH = 20000 };
static struct ibv_qp *pairs[2][THREADS];
static _Atomic int arrived;

static void *sender(void *which)
{
    struct end one = *left;
    one.qp = pairs[0][(intptr_t) which];
    for (int at = 0; at < EACH; at++)
        while (try_post(&one, IBV_WR_SEND, 64, SIGNALED, nowhere, 64 * (uint64_t) (intptr_t) which))
            sched_yield();
    return NULL;
}

/* Takes completions of one side; several threads share each queue. */
static void *taker(void *side)
{
    struct end *end = &ends[(intptr_t) side];
    struct ibv_wc found[8];
    while (arrived < THREADS * EACH) {
        int count = poll_good(end, 8, found);
        for (int at = 0; at < count; at++)
            if (found[at].opcode == IBV_WC_RECV) {
                post_buffer(end, found[at].wr_id);
                arrived++;
            }
        if (!count)
            sched_yield();
    }
    return NULL;
}

static void connect_one(struct ibv_qp *qp, struct ibv_qp *to)
{
    struct end one = {.qp = qp, .wish = {.unposted = true}};
    join(&one, (struct address) {.number = to->qp_num});
}

static void threads(void)
{
    pthread_t running[THREADS + 4];
    int count = 0;
    pair_of(ends, addresses, (struct wish) {.completions = 1000}, (struct wish) {.completions = 1000});
    for (int at = 0; at < THREADS; at++) {
        for (int side = 0; side < 2; side++) {
            struct ibv_qp_init_attr wanted = {
                .send_cq = ends[side].cq, .recv_cq = ends[side].cq, .srq = ends[side].srq,
                .cap = {.max_send_wr = 32, .max_send_sge = 1}, .qp_type = IBV_QPT_RC,
            };
            check(pairs[side][at] = ibv_create_qp(ends[side].pd, &wanted));
        }
        connect_one(pairs[0][at], pairs[1][at]);
        connect_one(pairs[1][at], pairs[0][at]);
    }
    for (intptr_t at = 0; at < 4; at++)
        check(!pthread_create(&running[count++], NULL, taker, (void *) (at % 2)));
    for (intptr_t at = 0; at < THREADS; at++)
        check(!pthread_create(&running[count++], NULL, sender, (void *) at));
    while (count)
        pthread_join(running[--count], NULL);
    check(arrived == THREADS * EACH);
    for (int at = 0; at < THREADS; at++)
        check(!ibv_destroy_qp(pairs[0][at]) && !ibv_destroy_qp(pairs[1][at]));
    finish_both(ends);
}

/* -- faults -------------------------------------------------------------------------------------------------- */

static void faults(void)
{
    struct ibv_wc found[4];
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    check(null_verbs_fault("nonsense", 0, 1) == EINVAL);
    check(!null_verbs_fault("lose:send", 1, 1));
    for (int at = 0; at < 3; at++)
        post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(poll_good(left, 4, found) == 2 && poll_good(right, 4, found) == 3);
    check(!null_verbs_fault("late=3:read", 0, 1));
    arm(left);
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere); /* stays behind it */
    nothing(left);
    nothing(left);
    check(is_readable(left->channel->fd, 1000)); /* a sleeper is woken to poll */
    check(poll_good(left, 4, found) == 2);
    take_event(left);
    check(!null_verbs_fault("status=12:read", 0, 1));
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    expect(left, IBV_WC_SUCCESS);
    expect(left, IBV_WC_RETRY_EXC_ERR);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    finish_both(ends);

    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    check(!null_verbs_fault("register=1", 1, 2));
    struct ibv_mr *mr = ibv_reg_mr(left->pd, left->memory, 8, 1);
    check(mr && !ibv_reg_mr(left->pd, left->memory, 8, 1) && errno == EPERM);
    check(!ibv_reg_mr(left->pd, left->memory, 8, 1) && !ibv_dereg_mr(mr));
    check((mr = ibv_reg_mr(left->pd, left->memory, 8, 1)) && !ibv_dereg_mr(mr));
    check(!null_verbs_fault("memlock=10000000", 0, 0));
    check(!ibv_reg_mr(left->pd, left->memory, 6000000, 1) && errno == ENOMEM);
    check((mr = ibv_reg_mr(left->pd, left->memory, 1000000, 1)) && !ibv_dereg_mr(mr));
    check(!null_verbs_fault("pair=12", 0, 1));
    struct ibv_qp_init_attr wanted = {.send_cq = left->cq, .recv_cq = left->cq, .srq = left->srq,
                                      .cap.max_send_wr = 1, .qp_type = IBV_QPT_RC};
    check(!ibv_create_qp(left->pd, &wanted) && errno == ENOMEM);
    check(!null_verbs_fault("clear", 0, 0));
    finish_both(ends);
}

static void the_port_goes_down(void)
{
    struct ibv_port_attr port;
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    check(!null_verbs_fault("down", 0, 1) && event_of(left) == IBV_EVENT_PORT_ERR);
    check(!ibv_query_port(left->context, 1, &port) && port.state == IBV_PORT_DOWN);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    nothing(left);
    check(!null_verbs_fault("up", 0, 1) && event_of(left) == IBV_EVENT_PORT_ACTIVE);
    check(!ibv_query_port(left->context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    expect(left, IBV_WC_SUCCESS); /* it was retried */
    check(!null_verbs_fault("down", 1, 1));
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    expect(left, IBV_WC_SUCCESS);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    finish_both(ends);
}

static void the_device_goes(void)
{
    struct ibv_wc found;
    struct ibv_port_attr port;
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.own_receives = true});
    arm(right);
    check(!null_verbs_fault("goes", 1, 1));
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    expect(left, IBV_WC_SUCCESS);
    check(is_readable(right->channel->fd, 1000));
    expect(right, IBV_WC_SUCCESS);
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == EIO);
    check(event_of(left) == IBV_EVENT_DEVICE_FATAL && event_of(right) == IBV_EVENT_DEVICE_FATAL);
    for (int at = 1; at < DEPTH; at++)
        expect(right, IBV_WC_WR_FLUSH_ERR);
    check(right->context->ops.poll_cq(right->cq, 1, &found) == -EIO);
    check(ibv_query_port(left->context, 1, &port) == EIO && !ibv_alloc_pd(left->context) && errno == EIO);
    check(try_post_buffer(left, 0, 8) == EIO && left->context->ops.req_notify_cq(left->cq, 0) == EIO);
    finish_both(ends); /* what the program holds can be closed */
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(!ibv_open_device(list[0]) && errno == EIO);
    check(!null_verbs_fault("clear", 0, 0));
    ibv_free_device_list(list);
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    finish_both(ends);
}

static void the_end_of_a_pair(void)
{
    /* Its completions, and what came in and was not polled, are gone, with their buffers. */
    struct ibv_wc found;
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    for (int at = 0; at < 10; at++)
        post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(poll_good(right, 4, (struct ibv_wc[4]) {{0}}) == 4);
    check(!ibv_destroy_qp(left->qp) && !ibv_destroy_qp(right->qp));
    left->qp = right->qp = NULL;
    check(!poll_good(left, 1, &found) && !poll_good(right, 1, &found));
    for (uint64_t at = 0; at < 10; at++) /* the queue has room for that many again */
        post_buffer(right, at);
    check(try_post_buffer(right, 0, BUFFER) == ENOMEM);
    finish_both(ends);
}

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
    {"sends", sends},
    {"writes", writes},
    {"reads", reads},
    {"inlined", inlined},
    {"rights", rights},
    {"keys", keys},
    {"local_keys", local_keys},
    {"not_ready", not_ready},
    {"no_answer", no_answer},
    {"large_to_a_sleeper", large_to_a_sleeper},
    {"queues_are_full", queues_are_full},
    {"states", states},
    {"closing_order", closing_order},
    {"events", events},
    {"wakes_between_processes", wakes_between_processes},
    {"reads_between_processes", reads_between_processes},
    {"a_killed_peer", a_killed_peer},
    {"threads", threads},
    {"faults", faults},
    {"the_port_goes_down", the_port_goes_down},
    {"the_device_goes", the_device_goes},
    {"the_end_of_a_pair", the_end_of_a_pair},
};

int main(int count, char **words)
{
    for (size_t at = 0; at < sizeof(all) / sizeof(*all); at++) {
        if (count < 2) {
            puts(all[at].name);
        } else if (!strcmp(words[1], all[at].name)) {
            all[at].run();
            return 0;
        }
    }
    return count < 2 ? 0 : 2;
}
