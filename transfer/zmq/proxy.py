"""Proxies: send the messages that one socket receives with the other, until the context is terminated."""

from __future__ import annotations

import itertools
import struct
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from transfer.transports.arguments import wrong
from transfer.transports.errors import Again, NotSupported, StateError
from transfer.zmq.constants import DeviceType, PollEvent, SocketType
from transfer.zmq.derived import plain_socket
from transfer.zmq.poll import Poller

if TYPE_CHECKING:
    from transfer.zmq.socket import Socket

__all__ = ["device", "proxy", "proxy_steerable"]

#: messages in one direction before the other direction has its turn
_BURST = 100
_COUNTER = struct.Struct("=Q")
_SENDS_ONLY = frozenset({SocketType.PUSH, SocketType.PUB})
_RECEIVES_ONLY = frozenset({SocketType.PULL, SocketType.SUB})
_DONTWAIT = 1


class _Flow:
    """One direction, and its counts."""

    def __init__(self, source: Any, target: Any) -> None:
        self.source = source
        self.target = target
        self.counts = [0, 0, 0, 0]  # messages and bytes in, messages and bytes out

    def has_room(self) -> bool:
        """Whether a message can be sent. A REP that answers itself can only after it received: not asked."""
        return self.source is self.target or bool(self.target.poll(0, PollEvent.POLLOUT))

    @property
    def possible(self) -> bool:
        return self.source.type not in _SENDS_ONLY and self.target.type not in _RECEIVES_ONLY

    def carry(self, capture: Any) -> None:
        """Forwards available messages while the target has room, up to a burst. Raises ContextTerminated."""
        for _ in range(_BURST):
            if not self.has_room():
                return
            try:
                frames = self.source.recv_frames(_DONTWAIT)
            except Again:
                return
            parts = [_outgoing(frame) for frame in frames]
            if capture is not None:
                capture.send_frames(parts)
            self.target.send_frames(parts, copy=False)
            size = sum(len(part[0] or b"") + len(part[3]) for part in parts)
            self.counts = [count + more for count, more in zip(self.counts, (1, size, 1, size), strict=True)]


def _outgoing(frame: Any) -> tuple[bytes | None, bytes | None, int, Any]:
    """Returns a frame unchanged: tensors and compressed data stay as they are."""
    if type(frame) is bytes:
        return None, None, 0, frame
    return frame.topic, frame.meta, frame.flags, frame.data


def proxy(frontend: Socket, backend: Socket, capture: Socket | None = None) -> None:
    """Forwards messages both ways, as far as the socket types allow, and copies each to `capture`.

    Never returns; raises ContextTerminated when the context is terminated.
    """
    _run(frontend, backend, capture, None)


def proxy_steerable(
    frontend: Socket, backend: Socket, capture: Socket | None = None, control: Socket | None = None
) -> None:
    """As `proxy`, controlled by messages on `control`: PAUSE, RESUME, STATISTICS, TERMINATE.

    Returns after TERMINATE. The reply to STATISTICS has eight parts of 64 bits: messages and bytes
    received and sent by the frontend, then by the backend.
    """
    _run(frontend, backend, capture, control)


def device(device_type: DeviceType, frontend: Socket, backend: Socket) -> None:
    """The old name of `proxy`."""
    proxy(frontend, backend)


def _run(frontend: Any, backend: Any, capture: Any, control: Any) -> None:
    for sock in filter(lambda given: given is not None, (frontend, backend, capture, control)):
        if not hasattr(sock, "recv_frames"):
            raise wrong("what a proxy joins", sock, "sockets of one context of transfer.zmq")
    for sock in (frontend, backend):
        if hasattr(sock, "_transfer_watch") or iscoroutinefunction(sock.recv):
            raise NotSupported("a proxy blocks: give it sockets of a plain Context")
    # As in libzmq, methods of subclasses are not called.
    frontend, backend, capture, control = map(plain_socket, (frontend, backend, capture, control))
    ends = [(frontend, backend)] if frontend is backend else [(frontend, backend), (backend, frontend)]
    flows = [flow for flow in itertools.starmap(_Flow, ends) if flow.possible]
    if not flows:
        raise StateError("neither socket could send what the other receives")
    paused = False
    while True:
        ready = _wait(flows, control, paused)
        if control is not None and control in ready:
            command = control.recv()
            if command == b"TERMINATE":
                return
            if command == b"STATISTICS":
                control.send_multipart(_statistics(flows, frontend))
            elif command in (b"PAUSE", b"RESUME"):
                paused = command == b"PAUSE"
        for flow in flows:
            if flow.source in ready:
                flow.carry(capture)


def _wait(flows: list[_Flow], control: Any, paused: bool) -> set[Any]:
    """Returns the sockets with messages. A source whose target is full is not polled."""
    poller = Poller()
    if control is not None:
        poller.register(control, PollEvent.POLLIN)
    blocked = []
    for flow in () if paused else flows:
        if flow.has_room():
            poller.register(flow.source, PollEvent.POLLIN)
        else:
            blocked.append(flow)
    for flow in blocked:
        # One socket is often a source and a target: ask for both events then.
        wanted = PollEvent.POLLIN if flow.target in poller else 0
        poller.register(flow.target, wanted | PollEvent.POLLOUT)
    return {sock for sock, bits in poller.poll() if bits & PollEvent.POLLIN}


def _statistics(flows: list[_Flow], frontend: Any) -> list[bytes]:
    received: dict[Any, list[int]] = {}
    sent: dict[Any, list[int]] = {}
    for flow in flows:
        received[flow.source is frontend] = flow.counts[:2]
        sent[flow.target is frontend] = flow.counts[2:]
    order = [side.get(front, [0, 0]) for front in (True, False) for side in (received, sent)]
    return [_COUNTER.pack(count) for pair in order for count in pair]
