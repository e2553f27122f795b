/* How long posting and reaping take by the null provider itself, without Python:
 *
 *     gcc -O2 -pthread *.c -o bench && ./bench
 *
 * One thread with both ends; then two processes, which need a core each.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "verbs_abi.h"

enum { DEPTH = 64, BUFFER = 8192, ROUNDS = 500000 };

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory; /* DEPTH receive buffers, then 2 MiB */
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

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec * 1e9 + (double) time.tv_nsec;
}

static void post_buffer(struct end *end, uint64_t which)
{
    struct ibv_sge piece = {(uintptr_t) end->memory + which * BUFFER, BUFFER, end->mr->lkey};
    struct ibv_recv_wr request = {.wr_id = which, .sg_list = &piece, .num_sge = 1}, *bad;
    check(!end->context->ops.post_srq_recv(end->srq, &request, &bad));
}

static void post(struct end *end, int opcode, uint32_t length, unsigned flags, struct address remote)
{
    struct ibv_sge piece = {(uintptr_t) end->memory + DEPTH * BUFFER, length, end->mr->lkey};
    struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;
    request.wr.rdma.remote_addr = remote.memory + DEPTH * BUFFER;
    request.wr.rdma.rkey = remote.rkey;
    check(!end->context->ops.post_send(end->qp, &request, &bad));
}

static int poll_cq(struct end *end, int limit, struct ibv_wc *found)
{
    int count = end->context->ops.poll_cq(end->cq, limit, found);
    check(count >= 0);
    for (int at = 0; at < count; at++)
        check(!found[at].status);
    return count;
}

static struct address begin(struct end *end)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(end->context = ibv_open_device(list[0]));
    ibv_free_device_list(list);
    check(end->pd = ibv_alloc_pd(end->context));
    check(end->channel = ibv_create_comp_channel(end->context));
    check(end->cq = ibv_create_cq(end->context, 4 * DEPTH, NULL, end->channel, 0));
    struct ibv_srq_init_attr buffers = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    check(end->srq = ibv_create_srq(end->pd, &buffers));
    struct ibv_qp_init_attr wanted = {
        .send_cq = end->cq, .recv_cq = end->cq, .srq = end->srq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_send_sge = 1},
    };
    check(end->qp = ibv_create_qp(end->pd, &wanted));
    size_t size = DEPTH * BUFFER + (2 << 20);
    end->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    check(end->mr = ibv_reg_mr(end->pd, end->memory, size, 7));
    for (uint64_t which = 0; which < DEPTH; which++)
        post_buffer(end, which);
    return (struct address) {end->qp->qp_num, end->mr->rkey, (uintptr_t) end->memory};
}

