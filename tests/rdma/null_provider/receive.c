/* Receive queues, and what a queue pair's device does with what comes in: the consumer of its ring. */
#define _GNU_SOURCE
#include "null_verbs.h"

/* -- queues of buffers -------------------------------------------------------------------------------- */

int receives_begin(struct receive_queue *queue)
{
    queue->size = sizeof(struct receive_request) + queue->max_pieces * sizeof(struct ibv_sge);
    queue->requests = calloc(queue->depth ? queue->depth : 1, queue->size);
    if (!queue->requests)
        return ENOMEM;
    memset(queue->shared, 0, sizeof(*queue->shared));
    return pthread_mutex_init(&queue->lock, NULL);
}

void receives_end(struct receive_queue *queue)
{
    free(queue->requests);
    pthread_mutex_destroy(&queue->lock);
}

static struct receive_request *request_at(struct receive_queue *queue, uint32_t place)
{
    uint32_t at = queue->first + place;
    at = at >= queue->depth ? at - queue->depth : at;
    return (struct receive_request *) (queue->requests + at * queue->size);
}

static bool receives_take(struct receive_queue *queue, struct receive_request *into)
{
    pthread_mutex_lock(&queue->lock);
    bool some = queue->count > 0;
    if (some) {
        struct receive_request *request = request_at(queue, 0);
        memcpy(into, request, sizeof(*request) + (size_t) request->count * sizeof(struct ibv_sge));
        queue->first = queue->first + 1 == queue->depth ? 0 : queue->first + 1;
        queue->count--;
    }
    pthread_mutex_unlock(&queue->lock);
    return some;
}

/* After new buffers: a sender that waits for one sleeps, maybe. */
static void wake_waiting(struct receive_queue *queue)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&queue->shared->waiting, memory_order_relaxed))
        return;
    atomic_exchange(&queue->shared->waiting, 0);
    pthread_mutex_lock(&queue->lock);
    for (struct null_qp *pair = queue->pairs; pair; pair = pair->next_of_receives)
        if (atomic_load(&pair->shared->blocked))
            pair_wake_sender(pair);
    pthread_mutex_unlock(&queue->lock);
}

static int post(struct receive_queue *queue, struct ibv_recv_wr *request, struct ibv_recv_wr **bad)
{
    int error = device_gone ? EIO : 0;
    uint32_t added = 0;
    pthread_mutex_lock(&queue->lock);
    for (; request && !error; request = error ? request : request->next) {
        if (request->num_sge < 0 || (uint32_t) request->num_sge > queue->max_pieces)
            error = EINVAL;
        else if (queue->count == queue->depth)
            error = ENOMEM;
        if (error)
            break;
        struct receive_request *to = request_at(queue, queue->count++);
        to->wr_id = request->wr_id;
        to->count = request->num_sge;
        to->length = 0;
        for (int at = 0; at < to->count; at++) {
            to->pieces[at] = request->sg_list[at];
            to->length += request->sg_list[at].length;
        }
        added++;
    }
    uint32_t posted = atomic_load_explicit(&queue->shared->posted, memory_order_relaxed);
    atomic_store_explicit(&queue->shared->posted, posted + added, memory_order_release);
    pthread_mutex_unlock(&queue->lock);
    if (added)
        wake_waiting(queue);
    if (error)
        *bad = request;
    return error;
}

int null_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *request, struct ibv_recv_wr **bad)
{
    return post(&((struct null_srq *) srq)->queue, request, bad);
}

int null_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad)
{
    struct null_qp *pair = (struct null_qp *) qp;
    if (qp->srq || pair_state(pair) == IBV_QPS_RESET) {
        *bad = request;
        return EINVAL;
    }
    int error = post(&pair->own_receives, request, bad);
    if (pair_state(pair) == IBV_QPS_ERR)
        pair_fail(pair); /* the next poll flushes it */
    return error;
}

/* -- what comes in ------------------------------------------------------------------------------------ */

static void receive_completed(struct null_qp *pair, int status, int opcode, const struct record *record)
{
    bool imm = record && record->flags & RECORD_IMM;
    struct ibv_wc wc = {
        .wr_id = pair->current->wr_id,
        .status = status,
        .opcode = opcode,
        .byte_len = status ? 0 : pair->received,
        .imm_data = imm ? record->imm : 0,
        .qp_num = pair->base.qp_num,
        .src_qp = atomic_load_explicit(&pair->shared->peer, memory_order_relaxed),
        .wc_flags = imm ? IBV_WC_WITH_IMM : 0,
    };
    pair->receiving = false;
    cq_add(pair->recv_cq, pair, &wc, 0, !status);
}

static void receive_fails(struct null_qp *pair, int status)
{
    pair->receive_failed = true;
    if (status)
        receive_completed(pair, status, IBV_WC_RECV, NULL);
    pair_fail(pair);
    pair_fail_remote(pair, false);
}

