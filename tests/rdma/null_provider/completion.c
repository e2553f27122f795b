/* Completion queues. A poll does what a device would do by itself: it places what came in, and tries again
 * what waited.
 */
#define _GNU_SOURCE
#include "null_verbs.h"

/* -- queues ------------------------------------------------------------------------------------------- */

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int count, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector)
{
    int error = device_gone ? EIO : count < 1 || count > MAX_COMPLETIONS || vector < 0
                || vector >= context->num_comp_vectors ? EINVAL : 0;
    struct null_cq *cq = error ? NULL : calloc(1, sizeof(*cq));
    if (cq && !(cq->entries = calloc((size_t) count, sizeof(*cq->entries)))) {
        free(cq);
        cq = NULL;
    }
    if (!cq) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&node.lock);
    while (cq->index < QUEUES && node.cqs[cq->index])
        cq->index++;
    if (cq->index < QUEUES) {
        node.cqs[cq->index] = cq;
        ((struct null_context *) context)->children++;
        if (channel)
            channel->refcnt++;
    }
    pthread_mutex_unlock(&node.lock);
    if (cq->index == QUEUES) {
        free(cq->entries);
        free(cq);
        errno = ENOMEM;
        return NULL;
    }
    cq->base.context = context;
    cq->base.channel = channel;
    cq->base.cq_context = cq_context;
    cq->base.cqe = count;
    cq->channel = (struct null_channel *) channel;
    cq->shared = &node.shared->cqs[cq->index];
    cq->generation = cq->shared->generation + 1;
    memset(cq->shared, 0, sizeof(*cq->shared));
    cq->shared->generation = cq->generation;
    cq->shared->channel = channel ? cq->channel->number : 0;
    pthread_mutexattr_t adaptive;
    pthread_mutexattr_init(&adaptive);
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&cq->lock, &adaptive);
    pthread_mutexattr_destroy(&adaptive);
    pthread_cond_init(&cq->acknowledged, NULL);
    return &cq->base;
}

/* Waits until all its events are acknowledged, as a real one. */
EXPORT int ibv_destroy_cq(struct ibv_cq *base)
{
    struct null_cq *cq = (struct null_cq *) base;
    pthread_mutex_lock(&cq->lock);
    bool used = cq->users;
    while (!used && cq->taken != cq->acked)
        pthread_cond_wait(&cq->acknowledged, &cq->lock);
    pthread_mutex_unlock(&cq->lock);
    if (used)
        return EBUSY;
    atomic_store(&cq->shared->armed, 0);
    if (cq->channel)
        channel_drop_events(cq);
    pthread_mutex_lock(&node.lock);
    node.cqs[cq->index] = NULL;
    ((struct null_context *) base->context)->children--;
    if (base->channel)
        base->channel->refcnt--;
    pthread_mutex_unlock(&node.lock);
    forget_events_of((struct null_context *) base->context, base);
    pthread_mutex_destroy(&cq->lock);
    pthread_cond_destroy(&cq->acknowledged);
    free(cq->entries);
    free(cq);
    return 0;
}

static struct entry *entry_at(struct null_cq *cq, uint32_t place)
{
    uint64_t at = (uint64_t) cq->first + place;
    uint32_t capacity = (uint32_t) cq->base.cqe;
    return &cq->entries[at >= capacity ? at - capacity : at];
}

/* More completions than the queue holds: it is lost, and so are its queue pairs. */
static void overflow(struct null_cq *cq)
{
    if (cq->overflown)
        return;
    cq->overflown = true;
    struct ibv_async_event event = {.element.cq = &cq->base, .event_type = IBV_EVENT_CQ_ERR};
    report((struct null_context *) cq->base.context, event);
    for (int slot = 0; slot < SLOTS; slot++)
        if (cq->slots[slot])
            pair_fail(cq->slots[slot]);
}

void cq_add(struct null_cq *cq, struct null_qp *pair, const struct ibv_wc *wc, uint64_t posted,
            bool announced)
{
    int held = 0;
    if (unlikely(atomic_load_explicit(&faults_set, memory_order_relaxed)) && !wc->status) {
        if (fault_hits(FAULT_LOSE, wc->opcode))
            return;
        held = fault_hits(FAULT_LATE, wc->opcode);
    }
    if (cq->count == (uint32_t) cq->base.cqe) {
        overflow(cq);
        return;
    }
    struct entry *entry = entry_at(cq, cq->count++);
    entry->wc = *wc;
    entry->pair = pair;
    entry->posted = posted;
    entry->held = held;
    cq->holds |= held > 0;
    if (!cq->holds && !announced)
        cq_announce(node.shared, cq->index, wc->status != IBV_WC_SUCCESS);
}

/* Those of a queue pair that ends are never seen, as with most devices. */
void cq_drop(struct null_cq *cq, struct null_qp *pair)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < cq->count; at++) {
        struct entry *entry = entry_at(cq, at);
        if (entry->pair != pair)
            *entry_at(cq, kept++) = *entry;
    }
    cq->count = kept;
}