static void join(struct end *end, struct address to)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 6};
    check(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = to.number;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 16;
    attr.ah_attr.is_global = attr.ah_attr.port_num = attr.ah_attr.grh.sgid_index = 1;
    check(!ibv_query_gid(end->context, 1, 1, &attr.ah_attr.grh.dgid));
    check(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                             | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 6;
    check(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                                             | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void finish(struct end *end)
{
    check(!ibv_destroy_qp(end->qp));
    check(!ibv_destroy_srq(end->srq));
    check(!ibv_destroy_cq(end->cq));
    check(!ibv_destroy_comp_channel(end->channel));
    check(!ibv_dereg_mr(end->mr));
    check(!ibv_dealloc_pd(end->pd));
    check(!ibv_close_device(end->context));
}

/* One message after the other, both ends in one thread: the cost of the calls, with all in the cache. */
static void one_thread(void)
{
    struct end left = {0}, right = {0};
    struct address of_left = begin(&left), of_right = begin(&right);
    join(&left, of_right);
    join(&right, of_left);
    struct ibv_wc found[16];
    double posting = 0, reaping = 0, began = 0;
    for (int warm = 1; warm >= 0; warm--) {
        int rounds = warm ? 20000 : ROUNDS;
        began = now();
        for (int at = 0; at < rounds; at++) {
            post(&left, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, of_right);
            check(poll_cq(&right, 16, found) == 1);
            post_buffer(&right, found[0].wr_id);
            if (at % 16 == 0)
                check(poll_cq(&left, 16, found) == 1);
        }
    }
    printf("one thread, SEND of 64 B, posted, received, buffer posted again: %.0f ns\n", (now() - began) / ROUNDS);
    for (int at = 0; at < ROUNDS / 32; at++) {
        double first = now();
        for (int one = 0; one < 32; one++)
            post(&left, IBV_WR_SEND, 64, one ? 0 : IBV_SEND_SIGNALED, of_right);
        double second = now();
        for (int one = 0; one < 32; one++) {
            check(poll_cq(&right, 1, found) == 1);
            post_buffer(&right, found[0].wr_id);
        }
        reaping += now() - second;
        posting += second - first;
        check(poll_cq(&left, 16, found) == 1);
    }
    int posted = ROUNDS / 32 * 32;
    printf("  32 at once: %.0f ns to post, %.0f ns to poll and to post the buffer again\n", posting / posted,
           reaping / posted);
    for (uint32_t length = 8; length <= 1 << 20; length = length == 8 ? 4096 : length * 256) {
        int rounds = length > 4096 ? 3000 : ROUNDS;
        began = now();
        for (int at = 0; at < rounds; at++) {
            post(&left, IBV_WR_RDMA_READ, length, IBV_SEND_SIGNALED, of_right);
            check(poll_cq(&left, 1, found) == 1);
        }
        printf("  READ of %u B in one process: %.0f ns\n", length, (now() - began) / rounds);
    }
    began = now();
    for (int at = 0; at < ROUNDS; at++)
        poll_cq(&left, 16, found);
    printf("  a poll that finds nothing: %.1f ns\n", (now() - began) / ROUNDS);
    finish(&left);
    finish(&right);
}

static void sleep_until_there(struct end *end)
{
    struct ibv_cq *cq;
    void *unused;
    check(!ibv_get_cq_event(end->channel, &cq, &unused));
    ibv_ack_cq_events(cq, 1);
}

/* Waits for one message. sleeps: armed, else spinning. */
static void receive(struct end *end, int sleeps)
{
    struct ibv_wc found[4];
    for (;;) {
        int count = poll_cq(end, 1, found);
        if (!count && sleeps) {
            check(!end->context->ops.req_notify_cq(end->cq, 0));
            count = poll_cq(end, 1, found);
            if (!count) {
                sleep_until_there(end);
                continue;
            }
        }
        if (count && found[0].opcode == IBV_WC_RECV) {
            post_buffer(end, found[0].wr_id);
            return;
        }
    }
}

static void ping_pong(struct end *end, int first, int rounds, int sleeps)
{
    for (int at = 0; at < rounds; at++) {
        if (!first)
            receive(end, sleeps);
        post(end, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, (struct address) {0});
        if (first)
            receive(end, sleeps);
    }
}

/* A stream in one direction; credits come back by messages in the other one. */
static void stream(struct end *end, int sends, int rounds)
{
    if (!sends) {
        for (int at = 1; at <= rounds; at++) {
            receive(end, 0);
            if (at % 16 == 0)
                post(end, IBV_WR_SEND, 8, IBV_SEND_SIGNALED, (struct address) {0});
        }
        return;
    }
    for (int at = 1; at <= rounds; at++) {
        if (at > 48 && at % 16 == 1)
            receive(end, 0);
        post(end, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, (struct address) {0});
    }
    for (int left = rounds / 16 - (rounds - 33) / 16; left > 0; left--)
        receive(end, 0);
}

static void two_processes(void)
{
    int pipes[2][2];
    check(!pipe(pipes[0]) && !pipe(pipes[1]));
    fflush(stdout);
    pid_t child = fork();
    int here = child ? 0 : 1;
    struct end end = {0};
    struct address own = begin(&end), peer;
    check(write(pipes[here][1], &own, sizeof(own)) == sizeof(own));
    check(read(pipes[!here][0], &peer, sizeof(peer)) == sizeof(peer));
    join(&end, peer);
    check(write(pipes[here][1], "", 1) == 1 && read(pipes[!here][0], &(char) {0}, 1) == 1);
    ping_pong(&end, !here, 20000, 0);
    double began = now();
    ping_pong(&end, !here, ROUNDS / 5, 0);
    double spinning = now() - began;
    began = now();
    ping_pong(&end, !here, ROUNDS / 50, 1);
    double sleeping = now() - began;
    began = now();
    stream(&end, !here, ROUNDS / 16 * 16);
    double streaming = now() - began;
    if (!here) {
        printf("two processes, SEND of 64 B, one way: %.0f ns spinning, %.0f ns sleeping\n",
               spinning / (ROUNDS / 5 * 2), sleeping / (ROUNDS / 50 * 2));
        printf("  a stream: %.0f ns a message\n", streaming / (ROUNDS / 16 * 16));
        struct ibv_wc found[4];
        for (uint32_t length = 8; length <= 1 << 20; length = length == 8 ? 4096 : length * 256) {
            int rounds = length > 4096 ? 3000 : ROUNDS / 5;
            began = now();
            for (int at = 0; at < rounds; at++) {
                post(&end, IBV_WR_RDMA_READ, length, IBV_SEND_SIGNALED, peer);
                while (!poll_cq(&end, 1, found))
                    ;
            }
            double took = (now() - began) / rounds;
            printf("  READ of %u B: %.0f ns, %.2f GB/s\n", length, took, length / took);
        }
    }
    check(write(pipes[here][1], "", 1) == 1 && read(pipes[!here][0], &(char) {0}, 1) == 1);
    finish(&end);
    if (child)
        check(waitpid(child, NULL, 0) == child);
    else
        _exit(0);
}

int main(void)
{
    one_thread();
    two_processes();
    return 0;
}
