/* Completion channels, and what wakes who sleeps on them.
 *
 * A channel's descriptor is an epoll set of three: events of armed queues, kicks (poll, there is something to
 * do), and a timer. Kicks and the timer are taken by the poll itself: a program sees only events with a
 * completion.
 */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* -- making and destroying ---------------------------------------------------------------------------- */

static void channel_close(struct null_channel *channel)
{
    int fds[] = {channel->base.fd, channel->events, channel->kicks, channel->timer};
    for (int at = 0; at < 4; at++)
        if (fds[at] >= 0)
            close(fds[at]);
    free(channel);
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    if (device_gone) {
        errno = EIO;
        return NULL;
    }
    struct null_channel *channel = calloc(1, sizeof(*channel));
    if (!channel)
        return NULL;
    pthread_mutex_lock(&node.lock);
    channel->number = ++node.next_channel;
    pthread_mutex_unlock(&node.lock);
    pthread_mutex_init(&channel->lock, NULL);
    channel->base.context = context;
    channel->events = bell_bind(channel->number, BELL_EVENT);
    channel->kicks = bell_bind(channel->number, BELL_KICK);
    channel->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    channel->base.fd = epoll_create1(EPOLL_CLOEXEC);
    int fds[] = {channel->events, channel->kicks, channel->timer};
    for (int at = 0; at < 3; at++) {
        struct epoll_event readable = {.events = EPOLLIN};
        if (fds[at] < 0 || epoll_ctl(channel->base.fd, EPOLL_CTL_ADD, fds[at], &readable)) {
            int error = errno;
            channel_close(channel);
            errno = error;
            return NULL;
        }
    }
    pthread_mutex_lock(&node.lock);
    ((struct null_context *) context)->children++;
    pthread_mutex_unlock(&node.lock);
    return &channel->base;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    if (base->refcnt)
        return EBUSY;
    pthread_mutex_lock(&node.lock);
    ((struct null_context *) base->context)->children--;
    pthread_mutex_unlock(&node.lock);
    channel_close((struct null_channel *) base);
    return 0;
}

bool channel_take_kicks(struct null_channel *channel, uint32_t cq)
{
    struct bell_message kept[32], *last = kept;
    bool some = false;
    while (last < kept + 32 && recv(channel->kicks, last, sizeof(*last), MSG_DONTWAIT) > 0) {
        some = true;
        last += cq < QUEUES && last->cq != cq;
    }
    while (last-- > kept)
        bell_ring(node.pid, channel->number, BELL_KICK, *last);
    return some;
}

void channel_take_timer(struct null_channel *channel)
{
    uint64_t at = atomic_load_explicit(&channel->timer_at, memory_order_relaxed), unused;
    if (!at || now_ns(CLOCK_MONOTONIC) < at)
        return;
    pthread_mutex_lock(&channel->lock);
    if (read(channel->timer, &unused, sizeof(unused)) > 0)
        atomic_store(&channel->timer_at, 0);
    pthread_mutex_unlock(&channel->lock);
}

void channel_set_timer(struct null_channel *channel, uint64_t when)
{
    pthread_mutex_lock(&channel->lock);
    uint64_t before = atomic_load(&channel->timer_at);
    if (!before || when < before) {
        struct itimerspec at = {.it_value = {(time_t) (when / 1000000000), (long) (when % 1000000000)}};
        timerfd_settime(channel->timer, TFD_TIMER_ABSTIME, &at, NULL);
        atomic_store(&channel->timer_at, when);
    }
    pthread_mutex_unlock(&channel->lock);
}

/* -- waking ------------------------------------------------------------------------------------------- */

void cq_mark(struct shared_node *owner, uint32_t index, uint32_t slot)
{
    struct shared_cq *cq = &owner->cqs[index];
    uint64_t bit = 1ull << slot % 64, word = 1ull << slot / 64;
    atomic_thread_fence(memory_order_seq_cst);
    if (!(atomic_load_explicit(&cq->ready[slot / 64], memory_order_relaxed) & bit))
        atomic_fetch_or(&cq->ready[slot / 64], bit);
    if (!(atomic_load_explicit(&cq->summary, memory_order_relaxed) & word))
        atomic_fetch_or(&cq->summary, word);
}

void cq_announce(struct shared_node *owner, uint32_t index, bool solicited)
{
    struct shared_cq *cq = &owner->cqs[index];
    uint32_t armed = atomic_load_explicit(&cq->armed, memory_order_relaxed);
    if (armed && (armed == 1 || solicited) && atomic_exchange(&cq->armed, 0)) {
        counted(COUNT_WAKEUPS);
        bell_ring(owner->pid, cq->channel, BELL_EVENT, (struct bell_message) {index, cq->generation});
    }
}

void cq_kick(struct shared_node *owner, uint32_t index)
{
    struct shared_cq *cq = &owner->cqs[index];
    atomic_thread_fence(memory_order_seq_cst);
    if (!cq->channel || !atomic_load(&cq->armed) || atomic_exchange(&cq->kicked, 1))
        return;
    counted(COUNT_KICKS);
    bell_ring(owner->pid, cq->channel, BELL_KICK, (struct bell_message) {index, cq->generation});
}

/* -- events ------------------------------------------------------------------------------------------- */

void channel_drop_events(struct null_cq *cq)
{
    struct bell_message kept[64];
    int count = 0;
    while (count < 64 && recv(cq->channel->events, &kept[count], sizeof(*kept), MSG_DONTWAIT) > 0)
        count += kept[count].cq != cq->index;
    for (int at = 0; at < count; at++)
        bell_ring(node.pid, cq->channel->number, BELL_EVENT, kept[at]);
}

static bool take_event(struct null_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    struct bell_message message;
    while (recv(channel->events, &message, sizeof(message), MSG_DONTWAIT) == sizeof(message)) {
        pthread_mutex_lock(&node.lock);
        struct null_cq *found = message.cq < QUEUES ? node.cqs[message.cq] : NULL;
        if (found && (found->channel != channel || found->generation != message.generation))
            found = NULL;
        if (found)
            found->taken++;
        pthread_mutex_unlock(&node.lock);
        if (found) {
            *cq = &found->base;
            *cq_context = found->base.cq_context;
            return true;
        }
    }
    return false;
}

/* What a poll does besides taking completions, while a thread sleeps in ibv_get_cq_event. */
static void progress_all(struct null_channel *channel)
{
    channel_take_kicks(channel, QUEUES);
    for (int index = 0; index < QUEUES; index++) {
        struct null_cq *cq = node.cqs[index];
        if (!cq || cq->channel != channel)
            continue;
        pthread_mutex_lock(&cq->lock);
        cq_progress(cq, (uint32_t) cq->base.cqe);
        cq_care(cq);
        pthread_mutex_unlock(&cq->lock);
    }
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **cq_context)
{
    struct null_channel *channel = (struct null_channel *) base;
    while (!take_event(channel, cq, cq_context)) {
        if (fcntl(base->fd, F_GETFL) & O_NONBLOCK) {
            errno = EAGAIN;
            return -1;
        }
        struct pollfd readable = {.fd = base->fd, .events = POLLIN};
        if (poll(&readable, 1, -1) < 0)
            return -1;
        progress_all(channel);
    }
    return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *base, unsigned int count)
{
    struct null_cq *cq = (struct null_cq *) base;
    pthread_mutex_lock(&cq->lock);
    cq->acked += count;
    pthread_cond_broadcast(&cq->acknowledged);
    pthread_mutex_unlock(&cq->lock);
}
