/* What arrives, and what is refused. */
#define _GNU_SOURCE
#include "checks.h"

/* -- messages ----------------------------------------------------------------------------------------- */

void sends(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    strcpy(data_of(left), "first");
    post(left, IBV_WR_SEND, 6, 0, nowhere);
    strcpy(data_of(left), "second");
    post(left, IBV_WR_SEND_WITH_IMM, 7, SIGNALED, nowhere);
    post(left, IBV_WR_SEND, 0, 0, nowhere);
    struct ibv_wc sent = expect(left, IBV_WC_SUCCESS), got = expect(right, IBV_WC_SUCCESS);
    check(sent.wr_id == 1000 && sent.opcode == IBV_WC_SEND && sent.qp_num == left->qp->qp_num);
    nothing(left);
    check(got.wr_id == 0 && got.opcode == IBV_WC_RECV && got.byte_len == 6 && !got.wc_flags);
    check(got.qp_num == right->qp->qp_num && got.src_qp == left->qp->qp_num);
    check(!strcmp(right->memory, "first"));
    got = expect(right, IBV_WC_SUCCESS);
    check(got.wr_id == 1 && got.byte_len == 7 && got.wc_flags == IBV_WC_WITH_IMM && got.imm_data == 77);
    check(!strcmp(right->memory + BUFFER, "second"));
    check(expect(right, IBV_WC_SUCCESS).byte_len == 0);
    nothing(right);
    finish_both(ends);
}

void writes(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    memset(data_of(left), 'w', MEMORY);
    post(left, IBV_WR_RDMA_WRITE, 100, SIGNALED, to_right);
    check(expect(left, IBV_WC_SUCCESS).opcode == IBV_WC_RDMA_WRITE);
    check(!*data_of(right)); /* the target has not polled: a card would have written */
    nothing(right);
    check(data_of(right)[99] == 'w' && !data_of(right)[100]);
    check(!try_post(left, IBV_WR_RDMA_WRITE_WITH_IMM, 10, 0, to_right, 5000));
    struct ibv_wc got = expect(right, IBV_WC_SUCCESS);
    check(got.opcode == IBV_WC_RECV_RDMA_WITH_IMM && got.byte_len == 10);
    check(got.imm_data == 77 && got.wr_id == 0);
    check(data_of(right)[5009] == 'w' && !data_of(right)[5010]);
    /* More than the ring holds goes on as the target polls. */
    post(left, IBV_WR_RDMA_WRITE_WITH_IMM, MEMORY, SIGNALED, to_right);
    nothing(left);
    for (int at = 0; at < 20; at++) {
        struct ibv_wc found;
        poll_good(left, 0, &found);
        poll_good(left, 1, &found);
        if (poll_good(right, 1, &found)) {
            check(found.byte_len == MEMORY && found.wr_id == 1);
            check(!memcmp(data_of(left), data_of(right), MEMORY));
            finish_both(ends);
            return;
        }
    }
    check(!"arrived");
}

void reads(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    memset(data_of(right), 'r', MEMORY);
    check(!try_post(left, IBV_WR_RDMA_READ, 1000, SIGNALED, to_right, 8));
    struct ibv_wc got = expect(left, IBV_WC_SUCCESS);
    check(got.opcode == IBV_WC_RDMA_READ && got.byte_len == 1000);
    check(!data_of(left)[7] && data_of(left)[8] == 'r' && data_of(left)[1007] == 'r' && !data_of(left)[1008]);
    post(left, IBV_WR_RDMA_READ, 0, SIGNALED, to_right);
    check(!expect(left, IBV_WC_SUCCESS).byte_len);
    /* Into several pieces. */
    strcpy(data_of(right), "0123456789");
    struct ibv_sge pieces[2] = {{(uintptr_t) data_of(left), 3, left->mr->lkey},
                                {(uintptr_t) data_of(left) + 100, 8, left->mr->lkey}};
    struct ibv_send_wr request = {.sg_list = pieces, .num_sge = 2, .opcode = IBV_WR_RDMA_READ,
                                  .send_flags = SIGNALED}, *bad;
    request.wr.rdma.remote_addr = to_right.memory + RECEIVED;
    request.wr.rdma.rkey = to_right.rkey;
    check(!left->context->ops.post_send(left->qp, &request, &bad));
    expect(left, IBV_WC_SUCCESS);
    check(!strncmp(data_of(left), "012", 3) && !strcmp(data_of(left) + 100, "3456789"));
    /* A READ sees the WRITE before it, for which it waits until the target polls. */
    strcpy(data_of(left), "written");
    post(left, IBV_WR_RDMA_WRITE, 8, 0, to_right);
    strcpy(data_of(left), "nothing");
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    nothing(left);
    nothing(right);
    expect(left, IBV_WC_SUCCESS);
    check(!strcmp(data_of(left), "written"));
    finish_both(ends);
}

void inlined(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    for (int at = 0; at < 3; at++) { /* each waits for a buffer; the memory need not be registered */
        char text[20];
        snprintf(text, sizeof(text), "message %d", at % 10);
        struct ibv_sge piece = {(uintptr_t) text, sizeof(text), 0};
        struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
                                      .send_flags = IBV_SEND_INLINE}, *bad;
        check(!left->context->ops.post_send(left->qp, &request, &bad));
        memset(text, 'x', sizeof(text));
    }
    check(try_post(left, IBV_WR_SEND, 129, IBV_SEND_INLINE, nowhere, 0) == ENOMEM);
    check(try_post(left, IBV_WR_RDMA_READ, 8, IBV_SEND_INLINE, to_right, 0) == EINVAL);
    for (uint64_t which = 0; which < 3; which++)
        post_buffer(right, which);
    nothing(left);
    for (int at = 0; at < 3; at++) {
        struct ibv_wc got = expect(right, IBV_WC_SUCCESS);
        check(got.wr_id == (uint64_t) at && right->memory[at * BUFFER + 8] == '0' + at);
    }
    finish_both(ends);
}

