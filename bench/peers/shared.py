"""For the cases on one host: hand-written code over multiprocessing.shared_memory."""

from __future__ import annotations

from multiprocessing.connection import Client, Listener
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from bench.peers.base import Channel, Peer, Role, nothing
from bench.work import Skipped, Work

#: payloads in flight at a time
SLOTS = 2


class Shared(Peer):
    """Hand-written code: arrays are copied into shared memory with SLOTS places, a Unix socket announces
    them, and the receiver gets a view that is valid until it receives again."""

    name = "shared_memory"

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        raise Skipped("shared memory carries arrays only")

    def open_tensor(self, role: Role, work: Work, address: str = "") -> Channel:
        return self._receiving(work) if role is Role.PULL else self._sending(work, address)

    def _receiving(self, work: Work) -> Channel:
        import numpy

        memory = SharedMemory(create=True, size=SLOTS * work.size)
        listener = Listener(family="AF_UNIX")
        arrays = [
            numpy.frombuffer(memory.buf, numpy.float32, work.size // 4, slot * work.size)
            for slot in range(SLOTS)
        ]
        for array in arrays:
            array.fill(0)
        channel = Channel(address=f"{memory.name} {listener.address}", socket=[memory, listener])

        def ready(_: int) -> None:
            connection = listener.accept()
            memory.unlink()  # both have it mapped: nothing is left however they end
            channel.socket.append(connection)
            held: list[int] = []

            def recv() -> Any:
                while held:
                    connection.send_bytes(bytes([held.pop()]))
                held.append(connection.recv_bytes()[0])
                return arrays[held[0]]

            channel.recv = recv

        channel.ready = ready
        return channel

    def _sending(self, work: Work, address: str) -> Channel:
        import numpy

        name, where = address.split(" ", 1)
        memory = SharedMemory(name=name)
        connection = Client(where, family="AF_UNIX")
        arrays = [
            numpy.frombuffer(memory.buf, numpy.float32, work.size // 4, slot * work.size)
            for slot in range(SLOTS)
        ]
        free = list(range(SLOTS))

        def send(tensor: Any) -> None:
            slot = free.pop() if free else connection.recv_bytes()[0]
            numpy.copyto(arrays[slot], tensor.reshape(-1))
            connection.send_bytes(bytes([slot]))

        return Channel(send=send, ready=nothing, close=nothing, socket=[memory, connection])
