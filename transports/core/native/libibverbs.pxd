# What the core declares of libibverbs: its structures, as far as it reads them, and the functions that it
# looks up.
#
# The layout is that of rdma-core's infiniband/verbs.h, which has been stable since libibverbs 1.1:
# libibverbs.so.1 promises it by its symbol versions. Of structures that the library makes only the beginning
# is declared. tests/rdma/test_layout.py compares every offset with the installed header.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef struct ibv_context_ops:
    void* unused_before[11]
    int (*poll_cq)(ibv_cq*, int, ibv_wc*) noexcept nogil
    int (*req_notify_cq)(ibv_cq*, int) noexcept nogil
    void* unused_between[7]
    void* post_srq_recv
    void* unused_after[4]
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) noexcept nogil
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) noexcept nogil
    void* unused_end[5]

cdef struct ibv_context:
    void* device
    ibv_context_ops ops
    int cmd_fd
    int async_fd
    int num_comp_vectors

cdef struct ibv_pd:
    ibv_context* context
    uint32_t handle

cdef struct ibv_mr:
    ibv_context* context
    ibv_pd* pd
    void* addr
    size_t length
    uint32_t handle
    uint32_t lkey
    uint32_t rkey

cdef struct ibv_comp_channel:
    ibv_context* context
    int fd
    int refcnt

cdef struct ibv_cq:
    ibv_context* context
    ibv_comp_channel* channel
    void* cq_context
    uint32_t handle
    int cqe

cdef struct ibv_qp:
    ibv_context* context
    void* qp_context
    ibv_pd* pd
    ibv_cq* send_cq
    ibv_cq* recv_cq
    void* srq
    uint32_t handle
    uint32_t qp_num
    int state
    int qp_type

cdef struct ibv_device_attr:
    char fw_ver[64]
    uint64_t node_guid
    uint64_t sys_image_guid
    uint64_t max_mr_size
    uint64_t page_size_cap
    uint32_t vendor_id
    uint32_t vendor_part_id
    uint32_t hw_ver
    int max_qp
    int max_qp_wr
    unsigned int device_cap_flags
    int max_sge
    int max_sge_rd
    int max_cq
    int max_cqe
    int max_mr
    int max_pd
    int max_qp_rd_atom
    int max_ee_rd_atom
    int max_res_rd_atom
    int max_qp_init_rd_atom
    int max_ee_init_rd_atom
    int atomic_cap
    int max_ee
    int max_rdd
    int max_mw
    int max_raw_ipv6_qp
    int max_raw_ethy_qp
    int max_mcast_grp
    int max_mcast_qp_attach
    int max_total_mcast_qp_attach
    int max_ah
    int max_fmr
    int max_map_per_fmr
    int max_srq
    int max_srq_wr
    int max_srq_sge
    uint16_t max_pkeys
    uint8_t local_ca_ack_delay
    uint8_t phys_port_cnt

# The symbol ibv_query_port fills all of it but the last field.
cdef struct ibv_port_attr:
    int state
    int max_mtu
    int active_mtu
    int gid_tbl_len
    uint32_t port_cap_flags
    uint32_t max_msg_sz
    uint32_t bad_pkey_cntr
    uint32_t qkey_viol_cntr
    uint16_t pkey_tbl_len
    uint16_t lid
    uint16_t sm_lid
    uint8_t lmc
    uint8_t max_vl_num
    uint8_t sm_sl
    uint8_t subnet_timeout
    uint8_t init_type_reply
    uint8_t active_width
    uint8_t active_speed
    uint8_t phys_state
    uint8_t link_layer
    uint8_t flags
    uint16_t port_cap_flags2

# With its ibv_global_route in it, whose GID the header aligns to 64 bits.
cdef struct ibv_ah_attr:
    uint64_t dgid[2]
    uint32_t flow_label
    uint8_t sgid_index
    uint8_t hop_limit
    uint8_t traffic_class
    uint16_t dlid
    uint8_t sl
    uint8_t src_path_bits
    uint8_t static_rate
    uint8_t is_global
    uint8_t port_num

cdef struct ibv_qp_cap:
    uint32_t max_send_wr
    uint32_t max_recv_wr
    uint32_t max_send_sge
    uint32_t max_recv_sge
    uint32_t max_inline_data

cdef struct ibv_qp_init_attr:
    void* qp_context
    ibv_cq* send_cq
    ibv_cq* recv_cq
    void* srq
    ibv_qp_cap cap
    int qp_type
    int sq_sig_all

cdef struct ibv_qp_attr:
    int qp_state
    int cur_qp_state
    int path_mtu
    int path_mig_state
    uint32_t qkey
    uint32_t rq_psn
    uint32_t sq_psn
    uint32_t dest_qp_num
    unsigned int qp_access_flags
    ibv_qp_cap cap
    ibv_ah_attr ah_attr
    ibv_ah_attr alt_ah_attr
    uint16_t pkey_index
    uint16_t alt_pkey_index
    uint8_t en_sqd_async_notify
    uint8_t sq_draining
    uint8_t max_rd_atomic
    uint8_t max_dest_rd_atomic
    uint8_t min_rnr_timer
    uint8_t port_num
    uint8_t timeout
    uint8_t retry_cnt
    uint8_t rnr_retry
    uint8_t alt_port_num
    uint8_t alt_timeout
    uint32_t rate_limit

