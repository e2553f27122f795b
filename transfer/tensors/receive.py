"""Receives one tensor: checks its header before the payload is read, and builds it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from transfer.tensors.build import NUMPY, Builder, Recipe, check_length, known_recipes, recipe_for
from transfer.tensors.gpu_builders import GpuBuilder
from transfer.tensors.header import EXTENDED_FLAGS, HOST, KIND_BUNDLE, KIND_TENSOR, kind_of
from transfer.tensors.target import Target
from transfer.transports.core.wire import Flag
from transfer.transports.errors import ProtocolError, TensorMismatch
from transfer.transports.gpu import GpuRoute, is_payload
from transfer.transports.sizes import LARGE

LZ4: Final = int(Flag.LZ4)
#: (tensor header or None, topic or None, bytes of payload) -> memory to read into, or None. No sink is called
#: for compressed frames, so header and length must match in each call
Sink = Callable[[bytes | None, bytes | None, int], Any]


class Receiver(Protocol):
    def _recv_frames(self, flags: int, sink: Sink | None) -> list[Any]: ...

    def _unreceive(self, frames: list[Any]) -> None: ...


def receive_one(socket: Receiver, flags: int, builder: Builder) -> Any:
    """Receives one tensor in memory of the pool. Raises as `TensorMethods.recv_tensor`."""
    sink: Any = _expect_for_numpy
    if builder is not NUMPY:
        sink = _NewOnGpu(builder) if isinstance(builder, GpuBuilder) else _sink_for(builder)
    frames = socket._recv_frames(flags, sink)
    try:
        frame, recipe = _single(frames)
    except TensorMismatch:
        socket._unreceive(frames)
        raise
    if type(sink) is _NewOnGpu:
        note_arrival(socket, frame.data, recipe.nbytes)
        if frame.data is sink.placed and not frame.flags & LZ4:
            return sink.arrival.filled(frame.data)
    return _built(frame, recipe, builder)


def gpu_for(index: int | None, meta: bytes | None) -> int | None:
    """The number of the GPU where a frame's payload is wanted; None: it is read by the host. Keeps nothing of
    the call that receives it: a transport may ask for frames of later ones."""
    return index if meta is not None and kind_of(meta) == KIND_TENSOR else None


def note_arrival(socket: Any, data: Any, nbytes: int) -> None:
    """Counts how a tensor for a GPU has arrived."""
    noted = getattr(socket, "_note_gpu_received", None)
    if noted is not None and nbytes >= LARGE:
        noted(data.route if is_payload(data) else GpuRoute.STAGING.value)


def note_arrivals(socket: Any, frames: Sequence[Any]) -> None:
    """The same of a dict, by one of the large tensors that its sender had on a GPU: one that came through the
    host, if there is any."""
    large = [frame for frame in frames if len(frame.data) >= LARGE]
    of_gpu = [frame for frame in large if recipe_for(frame.meta).spec.device[0] != HOST] or large
    for frame in sorted(of_gpu, key=lambda frame: is_payload(frame.data))[:1]:
        note_arrival(socket, frame.data, len(frame.data))


def tensor_of(frame: Any, builder: Builder = NUMPY) -> Any:
    """Makes the tensor of a received frame. Raises TensorMismatch, ProtocolError."""
    return _built(*_single([frame]), builder)


def _built(frame: Any, recipe: Recipe, builder: Builder) -> Any:
    data = frame.data
    if frame.flags & LZ4:
        data = decompressed(data, recipe.nbytes)
    if len(data) != recipe.nbytes:
        check_length(recipe, len(data))
    return builder.build(recipe, data)


def receive_into(socket: Receiver, flags: int, target: Target, index: int | None) -> Any:
    """Receives one tensor in memory of the caller. index: of the GPU that has it, where the driver knows it.
    Raises as `TensorMethods.recv_tensor`."""
    sink = _IntoGpuTarget(target, index) if target.is_on_gpu else _IntoTarget(target)
    frames = socket._recv_frames(flags, sink)
    try:
        frame, recipe = _single(frames)
        target.check(recipe)  # again, since no sink sees a message that was read before
    except TensorMismatch:
        socket._unreceive(frames)
        raise
    if target.is_on_gpu:
        note_arrival(socket, frame.data, recipe.nbytes)
    _take(frame, recipe, target, sink.placed)
    return target.out


class _IntoTarget:
    """The sink of one tensor for memory of the caller. placed: what it gave last."""

    __slots__ = ("_target", "placed")

    def __init__(self, target: Target) -> None:
        self._target = target
        self.placed: Any = None

    def __call__(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> Any:
        recipe = self._checked(meta, nbytes)
        if recipe is not None:
            self.placed = self._target.buffer_for(recipe)
            return self.placed
        return None

    def arrives_on_gpu(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        """The core asks this for a payload on a GPU, of which the target makes the best."""
        self._checked(meta, nbytes)

    def _checked(self, meta: bytes | None, nbytes: int) -> Recipe | None:
        if may_be_delimiter(meta, nbytes):
            return None
        recipe = _expect_tensor(meta)
        check_length(recipe, nbytes)
        self._target.check(recipe)
        return recipe


class _IntoGpuTarget(_IntoTarget):
    """The same for memory of a GPU."""

    __slots__ = ("gpu_for",)

    def __init__(self, target: Target, index: int | None) -> None:
        super().__init__(target)
        self.gpu_for = partial(gpu_for, index)

    def landed(self, nbytes: int) -> None:
        """The core has read so much of the payload into what was given last."""
        assert self._target.is_on_gpu
        self._target.landed(nbytes)


def _expect_tensor(meta: bytes | None) -> Recipe:
    """Returns the recipe of a single tensor. Raises TensorMismatch for anything else, or ProtocolError."""
    recipe = known_recipes.get(meta)
    if recipe is not None:
        return recipe
    if meta is None:
        raise no_tensor()
    if kind_of(meta) == KIND_BUNDLE:
        raise TensorMismatch("the next message is a dict of tensors", hint="receive it with recv_tensors()")
    return recipe_for(meta)


def no_tensor() -> TensorMismatch:
    return TensorMismatch("the next message is no tensor", hint="receive it with recv() or recv_multipart()")


def _expect_for_numpy(meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
    """The sink of the common case: checks before the payload is read, and leaves memory to the pool."""
    recipe = known_recipes.get(meta)
    if recipe is None or nbytes != recipe.nbytes or recipe.make_array is None:
        if may_be_delimiter(meta, nbytes):
            return
        recipe = _expect_tensor(meta)
        check_length(recipe, nbytes)
        NUMPY.check(recipe)


def _sink_for(builder: Builder | GpuBuilder) -> Sink:
    def sink(meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        if may_be_delimiter(meta, nbytes):
            return
        recipe = _expect_tensor(meta)
        check_length(recipe, nbytes)
        builder.check(recipe)

    return sink


class _NewOnGpu:
    """The sink of one tensor for a new one on a GPU. placed: the memory that it gave last, of `arrival`."""

    __slots__ = ("_builder", "_check", "arrival", "gpu_for", "placed")

    def __init__(self, builder: GpuBuilder) -> None:
        self._builder, self._check = builder, _sink_for(builder)
        self.gpu_for = partial(gpu_for, builder.index)
        self.arrival: Any = None
        self.placed: Any = None

    def __call__(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> Any:
        self.arrival = self.placed = None
        self._check(meta, topic, nbytes)
        if nbytes >= LARGE:
            self.arrival = self._builder.arrival(_expect_tensor(meta))
            self.placed = self.arrival.buffer()
        return self.placed

    def arrives_on_gpu(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        """The core asks this for a payload that is on a GPU already."""
        self._check(meta, topic, nbytes)

    def landed(self, nbytes: int) -> None:
        """The core has read so much of the payload into what was given last."""
        self.arrival.landed(nbytes)


def may_be_delimiter(meta: bytes | None, nbytes: int) -> bool:
    """Whether it is an empty plain frame: a DEALER's envelope begins so, and a REP strips it afterwards."""
    return meta is None and nbytes == 0


