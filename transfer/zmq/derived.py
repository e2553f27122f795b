"""Classes that a program derives from `zmq.Socket`: their objects stand in front of a plain socket.

As with pyzmq any private name is free for such a class, and methods call each other as pyzmq's do. So its
objects have only pyzmq's names and `_transfer_*`; all else belongs to the plain socket behind them. Plain
sockets pay nothing for it: their calls are the compiled ones.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self

from transfer.constants import SNDMORE
from transfer.objects.pyobj import loads
from transfer.sockets.attributes import no_such
from transfer.zmq import socket as plain
from transfer.zmq.constants import PollEvent, SocketOption
from transfer.zmq.endpoints import Bound
from transfer.zmq.metaclass import SocketMetaclass
from transfer.zmq.payload import check_parts, checked_part
from transfer.zmq.serial import Serialising
from transfer.zmq.sockopts import add_attributes


def plain_socket(sock: Any) -> Any:
    """Returns the plain socket behind `sock`; `sock` itself if it is one, or something else."""
    return getattr(sock, "_transfer_socket", sock)


def as_given(ready: list[tuple[Any, int]], sockets: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Returns what a poll of the plain sockets found, with the polled objects."""
    given = {id(plain_socket(thing)): thing for thing, _ in sockets if hasattr(thing, "_transfer_socket")}
    return [(given.get(id(thing), thing), bits) for thing, bits in ready] if given else ready


def attach(front: Any, sock: plain.Socket[Any], shadows: bool) -> None:
    """Puts an object of a subclass in front of a plain socket. shadows: another object owns the socket."""
    front.__dict__.update(_transfer_socket=sock, _transfer_shadows=shadows)
    if not shadows:
        sock._front = weakref.ref(front)


def close_front(sock: plain.Socket[Any], linger: float | None) -> None:
    """Closes a plain socket as pyzmq's contexts do: by the method of the program's class, if it has one."""
    front = None if sock._front is None else sock._front()
    if front is not None:
        if linger is not None:
            sock.linger = int(linger)
        front.close()
    sock.close(linger)


def declares(owner: Any, name: str) -> bool:
    """Whether the class of `owner` has an attribute of this name, or an annotation."""
    annotated = (vars(cls).get("__annotations__", ()) for cls in type(owner).__mro__)
    return hasattr(type(owner), name) or any(name in names for names in annotated)


class _NoSocket:
    """Stands for the plain socket of an object whose `__init__` has not run."""

    closed = True

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"call super().__init__() before {name} is used")


