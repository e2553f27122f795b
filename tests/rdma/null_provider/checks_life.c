/* Two processes, many threads, and faults. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "checks.h"

/* -- two processes ------------------------------------------------------------------------------------ */

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

/* No side waits for ever, whichever goes to sleep first. */
void wakes_between_processes(void)
{
    enum { TURNS = 20000 };
    fork_ends((struct wish) {0});
    uint64_t *number = (uint64_t *) data_of(left), expected = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        int burst = 1 + turn % 7;
        uint32_t length = 8 + (uint32_t) (turn % 50) * 100;
        for (int at = 0; at < burst && turn % 2 == here; at++) {
            *number = expected + (uint64_t) at;
            post(left, IBV_WR_SEND, length, at + 1 == burst ? SIGNALED : 0, nowhere);
        }
        for (int at = 0; at < burst && turn % 2 != here;) {
            struct ibv_wc found = await(left);
            check(!found.status);
            if (found.opcode != IBV_WC_RECV)
                continue;
            check(*(uint64_t *) (left->memory + found.wr_id * BUFFER) == expected + (uint64_t) at++);
            check(found.byte_len == length);
            post_buffer(left, found.wr_id);
        }
        expected += (uint64_t) burst;
    }
    meet();
    end_both();
}

void reads_between_processes(void)
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
    to_right.rkey++;
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    /* One of both is refused first; then the other one has failed already. */
    struct ibv_wc found = await(left);
    check(found.status == IBV_WC_REM_ACCESS_ERR || found.status == IBV_WC_WR_FLUSH_ERR);
    meet();
    end_both();
}

/* A process that is killed answers nothing any more. */
void a_killed_peer(void)
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

/* -- threads ------------------------------------------------------------------------------------------ */

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
    struct end one = {.qp = qp, .wish = {.unposted = true, .waits = true}};
    join(&one, (struct address) {.number = to->qp_num});
}

void threads(void)
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

/* -- faults ------------------------------------------------------------------------------------------- */

void faults(void)
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

void the_port_goes_down(void)
{
    struct ibv_port_attr port;
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    check(!null_verbs_fault("down", 0, 1) && event_of(left) == IBV_EVENT_PORT_ERR);
    check(!ibv_query_port(left->context, 1, &port) && port.state == IBV_PORT_DOWN);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    arm(left);
    nothing(left);
    check(!is_readable(left->channel->fd, 10));
    check(!null_verbs_fault("up", 0, 1) && event_of(left) == IBV_EVENT_PORT_ACTIVE);
    check(!ibv_query_port(left->context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    check(is_readable(left->channel->fd, 1000));
    expect(left, IBV_WC_SUCCESS); /* it was retried */
    check(!null_verbs_fault("down", 1, 1));
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    expect(left, IBV_WC_SUCCESS);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    finish_both(ends);
}

void the_device_goes(void)
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

void the_end_of_a_pair(void)
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
