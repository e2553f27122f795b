"""A transport that wraps another and damages its data.

A relay in this process, with its own thread, stands between the connecting side and the real connection. It
can cut, delay, stall, corrupt a byte, and pass a few bytes at a time.

    with FaultyTransport(TcpTransport(), there=Faults(cut_after=1000)) as transport:
        reach(reactor, transport, address, ...)
        transport.arm(there=Faults(stall_after=0))     # from now on, counted from now on
        transport.cut()                                # all connections, at once
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from transfer.transports.address import Address
from transfer.transports.base import Capabilities, Listener, Transport
from transfer.transports.errors import Closed, NotSupported
from transfer.transports.reactor import EDGE, READABLE, WRITABLE, Reactor, Timer
from transfer.transports.tcp import connect_error

#: bytes that the relay reads before it has passed them on: few, so that senders get backpressure
_HELD = 64 * 1024
#: for the relay's own connect, in seconds
_PATIENCE = 5.0
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER of no time: the peer sees a reset


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of the bytes of one direction; positions count from the last `arm`.

    cut_after: both ends are reset after so many bytes. stall_after: no byte passes after so many,
    and the connection stays open. corrupt_at: the byte at this position is inverted. delay: each
    piece passes so many seconds later. chunk: at most so many bytes pass at a time.
    """

    cut_after: int | None = None
    stall_after: int | None = None
    corrupt_at: int | None = None
    delay: float = 0.0
    chunk: int = _HELD


