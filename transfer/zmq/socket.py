"""pyzmq's Socket over `transfer`: its names, numbers, defaults and errors.

`send` and `recv` add one Python frame to the compiled path: it converts `Closed` to pyzmq's
`ContextTerminated`.
"""

from __future__ import annotations

import errno
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

from transfer.constants import DONTWAIT, SNDMORE
from transfer.sockets.options import checked
from transfer.sockets.poller import wait
from transfer.transports import core
from transfer.transports.arguments import events_of, flags_of, linger_of, whole, wrong
from transfer.transports.core import wire
from transfer.transports.core.copies import pour
from transfer.transports.errors import (
    Again,
    ArgumentError,
    Closed,
    ContextTerminated,
    NotSupported,
    UsageError,
    not_a_buffer,
)
from transfer.zmq.constants import Errno, PollEvent, SocketType
from transfer.zmq.endpoints import Base, EndpointMethods
from transfer.zmq.error import ZMQError
from transfer.zmq.frame import Frame
from transfer.zmq.linger import hand_over, has_unsent
from transfer.zmq.monitor import MonitorPump
from transfer.zmq.serial import Serialising
from transfer.zmq.sockopts import OptionAccess, our_type
from transfer.zmq.tracker import _FINISHED_TRACKER, MessageTracker

__all__ = ["Socket", "SyncSocket"]

#: sockets whose `underlying` was read, for `shadow`
_by_address: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_send = Base.send
_recv = Base.recv


