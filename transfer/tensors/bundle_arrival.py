"""Receives dicts of tensors: checks index and frames before they are read, and builds tensors afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from transfer.tensors.build import Builder, Recipe, check_length, known_recipes, recipe_for
from transfer.tensors.bundle import MAX_PACKED, BundleHeader, Entry, Index, unpack_bundle
from transfer.tensors.gpu_builders import Arrival, GpuBuilder
from transfer.tensors.header import EXTENDED_FLAGS, KIND_BUNDLE, KIND_TENSOR, kind_of
from transfer.tensors.receive import (
    LZ4,
    Receiver,
    check_envelope,
    decompressed,
    gpu_for,
    may_be_delimiter,
    no_tensor,
    note_arrivals,
)
from transfer.tensors.target import Target, gpu_of
from transfer.transports.errors import ProtocolError, TensorMismatch
from transfer.transports.gpu import is_payload
from transfer.transports.sizes import LARGE

#: a longer first frame of a bundle is read into the pool instead of memory made for it
_MAX_HEAD: Final = 64 << 20


def receive_bundle(
    socket: Receiver, flags: int, builder: Builder, targets: Mapping[str, Target] | None
) -> tuple[dict[str, Any], Any]:
    """Receives a dict of tensors and its metadata. Raises as `TensorMethods.recv_tensors`."""
    on_gpu = (
        isinstance(builder, GpuBuilder) if targets is None else any(t.is_on_gpu for t in targets.values())
    )
    arrival = (_GpuBundleArrival if on_gpu else BundleArrival)(builder, targets)
    frames = socket._recv_frames(flags, arrival)
    try:
        made = arrival.finish(frames)
    except TensorMismatch:
        socket._unreceive(frames)
        raise
    if on_gpu:
        note_arrivals(socket, frames[1:])
    return made


def receive_bundle_from(socket: Receiver, flags: int, builder: Builder) -> tuple[bytes, dict[str, Any], Any]:
    """As `receive_bundle`, with the identity that a ROUTER puts before it."""
    arrival = BundleArrival(builder, None)
    frames = socket._recv_frames(flags, arrival)
    try:
        return _with_sender(arrival, frames)
    except TensorMismatch:
        socket._unreceive(frames)
        raise


def take_bundle(socket: Receiver, flags: int, builder: Builder) -> tuple[dict[str, Any], Any]:
    """As `receive_bundle` without `out`, but also consumes a message that is no such dict."""
    frames = socket._recv_frames(flags, None)
    return BundleArrival(builder, None).finish(frames)


def take_bundle_from(socket: Receiver, flags: int, builder: Builder) -> tuple[bytes, dict[str, Any], Any]:
    """As `receive_bundle_from`, but also consumes a message that is no such dict."""
    frames = socket._recv_frames(flags, None)
    return _with_sender(BundleArrival(builder, None), frames)


def _with_sender(arrival: BundleArrival, frames: list[Any]) -> tuple[bytes, dict[str, Any], Any]:
    if type(frames[0]) is not bytes or len(frames) < 2:
        raise TensorMismatch("a message without a sender", hint="only a ROUTER knows them: recv_tensors()")
    return frames[0], *arrival.finish(frames[1:])


class BundleArrival:
    """One message of `send_tensors` while it arrives: the sink of the socket, then `finish`."""

    __slots__ = ("_builder", "_head", "_index", "_placed", "_places", "_position", "_targets")

    def __init__(self, builder: Builder | GpuBuilder, targets: Mapping[str, Target] | None) -> None:
        self._builder = builder
        self._targets = targets
        self._index: Index | None = None
        self._head: tuple[BundleHeader, bytearray] | None = None
        self._position = -1
        self._placed: dict[int, Any] = {}
        self._places = targets is not None

    # -- before a frame is read

    def __call__(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> Any:
        """Returns memory for the next frame. Errors of this are raised when the message is complete."""
        return self._next(meta, nbytes, False)

    def arrives_on_gpu(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        """The next frame is on a GPU: its target makes the best of it."""
        self._next(meta, nbytes, True)

    def _next(self, meta: bytes | None, nbytes: int, on_gpu: bool) -> Any:
        recipe = known_recipes.get(meta) if self._position >= 0 else None
        if meta is None or recipe is None or nbytes != recipe.nbytes:
            if meta is None or self._position < 0 or kind_of(meta) == KIND_BUNDLE:
                return self._first(meta, nbytes)
            check_length(recipe_for(meta), nbytes)
        if not self._places:
            return None
        if self._head is not None:
            self._read_head()
        return None if self._index is None else self._place(self._index, meta, on_gpu)

    def _place(self, index: Index, meta: bytes, on_gpu: bool) -> Any:
        """Returns memory of the caller for a separate frame. Compressed frames do not pass here, and those of
        another peer's message may, where this one stopped in the middle: so the next entry with this header
        is only likely the right one. `finish` corrects that."""
        for position in range(self._position, len(index.own)):
            entry = index.own[position]
            if entry.header == meta:
                self._position = position + 1
                buffer = self._placed[position] = None if on_gpu else self._buffer_for(entry)
                return buffer
        return None  # also asked again: the wait for a reply goes on after one that ended inside this frame

    def _buffer_for(self, entry: Entry) -> Any:
        assert self._targets is not None
        return self._targets[entry.name].buffer_for(entry.recipe)

    def _first(self, meta: bytes | None, nbytes: int) -> Any:
        if meta is None:
            if may_be_delimiter(meta, nbytes):
                return None
        elif nbytes >= LARGE and kind_of(meta) == KIND_TENSOR:
            return None  # may belong to a bundle with a compressed first frame; `finish` decides
        header = _expect_bundle(meta)
        self._position, self._placed, self._head = 0, {}, None
        self._index = header.index
        limit = header.limit
        if nbytes > header.start + MAX_PACKED or (limit is not None and nbytes != limit):
            raise ProtocolError("length", f"{nbytes} bytes in the first frame of a bundle")
        if header.index is not None:
            self._check(header.index)
        elif self._places and nbytes <= _MAX_HEAD:
            # the index is needed before the next frame, so it is read into memory of this object
            self._head = header, bytearray(nbytes)
            return self._head[1]
        return None

    def _read_head(self) -> None:
        """Reads the index from the first frame's data, unless that is compressed."""
        assert self._head is not None
        header, data = self._head
        self._head = None
        try:
            index = header.index_of(data)
        except ProtocolError:
            return  # `finish` decides whether it was compressed or wrong
        self._check(index)
        self._index = index

    def _check(self, index: Index) -> None:
        targets = self._targets
        if targets is None:
            if index.built_by is not self._builder:
                for entry in index.entries:
                    self._builder.check(entry.recipe)
                index.built_by = self._builder
            return
        names = {entry.name for entry in index.entries}
        if names != targets.keys():
            missing, unknown = sorted(names - targets.keys())[:5], sorted(targets.keys() - names)[:5]
            raise TensorMismatch(f"out= has no {missing}" if missing else f"no {unknown} arrived for out=")
        for entry in index.entries:
            try:
                targets[entry.name].check(entry.recipe)
            except TensorMismatch as error:
                raise TensorMismatch(f"{entry.name!r}: {error}") from error

    # -- after all frames are read

    def finish(self, frames: list[Any]) -> tuple[dict[str, Any], Any]:
        """Returns (tensors by name, metadata). Raises ProtocolError, TensorMismatch."""
        check_envelope(frames)
        first = frames[0]
        header = _expect_bundle(first.meta)
        if first.flags & EXTENDED_FLAGS != EXTENDED_FLAGS:
            raise ProtocolError("tensor", f"flags {first.flags:#04x} and bundle header disagree")
        data = first.data
        if first.flags & LZ4:
            limit = header.limit
            data = decompressed(data, limit if limit is not None else header.start + MAX_PACKED)
        index = header.index_of(data)
        if len(data) != header.start + index.packed:
            raise ProtocolError("length", f"{len(data)} bytes in the first frame of a bundle")
        if len(frames) - 1 != len(index.own):
            raise ProtocolError("tensor", f"{len(frames) - 1} frames for {len(index.own)} tensors")
        metadata = header.metadata_of(data)
        if type(data) is bytes and index.packed:
            data = bytearray(data)
        if self._targets is not None:
            return self._fill(index, frames, data, header.start), metadata
        return self._build(index, frames, data, header.start), metadata

    def _build(self, index: Index, frames: list[Any], packed: Any, start: int) -> dict[str, Any]:
        build = self._build_one
        tensors: dict[str, Any] = {}
        position = 0
        for entry in index.entries:
            recipe = entry.recipe
            if entry.offset is not None:
                tensors[entry.name] = build(recipe, packed, start + entry.offset)
                continue
            position += 1
            frame = frames[position]
            if frame.meta != entry.header:
                raise _other_header(entry)
            data = frame.data
            if frame.flags & LZ4:
                data = decompressed(data, recipe.nbytes)
            if len(data) != recipe.nbytes:
                check_length(recipe, len(data))
            tensors[entry.name] = build(recipe, data)
        return tensors

    def _build_one(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        return self._builder.build(recipe, data, offset)

    def _fill(self, index: Index, frames: list[Any], packed: Any, start: int) -> dict[str, Any]:
        if self._index is not index:
            self._check(index)
        assert self._targets is not None
        elsewhere = []
        ours = {id(buffer) for buffer in self._placed.values()}
        for position, entry in enumerate(index.own):
            frame = frames[position + 1]
            if frame.meta != entry.header:
                raise _other_header(entry)
            data = frame.data
            if data is self._placed.get(position) and not frame.flags & LZ4:
                if not self._targets[entry.name].direct:
                    self._targets[entry.name].fill(entry.recipe, data)
                continue
            # Frames that the sink did not see shift those behind them: data in the memory of another tensor
            # must be saved before that one is filled.
            elsewhere.append((entry, frame.flags, bytes(data) if id(data) in ours else data))
        for entry, flags, data in elsewhere:
            if flags & LZ4:
                data = decompressed(data, entry.recipe.nbytes)
            check_length(entry.recipe, len(data) if is_payload(data) else memoryview(data).nbytes)
            self._targets[entry.name].fill(entry.recipe, data)
        for entry in index.entries:
            if entry.offset is not None:
                self._targets[entry.name].fill(entry.recipe, packed, start + entry.offset)
        return {entry.name: self._targets[entry.name].out for entry in index.entries}


class _GpuBundleArrival(BundleArrival):
    """The same where targets, or the tensors to make, are on a GPU."""

    __slots__ = ("_arrivals", "_landed", "gpu_for")

    def __init__(self, builder: Builder | GpuBuilder, targets: Mapping[str, Target] | None) -> None:
        super().__init__(builder, targets)
        self._places = True
        #: (memory that was given, the tensor that its payload is for), by the memory's identity
        self._arrivals: dict[int, tuple[Any, Arrival]] = {}
        self._landed: Any = None
        self.gpu_for = partial(gpu_for, self._common_gpu())

    def _common_gpu(self) -> int | None:
        """The number of the GPU that all tensors go to, or None."""
        if isinstance(self._builder, GpuBuilder):
            return self._builder.index
        found = {gpu_of(target) for target in (self._targets or {}).values()}
        only = found.pop() if len(found) == 1 else None
        return None if only is None else only[1]

    def _buffer_for(self, entry: Entry) -> Any:
        if self._targets is None:
            return self._arrival_of(entry)
        self._landed = getattr(self._targets[entry.name], "landed", None)
        return super()._buffer_for(entry)

    def _arrival_of(self, entry: Entry) -> Any:
        assert isinstance(self._builder, GpuBuilder)
        arrival = self._builder.arrival(entry.recipe)
        buffer, self._landed = arrival.buffer(), arrival.landed
        if buffer is not None:
            self._arrivals[id(buffer)] = buffer, arrival
        return buffer

    def landed(self, nbytes: int) -> None:
        """The core has read so much of the payload into what was given last."""
        if self._landed is not None:
            self._landed(nbytes)

    def _build_one(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        _, arrival = self._arrivals.get(id(data), (None, None))
        return super()._build_one(recipe, data, offset) if arrival is None else arrival.filled(data)


def _expect_bundle(meta: bytes | None) -> BundleHeader:
    if meta is None:
        raise no_tensor()
    if kind_of(meta) == KIND_TENSOR:
        raise TensorMismatch("the next message is a single tensor", hint="receive it with recv_tensor()")
    return unpack_bundle(meta)


def _other_header(entry: Entry) -> ProtocolError:
    return ProtocolError("tensor", f"the frame of {entry.name!r} has another header than in the index")
