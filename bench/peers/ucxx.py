"""UCX for the cases of bench/cases/ucx.py: ucxx by asyncio, ucxx by its lowest loop.

All of them exchange addresses through the benchmark's pipes. `UCX_TLS` is set for the process before UCX is
loaded. ucxx runs in blocking progress mode, as its users do that need little CPU.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from bench.peers.base import Channel, Peer, Role, nothing
from bench.peers.ours import set_ucx_transports
from bench.work import PATIENCE, Work

#: requests in flight in the lowest loop, as in ucxx's own benchmarks
WINDOW = 16


class Low(Peer):
    """Tag messages with the worker's calls: progress, arm, epoll. One peer, fixed sizes."""

    name = "ucxx-low"

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        set_ucx_transports(work)
        from ucxx._lib import libucxx as ucx
        from ucxx._lib.arr import Array

        context = ucx.UCXContext({}, (ucx.Feature.TAG, ucx.Feature.WAKEUP))
        worker = ucx.UCXWorker(context)
        worker.init_blocking_progress_mode()
        channel = Channel(address=worker.address.tobytes().hex(), socket=(context, worker))
        wait = _waiter(worker, select.epoll())
        tag = ucx.UCXXTag(1)

        def meet(theirs: str) -> None:
            peer = ucx.UCXAddress.create_from_buffer(bytearray(bytes.fromhex(theirs)))
            endpoint = worker.create_endpoint_from_worker_address(peer, True)
            channel.socket = context, worker, endpoint
            channel.send = _sender(endpoint, tag, wait, Array, 1 if role in (Role.REQ, Role.REP) else WINDOW)
            channel.recv = _receiver(endpoint, tag, wait, Array, work.size)

        channel.ready = nothing
        channel.socket = meet
        return channel


def _waiter(worker: Any, poll: Any) -> Callable[[Any], None]:
    poll.register(worker.epoll_file_descriptor, select.EPOLLIN)
    step, arm = worker.progress_once, worker.arm

    def wait(request: Any) -> None:
        while not request.completed:
            if not step() and not request.completed and arm():
                poll.poll(PATIENCE)

    return wait


def _sender(endpoint: Any, tag: Any, wait: Callable[[Any], None], array: Any, window: int) -> Any:
    under_way: deque[tuple[Any, Any]] = deque()

    def send(data: Any) -> None:
        while len(under_way) >= window:
            wait(under_way[0][0])
            under_way.popleft()[0].check_error()
        kept = array(data)
        under_way.append((endpoint.tag_send(kept, tag), kept))

    def flush() -> None:
        while under_way:
            wait(under_way[0][0])
            under_way.popleft()[0].check_error()

    send.flush = flush  # type: ignore[attr-defined]
    return send


def _receiver(endpoint: Any, tag: Any, wait: Callable[[Any], None], array: Any, size: int) -> Any:
    """Receives into a new buffer for each message, as a library must."""

    def recv() -> Any:
        memory = bytearray(size)
        request = endpoint.tag_recv(array(memory), tag)
        wait(request)
        request.check_error()
        return memory

    return recv


async def by_asyncio(
    role: Role,
    work: Work,
    report: Callable[[Any], None],
    receive: Callable[[], Any],
    part: Callable[..., Any],
) -> Any:
    """Runs `part(send, recv)`, a coroutine, over a connected ucxx endpoint in blocking mode."""
    set_ucx_transports(work)
    import ucxx

    ucxx.init(progress_mode="blocking", enable_python_future=False)
    if role in (Role.PULL, Role.REP):
        met: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def handler(endpoint: Any) -> None:
            met.set_result(endpoint)
            await over.wait()

        listener = ucxx.create_listener(handler)
        report(listener.port)
        endpoint = await asyncio.wait_for(met, PATIENCE)
        try:
            return await part(*_calls(endpoint, work))
        finally:
            over.set()
    port = receive()
    endpoint = await ucxx.create_endpoint("127.0.0.1", port)
    return await part(*_calls(endpoint, work))


def _calls(
    endpoint: Any, work: Work
) -> tuple[Callable[[Any], Coroutine[Any, Any, Any]], Callable[[], Coroutine[Any, Any, Any]]]:
    async def recv() -> Any:
        memory = bytearray(work.size)
        await endpoint.recv(memory)
        return memory

    return endpoint.send, recv
