"""Sockets whose blocking calls are coroutines, with the names and semantics of `zmq.asyncio`.

Every call first tries without waiting, so a busy socket costs one coroutine and no pass of the event
loop. Where a call must wait, the loop watches a descriptor; no other thread runs. A cancelled call loses no
message: only the call that returns a message takes it.
"""

# Types forbid a coroutine that overrides a plain method; this module does so on purpose.
# mypy: disable-error-code="override"

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from transfer.constants import DONTWAIT, POLLIN
from transfer.json_text import decoder
from transfer.sockets.async_poller import LATER, SOON, Poller as Poller, wait
from transfer.sockets.connections.no_peer import LongWait
from transfer.sockets.context import Context as _Context
from transfer.sockets.parts import encoded, json_of, pour_frame
from transfer.sockets.readiness import Readiness, wake, watch
from transfer.sockets.socket import SocketMethods, socket_of
from transfer.transports.arguments import decoder_of, events_of, flags_of, seconds, sequence, whole
from transfer.transports.core.copies import room_in
from transfer.transports.errors import Again, NotSupported

if TYPE_CHECKING:
    from enum import Enum
    from typing import Unpack

    from transfer.patterns import Pattern
    from transfer.sockets.options import SocketOptions
    from transfer.sockets.tracker import Tracker
    from transfer.tensors.methods import Topic
    from transfer.transports.core.contract import Buffer, Frame
    from transfer.transports.core.wire import SocketType

T = TypeVar("T")

#: calls that succeed at once, or seconds of calls with tensors or many parts, before other tasks run, which
#: must not starve. 64 KiB count as one call more
_TURN, _TURN_SECONDS = 256, 0.01


