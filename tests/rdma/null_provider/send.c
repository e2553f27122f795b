/* Requests to send, in order.
 *
 * A request is done when it was posted, unless something is missing: room in the ring, a receive buffer, the
 * peer. Then it waits in the queue pair, and all behind it; polls try again, and give up in time.
 */
#define _GNU_SOURCE
#include "null_verbs.h"

/* -- requests that wait ------------------------------------------------------------------------------- */

static void leave_blocked(struct null_qp *pair)
{
    if (!pair->blocked_at)
        return;
    *pair->blocked_at = pair->next_blocked;
    if (pair->next_blocked)
        pair->next_blocked->blocked_at = pair->blocked_at;
    pair->blocked_at = NULL;
    pair->next_blocked = NULL;
    struct shared_pair *remote = atomic_load(&pair->remote);
    if (remote)
        atomic_store(&remote->blocked, 0);
}

static void enter_blocked(struct null_qp *pair)
{
    struct null_cq *cq = pair->send_cq;
    if (pair->blocked_at)
        return;
    pair->next_blocked = cq->blocked;
    if (cq->blocked)
        cq->blocked->blocked_at = &pair->next_blocked;
    cq->blocked = pair;
    pair->blocked_at = &cq->blocked;
}

static struct stored_work *stored_at(struct null_qp *pair, uint32_t place)
{
    return &pair->stored[(pair->stored_first + place) % pair->cap.max_send_wr];
}

static void forget_stored(struct null_qp *pair)
{
    pair->stored_first = (pair->stored_first + 1) % pair->cap.max_send_wr;
    pair->stored_count--;
}

static void flush(struct null_qp *pair)
{
    for (; pair->stored_count; forget_stored(pair))
        send_completed(pair, &stored_at(pair, 0)->work, IBV_WC_WR_FLUSH_ERR);
    leave_blocked(pair);
}

static uint64_t deadline_of(const struct null_qp *pair, const struct work *work)
{
    if (work->wait == WAIT_PEER)
        return pair->timeout_ns ? work->since + pair->timeout_ns : 0;
    return work->wait == WAIT_BUFFER && !pair->endless_rnr ? work->since + RNR_NS : 0;
}

/* Without a limit, it is still to be seen whether the peer lives. */
uint64_t pair_deadline(const struct null_qp *pair)
{
    const struct work *work = &pair->stored[pair->stored_first].work;
    uint64_t deadline = deadline_of(pair, work);
    return deadline || work->wait == WAIT_PEER ? deadline : now_ns(CLOCK_MONOTONIC) + RNR_NS;
}

/* Tells the peer. True: it did not know; what is missing may have come meanwhile, so look again. */
static bool tell_peer(struct null_qp *pair, const struct work *work)
{
    struct shared_pair *remote = atomic_load(&pair->remote);
    if (!remote)
        return false;
    bool first = !atomic_exchange(&remote->blocked, 1);
    if (work->wait == WAIT_BUFFER)
        first |= !atomic_exchange(&pair->peer_receives->waiting, 1);
    return first;
}

void pair_send(struct null_qp *pair)
{
    while (pair->stored_count) {
        struct work *work = &stored_at(pair, 0)->work;
        if (pair_state(pair) == IBV_QPS_ERR)
            break;
        if (request_attempt(pair, work) != WORK_WAITS) {
            forget_stored(pair);
            continue;
        }
        if (tell_peer(pair, work))
            continue;
        uint64_t deadline = deadline_of(pair, work);
        if (!deadline || now_ns(CLOCK_MONOTONIC) < deadline)
            return;
        request_fails(pair, work, work->wait == WAIT_PEER ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
        forget_stored(pair);
    }
    flush(pair);
}

static int store(struct null_qp *pair, const struct work *work)
{
    if (!pair->stored && !(pair->stored = calloc(pair->cap.max_send_wr, sizeof(*pair->stored))))
        return ENOMEM;
    struct stored_work *stored = stored_at(pair, pair->stored_count++);
    stored->work = *work;
    memcpy(stored->pieces, work->pieces, (size_t) work->count * sizeof(struct ibv_sge));
    stored->work.pieces = stored->pieces;
    if (work->flags & IBV_SEND_INLINE) { /* the caller may change the bytes as soon as the call returns */
        gather(work, stored->inlined, 0, (uint32_t) work->length);
        stored->pieces[0] = (struct ibv_sge) {(uintptr_t) stored->inlined, (uint32_t) work->length, 0};
        stored->work.count = 1;
    }
    counted(COUNT_WAITS);
    return 0;
}

/* -- posting ------------------------------------------------------------------------------------------ */

static int make_work(struct null_qp *pair, const struct ibv_send_wr *request, struct work *work)
{
    if (pair->posted - pair->freed >= pair->cap.max_send_wr)
        return ENOMEM;
    if (request->opcode < 0 || request->opcode > IBV_WR_RDMA_READ || request->num_sge < 0
        || (uint32_t) request->num_sge > pair->cap.max_send_sge)
        return EINVAL;
    *work = (struct work) {
        .wr_id = request->wr_id,
        .opcode = (uint32_t) request->opcode,
        .flags = request->send_flags,
        .imm = request->imm_data,
        .remote = request->wr.rdma.remote_addr,
        .rkey = request->wr.rdma.rkey,
        .pieces = request->sg_list,
        .count = request->num_sge,
        .posted = pair->posted + 1,
    };
    for (int at = 0; at < work->count; at++)
        work->length += work->pieces[at].length;
    if (request->send_flags & IBV_SEND_INLINE) {
        if (work->opcode == IBV_WR_RDMA_READ)
            return EINVAL;
        if (work->length > pair->cap.max_inline_data)
            return ENOMEM;
    }
    return 0;
}

static int post(struct null_qp *pair, const struct ibv_send_wr *request)
{
    struct work work;
    if (unlikely(atomic_load_explicit(&faults_set, memory_order_relaxed)))
        fault_step();
    if (device_gone)
        return EIO;
    uint32_t state = pair_state(pair);
    if (state != IBV_QPS_RTS && state != IBV_QPS_ERR)
        return EINVAL;
    int error = make_work(pair, request, &work);
    if (error)
        return error;
    pair->posted++;
    if (state == IBV_QPS_ERR) {
        flush(pair);
        send_completed(pair, &work, IBV_WC_WR_FLUSH_ERR);
        return 0;
    }
    if (!pair->stored_count && request_attempt(pair, &work) != WORK_WAITS)
        return 0;
    error = store(pair, &work);
    if (error)
        return error;
    if (pair->stored_count == 1) {
        enter_blocked(pair);
        pair_send(pair); /* tells the peer, and looks again */
        cq_care(pair->send_cq);
    }
    return 0;
}

int null_post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    struct null_qp *pair = (struct null_qp *) qp;
    int error = 0;
    pthread_mutex_lock(&pair->send_cq->lock);
    for (; request; request = request->next) {
        error = post(pair, request);
        if (error) {
            *bad = request;
            break;
        }
    }
    pthread_mutex_unlock(&pair->send_cq->lock);
    return error;
}
