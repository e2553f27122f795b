/* Requests to send: what a queue pair's device does with them, in order; the producer of the peer's ring.
 *
 * A request is done when it was posted, unless something is missing: room in the ring, a receive buffer, the peer.
 * Then it waits in the queue pair, and all behind it; polls try again, and give up in time.
 */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <sys/uio.h>

/* -- the ring ------------------------------------------------------------------------------------------------ */

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

static void gather(const struct work *work, unsigned char *to, uint64_t skip, uint32_t length)
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

/* -- completions --------------------------------------------------------------------------------------------- */

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

static void send_completed(struct null_qp *pair, const struct work *work, int status)
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

/* -- one request --------------------------------------------------------------------------------------------- */

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

static int fails(struct null_qp *pair, struct work *work, int status)
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
    return fails(pair, work, IBV_WC_REM_ACCESS_ERR);
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

static bool remote_allowed(struct null_qp *pair, struct shared_pair *remote, struct work *work, uint32_t access)
{
    return (atomic_load_explicit(&remote->access, memory_order_relaxed) & access)
           && (!work->length
               || region_allows(pair->peer->node, work->rkey, remote->pd, work->remote, work->length, access));
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
    uint64_t from = work->remote;
    for (int at = 0; at < work->count; at++) {
        const struct ibv_sge *piece = &work->pieces[at];
        if (pair->peer->pid == node.pid) {
            memmove((void *) (uintptr_t) piece->addr, (const void *) (uintptr_t) from, piece->length);
            from += piece->length;
            continue;
        }
        for (uint32_t done = 0; done < piece->length;) {
            struct iovec into = {(void *) (uintptr_t) (piece->addr + done), piece->length - done};
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
    return status ? fails(pair, work, status) : WORK_DONE;
}

static int attempt(struct null_qp *pair, struct work *work)
{
    bool read = work->opcode == IBV_WR_RDMA_READ;
    if (!work->checked) {
        if (!pieces_allowed(pair, work))
            return fails(pair, work, IBV_WC_LOC_PROT_ERR);
        if (work->length > 1ull << 30)
            return fails(pair, work, IBV_WC_LOC_LEN_ERR);
        if (read && !pair->initiator_reads)
            return fails(pair, work, IBV_WC_LOC_QP_OP_ERR);
        work->checked = true;
    }
    struct shared_pair *remote = atomic_load_explicit(&pair->remote, memory_order_acquire);
    if (!is_reachable(pair, remote))
        return waits(work, WAIT_PEER);
    if (!is_send(work->opcode)) {
        if (read && !atomic_load_explicit(&remote->target_reads, memory_order_relaxed))
            return fails(pair, work, IBV_WC_REM_INV_REQ_ERR);
        uint32_t access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
        if (!work->done && !remote_allowed(pair, remote, work, access))
            return refused(pair, work);
    }
    if (unlikely(atomic_load_explicit(&faults_set, memory_order_relaxed))) {
        int status = fault_hits(FAULT_STATUS, completion_opcode(work->opcode));
        if (status)
            return fails(pair, work, status);
    }
    int done = read ? read_remote(pair, remote, work) : transmit(pair, remote, work);
    if (done == WORK_DONE)
        send_completed(pair, work, IBV_WC_SUCCESS);
    return done;
}

/* -- requests that wait -------------------------------------------------------------------------------------- */

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
        if (attempt(pair, work) != WORK_WAITS) {
            forget_stored(pair);
            continue;
        }
        if (tell_peer(pair, work))
            continue;
        uint64_t deadline = deadline_of(pair, work);
        if (!deadline || now_ns(CLOCK_MONOTONIC) < deadline)
            return;
        fails(pair, work, work->wait == WAIT_PEER ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
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

/* -- posting ------------------------------------------------------------------------------------------------- */

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
    if (!pair->stored_count && attempt(pair, &work) != WORK_WAITS)
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
