"""rdma-core's own Python binding as an oracle: what it sees of a device, and as a connection's other end."""

from __future__ import annotations

import ipaddress
import mmap
import socket
import struct

import pytest

from tests.rdma.ends import World, agreement, devices, tcp_pair, world
from tests.rdma.raw_peer import frame
from tests.rdma.vm import has_pyverbs
from transfer.transports.core.wire import HEADER, HEADER_SIZE, REFERENCE
from transfer.transports.rdma.driver import load
from transfer.transports.rdma.upgrade import VerbsUpgrade
from transfer.transports.testing.ends import plain, receive, until

pytestmark = [
    pytest.mark.skipif(not devices(), reason="no RDMA device here: `make test-rdma` brings one"),
    pytest.mark.skipif(not has_pyverbs(), reason="no pyverbs for this Python"),
]
RING, PAYLOAD = 1 << 16, 3 << 20


class Peer:
    """A queue pair of pyverbs, connected to a stream of ours."""

    def __init__(self, made: World) -> None:
        from pyverbs import addr, cq, device, enums, mr, pd, qp, wr

        self.enums, self.wr = enums, wr
        own = made.socket()
        route = own.shared["rdma.domains"].get().route
        self.context = device.Context(name=route.device)
        self.domain = pd.PD(self.context)
        rights = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_READ
        self.region = mr.MR(self.domain, RING + mmap.PAGESIZE + PAYLOAD, rights)
        self.queue = cq.CQ(self.context, 400)
        cap = qp.QPCap(max_send_wr=128, max_recv_wr=128, max_send_sge=1, max_recv_sge=1, max_inline_data=0)
        wanted = qp.QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=cap, sq_sig_all=1
        )
        self.pair = qp.QP(self.domain, wanted)
        near, far = tcp_pair()
        self.connection = near
        upgrade = VerbsUpgrade(made.socket(), agreement(own), connecting=False)
        offer = self.offer = upgrade.offer()
        attributes = qp.QPAttr(port_num=1)
        attributes.qp_access_flags = rights
        self.pair.to_init(attributes)
        attributes.path_mtu, attributes.dest_qp_num, attributes.rq_psn = 3, offer["number"], offer["psn"]
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4
        attributes.min_rnr_timer = 12
        gid = addr.GID(ipaddress.IPv6Address(offer["gid"]).exploded)
        path = addr.GlobalRoute(dgid=gid, sgid_index=route.gid_index, hop_limit=64)
        attributes.ah_attr = addr.AHAttr(gr=path, is_global=1, port_num=1, dlid=0)
        self.pair.to_rtr(attributes)
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry, attributes.sq_psn = 14, 6, 6, 7
        self.pair.to_rts(attributes)
        for number in range(128):
            # pyverbs wants a buffer; a WRITE leaves it alone.
            piece = wr.SGE(self.region.buf + RING + mmap.PAGESIZE, 1, self.region.lkey)
            self.pair.post_recv(wr.RecvWR(wr_id=number, num_sge=1, sg=[piece]))
        upgrade.finish({
            "number": self.pair.qp_num, "gid": route.gid, "lid": 0, "psn": 7, "mtu": 1024, "reads": 4,
            "address": self.region.buf, "rkey": self.region.rkey, "ring": RING,
        })  # fmt: skip
        self.stream = made.adopt(upgrade, far)
        self.written = 0

    def write(self, data: bytes) -> None:
        """Into the ring that the stream lends, from behind our own."""
        self.region.write(data, len(data), RING + mmap.PAGESIZE)
        piece = self.wr.SGE(self.region.buf + RING + mmap.PAGESIZE, len(data), self.region.lkey)
        request = self.wr.SendWR(num_sge=1, sg=[piece], opcode=self.enums.IBV_WR_RDMA_WRITE_WITH_IMM)
        request.send_flags = self.enums.IBV_SEND_SIGNALED
        request.imm_data = socket.htonl(len(data))  # pyverbs leaves the order of bytes to its caller
        request.set_wr_rdma(self.offer["rkey"], self.offer["address"] + self.written)
        self.pair.post_send(request)
        self.written += len(data)
        until(lambda: any(one.opcode == self.enums.IBV_WC_RDMA_WRITE for one in self.poll()), "the WRITE")

    def poll(self) -> list:
        _, found = self.queue.poll(32)
        assert all(one.status == 0 for one in found)
        return found

    def close(self) -> None:
        self.connection.close()
        for thing in (self.pair, self.queue, self.region, self.domain, self.context):
            thing.close()


def test_both_bindings_see_the_same_device() -> None:
    from pyverbs import device, enums

    ours = load().open("rxe0")
    theirs = device.Context(name="rxe0")
    facts, port = theirs.query_device(), theirs.query_port(1)
    assert [one.name.decode() for one in device.get_device_list()] == load().devices() == ["rxe0"]
    assert ours.limits.queue_pairs == facts.max_qp and ours.limits.completions == facts.max_cqe
    assert ours.limits.requests == facts.max_qp_wr and ours.limits.regions == facts.max_mr
    assert ours.limits.reads == min(facts.max_qp_rd_atom, facts.max_qp_init_rd_atom, 16)
    seen = ours.port(1)
    assert seen.active == (port.state == enums.IBV_PORT_ACTIVE) and seen.lid == port.lid
    assert seen.mtu == 128 << int(port.active_mtu)
    for index in (0, 1):
        assert ipaddress.IPv6Address(ours.gid(1, index)) == ipaddress.IPv6Address(
            theirs.query_gid(1, index).gid
        )
    theirs.close()
    ours.close()


def test_a_peer_by_pyverbs() -> None:
    """It writes frames and an announcement into the ring, and finds what the stream wrote into its own."""
    with world() as made:
        peer = Peer(made)
        try:
            peer.write(frame(b"by pyverbs"))
            assert receive(peer.stream)[0].bytes == b"by pyverbs"
            peer.stream.send(plain(b"to pyverbs"))
            until(lambda: [one for one in peer.poll() if one.opcode & 128], "the immediate data")
            size = HEADER_SIZE + len(b"to pyverbs")
            head, data = peer.region.read(size, 0)[:HEADER_SIZE], peer.region.read(size, 0)[HEADER_SIZE:]
            assert HEADER.unpack(head)[6] == 10 and data == b"to pyverbs"
            address = peer.region.buf + RING + mmap.PAGESIZE
            peer.write(frame(REFERENCE.pack(peer.region.rkey, 1, address, PAYLOAD), refers=True))
            [payload] = receive(peer.stream)
            assert payload.bytes == peer.region.read(PAYLOAD, RING + mmap.PAGESIZE)

            def reported() -> bool:
                peer.poll()
                return struct.unpack("<QQQ", peer.region.read(24, RING))[2] == 1

            until(reported, "the report that it was READ")
        finally:
            peer.close()
