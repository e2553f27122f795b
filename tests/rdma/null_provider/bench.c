/* How long posting and reaping take by the null provider itself, without Python:
 *
 *     gcc -O2 -pthread bench.c $(ls *.c | grep -v "bench\|checks") -o bench && ./bench
 *
 * One thread with both ends; then two processes, which need a core each. All numbers are the best of many
 * slices: other work on the machine adds to the rest.
 */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "ends.h"

/* TURNS: in a slice that needs two cores at once, which others use too. */
enum { SLICES = 40, ROUNDS = 10000, SHORT = 1000, TURNS = 100 };

static struct ibv_wc found[16];
static struct end left, right;
static struct address of_left, of_right;
static const struct address nowhere;

static void keep_best(double *best, double took, int rounds)
{
    if (!*best || took / rounds < *best)
        *best = took / rounds;
}

/* -- one thread --------------------------------------------------------------------------------------- */

static void message(int at)
{
    post(&left, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, nowhere);
    check(poll_good(&right, 16, found) == 1);
    post_buffer(&right, found[0].wr_id);
    if (at % 16 == 0)
        check(poll_good(&left, 16, found) == 1);
}

static void batches(void)
{
    double posting = 0, reaping = 0, both = 0;
    for (int slice = 0; slice < SLICES; slice++) {
        double began = now(), posted = 0, reaped = 0;
        for (int at = 0; at < ROUNDS; at++)
            message(at);
        keep_best(&both, now() - began, ROUNDS);
        for (int at = 0; at < ROUNDS / 32; at++) {
            double first = now();
            for (int one = 0; one < 32; one++)
                post(&left, IBV_WR_SEND, 64, one ? 0 : IBV_SEND_SIGNALED, nowhere);
            double second = now();
            for (int one = 0; one < 32; one += 16) {
                check(poll_good(&right, 16, found) == 16);
                for (int buffer = 0; buffer < 16; buffer++)
                    post_buffer(&right, found[buffer].wr_id);
            }
            reaped += now() - second;
            posted += second - first;
            check(poll_good(&left, 16, found) == 1);
        }
        keep_best(&posting, posted, ROUNDS / 32 * 32);
        keep_best(&reaping, reaped, ROUNDS / 32 * 32);
    }
    printf("one thread, SEND of 64 B: %.0f ns for post, poll, and posting the buffer again\n", both);
    printf("  32 at once: %.0f ns to post, %.0f ns to poll and to post the buffer again\n", posting, reaping);
}

static void reads(struct end *end, struct address from, const char *where)
{
    static const uint32_t lengths[] = {8, 4096, 65536, 1 << 20};
    for (int which = 0; which < 4; which++) {
        int rounds = lengths[which] > 4096 ? ROUNDS / 200 : ROUNDS / 4;
        double best = 0;
        for (int slice = 0; slice < SLICES; slice++) {
            double began = now();
            for (int at = 0; at < rounds; at++) {
                post(end, IBV_WR_RDMA_READ, lengths[which], IBV_SEND_SIGNALED, from);
                check(poll_good(end, 1, found) == 1);
            }
            keep_best(&best, now() - began, rounds);
        }
        printf("  READ of %u B %s: %.0f ns, %.2f GB/s\n", lengths[which], where, best, lengths[which] / best);
    }
}

static void one_thread(void)
{
    of_left = begin(&left, (struct wish) {0});
    of_right = begin(&right, (struct wish) {0});
    join(&left, of_right);
    join(&right, of_left);
    batches();
    reads(&left, of_right, "in one process");
    double best = 0;
    for (int slice = 0; slice < SLICES; slice++) {
        double began = now();
        for (int at = 0; at < ROUNDS; at++)
            poll_any(&left, 16, found);
        keep_best(&best, now() - began, ROUNDS);
    }
    printf("  a poll that finds nothing: %.1f ns\n", best);
    finish(&left);
    finish(&right);
}

/* -- two processes ------------------------------------------------------------------------------------ */

/* Waits for one message. sleeps: armed, else spinning. */
static void receive(int sleeps)
{
    for (;;) {
        int count = poll_good(&left, 1, found);
        if (!count && sleeps) {
            check(!left.context->ops.req_notify_cq(left.cq, 0));
            count = poll_good(&left, 1, found);
            if (!count) {
                struct ibv_cq *cq;
                void *unused;
                check(!ibv_get_cq_event(left.channel, &cq, &unused));
                ibv_ack_cq_events(cq, 1);
                continue;
            }
        }
        if (count && found[0].opcode == IBV_WC_RECV) {
            post_buffer(&left, found[0].wr_id);
            return;
        }
    }
}

/* Returns ns of one way. */
static double ping_pong(int first, int slices, int sleeps)
{
    double best = 0;
    for (int slice = 0; slice < slices; slice++) {
        double began = now();
        for (int at = 0; at < TURNS; at++) {
            if (!first)
                receive(sleeps);
            post(&left, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, nowhere);
            if (first)
                receive(sleeps);
        }
        keep_best(&best, now() - began, 2 * TURNS);
    }
    return best;
}

/* In one direction; a message in the other one returns 16 buffers. */
static double stream(int sends)
{
    double best = 0;
    for (int slice = 0; slice < SLICES; slice++) {
        double began = now();
        for (int at = 1; at <= ROUNDS; at++) {
            if (!sends)
                receive(0);
            else if (at > 48 && at % 16 == 1)
                receive(0);
            if (sends)
                post(&left, IBV_WR_SEND, 64, at % 16 ? 0 : IBV_SEND_SIGNALED, nowhere);
            else if (at % 16 == 0)
                post(&left, IBV_WR_SEND, 8, IBV_SEND_SIGNALED, nowhere);
        }
        keep_best(&best, now() - began, ROUNDS);
        for (int rest = sends ? ROUNDS / 16 - (ROUNDS - 33) / 16 : 0; rest > 0; rest--)
            receive(0);
    }
    return best;
}

static int pipes[2][2], here;

static void meet(void)
{
    char word = 0;
    check(write(pipes[here][1], &word, 1) == 1 && read(pipes[!here][0], &word, 1) == 1);
}

static void two_processes(void)
{
    check(!pipe(pipes[0]) && !pipe(pipes[1]));
    fflush(stdout);
    pid_t child = fork();
    here = child ? 0 : 1;
    of_left = begin(&left, (struct wish) {0});
    check(write(pipes[here][1], &of_left, sizeof(of_left)) == sizeof(of_left));
    check(read(pipes[!here][0], &of_right, sizeof(of_right)) == sizeof(of_right));
    join(&left, of_right);
    meet();
    double spinning = ping_pong(!here, SHORT, 0), sleeping = ping_pong(!here, SHORT / 5, 1);
    double streaming = stream(!here);
    if (!here) {
        printf("two processes, SEND of 64 B, one way: %.0f ns spinning, ", spinning);
        printf("%.0f ns sleeping, %.0f ns in a stream\n", sleeping, streaming);
        reads(&left, of_right, "between processes");
    }
    meet();
    finish(&left);
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
