/* What the parts of the checks share: both ends in this process, and how to wait. */
#ifndef CHECKS_H
#define CHECKS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "ends.h"

#define SIGNALED IBV_SEND_SIGNALED

static const struct address nowhere;

/* Both ends in this process, connected. */
static inline void pair_of(struct end both[2], struct address found[2], struct wish one, struct wish other)
{
    found[0] = begin(&both[0], one);
    found[1] = begin(&both[1], other);
    join(&both[0], found[1]);
    join(&both[1], found[0]);
}

static inline void finish_both(struct end both[2])
{
    finish(&both[0]);
    finish(&both[1]);
}

static inline void nothing(struct end *end)
{
    struct ibv_wc found;
    check(!poll_any(end, 1, &found));
}

static inline bool is_readable(int fd, int patience)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    return poll(&readable, 1, patience) > 0;
}

static inline int event_of(struct end *end)
{
    struct ibv_async_event event;
    if (!is_readable(end->context->async_fd, 0))
        return -1;
    check(!ibv_get_async_event(end->context, &event));
    ibv_ack_async_event(&event);
    return event.event_type;
}

static inline void arm(struct end *end)
{
    check(!end->context->ops.req_notify_cq(end->cq, 0));
}

static inline void take_event(struct end *end)
{
    struct ibv_cq *cq;
    void *unused;
    check(!ibv_get_cq_event(end->channel, &cq, &unused) && cq == end->cq);
    ibv_ack_cq_events(cq, 1);
}

/* Sleeps until a completion is there, as a program does. */
static inline struct ibv_wc await(struct end *end)
{
    struct ibv_wc found;
    for (;;) {
        if (poll_any(end, 1, &found))
            return found;
        arm(end);
        if (poll_any(end, 1, &found))
            return found;
        check(is_readable(end->channel->fd, 5000));
        struct ibv_cq *cq;
        void *unused;
        int flags = fcntl(end->channel->fd, F_GETFL);
        fcntl(end->channel->fd, F_SETFL, flags | O_NONBLOCK);
        if (!ibv_get_cq_event(end->channel, &cq, &unused))
            ibv_ack_cq_events(cq, 1);
        fcntl(end->channel->fd, F_SETFL, flags);
    }
}

static inline char *data_of(struct end *end)
{
    return end->memory + RECEIVED;
}

/* Of the check that runs, the only one of its process. */
extern struct end ends[2];
extern struct address addresses[2];
#define left (&ends[0])
#define right (&ends[1])
#define to_right (addresses[1])

void sends(void);
void writes(void);
void reads(void);
void inlined(void);
void rights(void);
void keys(void);
void local_keys(void);
void not_ready(void);
void no_answer(void);
void large_to_a_sleeper(void);
void queues_are_full(void);
void states(void);
void closing_order(void);
void events(void);
void wakes_between_processes(void);
void reads_between_processes(void);
void a_killed_peer(void);
void threads(void);
void faults(void);
void the_port_goes_down(void);
void the_device_goes(void);
void the_end_of_a_pair(void);

#endif
