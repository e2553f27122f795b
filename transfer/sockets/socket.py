"""Socket: the object that users send and receive with.

The common case of `send` and `recv` runs in the core (`SocketBase`) and never enters this file. This file
has the rest: messages of several parts, trackers, REQ, REP and ROUTER, topics, compression.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from transfer.constants import POLLIN, POLLOUT, pattern_of
from transfer.patterns import Publisher, Requester, Router, Subscriber
from transfer.patterns.base import Pattern, ReceiveMode, SendMode
from transfer.sockets import balance
from transfer.sockets.announcement import Announcing
from transfer.sockets.attributes import Strict
from transfer.sockets.connections import Connections
from transfer.sockets.endpoints import SocketEndpoints
from transfer.sockets.forward import Forwarding
from transfer.sockets.monitor import Monitor
from transfer.sockets.options import SocketOptions
from transfer.sockets.receive import Receiving, UnreadParts
from transfer.sockets.send import Sending
from transfer.sockets.unclosed import end_dropped
from transfer.tensors import TensorMethods
from transfer.transports.arguments import (
    callable_or_none,
    events_of,
    milliseconds,
    octets,
)
from transfer.transports.core.wire import MAX_DATA, SocketType
from transfer.transports.errors import Closed, ForkedError, NotSupported, ProtocolError

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.callback import SocketDispatcher
    from transfer.sockets.context import Context
    from transfer.sockets.tracker import Tracker
    from transfer.transports.core.contract import Buffer, Frame, SocketBase
else:
    SocketBase = object


class SocketMethods(
    SocketOptions, Strict, SocketEndpoints, Sending, Receiving, TensorMethods, Forwarding, Announcing
):
    """Sends and receives messages by the rules of its type (PUSH, SUB, REQ, ...).

    `Context.socket` makes one. A socket may be used from any thread. Parts sent with SNDMORE form one message
    for each thread. In a forked child every call raises ForkedError.

    Every blocking call raises Again after its timeout, and Closed if another thread closes the socket.
    """

    if TYPE_CHECKING:  # methods of the core, with the types that callers see

        @overload
        def send(
            self, data: Buffer, flags: int = ..., copy: bool = ..., track: Literal[False] = ...
        ) -> None: ...
        @overload
        def send(
            self, data: Buffer, flags: int = ..., copy: bool = ..., *, track: Literal[True]
        ) -> Tracker: ...
        @overload
        def send(
            self, data: Buffer, flags: int = ..., copy: bool = ..., track: bool = ...
        ) -> Tracker | None: ...
        def send(
            self, data: Buffer, flags: int = 0, copy: bool = True, track: bool = False
        ) -> Tracker | None:
            """Sends one part of a message to the peers that the socket's type selects.

            Args:
                data: any object with a contiguous buffer. A buffer of 64 KiB or more is sent without a copy.
                flags: DONTWAIT (do not block), SNDMORE (more parts follow), or 0.
                copy: False promises that `data` does not change until it is sent; the core then keeps a
                    reference instead of a copy.
                track: True returns a Tracker.

            Returns:
                A Tracker if `track`, else None.

            Raises:
                Again: no peer had room within `sndtimeo`, or at once with DONTWAIT.
                Closed: the socket is closed.
                StateError: the socket must receive first (REQ, REP).
                NotSupported: this type does not send.
            """

        @overload
        def recv(self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...) -> bytes: ...
        @overload
        def recv(self, flags: int = ..., *, copy: Literal[False], track: bool = ...) -> Frame: ...
        @overload
        def recv(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> bytes | Frame: ...
        def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> bytes | Frame:
            """Receives one part of a message.

            Args:
                flags: DONTWAIT (do not block), or 0.
                copy: False returns a Frame, which holds the received memory without a copy.
                track: ignored; present for pyzmq.

            Returns:
                The payload as bytes, or a Frame if `copy` is False.

            Raises:
                Again: no message arrived within `rcvtimeo`, or at once with DONTWAIT.
                Closed: the socket is closed.
                StateError: the socket must send first (REQ, REP).
                NotSupported: this type does not receive.
            """

    def __new__(cls, context: Context, socket_type: SocketType | str, pattern: Any = None) -> Self:
        make: Any = super().__new__
        if make is object.__new__:  # the pure Python core needs nothing before __init__
            return make(cls)
        modes = pattern_of(socket_type, pattern).modes()
        return make(cls, *modes, context.flusher, context.pool)  # type: ignore[no-any-return]

    def __init__(
        self, context: Context, socket_type: SocketType | str, pattern: type[Pattern] | None = None
    ) -> None:
        defaults = context.defaults
        self._pattern = pattern_of(socket_type, pattern)()
        self._values = self._initial_values(defaults)
        self._balance = None
        self._links = Connections(self, context, self._pattern)
        super().__init__(*self._pattern.modes(), context.flusher, context.pool)
        self.context = context
        self._lent = context.shared
        self.last_endpoint = ""
        self._requester = self._pattern if isinstance(self._pattern, Requester) else None
        if self._pattern.turn is not None:
            self._pattern.turn = context.core.Turn()
        if self._pattern.in_turns:
            self._turn = self._pattern.turn  # type: ignore[assignment]  # the Turn of the core
        #: parts sent with SNDMORE whose message is not complete, by thread
        self._partial: dict[int, list[OutFrame]] = {}
        self._rests: weakref.WeakSet[UnreadParts] = weakref.WeakSet()
        self._deciding = threading.RLock()
        #: messages that were received as another kind than the caller wanted; the next call returns them
        self._returned: deque[tuple[Any, list[Any], Any]] = deque()
        self._dispatcher: SocketDispatcher | None = None
        self._announced = []
        self._ending = threading.Lock()
        self._inherited = False
        self._came = threading.local()
        self._frame: type[Frame] = context.core.Frame
        if self._requester is not None and defaults.reply_timeout >= 0:
            self.receive_timeout = defaults.reply_timeout
        self._ways_changed()
        context._add(self)
        self._complete = True

    # -- waiting -------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None, flags: int = POLLIN) -> int:
        """Waits until the socket is ready to receive or to send.

        Args:
            timeout: milliseconds; None waits without limit, 0 returns at once.
            flags: POLLIN, POLLOUT, or both.

        Returns:
            The bits of `flags` that are ready; 0 after the timeout.
        """
        from transfer.sockets.poller import wait

        found = self._ready_bits(flags if flags == POLLIN else events_of(flags))
        if timeout == 0:
            return found
        if timeout is not None and type(timeout) is not int:  # checked also where the call returns at once
            timeout = milliseconds(timeout)
        if found:
            return found
        ready = wait([(self, flags)], timeout)
        return ready[0][1] if ready else 0

    @property
    def events(self) -> int:
        """POLLIN and POLLOUT, as far as the socket is ready now."""
        return self._ready_bits(POLLIN | POLLOUT)

    @property
    def fd(self) -> int:
        """A file descriptor for event loops: it becomes readable when `events` may have changed."""
        return self.fileno()

    @property
    def type(self) -> SocketType:
        return self._pattern.socket_type

    socket_type = type

    def _ready_bits(self, bits: int) -> int:
        self._check_usable()
        found = 0
        pattern = self._pattern
        if bits & POLLIN and (
            self._rest
            or self._returned
            or (pattern.may_receive() and self._readable())
            or pattern.failure is not None
        ):
            found = POLLIN
        if bits & POLLOUT and pattern.may_send() and self._may_take():
            found |= POLLOUT
        return found

    def _may_take(self) -> bool:
        return True if self._pattern.send_mode is SendMode.NONE else self._writable()

    def _fd_signals(self, bits: int) -> bool:
        """Whether the descriptor becomes readable when one of `bits` is ready, and only then."""
        if bits & POLLIN and self._pattern.receive_mode is not ReceiveMode.NONE:
            return self._pattern.may_receive()
        return not bits & POLLOUT

    # -- subscriptions, callbacks, events ------------------------------------------------------

    def subscribe(self, prefix: bytes | str = b"") -> None:
        """Subscribes to messages whose topic (or first part) begins with `prefix`.

        Subscriptions are counted: each needs its own `unsubscribe`.

        Args:
            prefix: bytes or text; empty subscribes to every message.

        Raises:
            NotSupported: the socket is not a SUB.
        """
        wanted = self._prefix(prefix)
        self._links.admission.prepare_subscribe(wanted)
        self._filter_add(wanted)
        self._links.control.subscribe(wanted, add=True)

    def unsubscribe(self, prefix: bytes | str = b"") -> None:
        """Removes one subscription that `subscribe` added.

        Args:
            prefix: as in `subscribe`.

        Raises:
            UsageError: there is no such subscription.
            NotSupported: the socket is not a SUB.
        """
        wanted = self._prefix(prefix)
        self._links.control.subscribe(wanted, add=False)
        self._filter_remove(wanted)

    def subscribers(self, topic: bytes | str | None = None) -> int:
        """Returns how many peers of this PUB receive messages of a topic.

        Args:
            topic: bytes or text; None counts the peers with any subscription.

        Raises:
            NotSupported: the socket is not a PUB.
        """
        if not isinstance(self._pattern, Publisher):
            raise NotSupported(f"a {self.type.name} has no subscribers")
        self._check_forked()
        with self._links.state.changed:
            if topic is None:
                return self._pattern.ready
            return self._pattern.wanting(octets(topic, "topic"))

    def _prefix(self, prefix: bytes | str) -> bytes:
        self._check_usable()
        if not isinstance(self._pattern, Subscriber):
            raise NotSupported(f"a {self.type.name} has no subscriptions")
        return octets(prefix, "prefix")

    def set_callback(self, callback: Callable[[list[bytes]], object] | None) -> None:
        """Calls `callback(parts)` for every received message, in one thread, one message at a time.

        If the callback raises, the error is logged and reported to the monitors, and the next message
        follows.

        Args:
            callback: a function of one list of bytes. None ends the thread, after the running call.

        Raises:
            NotSupported: this type does not receive.
        """
        self._check_usable()
        callable_or_none(callback, "callback", "the parts of a message")
        if self._pattern.receive_mode is ReceiveMode.NONE:
            raise NotSupported(f"a {self.type.name} receives nothing")
        running, self._dispatcher = self._dispatcher, None
        if running is not None:
            running.close()
        if callback is not None:
            from transfer.sockets.callback import SocketDispatcher

            self._dispatcher = SocketDispatcher(self, callback)

    def get_monitor(self) -> Monitor:
        """Returns a new Monitor, which receives every event from now on until it or the socket is closed."""
        self._check_usable()
        monitors = self._links.state.monitors

        def forget(monitor: Monitor) -> None:
            if monitor in monitors:
                monitors.remove(monitor)

        monitor = Monitor(forget)
        monitors.append(monitor)
        return monitor

    # -- the end -------------------------------------------------------------------------------

    def close(self, linger: float | None = None) -> int:
        """Flushes queued messages for at most `linger`, then closes the socket. Idempotent.

        Blocking calls of other threads raise Closed.

        Args:
            linger: milliseconds; -1 flushes without limit, None uses the option `linger`.

        Returns:
            The number of messages that were not sent; with the option `resend`, not confirmed.
        """
        lingers = self._linger_seconds(linger)
        if self._inherited or not self._ending.acquire(blocking=False):
            return 0
        self._general_send = True  # a send from now on would not be flushed
        self._end_announcements()
        deadline = time.monotonic() + lingers
        if lingers:
            self._links.flush(deadline)
        self._close_core()
        unsent = self._links.close(deadline)
        self.context.tally.socket_ended(self)
        if self._dispatcher is not None:
            self._dispatcher.close()
        return unsent

    def _linger_seconds(self, linger: float | None) -> float:
        wanted = self.linger if linger is None else milliseconds(linger, "linger")
        return _ENDLESS if wanted is None or wanted < 0 else wanted / 1000.0

    def __enter__(self) -> SocketMethods:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and not getattr(self, "_inherited", True):
            end_dropped(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._links.state.peers)} peers"
        return f"<{type(self).__name__} {self._pattern.socket_type.name} {state}>"

    def _check_forked(self) -> None:
        if self._inherited:
            raise ForkedError(
                "this socket was made before fork",
                hint="make context and socket in the child, or start processes by spawn or forkserver",
            )

    def _check_usable(self) -> None:
        self._check_forked()
        if self.closed or self._ending.locked():
            raise Closed("the socket is closed")
        if self._links.state.fatal is not None:
            raise self._links.state.fatal

    def _forked(self) -> None:
        """This object is the child's copy of a parent's socket: every call enters Python and is refused."""
        self._inherited = self._general_send = self._general_recv = True

    # -- changes of options --------------------------------------------------------------------

    @property
    def largest_message(self) -> int:
        """The limit of an arriving message, in bytes."""
        value: int = self.maxmsgsize
        return MAX_DATA if value < 0 else value

    def _limits_changed(self) -> None:
        for peer in list(self._links.state.peers.values()):
            stream = peer.stream
            stream.send_high_water = self.sndhwm
            stream.send_high_water_bytes = self.sndhwm_bytes
            stream.max_message = self.largest_message
            stream.checksum = self.checksum
        self._notify()

    def _buffers_changed(self) -> None:
        self._links.state.resize_buffers(self.sndbuf, self.rcvbuf)

    def _pattern_changed(self) -> None:
        pattern = self._pattern
        if isinstance(pattern, Requester):
            pattern.relaxed = self.req_relaxed
            pattern.correlate = self.req_correlate
        elif isinstance(pattern, Router):
            pattern.mandatory = self.router_mandatory

    def _balance_changed(self) -> None:
        self._balance = balance.made(self._values["balance"])
        self._ways_changed()

    def _checks_changed(self) -> None:
        if self._links.state.endpoints:
            self._links.schedule_checks()

    def _ways_changed(self) -> None:
        """Decides which calls the core may do alone."""
        with self._deciding:  # a thread with an older state must not undo a newer decision
            self._decide()

    def _decide(self) -> None:
        values = self._values
        pattern = self._pattern
        in_python = (
            bool(self._partial)
            or values["resend"]
            or values["compression"] is not None
            or values["conflate"]
            or self._balance is not None
            or self._inherited
            or self._ending.locked()
            # without a peer the error must name the missing peer and its endpoint
            or (not self._links.state.peers and pattern.send_mode is not SendMode.FANOUT)
        )
        receives_in_python = any(self._rests) or bool(self._returned) or values["conflate"] or self._inherited
        self._lockstep = self._turn is not None and not in_python and not receives_in_python
        self._in_python = in_python
        self._general_send = pattern.ordered or in_python or pattern.send_mode is SendMode.NONE
        noted = pattern.ordered or self._links.state.positions is not None
        self._general_recv = noted or receives_in_python or pattern.receive_mode is ReceiveMode.NONE

    # -- hooks of the core ---------------------------------------------------------------------

    def _on_control(self, stream: Any, frame: Frame) -> None:
        self._links.control.arrived(stream, frame)

    def _send_orphans(self) -> None:
        self._links.loss.give_orphans()

    def _on_refused(self, stream: Any, error: ProtocolError) -> None:
        self._links.loss.send_refusal(stream, error)

    def _on_lost(self, stream: Any, error: BaseException) -> None:
        self._links.loss.lost(stream, error)


#: seconds that stand for an endless linger, so that no wait is endless
_ENDLESS = 3600.0


@functools.cache
def socket_class(core: Any) -> type[SocketMethods]:
    """The Socket over a core: the compiled one, or the pure Python one."""
    made = {"__module__": __name__, "__doc__": SocketMethods.__doc__}
    return type("Socket", (SocketMethods, core.SocketBase), made)


def socket_of(module: str, over: Callable[[Any], type]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module with a class `Socket`. It loads the core only when that name is
    used, so that a test can replace the core."""

    def look_up(name: str) -> Any:
        if name != "Socket":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from transfer.transports import core

        return over(core)

    return look_up


if TYPE_CHECKING:
    Socket = SocketMethods
else:
    __getattr__ = socket_of(__name__, socket_class)
