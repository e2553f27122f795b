/* How long posting and reaping take by the null provider itself, without Python:
 *
 *     gcc -O2 -pthread [^c]*.c completion.c -o bench && ./bench
 *
 * One thread with both ends; then two processes, which need a core each.
 */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "ends.h"

enum { ROUNDS = 500000 };

/* One message after the other, both ends in one thread: the cost of the calls, with all in the cache. */
static void one_thread(void)
{
    struct end left, right;
    struct address of_left = begin(&left, (struct wish) {0}), of_right = begin(&right, (struct wish) {0});
    join(&left, of_right);
    join(&right, of_left);
    struct ibv_wc found[16];
    double posting = 0, reaping = 0, began = 0;
    for (int warm = 1; warm >= 0; warm--) {
        int rounds = warm ? 20000 : ROUNDS;
        began = now();
        for (int at = 0; at < rounds; at++) {
            post(&left, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, of_right);
            check(poll_good(&right, 16, found) == 1);
            post_buffer(&right, found[0].wr_id);
            if (at % 16 == 0)
                check(poll_good(&left, 16, found) == 1);
        }
    }
    printf("one thread, SEND of 64 B, posted, received, buffer posted again: %.0f ns\n", (now() - began) / ROUNDS);
    for (int at = 0; at < ROUNDS / 32; at++) {
        double first = now();
        for (int one = 0; one < 32; one++)
            post(&left, IBV_WR_SEND, 64, one ? 0 : IBV_SEND_SIGNALED, of_right);
        double second = now();
        for (int one = 0; one < 32; one++) {
            check(poll_good(&right, 1, found) == 1);
            post_buffer(&right, found[0].wr_id);
        }
        reaping += now() - second;
        posting += second - first;
        check(poll_good(&left, 16, found) == 1);
    }
    int posted = ROUNDS / 32 * 32;
    printf("  32 at once: %.0f ns to post, %.0f ns to poll and to post the buffer again\n", posting / posted,
           reaping / posted);
    for (uint32_t length = 8; length <= 1 << 20; length = length == 8 ? 4096 : length * 256) {
        int rounds = length > 4096 ? 3000 : ROUNDS;
        began = now();
        for (int at = 0; at < rounds; at++) {
            post(&left, IBV_WR_RDMA_READ, length, IBV_SEND_SIGNALED, of_right);
            check(poll_good(&left, 1, found) == 1);
        }
        printf("  READ of %u B in one process: %.0f ns\n", length, (now() - began) / rounds);
    }
    began = now();
    for (int at = 0; at < ROUNDS; at++)
        poll_good(&left, 16, found);
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
        int count = poll_good(end, 1, found);
        if (!count && sleeps) {
            check(!end->context->ops.req_notify_cq(end->cq, 0));
            count = poll_good(end, 1, found);
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
    struct end end;
    struct address own = begin(&end, (struct wish) {0}), peer;
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
                while (!poll_good(&end, 1, found))
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