class FaultyTransport(Transport):
    """Damages the connections that `start_connect` makes; `listen` is the inner transport's.

    there: from the connecting side to the accepting one. back: the other way. buffer: kernel
    buffers of the relay's socket pair, in bytes, small ones force short writes; 0: the system's.
    Thread-safe. `close` ends the relay and its connections; it is a context manager too.
    """

    def __init__(
        self, inner: Transport, *, there: Faults | None = None, back: Faults | None = None, buffer: int = 0
    ) -> None:
        if not inner.capabilities.has_socket:
            raise NotSupported(f"{inner.scheme} has no descriptors that a relay could stand between")
        self.inner = inner
        self._there = there or Faults()
        self._back = back or Faults()
        self._buffer = buffer
        self._reactor = Reactor("transfer-faults")
        self._links: set[_Link] = set()

    @property
    def scheme(self) -> str:  # type: ignore[override]
        return self.inner.scheme

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self.inner.capabilities

    @property
    def connections(self) -> int:
        """The number of connections through the relay."""
        return len(self._links)

    def listen(self, address: Address, *, backlog: int = 1024) -> Listener:
        return self.inner.listen(address, backlog=backlog)

    def start_connect(self, address: Address) -> socket.socket:
        """Waits for the real connection (5 s at most), so that a refusal is reported as by the inner one."""
        far = _connected(self.inner.start_connect(address), address)
        near, given = socket.socketpair()
        for end in (near, given):
            end.setblocking(False)
            if self._buffer:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
        link = _Link(self._reactor, near, far, self._there, self._back, self._links.discard)
        self._links.add(link)
        self._reactor.call_soon(link.start)
        return given

    def arm(self, *, there: Faults | None = None, back: Faults | None = None) -> None:
        """Sets other faults, for present and later connections; None: unchanged. The count restarts."""
        self._there, self._back = there or self._there, back or self._back
        for link in list(self._links):
            self._reactor.call_soon(link.arm, there, back)

    def cut(self) -> None:
        """Resets every connection soon."""
        for link in list(self._links):
            self._reactor.call_soon(link.end, True)

    def close(self) -> None:
        """Idempotent; joins the relay's thread."""
        self._reactor.close()
        for link in list(self._links):
            link.end(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connected(started: socket.socket, address: Address) -> socket.socket:
    """The socket once it is connected. Raises Broken."""
    poll = select.poll()
    poll.register(started.fileno(), WRITABLE)
    code = errno.ETIMEDOUT
    if poll.poll(_PATIENCE * 1000):
        code = started.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        started.close()
        raise connect_error(code, address)
    return started


class _Flow:
    """One direction: reads from `source`, and writes to `target` when the bytes are due."""

    def __init__(self, source: socket.socket, target: socket.socket, faults: Faults) -> None:
        self.source = source
        self.target = target
        self.faults = faults
        self.passed = 0  # bytes taken since the last `arm`
        self.held: deque[tuple[float, bytearray]] = deque()  # (when due, bytes)
        self.size = 0
        self.ended = False  # the source sends no more
        self.done = False  # and the target was shut down

    @property
    def stalled(self) -> bool:
        limit = self.faults.stall_after
        return limit is not None and self.passed >= limit

    @property
    def wants(self) -> bool:
        return not self.ended and not self.stalled and self.size < _HELD

    def due(self, now: float) -> bool:
        return bool(self.held) and self.held[0][0] <= now

    def take(self, now: float) -> bool:
        """Reads once; True if there were bytes."""
        if not self.wants:
            return False
        faults = self.faults
        most = min(faults.chunk, _HELD)
        for limit in (faults.cut_after, faults.stall_after):
            most = most if limit is None else min(most, limit - self.passed)
        if most <= 0:
            return False
        data = bytearray(self.source.recv(most))
        if not data:
            self.ended = True
            return True
        at = -1 if faults.corrupt_at is None else faults.corrupt_at - self.passed
        if 0 <= at < len(data):
            data[at] ^= 0xFF
        self.passed += len(data)
        self.size += len(data)
        self.held.append((now + faults.delay, data))
        return True

    def give(self, now: float) -> bool:
        """Writes due bytes once, or passes on the end of the source; True if it did so."""
        if self.due(now):
            data = self.held[0][1]
            sent = self.target.send(data[: self.faults.chunk])
            self.size -= sent
            del data[:sent]
            if not data:
                self.held.popleft()
            return True
        if self.ended and not self.held and not self.done:
            self.done = True
            self.target.shutdown(socket.SHUT_WR)
            return True
        return False

    @property
    def is_cut(self) -> bool:
        limit = self.faults.cut_after
        return limit is not None and self.passed >= limit and not self.held


class _Link:
    """One connection through the relay. All but its construction runs in the relay's thread."""

    def __init__(
        self,
        reactor: Reactor,
        near: socket.socket,
        far: socket.socket,
        there: Faults,
        back: Faults,
        on_end: Callable[[_Link], object],
    ) -> None:
        self._reactor = reactor
        self._ends = (near, far)
        self._flows = (_Flow(near, far, there), _Flow(far, near, back))
        self._timer: Timer | None = None
        self._on_end = on_end
        self._over = False

    def start(self) -> None:
        for end in self._ends:
            # Edges: a stalled flow leaves its source readable.
            self._reactor.register(end.fileno(), READABLE | WRITABLE | EDGE, self._turn)
        self._turn()

    def arm(self, there: Faults | None, back: Faults | None) -> None:
        for flow, faults in zip(self._flows, (there, back), strict=True):
            if faults is not None:
                flow.faults, flow.passed = faults, 0
        self._turn()

    def end(self, abort: bool) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for end in self._ends:
            self._reactor.unregister(end.fileno())
            if abort and end.family != socket.AF_UNIX:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            end.close()
        self._on_end(self)

    # ------------------------------------------------------------------------------------------

    def _turn(self, _events: int = 0) -> None:
        if self._over:
            return
        # One time for the whole turn: bytes that are not due now must not be due in `_wait`.
        now = time.monotonic()
        try:
            moved = [_try(step, now) for flow in self._flows for step in (flow.take, flow.give)]
        except OSError:  # one end is gone, so the other is closed too
            self.end(True)
            return
        if any(flow.is_cut for flow in self._flows):
            self.end(True)
        elif all(flow.done for flow in self._flows):
            self.end(False)
        elif any(moved):
            with contextlib.suppress(Closed):  # the transport closes at this moment, and ends this link
                self._reactor.call_soon(self._turn)  # other connections have their turn in between
        else:
            self._wait(now)

    def _wait(self, now: float) -> None:
        """Sets the only timer to the time when the first delayed piece is due."""
        due = [flow.held[0][0] for flow in self._flows if flow.held and not flow.due(now)]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            self._timer = self._reactor.call_later(min(due) - time.monotonic(), self._turn)


def _try(step: Callable[[float], bool], now: float) -> bool:
    try:
        return step(now)
    except BlockingIOError:
        return False
