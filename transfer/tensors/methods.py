"""Sending and receiving tensors: the methods that `Socket` inherits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, overload

from transfer.constants import DONTWAIT
from transfer.tensors.build import builder_for
from transfer.tensors.bundle import OutFrame, frames_of
from transfer.tensors.bundle_arrival import receive_bundle, receive_bundle_from
from transfer.tensors.export import export, on_device
from transfer.tensors.gpu_builders import GpuBuilder, gpu_builder
from transfer.tensors.gpu_sending import send_bundle, send_from_device
from transfer.tensors.receive import Sink, receive_into, receive_one
from transfer.tensors.target import gpu_of, target_for
from transfer.transports.arguments import flags_of, octets, wrong
from transfer.transports.core.wire import MAX_TOPIC, SocketType
from transfer.transports.errors import NotSupported, UsageError

if TYPE_CHECKING:
    from transfer.sockets.tracker import Tracker

T = TypeVar("T")
Topic = bytes | str | None


class FrameSender(Protocol):
    """What sending tensors needs of a socket.

    `_send_outframes`: sends one message by the socket's pattern. `flags`: DONTWAIT, SNDMORE. `copy`: None
    decides by `copy_threshold`, False holds the memory and returns a tracker. Returns as `send`. The socket
    compresses.

    `_send_known`: sends a tensor that resembles one given to `_note_known`, like `_send_outframes` without
    topic and tracker; False: nothing was sent. `_note_known`: records how a tensor was exported whose memory
    is sent without a copy.
    """

    def _send_outframes(
        self, frames: list[OutFrame], flags: int, track: bool, copy: bool | None
    ) -> Tracker | None: ...

    def _send_known(self, tensor: Any, flags: int) -> bool: ...

    def _note_known(self, tensor: Any, flags: int, header: bytes) -> None: ...


class FrameReceiver(Protocol):
    """What receiving tensors needs of a socket.

    `_recv_frames`: receives one whole message, without envelope, and advances the pattern. The sink is not
    called for compressed frames, which are returned compressed. If the sink raises ProtocolError, the
    connection ends and the wait continues. If it raises another error, that is raised when the message is
    complete, and the next call receives the message.

    `_unreceive`: makes the next call receive the last message of `_recv_frames` again.

    `_receive_valid`: returns `receive(*arguments)`. If it raises ProtocolError, for an error found after
    reading, the connection ends as above, and the next message is tried.

    `_want_gpu`: peers may leave payloads on this GPU.
    """

    def _recv_frames(self, flags: int, sink: Sink | None) -> list[Any]: ...

    def _unreceive(self, frames: list[Any]) -> None: ...

    def _receive_valid(self, receive: Callable[..., T], *arguments: Any) -> T: ...

    def _want_gpu(self, uuid: bytes, index: int) -> None: ...


class TensorMethods:
    """The tensor methods of a socket. Thread-safe as the socket is."""

    @overload
    def send_tensor(
        self: FrameSender,
        tensor: Any,
        flags: int = ...,
        *,
        topic: Topic = ...,
        copy: Literal[False],
        track: bool = ...,
    ) -> Tracker: ...
    @overload
    def send_tensor(
        self: FrameSender,
        tensor: Any,
        flags: int = ...,
        *,
        topic: Topic = ...,
        copy: bool | None = ...,
        track: Literal[True],
    ) -> Tracker: ...
    @overload
    def send_tensor(
        self: FrameSender,
        tensor: Any,
        flags: int = ...,
        *,
        topic: Topic = ...,
        copy: bool | None = ...,
        track: bool = ...,
    ) -> Tracker | None: ...
    def send_tensor(
        self: FrameSender,
        tensor: Any,
        flags: int = 0,
        *,
        topic: bytes | str | None = None,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends one tensor: numpy, torch, CuPy, or any object with DLPack or the buffer protocol.

        Dense memory (C, Fortran or any order of axes) of 64 KiB or more is sent without a copy; by `local`
        with one copy into shared memory, unless it is of `Context.empty`. A tensor on a GPU stays there
        for a peer on this host that has asked for it by `device=` or `out=`; else it is copied through the
        host (see `gpu_staging`).

        Args:
            tensor: the tensor.
            flags: DONTWAIT, SNDMORE, or 0.
            topic: sent before the tensor, for subscriptions.
            copy: None copies small or non-contiguous tensors. False never copies dense memory and returns a
                Tracker; the memory must not change until the tracker is done.
            track: True returns a Tracker.

        Returns:
            A Tracker with `track`, `copy=False`, or memory of `Context.empty`; else None.

        Raises:
            NotATensor: the object is no tensor, or its dtype cannot travel.
            RegistrationError: with `gpu_staging=False`, a tensor would be copied through the host.
            Again, Closed, StateError, NotSupported: as in `send`.
        """
        if flags != 0:
            flags = flags_of(flags)
        common = copy is None and topic is None and not track and not flags & ~DONTWAIT
        if common and self._send_known(tensor, flags):
            return None
        if topic is not None:
            topic = _topic(topic)
        if on_device(tensor):
            return send_from_device(self, tensor, topic, flags, track, copy is False)
        bits, header, buffer = export(tensor)
        if common and buffer is tensor:
            self._note_known(tensor, bits, header)
        return self._send_outframes([(bits, 0, topic, header, buffer)], flags, track, copy)

    @overload
    def recv_tensor(
        self: FrameReceiver, flags: int = ..., *, out: None = ..., like: Any = ..., device: Any = ...
    ) -> Any: ...
    @overload
    def recv_tensor(
        self: FrameReceiver, flags: int = ..., *, out: T, like: Any = ..., device: Any = ...
    ) -> T: ...
    def recv_tensor(
        self: FrameReceiver, flags: int = 0, *, out: Any = None, like: Any = None, device: Any = None
    ) -> Any:
        """Receives one tensor, which is writable and owns its memory.

        Args:
            flags: DONTWAIT, or 0.
            out: memory to receive into: a numpy array, a torch tensor, an array on a GPU, or plain writable
                memory. The payload is read directly into it if the order of axes allows.
            like: the kind of tensor: `torch`, `"torch"`, a type or a tensor; numpy by default.
            device: the GPU to receive on, as `"cuda:0"`; the host by default. A peer on this host then leaves
                tensors of that GPU in its memory, where the received one shows them in place. Without `like`
                the tensor is a `GpuArray`.

        Returns:
            The tensor, or `out`.

        Raises:
            TensorMismatch: the next message is no tensor, or does not fit `out`. `out` is unchanged, and the
                next receive of any kind returns that message.
            Again: no message arrived within `rcvtimeo`.
            Closed, StateError, NotSupported: as in `recv`.

        If the connection breaks in the middle, `out` may be partly overwritten.
        """
        if out is not None:
            if device is not None:
                raise wrong("device", device, "left out where out= says where the tensor goes")
            target = target_for(out)
            wanted = gpu_of(target)
            if wanted is not None:
                self._want_gpu(*wanted)
            index = None if wanted is None else wanted[1]
            return self._receive_valid(receive_into, self, flags, target, index)
        if device is None:
            return self._receive_valid(receive_one, self, flags, builder_for(like))
        builder = gpu_builder(device, like)
        if isinstance(builder, GpuBuilder):
            self._want_gpu(builder.uuid, builder.index)
        return self._receive_valid(receive_one, self, flags, builder)

    @overload
    def send_tensors(
        self: FrameSender,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        topic: Topic = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: Literal[True],
    ) -> Tracker: ...
    @overload
    def send_tensors(
        self: FrameSender,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        topic: Topic = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: bool = ...,
    ) -> Tracker | None: ...
    def send_tensors(
        self: FrameSender,
        tensors: Mapping[str, Any],
        *,
        meta: Any = None,
        topic: bytes | str | None = None,
        flags: int = 0,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends a dict of tensors and metadata as one message.

        Tensors below 64 KiB are packed together; larger ones are sent as by `send_tensor`.

        Args:
            tensors: tensors by name; as in `send_tensor`.
            meta: any value that JSON can express: keys of dicts are text, and tuples arrive as lists.
            topic: sent before the tensors, for subscriptions.
            flags: DONTWAIT, SNDMORE, or 0.
            copy: False keeps large tensors until they are sent and returns a Tracker.
            track: True returns a Tracker.

        Raises:
            NotATensor: a value is no tensor, or its dtype cannot travel.
            UsageError: a name or the metadata cannot travel.
            Again, Closed, StateError, NotSupported: as in `send`.
        """
        encoded = None if topic is None else _topic(topic)
        frames = partial(frames_of, tensors, meta, encoded)
        return send_bundle(self, frames, tensors, flags_of(flags), track, copy)

    def recv_tensors(
        self: FrameReceiver,
        flags: int = 0,
        *,
        out: Mapping[str, Any] | None = None,
        like: Any = None,
        device: Any = None,
    ) -> tuple[dict[str, Any], Any]:
        """Receives a message of `send_tensors`.

        Small tensors of one message share one piece of memory, which lives as long as any of them.

        Args:
            flags: DONTWAIT, or 0.
            out: memory to receive into, for every name of the message, as in `recv_tensor`.
            like, device: the kind of tensor and where it is, as in `recv_tensor`.

        Returns:
            (tensors by name, metadata).

        Raises:
            TensorMismatch: the next message is no such dict, or names, dtypes or shapes differ from `out`.
                The next receive of any kind returns that message.
            Again: no message arrived within `rcvtimeo`.
            Closed, StateError, NotSupported: as in `recv`.
        """
        if not (out is None or isinstance(out, Mapping)):
            raise wrong("out", out, "a dict of memory by name, as send_tensors() takes")
        targets = None if out is None else {name: target_for(memory) for name, memory in out.items()}
        for target in (targets or {}).values():
            wanted = gpu_of(target)
            if wanted is not None:
                self._want_gpu(*wanted)
        if out is not None and device is not None:
            raise wrong("device", device, "left out where out= says where the tensors go")
        builder = builder_for(like) if device is None else gpu_builder(device, like)
        if isinstance(builder, GpuBuilder):
            self._want_gpu(builder.uuid, builder.index)
        return self._receive_valid(receive_bundle, self, flags, builder, targets)

    @overload
    def send_tensors_to(
        self: FrameSender,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: Literal[True],
    ) -> Tracker: ...
    @overload
    def send_tensors_to(
        self: FrameSender,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = ...,
        flags: int = ...,
        copy: bool | None = ...,
        track: bool = ...,
    ) -> Tracker | None: ...
    def send_tensors_to(
        self: FrameSender,
        identity: bytes,
        tensors: Mapping[str, Any],
        *,
        meta: Any = None,
        flags: int = 0,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends a dict of tensors from a ROUTER to one peer, as `send_tensors`.

        Args:
            identity: the peer's identity.
            tensors, meta, flags, track: as in `send_tensors`.
            copy: False keeps large tensors until they are sent and returns a Tracker.

        Raises:
            Unroutable: no peer has the identity and `router_mandatory` is set; else the message is dropped.
            NotSupported: this is no ROUTER.
        """
        _check_router(self, "send_tensors_to", "send_tensors")
        named = octets(identity, "identity")

        def frames(exporter: Any = export) -> list[OutFrame]:
            return [(0, 0, None, None, named), *frames_of(tensors, meta, None, exporter)]

        return send_bundle(self, frames, tensors, flags_of(flags), track, copy, host_only=_ADDRESSED)

    def recv_tensors_from(
        self: FrameReceiver, flags: int = 0, *, like: Any = None
    ) -> tuple[bytes, dict[str, Any], Any]:
        """Receives at a ROUTER a message of a peer's `send_tensors`.

        Returns:
            (identity, tensors by name, metadata).

        Raises as `recv_tensors`; NotSupported: this is no ROUTER.
        """
        _check_router(self, "recv_tensors_from", "recv_tensors")
        return self._receive_valid(receive_bundle_from, self, flags, builder_for(like))


#: why tensors on a GPU are copied through the host
_ADDRESSED: Final = "send_tensors_to() copies through the host"


def _check_router(socket: Any, call: str, instead: str) -> None:
    if socket.type is not SocketType.ROUTER:
        raise NotSupported(f"{call}() is a ROUTER's: a {socket.type.name} has {instead}()")


def _topic(topic: bytes | str) -> bytes:
    encoded = octets(topic, "topic")
    if len(encoded) > MAX_TOPIC:
        raise UsageError(f"a topic of {len(encoded)} bytes; at most {MAX_TOPIC} can travel")
    return encoded
