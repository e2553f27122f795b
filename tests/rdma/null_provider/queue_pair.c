/* Queue pairs and shared receive queues: made and destroyed. */
#define _GNU_SOURCE
#include "null_verbs.h"

/* -- shared receive queues ---------------------------------------------------------------------------- */

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted)
{
    struct ibv_srq_attr *attr = &wanted->attr;
    int error = device_gone ? EIO : 0;
    if (!error && (!attr->max_wr || attr->max_wr >= MAX_REQUESTS || attr->max_sge > MAX_PIECES))
        error = EINVAL;
    struct null_srq *srq = error ? NULL : calloc(1, sizeof(*srq));
    if (!srq) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&node.lock);
    while (srq->index < QUEUES && node.srqs[srq->index])
        srq->index++;
    if (srq->index < QUEUES)
        node.srqs[srq->index] = srq;
    pthread_mutex_unlock(&node.lock);
    srq->queue.depth = attr->max_wr;
    srq->queue.max_pieces = attr->max_sge = attr->max_sge ? attr->max_sge : 1;
    srq->queue.pd = pd->handle;
    srq->queue.shared = &node.shared->srqs[srq->index % QUEUES];
    if (srq->index == QUEUES || receives_begin(&srq->queue)) {
        if (srq->index < QUEUES)
            node.srqs[srq->index] = NULL;
        free(srq);
        errno = ENOMEM;
        return NULL;
    }
    srq->base.context = pd->context;
    srq->base.srq_context = wanted->srq_context;
    srq->base.pd = pd;
    ((struct null_pd *) pd)->users++;
    return &srq->base;
}

EXPORT int ibv_destroy_srq(struct ibv_srq *base)
{
    struct null_srq *srq = (struct null_srq *) base;
    if (srq->queue.pairs)
        return EBUSY;
    receives_end(&srq->queue);
    pthread_mutex_lock(&node.lock);
    node.srqs[srq->index] = NULL;
    pthread_mutex_unlock(&node.lock);
    ((struct null_pd *) base->pd)->users--;
    free(srq);
    return 0;
}

/* -- making and destroying ---------------------------------------------------------------------------- */

/* Both halves; a pair may use one queue for both. */
void pair_lock(struct null_qp *pair)
{
    struct null_cq *first = pair->send_cq, *second = pair->recv_cq;
    if (first > second) {
        first = pair->recv_cq;
        second = pair->send_cq;
    }
    pthread_mutex_lock(&first->lock);
    if (second != first)
        pthread_mutex_lock(&second->lock);
}

void pair_unlock(struct null_qp *pair)
{
    pthread_mutex_unlock(&pair->send_cq->lock);
    if (pair->recv_cq != pair->send_cq)
        pthread_mutex_unlock(&pair->recv_cq->lock);
}

static int slot_in(struct null_cq *cq, struct null_qp *pair)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (!cq->slots[slot]) {
            cq->slots[slot] = pair;
            cq->users++;
            return slot;
        }
    return -1;
}

static void leave(struct null_cq *cq, uint32_t slot)
{
    cq->slots[slot] = NULL;
    cq->users--;
}

/* Its places in the completion queues. False: one is full. */
static bool enter_queues(struct null_qp *pair)
{
    pair_lock(pair);
    int send = slot_in(pair->send_cq, pair), receive = send;
    if (send >= 0 && pair->recv_cq != pair->send_cq && (receive = slot_in(pair->recv_cq, pair)) < 0)
        leave(pair->send_cq, (uint32_t) send);
    pair->shared->send_slot = (uint32_t) send;
    pair->shared->recv_slot = (uint32_t) receive;
    pair_unlock(pair);
    return receive >= 0;
}

static void leave_queues(struct null_qp *pair)
{
    leave(pair->send_cq, pair->shared->send_slot);
    if (pair->recv_cq != pair->send_cq)
        leave(pair->recv_cq, pair->shared->recv_slot);
}

static int check_wanted(const struct ibv_qp_init_attr *wanted)
{
    const struct ibv_qp_cap *cap = &wanted->cap;
    if (device_gone)
        return EIO;
    int error = fault_hits(FAULT_PAIR, -1);
    if (error)
        return error;
    if (wanted->qp_type != IBV_QPT_RC)
        return EOPNOTSUPP;
    if (!wanted->send_cq || !wanted->recv_cq || !cap->max_send_wr || cap->max_send_wr > MAX_REQUESTS
        || cap->max_recv_wr > MAX_REQUESTS || cap->max_send_sge > MAX_PIECES || cap->max_recv_sge > MAX_PIECES
        || cap->max_inline_data > MAX_INLINE)
        return EINVAL;
    return 0;
}

