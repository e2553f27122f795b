/* One request to send: into the ring of the peer, or a READ of its memory. */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <sys/uio.h>

/* -- the ring ----------------------------------------------------------------------------------------- */

/* Room for one record. NULL: there is none. */
static struct record *ring_room(struct null_qp *pair, struct shared_pair *remote, uint32_t length)
{
    uint32_t need = ((uint32_t) sizeof(struct record) + length + LINE - 1) / LINE * LINE;
    uint32_t at = pair->tail % RING, to_end = RING - at, total = need <= to_end ? need : to_end + need;
    if (pair->tail + total - pair->known_head > RING) {
        pair->known_head = atomic_load_explicit(&remote->head, memory_order_acquire);
        if (pair->tail + total - pair->known_head > RING)
            return NULL;
    }
    if (need > to_end) {
        *(struct record *) (remote->ring + at) = (struct record) {.size = to_end, .kind = KIND_PAD};
        pair->tail += to_end;
        at = 0;
    }
    struct record *record = (struct record *) (remote->ring + at);
    record->size = need;
    record->length = length;
    return record;
}

void gather(const struct work *work, unsigned char *to, uint64_t skip, uint32_t length)
{
    for (const struct ibv_sge *piece = work->pieces; length; piece++) {
        if (skip >= piece->length) {
            skip -= piece->length;
            continue;
        }
        uint32_t part = piece->length - (uint32_t) skip < length ? piece->length - (uint32_t) skip : length;
        memcpy(to, (const void *) (uintptr_t) (piece->addr + skip), part);
        to += part;
        length -= part;
        skip = 0;
    }
}

static bool reserve_buffer(struct shared_receives *receives)
{
    uint32_t reserved = atomic_load_explicit(&receives->reserved, memory_order_relaxed);
    do {
        if (reserved == atomic_load_explicit(&receives->posted, memory_order_acquire))
            return false;
    } while (!atomic_compare_exchange_weak(&receives->reserved, &reserved, reserved + 1));
    return true;
}

/* -- completions -------------------------------------------------------------------------------------- */