static bool one_is_held(struct null_cq *cq)
{
    for (uint32_t at = 0; at < cq->count; at++)
        if (entry_at(cq, at)->held)
            return true;
    return false;
}

static int take(struct null_cq *cq, int limit, struct ibv_wc *found)
{
    int taken = 0;
    while (taken < limit && cq->count) {
        struct entry *entry = entry_at(cq, 0);
        if (unlikely(entry->held)) {
            if (taken || --entry->held)
                break;
            cq->holds = one_is_held(cq);
            cq_announce(node.shared, cq->index, false);
        }
        found[taken++] = entry->wc;
        if (entry->posted)
            entry->pair->freed = entry->posted;
        cq->first = cq->first + 1 == (uint32_t) cq->base.cqe ? 0 : cq->first + 1;
        cq->count--;
    }
    return taken;
}

/* -- polling ------------------------------------------------------------------------------------------ */

static void serve_word(struct null_cq *cq, uint32_t word, uint32_t limit, uint32_t *unseen)
{
    uint64_t bits = cq->again[word];
    cq->again[word] = 0;
    bits |= atomic_exchange(&cq->shared->ready[word], 0);
    uint32_t turn = cq->turn % 64; /* pairs take turns in being the first */
    bits = turn ? bits >> turn | bits << (64 - turn) : bits;
    for (; bits; bits &= bits - 1) {
        uint32_t at = ((uint32_t) __builtin_ctzll(bits) + turn) % 64;
        struct null_qp *pair = cq->slots[word * 64 + at];
        if (!pair)
            continue;
        if (pair->send_cq == cq && pair_state(pair) == IBV_QPS_ERR)
            pair_send(pair);
        if (pair->recv_cq != cq || !pair_receive(pair, limit))
            continue;
        *unseen += atomic_load_explicit(&pair->shared->arrivals, memory_order_relaxed) - pair->arrived;
        cq->again[word] |= 1ull << at;
        cq->again_summary |= 1ull << word;
        cq->turn = at + 1;
    }
}

void cq_progress(struct null_cq *cq, uint32_t limit)
{
    if (unlikely(atomic_load_explicit(&cq->shared->kicked, memory_order_relaxed))) {
        /* In this order: with the mark set, a message is there or on its way. One that comes after the mark
         * was taken wakes once for nothing. */
        channel_take_kicks(cq->channel, cq->index);
        atomic_exchange(&cq->shared->kicked, 0);
    }
    if (cq->channel && unlikely(atomic_load_explicit(&cq->channel->timer_at, memory_order_relaxed)))
        channel_take_timer(cq->channel);
    for (struct null_qp *pair = cq->blocked, *next; pair; pair = next) {
        next = pair->next_blocked;
        pair_send(pair);
    }
    uint64_t words = cq->again_summary;
    cq->again_summary = 0;
    if (atomic_load_explicit(&cq->shared->summary, memory_order_relaxed))
        words |= atomic_exchange(&cq->shared->summary, 0);
    uint32_t unseen = 0;
    for (; words; words &= words - 1)
        serve_word(cq, (uint32_t) __builtin_ctzll(words), limit, &unseen);
    if (cq->count + unseen > (uint32_t) cq->base.cqe)
        overflow(cq);
}

void cq_care(struct null_cq *cq)
{
    if (!cq->channel || !(cq->blocked || cq->holds) || !atomic_load(&cq->shared->armed))
        return;
    uint64_t when = cq->holds ? now_ns(CLOCK_MONOTONIC) + MS : 0;
    for (struct null_qp *pair = cq->blocked; pair; pair = pair->next_blocked) {
        uint64_t deadline = pair_deadline(pair);
        if (deadline && (!when || deadline < when))
            when = deadline;
    }
    if (when)
        channel_set_timer(cq->channel, when);
}

int null_poll_cq(struct ibv_cq *base, int limit, struct ibv_wc *found)
{
    struct null_cq *cq = (struct null_cq *) base;
    pthread_mutex_lock(&cq->lock);
    if (limit > 0 && cq->count < (uint32_t) limit)
        cq_progress(cq, (uint32_t) limit);
    int taken = take(cq, limit, found);
    /* Else a message that came after its mark was taken would wake for ever. */
    if (unlikely(!taken && cq->channel && ++cq->empty_polls % 64 == 0)
        && channel_take_kicks(cq->channel, cq->index)) {
        cq_progress(cq, (uint32_t) limit);
        taken = take(cq, limit, found);
    }
    if (unlikely(!taken && (device_gone || cq->overflown)))
        taken = device_gone ? -EIO : -EINVAL;
    if (unlikely(cq->blocked || cq->holds))
        cq_care(cq);
    pthread_mutex_unlock(&cq->lock);
    return taken;
}

/* As the standard says: it is about completions that come after it. */
int null_req_notify_cq(struct ibv_cq *base, int solicited)
{
    struct null_cq *cq = (struct null_cq *) base;
    if (device_gone)
        return EIO;
    atomic_exchange(&cq->shared->armed, solicited ? 2 : 1);
    pthread_mutex_lock(&cq->lock);
    cq_care(cq);
    pthread_mutex_unlock(&cq->lock);
    return 0;
}