class SocketMeta(type):
    """Makes `Socket(other)` return the same socket, and asyncio sockets count as sockets."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("shadow") or (args[0] if args else None)
        if kwargs.get("shadow") or isinstance(given, Socket):
            return Socket.shadow(given)
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (cls is Socket and hasattr(instance, "_sync_socket"))


class Socket(OptionAccess, Serialising, EndpointMethods, metaclass=SocketMeta):
    """A socket with pyzmq's API, and with the other methods of `transfer.Socket`.

    May be used from any thread. Options are attributes in lower or upper case.
    """

    def __new__(cls, ctx_or_socket: Any, socket_type: int = -1, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, ctx_or_socket, wire.SocketType[our_type(socket_type).name])

    def __init__(
        self, ctx_or_socket: Any, socket_type: int = -1, *, copy_threshold: int | None = None
    ) -> None:
        kind = our_type(socket_type)
        if copy_threshold is not None:
            copy_threshold = checked("copy_threshold", copy_threshold)
        self._ignored = {}
        self._kind = kind
        self._closed_by_user = False
        self._pump: MonitorPump | None = None
        self._watcher: Any = None
        super().__init__(ctx_or_socket, wire.SocketType[kind.name])
        # pyzmq's defaults where those of `transfer` differ
        self._values.update(maxmsgsize=-1, backlog=100)
        if kind is SocketType.SUB:
            self._values["linger"] = 0
        if copy_threshold is not None:
            self.copy_threshold = copy_threshold
        self._ready = True

    @classmethod
    def shadow(cls, address: Any) -> Any:
        """Returns the same socket. Addresses of libzmq's sockets raise ZMQError (EINVAL)."""
        if isinstance(address, int):
            address = _by_address.get(address)
        same = getattr(address, "_sync_socket", address)
        if not isinstance(same, Socket):
            raise ZMQError(Errno.EINVAL, "only sockets of this package can be shadowed")
        return same

    def __copy__(self, memo: Any = None) -> Any:
        return type(self).shadow(self)

    __deepcopy__ = __copy__

    @property
    def underlying(self) -> int:
        """A number for this socket, which `shadow` accepts. There is no libzmq behind it."""
        _by_address[id(self)] = self
        return id(self)

    @property
    def type(self) -> SocketType:
        return self._kind

    @property
    def socket_type(self) -> SocketType:
        """Deprecated, as in pyzmq: the same as `type`."""
        warnings.warn("socket_type is deprecated: use type", DeprecationWarning, stacklevel=2)
        return self._kind

    @property
    def last_endpoint(self) -> bytes:
        """The endpoint bound or connected last, with its real port."""
        text: str = self.__dict__.get("_last_endpoint", "")
        return text.encode()

    @last_endpoint.setter
    def last_endpoint(self, text: str) -> None:
        self.__dict__["_last_endpoint"] = text

    # -- sending -------------------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Sends one part. Returns a MessageTracker with `track` and without `copy`."""
        if copy and type(data) is bytes:
            try:
                return _send(self, data, flags)
            except Closed as error:
                raise self._ended(error) from None
            except Again as error:
                raise self._hinted(error) from None
        return self._send_object(data, flags, copy, track)

    def _send_object(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
        watching = None
        if isinstance(data, Frame):
            watching = data.tracker
            if track and not copy and watching is None:
                raise ValueError("the frame was made without track=True")
            copy, track = False, watching is not None
        elif not copy and _size(data) < self.copy_threshold:
            self.send(bytes(data), flags)
            return _FINISHED_TRACKER if track else None
        try:
            sent = _send(self, _payload(data), flags, copy, track and not copy)
        except Closed as error:
            raise self._ended(error) from None
        except Again as error:
            raise self._hinted(error) from None
        if sent is None:
            return None
        if watching is None:
            return MessageTracker(sent)
        if watching is not _FINISHED_TRACKER:
            watching.peers.add(sent)
        return watching

    def send_multipart(
        self, msg_parts: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False
    ) -> Any:
        """Sends all parts as one message, completely or not at all."""
        if type(msg_parts) is not list or not msg_parts:
            parts_of(msg_parts)
        if flags != 0:
            flags = flags_of(flags)
        parts = [part if type(part) is bytes else _part(i, part) for i, part in enumerate(msg_parts)]
        try:
            if flags & SNDMORE or self._partial:
                for part in parts[:-1]:
                    _send(self, part, flags | SNDMORE, copy, False)
                sent = _send(self, parts[-1], flags, copy, track and not copy)
            else:
                sent = Base.send_multipart(self, parts, flags, copy, track and not copy)
        except Closed as error:
            raise self._ended(error) from None
        return None if sent is None else MessageTracker(sent)

    # -- receiving -----------------------------------------------------------------------------

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Receives one part: bytes, or a Frame if not `copy`. Raises Again, ContextTerminated."""
        try:
            if copy:
                return _recv(self, flags)
            part = _recv(self, flags, False)
        except Closed as error:
            raise self._ended(error) from None
        except Again as error:
            raise (error if flags & DONTWAIT else self._hinted(error)) from None
        return Frame._of(part)._mark(bool(self._rest))

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[Any]:
        """Receives all parts of a message."""
        try:
            parts: list[Any] = Base.recv_multipart(self, flags, copy)
        except Closed as error:
            raise self._ended(error) from None
        if copy:
            return parts
        last = len(parts) - 1
        return [Frame._of(part)._mark(i < last) for i, part in enumerate(parts)]

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Receives one part into writable memory; returns its full length, even if it was cut off."""
        nbytes, flags = whole(nbytes, "nbytes", -1), flags_of(flags)
        with buffer_of(buffer) as view:
            if view.readonly:
                raise BufferError("the buffer is read-only")
            room = nbytes or view.nbytes
            if not 0 <= nbytes <= view.nbytes:
                raise ValueError(f"{nbytes} bytes do not fit into {view.nbytes}")
            view.cast("B").release()  # raises TypeError for non-contiguous memory before a message is taken
        part = self.recv(flags, copy=False)
        length = min(room, len(part))
        if length:
            with memoryview(buffer).cast("B") as target:
                pour(target[:length], part.buffer[:length])
        return len(part)

    def _hinted(self, error: Again) -> Again:
        """Replaces the error by a description of the missing peer, if that is the reason."""
        links = self._links
        if not links.state.endpoints or any(not peer.pending for peer in list(links.state.peers.values())):
            return error
        found: Again = links.no_peer.error()
        return found

    def _ended(self, error: Closed) -> Closed:
        """Returns pyzmq's error of a closed socket: ETERM if its context was terminated."""
        if self.context._ending and not self._closed_by_user and not isinstance(error, ContextTerminated):
            return ContextTerminated("the context was terminated")
        return error

    # -- waiting -------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None, flags: int = PollEvent.POLLIN) -> int:
        """Returns the ready bits, after waiting `timeout` ms (None: without limit) for one of them."""
        if self.closed:
            error = self._ended(Closed("the socket is closed"))
            raise error if isinstance(error, ContextTerminated) else NotSupported(str(error))
        ready = wait([(self, events_of(flags))], timeout)
        return ready[0][1] if ready else 0

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when `events` may have changed."""
        try:
            fd: int = super().fileno()
        except Closed as error:
            raise self._ended(error) from None
        return fd

    def _ready_bits(self, bits: int) -> int:
        try:
            found: int = super()._ready_bits(bits)
        except Closed as error:
            raise self._ended(error) from None
        return found

    def subscribe(self, topic: str | bytes = b"") -> None:
        """Subscribes to messages that begin with `topic`."""
        try:
            super().subscribe(topic)
        except NotSupported as error:
            error.errno = errno.EINVAL
            raise

    def unsubscribe(self, topic: str | bytes = b"") -> None:
        """Removes one subscription; does nothing if there is none, as libzmq."""
        try:
            super().unsubscribe(topic)
        except NotSupported as error:
            error.errno = errno.EINVAL
            raise
        except UsageError:
            return

    def join(self, group: str) -> None:
        raise NotSupported("RADIO and DISH are draft socket types, which do not exist here")

    leave = join

    # -- options -------------------------------------------------------------------------------

    def _base_set(self, name: str, value: Any) -> None:
        if name in ("subscribe", "unsubscribe"):
            getattr(self, name)(value)
        elif name == "hwm":
            self.set_hwm(value)
        else:
            object.__setattr__(self, name, value)

    def _base_get(self, name: str) -> Any:
        return getattr(self, name)

    def _check_open(self) -> None:
        if self.closed:
            raise self._ended(Closed("the socket is closed"))

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:1] == "_" or name == "last_endpoint" or "_ready" not in self.__dict__:
            super().__setattr__(name, value)
        elif not self._set_attribute(name, value):
            if name not in self.__dict__ and not hasattr(type(self), name):
                raise self._no_such(name)
            super().__setattr__(name, value)

    def _new_pair(self) -> Any:
        return Socket(self.context, SocketType.PAIR)

    # -- the end -------------------------------------------------------------------------------

    def close(self, linger: float | None = None) -> None:
        """Closes at once; queued messages are still delivered within `linger` ms (default: the option).

        `Context.term` waits for that. Idempotent.
        """
        linger = linger_of(linger)
        if self.closed or self._inherited:
            return
        self._closed_by_user = not self.context._ending
        watch = self.__dict__.get("_async_watch")
        if watch is not None:
            watch.close()
        wanted = self.linger if linger is None else linger
        if wanted and has_unsent(self):
            self._values["linger"] = int(wanted)
            hand_over(self, Base)
        else:
            Base.close(self, 0)
        self.disable_monitor()

    def __del__(self) -> None:
        # As in pyzmq, sent messages are delivered even if the program never closed the socket.
        if not getattr(self, "closed", True) and not getattr(self, "_inherited", True):
            name = repr(self)
            self.close()
            warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        return f"<zmq.Socket(zmq.{self._kind.name}) at {id(self):#x}{' closed' if self.closed else ''}>"


SyncSocket = Socket


def _payload(data: Any) -> Any:
    """Returns data that the core can send. Raises ArgumentError."""
    if isinstance(data, core.Frame):
        return data.data
    if isinstance(data, str):
        raise not_a_buffer(data)
    return data


def buffer_of(given: Any) -> memoryview:
    """Returns the memory of an argument. Raises ArgumentError."""
    try:
        return memoryview(given)
    except TypeError:
        raise wrong("the memory to receive into", given, "a bytearray, or an array") from None


def parts_of(given: Any) -> None:
    """Checks a list of parts. Raises ArgumentError if it is none, UsageError if it is empty."""
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Sequence):
        raise wrong("the parts of a message", given, "a list; send() sends one part")
    if not given:
        raise UsageError("a message has at least one part")


def _size(data: Any) -> int:
    """Returns the bytes of a buffer. Raises ArgumentError."""
    try:
        with memoryview(data) as view:
            return view.nbytes
    except TypeError:
        raise not_a_buffer(data) from None


def _part(index: int, part: Any) -> Any:
    """Checks one part of several, before anything is sent. Raises ArgumentError."""
    if not isinstance(part, core.Frame):
        try:
            memoryview(part).release()
        except TypeError:
            error = not_a_buffer(part)
            raise ArgumentError(f"part {index} ({part!r:.40}): {error}") from None
    return _payload(part)
