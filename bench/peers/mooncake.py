"""Mooncake's RpcInterface over TCP: `send_data` is a call that returns when the other side has it.

`send_data_async` of the released package aborts in its Python binding (a reference taken without the GIL), so
the blocking call is compared.
"""

from __future__ import annotations

import ctypes
import queue
import socket as sockets
from pathlib import Path
from typing import Any

from bench.peers.base import Channel, Peer, Role, host_of
from bench.work import PATIENCE, Skipped, Work


class Mooncake(Peer):
    name = "mooncake"

    def __init__(self) -> None:
        import mooncake.engine

        _silence_log()
        self._engine: Any = mooncake.engine

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        if role is Role.PULL:
            return self._server(work)
        if role is Role.PUSH:
            return self._client(address)
        raise Skipped("mooncake: data goes one way, the reply is fixed")

    def _server(self, work: Work) -> Channel:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        interface = self._engine.RpcInterface()
        address = f"{host_of(work)}:{_free_port(host_of(work))}"
        if not interface.initialize_server(address, 2, int(PATIENCE)):
            raise Skipped("mooncake: the server did not initialise")
        interface.set_data_receive_callback(arrived.put)
        if not interface.start_server_async():
            raise Skipped("mooncake: the server did not start")

        def recv() -> bytes:
            data: bytes = arrived.get(timeout=PATIENCE)["data"]
            return data

        return Channel(address=address, recv=recv, close=interface.stop_server, socket=interface)

    def _client(self, address: str) -> Channel:
        interface = self._engine.RpcInterface()
        if not interface.initialize_client(10, int(PATIENCE)):
            raise Skipped("mooncake: the client did not initialise")
        send_data = interface.send_data

        def send(data: bytes) -> None:
            if send_data(address, data) != 0:
                raise OSError("mooncake: send_data failed")

        return Channel(address=address, send=send, socket=interface)


def _silence_log() -> None:
    """Silences its log: it logs four lines for each message, which would be measured, too."""
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    for path in {line.split()[-1] for line in loaded if "libglog" in line}:
        ctypes.c_int32.in_dll(ctypes.CDLL(path), "_ZN3fLI17FLAGS_minloglevelE").value = 3


def _free_port(host: str) -> int:
    """Returns a port that was free a moment ago: the interface cannot report a chosen one."""
    with sockets.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