/* Spreads bytes over the pieces of the buffer, after the `received` ones. Returns a status. */
static int scatter(struct null_qp *pair, const unsigned char *from, uint32_t length)
{
    struct receive_request *into = pair->current;
    if (length > into->length - pair->received)
        return IBV_WC_LOC_LEN_ERR;
    uint32_t skip = pair->received;
    for (int at = 0; at < into->count && length; at++) {
        const struct ibv_sge *piece = &into->pieces[at];
        if (skip >= piece->length) {
            skip -= piece->length;
            continue;
        }
        uint32_t part = piece->length - skip < length ? piece->length - skip : length;
        if (!region_allows(node.shared, piece->lkey, pair->receives->pd, piece->addr + skip, part,
                           IBV_ACCESS_LOCAL_WRITE))
            return IBV_WC_LOC_PROT_ERR;
        memcpy((void *) (uintptr_t) (piece->addr + skip), from, part);
        from += part;
        length -= part;
        pair->received += part;
        skip = 0;
    }
    return IBV_WC_SUCCESS;
}

static bool take_buffer(struct null_qp *pair)
{
    if (!pair->receiving) {
        if (!receives_take(pair->receives, pair->current))
            return false; /* it was reserved: only a shared receive queue that was destroyed lacks it */
        pair->receiving = true;
        pair->received = 0;
    }
    return true;
}

static void place_send(struct null_qp *pair, const struct record *record)
{
    if (!take_buffer(pair)) {
        receive_fails(pair, 0);
        return;
    }
    int status = scatter(pair, (const unsigned char *) (record + 1), record->length);
    if (status)
        receive_fails(pair, status);
    else if (record->flags & RECORD_LAST)
        receive_completed(pair, IBV_WC_SUCCESS, IBV_WC_RECV, record);
}

static void place_write(struct null_qp *pair, const struct record *record)
{
    if (record->length) {
        /* It may have been deregistered since its sender looked. */
        if (!region_allows(node.shared, record->rkey, pair->shared->pd, record->remote, record->length,
                           IBV_ACCESS_REMOTE_WRITE)) {
            receive_fails(pair, 0);
            return;
        }
        memcpy((void *) (uintptr_t) record->remote, record + 1, record->length);
    }
    pair->written += record->length;
    if (!(record->flags & RECORD_LAST))
        return;
    uint32_t length = pair->written;
    pair->written = 0;
    if (!(record->flags & RECORD_IMM))
        return;
    if (!take_buffer(pair)) {
        receive_fails(pair, 0);
        return;
    }
    pair->received = length;
    receive_completed(pair, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, record);
}

static bool makes_completion(const struct record *record)
{
    return record->flags & RECORD_LAST && (record->kind == KIND_SEND || record->flags & RECORD_IMM);
}

/* In the error state: own receive buffers come back; those of a shared queue stay there. */
static void flush_receives(struct null_qp *pair)
{
    if (pair->receives == &pair->own_receives) {
        while (take_buffer(pair))
            receive_completed(pair, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, NULL);
    }
    if (pair->reported)
        return;
    pair->reported = true;
    struct null_context *context = (struct null_context *) pair->base.context;
    struct ibv_async_event event = {.element.qp = &pair->base, .event_type = IBV_EVENT_QP_ACCESS_ERR};
    if (atomic_load(&pair->shared->refused))
        report(context, event);
    event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
    if (pair->base.srq)
        report(context, event);
}

bool pair_receive(struct null_qp *pair, uint32_t limit)
{
    struct shared_pair *shared = pair->shared;
    uint64_t tail = atomic_load_explicit(&shared->tail, memory_order_acquire), head = pair->head;
    while (head != tail && pair->recv_cq->count < limit) {
        struct record *record = (struct record *) (shared->ring + head % RING);
        head += record->size;
        pair->arrived += makes_completion(record);
        if (pair->receive_failed || record->kind == KIND_PAD)
            continue;
        if (record->kind == KIND_SEND)
            place_send(pair, record);
        else
            place_write(pair, record);
    }
    if (head != pair->head) {
        pair->head = head;
        atomic_store_explicit(&shared->head, head, memory_order_release);
        atomic_thread_fence(memory_order_seq_cst);
        if (unlikely(atomic_load_explicit(&shared->blocked, memory_order_relaxed)))
            pair_wake_sender(pair);
    }
    if (head != tail)
        return true;
    if (unlikely(pair_state(pair) == IBV_QPS_ERR))
        flush_receives(pair);
    return false;
}

void pair_drop_received(struct null_qp *pair)
{
    uint64_t tail = atomic_load_explicit(&pair->shared->tail, memory_order_acquire);
    for (uint64_t head = pair->head; head != tail;) {
        const struct record *record = (const struct record *) (pair->shared->ring + head % RING);
        head += record->size;
        if (record->kind == KIND_SEND ? take_buffer(pair) : makes_completion(record) && take_buffer(pair))
            pair->receiving = !(record->flags & RECORD_LAST);
    }
}
