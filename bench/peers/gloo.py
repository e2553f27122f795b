"""gloo through torch.distributed: send and recv of a tensor with a known shape."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

from bench.peers.base import Channel, Peer, Role, host_of
from bench.work import PATIENCE, Skipped, Work

PATIENT = datetime.timedelta(seconds=PATIENCE)


class Gloo(Peer):
    name = "gloo"

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        """Sends bytes as a uint8 tensor over them, and receives into one tensor again and again."""
        if role not in (Role.PUSH, Role.PULL):
            raise Skipped("gloo: only send and recv between two ranks are comparable")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        bound = not address
        if bound:
            # the store's server must exist before its port is known; rank 1 joins in `ready`
            store = dist.TCPStore(host_of(work), 0, is_master=True, wait_for_workers=False, timeout=PATIENT)
            address = f"{host_of(work)}:{store.port}"
        else:
            host, port = address.rsplit(":", 1)
            store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=PATIENT)
        rank = 0 if bound else 1

        def ready(_: int) -> None:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=PATIENT)

        buffer = torch.empty(work.size, dtype=torch.uint8)

        def recv() -> Any:
            dist.recv(buffer, 1 - rank)
            return buffer

        return Channel(address=address, send=self._sender(1 - rank), recv=recv, ready=ready, socket=store)

    def open_tensor(self, role: Role, work: Work, address: str = "") -> Channel:
        return self.open(role, work, address)

    def _sender(self, rank: int) -> Any:
        last: Any = None
        tensor: Any = None

        def send(data: Any) -> None:
            # the same object is sent again and again, so it is converted to a tensor once
            nonlocal last, tensor
            if data is not last:
                last, tensor = data, torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.send(tensor, rank)

        return send