static bool is_send(uint32_t opcode)
{
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

static int completion_opcode(uint32_t opcode)
{
    if (opcode == IBV_WR_RDMA_READ)
        return IBV_WC_RDMA_READ;
    return is_send(opcode) ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
}

void send_completed(struct null_qp *pair, const struct work *work, int status)
{
    if (!status && !pair->signal_all && !(work->flags & IBV_SEND_SIGNALED))
        return;
    struct ibv_wc wc = {
        .wr_id = work->wr_id,
        .status = status,
        .opcode = completion_opcode(work->opcode),
        .byte_len = status ? 0 : (uint32_t) work->length,
        .qp_num = pair->base.qp_num,
    };
    cq_add(pair->send_cq, pair, &wc, work->posted, false);
}

/* -- one request -------------------------------------------------------------------------------------- */

static bool is_reachable(struct null_qp *pair, struct shared_pair *remote)
{
    if (!remote)
        return false;
    uint32_t state = atomic_load_explicit(&remote->state, memory_order_acquire);
    if (state != IBV_QPS_RTR && state != IBV_QPS_RTS)
        return false;
    if (unlikely(!pair->linked)) {
        if (atomic_load(&remote->peer) != pair->base.qp_num || atomic_load(&remote->rq_psn) != pair->sq_psn)
            return false;
        pair->linked = true;
    }
    if (atomic_load_explicit(&node.shared->port_down, memory_order_relaxed)
        || atomic_load_explicit(&pair->peer->node->port_down, memory_order_relaxed))
        return false;
    return peer_is_alive(pair->peer);
}

static int waits(struct work *work, enum wait why)
{
    if (work->wait != why) {
        work->wait = why;
        work->since = now_ns(CLOCK_MONOTONIC);
    }
    return WORK_WAITS;
}

int request_fails(struct null_qp *pair, struct work *work, int status)
{
    struct shared_pair *remote = atomic_load(&pair->remote);
    /* The peer takes the buffer at the first fragment of a SEND, at the last one of a WRITE. */
    if (work->reserved && remote && !(is_send(work->opcode) && work->done))
        atomic_fetch_sub(&pair->peer_receives->reserved, 1);
    send_completed(pair, work, status);
    pair_fail(pair);
    return WORK_FAILED;
}

static int refused(struct null_qp *pair, struct work *work)
{
    pair_fail_remote(pair, true);
    return request_fails(pair, work, IBV_WC_REM_ACCESS_ERR);
}

static bool pieces_allowed(struct null_qp *pair, struct work *work)
{
    if (work->flags & IBV_SEND_INLINE)
        return true;
    uint32_t access = work->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
    for (int at = 0; at < work->count; at++) {
        const struct ibv_sge *piece = &work->pieces[at];
        if (piece->length
            && !region_allows(node.shared, piece->lkey, pair->shared->pd, piece->addr, piece->length, access))
            return false;
    }
    return true;
}

static bool remote_allowed(struct null_qp *pair, struct shared_pair *remote, struct work *work,
                           uint32_t access)
{
    if (!(atomic_load_explicit(&remote->access, memory_order_relaxed) & access))
        return false;
    struct shared_node *target = pair->peer->node;
    return !work->length
           || region_allows(target, work->rkey, remote->pd, work->remote, work->length, access);
}

/* Into the ring, in fragments. */
static int transmit(struct null_qp *pair, struct shared_pair *remote, struct work *work)
{
    bool write = !is_send(work->opcode);
    bool imm = work->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || work->opcode == IBV_WR_SEND_WITH_IMM;
    bool completes = !write || imm, last;
    do {
        uint64_t left = work->length - work->done;
        uint32_t length = left > FRAGMENT ? FRAGMENT : (uint32_t) left;
        struct record *record = ring_room(pair, remote, length);
        if (!record) {
            cq_kick(pair->peer->node, remote->recv_cq); /* it may sleep until the last fragment */
            return waits(work, WAIT_ROOM);
        }
        if (completes && !work->reserved && !(work->reserved = reserve_buffer(pair->peer_receives)))
            return waits(work, WAIT_BUFFER);
        last = length == left;
        record->kind = write ? KIND_WRITE : KIND_SEND;
        record->flags = (uint8_t) ((last ? RECORD_LAST : 0) | (last && imm ? RECORD_IMM : 0));
        record->imm = work->imm;
        record->rkey = work->rkey;
        record->remote = work->remote + work->done;
        gather(work, (unsigned char *) (record + 1), work->done, length);
        pair->tail += record->size;
        work->done += length;
        if (last && completes)
            atomic_store_explicit(&remote->arrivals, ++pair->arrivals, memory_order_relaxed);
        atomic_store_explicit(&remote->tail, pair->tail, memory_order_release);
        cq_mark(pair->peer->node, remote->recv_cq, remote->recv_slot);
    } while (!last);
    if (completes)
        cq_announce(pair->peer->node, remote->recv_cq, work->flags & IBV_SEND_SOLICITED);
    if (write)
        pair->write_mark = pair->tail;
    counted(write ? COUNT_WRITES : COUNT_SENDS);
    return WORK_DONE;
}

/* Copies from the memory of the target. Returns a status. */
static int copy_from(struct null_qp *pair, const struct work *work)
{
    uint64_t from = work->remote + pair->peer->node->regions[work->rkey % REGIONS].shift;
    for (int at = 0; at < work->count; at++) {
        const struct ibv_sge *piece = &work->pieces[at];
        uint64_t to = piece->addr + node.shared->regions[piece->lkey % REGIONS].shift;
        if (pair->peer->pid == node.pid) {
            memmove((void *) (uintptr_t) to, (const void *) (uintptr_t) from, piece->length);
            from += piece->length;
            continue;
        }
        for (uint32_t done = 0; done < piece->length;) {
            struct iovec into = {(void *) (uintptr_t) (to + done), piece->length - done};
            struct iovec source = {(void *) (uintptr_t) from, piece->length - done};
            ssize_t count = process_vm_readv((pid_t) pair->peer->pid, &into, 1, &source, 1, 0);
            if (count <= 0)
                return errno == ESRCH ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_OP_ERR;
            done += (uint32_t) count;
            from += (uint64_t) count;
        }
    }
    return IBV_WC_SUCCESS;
}

static int read_remote(struct null_qp *pair, struct shared_pair *remote, struct work *work)
{
    /* A READ sees the WRITEs before it: those that the peer has not polled are not there yet. */
    if (pair->write_mark > pair->known_head) {
        pair->known_head = atomic_load_explicit(&remote->head, memory_order_acquire);
        if (pair->write_mark > pair->known_head) {
            cq_kick(pair->peer->node, remote->recv_cq);
            return waits(work, WAIT_ORDER);
        }
    }
    counted(COUNT_READS);
    int status = copies_payload ? copy_from(pair, work) : IBV_WC_SUCCESS;
    return status ? request_fails(pair, work, status) : WORK_DONE;
}

int request_attempt(struct null_qp *pair, struct work *work)
{
    bool read = work->opcode == IBV_WR_RDMA_READ;
    if (!work->checked) {
        if (!pieces_allowed(pair, work))
            return request_fails(pair, work, IBV_WC_LOC_PROT_ERR);
        if (work->length > 1ull << 30)
            return request_fails(pair, work, IBV_WC_LOC_LEN_ERR);
        if (read && !pair->initiator_reads)
            return request_fails(pair, work, IBV_WC_LOC_QP_OP_ERR);
        work->checked = true;
    }
    struct shared_pair *remote = atomic_load_explicit(&pair->remote, memory_order_acquire);
    if (!is_reachable(pair, remote))
        return waits(work, WAIT_PEER);
    if (!is_send(work->opcode)) {
        if (read && !atomic_load_explicit(&remote->target_reads, memory_order_relaxed))
            return request_fails(pair, work, IBV_WC_REM_INV_REQ_ERR);
        uint32_t access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
        if (!work->done && !remote_allowed(pair, remote, work, access))
            return refused(pair, work);
    }
    if (unlikely(atomic_load_explicit(&faults_set, memory_order_relaxed))) {
        int status = fault_hits(FAULT_STATUS, completion_opcode(work->opcode));
        if (status)
            return request_fails(pair, work, status);
    }
    int done = read ? read_remote(pair, remote, work) : transmit(pair, remote, work);
    if (done == WORK_DONE)
        send_completed(pair, work, IBV_WC_SUCCESS);
    return done;
}