class DerivedSocket(Serialising, Generic[plain.Kind], metaclass=SocketMetaclass):
    """The base of classes that a program derives from Socket, and of asyncio's sockets."""

    #: of these and all other public names `_add_members` makes methods
    close: Callable[..., None]
    set: Callable[..., None]
    getsockopt: Callable[[int], int | bytes]

    _transfer_socket: Any = _NoSocket()
    _transfer_shadows = False

    def __init__(
        self,
        ctx_or_socket: Any = None,
        socket_type: Any = -1,
        *,
        shadow: Any = 0,
        copy_threshold: int | None = None,
    ) -> None:
        if shadow or plain_socket(ctx_or_socket) is not ctx_or_socket:
            attach(self, plain.Socket.shadow(shadow or ctx_or_socket), True)
        else:
            made = plain.Socket(ctx_or_socket, socket_type, copy_threshold=copy_threshold)
            attach(self, made, made is ctx_or_socket)

    @classmethod
    def shadow(cls, address: Any) -> Self:
        """Returns a view of the same socket. Addresses of libzmq's sockets raise ZMQError (EINVAL)."""
        return cls(shadow=address)

    def __copy__(self, memo: Any = None) -> Self:
        return type(self).shadow(self)

    __deepcopy__ = __copy__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        sock = self._transfer_socket
        if not (sock.closed or sock._inherited or self._transfer_shadows):
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __repr__(self) -> str:
        sock, cls = self._transfer_socket, type(self)
        kind = getattr(getattr(sock, "type", None), "name", "UNKNOWN")
        state = " closed" if sock.closed else ""
        name = getattr(
            cls, "_repr_cls", f"{cls.__module__}.{cls.__qualname__}"
        )  # pyzmq's, as `_poller_class`
        return f"<{name}(zmq.{kind}) at {id(self):#x}{state}>"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("subscribe", "unsubscribe") and name not in self.__dict__:
            self.set(SocketOption[name.upper()], value.encode() if isinstance(value, str) else value)
        elif name[:1] == "_" or name in self.__dict__ or declares(self, name):
            super().__setattr__(name, value)
        else:
            raise no_such(self, name)

    @property
    def context(self) -> Any:
        return self._transfer_socket.context

    def bind(self, addr: str) -> Any:
        return Bound(self, "bind", self._transfer_socket.bind(addr).addr)

    def connect(self, addr: str) -> Any:
        return Bound(self, "connect", self._transfer_socket.connect(addr).addr)

    # Not by `_method`, which takes three times as long.
    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return self._transfer_socket.send(data, flags, copy, track)

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return self._transfer_socket.recv(flags, copy, track)

    #: of asyncio's sockets: theirs
    _transfer_recv = recv

    def recv_pyobj(self, flags: int = 0) -> Any:
        """Receives an object; by the class's own `recv`, which need not take `copy`, if it has one."""
        if self.recv == self._transfer_recv:
            return super().recv_pyobj(flags)
        return self._deserialize(self.recv(flags), loads)

    def poll(self, timeout: float | None = None, flags: int = PollEvent.POLLIN) -> Any:
        """Waits by the Poller of the class, if it has one: that of zmq.green lets other greenlets run."""
        poller_class = getattr(self, "_poller_class", None)
        if poller_class is None:
            return self._transfer_socket.poll(timeout, flags)
        poller = poller_class()
        poller.register(self, flags)
        return dict(poller.poll(timeout)).get(self, 0)

    bind_to_random_port = plain.Socket.bind_to_random_port

    def send_multipart(self, msg_parts: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Sends all parts as one message; each by `send`, if the class has its own."""
        if getattr(self.send, "__func__", None) is _SEND:
            return self._transfer_socket.send_multipart(msg_parts, flags, copy, track)
        check_parts(msg_parts)
        for index, part in enumerate(msg_parts):
            checked_part(index, part)
        for part in msg_parts[:-1]:
            self.send(part, SNDMORE | flags, copy=copy, track=track)
        return self.send(msg_parts[-1], flags, copy=copy, track=track)

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Receives all parts of a message; each by `recv`, if the class has its own."""
        if getattr(self.recv, "__func__", None) is _RECV:
            return self._transfer_socket.recv_multipart(flags, copy, track)
        parts = [self.recv(flags, copy=copy, track=track)]
        while self.getsockopt(SocketOption.RCVMORE):
            parts.append(self.recv(flags, copy=copy, track=track))
        return parts


#: looked up at the object: the metaclass makes look-ups at the class slow
_SEND, _RECV = DerivedSocket.send, DerivedSocket.recv


def _method(name: str, method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._transfer_socket, name)(*args, **kwargs)

    return call


def _attribute(name: str, found: Any) -> property:
    def get(self: Any) -> Any:
        return getattr(self._transfer_socket, name)

    def put(self: Any, value: Any) -> None:
        setattr(self._transfer_socket, name, value)

    return property(get, put, doc=getattr(found, "__doc__", None))


def _add_members() -> None:
    """Adds the public names of plain sockets. Options go through `get` and `set`, as pyzmq's."""
    own = set(SocketOption.__members__) - {"TYPE", "RCVMORE", "LAST_ENDPOINT", "HWM", "FD", "EVENTS"}
    for name in dir(plain.Socket):
        if name[:1] == "_" or hasattr(DerivedSocket, name):
            continue
        found = getattr(plain.Socket, name)
        if callable(found):
            setattr(DerivedSocket, name, _method(name, found))
        elif name.upper() not in own:
            setattr(DerivedSocket, name, _attribute(name, found))
    add_attributes(DerivedSocket)


_add_members()
SocketMetaclass.plain, SocketMetaclass.derived_base = plain.Socket, DerivedSocket
