"""The driver over pyverbs, of rdma-core 44 (Debian 12) and later, which have the enums in another module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from types import SimpleNamespace
from typing import Any

from transfer.transports.errors import Broken, DeviceError
from transfer.transports.forking import undivided
from transfer.transports.rdma import failures
from transfer.transports.rdma.driver import (
    Completion,
    CompletionQueue,
    Destination,
    DeviceHandle,
    DeviceLimits,
    Driver,
    MemoryRegion,
    PortState,
    QueuePair,
    SharedReceiveQueue,
)
from transfer.transports.rdma.pyverbs_library import close, is_open, load_library, lock, opened

#: the link target of a completion channel's descriptor
_CHANNEL = "anon_inode:[infinibandevent]"
#: work requests of a queue pair that are kept for reuse
_KEPT = 256
_ACK_AFTER = 64


def _number(error: BaseException) -> int:
    """The errno of an error of pyverbs, or 0."""
    code = getattr(error, "error_code", None)
    return code if isinstance(code, int) and code > 0 else 0


@contextmanager
def _mapped(device: str, what: str) -> Iterator[None]:
    """Translates pyverbs' errors."""
    try:
        yield
    except load_library().pyverbs_error.PyverbsError as error:
        raise failures.device_failed(_number(error), device, what) from error


class PyverbsDriver(Driver):
    """Raises DeviceError when pyverbs is missing or does not fit."""

    name = "pyverbs"

    def __init__(self) -> None:
        self._library = load_library()
        try:
            self.version = metadata.version("pyverbs")
        except metadata.PackageNotFoundError:
            self.version = "of the distribution"

    def devices(self) -> list[str]:
        try:
            found = self._library.device.get_device_list()
        except self._library.pyverbs_error.PyverbsError as error:
            raise DeviceError(
                "no_device",
                "this machine has no verbs devices",
                hint="modprobe ib_uverbs; is rdma-core there?",
            ) from error
        return sorted(_text(one.name) for one in found)

    def open(self, device: str) -> DeviceHandle:
        return _Device(self._library, device)


class _Device(DeviceHandle):
    def __init__(self, library: SimpleNamespace, name: str) -> None:
        self.name = name
        self._library = library
        self._pinned = 0
        self._regions = 0
        with _mapped(name, "opening the device"):
            self._context = opened(library.device.Context(name=name))
            try:
                attributes = self._context.query_device()
                self._domain = opened(library.pd.PD(self._context))
            except library.pyverbs_error.PyverbsError:
                close(self._context)
                raise
        self.limits = DeviceLimits(
            queue_pairs=attributes.max_qp,
            completions=attributes.max_cqe,
            requests=attributes.max_qp_wr,
            shared_requests=attributes.max_srq_wr,
            regions=attributes.max_mr,
            reads=min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom, 16),
        )

    def port(self, number: int) -> PortState:
        enums = self._library.enums
        with _mapped(self.name, f"asking for port {number}"):
            port = self._context.query_port(number)
        return PortState(
            active=port.state == enums.IBV_PORT_ACTIVE,
            mtu=128 << int(port.active_mtu),
            lid=port.lid,
            ethernet=port.link_layer == enums.IBV_LINK_LAYER_ETHERNET,
        )

    def gid(self, port: int, index: int) -> str:
        with _mapped(self.name, f"asking for GID {index} of port {port}"):
            return str(self._context.query_gid(port, index).gid)

    def register(self, address: int, length: int, *, local_write: bool, remote_read: bool) -> MemoryRegion:
        return _Region(self, address, length, self._rights(local_write, remote_read))

    def register_dmabuf(
        self, fd: int, offset: int, length: int, *, local_write: bool, remote_read: bool
    ) -> MemoryRegion:
        # pyverbs/mr.pyx gives ibv_reg_dmabuf_mr the offset as the region's first address too.
        return _Region(self, offset, length, self._rights(local_write, remote_read), fd)

    def _rights(self, local_write: bool, remote_read: bool) -> int:
        enums = self._library.enums
        rights = int(enums.IBV_ACCESS_LOCAL_WRITE) if local_write else 0
        return rights | (int(enums.IBV_ACCESS_REMOTE_READ) if remote_read else 0)

    def completion_queue(self, depth: int) -> CompletionQueue:
        with _mapped(self.name, f"making a completion queue of {depth}"):
            return _Queue(self._library, self._context, depth)

    def shared_receive_queue(self, depth: int) -> SharedReceiveQueue:
        with _mapped(self.name, f"making a shared receive queue of {depth}"):
            return _Shared(self._library, self._domain, depth)

    def queue_pair(self, queue: CompletionQueue, shared: SharedReceiveQueue, depth: int) -> QueuePair:
        assert isinstance(queue, _Queue) and isinstance(shared, _Shared)
        with _mapped(self.name, "making a queue pair"):
            return _Pair(self._library, self.name, self._domain, queue, shared, depth)

    def close(self) -> None:
        with _mapped(self.name, "closing the device"):
            close(self._domain, self._context)


