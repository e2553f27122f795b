"""zmq.asyncio over `transfer`: blocking methods return futures of the running loop.

`transfer.asyncio` is faster for new programs: its methods are coroutines, and a call that need not wait makes
no future.
"""

# Types forbid a method that returns a future instead of the result; pyzmq's socket does so on purpose.
# mypy: disable-error-code="override"

from __future__ import annotations

import asyncio
import os
import warnings
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from transfer.constants import DONTWAIT
from transfer.sockets.poller import wait
from transfer.transports.arguments import events_of, flags_of, milliseconds, sequence
from transfer.transports.errors import Again, NotSupported
from transfer.zmq import context as _context, derived as _derived, poll as _poll, socket as _socket
from transfer.zmq.constants import PollEvent
from transfer.zmq.pending_futures import Watch

if TYPE_CHECKING:
    from transfer.transports.core.contract import Buffer
    from transfer.zmq.frame import Frame
    from transfer.zmq.tracker import MessageTracker

    Front = _socket.Socket[Future[Any]]
else:
    Front = _derived.DerivedSocket

__all__ = ["Context", "Poller", "Socket", "ZMQEventLoop", "install"]

T = TypeVar("T")


class Socket(Front):
    """A socket whose send, recv and poll return futures. All other methods are those of the plain socket.

    Use it from one event loop at a time. `Socket(other)` and `from_socket` make another view of the same
    socket: closing one closes both.
    """

    _transfer_watch: Watch

    def __init__(
        self,
        context: Any = None,
        socket_type: int | str | Enum = -1,
        io_loop: Any = None,
        _from_socket: Any = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(context, _socket.Socket):
            context, _from_socket = None, context
        sync: _socket.Socket
        if _from_socket is not None:
            sync = _socket.Socket.shadow(_from_socket)
        else:
            sync = _socket.Socket(context, socket_type, **kwargs)
        _derived.attach(self, sync, _from_socket is not None)
        self._transfer_watch = sync.__dict__.setdefault("_async_watch", Watch(sync))

    @classmethod
    def from_socket(cls, socket: _socket.Socket[Any], io_loop: Any = None) -> Self:
        """Makes a view of a plain or asyncio socket."""
        return cls(_from_socket=socket)

    @classmethod
    def shadow(cls, address: Any) -> Self:
        """The same as `from_socket`."""
        return cls(_from_socket=address)

    def __copy__(self, memo: Any = None) -> Self:
        return type(self)(_from_socket=self)

    __deepcopy__ = __copy__

    def __repr__(self) -> str:
        return repr(self._transfer_socket).replace("zmq.Socket", "zmq.asyncio.Socket", 1)

    # -- futures -------------------------------------------------------------------------------

    @overload
    def recv(self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...) -> Future[bytes]: ...
    @overload
    def recv(self, flags: int = ..., *, copy: Literal[False], track: bool = ...) -> Future[Frame]: ...
    @overload
    def recv(self, flags: int, copy: Literal[False], track: bool = ...) -> Future[Frame]: ...
    @overload
    def recv(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> Future[Any]: ...
    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Future[Any]:
        """Returns a future of one part."""
        watch, sync = self._transfer_watch, self._transfer_socket
        if flags == 0 and not watch.receivers:
            future = watch.at_once(sync.recv, DONTWAIT, copy)
            if future is not None:
                return future
        return self._transfer_receive(lambda: self._transfer_socket.recv(DONTWAIT, copy), flags)

    _transfer_recv = recv

    @overload
    def recv_multipart(
        self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...
    ) -> Future[list[bytes]]: ...
    @overload
    def recv_multipart(
        self, flags: int = ..., *, copy: Literal[False], track: bool = ...
    ) -> Future[list[Frame]]: ...
    @overload
    def recv_multipart(self, flags: int, copy: Literal[False], track: bool = ...) -> Future[list[Frame]]: ...
    @overload
    def recv_multipart(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> Future[list[Any]]: ...
    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Future[Any]:
        """Returns a future of all parts of a message."""
        watch, sync = self._transfer_watch, self._transfer_socket
        if flags == 0 and not watch.receivers:
            future = watch.at_once(sync.recv_multipart, DONTWAIT, copy)
            if future is not None:
                return future
        return self._transfer_receive(lambda: self._transfer_socket.recv_multipart(DONTWAIT, copy), flags)

    def recv_into(self, buf: Any, /, *, nbytes: int = 0, flags: int = 0) -> Future[int]:
        """Returns a future of the length of one part, received into writable memory."""
        return self._transfer_receive(
            lambda: self._transfer_socket.recv_into(buf, nbytes=nbytes, flags=DONTWAIT), flags
        )

    @overload
    def send(
        self, data: Buffer, flags: int = ..., *, copy: Literal[False], track: Literal[True]
    ) -> Future[MessageTracker]: ...
    @overload
    def send(
        self, data: Buffer, flags: int = ..., copy: bool = ..., track: bool = ...
    ) -> Future[MessageTracker | None]: ...
    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Future[Any]:
        """Returns a future that is done when the socket has taken the part."""
        watch, sync = self._transfer_watch, self._transfer_socket
        if flags == 0 and not watch.senders:
            future = watch.at_once(sync.send, data, DONTWAIT, copy, track)
            if future is not None:
                return future
        own = flags_of(flags) | DONTWAIT
        return self._transfer_send(lambda: self._transfer_socket.send(data, own, copy, track), flags)

    @overload
    def send_multipart(
        self, msg_parts: Sequence[Buffer], flags: int = ..., *, copy: Literal[False], track: Literal[True]
    ) -> Future[MessageTracker]: ...
    @overload
    def send_multipart(
        self, msg_parts: Sequence[Buffer], flags: int = ..., copy: bool = ..., track: bool = ...
    ) -> Future[MessageTracker | None]: ...
    def send_multipart(
        self, msg_parts: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False
    ) -> Future[Any]:
        """Returns a future that is done when the socket has taken the message."""
        watch, sync = self._transfer_watch, self._transfer_socket
        if flags == 0 and not watch.senders:
            future = watch.at_once(sync.send_multipart, msg_parts, DONTWAIT, copy, track)
            if future is not None:
                return future
        own = flags_of(flags) | DONTWAIT
        return self._transfer_send(
            lambda: self._transfer_socket.send_multipart(msg_parts, own, copy, track), flags
        )

    def recv_many(self, most: int, flags: int = 0) -> Future[list[Any]]:
        """Returns a future of messages that are here; it waits only for the first."""
        own = flags_of(flags) | DONTWAIT
        return self._transfer_receive(lambda: self._transfer_socket.recv_many(most, own), flags)

    def send_many(self, messages: Iterable[Buffer], flags: int = 0) -> Future[int]:
        """Returns a future of the number of messages that the socket has taken, of one part each."""
        own, given = flags_of(flags) | DONTWAIT, list(sequence(messages, "the messages", "bytes"))
        return self._transfer_send(lambda: self._transfer_socket.send_many(given, own), flags)

    def poll(self, timeout: float | None = None, flags: int = PollEvent.POLLIN) -> Future[int]:
        """Returns a future of the ready bits; 0 after `timeout` ms."""
        if self.closed:
            raise NotSupported("the socket is closed")
        bits, limit = events_of(flags), milliseconds(timeout)
        return self._transfer_watch.begin(
            self._transfer_watch.pollers,
            lambda: _found(self._transfer_socket._ready_bits(bits)),
            -1 if limit is None or limit < 0 else limit / 1000,
            lambda future: future.set_result(0),
        )

    if TYPE_CHECKING:  # methods of `Serialising`, with futures

        def send_string(
            self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8", **kwargs: Any
        ) -> Future[MessageTracker | None]: ...
        def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> Future[str]: ...

        send_unicode = send_string  # type: ignore[assignment]
        recv_unicode = recv_string  # type: ignore[assignment]

        def send_json(self, obj: object, flags: int = 0, **kwargs: Any) -> Future[None]: ...
        def recv_json(self, flags: int = 0, **kwargs: Any) -> Future[Any]: ...
        def send_pyobj(
            self, obj: object, flags: int = 0, protocol: int = ..., **kwargs: Any
        ) -> Future[MessageTracker | None]: ...
        def recv_pyobj(self, flags: int = 0) -> Future[Any]: ...
        def send_serialized(
            self,
            msg: T,
            serialize: Callable[[T], Sequence[Buffer]],
            flags: int = 0,
            copy: bool = True,
            **kwargs: Any,
        ) -> Future[MessageTracker | None]: ...
        def recv_serialized(
            self, deserialize: Callable[[list[Any]], T], flags: int = 0, copy: bool = True
        ) -> Future[T]: ...

    def _transfer_receive(self, attempt: Callable[[], Any], flags: int) -> Future[Any]:
        limit = _seconds(self._transfer_socket.receive_timeout, flags_of(flags))
        return self._transfer_watch.begin(self._transfer_watch.receivers, attempt, limit, _time_out)

    def _transfer_send(self, attempt: Callable[[], Any], flags: int) -> Future[Any]:
        return self._transfer_watch.begin(
            self._transfer_watch.senders,
            attempt,
            _seconds(self._transfer_socket.send_timeout, flags),
            _time_out,
        )

    def _deserialize(self, recvd: Any, load: Callable[[Any], Any]) -> Any:
        return self._transfer_watch.amend(recvd, load)


def _seconds(timeout: int, flags: int) -> float:
    return 0 if flags & DONTWAIT else timeout / 1000 if timeout >= 0 else -1


def _time_out(future: Future[Any]) -> None:
    future.set_exception(Again("nothing happened within the timeout"))


def _found(result: Any) -> Any:
    """Returns the result unless it is empty. Raises Again."""
    if not result:
        raise Again
    return result


class Poller(_poll.Poller):
    """A Poller whose `poll` returns a future. Accepts plain sockets and descriptors, too."""

    def poll(self, timeout: float | None = -1) -> Future[list[tuple[Any, int]]]:
        """Returns a future of the ready entries; an empty list after `timeout` ms."""
        entries = [(_poll._known(thing), int(bits)) for thing, bits in self.sockets]
        timeout = milliseconds(timeout)
        future: Future[Any] = asyncio.get_running_loop().create_future()
        ready = wait(entries, 0)
        if ready or timeout == 0:
            future.set_result(_derived.as_given(ready, self.sockets))
            return future
        return asyncio.ensure_future(_first_ready(entries, timeout, list(self.sockets)))


async def _first_ready(
    entries: list[tuple[Any, int]], timeout: float | None, given: list[tuple[Any, int]]
) -> list[tuple[Any, int]]:
    """Waits for any of the entries; stops watching them at the end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    copies: list[int] = []
    views: list[Future[Any]] = []

    def wake(*_: object) -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        for thing, bits in entries:
            if hasattr(thing, "_ready_bits"):
                views.append(asyncio.ensure_future(Socket(_from_socket=thing).poll(None, bits)))
                views[-1].add_done_callback(wake)
                continue
            # A copy, since a loop has one reader for each descriptor, and other tasks may use it.
            copies.append(os.dup(thing))
            if bits & PollEvent.POLLIN:
                loop.add_reader(copies[-1], wake)
            if bits & PollEvent.POLLOUT:
                loop.add_writer(copies[-1], wake)
        limit = None if timeout is None or timeout < 0 else timeout / 1000
        await asyncio.wait({ready}, timeout=limit)
        return _derived.as_given(wait(entries, 0), given)
    finally:
        for view in views:
            view.cancel()
        for fd in copies:
            loop.remove_reader(fd)
            loop.remove_writer(fd)
            os.close(fd)


class Context(_context.Context[Socket]):
    """A Context whose sockets return futures."""

    _instance = None
    _socket_class = Socket


class ZMQEventLoop(asyncio.SelectorEventLoop):
    """Deprecated, as in pyzmq: any event loop works."""

    def __init__(self, selector: Any = None) -> None:
        install()
        super().__init__(selector)


def install() -> None:
    """Deprecated, as in pyzmq: nothing needs to be installed."""
    warnings.warn("no special event loop is needed", DeprecationWarning, stacklevel=2)
