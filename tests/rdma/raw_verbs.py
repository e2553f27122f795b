"""A queue pair that a test drives by hand, by cffi over libibverbs itself: another binding than ours.

The structures are those of the null provider's header, which test_null_provider.py compares with rdma-core's.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import cffi

from tests.rdma.null_provider import SOURCES
from transfer.transports import config

_ALL_RIGHTS = 7
_QUEUE = 160
#: that are posted: as many as the transport takes for granted
RECEIVES = 128
#: the number of receives
RECEIVE = 1 << 32


class Done(NamedTuple):
    """A completion."""

    wr_id: int
    status: int
    opcode: int
    immediate: int


def _declared() -> cffi.FFI:
    text = (SOURCES / "verbs_abi.h").read_text()
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    found = cffi.FFI()
    found.cdef("typedef struct { uint64_t room[5]; } pthread_mutex_t;")  # of glibc on x86-64: 40 bytes
    found.cdef(text)
    return found


FFI = _declared()


class RawPair:
    """A device with one queue pair and `size` bytes of registered memory, which the peer may write and READ.

    Errors of libibverbs are assertions.
    """

    def __init__(self, device: str, size: int = 1 << 16) -> None:
        self.verbs: Any = FFI.dlopen(config.libibverbs())
        count = FFI.new("int *")
        devices = self.verbs.ibv_get_device_list(count)
        [found] = [
            devices[at]
            for at in range(count[0])
            if FFI.string(self.verbs.ibv_get_device_name(devices[at])).decode() == device
        ]
        self.context = self.verbs.ibv_open_device(found)
        self.verbs.ibv_free_device_list(devices)
        self.domain = self.verbs.ibv_alloc_pd(self.context)
        self.memory = bytearray(size)
        self._buffer = FFI.from_buffer(self.memory, require_writable=True)
        self.address = int(FFI.cast("uintptr_t", self._buffer))
        self.region = self.verbs.ibv_reg_mr(self.domain, self._buffer, size, _ALL_RIGHTS)
        self.channel = self.verbs.ibv_create_comp_channel(self.context)
        self.queue = self.verbs.ibv_create_cq(self.context, 4 * _QUEUE, FFI.NULL, self.channel, 0)
        wanted = FFI.new("struct ibv_qp_init_attr *")
        wanted.send_cq = wanted.recv_cq = self.queue
        wanted.cap = (_QUEUE, _QUEUE, 1, 1, 0)
        wanted.qp_type = self.verbs.IBV_QPT_RC
        self.pair = self.verbs.ibv_create_qp(self.domain, wanted)
        assert FFI.NULL not in (self.context, self.domain, self.region, self.channel, self.queue, self.pair)
        self.number, self.rkey = self.pair.qp_num, self.region.rkey
        self.remote_key = 0

    def connect(self, number: int, gid: bytes, rkey: int, *, psn: int, our_psn: int, gid_index: int) -> None:
        """rkey: of the memory that `write` writes to. RECEIVES without buffers are posted."""
        v, wanted = self.verbs, FFI.new("struct ibv_qp_attr *")
        wanted.qp_access_flags, wanted.port_num, wanted.path_mtu = _ALL_RIGHTS, 1, 3
        wanted.dest_qp_num, wanted.rq_psn, wanted.sq_psn = number, psn, our_psn
        wanted.max_dest_rd_atomic = wanted.max_rd_atomic = 4
        wanted.min_rnr_timer, wanted.timeout, wanted.retry_cnt, wanted.rnr_retry = 12, 14, 6, 6
        wanted.ah_attr.is_global = wanted.ah_attr.port_num = 1
        wanted.ah_attr.grh.sgid_index, wanted.ah_attr.grh.hop_limit = gid_index, 64
        wanted.ah_attr.grh.dgid.raw = list(gid)
        masks = (
            v.IBV_QP_STATE | v.IBV_QP_PKEY_INDEX | v.IBV_QP_PORT | v.IBV_QP_ACCESS_FLAGS,
            v.IBV_QP_STATE | v.IBV_QP_AV | v.IBV_QP_PATH_MTU | v.IBV_QP_DEST_QPN | v.IBV_QP_RQ_PSN
            | v.IBV_QP_MAX_DEST_RD_ATOMIC | v.IBV_QP_MIN_RNR_TIMER,
            v.IBV_QP_STATE | v.IBV_QP_TIMEOUT | v.IBV_QP_RETRY_CNT | v.IBV_QP_RNR_RETRY | v.IBV_QP_SQ_PSN
            | v.IBV_QP_MAX_QP_RD_ATOMIC,
        )  # fmt: skip
        for state, mask in enumerate(masks, v.IBV_QPS_INIT):
            wanted.qp_state = state
            assert not v.ibv_modify_qp(self.pair, wanted, mask)
        self.remote_key = rkey
        for _ in range(RECEIVES):
            self.receive()

    def receive(self, which: int = RECEIVE) -> None:
        """Posts a receive without a buffer."""
        request = FFI.new("struct ibv_recv_wr *")
        request.wr_id = which
        assert not self.context.ops.post_recv(self.pair, request, FFI.new("struct ibv_recv_wr **"))

    def write(self, remote: int, data: bytes = b"", immediate: int | None = None, which: int = 0) -> None:
        """Writes to the peer's memory; immediate: with it."""
        self.memory[: len(data)] = data
        opcode = self.verbs.IBV_WR_RDMA_WRITE
        if immediate is not None:
            opcode = self.verbs.IBV_WR_RDMA_WRITE_WITH_IMM
        self._post(opcode, self.address, len(data), remote, self.remote_key, which, immediate or 0)

    def read(self, remote: int, rkey: int, size: int, which: int = 0) -> None:
        """READs the peer's memory to the beginning of ours."""
        self._post(self.verbs.IBV_WR_RDMA_READ, self.address, size, remote, rkey, which)

    def send(self, size: int, which: int = 0) -> None:
        self._post(self.verbs.IBV_WR_SEND, self.address, size, 0, 0, which)

    def _post(
        self, opcode: int, address: int, size: int, remote: int, rkey: int, which: int, immediate: int = 0
    ) -> None:
        piece = FFI.new("struct ibv_sge *", (address, size, self.region.lkey))
        request = FFI.new("struct ibv_send_wr *")
        request.wr_id, request.sg_list, request.num_sge = which, piece, 1 if size else 0
        request.opcode, request.send_flags = opcode, self.verbs.IBV_SEND_SIGNALED
        request.imm_data = int.from_bytes(immediate.to_bytes(4, "big"), "little")  # in the net's order
        request.wr.rdma.remote_addr, request.wr.rdma.rkey = remote, rkey
        assert not self.context.ops.post_send(self.pair, request, FFI.new("struct ibv_send_wr **"))

    def poll(self) -> list[Done]:
        found = FFI.new("struct ibv_wc[32]")
        count = self.context.ops.poll_cq(self.queue, 32, found)
        assert count >= 0
        return [
            Done(one.wr_id, one.status, one.opcode, int.from_bytes(one.imm_data.to_bytes(4, "little"), "big"))
            for one in found[0:count]
        ]

    def arm(self) -> None:
        assert not self.context.ops.req_notify_cq(self.queue, 0)

    def take_event(self) -> None:
        queue, context = FFI.new("struct ibv_cq **"), FFI.new("void **")
        assert not self.verbs.ibv_get_cq_event(self.channel, queue, context)
        self.verbs.ibv_ack_cq_events(self.queue, 1)

    def end_pair(self) -> None:
        """As a process ends. Idempotent."""
        pair, self.pair = self.pair, FFI.NULL
        if pair != FFI.NULL:
            assert not self.verbs.ibv_destroy_qp(pair)

    def close(self) -> None:
        """Idempotent."""
        self.end_pair()
        if self.context != FFI.NULL:
            assert not self.verbs.ibv_destroy_cq(self.queue)
            assert not self.verbs.ibv_destroy_comp_channel(self.channel)
            assert not self.verbs.ibv_dereg_mr(self.region)
            assert not self.verbs.ibv_dealloc_pd(self.domain)
            assert not self.verbs.ibv_close_device(self.context)
            self.context = FFI.NULL