class _Region(MemoryRegion):
    def __init__(
        self, device: _Device, address: int, length: int, rights: int, dmabuf: int | None = None
    ) -> None:
        library = device._library
        self._device = device
        try:
            if dmabuf is None:
                self._region = library.mr.MR(device._domain, length, rights, address=address)
            else:
                self._region = library.mr.DmaBufMR(device._domain, length, rights, dmabuf, address)
        except library.pyverbs_error.PyverbsError as error:
            now = failures.circumstances(
                address, length, device._pinned, device._regions, device.limits.regions
            )
            raise failures.registration_failed(
                error, _number(error), device=device.name, address=address, size=length, now=now
            ) from error
        opened(self._region)
        self.address, self.length = address, length
        # Stored, since reading the keys of a closed region of pyverbs ends the process.
        self.lkey, self.rkey = self._region.lkey, self._region.rkey
        device._pinned += length
        device._regions += 1

    def close(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            close(region)
            self._device._pinned -= self.length
            self._device._regions -= 1


class _Queue(CompletionQueue):
    def __init__(self, library: SimpleNamespace, context: Any, depth: int) -> None:
        with undivided(), lock:
            before = _channels()
            self._channel = opened(library.cq.CompChannel(context))
            fd = getattr(self._channel, "fd", None)
            if fd is None:  # rdma-core 44: found among the new descriptors
                fd = min(_channels() - before)
        self.fd = int(fd)
        os.set_blocking(self.fd, False)
        self._errors = library.pyverbs_error.PyverbsError
        try:
            self._queue = opened(library.cq.CQ(context, depth, None, self._channel))
        except self._errors:
            close(self._channel)
            raise
        self._unacknowledged = 0

    def poll(self, limit: int) -> list[Completion]:
        try:
            count, found = self._queue.poll(limit)
        except self._errors as error:
            raise Broken("the completion queue failed") from error
        if not count:
            return []
        return [Completion(one.wr_id, one.status, one.byte_len, one.qp_num) for one in found]

    def arm(self) -> None:
        try:
            self._queue.req_notify()
        except self._errors as error:
            raise Broken("the completion queue cannot be armed") from error

    def take_event(self) -> bool:
        try:
            self._channel.get_cq_event(self._queue)
        except self._errors:
            return False  # the descriptor does not block: there is no event
        self._unacknowledged += 1
        if self._unacknowledged >= _ACK_AFTER:
            self._acknowledge()
        return True

    def _acknowledge(self) -> None:
        self._queue.ack_events(self._unacknowledged)
        self._unacknowledged = 0

    def close(self) -> None:
        if self.fd >= 0 and is_open(self._queue):
            self.fd = -1
            # Destroying a queue waits until all its events are acknowledged.
            self._acknowledge()
            close(self._queue, self._channel)


class _Shared(SharedReceiveQueue):
    def __init__(self, library: SimpleNamespace, domain: Any, depth: int) -> None:
        self._library = library
        attributes = library.srq.SrqAttr(max_wr=depth, max_sge=1)
        self._queue = opened(library.srq.SRQ(domain, library.srq.SrqInitAttr(attributes)))

    def prepare(self, wr_id: int, address: int, length: int, lkey: int) -> Any:
        wr = self._library.wr
        return wr.RecvWR(wr_id=wr_id, num_sge=1, sg=[wr.SGE(address, length, lkey)])

    def post(self, prepared: Any) -> None:
        try:
            self._queue.post_recv(prepared)
        except self._library.pyverbs_error.PyverbsError as error:
            raise Broken("a receive buffer could not be posted") from error

    def close(self) -> None:
        close(self._queue)


class _Pair(QueuePair):
    def __init__(
        self, library: SimpleNamespace, device: str, domain: Any, queue: _Queue, shared: _Shared, depth: int
    ) -> None:
        self._library = library
        self._device = device
        enums = library.enums
        capacity = library.qp.QPCap(
            max_send_wr=depth, max_recv_wr=0, max_send_sge=1, max_recv_sge=0, max_inline_data=0
        )
        # pyverbs would let every request complete (sq_sig_all=1); we choose that for each one.
        wanted = library.qp.QPInitAttr(
            qp_type=enums.IBV_QPT_RC,
            scq=queue._queue,
            rcq=queue._queue,
            srq=shared._queue,
            cap=capacity,
            sq_sig_all=0,
        )
        self._pair = opened(library.qp.QP(domain, wanted))
        self.number = self._pair.qp_num
        self._signaled = int(enums.IBV_SEND_SIGNALED)
        self._send = enums.IBV_WR_SEND
        self._read = enums.IBV_WR_RDMA_READ
        self._kept: dict[tuple[int, int, int, bool | None], Any] = {}
        self._errors = library.pyverbs_error.PyverbsError

    def connect(self, destination: Destination, *, port: int, gid_index: int, psn: int) -> None:
        library, enums = self._library, self._library.enums
        with _mapped(self._device, "connecting a queue pair"):
            attributes = library.qp.QPAttr(port_num=port)
            attributes.qp_access_flags = enums.IBV_ACCESS_REMOTE_READ
            self._pair.to_init(attributes)
            attributes.path_mtu = destination.mtu.bit_length() - 8  # IBV_MTU_256 is 1
            attributes.dest_qp_num = destination.number
            attributes.rq_psn = destination.psn
            attributes.max_dest_rd_atomic = attributes.max_rd_atomic = destination.reads
            attributes.min_rnr_timer = 12
            route = library.addr.GlobalRoute(
                dgid=library.addr.GID(destination.gid), sgid_index=gid_index, hop_limit=64
            )
            attributes.ah_attr = library.addr.AHAttr(
                gr=route, is_global=1, port_num=port, dlid=destination.lid
            )
            self._pair.to_rtr(attributes)
            attributes.timeout = destination.timeout
            attributes.retry_cnt = attributes.rnr_retry = destination.retries
            attributes.sq_psn = psn
            self._pair.to_rts(attributes)

    def send(self, wr_id: int, address: int, length: int, lkey: int, signaled: bool) -> None:
        request = self._kept.get((address, length, lkey, signaled)) or self._request(
            self._send, address, length, lkey, signaled
        )
        request.wr_id = wr_id
        self._post(request)

    def read(self, wr_id: int, address: int, length: int, lkey: int, remote: int, rkey: int) -> None:
        request = self._kept.get((address, length, lkey, None)) or self._request(
            self._read, address, length, lkey, None
        )
        request.wr_id = wr_id
        request.set_wr_rdma(rkey, remote)
        self._post(request)

    def _request(self, opcode: Any, address: int, length: int, lkey: int, signaled: bool | None) -> Any:
        """A request, kept for reuse: slots and slabs repeat, and making one costs more than posting it.
        signaled None: a READ, which is always signaled."""
        wr = self._library.wr
        request = wr.SendWR(
            num_sge=1,
            sg=[wr.SGE(address, length, lkey)],
            opcode=opcode,
            send_flags=0 if signaled is False else self._signaled,
        )
        if len(self._kept) >= _KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[address, length, lkey, signaled] = request
        return request

    def _post(self, request: Any) -> None:
        try:
            self._pair.post_send(request)
        except self._errors as error:
            raise Broken("the queue pair takes no request any more") from error

    def fail(self) -> None:
        if is_open(self._pair):
            attributes = self._library.qp.QPAttr(qp_state=self._library.enums.IBV_QPS_ERR)
            with suppress(self._errors):  # `close` ends it in any case
                self._pair.modify(attributes, self._library.enums.IBV_QP_STATE)

    def close(self) -> None:
        self._kept.clear()
        close(self._pair)


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _channels() -> set[int]:
    """Descriptors of the completion channels of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _CHANNEL:
                found.add(int(name))
        except OSError:
            continue  # the directory that is being listed
    return found