cdef struct ibv_sge:
    uint64_t addr
    uint32_t length
    uint32_t lkey

# Of the union `wr` the member `rdma`, and space for the largest one.
cdef struct ibv_send_wr:
    uint64_t wr_id
    ibv_send_wr* next
    ibv_sge* sg_list
    int num_sge
    int opcode
    unsigned int send_flags
    uint32_t imm_data
    uint64_t remote_addr
    uint32_t rkey
    uint64_t rest_of_wr[2]
    uint32_t remote_srqn
    uint64_t bind_mw[6]

cdef struct ibv_recv_wr:
    uint64_t wr_id
    ibv_recv_wr* next
    ibv_sge* sg_list
    int num_sge

cdef struct ibv_wc:
    uint64_t wr_id
    int status
    int opcode
    uint32_t vendor_err
    uint32_t byte_len
    uint32_t imm_data
    uint32_t qp_num
    uint32_t src_qp
    unsigned int wc_flags
    uint16_t pkey_index
    uint16_t slid
    uint8_t sl
    uint8_t dlid_path_bits

cdef struct ibv_async_event:
    uint64_t element
    int event_type

cdef enum:
    IBV_ACCESS_LOCAL_WRITE = 1
    IBV_ACCESS_REMOTE_WRITE = 2
    IBV_ACCESS_REMOTE_READ = 4

    IBV_PORT_ACTIVE = 4
    IBV_LINK_LAYER_ETHERNET = 2

    IBV_QPT_RC = 2
    IBV_QPS_INIT = 1
    IBV_QPS_RTR = 2
    IBV_QPS_RTS = 3
    IBV_QPS_ERR = 6

    IBV_QP_STATE = 1 << 0
    IBV_QP_ACCESS_FLAGS = 1 << 3
    IBV_QP_PKEY_INDEX = 1 << 4
    IBV_QP_PORT = 1 << 5
    IBV_QP_AV = 1 << 7
    IBV_QP_PATH_MTU = 1 << 8
    IBV_QP_TIMEOUT = 1 << 9
    IBV_QP_RETRY_CNT = 1 << 10
    IBV_QP_RNR_RETRY = 1 << 11
    IBV_QP_RQ_PSN = 1 << 12
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13
    IBV_QP_MIN_RNR_TIMER = 1 << 15
    IBV_QP_SQ_PSN = 1 << 16
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17
    IBV_QP_DEST_QPN = 1 << 20

    IBV_WR_RDMA_WRITE = 0
    IBV_WR_RDMA_WRITE_WITH_IMM = 1
    IBV_WR_RDMA_READ = 4
    IBV_SEND_SIGNALED = 2
    IBV_SEND_INLINE = 8

    IBV_EVENT_PORT_ACTIVE = 9
    IBV_EVENT_SM_CHANGE = 13

cdef struct verbs_t:
    void** (*ibv_get_device_list)(int*) noexcept nogil
    void (*ibv_free_device_list)(void**) noexcept nogil
    const char* (*ibv_get_device_name)(void*) noexcept nogil
    ibv_context* (*ibv_open_device)(void*) noexcept nogil
    int (*ibv_close_device)(ibv_context*) noexcept nogil
    int (*ibv_query_device)(ibv_context*, ibv_device_attr*) noexcept nogil
    int (*ibv_query_port)(ibv_context*, uint8_t, ibv_port_attr*) noexcept nogil
    int (*ibv_query_gid)(ibv_context*, uint8_t, int, void*) noexcept nogil
    int (*ibv_get_async_event)(ibv_context*, ibv_async_event*) noexcept nogil
    void (*ibv_ack_async_event)(ibv_async_event*) noexcept nogil
    ibv_pd* (*ibv_alloc_pd)(ibv_context*) noexcept nogil
    int (*ibv_dealloc_pd)(ibv_pd*) noexcept nogil
    ibv_mr* (*ibv_reg_mr)(ibv_pd*, void*, size_t, int) noexcept nogil
    int (*ibv_dereg_mr)(ibv_mr*) noexcept nogil
    ibv_comp_channel* (*ibv_create_comp_channel)(ibv_context*) noexcept nogil
    int (*ibv_destroy_comp_channel)(ibv_comp_channel*) noexcept nogil
    ibv_cq* (*ibv_create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int) noexcept nogil
    int (*ibv_destroy_cq)(ibv_cq*) noexcept nogil
    int (*ibv_get_cq_event)(ibv_comp_channel*, ibv_cq**, void**) noexcept nogil
    void (*ibv_ack_cq_events)(ibv_cq*, unsigned int) noexcept nogil
    ibv_qp* (*ibv_create_qp)(ibv_pd*, ibv_qp_init_attr*) noexcept nogil
    int (*ibv_modify_qp)(ibv_qp*, ibv_qp_attr*, int) noexcept nogil
    int (*ibv_destroy_qp)(ibv_qp*) noexcept nogil
    # in newer versions only; NULL elsewhere
    ibv_mr* (*ibv_reg_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int) noexcept nogil

cdef verbs_t verbs

cdef int load() except -1
cdef object failed(int number, str what)
