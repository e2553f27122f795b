/* What waits, what is full, in which order things happen, and who is woken. */
#define _GNU_SOURCE
#include "checks.h"

/* -- waiting ------------------------------------------------------------------------------------------ */

void not_ready(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    data_of(left)[0] = 'a';
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right); /* in order */
    nothing(left);
    arm(left);
    nothing(left);
    check(!is_readable(left->channel->fd, 20));
    post_buffer(right, 3);
    check(is_readable(left->channel->fd, 1000)); /* it was woken to go on */
    check(expect(left, IBV_WC_SUCCESS).opcode == IBV_WC_SEND);
    check(expect(left, IBV_WC_SUCCESS).opcode == IBV_WC_RDMA_READ);
    take_event(left);
    check(!is_readable(left->channel->fd, 20));
    check(expect(right, IBV_WC_SUCCESS).wr_id == 3 && right->memory[3 * BUFFER] == 'a');
    /* Too long. */
    double began = now();
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RNR_RETRY_EXC_ERR);
    double took = now() - began;
    check(took > 0.4e9 && took < 2e9);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    finish_both(ends);
}

void no_answer(void)
{
    /* A queue pair that does not exist. */
    begin(left, (struct wish) {0});
    join(left, (struct address) {.number = 15});
    double began = now();
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    double took = now() - began;
    check(took > 0.4e9 && took < 2e9);
    finish(left);
    /* One that is not connected yet, and then is. */
    addresses[0] = begin(left, (struct wish) {0});
    addresses[1] = begin(right, (struct wish) {0});
    join(left, addresses[1]);
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    arm(left);
    nothing(left);
    join(right, addresses[0]);
    check(is_readable(left->channel->fd, 1000));
    expect(left, IBV_WC_SUCCESS);
    expect(right, IBV_WC_SUCCESS);
    /* One that is destroyed. */
    check(!ibv_destroy_qp(right->qp));
    right->qp = NULL;
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    finish_both(ends);
    /* Packets that begin with another number are not the expected ones. */
    addresses[0] = begin(left, (struct wish) {0});
    addresses[1] = begin(right, (struct wish) {0});
    join(right, addresses[0]);
    struct ibv_qp_attr attr = attr_for(addresses[1], 0);
    attr.sq_psn = 1;
    attr.timeout = 10;
    static const int masks[] = {TO_INIT, TO_RTR, TO_RTS};
    for (int at = 0; at < 3; at++) {
        attr.qp_state = IBV_QPS_INIT + at;
        check(!ibv_modify_qp(left->qp, &attr, masks[at]));
    }
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(await(left).status == IBV_WC_RETRY_EXC_ERR);
    finish_both(ends);
}

/* A large message goes on although its receiver sleeps: more than the ring holds. */
void large_to_a_sleeper(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    struct ibv_sge whole = {(uintptr_t) data_of(right), MEMORY, right->mr->lkey};
    struct ibv_recv_wr buffer = {.wr_id = 9, .sg_list = &whole, .num_sge = 1}, *bad;
    check(!right->context->ops.post_srq_recv(right->srq, &buffer, &bad));
    memset(data_of(left), 'l', MEMORY);
    arm(right);
    nothing(right);
    post(left, IBV_WR_SEND, MEMORY, SIGNALED, nowhere);
    nothing(left);
    struct ibv_wc got;
    int rounds = 0;
    for (arm(left); !poll_good(left, 1, &got); rounds++) {
        check(is_readable(right->channel->fd, 1000));
        nothing(right);
        check(is_readable(left->channel->fd, 1000));
    }
    got = expect(right, IBV_WC_SUCCESS);
    check(rounds > 1 && got.wr_id == 9 && got.byte_len == MEMORY && data_of(right)[MEMORY - 1] == 'l');
    take_event(right);
    check(!is_readable(right->channel->fd, 10));
    finish_both(ends);
}

/* -- limits, states, order ---------------------------------------------------------------------------- */

void queues_are_full(void)
{
    pair_of(ends, addresses, (struct wish) {.requests = 4}, (struct wish) {0});
    for (int at = 0; at < 4; at++)
        post(left, IBV_WR_SEND, 8, at == 3 ? SIGNALED : 0, nowhere);
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == ENOMEM); /* until a completion says so */
    expect(left, IBV_WC_SUCCESS);
    for (int at = 0; at < 4; at++)
        post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(try_post(left, IBV_WR_SEND, 8, SIGNALED, nowhere, 0) == ENOMEM); /* nothing will say so any more */
    check(try_post_buffer(right, 0, BUFFER) == ENOMEM);
    expect(right, IBV_WC_SUCCESS);
    post_buffer(right, 0);
    finish_both(ends);
    /* More completions than the queue holds. */
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.completions = 5});
    for (int at = 0; at < 7; at++)
        post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    struct ibv_wc found;
    while (right->context->ops.poll_cq(right->cq, 1, &found) > 0)
        ;
    check(event_of(right) == IBV_EVENT_CQ_ERR);
    check(right->context->ops.poll_cq(right->cq, 1, &found) < 0);
    finish_both(ends);
}

