"""pyzmq's Socket over `transfer`: its names, numbers, defaults and errors.

`send`, `recv` and their forms for several parts are the compiled calls of the core; what those do not handle
alone passes through the hooks here (`_send_object`, `_send_multipart`, `_recv_multipart`), as do errors.
"""

# Methods have pyzmq's types, and those of `transfer.Socket` differ.
# mypy: disable-error-code="override"

from __future__ import annotations

import errno
import warnings
import weakref
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

from transfer.constants import DONTWAIT, SNDMORE
from transfer.sockets.attributes import no_such
from transfer.sockets.binding import endpoint_text
from transfer.sockets.defaults import PYZMQ_SUB_LINGER
from transfer.sockets.options import checked
from transfer.sockets.poller import wait
from transfer.transports.arguments import events_of, flags_of, linger_of, text, whole
from transfer.transports.core.copies import pour
from transfer.transports.errors import (
    Again,
    Closed,
    ContextTerminated,
    NotSupported,
    OptionError,
    TransferError,
    UsageError,
)
from transfer.zmq import endpoints, zap
from transfer.zmq.byte_limit import ByteLimit
from transfer.zmq.constants import Errno, Event, PollEvent, SocketOption, SocketType
from transfer.zmq.endpoints import Base, Bound
from transfer.zmq.error import ZMQError
from transfer.zmq.frame import Frame, with_properties
from transfer.zmq.linger import hand_over, has_unsent
from transfer.zmq.mechanisms import add_options
from transfer.zmq.metaclass import SocketMetaclass
from transfer.zmq.monitor import MonitorPump
from transfer.zmq.options import RULES_BY_NAME, Effect, Rule, checked as checked_option, refuse, rule
from transfer.zmq.patterns import ZMQ_PATTERNS, no_stream
from transfer.zmq.payload import check_parts, checked_part, payload_of, room_in, size_of
from transfer.zmq.serial import Serialising
from transfer.zmq.sockopts import WIRE_TYPES, add_attributes, our_type
from transfer.zmq.tracker import _FINISHED_TRACKER, MessageTracker

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from transfer.transports.core.contract import Buffer
    from transfer.zmq.context import Context

    #: as in pyzmq: bytes, or Future for a socket of asyncio
    Kind = TypeVar("Kind", default=bytes)
else:
    from typing import TypeVar

    Kind = TypeVar("Kind")

__all__ = ["Socket", "SyncSocket"]

#: sockets whose `underlying` was read, for `shadow`
_by_address: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_set = object.__setattr__