/* -- rights and bounds -------------------------------------------------------------------------------- */

static void is_refused(int opcode, struct address remote, uint32_t length, uint64_t beyond, unsigned access)
{
    addresses[0] = begin(left, (struct wish) {0});
    addresses[1] = begin(right, (struct wish) {.own_receives = true});
    join(left, addresses[1]);
    join_with(right, addresses[0], access);
    remote.memory = remote.memory ? remote.memory : to_right.memory + beyond;
    remote.rkey = remote.rkey == 1 ? to_right.rkey ^ 0x5a5a00 : remote.rkey ? remote.rkey : to_right.rkey;
    check(!try_post(left, opcode, length, 0, remote, 0));
    post(left, IBV_WR_SEND, 8, 0, nowhere);
    expect(left, IBV_WC_REM_ACCESS_ERR);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    check(!try_post(left, IBV_WR_SEND, 8, 0, nowhere, 0));
    expect(left, IBV_WC_WR_FLUSH_ERR);
    for (int buffer = 0; buffer < DEPTH; buffer++)
        check(expect(right, IBV_WC_WR_FLUSH_ERR).wr_id == (uint64_t) buffer);
    nothing(right);
    check(event_of(right) == IBV_EVENT_QP_ACCESS_ERR && event_of(right) == -1);
    check(!memcmp(data_of(left), data_of(right), MEMORY)); /* all zero */
    finish_both(ends);
}

void rights(void)
{
    unsigned all = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    for (int opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_RDMA_READ; opcode += IBV_WR_RDMA_READ) {
        is_refused(opcode, (struct address) {.rkey = 1}, 8, 0, all);                 /* key */
        is_refused(opcode, (struct address) {.rkey = 0xfffffff0}, 8, 0, all);        /* no such key */
        is_refused(opcode, (struct address) {0}, 9, MEMORY - 8, all);                /* past the end */
        is_refused(opcode, (struct address) {.memory = 0x1000}, 8, 0, all);          /* before it */
        is_refused(opcode, (struct address) {.memory = UINT64_MAX - RECEIVED - 3}, 8, 0, all); /* around */
        is_refused(opcode, (struct address) {0}, 8, 0, all & ~(opcode ? 4u : 2u));   /* of the queue pair */
    }
    /* The region's own right, and a key of another protection domain. */
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.read_only = true, .unposted = true});
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, to_right);
    expect(left, IBV_WC_SUCCESS);
    post(left, IBV_WR_RDMA_WRITE, 8, SIGNALED, to_right);
    expect(left, IBV_WC_REM_ACCESS_ERR);
    finish_both(ends);
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    struct ibv_pd *other = ibv_alloc_pd(right->context);
    struct ibv_mr *mr = ibv_reg_mr(other, right->memory, RECEIVED + MEMORY, IBV_ACCESS_REMOTE_READ);
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED, (struct address) {.rkey = mr->rkey, .memory = to_right.memory});
    expect(left, IBV_WC_REM_ACCESS_ERR);
    nothing(right); /* sees that it failed */
    check(event_of(right) == IBV_EVENT_QP_ACCESS_ERR && event_of(right) == IBV_EVENT_QP_LAST_WQE_REACHED);
    check(ibv_dealloc_pd(other) == EBUSY && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
    finish_both(ends);
}

void keys(void)
{
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    uint32_t seen[1000];
    for (int at = 0; at < 1000; at++) {
        struct ibv_mr *mr = ibv_reg_mr(right->pd, data_of(right), 8, IBV_ACCESS_REMOTE_READ);
        seen[at] = mr->rkey;
        for (int before = 0; before < at; before++)
            check(seen[before] != seen[at]);
        check(!ibv_dereg_mr(mr));
    }
    post(left, IBV_WR_RDMA_READ, 8, SIGNALED,
         (struct address) {.rkey = seen[999], .memory = to_right.memory}); /* deregistered */
    expect(left, IBV_WC_REM_ACCESS_ERR);
    check(!ibv_reg_mr(right->pd, data_of(right), 8, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    check(!ibv_reg_dmabuf_mr(right->pd, 0, 8, 0, 1, 0) && errno == EOPNOTSUPP);
    finish_both(ends);
}

void local_keys(void)
{
    struct ibv_wc found;
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {0});
    check(!ibv_dereg_mr(left->mr) && (left->mr = ibv_reg_mr(left->pd, left->memory, RECEIVED + 100, 1)));
    post(left, IBV_WR_SEND, 101, 0, nowhere);
    expect(left, IBV_WC_LOC_PROT_ERR);
    check(!poll_any(right, 1, &found));
    finish_both(ends);
    /* A READ writes into our memory. */
    pair_of(ends, addresses, (struct wish) {.read_only = true, .unposted = true}, (struct wish) {0});
    post(left, IBV_WR_RDMA_READ, 8, 0, to_right);
    expect(left, IBV_WC_LOC_PROT_ERR);
    finish_both(ends);
    /* A receive buffer that is too short. */
    pair_of(ends, addresses, (struct wish) {0}, (struct wish) {.unposted = true});
    check(!try_post_buffer(right, 5, 100));
    post(left, IBV_WR_SEND, 101, 0, nowhere);
    check(expect(right, IBV_WC_LOC_LEN_ERR).wr_id == 5);
    post(left, IBV_WR_SEND, 1, 0, nowhere);
    expect(left, IBV_WC_WR_FLUSH_ERR);
    finish_both(ends);
}
