/* The device null0: its limits, its port, its asynchronous events. */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct ibv_device the_device = {
    .node_type = IBV_NODE_CA,
    .transport_type = IBV_TRANSPORT_IB,
    .name = "null0",
    .dev_name = "uverbs_null0",
    .dev_path = "/nonexistent/infiniband_verbs/uverbs_null0",
    .ibdev_path = "/nonexistent/infiniband/null0",
};

/* Index 0: RoCE v1, 1: RoCE v2. */
static const union ibv_gid gids[] = {
    {.raw = {0xfe, 0x80, [15] = 1}},
    {.raw = {[10] = 0xff, 0xff, 127, 0, 0, 1}},
};
enum { GIDS = 2, GID_TABLE = 16 };

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof(*list));
    if (list)
        list[0] = &the_device;
    if (count)
        *count = list ? 1 : 0;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT int ibv_fork_init(void)
{
    return 0;
}

/* IBV_FORK_UNNEEDED, as since Linux 5.12. */
EXPORT int ibv_is_fork_initialized(void)
{
    return 2;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    faults_begin();
    if (device_gone) {
        errno = EIO;
        return NULL;
    }
    struct null_context *context = calloc(1, sizeof(*context));
    if (!context)
        return NULL;
    int events = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    int error = events < 0 ? errno : node_open();
    if (error) {
        if (events >= 0)
            close(events);
        free(context);
        errno = error;
        return NULL;
    }
    context->base.device = device;
    context->base.cmd_fd = -1;
    context->base.async_fd = events;
    context->base.num_comp_vectors = 3;
    context->base.ops.poll_cq = null_poll_cq;
    context->base.ops.req_notify_cq = null_req_notify_cq;
    context->base.ops.post_srq_recv = null_post_srq_recv;
    context->base.ops.post_send = null_post_send;
    context->base.ops.post_recv = null_post_recv;
    context->last = &context->first;
    pthread_mutex_init(&context->lock, NULL);
    pthread_mutex_lock(&node.lock);
    context->next = node.contexts;
    node.contexts = context;
    pthread_mutex_unlock(&node.lock);
    return &context->base;
}

/* As in the kernel, what is left of it ends with it; here a program that still uses it is not forgiven. */
EXPORT int ibv_close_device(struct ibv_context *base)
{
    struct null_context *context = (struct null_context *) base;
    if (context->children)
        return EBUSY;
    pthread_mutex_lock(&node.lock);
    struct null_context **at = &node.contexts;
    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    pthread_mutex_unlock(&node.lock);
    forget_events_of(context, NULL);
    close(base->async_fd);
    free(context);
    node_close();
    return 0;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void) context;
    if (device_gone)
        return EIO;
    memset(attr, 0, sizeof(*attr));
    strcpy(attr->fw_ver, "1.0.0");
    attr->node_guid = attr->sys_image_guid = 1;
    attr->max_mr_size = UINT64_MAX;
    attr->page_size_cap = ~0xfffull;
    attr->max_qp = 131072;
    attr->max_qp_wr = MAX_REQUESTS;
    attr->max_sge = attr->max_sge_rd = attr->max_srq_sge = MAX_PIECES;
    attr->max_cq = attr->max_srq = QUEUES;
    attr->max_cqe = MAX_COMPLETIONS;
    attr->max_mr = REGIONS - 1;
    attr->max_pd = 1 << 24;
    attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = MAX_READS;
    attr->max_res_rd_atom = MAX_READS * attr->max_qp;
    attr->max_srq_wr = MAX_REQUESTS - 1;
    attr->max_pkeys = 1;
    attr->phys_port_cnt = 1;
    return 0;
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    (void) context;
    if (device_gone)
        return EIO;
    if (port != 1)
        return EINVAL;
    memset(attr, 0, offsetof(struct ibv_port_attr, port_cap_flags2));
    bool down = port_is_down;
    attr->state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->phys_state = down ? 3 : 5;
    attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
    attr->gid_tbl_len = GID_TABLE;
    attr->max_msg_sz = 1u << 30;
    attr->pkey_tbl_len = 1;
    attr->active_width = 2;
    attr->active_speed = 32;
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

/* The empty places of the table are zero. */
EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void) context;
    if (device_gone || port != 1 || index < 0 || index >= GID_TABLE) {
        errno = device_gone ? EIO : EINVAL;
        return -1;
    }
    memset(gid, 0, sizeof(*gid));
    if (index < GIDS)
        *gid = gids[index];
    return 0;
}

/* -- asynchronous events ------------------------------------------------------------------------------ */

void report(struct null_context *context, struct ibv_async_event event)
{
    struct async_event *made = malloc(sizeof(*made));
    if (!made)
        return;
    made->event = event;
    made->next = NULL;
    pthread_mutex_lock(&context->lock);
    *context->last = made;
    context->last = &made->next;
    pthread_mutex_unlock(&context->lock);
    eventfd_write(context->base.async_fd, 1);
}

void report_to_all(int type)
{
    struct ibv_async_event event = {.event_type = type};
    if (type != IBV_EVENT_DEVICE_FATAL)
        event.element.port_num = 1;
    pthread_mutex_lock(&node.lock);
    for (struct null_context *context = node.contexts; context; context = context->next)
        report(context, event);
    pthread_mutex_unlock(&node.lock);
}

/* Drops the events of an object that ends, if they were not taken; NULL: all. */
void forget_events_of(struct null_context *context, void *element)
{
    pthread_mutex_lock(&context->lock);
    struct async_event **at = &context->first;
    while (*at) {
        struct async_event *found = *at;
        int type = found->event.event_type;
        bool of_object = type < IBV_EVENT_DEVICE_FATAL || type > 13;
        if (!element || (of_object && (void *) found->event.element.qp == element)) {
            *at = found->next;
            free(found);
            struct pollfd ready = {.fd = context->base.async_fd, .events = POLLIN};
            eventfd_t one;
            if (poll(&ready, 1, 0) > 0)
                eventfd_read(context->base.async_fd, &one);
        } else {
            at = &found->next;
        }
    }
    context->last = at;
    pthread_mutex_unlock(&context->lock);
}

EXPORT int ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *event)
{
    struct null_context *context = (struct null_context *) base;
    eventfd_t one;
    if (eventfd_read(base->async_fd, &one))
        return -1;
    pthread_mutex_lock(&context->lock);
    struct async_event *found = context->first;
    if (found) {
        context->first = found->next;
        if (!found->next)
            context->last = &context->first;
    }
    pthread_mutex_unlock(&context->lock);
    if (!found) {
        errno = EAGAIN;
        return -1;
    }
    *event = found->event;
    free(found);
    return 0;
}

/* A real device holds up the end of an object until its events are acknowledged: not so here. */
EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void) event;
}