static void describe(struct null_qp *pair, const struct ibv_pd *pd)
{
    struct shared_pair *shared = pair->shared;
    shared->pd = pd->handle;
    shared->send_cq = pair->send_cq->index;
    shared->recv_cq = pair->recv_cq->index;
    shared->srq = pair->base.srq ? (int32_t) ((struct null_srq *) pair->base.srq)->index : -1;
}

static int receive_by(struct null_qp *pair, uint32_t pd)
{
    int error = 0;
    if (pair->base.srq) {
        pair->receives = &((struct null_srq *) pair->base.srq)->queue;
    } else {
        pair->receives = &pair->own_receives;
        pair->own_receives.shared = &pair->shared->receives;
        pair->own_receives.depth = pair->cap.max_recv_wr;
        pair->own_receives.max_pieces = pair->cap.max_recv_sge;
        pair->own_receives.pd = pd;
        error = receives_begin(&pair->own_receives);
    }
    if (!error && !(pair->current = malloc(pair->receives->size)))
        error = ENOMEM;
    return error;
}

static void release(struct null_qp *pair)
{
    if (pair->shared)
        pair_unmap(pair->shared);
    struct shared_pair *remote = atomic_load(&pair->remote);
    if (remote) {
        pair_unmap(remote);
        peer_put(pair->peer);
    }
    if (pair->own_receives.requests)
        receives_end(&pair->own_receives);
    free(pair->current);
    free(pair->stored);
    free(pair);
}

static int make(struct null_qp *pair, struct ibv_pd *pd)
{
    uint32_t number = 0;
    pair->shared = pair_create(&number);
    if (!pair->shared)
        return errno;
    pair->base.qp_num = number;
    describe(pair, pd);
    int error = receive_by(pair, pd->handle);
    if (!error && !enter_queues(pair))
        error = ENOMEM;
    if (error)
        pair_forget(number);
    return error;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted)
{
    int error = check_wanted(wanted);
    struct null_qp *pair = error ? NULL : calloc(1, sizeof(*pair));
    if (!pair) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    struct ibv_qp_cap *cap = &wanted->cap;
    cap->max_send_sge = cap->max_send_sge ? cap->max_send_sge : 1;
    cap->max_recv_sge = cap->max_recv_sge ? cap->max_recv_sge : 1;
    pair->cap = *cap;
    pair->signal_all = wanted->sq_sig_all;
    pair->send_cq = (struct null_cq *) wanted->send_cq;
    pair->recv_cq = (struct null_cq *) wanted->recv_cq;
    pair->base = (struct ibv_qp) {
        .context = pd->context, .qp_context = wanted->qp_context, .pd = pd, .send_cq = wanted->send_cq,
        .recv_cq = wanted->recv_cq, .srq = wanted->srq, .state = IBV_QPS_RESET, .qp_type = IBV_QPT_RC,
    };
    error = make(pair, pd);
    if (error) {
        release(pair);
        errno = error;
        return NULL;
    }
    ((struct null_pd *) pd)->users++;
    pthread_mutex_lock(&pair->receives->lock);
    pair->next_of_receives = pair->receives->pairs;
    pair->receives->pairs = pair;
    pthread_mutex_unlock(&pair->receives->lock);
    pthread_mutex_lock(&node.lock);
    pair->next_of_node = node.pairs;
    node.pairs = pair;
    pthread_mutex_unlock(&node.lock);
    return &pair->base;
}

static void leave_lists(struct null_qp *pair)
{
    pthread_mutex_lock(&node.lock);
    struct null_qp **at = &node.pairs;
    while (*at != pair)
        at = &(*at)->next_of_node;
    *at = pair->next_of_node;
    pthread_mutex_unlock(&node.lock);
    pthread_mutex_lock(&pair->receives->lock);
    at = &pair->receives->pairs;
    while (*at != pair)
        at = &(*at)->next_of_receives;
    *at = pair->next_of_receives;
    pthread_mutex_unlock(&pair->receives->lock);
}

EXPORT int ibv_destroy_qp(struct ibv_qp *base)
{
    struct null_qp *pair = (struct null_qp *) base;
    leave_lists(pair);
    pair_lock(pair);
    atomic_store(&pair->shared->state, STATE_GONE);
    pair->stored_count = 0;
    if (pair->blocked_at) {
        *pair->blocked_at = pair->next_blocked;
        if (pair->next_blocked)
            pair->next_blocked->blocked_at = pair->blocked_at;
    }
    pair_drop_received(pair);
    cq_drop(pair->send_cq, pair);
    cq_drop(pair->recv_cq, pair);
    leave_queues(pair);
    pair_unlock(pair);
    if (atomic_load(&pair->shared->blocked))
        pair_wake_sender(pair);
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&pair->shared->producer, &none, base->qp_num))
        pair_forget(base->qp_num);
    forget_events_of((struct null_context *) base->context, base);
    ((struct null_pd *) base->pd)->users--;
    release(pair);
    return 0;
}
