"""pyzmq, as in its guide: default limits, `copy=False` for large payloads; and zmq.asyncio."""

from __future__ import annotations

from functools import partial
from typing import Any

import zmq

from bench.peers.base import Channel, Peer, Role, host_of, patience_of, use_bare
from bench.work import Skipped, Work

KINDS = {
    Role.PUSH: zmq.PUSH,
    Role.PULL: zmq.PULL,
    Role.REQ: zmq.REQ,
    Role.REP: zmq.REP,
    # XPUB is PUB with readable subscriptions, so that the start can wait for all of them
    Role.PUB: zmq.XPUB,
    Role.SUB: zmq.SUB,
    Role.PAIR: zmq.PAIR,
    Role.PAIR_BOUND: zmq.PAIR,
}


class Pyzmq(Peer):
    name = "pyzmq"
    silence = (zmq.Again,)

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        socket = self._socket(self._context(work), role, work)
        return use_bare(self._place(socket, work, address), work)

    def open_async(self, role: Role, work: Work, address: str = "") -> Channel:
        import zmq.asyncio

        # its timeouts start a timer in the loop for every waiting call; users do without
        socket = zmq.asyncio.Context().socket(KINDS[role])
        channel = self._place(socket, work, address)
        channel.send, channel.recv = socket.send, socket.recv
        return channel

    def open_tensor(self, role: Role, work: Work, address: str = "") -> Channel:
        """The guide's recipe: a small header (msgspec) and the array as the second part."""
        import msgspec
        import numpy

        channel = self.open(role, work, address)
        send_parts = partial(channel.socket.send_multipart, copy=False)
        recv_parts = partial(channel.socket.recv_multipart, copy=False)
        encode = msgspec.msgpack.Encoder().encode
        decode = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...]]).decode

        def send(array: Any) -> None:
            send_parts([encode((array.dtype.str, array.shape)), array])

        def recv() -> Any:
            head, data = recv_parts()
            dtype, shape = decode(head.buffer)
            return numpy.frombuffer(data.buffer, dtype).reshape(shape)

        channel.send, channel.recv = send, recv
        return channel

    def open_tensors(self, role: Role, work: Work, address: str = "") -> Channel:
        import msgspec
        import numpy

        channel = self.open(role, work, address)
        send_parts = partial(channel.socket.send_multipart, copy=False)
        recv_parts = partial(channel.socket.recv_multipart, copy=False)
        encode = msgspec.msgpack.Encoder().encode
        decode = msgspec.msgpack.Decoder(list[tuple[str, str, tuple[int, ...]]]).decode

        def send(tensors: dict[str, Any]) -> None:
            head = [(name, array.dtype.str, array.shape) for name, array in tensors.items()]
            send_parts([encode(head), *tensors.values()])

        def recv() -> dict[str, Any]:
            frames = recv_parts()
            return {
                name: numpy.frombuffer(frame.buffer, dtype).reshape(shape)
                for (name, dtype, shape), frame in zip(decode(frames[0].buffer), frames[1:], strict=True)
            }

        channel.send, channel.recv = send, recv
        return channel

    def _context(self, work: Work) -> zmq.Context[Any]:
        context: zmq.Context[Any] = zmq.Context.instance()
        if work.case == "connections":
            context.set(zmq.MAX_SOCKETS, 2 * work.count)
        return context

    def _socket(self, context: zmq.Context[Any], role: Role, work: Work) -> Any:
        socket = context.socket(KINDS[role])
        milliseconds = int(patience_of(work) * 1000)
        socket.setsockopt(zmq.RCVTIMEO, milliseconds)
        socket.setsockopt(zmq.SNDTIMEO, milliseconds)
        socket.setsockopt(zmq.LINGER, 0)
        if "high_water" in work.params:
            socket.set_hwm(work.params["high_water"])
        if work.case == "connections":
            socket.setsockopt(zmq.BACKLOG, 4096)
        if role is Role.PUB:
            # else only the first of several equal subscriptions is reported
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        if role is Role.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket

    def _place(self, socket: Any, work: Work, address: str) -> Channel:
        if address:
            socket.connect(address)
        else:
            socket.bind(f"tcp://{host_of(work)}:0")
            address = socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")

        def ready(peers: int) -> None:
            if socket.type == zmq.XPUB:
                for _ in range(peers):
                    if socket.recv() != b"\x01":
                        raise Skipped("an unexpected subscription")

        return Channel(address=address, ready=ready, close=socket.close, socket=socket)