class Socket(SocketMethods):
    """A socket whose blocking methods are coroutines. Use it from one event loop at a time.

    Each coroutine takes the arguments of the method of the same name of `transfer.Socket`, returns and raises
    the same.
    """

    if TYPE_CHECKING:
        _sync_send: Callable[..., Tracker | None]
        _sync_recv: Callable[..., bytes | Frame]

    _readiness: Readiness | None = None
    _turn_began = 0.0

    # -- receiving -----------------------------------------------------------------------------

    @overload
    async def recv(self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...) -> bytes: ...
    @overload
    async def recv(self, flags: int = ..., *, copy: Literal[False], track: bool = ...) -> Frame: ...
    @overload
    async def recv(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> bytes | Frame: ...
    async def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> bytes | Frame:
        """Receives one part, as `Socket.recv`. Raises Again after `rcvtimeo`, or at once with DONTWAIT."""
        row = self._immediate_calls
        row[0] += 1
        if row[0] > _TURN:
            await self._yield()
        flags = flags_of(flags)
        try:
            data = self._sync_recv(flags | DONTWAIT, copy)
            row[0] += len(data) >> 16
            return data
        except Again:
            if flags & DONTWAIT:
                raise
        return await self._when_readable(functools.partial(self._sync_recv, DONTWAIT, copy))

    @overload
    async def recv_multipart(
        self, flags: int = ..., copy: Literal[True] = ..., track: bool = ...
    ) -> list[bytes]: ...
    @overload
    async def recv_multipart(
        self, flags: int = ..., *, copy: Literal[False], track: bool = ...
    ) -> list[Frame]: ...
    @overload
    async def recv_multipart(self, flags: int = ..., copy: bool = ..., track: bool = ...) -> list[Any]: ...
    async def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[Any]:
        """Receives all parts of one message, as `Socket.recv_multipart`."""
        return await self._receive_by(super().recv_multipart, flags, copy=copy)

    async def recv_many(self, most: int, flags: int = 0) -> list[Any]:
        """Receives messages that are here already, and waits only for the first, as `Socket.recv_many`."""
        receive = super().recv_many
        return await self._receive_by(lambda own: receive(most, own), flags)

    async def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Receives one part as text, as `Socket.recv_string`."""
        decoder_of(encoding)
        return (await self.recv(flags)).decode(encoding)

    async def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Receives one part of JSON, as `Socket.recv_json`."""
        decode = decoder(kwargs)
        return decode(await self.recv(flags))

    async def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Receives one part into memory of the caller, as `Socket.recv_into`."""
        target = room_in(buffer, nbytes)
        return pour_frame(await self.recv(flags, copy=False), target)

    @overload
    async def recv_tensor(
        self, flags: int = ..., *, out: None = ..., like: Any = ..., device: Any = ...
    ) -> Any: ...
    @overload
    async def recv_tensor(self, flags: int = ..., *, out: T, like: Any = ..., device: Any = ...) -> T: ...
    async def recv_tensor(
        self, flags: int = 0, *, out: Any = None, like: Any = None, device: Any = None
    ) -> Any:
        """Receives one tensor, as `Socket.recv_tensor`."""
        return await self._receive_by(super().recv_tensor, flags, out=out, like=like, device=device)

    async def recv_tensors(
        self, flags: int = 0, *, out: Mapping[str, Any] | None = None, like: Any = None, device: Any = None
    ) -> tuple[dict[str, Any], Any]:
        """Receives a dict of tensors and its metadata, as `Socket.recv_tensors`."""
        return await self._receive_by(super().recv_tensors, flags, out=out, like=like, device=device)

    async def recv_tensors_from(
        self, flags: int = 0, *, like: Any = None
    ) -> tuple[bytes, dict[str, Any], Any]:
        """Receives a dict of tensors at a ROUTER, as `Socket.recv_tensors_from`."""
        return await self._receive_by(super().recv_tensors_from, flags, like=like)

    async def recv_frames(self, flags: int = 0) -> list[Frame | bytes]:
        """Receives the frames of one message, as `Socket.recv_frames`."""
        return await self._receive_by(super().recv_frames, flags)

    async def _receive_by(self, call: Callable[..., T], flags: int, **kwargs: Any) -> T:
        await self._take_turn()
        flags = flags_of(flags)
        try:
            return call(flags | DONTWAIT, **kwargs)
        except Again:
            if flags & DONTWAIT:
                raise
        return await self._when_readable(functools.partial(call, DONTWAIT, **kwargs))

    async def _when_readable(self, call: Callable[[], T]) -> T:
        timeout = self.receive_timeout
        if timeout < 0:
            return await self._try_when_readable(call)
        try:
            async with asyncio.timeout(timeout / 1000):
                return await self._try_when_readable(call)
        except TimeoutError:
            try:
                return call()  # the message may have arrived in the moment of the timeout
            except Again as error:
                raise self._links.no_peer.explained(error) from None

    async def _try_when_readable(self, call: Callable[[], T]) -> T:
        waiting = LongWait(asyncio.get_running_loop(), self)
        try:
            while True:
                await self._input().wait()
                try:
                    return call()
                except Again:
                    continue
        finally:
            waiting.close()

    def _input(self) -> Readiness:
        loop = asyncio.get_running_loop()
        known = self._readiness
        if known is None or known.loop is not loop:
            if known is not None:
                known.close()
            self._readiness = known = Readiness(loop, self.fileno())
        return known

    async def _take_turn(self) -> None:
        """Before a call that may take long: lets other tasks run after many, or after some time."""
        row = self._immediate_calls
        row[0] += 1
        if row[0] > _TURN or time.monotonic() - self._turn_began > _TURN_SECONDS:
            await self._yield()

    async def _yield(self) -> None:
        self._immediate_calls[0] = 0
        await asyncio.sleep(0)
        self._turn_began = time.monotonic()

    # -- sending -------------------------------------------------------------------------------

    @overload
    async def send(
        self, data: Buffer, flags: int = ..., copy: bool = ..., *, track: Literal[True]
    ) -> Tracker: ...
    @overload
    async def send(
        self, data: Buffer, flags: int = ..., copy: bool = ..., track: bool = ...
    ) -> Tracker | None: ...
    async def send(
        self, data: Buffer, flags: int = 0, copy: bool = True, track: bool = False
    ) -> Tracker | None:
        """Sends one part, as `Socket.send`. Raises Again after `sndtimeo`, or at once with DONTWAIT."""
        row = self._immediate_calls
        row[0] += 1
        if row[0] > _TURN:
            await self._yield()
        flags = flags_of(flags)
        row[0] += len(data) >> 16 if type(data) is bytes else 4  # others: a guess
        try:
            return self._sync_send(data, flags | DONTWAIT, copy, track)
        except Again:
            if flags & DONTWAIT:
                raise
        return await self._when_writable(
            functools.partial(self._sync_send, data, flags | DONTWAIT, copy, track)
        )

    @overload
    async def send_multipart(
        self, msg_parts: Sequence[Buffer], flags: int = ..., copy: bool = ..., *, track: Literal[True]
    ) -> Tracker: ...
    @overload
    async def send_multipart(
        self, msg_parts: Sequence[Buffer], flags: int = ..., copy: bool = ..., track: bool = ...
    ) -> Tracker | None: ...
    async def send_multipart(
        self, msg_parts: Sequence[Buffer], flags: int = 0, copy: bool = True, track: bool = False
    ) -> Tracker | None:
        """Sends several parts as one message, as `Socket.send_multipart`."""
        return await self._send_by(super().send_multipart, msg_parts, flags=flags, copy=copy, track=track)

    async def send_many(self, messages: Iterable[Buffer], flags: int = 0) -> int:
        """Sends each of these as a message of one part, as `Socket.send_many`."""
        left, done = list(sequence(messages, "the messages", "bytes; send() sends one")), 0
        while left:
            try:
                sent = await self._send_by(super().send_many, left, flags=flags)
            except Again:
                if done:
                    break
                raise
            done, left = done + sent, left[sent:]
        return done

    async def send_string(self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8") -> None:
        """Sends a text as one part, as `Socket.send_string`."""
        await self.send(encoded(u, encoding), flags, copy)

    async def send_json(self, obj: Any, flags: int = 0, **kwargs: Any) -> None:
        """Sends an object as JSON, as `Socket.send_json`."""
        await self.send(json_of(obj, kwargs), flags)

    @overload
    async def send_tensor(
        self, tensor: Any, flags: int = ..., *, topic: Topic = ..., copy: Literal[False], track: bool = ...
    ) -> Tracker: ...
    @overload
    async def send_tensor(
        self,
        tensor: Any,
        flags: int = ...,
        *,
        topic: Topic = ...,
        copy: bool | None = ...,
        track: Literal[True],
    ) -> Tracker: ...
    @overload
    async def send_tensor(
        self, tensor: Any, flags: int = ..., *, topic: Topic = ..., copy: bool | None = ..., track: bool = ...
    ) -> Tracker | None: ...
    async def send_tensor(
        self,
        tensor: Any,
        flags: int = 0,
        *,
        topic: bytes | str | None = None,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends one tensor, as `Socket.send_tensor`."""
        return await self._send_by(
            super().send_tensor, tensor, flags=flags, topic=topic, copy=copy, track=track
        )

    @overload
    async def send_tensors(
        self,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        topic: Topic = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: Literal[True],
    ) -> Tracker: ...
    @overload
    async def send_tensors(
        self,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        topic: Topic = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: bool = ...,
    ) -> Tracker | None: ...
    async def send_tensors(
        self,
        tensors: Mapping[str, Any],
        *,
        meta: Any = None,
        topic: bytes | str | None = None,
        flags: int = 0,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends a dict of tensors and metadata, as `Socket.send_tensors`."""
        return await self._send_by(
            super().send_tensors, tensors, meta=meta, topic=topic, flags=flags, copy=copy, track=track
        )

    @overload
    async def send_tensors_to(
        self,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: Literal[True],
    ) -> Tracker: ...
    @overload
    async def send_tensors_to(
        self,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: bool = ...,
    ) -> Tracker | None: ...
    async def send_tensors_to(
        self,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = None,
        flags: int = 0,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends a dict of tensors from a ROUTER to one peer, as `Socket.send_tensors_to`."""
        return await self._send_by(
            super().send_tensors_to, identity, tensors, meta=meta, flags=flags, copy=copy, track=track
        )

    async def send_frames(
        self,
        frames: Sequence[tuple[bytes | None, bytes | None, int, Any]],
        flags: int = 0,
        *,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends one message of frames, as `Socket.send_frames`."""
        return await self._send_by(super().send_frames, frames, flags=flags, copy=copy, track=track)

    async def _send_by(self, call: Callable[..., T], *args: Any, flags: int, **kwargs: Any) -> T:
        await self._take_turn()
        flags = flags_of(flags)
        again = functools.partial(call, *args, flags=flags | DONTWAIT, **kwargs)
        try:
            return again()
        except Again:
            if flags & DONTWAIT:
                raise
        return await self._when_writable(again)

    async def _when_writable(self, call: Callable[[], T]) -> T:
        timeout = self.send_timeout
        waiting = LongWait(asyncio.get_running_loop(), self)
        try:
            async with asyncio.timeout(timeout / 1000 if timeout >= 0 else None):
                pause = SOON
                while True:
                    await self._until_room(pause)
                    pause = min(2 * pause, LATER)
                    try:
                        return call()
                    except Again:
                        continue
        except TimeoutError:
            return call()
        finally:
            waiting.close()

    async def _until_room(self, pause: float) -> None:
        """Waits until a full connection has room, at most for the pause. There may be no peer, or one without
        a descriptor."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        # By rdma the connection's descriptor is always writable: the pause ends the wait.
        streams = (stream for stream in self._streams() if not getattr(stream, "by_rdma", False))
        fds = [fd for fd in (getattr(stream, "fd", -1) for stream in streams) if fd >= 0]
        # Two tasks may wait on one socket, and a loop allows one writer for each descriptor.
        fds = [fd for fd in fds if fd not in self._watched_for_room and watch(loop, fd, ready)]
        self._watched_for_room.update(fds)
        timer = loop.call_later(pause, wake, ready)
        try:
            await ready
        finally:
            timer.cancel()
            for fd in fds:
                loop.remove_writer(fd)
                self._watched_for_room.discard(fd)
        if not timer.when() <= loop.time():
            # The kernel has room and the queue in front of it is full: let the flusher run.
            await asyncio.sleep(0)

    @functools.cached_property
    def _immediate_calls(self) -> list[int]:
        """The number of calls that succeeded at once. In a list, which is faster to set than an attribute."""
        return [0]

    @functools.cached_property
    def _watched_for_room(self) -> set[int]:
        return set()

    # -- polling, peers, closing ---------------------------------------------------------------

    async def poll(self, timeout: float | None = None, flags: int = POLLIN) -> int:
        """Waits until the socket is ready, as `Socket.poll`; `timeout` in milliseconds."""
        ready = await wait([(self, events_of(flags))], timeout)
        return ready[0][1] if ready else 0

    async def peers_ready(self, n: int = 1, timeout: float | None = 30.0) -> None:
        """Waits until `n` peers are connected, as `Socket.wait_for_peers`, without blocking the loop.
        `timeout` in seconds; None waits without limit."""
        n, timeout = whole(n, "n"), seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = SOON
        waiting = LongWait(asyncio.get_running_loop(), self)
        try:
            while not self._has_peers(n):
                left = LATER if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise self._links.no_peer.too_few(n, timeout)
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, LATER)
        finally:
            waiting.close()

    def set_callback(self, callback: Any) -> None:
        """Raises NotSupported: a task that awaits `recv_multipart` does the same."""
        raise NotSupported("a callback is for sockets of a plain Context: await recv_multipart() in a task")

    def close(self, linger: float | None = None) -> int:
        """Closes the socket, as `Socket.close`. It blocks the event loop for at most `linger` ms."""
        if self._readiness is not None:
            self._readiness.end()  # before its descriptor is closed
        return super().close(linger)


#: `Socket` as it is at run time, before `socket_class` puts it over a core
AsyncMethods = Socket


@functools.cache
def socket_class(core: Any) -> type[Socket]:
    """Makes the Socket class of this module over a core."""
    base = core.SocketBase
    names = {"_sync_send": base.send, "_sync_recv": base.recv}
    names |= {"__module__": __name__, "__doc__": AsyncMethods.__doc__}
    return type("Socket", (AsyncMethods, base), names)


class Context(_Context):
    """A `transfer.Context` that makes the sockets of this module."""

    def _socket_class(self) -> type:
        return socket_class(self.core)

    if TYPE_CHECKING:

        def socket(
            self,
            socket_type: SocketType | str | Enum,
            *,
            pattern: type[Pattern] | None = None,
            **options: Unpack[SocketOptions],
        ) -> Socket: ...


if not TYPE_CHECKING:
    AsyncMethods.__name__ = AsyncMethods.__qualname__ = "AsyncMethods"
    del Socket
    __getattr__ = socket_of(__name__, socket_class)