class Socket(Base, Generic[Kind], metaclass=SocketMetaclass):
    """A socket with pyzmq's API, and with the other methods of `transfer.Socket`.

    May be used from any thread. Options are attributes in lower or upper case.
    """

    context: Context[Any]
    #: the object of a derived class in front of this one: see `derived`
    _front: weakref.ref[Any] | None = None
    if not TYPE_CHECKING:  # a type checker has it from `Base`
        sndhwm_bytes = ByteLimit()

    # What `__init__` leaves to its class, since most sockets never change it.
    _ready = False
    _closed_by_user = False
    _pump: MonitorPump | None = None
    _watcher: Self | None = None
    _async_watch: Any = None

    _kind: SocketType
    #: values of options that are stored and have no effect
    _ignored: dict[SocketOption, int | bytes]

    def __new__(
        cls, ctx_or_socket: Any, socket_type: int | str | Enum = -1, *args: Any, **kwargs: Any
    ) -> Self:
        return super().__new__(cls, ctx_or_socket, WIRE_TYPES[our_type(socket_type)])

    def __init__(
        self, ctx_or_socket: Any, socket_type: int | str | Enum = -1, *, copy_threshold: int | None = None
    ) -> None:
        kind = our_type(socket_type)
        wire_type = WIRE_TYPES[kind]
        if copy_threshold is not None:
            copy_threshold = checked("copy_threshold", copy_threshold, wire_type)
        self._ignored = {}
        self._kind = kind
        self._frame_class = Frame
        super().__init__(ctx_or_socket, wire_type, ZMQ_PATTERNS.get(kind))
        self._values["sndhwm_bytes"] = None  # until the program sets it: see `byte_limit`
        if kind in (SocketType.SUB, SocketType.XSUB):
            self._values["linger"] = PYZMQ_SUB_LINGER
        if copy_threshold is not None:
            self.copy_threshold = copy_threshold
        self._ready = True

    @classmethod
    def shadow(cls, address: Any) -> Self:
        """Returns the same socket. Addresses of libzmq's sockets raise ZMQError (EINVAL)."""
        if isinstance(address, int):
            address = _by_address.get(address)
        same: Any = getattr(address, "_transfer_socket", address)
        if not isinstance(same, Socket):
            raise ZMQError(Errno.EINVAL, "only sockets of this package can be shadowed")
        return same  # type: ignore[return-value]  # the class that it has

    def __copy__(self, memo: Any = None) -> Self:
        return type(self).shadow(self)

    __deepcopy__ = __copy__

    @property
    def underlying(self) -> int:
        """A number for this socket, which `shadow` accepts. There is no libzmq behind it."""
        _by_address[id(self)] = self
        return id(self)

    @property
    def _transfer_socket(self) -> Any:  # as objects of derived classes have it
        return self

    @property
    def type(self) -> SocketType:
        return self._kind

    @property
    def socket_type(self) -> SocketType:
        """Deprecated, as in pyzmq: the same as `type`."""
        warnings.warn("socket_type is deprecated: use type", DeprecationWarning, stacklevel=2)
        return self._kind

    @property
    def rcvmore(self) -> int:
        """1 if the message of this thread's last `recv` has parts left, else 0."""
        return int(self._has_rest())

    @property
    def last_endpoint(self) -> bytes:
        """The endpoint bound or connected last, with its real port."""
        return str(self._last_endpoint).encode()

    # -- endpoints -----------------------------------------------------------------------------

    def bind(self, addr: str) -> Bound[Self]:
        """Binds. Raises ZMQError; `last_endpoint` has the real port."""
        self._check_meets(addr)
        try:
            return Bound(self, "bind", zap.bound(self.context.reactor, super().bind(addr).addr))
        except TransferError as error:
            known = self._closed_error() if isinstance(error, Closed) else error
            raise endpoints.bad_endpoint(known, endpoint_text(addr)) from error.__cause__

    def connect(self, addr: str) -> Bound[Self]:
        """Starts to connect; messages that are sent before the peer is connected wait for it."""
        self._check_meets(addr)
        try:
            return Bound(self, "connect", super().connect(addr).addr)
        except TransferError as error:
            known = self._closed_error() if isinstance(error, Closed) else error
            raise endpoints.bad_endpoint(known, endpoint_text(addr)) from error.__cause__

    def _check_meets(self, addr: str) -> None:
        endpoint_text(addr)
        if self._kind is SocketType.STREAM:
            raise no_stream()

    def unbind(self, addr: str) -> None:
        """Stops listening on an endpoint. Raises ZMQError (ENOENT)."""
        try:
            super().unbind(addr)
        except TransferError as error:
            raise endpoints.unknown_endpoint(error, addr) from None

    def disconnect(self, addr: str) -> None:
        """Ends the connection to an endpoint. Raises ZMQError (ENOENT)."""
        try:
            self._check_usable()
            record = self._links.release(endpoint_text(addr), bound=False)
        except TransferError as error:
            raise endpoints.unknown_endpoint(error, addr) from None
        linger = self._linger_seconds(None)
        self._links.drop(record, min(linger, endpoints.DISCONNECT_TIMEOUT))

    def bind_to_random_port(
        self, addr: str, min_port: int = 49152, max_port: int = 65536, max_tries: int = 100
    ) -> int:
        """Binds to a free port, in the range if one is given. Raises ZMQBindError."""
        text(addr, "addr")
        whole(min_port, "min_port", 0, 65535), whole(max_port, "max_port", min_port + 1, 65536)
        whole(max_tries, "max_tries", 1)
        if (min_port, max_port) != (49152, 65536):
            return endpoints.bind_in_range(self.bind, addr, range(min_port, max_port), max_tries)
        self.bind(f"{addr}:*")
        return int(self.last_endpoint.rsplit(b":", 1)[1])

    # -- events --------------------------------------------------------------------------------

    def monitor(self, addr: str | None, events: int = Event.ALL) -> None:
        """Sends the events of this socket to an inproc endpoint; None ends that."""
        if addr is not None:
            endpoint_text(addr)
        whole(events, "events", 0, 2**31 - 1)
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.close()
        if addr is not None:
            self._pump = MonitorPump(self, Socket(self.context, SocketType.PAIR), addr, int(events))

    def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Self:
        """A PAIR that receives the events; see `utils.monitor.recv_monitor_message`."""
        if self._watcher is not None and not self._watcher.closed:
            return self._watcher
        addr = addr or f"inproc://monitor.s-{self.fileno()}-{id(self):x}"
        self.monitor(addr, Event.ALL if events is None else events)
        watcher: Self = self.context.socket(SocketType.PAIR)
        self._watcher = watcher
        watcher.connect(addr)
        return watcher

    def disable_monitor(self) -> None:
        """Ends the monitor of `get_monitor_socket` or `monitor`."""
        self._watcher = None
        self.monitor(None, 0)

    # -- sending -------------------------------------------------------------------------------

    if TYPE_CHECKING:  # methods of the core, with pyzmq's types

        @overload
        def send(  # type: ignore[overload-overlap]  # a Frame is a Buffer
            self, data: Frame, flags: int = ..., copy: bool = ..., track: bool = ...
        ) -> MessageTracker: ...
        @overload
        def send(
            self, data: Buffer, flags: int = ..., copy: bool = ..., track: Literal[False] = ...
        ) -> None: ...
        @overload
        def send(
            self, data: Buffer, flags: int = ..., *, copy: Literal[False], track: Literal[True]
        ) -> MessageTracker: ...
        @overload
        def send(
            self, data: Buffer, flags: int, copy: Literal[False], track: Literal[True]
        ) -> MessageTracker: ...
        @overload
        def send(
            self, data: Buffer, flags: int = ..., copy: bool = ..., track: bool = ...
        ) -> MessageTracker | None: ...
        def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
            """Sends one part. Returns a MessageTracker with `track` and without `copy`."""

        @overload
        def send_multipart(
            self, msg_parts: Sequence[Buffer], flags: int = ..., *, copy: Literal[False], track: Literal[True]
        ) -> MessageTracker: ...
        @overload
        def send_multipart(
            self, msg_parts: Sequence[Buffer], flags: int = ..., copy: bool = ..., track: bool = ...
        ) -> MessageTracker | None: ...
        def send_multipart(
            self, msg_parts: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False
        ) -> MessageTracker | None:
            """Sends all parts as one message, completely or not at all."""

        @overload
        def recv(self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...) -> bytes: ...
        @overload
        def recv(self, flags: int = ..., *, copy: Literal[False], track: bool = ...) -> Frame: ...
        @overload
        def recv(self, flags: int, copy: Literal[False], track: bool = ...) -> Frame: ...
        @overload
        def recv(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> bytes | Frame: ...
        def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
            """Receives one part: bytes, or a Frame if not `copy`. Raises Again, ContextTerminated."""

        @overload
        def recv_multipart(
            self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...
        ) -> list[bytes]: ...
        @overload
        def recv_multipart(
            self, flags: int = ..., *, copy: Literal[False], track: bool = ...
        ) -> list[Frame]: ...
        @overload
        def recv_multipart(self, flags: int, copy: Literal[False], track: bool = ...) -> list[Frame]: ...
        @overload
        def recv_multipart(
            self, flags: int = ..., copy: bool = ..., track: bool = ...
        ) -> list[bytes] | list[Frame]: ...
        def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[Any]:
            """Receives all parts of a message."""

    def _send_object(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
        """Sends what the core does not send alone: with a tracker, or neither bytes nor a small bytearray."""
        watching = None
        if isinstance(data, Frame):
            watching = data.tracker
            if track and not copy and watching is None:
                raise ValueError("the frame was made without track=True")
            copy, track = False, watching is not None
        elif not copy and size_of(data) < self.copy_threshold:
            self.send(bytes(data), flags)
            return _FINISHED_TRACKER if track else None
        sent = self._send_one(payload_of(data), flags, copy, track and not copy)
        if sent is None:
            return None
        if watching is None:
            return MessageTracker(sent)
        if watching is not _FINISHED_TRACKER:
            watching.peers.add(sent)
        return watching

    def _send_part(self, frames: Any, flags: int, hold: bool, track: bool) -> Any:
        """Raises Again at the first part where that must not wait, as libzmq."""
        if flags & DONTWAIT and flags & SNDMORE and not self._threads.here.thread.begun:
            self._check_open()
            if self._pattern.may_send() and not self._can_send():
                raise self._no_room()
        return Base._send_part(self, frames, flags, hold, track)

    def _send_multipart(
        self, msg_parts: Any, flags: int = 0, copy: bool = True, track: bool = False
    ) -> MessageTracker | None:
        check_parts(msg_parts)
        parts = [checked_part(i, part) for i, part in enumerate(msg_parts)]
        track = track and not copy
        begun = self._threads.here.thread.begun
        if flags & SNDMORE or begun:
            before = len(begun)
            for part in parts[:-1]:
                self._send_one(part, flags | SNDMORE, copy, False)
            try:
                sent = self._send_one(parts[-1], flags, copy, track)
            except Again:
                del begun[before:]  # all parts may be sent again
                raise
        else:
            sent = Base._send_multipart(self, parts, flags, copy, track)
        return None if sent is None else MessageTracker(sent)

    # -- receiving -----------------------------------------------------------------------------

    def _recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        parts: list[Any] = Base._recv_multipart(self, flags, copy)
        if copy:
            return parts
        last = len(parts) - 1
        return [with_properties(self, part)._mark(i < last) for i, part in enumerate(parts)]

    def _as_result(self, part: Any, copy: bool) -> Any:
        made = Base._as_result(self, part, copy)
        named = self._keeps_properties and not copy
        return with_properties(self, made)._mark(self._has_rest()) if named else made

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Receives one part into writable memory; returns its full length, even if it was cut off."""
        nbytes, flags = whole(nbytes, "nbytes", -1), flags_of(flags)
        room = room_in(buffer, nbytes)
        part = self.recv(flags, copy=False)
        length = min(room, len(part))
        if length:
            with memoryview(buffer).cast("B") as target:
                pour(target[:length], part.buffer[:length])
        return len(part)

    def _no_room(self) -> Again:
        """The error of a send that waits for room, or for peers to connect."""
        links = self._links
        if not links.state.endpoints or any(not peer.pending for peer in list(links.state.peers.values())):
            return Base._no_room(self)
        found: Again = links.no_peer.error()
        return found

    def _closed_error(self) -> Closed:
        """The error of a closed socket: ETERM if its context was terminated."""
        if self.context._transfer_ending and not self._closed_by_user:
            return ContextTerminated("the context was terminated")
        return Base._closed_error(self)

    # -- texts, JSON, objects ------------------------------------------------------------------

    if not TYPE_CHECKING:  # a type checker has them from `Base`
        send_string = Serialising.send_string
        recv_string = Serialising.recv_string
        send_unicode = Serialising.send_unicode
        recv_unicode = Serialising.recv_unicode
        send_json = Serialising.send_json
        recv_json = Serialising.recv_json
        send_pyobj = Serialising.send_pyobj
        recv_pyobj = Serialising.recv_pyobj
        send_serialized = Serialising.send_serialized
        recv_serialized = Serialising.recv_serialized
        _deserialize = Serialising._deserialize

    # -- waiting -------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None, flags: int = PollEvent.POLLIN) -> int:
        """Returns the ready bits, after waiting `timeout` ms (None: without limit) for one of them."""
        if self.closed:
            error = self._closed_error()
            raise error if isinstance(error, ContextTerminated) else NotSupported(str(error))
        ready = wait([(self, events_of(flags))], timeout)
        return ready[0][1] if ready else 0

    def subscribe(self, topic: str | bytes = b"") -> None:
        """Subscribes to messages that begin with `topic`."""
        self._check_subscribes()
        try:
            super().subscribe(topic)
        except NotSupported as error:
            error.errno = errno.EINVAL
            raise

    def unsubscribe(self, topic: str | bytes = b"") -> None:
        """Removes one subscription; does nothing if there is none, as libzmq."""
        self._check_subscribes()
        try:
            super().unsubscribe(topic)
        except NotSupported as error:
            error.errno = errno.EINVAL
            raise
        except UsageError:
            return

    def _check_subscribes(self) -> None:
        if self._kind is SocketType.XSUB:
            hint = 'send(b"\\1topic"), b"\\0topic" to end it'
            raise OptionError("an XSUB sends its subscriptions as messages", hint=hint)

    def join(self, group: str) -> None:
        raise NotSupported("RADIO and DISH are draft socket types, which do not exist here")

    leave = join

    # -- options -------------------------------------------------------------------------------

    def set(self, option: int, optval: Any) -> None:
        """Sets an option. Raises TypeError, OverflowError, OptionError (EINVAL), NotSupported (ENOTSUP)."""
        self._set(*rule(option), optval)

    def _set(self, known: SocketOption, how: Rule, optval: Any) -> None:
        value = checked_option(known, how, optval)
        if not how.writable:
            raise OptionError(f"{known.name} can only be read")
        if how.only and self._kind not in how.only:
            raise OptionError(f"{known.name} is an option of {how.only[0].name} sockets only")
        if known is SocketOption.CONFLATE and self._kind in (SocketType.XPUB, SocketType.XSUB):
            return  # without effect, as in libzmq
        if how.effect is Effect.FORWARDED:
            self._forward(known, how, value)
            return
        refuse(known, how, value)
        self._check_open()
        self._ignored[known] = value

    def _forward(self, option: SocketOption, how: Rule, value: int | bytes) -> None:
        try:
            if how.attribute in ("subscribe", "unsubscribe"):
                getattr(self, how.attribute)(value)
            elif how.attribute == "hwm":
                self.set_hwm(int(value))
            else:
                object.__setattr__(self, how.attribute, value)
        except NotSupported as error:  # SUBSCRIBE on another type than SUB
            raise OptionError(f"{option.name}: {error}") from error

    def _get_option(self, option: int) -> int | bytes:
        known, how = rule(option)
        if not how.readable:
            raise OptionError(f"{known.name} can only be set")
        self._check_open()
        if how.effect is not Effect.FORWARDED:
            assert how.default is not None  # it can be read
            return self._ignored.get(known, how.default)
        value = getattr(self, how.attribute)
        return value if how.kind is bytes else int(value)

    if TYPE_CHECKING:

        def get(self, option: int) -> int | bytes:
            """Returns an option, an int or bytes. Raises OptionError (EINVAL) if it cannot be read."""
    else:
        get = Base._getsockopt
    setsockopt = set  # type: ignore[assignment]
    getsockopt = get  # type: ignore[assignment]

    def set_string(self, option: int, optval: str, encoding: str = "utf-8") -> None:
        """Sets an option of bytes to a text."""
        if not isinstance(optval, str):
            raise TypeError(f"text is wanted, not {type(optval).__name__}")
        self.set(option, optval.encode(encoding))

    def get_string(self, option: int, encoding: str = "utf-8") -> str:
        """Returns an option of bytes as text. Raises TypeError for options that are numbers."""
        known, how = rule(option)
        if how.kind is not bytes:
            raise TypeError(f"{known.name} is a number")
        return bytes(self.get(option)).decode(encoding)

    setsockopt_string = setsockopt_unicode = set_string
    getsockopt_string = getsockopt_unicode = get_string

    def get_hwm(self) -> int:
        """Returns the high-water mark for sending, in messages."""
        return int(self.get(SocketOption.SNDHWM))

    def set_hwm(self, value: int) -> None:
        """Sets both high-water marks."""
        self.set(SocketOption.SNDHWM, value)
        self.set(SocketOption.RCVHWM, value)

    @property
    def hwm(self) -> int:
        """Both high-water marks; reading returns the one for sending."""
        return self.get_hwm()

    @hwm.setter
    def hwm(self, value: int) -> None:
        self.set_hwm(value)

    def _check_open(self) -> None:
        if self.closed:
            raise self._closed_error()

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name[:1] == "_" or not self._ready:
                _set(self, name, value)
                return
            own = name in ("last_endpoint", "hwm")
            found = None if own else RULES_BY_NAME.get(name.upper())
            if found is not None:
                if name.lower() in ("subscribe", "unsubscribe") and isinstance(value, str):
                    value = value.encode()
                self._set(*found, value)
            elif own or name in self.__dict__ or hasattr(type(self), name):
                super().__setattr__(name, value)
            else:
                raise no_such(self, name)

    # -- the end -------------------------------------------------------------------------------

    def close(self, linger: float | None = None) -> None:
        """Closes at once; queued messages are still delivered within `linger` ms (default: the option).

        `Context.term` waits for that. Idempotent.
        """
        linger = linger_of(linger)
        if self.closed or self._inherited:
            return
        self._closed_by_user = not self.context._transfer_ending
        if self._async_watch is not None:
            self._async_watch.close()
        wanted = self.linger if linger is None else linger
        if wanted and has_unsent(self):
            self._values["linger"] = int(wanted)
            hand_over(self, Base)
        else:
            Base.close(self, 0)
        if self._pump is not None or self._watcher is not None:
            self.disable_monitor()

    def __del__(self) -> None:
        # As in pyzmq, sent messages are delivered even if the program never closed the socket.
        if self._complete and not self.closed and not self._inherited:
            name = repr(self)
            self.close()
            warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        return f"<zmq.Socket(zmq.{self._kind.name}) at {id(self):#x}{' closed' if self.closed else ''}>"


add_options(Socket)
add_attributes(Socket)
SyncSocket = Socket
