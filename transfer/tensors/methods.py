"""Sending and receiving tensors: the methods that `Socket` inherits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from transfer.constants import DONTWAIT
from transfer.tensors.build import builder_for
from transfer.tensors.bundle import OutFrame, frames_of
from transfer.tensors.export import export, on_device
from transfer.tensors.gpu_path import send_from_device
from transfer.tensors.receive import (
    Sink,
    receive_bundle,
    receive_bundle_from,
    receive_into,
    receive_one,
)
from transfer.tensors.target import target_for
from transfer.transports.arguments import flags_of, octets, wrong
from transfer.transports.core.wire import MAX_TOPIC
from transfer.transports.errors import UsageError

T = TypeVar("T")


class FrameSender(Protocol):
    """What sending tensors needs of a socket; nothing else is used.

    `_send_outframes`: one message, by the socket's pattern. `flags`: DONTWAIT, SNDMORE. `copy`:
    None means by `copy_threshold`, False holds the memory and returns a tracker. Returns what
    `send` returns. Compression is the socket's business.

    `_send_known`: sends a tensor that looks like one given to `_note_known`, as `_send_outframes`
    would without topic and tracker; False: nothing was done. `_note_known`: how a tensor was
    exported whose memory travels as it is.
    """

    def _send_outframes(self, frames: list[OutFrame], flags: int, track: bool, copy: bool | None) -> Any: ...

    def _send_known(self, tensor: Any, flags: int) -> bool: ...

    def _note_known(self, tensor: Any, flags: int, header: bytes) -> None: ...


class FrameReceiver(Protocol):
    """What receiving tensors needs of a socket.

    `_recv_frames`: one whole message, envelope stripped, the pattern's state advanced. The sink is
    not asked for compressed frames, and these come out still compressed. If the sink raises
    ProtocolError, the connection ends as after any other, and the wait goes on; if it raises
    something else, that comes out when the message is whole, and the next call receives it.

    `_unreceive`: what `_recv_frames` gave just now is received again by the next call.

    `_sound`: what `receive(*arguments)` returns. If it raises ProtocolError, for what only shows
    after a message was read, the connection ends as above, and the next message is tried.
    """

    def _recv_frames(self, flags: int, sink: Sink | None) -> list[Any]: ...

    def _unreceive(self, frames: list[Any]) -> None: ...

    def _sound(self, receive: Callable[..., T], *arguments: Any) -> T: ...


class TensorMethods:
    """`send_tensor`, `recv_tensor`, `send_tensors`, `recv_tensors`. Thread-safe as the socket is."""

    def send_tensor(
        self: FrameSender,
        tensor: Any,
        flags: int = 0,
        *,
        topic: bytes | str | None = None,
        copy: bool | None = None,
        track: bool = False,
    ) -> Any:
        """Sends one tensor: numpy, torch, or anything with DLPack or the buffer protocol.

        Dense memory (C, Fortran or any order of axes) is not copied from 64 KiB on; `copy=False`
        asks for that whatever the size, and then the memory must not change until the returned
        tracker is done; so does memory of `Context.empty`. A tensor on a device is staged through
        host memory, but for `copy=False` where every peer takes device pointers. Raises
        NotATensor, Again, and what the pattern raises.
        """
        if flags != 0:
            flags = flags_of(flags)
        common = copy is None and topic is None and not track and not flags & ~DONTWAIT
        if common and self._send_known(tensor, flags):
            return None
        if topic is not None:
            topic = _topic(topic)
        if copy is False and on_device(tensor):
            return send_from_device(self, tensor, topic, flags, track)
        bits, header, buffer = export(tensor)
        if common and buffer is tensor:
            self._note_known(tensor, bits, header)
        return self._send_outframes([(bits, 0, topic, header, buffer)], flags, track, copy)

    def recv_tensor(self: FrameReceiver, flags: int = 0, *, out: Any = None, like: Any = None) -> Any:
        """Receives one tensor, writable and owning its memory.

        A numpy array by default; `like=torch` (or a tensor) asks for that kind. With `out=` (a
        numpy array, a torch tensor, plain writable memory) the bytes are read straight into it if
        the order of axes allows, and `out` is returned.

        Raises TensorMismatch, before `out` is changed, when the next message is no tensor or does
        not fit `out`; the next receive of any kind gives that message. Raises Again after `rcvtimeo`.
        If the connection breaks in the middle, `out` may be overwritten in part.
        """
        if out is not None:
            return self._sound(receive_into, self, flags, target_for(out))
        return self._sound(receive_one, self, flags, builder_for(like))

    def send_tensors(
        self: FrameSender,
        tensors: Mapping[str, Any],
        *,
        meta: Any = None,
        topic: bytes | str | None = None,
        flags: int = 0,
        track: bool = False,
    ) -> Any:
        """Sends a dict of tensors and metadata (whatever JSON can say) as one message.

        Tensors below 64 KiB are packed together, others are sent from where they are. Raises
        NotATensor, UsageError (names, metadata), Again.
        """
        encoded = None if topic is None else _topic(topic)
        return self._send_outframes(frames_of(tensors, meta, encoded), flags_of(flags), track, None)

    def recv_tensors(
        self: FrameReceiver, flags: int = 0, *, out: Mapping[str, Any] | None = None, like: Any = None
    ) -> tuple[dict[str, Any], Any]:
        """Receives what `send_tensors` sent: (tensors by name, metadata).

        `out` maps every name that arrives to memory for it; `like` is as in `recv_tensor`. Small
        tensors of one message share one piece of memory, which lives as long as any of them.

        Raises TensorMismatch when the next message is no such dict, or when names, dtypes or shapes
        differ from `out`; the next receive of any kind gives that message.
        """
        if not (out is None or isinstance(out, Mapping)):
            raise wrong("out", out, "a dict of memory by name, as send_tensors() takes")
        targets = None if out is None else {name: target_for(memory) for name, memory in out.items()}
        return self._sound(receive_bundle, self, flags, builder_for(like), targets)

    def send_tensors_to(
        self: FrameSender,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = None,
        flags: int = 0,
        copy: bool | None = None,
        track: bool = False,
    ) -> Any:
        """As `send_tensors`, from a ROUTER to the peer with this identity.

        copy=False: large tensors are kept until they are sent, and a tracker tells when. Raises Unroutable
        if nobody has the identity and `router_mandatory` is set; else such a message is dropped.
        """
        named = octets(identity, "identity")
        frames: list[OutFrame] = [(0, 0, None, None, named), *frames_of(tensors, meta, None)]
        return self._send_outframes(frames, flags_of(flags), track, copy)

    def recv_tensors_from(
        self: FrameReceiver, flags: int = 0, *, like: Any = None
    ) -> tuple[bytes, dict[str, Any], Any]:
        """Receives at a ROUTER what a peer's `send_tensors` sent: (identity, tensors by name, metadata).

        Raises as `recv_tensors`.
        """
        return self._sound(receive_bundle_from, self, flags, builder_for(like))


def _topic(topic: bytes | str) -> bytes:
    encoded = octets(topic, "topic")
    if len(encoded) > MAX_TOPIC:
        raise UsageError(f"a topic of {len(encoded)} bytes; at most {MAX_TOPIC} can travel")
    return encoded
