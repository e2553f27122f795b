"""The sockets of `transfer`, through the public API and with its defaults."""

from __future__ import annotations

import os
from typing import Any

from bench.peers.base import Channel, Peer, Role, host_of, patience_of, use_bare
from bench.work import PATIENCE, Skipped, Work

KINDS = {
    Role.PUSH: "PUSH",
    Role.PULL: "PULL",
    Role.REQ: "REQ",
    Role.REP: "REP",
    Role.PUB: "PUB",
    Role.SUB: "SUB",
    Role.PAIR: "PAIR",
    Role.PAIR_BOUND: "PAIR",
}


def set_ucx_transports(work: Work) -> None:
    """Sets the environment of UCX, which reads it once when it is loaded."""
    os.environ["UCX_TLS"] = work.params.get("tls", "tcp")
    os.environ.setdefault("UCX_LOG_LEVEL", "error")


class Transfer(Peer):
    """`spin_us` > 0 lets a receiver spin so long before it sleeps; `pure` uses the Python core.

    transport: the only transport to use: tcp, local, ucx, rdma. secure: by mutual TLS.
    """

    name = "transfer"

    def __init__(
        self, spin_us: int = 0, pure: bool = False, transport: str = "tcp", secure: bool = False
    ) -> None:
        # Both ends are on one host: without this it would use shared memory.
        os.environ["TRANSFER_LOCAL"] = "on" if transport == "local" else "off"
        if transport in ("ucx", "rdma"):
            os.environ["TRANSFER_PROTOCOL"] = transport
        self._transport = transport
        self._secure = secure
        if pure:
            os.environ["TRANSFER_CORE"] = "pure"
        import transfer
        from transfer.transports import core

        wanted = "pure" if pure else "native"
        if wanted != core.IMPLEMENTATION:
            raise Skipped(f"the {wanted} core is not in use: {core.REASON or core.IMPLEMENTATION}")
        self._transfer: Any = transfer
        self.silence = (transfer.Again,)
        self._spin_us = spin_us

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        self._prepare(work)
        socket = self._socket(self._transfer.Context.instance(), role, work)
        return use_bare(self._place(socket, work, address), work)

    def open_tensor(self, role: Role, work: Work, address: str = "") -> Channel:
        channel = self.open(role, work, address)
        channel.send, channel.recv = channel.socket.send_tensor, channel.socket.recv_tensor
        return channel

    def open_tensors(self, role: Role, work: Work, address: str = "") -> Channel:
        channel = self.open(role, work, address)
        socket = channel.socket
        channel.send = socket.send_tensors
        channel.recv = lambda: socket.recv_tensors()[0]
        return channel

    def open_async(self, role: Role, work: Work, address: str = "") -> Channel:
        import transfer.asyncio

        self._prepare(work)
        socket = transfer.asyncio.Context().socket(self._kind(role))
        channel = self._place(socket, work, address)
        channel.send, channel.recv = socket.send, socket.recv
        return channel

    def _prepare(self, work: Work) -> None:
        if self._transport == "ucx":
            set_ucx_transports(work)
        if self._secure:
            from bench.cases.tls import set_security

            set_security(work)

    def _kind(self, role: Role) -> Any:
        return getattr(self._transfer, KINDS[role])

    def _socket(self, context: Any, role: Role, work: Work) -> Any:
        socket = context.socket(self._kind(role))
        socket.sndtimeo = socket.rcvtimeo = int(patience_of(work) * 1000)
        socket.linger = 0
        if "high_water" in work.params:
            socket.hwm = work.params["high_water"]
            if work.params["high_water"] == 0:
                socket.sndhwm_bytes = 0
        if self._spin_us:
            socket.spin_us = self._spin_us
        if work.case == "connections":
            socket.backlog = 4096
        if role is Role.SUB:
            socket.subscribe(b"")
        return socket

    def _place(self, socket: Any, work: Work, address: str) -> Channel:
        if address:
            socket.connect(address)
        else:
            socket.bind(f"tcp://{host_of(work)}:0")
            address = socket.last_endpoint

        def ready(peers: int) -> None:
            socket.wait_for_peers(peers, PATIENCE)
            used = {peer.transport for peer in socket.peers()}
            if used != {self._transport}:
                raise Skipped(f"the transport is {used}: {socket.peers()[0].reason}")

        return Channel(address=address, ready=ready, close=socket.close, socket=socket)
