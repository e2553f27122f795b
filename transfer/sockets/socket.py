"""Socket: the object that users send and receive with.

The common case of `send`, `recv` and their forms for several parts runs in the core (`SocketBase`) and never
enters this file. This file has the rest: trackers, REQ and REP, topics, compression.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from transfer.constants import DONTWAIT, POLLIN, POLLOUT, SNDMORE, pattern_of
from transfer.json_text import decoder
from transfer.patterns import Publisher, Replier, Requester, Router, Subscriber, XPublisher, XSubscriber
from transfer.patterns.base import Pattern, ReceiveMode, SendMode
from transfer.sockets import options, peer_preference
from transfer.sockets.attributes import check_name
from transfer.sockets.binding import Binding, endpoint_text
from transfer.sockets.connections import Connections
from transfer.sockets.directories import announce
from transfer.sockets.gpu_peers import capabilities_of, note_gpu, note_gpu_received, want_gpu
from transfer.sockets.lockstep import RECEIVING, SENDING, enter
from transfer.sockets.made_once import made_once
from transfer.sockets.monitor import Monitor
from transfer.sockets.parts import (
    as_bytes,
    as_frames,
    encoded,
    frame_to_send,
    json_of,
    owned_frame,
    pour_frame,
    whole_parts,
)
from transfer.sockets.sender import MessageSender
from transfer.sockets.threads import SocketThreads
from transfer.sockets.tracker import Tracker
from transfer.sockets.unclosed import end_dropped
from transfer.sockets.upstream_sender import UpstreamSender
from transfer.tensors import TensorMethods
from transfer.transports.arguments import (
    callable_or_none,
    decoder_of,
    events_of,
    flags_of,
    milliseconds,
    octets,
    seconds,
    text,
    whole,
    wrong,
)
from transfer.transports.base import Capabilities
from transfer.transports.core.copies import room_in
from transfer.transports.core.wire import MAX_DATA, Flag, SocketType
from transfer.transports.errors import (
    Again,
    ArgumentError,
    ForkedError,
    NotSupported,
    OptionError,
    ProtocolError,
    UsageError,
)
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.broker.clients.registry import RegisteredName
    from transfer.patterns.base import OutFrame
    from transfer.sockets.callback import SocketDispatcher
    from transfer.sockets.context import Context
    from transfer.sockets.peer import PeerInfo
    from transfer.transports.address import Address
    from transfer.transports.core.contract import Buffer, Frame, Sink, SocketBase, SocketThread

    class Base(SocketBase, TensorMethods): ...
else:
    Base = object

T = TypeVar("T")

#: milliseconds after which a REQ checks whether the peer that has its request is still connected
_LOOK = 50
#: seconds between two checks of `wait_for_peers` on a SUB, whose acknowledgements arrive with the data
_ACK_CHECK = 0.005
#: seconds that stand for an endless linger, so that no wait is endless
_ENDLESS = 3600.0


class Socket(Base):
    """Sends and receives messages by the rules of its type (PUSH, SUB, REQ, ...).

    `Context.socket` makes one. A socket may be used from any thread. Parts sent with SNDMORE form one message
    for each thread. In a forked child every call raises ForkedError.

    Every blocking call raises Again after its timeout, and Closed if another thread closes the socket.
    """

    # What `__init__` leaves to its class, since most sockets never change it.
    _complete = False
    _inherited = False
    _last_endpoint: Address | str = ""
    _dispatcher: SocketDispatcher | None = None
    _announced: Sequence[RegisteredName] = ()

    _pattern: Pattern
    _values: dict[str, Any]
    _links: Connections
    _sender: MessageSender
    _requester: Requester | None
    context: Context
    #: held while deciding which calls the core may do alone
    _deciding: Any
    #: messages that were received as another kind than the caller wanted: (stream, frames, the pattern's
    #: state); the next call returns them
    _returned: deque[tuple[Any, list[Any], Any]]
    _ending: Any
    _frame: type[Frame]

    def __new__(cls, context: Context, socket_type: SocketType | str, pattern: Any = None) -> Self:
        make: Any = super().__new__
        if make is object.__new__:  # the pure Python core needs nothing before __init__
            return make(cls)
        modes = pattern_of(socket_type, pattern).modes()
        return make(cls, *modes, context.flusher, context.pool)  # type: ignore[no-any-return]

    def __init__(
        self, context: Context, socket_type: SocketType | str, pattern: type[Pattern] | None = None
    ) -> None:
        made = pattern_of(socket_type, pattern)()
        values = context.option_values.copy()
        links = Connections(self, context, made)
        super().__init__(*made.modes(), context.flusher, context.pool)
        # At once: `__setattr__`, which checks the names that users write, would take half of the time.
        self.__dict__.update(
            _pattern=made,
            _values=values,
            _links=links,
            _sender=(UpstreamSender if isinstance(made, XSubscriber) else MessageSender)(made, links, values),
            _requester=made if isinstance(made, Requester) else None,
            context=context,
            _deciding=threading.RLock(),
            _returned=deque(),
            _ending=threading.Lock(),
            _frame=context.core.Frame,
        )
        self._lent = context.lent
        if made.turn is not None:
            made.turn = context.core.Turn()
        if made.in_turns:
            self._turn = made.turn  # type: ignore[assignment]  # the Turn of the core
        for name, value in context.core_values:
            if getattr(self, name) != value:
                setattr(self, name, value)
        if self._requester is not None and context.defaults.reply_timeout >= 0:
            self.receive_timeout = context.defaults.reply_timeout
        self._choose_fast_paths()
        context._transfer_add(self)
        self._complete = True

    @made_once
    def _threads(self) -> SocketThreads:
        return SocketThreads(partial(self.context.core.SocketThread, self._unfinished))

    # -- options -------------------------------------------------------------------------------------

    sndhwm = options.Number(options.whole(0), 23, effect="_limits_changed")
    rcvhwm = options.Number(options.whole(0), 24)
    sndhwm_bytes = options.Number(options.whole(0), 1001, effect="_limits_changed")
    sndtimeo = options.Number(options.MILLISECONDS, 28, attribute="send_timeout")
    rcvtimeo = options.Number(options.MILLISECONDS, 27, attribute="receive_timeout")
    linger = options.Number(options.MILLISECONDS, 17)
    reconnect_ivl = options.Number(options.MILLISECONDS, 18)
    reconnect_ivl_max = options.Number(options.DURATION, 21)
    sndbuf = options.Number(options.whole(-1, 2**31 - 1), 11, effect="_buffers_changed")
    rcvbuf = options.Number(options.whole(-1, 2**31 - 1), 12, effect="_buffers_changed")
    routing_id = options.Option[bytes, bytes | str](options.name_of_peer, 5)
    maxmsgsize = options.Number(options.whole(-1), 22, effect="_limits_changed")
    tcp_keepalive = options.Number(options.whole(-1, 1, truth=True), 34)
    tcp_keepalive_cnt = options.Number(options.whole(-1), 35)
    tcp_keepalive_idle = options.Number(options.whole(-1), 36)
    tcp_keepalive_intvl = options.Number(options.whole(-1), 37)
    checksum = options.Switch(options.switch, 1002, effect="_checksum_changed")
    compression = options.Option[options.CompressionOption, options.CompressionGiven](
        options.compression, 1003, effect="_update_fast_paths"
    )
    immediate = options.Switch(options.switch, 39)
    conflate = options.Switch(options.switch, 54, effect="_update_fast_paths")
    router_mandatory = options.Switch(options.switch, 33, effect="_pattern_changed")
    router_handover = options.Switch(options.switch, 56)
    xpub_verbose = options.Switch(options.switch, 40, effect="_pattern_changed")
    xpub_verboser = options.Switch(options.switch, 78, effect="_pattern_changed")
    xpub_manual = options.Switch(options.switch, 71, effect="_pattern_changed")
    xpub_nodrop = options.Switch(options.switch, 69, effect="_update_fast_paths")
    xpub_welcome_msg = options.Option[bytes, bytes | str](options.message, 72)
    req_relaxed = options.Switch(options.switch, 53, effect="_pattern_changed")
    req_correlate = options.Switch(options.switch, 52, effect="_pattern_changed")
    heartbeat_ivl = options.Number(options.DURATION, 75, effect="_checks_changed")
    heartbeat_timeout = options.Number(options.MILLISECONDS, 77)
    frame_timeout = options.Number(options.MILLISECONDS, 1007, effect="_checks_changed")
    handshake_ivl = options.Number(options.DURATION, 66)
    connect_timeout = options.Number(options.DURATION, 79)
    gpu_staging = options.Switch(options.switch, 1010)
    resend = options.Switch(options.switch, 1005, effect="_update_fast_paths")
    adaptive_hwm = options.Number(options.DURATION, 1009, effect="_checks_changed")
    balance = options.Option[options.BalanceOption, options.BalanceOption](
        peer_preference.checked, 1008, effect="_balance_changed"
    )
    backlog = options.Number(options.whole(0, 2**31 - 1), 19)

    def set(self, option: int | str, value: Any) -> None:
        """Sets an option by name or number.

        Args:
            option: a name ("rcvtimeo", in any case) or ZeroMQ's number.
            value: its new value, of the option's type.

        Raises:
            OptionError: there is no such option, or it cannot have this value.
        """
        name = options.name_of(option)
        if name == "hwm":
            self.sndhwm = value
            self.rcvhwm = value
        elif name in options.ACTIONS:
            getattr(self, name)(value)
        elif name in options.READ_ONLY:
            raise OptionError(f"{name} can only be read")
        else:
            setattr(self, name, value)

    def get(self, option: int | str) -> Any:
        """Returns the value of an option, by name or number. Raises OptionError."""
        name = options.name_of(option)
        if name in options.ACTIONS:
            raise OptionError(f"{name} can only be set")
        return self.sndhwm if name == "hwm" else getattr(self, name)

    setsockopt = set
    getsockopt = get

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name[:1] != "_" and self._complete:
                self._check_forked()
                if name in options.READ_ONLY:
                    raise OptionError(f"{name} can only be read")
                value = options.checked(name, value, self._pattern.socket_type)
                check_name(self, name)
            super().__setattr__(name, value)

    @property
    def last_endpoint(self) -> str:
        """The endpoint that was bound or connected last, with its real port; "" before."""
        return str(self._last_endpoint)

    @property
    def hwm(self) -> int:
        """Both high-water marks, in messages; reading returns the one for sending."""
        return self.sndhwm

    @hwm.setter
    def hwm(self, value: int) -> None:
        self.set("hwm", value)

    @property
    def identity(self) -> bytes:
        """ZeroMQ's older name of `routing_id`."""
        return self.routing_id

    @identity.setter
    def identity(self, value: bytes | str) -> None:
        self.routing_id = value

    @property
    def largest_message(self) -> int:
        """The limit of an arriving message, in bytes."""
        value: int = self._values["maxmsgsize"]
        return MAX_DATA if value < 0 else value

    def _checksum_changed(self) -> None:
        self._limits_changed()
        self._update_fast_paths()

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
        elif isinstance(pattern, XPublisher):
            pattern.show(self.xpub_verbose, self.xpub_verboser, self.xpub_manual)
            self._update_fast_paths()

    def _balance_changed(self) -> None:
        self._sender.balance = peer_preference.made(self._values["balance"])
        self._update_fast_paths()

    def _checks_changed(self) -> None:
        if self._links.state.endpoints:
            self._links.schedule_checks()

    # -- endpoints and peers -------------------------------------------------------------------------

    def bind(self, addr: str) -> Binding[Self]:
        """Listens on an endpoint and returns at once.

        A socket may bind several endpoints. Sockets of one context may share an endpoint if their peers are
        of different types.

        Args:
            addr: the endpoint, for instance "tcp://*:5555"; port 0 takes any free port.

        Returns:
            A context manager that unbinds the endpoint. `last_endpoint` has the real port.

        Raises:
            AddressError: the endpoint is not valid.
            AddressInUse: another socket listens on it.
            AddressNotAvailable: this machine does not have the address.
        """
        self._check_usable()
        self.context.start()
        self._last_endpoint = bound = self._links.bind(endpoint_text(addr))
        return Binding(self, "bind", bound)

    def connect(self, addr: str) -> Binding[Self]:
        """Starts to connect to an endpoint and returns at once; a lost connection is made again.

        With the policy `require`, for instance by `?policy=require` in the endpoint, it blocks until the
        handshake is complete.

        Args:
            addr: the endpoint, for instance "tcp://node7:5555".

        Returns:
            A context manager that disconnects the endpoint.

        Raises:
            AddressError: the endpoint is not valid.
            Again: with the policy `require`, the handshake was not complete in time.
            Fatal: with the policy `require`, the peers have no such transport in common.
        """
        self._check_usable()
        self.context.start()
        record = self._links.connect(endpoint_text(addr))
        self._last_endpoint = record.address
        return Binding(self, "connect", endpoint_text(addr))

    def unbind(self, addr: str) -> None:
        """Stops listening on an endpoint; its accepted connections stay open.

        Args:
            addr: the endpoint as it was bound.

        Raises:
            AddressError: the socket is not bound to it.
        """
        self._check_usable()
        self._links.release(endpoint_text(addr), bound=True)

    def disconnect(self, addr: str) -> None:
        """Disconnects from an endpoint, after flushing queued messages for at most `linger`.

        Args:
            addr: the endpoint as it was connected.

        Raises:
            AddressError: the socket is not connected to it.
        """
        self._check_usable()
        record = self._links.release(endpoint_text(addr), bound=False)
        self._links.drop(record, self._linger_seconds(None))

    def peers(self) -> list[PeerInfo]:
        """Returns a PeerInfo for each peer: its transport, why that transport was chosen, message counts."""
        self._check_forked()
        return self._links.infos()

    def wait_for_peers(self, n: int = 1, timeout: float | None = 30.0) -> None:
        """Blocks until `n` peers are connected.

        A PUB counts peers whose subscriptions have arrived. A SUB counts publishers that acknowledged all of
        its subscriptions.

        Args:
            n: number of peers.
            timeout: seconds; None waits without limit.

        Raises:
            Again: fewer peers are connected in time; the text says what is known of each endpoint.
            Closed: the socket is closed.
        """
        n, timeout = whole(n, "n"), seconds(timeout)
        state, no_peer = self._links.state, self._links.no_peer
        deadline = None if timeout is None else time.monotonic() + timeout
        due = time.monotonic() + self._long_wait / 1000
        look = _ACK_CHECK if isinstance(self._pattern, Subscriber) else 0.2
        while not self._has_peers(n):
            if time.monotonic() >= due:
                no_peer.long_wait()
            left = look if deadline is None else min(look, max(0.0, deadline - time.monotonic()))
            if not state.changed.wait_for(lambda: state.has_ready(n), left) and not left:
                raise no_peer.too_few(n, timeout)

    def _has_peers(self, n: int) -> bool:
        self._check_usable()
        if isinstance(self._pattern, Subscriber):
            self._readable()  # acknowledgements arrive among the messages
        return self._links.state.has_ready(n)

    @property
    def has_peers(self) -> bool:
        """Returns whether a peer is connected. Cheaper than `peers()`."""
        self._links.make_queues()
        return bool(self._streams())

    def announce(
        self,
        registry: str,
        endpoint: str | None = None,
        *,
        lease: float | None = None,
        advertise: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> RegisteredName:
        """Announces a bound endpoint under a name of a broker's registry, until the socket closes.

        It returns at once; `wait()` of the result blocks until the broker has the announcement, and `close()`
        withdraws it.

        Args:
            registry: the name, "registry://broker:port/name".
            endpoint: the bound endpoint to announce; None announces the first one.
            lease: see `transfer.broker.clients.registry.RegisteredName`, in seconds.
            advertise: the host or host:port to announce instead of the bound one (as TRANSFER_ADVERTISE).
                By default a wildcard is announced as the address by which this machine reaches the broker.
            metadata: see `transfer.broker.clients.registry.RegisteredName`.

        Raises:
            UsageError: nothing is bound.
            AddressError: the registry's address is not valid.
            OptionError: a value is not valid.
        """
        self._check_usable()
        if endpoint is None:
            bound = [str(one.address) for one in self._links.state.endpoints if one.acceptor is not None]
            if not bound:
                raise UsageError("nothing is bound that could be announced", hint="bind first")
            endpoint = bound[0]
        registration: RegisteredName = announce(
            registry,
            endpoint,
            **({} if lease is None else {"lease": lease}),
            advertise=advertise,
            metadata=metadata,
            context=self.context,
        )
        self._announced = [*self._announced, registration]
        return registration

    # -- sending -------------------------------------------------------------------------------------

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

        @overload
        def send_multipart(
            self, msg_parts: Sequence[Buffer], flags: int = ..., copy: bool = ..., *, track: Literal[True]
        ) -> Tracker: ...
        @overload
        def send_multipart(
            self, msg_parts: Sequence[Buffer], flags: int = ..., copy: bool = ..., track: bool = ...
        ) -> Tracker | None: ...
        def send_multipart(
            self, msg_parts: Sequence[Buffer], flags: int = 0, copy: bool = True, track: bool = False
        ) -> Tracker | None:
            """Sends several parts as one message, completely or not at all.

            Args:
                msg_parts: a list of objects with contiguous buffers.
                flags: DONTWAIT, SNDMORE, or 0.
                copy, track: as in `send`.

            Returns:
                A Tracker if `track`, else None.

            Raises:
                Again, Closed, StateError, NotSupported: as in `send`.
            """

        def send_many(self, messages: Iterable[Buffer], flags: int = 0) -> int:
            """Sends each of these as a message of one part, in order: for programs with many small messages.

            Args:
                messages: objects with contiguous buffers.
                flags: DONTWAIT, or 0. Each message may wait for `sndtimeo`.

            Returns:
                How many were sent: all, or fewer where a later one had no room in time.

            Raises:
                Again: none was sent, since no peer had room in time.
                Closed, StateError, NotSupported: as in `send`; some may have been sent.
            """

        def recv_many(self, most: int, flags: int = 0) -> list[Any]:
            """Receives messages that are here already, and waits only for the first.

            Args:
                most: how many messages at most, 1 or more.
                flags: DONTWAIT, or 0.

            Returns:
                At least one message, in order: `bytes`, or a list of `bytes` for a message of several parts.

            Raises:
                Again, Closed, StateError, NotSupported: as in `recv`.
            """

        @overload
        def recv_multipart(
            self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...
        ) -> list[bytes]: ...
        @overload
        def recv_multipart(
            self, flags: int = ..., *, copy: Literal[False], track: bool = ...
        ) -> list[Frame]: ...
        @overload
        def recv_multipart(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> list[Any]: ...
        def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[Any]:
            """Receives all parts of one message.

            Args:
                flags: DONTWAIT, or 0.
                copy: True returns bytes, False frames.
                track: ignored; present for pyzmq.

            Raises:
                Again, Closed, StateError, NotSupported: as in `recv`.
            """

    def _send_multipart(
        self, msg_parts: Any, flags: int = 0, copy: bool = True, track: bool = False
    ) -> Tracker | None:
        """`send_multipart` where the core cannot do it alone."""
        if isinstance(msg_parts, (str, bytes, bytearray, memoryview)) or not isinstance(msg_parts, Iterable):
            raise ArgumentError(
                f"the parts of a message are a list, not {type(msg_parts).__name__}",
                hint="send() sends one part, send_multipart([part]) too",
            )
        frames: list[OutFrame] = [(0, 0, None, None, part) for part in msg_parts]
        return self._send_message(frames, flags, not copy, track)

    def send_string(self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8") -> None:
        """Sends a text as one part. Raises as `send`, and ArgumentError."""
        self.send(encoded(u, encoding), flags, copy)

    def send_json(self, obj: Any, flags: int = 0, **kwargs: Any) -> None:
        """Sends an object as JSON; keyword arguments go to `json.dumps`. Raises as `send`, ArgumentError."""
        self.send(json_of(obj, kwargs), flags)

    def send_frames(
        self,
        frames: Sequence[tuple[bytes | None, bytes | None, int, Any]],
        flags: int = 0,
        *,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends one message of frames, each (topic or None, tensor header or None, flags, data).

        Topic, tensor header and flags are those of a frame that `recv_frames` returned. copy, track: as in
        `send`; with copy None, memory is held only until this returns. Raises as `send_multipart`.
        """
        try:
            parts = [frame_to_send(topic, meta, flags_, data) for topic, meta, flags_, data in frames]
        except ArgumentError:
            raise
        except (TypeError, ValueError):
            raise wrong("frames", frames, "a list of (topic, tensor header, flags, data)") from None
        return self._send_outframes(parts, flags_of(flags), track, copy)

    def _send_general(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if flags & SNDMORE or self._threads.here.thread.begun:
            return self._send_part([(0, 0, None, None, data)], flags, not copy, track)
        return self._send_message([(0, 0, None, None, data)], flags, not copy, track)

    def _send_outframes(
        self, frames: list[OutFrame], flags: int = 0, track: bool = False, copy: bool | None = None
    ) -> Tracker | None:
        """Sends frames for the tensor methods. copy None: memory is held only until the kernel has it, unless
        it is memory of `Context.empty`."""
        if copy is None and not (
            flags & ~DONTWAIT or track or self._general_send or self._threads.here.thread.begun or self._lent
        ):
            # The core may do it alone, as a plain send.
            self._send_frames(frames, 0 if flags else self.send_timeout)
            return None
        hold = copy is False
        if copy is None and self._lent:
            hold = any(self.context.is_shared(frame[4]) for frame in frames)
        if flags & SNDMORE or self._threads.here.thread.begun:
            return self._send_part(frames, flags, hold, track or hold)
        return self._send_message(frames, flags, hold, track or hold)

    def _tensor_capabilities(self, flags: int) -> Capabilities:
        if flags & SNDMORE or self._threads.here.thread.begun:
            return Capabilities(host_only="a message of several parts is copied through the host")
        self._links.make_queues()
        return capabilities_of(self._streams(), self._values, self._pattern.send_mode)

    def _want_gpu(self, uuid: bytes, index: int) -> None:
        want_gpu(self.context, uuid, index)

    def _note_gpu(self, route: str, reason: str) -> None:
        note_gpu(self._links.state, route, reason)

    def _note_gpu_received(self, route: str) -> None:
        note_gpu_received(self._links.state, route, self._threads.here.thread.stream)

    def _send_part(self, frames: list[OutFrame], flags: int, hold: bool, track: bool) -> Tracker | None:
        here = self._threads.here.thread
        if flags & SNDMORE:
            # The caller may change its memory after this returns, and nothing has been sent yet.
            kept = frames if hold else [_owned(frame) for frame in frames]
            self._check_usable()
            if isinstance(self._pattern, Router) and not here.begun:
                self._pattern.addressee(kept[0][4])  # an unknown identity is refused as early as it can be
            here.begin(kept)
            return None
        try:
            sent = self._send_message([*here.begun, *frames], flags, hold, track)
        except Again:  # the last part may be sent again
            raise
        except BaseException:
            here.end()
            raise
        here.end()
        return sent

    def _send_message(
        self, frames: Sequence[OutFrame], flags: int = 0, hold: bool = False, track: bool = False
    ) -> Tracker | None:
        """Sends one whole message by the pattern."""
        # Before the pattern: the error of a closed socket is Closed, whatever the pattern's state is.
        if self._inherited or self._ending.locked() or self._links.state.fatal is not None:
            self._check_usable()
        if not frames:
            raise UsageError("a message has at least one part")
        timeout = 0 if flags & DONTWAIT else self.send_timeout
        if self._turn is None:
            return self._sender.send(self, frames, timeout, hold, track)
        # One thread at a time: the pattern's turn must not change between the check and the send.
        timeout = enter(self._turn, SENDING, timeout, self._check_usable)
        try:
            return self._sender.send(self, frames, timeout, hold, track)
        finally:
            try:
                self._turn.leave(SENDING)
            except BaseException:  # of a signal handler, maybe before `leave` ran
                self._turn.leave(SENDING)
                raise

    # -- receiving -----------------------------------------------------------------------------------

    def _recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        """`recv_multipart` where the core cannot do it alone."""
        here = self._threads.here.thread
        if not here.rest:
            return self._receive_valid(self._recv_whole, flags, copy)
        self._check_open()
        parts = list(here.rest)
        try:
            here.clear()
            return as_bytes(parts) if copy else as_frames(parts, self._frame)
        except BaseException:  # a signal handler raised: the parts are still unread
            if not here.rest:
                here.leave(parts)
            raise

    def _socket_thread(self) -> SocketThread:
        return self._threads.here.thread

    def _recv_whole(self, flags: int, copy: bool) -> list[Any]:
        parts = whole_parts(self._recv_frames(flags), self._frame, self.largest_message)
        return as_bytes(parts) if copy else as_frames(parts, self._frame)

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Receives one part as text. Raises as `recv`, and UnicodeDecodeError."""
        decoder_of(encoding)
        return self._made(lambda data: str(data, encoding), flags)

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Receives one part of JSON; keyword arguments go to `json.loads`. Raises as `recv`, ValueError."""
        return self._made(decoder(kwargs), flags)

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Receives one part into memory of the caller.

        Args:
            buffer: writable contiguous memory. A longer message is cut off, as in pyzmq.
            nbytes: how many bytes of the buffer to use; 0 uses all.
            flags: DONTWAIT, or 0.

        Returns:
            The length of the received part, in bytes.

        Raises:
            UsageError: the buffer is not writable or not contiguous; nothing is received.
            Again, Closed, StateError, NotSupported: as in `recv`.
        """
        target = room_in(buffer, nbytes)
        return self._made(lambda frame: pour_frame(frame, target), flags, copy=False)

    def _made(self, make: Callable[[Any], T], flags: int, copy: bool = True) -> T:
        """Converts one part. If a signal handler raises, the part is received again."""
        [part] = map(self.recv, (flags,), (copy,))  # no signal handler runs before the assignment
        try:
            return make(part)
        except ValueError:  # the part is no text, or no JSON
            raise
        except BaseException:
            self._threads.here.thread.put_back(part)
            raise

    def recv_frames(self, flags: int = 0) -> list[Frame | bytes]:
        """Receives one whole message as its frames, with topics and tensor headers, still compressed.

        Parts that the pattern adds (a ROUTER's identity) are bytes. `data` of a frame is bytes, or a lease
        whose memory belongs to the caller as long as it has a view of it. Raises as `recv`.
        """
        frames: list[Frame | bytes] = self._receive_valid(self._recv_frames, flags)
        return frames

    if not TYPE_CHECKING:  # copied, not inherited: one class less above every socket
        send_tensor = TensorMethods.send_tensor
        send_tensors = TensorMethods.send_tensors
        send_tensors_to = TensorMethods.send_tensors_to
        recv_tensor = TensorMethods.recv_tensor
        recv_tensors = TensorMethods.recv_tensors
        recv_tensors_from = TensorMethods.recv_tensors_from

    @property
    def rcvmore(self) -> bool:
        """Whether the message of this thread's last `recv` has parts left."""
        return self._has_rest()

    @property
    def _newest_stream(self) -> Any:
        """The stream of the newest message that this thread received by `recv_frames`; None: of none."""
        return self._threads.here.thread.stream

    def _recv_general(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        here = self._threads.here.thread
        if not here.rest:
            return self._receive_valid(self._recv_first, flags, copy)
        self._check_open()
        left, part = len(here.rest), here.rest[0]
        try:
            here.take()
            return self._as_result(part, copy)
        except BaseException:  # as in `_recv_multipart`
            if len(here.rest) < left:
                here.put_back(part)
            raise

    def _recv_first(self, flags: int, copy: bool) -> Any:
        frames = self._recv_frames(flags)
        return self._first_result(whole_parts(frames, self._frame, self.largest_message), copy)

    def _deliver(self, stream: Any, frames: Sequence[Any], flags: int, copy: bool) -> Any:
        self._links.log_reader.record(stream, frames)
        try:
            return self._first_result(whole_parts(frames, self._frame, self.largest_message), copy)
        except ProtocolError as error:
            self._refuse(stream, error)
            return NotImplemented

    def _admitted(self, stream: Any, frames: list[Frame]) -> Any:
        """Lets the pattern decide whether a REQ or REP takes this message. Called by the core."""
        admitted = self._pattern.admit(stream, frames)
        if admitted is not None and self._requester is not None:
            self._replied(self._requester, stream)
        return admitted

    def _receive_valid(self, receive: Callable[..., T], *arguments: Any) -> T:
        """Returns the next valid message. An error found after reading (compressed data, dicts) ends the
        connection as an invalid frame does. If a signal handler raises, the next receive has the message."""
        here = self._threads.here.thread
        here.given = None
        while True:
            try:
                result = receive(*arguments)
            except ProtocolError as error:
                if here.stream is None:
                    raise
                self._refuse(here.stream, error)
                continue
            except BaseException as error:
                self._give_back(here, error)  # the first call: a handler may raise behind it
                raise
            # No call from here to the return, so no signal handler runs.
            here.given = None
            return result

    def _take(self, timeout: int, sink: Sink | None = None) -> tuple[Any, list[Any]]:
        """Takes the core's next message. `map` stores it before a signal handler can run."""
        here, reader = self._threads.here.thread, self._links.log_reader
        [here.given] = map(self._recv_message, (timeout,), (sink,))
        message: tuple[Any, list[Any]] = here.given
        if reader.positions is not None:
            reader.record(*message)
        return message

    def _take_back(self, given: list[tuple[Any, list[Any]]]) -> None:
        """A call was interrupted between its message and its caller, which has not got it: the next receive
        gives it. The core calls it too. Again until `given` is empty."""
        uninterrupted(partial(self._take_back_once, given, self._threads.here.thread), None)

    def _take_back_once(self, given: list[tuple[Any, list[Any]]], here: SocketThread) -> None:
        with self._deciding:
            if given:
                stream, frames = given[0]
                self._pattern.withdraw(stream, frames)
                here.clear()
                self._give_again(stream, frames)
                given.clear()
                self._update_fast_paths()

    def _refuse(self, stream: Any, error: ProtocolError) -> None:
        """Ends the connection that sent an invalid message. Raises the error for a REQ, which has no other
        reply to wait for."""
        here = self._threads.here.thread
        here.stream = here.given = None
        self._links.loss.send_refusal(stream, error, taken=True)
        self._links.loss.lost(stream, error)
        if isinstance(self._pattern, Replier):
            self._pattern.gone(stream)
        elif self._requester is not None:
            raise error

    def _recv_frames(self, flags: int = 0, sink: Sink | None = None, wait: int | None = None) -> list[Any]:
        """Receives one whole message by the pattern: frames as they arrived, after `bytes` that the pattern
        adds (ROUTER). LZ4 frames are still compressed. wait: ms, instead of receive_timeout."""
        waits = flags == 0 or not flags_of(flags) & DONTWAIT
        timeout = 0 if not waits else self.receive_timeout if wait is None else wait
        here = self._threads.here.thread
        here.stream = None
        if not self._general_recv:  # the core may do it alone, as it does a plain receive
            here.stream, frames = self._take(timeout, sink)
            return frames
        self._check_open()
        pattern = self._pattern
        if self._returned:
            again = self._take_returned(timeout)
            if again is not None:
                return again
        if not pattern.ordered:
            pattern.expect()
            here.stream, frames = self._take(timeout, sink)
            return self._latest(frames) if self._values["conflate"] else frames
        if self._requester is not None:
            return self._recv_reply(self._requester, timeout, sink)
        if self._turn is None:
            return self._recv_request(timeout, sink)
        # One thread at a time: a second request would replace this one.
        timeout = enter(self._turn, RECEIVING, timeout, self._check_usable)
        try:
            return self._recv_request(timeout, sink)
        finally:
            try:
                self._turn.leave(RECEIVING)
            except BaseException:  # of a signal handler, maybe before `leave` ran
                self._turn.leave(RECEIVING)
                raise

    def _recv_request(self, timeout: int, sink: Sink | None) -> list[Any]:
        pattern = self._pattern
        pattern.expect()
        deadline = time.monotonic() + timeout / 1000 if timeout > 0 else 0.0
        while True:
            stream, frames = self._take(timeout, sink)
            admitted = pattern.admit(stream, frames)
            if admitted is not None:
                self._threads.here.thread.stream = stream
                return list(admitted)
            if timeout > 0:
                timeout = max(0, int((deadline - time.monotonic()) * 1000))

    def _take_returned(self, timeout: int) -> list[Any] | None:
        """Takes the oldest message that was put back. None: another thread took it, or it is obsolete."""
        pattern = self._pattern
        turn = self._turn if isinstance(pattern, Replier) else None
        if turn is not None:
            enter(turn, RECEIVING, timeout, self._check_usable)
        try:
            if turn is not None:
                pattern.expect()  # another thread may have received a request
            try:
                stream, frames, state = self._returned.popleft()
            except IndexError:
                return None
            self._update_fast_paths()
            if not pattern.readmit(frames, state):
                return None
        finally:
            if turn is not None:
                turn.leave(RECEIVING)
        self._threads.here.thread.stream = stream
        return frames

    def _check_open(self) -> None:
        """Checks for a closed socket first: the error is Closed, whatever the pattern's state is."""
        if self._inherited or self._ending.locked():
            self._check_usable()

    def _unreceive(self, frames: list[Any]) -> None:
        """Puts the last message back: it is of another kind than the caller wants. The next call receives it.

        The core does this for messages that a sink refuses. But sinks do not see compressed frames, and the
        pattern puts an envelope before a tensor.
        """
        kept = [owned_frame(frame, self.context) for frame in frames]
        here = self._threads.here.thread
        here.given = None
        self._returned.append((here.stream, kept, self._pattern.unadmit(frames)))
        self._update_fast_paths()
        self._notify()  # pollers check again

    def _recv_reply(self, pattern: Requester, timeout: int, sink: Sink | None) -> list[Any]:
        """Waits in slices, so that the wait ends when the peer is lost."""
        if pattern.failure is None:
            pattern.expect()
        else:
            timeout = 0  # the reply may have arrived before the loss
        deadline = time.monotonic() + timeout / 1000 if timeout >= 0 else None
        due = time.monotonic() + self._long_wait / 1000
        while True:
            slice_ms = _LOOK
            if deadline is not None:
                slice_ms = min(_LOOK, max(0, int((deadline - time.monotonic()) * 1000)))
            try:
                stream, frames = self._take(slice_ms, sink)
            except Again:
                pattern.expect()  # raises the error of a lost peer
                if timeout == 0:
                    raise
                if deadline is not None and time.monotonic() >= deadline:
                    raise self._links.no_peer.no_reply(pattern.peer, timeout) from None
                if time.monotonic() >= due:
                    self._links.no_peer.long_wait()
                continue
            admitted = pattern.admit(stream, frames)
            if admitted is not None:
                self._threads.here.thread.stream = stream
                self._replied(pattern, stream)
                return list(admitted)

    def _replied(self, pattern: Requester, stream: Any) -> None:
        """Records that the open request has its reply."""
        peer = stream.peer
        if peer is not None:
            peer.answered()
        if not self._lockstep:
            self._update_fast_paths()
        pattern.turn.answered(time.monotonic_ns())

    def _latest(self, frames: list[Any]) -> list[Any]:
        """Returns the newest available message (conflate); older ones are dropped and counted."""
        while True:
            try:
                self._threads.here.thread.stream, newer = self._take(0)
            except Again:
                return frames
            self._pattern.drop("conflated")
            frames = newer

    def _first_result(self, parts: list[Any], copy: bool) -> Any:
        if len(parts) > 1:
            self._threads.here.thread.leave(parts[1:])
        return self._as_result(parts[0], copy)

    def _as_result(self, part: Any, copy: bool) -> Any:
        if copy:
            return part if type(part) is bytes else part.bytes
        if type(part) is bytes:
            return self._frame(part, flags=Flag.MORE if self._has_rest() else 0)
        return part

    # -- waiting -------------------------------------------------------------------------------------

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
            self._has_rest()
            or self._returned
            or (pattern.may_receive() and self._readable())
            or pattern.failure is not None
        ):
            found = POLLIN
        if bits & POLLOUT and pattern.may_send() and self._can_send():
            found |= POLLOUT
        return found

    def _can_send(self) -> bool:
        if self._pattern.send_mode is SendMode.NONE:
            return True
        self._links.make_queues()
        return self._writable()

    def _fd_signals(self, bits: int) -> bool:
        """Whether the descriptor becomes readable when one of `bits` is ready, and only then."""
        if bits & POLLIN and self._pattern.receive_mode is not ReceiveMode.NONE:
            return self._pattern.may_receive()
        return not bits & POLLOUT

    # -- subscriptions, callbacks, events ------------------------------------------------------------

    def subscribe(self, prefix: bytes | str = b"") -> None:
        """Subscribes to messages whose topic (or first part) begins with `prefix`.

        Subscriptions are counted: each needs its own `unsubscribe`.

        Args:
            prefix: bytes or text; empty subscribes to every message.

        Raises:
            NotSupported: the socket is not a SUB, XSUB, or XPUB with `xpub_manual`.
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
            NotSupported: the socket is not a SUB, XSUB, or XPUB with `xpub_manual`.
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
        with self._links.state.lock:
            if topic is None:
                return self._pattern.ready
            return self._pattern.wanting(octets(topic, "topic"))

    def _prefix(self, prefix: bytes | str) -> bytes:
        self._check_usable()
        if not isinstance(self._pattern, Subscriber) and not self._values["xpub_manual"]:
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
        return self._links.state.new_monitor()

    # -- the peers of a ROUTER -----------------------------------------------------------------------

    def routes(self) -> dict[bytes, int]:
        """Returns, for a ROUTER, the identities of its peers and how many messages wait for each.

        Peers that set no identity have a generated one. Raises NotSupported.
        """
        streams: dict[bytes, Any] = {**self._router().routes()}
        return {identity: stream.queued for identity, stream in streams.items()}

    def waiting_bytes(self, identity: bytes) -> int | None:
        """Returns, for a ROUTER, the bytes that wait for a peer; None: it is not connected.

        Raises NotSupported.
        """
        stream: Any = self._router().routes().get(octets(identity, "identity"))
        return None if stream is None else int(stream.queued_bytes)

    def expel(self, identity: bytes, reason: str) -> bool:
        """Ends, for a ROUTER, the connection of a peer that misbehaves.

        Messages that wait for the peer and unread messages from it are dropped. Returns False if the peer is
        not connected. Raises NotSupported.
        """
        identity, reason = octets(identity, "identity"), text(reason, "reason")
        peer = self._router().routes().get(identity)
        return peer is not None and self._links.loss.lost(peer, ProtocolError("stalled", reason))

    def _router(self) -> Router:
        self._check_forked()
        pattern = self._links.state.pattern
        if not isinstance(pattern, Router):
            raise NotSupported(f"a {pattern.socket_type.name} has no identities", hint="a ROUTER has")
        return pattern

    # -- the end -------------------------------------------------------------------------------------

    def close(self, linger: float | None = None) -> int:
        """Flushes queued messages for at most `linger`, then closes the socket. Idempotent.

        Blocking calls of other threads raise Closed.

        Args:
            linger: milliseconds; -1 flushes without limit, None uses the option `linger`.

        Returns:
            The number of messages that were not sent; with the option `resend`, not confirmed.
        """
        deadline = time.monotonic() + self._linger_seconds(linger)
        if self._inherited or not self._ending.acquire(blocking=False):
            return 0
        self._general_send, self._routes = True, None  # a send from now on would not be flushed
        while self._announced:  # before anything else closes: no new peer shall connect
            self._announced, last = self._announced[:-1], self._announced[-1]
            last.close()
        try:
            if deadline > time.monotonic():
                self._links.flush(deadline)
            return self._end_connections(deadline)
        except BaseException:  # Ctrl-C: it waits no longer
            uninterrupted(partial(self._end_connections, 0.0), 0)
            raise

    def _end_connections(self, deadline: float) -> int:
        self._close_core()
        unsent = self._links.close(deadline)
        self.context.tally.socket_ended(self)
        if self._dispatcher is not None:
            self._dispatcher.close()
        return unsent

    def _linger_seconds(self, linger: float | None) -> float:
        wanted = self.linger if linger is None else milliseconds(linger, "linger")
        return _ENDLESS if wanted is None or wanted < 0 else wanted / 1000.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._complete and not self.closed and not self._inherited:
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
            raise self._closed_error()
        if self._links.state.fatal is not None:
            raise self._links.state.fatal

    def _forked(self) -> None:
        """This object is the child's copy of a parent's socket: every call enters Python and is refused."""
        self._inherited = self._general_send = self._general_recv = True
        self._routes, self._with_identity = None, False

    # -- which calls the core may do alone -----------------------------------------------------------

    def _update_fast_paths(self) -> None:
        """Decides which calls the core may do alone."""
        with self._deciding:  # a thread with an older state must not undo a newer decision
            self._choose_fast_paths()

    def _choose_fast_paths(self) -> None:
        values = self._values
        pattern = self._pattern
        in_python = (
            values["resend"]
            or values["compression"] is not None
            or values["conflate"]
            or values["xpub_nodrop"]
            or values["checksum"]  # the core computes none for what it sends alone
            or self._sender.balance is not None
            or self._inherited
            or self._ending.locked()
            # without a peer the error must name the missing peer and its endpoint
            or (not self._links.state.peers and pattern.send_mode is not SendMode.FANOUT)
        )
        receives_in_python = bool(self._returned) or values["conflate"] or self._inherited
        routes = self._pattern.routes_alone() if not in_python else None
        self._lockstep = self._turn is not None and not in_python and not receives_in_python
        self._in_python = in_python
        self._general_send = pattern.ordered or in_python or pattern.send_mode is SendMode.NONE
        noted = pattern.ordered or self._links.reads_log or values["xpub_manual"]
        self._general_recv = noted or receives_in_python or pattern.receive_mode is ReceiveMode.NONE
        self._routes = routes
        self._with_identity = routes is not None and not receives_in_python

    # -- hooks of the core ---------------------------------------------------------------------------

    def _on_control(self, stream: Any, frame: Frame) -> None:
        self._links.control.arrived(stream, frame)

    def _send_orphans(self) -> None:
        self._links.orphans.give()

    def _on_refused(self, stream: Any, error: ProtocolError) -> None:
        self._links.loss.send_refusal(stream, error)

    def _on_lost(self, stream: Any, error: BaseException) -> None:
        self._links.loss.lost(stream, error)

    def _on_long_wait(self) -> None:
        """Called when the core, or a call of this file, has waited for `_long_wait` ms."""
        self._links.no_peer.long_wait()

    def _no_message(self) -> Again:
        """Makes the error of a receive after its timeout. Called by the core."""
        return self._links.no_peer.explained(Again("no message came in time"))


def _owned(frame: OutFrame) -> OutFrame:
    data = frame[4]
    return frame if type(data) is bytes else (*frame[:4], bytes(data))


#: `Socket` as it is at run time, before `socket_class` puts it over a core
SocketMethods = Socket


@functools.cache
def socket_class(core: Any) -> type[Socket]:
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


if not TYPE_CHECKING:  # a type checker knows one class, which has the core's methods
    SocketMethods.__name__ = SocketMethods.__qualname__ = "SocketMethods"
    del Socket
    __getattr__ = socket_of(__name__, socket_class)