def _single(frames: list[Any]) -> tuple[Any, Recipe]:
    if len(frames) != 1:
        check_envelope(frames)
        raise TensorMismatch(f"a message of {len(frames)} parts", hint="receive it with recv_multipart()")
    frame = frames[0]
    recipe = known_recipes.get(frame.meta) or _expect_tensor(frame.meta)
    if frame.flags & EXTENDED_FLAGS != recipe.flags:
        raise ProtocolError("tensor", f"flags {frame.flags:#04x} and tensor header disagree")
    return frame, recipe


def check_envelope(frames: list[Any]) -> None:
    """Rejects an envelope: a ROUTER puts the sender's identity before the message, for `recv` only."""
    if type(frames[0]) is bytes:
        raise TensorMismatch(
            "a tensor behind an envelope", hint="a ROUTER receives a dict of tensors with recv_tensors_from()"
        )


def _take(frame: Any, recipe: Recipe, target: Target, placed: Any) -> None:
    """Copies data that could not be read directly into the target."""
    data = frame.data
    if frame.flags & LZ4:
        data = decompressed(bytes(data) if data is placed else data, recipe.nbytes)
    elif placed is not None and data is placed and target.direct:
        return
    check_length(recipe, len(data) if is_payload(data) else memoryview(data).nbytes)
    target.fill(recipe, data)


def decompressed(data: Any, limit: int) -> bytearray:
    from transfer.lz4_frame import decompress_writable

    return decompress_writable(data, limit)