void states(void)
{
    begin(left, (struct wish) {.own_receives = true});
    struct ibv_qp_attr attr = attr_for((struct address) {.number = 77}, 4);
    check(try_post_buffer(left, 0, 8) == EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    check(ibv_modify_qp(left->qp, &attr, TO_RTR) == EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    check(ibv_modify_qp(left->qp, &attr, TO_INIT & ~IBV_QP_PORT) == EINVAL);
    attr.port_num = 2;
    check(ibv_modify_qp(left->qp, &attr, TO_INIT) == EINVAL);
    attr.port_num = 1;
    check(!ibv_modify_qp(left->qp, &attr, TO_INIT));
    post_buffer(left, 0);
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    check(ibv_modify_qp(left->qp, &attr, TO_RTR & ~IBV_QP_AV) == EINVAL);
    attr.ah_attr.grh.sgid_index = 9;
    check(ibv_modify_qp(left->qp, &attr, TO_RTR) == EINVAL);
    attr.ah_attr.grh.sgid_index = 1;
    check(!ibv_modify_qp(left->qp, &attr, TO_RTR));
    check(try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0) == EINVAL);
    attr.qp_state = IBV_QPS_RTS;
    check(!ibv_modify_qp(left->qp, &attr, TO_RTS));
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    attr.qp_state = IBV_QPS_ERR;
    check(!ibv_modify_qp(left->qp, &attr, IBV_QP_STATE));
    check(expect(left, IBV_WC_WR_FLUSH_ERR).wr_id == 1000);
    check(expect(left, IBV_WC_WR_FLUSH_ERR).wr_id == 0);
    post_buffer(left, 1);
    check(expect(left, IBV_WC_WR_FLUSH_ERR).wr_id == 1);
    attr.qp_state = IBV_QPS_RTS;
    check(ibv_modify_qp(left->qp, &attr, TO_RTS) == EINVAL);
    finish(left);
}

void closing_order(void)
{
    begin(left, (struct wish) {0});
    check(ibv_destroy_cq(left->cq) == EBUSY && ibv_destroy_srq(left->srq) == EBUSY);
    check(ibv_dealloc_pd(left->pd) == EBUSY && ibv_destroy_comp_channel(left->channel) == EBUSY);
    check(ibv_close_device(left->context) == EBUSY);
    check(!ibv_destroy_qp(left->qp) && ibv_dealloc_pd(left->pd) == EBUSY);
    check(!ibv_destroy_srq(left->srq) && ibv_dealloc_pd(left->pd) == EBUSY);
    check(!ibv_dereg_mr(left->mr) && !ibv_dealloc_pd(left->pd));
    check(ibv_destroy_comp_channel(left->channel) == EBUSY && !ibv_destroy_cq(left->cq));
    check(!ibv_destroy_comp_channel(left->channel) && !ibv_close_device(left->context));
}

/* -- events ------------------------------------------------------------------------------------------- */

void events(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    int fd = right->channel->fd;
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    arm(right); /* about what comes later */
    check(!is_readable(fd, 10));
    expect(right, IBV_WC_SUCCESS);
    post(left, IBV_WR_RDMA_WRITE, 8, 0, to_right); /* makes no completion */
    check(!is_readable(fd, 10));
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(is_readable(fd, 1000));
    take_event(right); /* one for each arming */
    check(!is_readable(fd, 10));
    for (int at = 0; at < 2; at++)
        expect(right, IBV_WC_SUCCESS);
    check(!right->context->ops.req_notify_cq(right->cq, 1)); /* solicited ones only */
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    check(!is_readable(fd, 10));
    post(left, IBV_WR_SEND, 8, IBV_SEND_SOLICITED, nowhere);
    check(is_readable(fd, 1000));
    take_event(right);
    arm(left); /* an own completion too */
    post(left, IBV_WR_SEND, 8, SIGNALED, nowhere);
    check(is_readable(left->channel->fd, 1000));
    finish_both(ends); /* events that were not taken go with the queue */
}
