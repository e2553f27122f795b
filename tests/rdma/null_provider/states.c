/* The states of queue pairs: connected by ibv_modify_qp, and broken. */
#define _GNU_SOURCE
#include "null_verbs.h"

void pair_wake_sender(struct null_qp *pair)
{
    struct shared_pair *remote = atomic_load_explicit(&pair->remote, memory_order_acquire);
    if (remote)
        cq_kick(pair->peer->node, remote->send_cq);
}

static void set_failed(struct shared_node *owner, struct shared_pair *shared)
{
    if (atomic_load(&shared->state) == STATE_GONE)
        return;
    atomic_store(&shared->state, IBV_QPS_ERR);
    cq_mark(owner, shared->send_cq, shared->send_slot);
    cq_mark(owner, shared->recv_cq, shared->recv_slot);
    cq_kick(owner, shared->send_cq);
    if (shared->recv_cq != shared->send_cq)
        cq_kick(owner, shared->recv_cq);
}

void pair_fail(struct null_qp *pair)
{
    pair->base.state = IBV_QPS_ERR;
    set_failed(node.shared, pair->shared);
    if (atomic_load(&pair->shared->blocked))
        pair_wake_sender(pair);
}

void pair_fail_remote(struct null_qp *pair, bool refused)
{
    struct shared_pair *remote = atomic_load(&pair->remote);
    if (!remote)
        return;
    if (refused)
        atomic_store(&remote->refused, 1);
    set_failed(pair->peer->node, remote);
}

/* Opens the ring of the peer. A peer that is not there is noticed when something is sent to it. */
static void link_to(struct null_qp *pair, uint32_t number)
{
    struct shared_pair *remote = pair_open(number, pair->base.qp_num);
    if (!remote)
        return;
    pair->peer = peer_get(remote->pid);
    if (!pair->peer) {
        pair_unmap(remote);
        return;
    }
    pair->peer_receives = remote->srq >= 0 ? &pair->peer->node->srqs[remote->srq] : &remote->receives;
    pair->tail = atomic_load(&remote->tail);
    pair->known_head = atomic_load(&remote->head);
    atomic_store_explicit(&pair->remote, remote, memory_order_release);
}

static bool is_here(const struct ibv_ah_attr *to)
{
    static const uint8_t addresses[2][16] = {{0xfe, 0x80, [15] = 1}, {[10] = 0xff, 0xff, 127, 0, 0, 1}};
    return !memcmp(to->grh.dgid.raw, addresses[0], 16) || !memcmp(to->grh.dgid.raw, addresses[1], 16);
}

static int to_init(struct null_qp *pair, const struct ibv_qp_attr *attr)
{
    if (attr->port_num != 1 || attr->pkey_index)
        return EINVAL;
    atomic_store(&pair->shared->access, attr->qp_access_flags);
    return 0;
}

static int to_receive(struct null_qp *pair, const struct ibv_qp_attr *attr)
{
    const struct ibv_ah_attr *to = &attr->ah_attr;
    if (!to->is_global || to->port_num != 1 || to->grh.sgid_index > 1 || attr->path_mtu < IBV_MTU_256
        || attr->path_mtu > IBV_MTU_4096 || attr->max_dest_rd_atomic > MAX_READS || attr->dest_qp_num >> 24)
        return EINVAL;
    atomic_store(&pair->shared->peer, attr->dest_qp_num);
    atomic_store(&pair->shared->rq_psn, attr->rq_psn & 0xffffff);
    atomic_store(&pair->shared->target_reads, attr->max_dest_rd_atomic);
    atomic_store(&counts[TRAFFIC_CLASS], to->grh.traffic_class);
    atomic_store(&counts[SERVICE_LEVEL], to->sl);
    if (is_here(to))
        link_to(pair, attr->dest_qp_num);
    return 0;
}

static int to_send(struct null_qp *pair, const struct ibv_qp_attr *attr)
{
    if (attr->timeout > 31 || attr->retry_cnt > 7 || attr->rnr_retry > 7 || attr->max_rd_atomic > MAX_READS)
        return EINVAL;
    pair->timeout_ns = attr->timeout ? (4096ull << attr->timeout) * (attr->retry_cnt + 1u) : 0;
    pair->endless_rnr = attr->rnr_retry == 7;
    pair->sq_psn = attr->sq_psn & 0xffffff;
    pair->initiator_reads = attr->max_rd_atomic;
    return 0;
}

static const struct step {
    uint32_t from, to;
    int needs;
    int (*change)(struct null_qp *, const struct ibv_qp_attr *);
} steps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, to_init},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
         | IBV_QP_MIN_RNR_TIMER,
     to_receive},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, to_send},
};

static int change(struct null_qp *pair, const struct ibv_qp_attr *attr, int mask)
{
    uint32_t state = pair_state(pair);
    if (!(mask & IBV_QP_STATE))
        return EINVAL; /* nothing else can be changed here */
    if (attr->qp_state == IBV_QPS_ERR) {
        pair_fail(pair);
        return 0;
    }
    for (size_t at = 0; at < sizeof(steps) / sizeof(*steps); at++) {
        const struct step *step = &steps[at];
        if (step->from != state || step->to != (uint32_t) attr->qp_state)
            continue;
        if ((mask & step->needs) != step->needs)
            return EINVAL;
        int error = step->change(pair, attr);
        if (error)
            return error;
        pair->base.state = attr->qp_state;
        /* The peer may have failed it in between. */
        atomic_compare_exchange_strong(&pair->shared->state, &state, step->to);
        if (atomic_load(&pair->shared->blocked))
            pair_wake_sender(pair);
        return 0;
    }
    return EINVAL;
}

/* There is no way back to RESET: a program makes a new queue pair. */
EXPORT int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct null_qp *pair = (struct null_qp *) base;
    if (device_gone)
        return EIO;
    pair_lock(pair);
    int error = change(pair, attr, mask);
    pair_unlock(pair);
    return error;
}
