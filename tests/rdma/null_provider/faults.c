/* Faults that a test sets: null_verbs_fault(kind, after, count), or NULL_VERBS_FAULT="kind,after,count;..."
 * for a process that is started.
 *
 * A fault passes over the first `after` occasions, then hits `count` times; -1 is for ever. Kinds:
 *
 *   lose          a successful completion never appears
 *   late=N        a successful completion, and all behind it, appear N polls later
 *   status=N      a request fails with this status
 *   register=N    ibv_reg_mr fails with this errno (12: ENOMEM, 1: EPERM)
 *   pair=N        ibv_create_qp fails with this errno
 *   memlock=N     no more than N bytes can be registered; `after` and `count` mean nothing
 *   goes          after so many posted requests the device goes: IBV_EVENT_DEVICE_FATAL, EIO
 *   down, up      after so many posted requests the port goes down, or up
 *   clear         no faults; device and port are as before, and queue pairs stay broken
 *
 * lose, late and status take a suffix that chooses requests: `:send`, `:read`, `:write`, `:receive`.
 */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <limits.h>
#include <unistd.h>

static const char *const kinds[FAULTS] = {"lose", "late",  "status", "register", "pair", "memlock",
                                          "goes", "down", "up"};
static const char *const count_names[COUNTS] = {"sends", "reads", "writes", "wakeups", "kicks", "waits",
                                                "traffic_class", "service_level"};

struct plan {
    bool set;
    int value, after, count, opcode;
};

_Atomic bool faults_set;
_Atomic bool device_gone, port_is_down;
bool copies_payload = true;
_Atomic uint64_t counts[COUNTS];

static struct plan plans[FAULTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t registration_limit = UINT64_MAX;
static uint32_t began; /* the process that has read the environment */

int fault_hits(enum fault fault, int opcode)
{
    if (!atomic_load_explicit(&faults_set, memory_order_relaxed))
        return 0;
    int value = 0;
    pthread_mutex_lock(&lock);
    struct plan *plan = &plans[fault];
    if (opcode == IBV_WC_RECV_RDMA_WITH_IMM)
        opcode = IBV_WC_RECV;
    if (plan->set && (plan->opcode < 0 || opcode < 0 || plan->opcode == opcode)) {
        if (plan->after > 0) {
            plan->after--;
        } else {
            value = plan->value;
            if (plan->count > 0 && !--plan->count)
                plan->set = false;
        }
    }
    pthread_mutex_unlock(&lock);
    return value;
}

static void device_goes(void)
{
    if (atomic_exchange(&device_gone, true))
        return;
    pthread_mutex_lock(&node.lock);
    for (struct null_qp *pair = node.pairs; pair; pair = pair->next_of_node)
        pair_fail(pair);
    pthread_mutex_unlock(&node.lock);
    report_to_all(IBV_EVENT_DEVICE_FATAL);
}

static void port_changes(bool down)
{
    if (atomic_exchange(&port_is_down, down) == down)
        return;
    pthread_mutex_lock(&node.lock);
    if (node.shared)
        atomic_store(&node.shared->port_down, down);
    for (struct null_qp *pair = down ? NULL : node.pairs; pair; pair = pair->next_of_node) {
        cq_kick(node.shared, pair->send_cq->index); /* what waits goes on */
        pair_wake_sender(pair);
    }
    pthread_mutex_unlock(&node.lock);
    report_to_all(down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
}

void fault_step(void)
{
    if (fault_hits(FAULT_GOES, -1))
        device_goes();
    if (fault_hits(FAULT_DOWN, -1))
        port_changes(true);
    if (fault_hits(FAULT_UP, -1))
        port_changes(false);
}

uint64_t memlock_limit(void)
{
    return registration_limit;
}

static void clear(void)
{
    pthread_mutex_lock(&lock);
    memset(plans, 0, sizeof(plans));
    pthread_mutex_unlock(&lock);
    registration_limit = UINT64_MAX;
    faults_set = device_gone = false;
    port_changes(false);
}

static int opcode_named(const char *suffix)
{
    if (!suffix)
        return -1;
    if (!strcmp(suffix, ":send"))
        return IBV_WC_SEND;
    if (!strcmp(suffix, ":read"))
        return IBV_WC_RDMA_READ;
    if (!strcmp(suffix, ":write"))
        return IBV_WC_RDMA_WRITE;
    return !strcmp(suffix, ":receive") ? IBV_WC_RECV : -2;
}

/* Returns 0, or EINVAL for what is no kind. */
EXPORT int null_verbs_fault(const char *kind, int after, int count)
{
    size_t name = strcspn(kind, "=:");
    long long value = kind[name] == '=' ? atoll(kind + name + 1) : 1;
    int opcode = opcode_named(strchr(kind, ':'));
    if (!strcmp(kind, "clear")) {
        clear();
        return 0;
    }
    int fault = 0;
    while (fault < FAULTS && (strlen(kinds[fault]) != name || strncmp(kind, kinds[fault], name)))
        fault++;
    if (fault == FAULTS || opcode == -2 || value < 1)
        return EINVAL;
    if (fault == FAULT_MEMLOCK) {
        registration_limit = (uint64_t) value;
        return 0;
    }
    pthread_mutex_lock(&lock);
    plans[fault] = (struct plan) {count != 0, value > INT_MAX ? INT_MAX : (int) value, after, count, opcode};
    pthread_mutex_unlock(&lock);
    faults_set = true;
    if (fault >= FAULT_GOES && !after)
        fault_step();
    return 0;
}

/* From the environment, once in each process. */
void faults_begin(void)
{
    pthread_mutex_lock(&lock);
    bool first = began != (uint32_t) getpid();
    began = (uint32_t) getpid();
    pthread_mutex_unlock(&lock);
    if (!first)
        return;
    const char *copies = getenv("NULL_VERBS_COPY"), *wanted = getenv("NULL_VERBS_FAULT");
    copies_payload = !copies || strcmp(copies, "0");
    char *text = wanted ? strdup(wanted) : NULL, *rest = text;
    for (char *one; text && (one = strsep(&rest, ";"));) {
        char *kind = strsep(&one, ","), *after = strsep(&one, ","), *count = strsep(&one, ",");
        null_verbs_fault(kind, after ? atoi(after) : 0, count ? atoi(count) : 1);
    }
    free(text);
}

/* How often it happened since this process began: sends, reads, writes, wakeups, kicks, waits. */
EXPORT uint64_t null_verbs_count(const char *what)
{
    for (int at = 0; at < COUNTS; at++)
        if (!strcmp(what, count_names[at]))
            return atomic_load(&counts[at]);
    return UINT64_MAX;
}
