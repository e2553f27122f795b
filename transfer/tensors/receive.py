"""Receives tensors: checks headers before the payload is read, and builds tensors afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from transfer.tensors.build import NUMPY, Builder, Recipe, check_length, known_recipes, recipe_for
from transfer.tensors.bundle import MAX_PACKED, BundleHeader, Entry, Index, unpack_bundle
from transfer.tensors.gpu_builders import Arrival, GpuBuilder
from transfer.tensors.header import EXTENDED_FLAGS, KIND_BUNDLE, KIND_TENSOR, kind_of
from transfer.tensors.target import Target
from transfer.transports.core.wire import Flag
from transfer.transports.errors import ProtocolError, TensorMismatch
from transfer.transports.gpu import is_payload
from transfer.transports.sizes import LARGE

_LZ4: Final = int(Flag.LZ4)
#: a longer first frame of a bundle is read into the pool instead of memory made for it
_MAX_HEAD: Final = 64 << 20
#: (tensor header or None, topic or None, bytes of payload) -> memory to read into, or None. No sink is called
#: for compressed frames, so header and length must match in each call
Sink = Callable[[bytes | None, bytes | None, int], Any]


class _Receiver(Protocol):
    def _recv_frames(self, flags: int, sink: Sink | None) -> list[Any]: ...

    def _unreceive(self, frames: list[Any]) -> None: ...


# --- one tensor -------------------------------------------------------------------------------


def receive_one(socket: _Receiver, flags: int, builder: Builder) -> Any:
    """Receives one tensor in memory of the pool. Raises as `TensorMethods.recv_tensor`."""
    sink: Any = _expect_for_numpy
    if builder is not NUMPY:
        sink = _OntoGpu(builder) if isinstance(builder, GpuBuilder) else _sink_for(builder)
    frames = socket._recv_frames(flags, sink)
    try:
        frame, recipe = _single(frames)
    except TensorMismatch:
        socket._unreceive(frames)
        raise
    if type(sink) is _OntoGpu and frame.data is sink.placed and not frame.flags & _LZ4:
        return sink.arrival.filled(frame.data)
    return _built(frame, recipe, builder)


def tensor_of(frame: Any, builder: Builder = NUMPY) -> Any:
    """Makes the tensor of a received frame. Raises TensorMismatch, ProtocolError."""
    return _built(*_single([frame]), builder)


def _built(frame: Any, recipe: Recipe, builder: Builder) -> Any:
    data = frame.data
    if frame.flags & _LZ4:
        data = _decompressed(data, recipe.nbytes)
    if len(data) != recipe.nbytes:
        check_length(recipe, len(data))
    return builder.build(recipe, data)


def receive_into(socket: _Receiver, flags: int, target: Target) -> Any:
    """Receives one tensor in memory of the caller. Raises as `TensorMethods.recv_tensor`."""
    sink = _IntoGpu(target) if target.on_gpu else _IntoTarget(target)
    frames = socket._recv_frames(flags, sink)
    try:
        frame, recipe = _single(frames)
        target.check(recipe)  # again, since no sink sees a message that was read before
    except TensorMismatch:
        socket._unreceive(frames)
        raise
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

    def on_gpu(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        """The core asks this for a payload on a GPU, of which the target makes the best."""
        self._checked(meta, nbytes)

    def _checked(self, meta: bytes | None, nbytes: int) -> Recipe | None:
        if _may_be_delimiter(meta, nbytes):
            return None
        recipe = _expect_tensor(meta)
        check_length(recipe, nbytes)
        self._target.check(recipe)
        return recipe


class _IntoGpu(_IntoTarget):
    """The same for memory of a GPU."""

    __slots__ = ()

    def landed(self, nbytes: int) -> None:
        """The core has read so much of the payload into what was given last."""
        assert self._target.on_gpu
        self._target.landed(nbytes)


def _expect_tensor(meta: bytes | None) -> Recipe:
    """Returns the recipe of a single tensor. Raises TensorMismatch for anything else, or ProtocolError."""
    recipe = known_recipes.get(meta)
    if recipe is not None:
        return recipe
    if meta is None:
        raise _no_tensor()
    if kind_of(meta) == KIND_BUNDLE:
        raise TensorMismatch("the next message is a dict of tensors", hint="receive it with recv_tensors()")
    return recipe_for(meta)


def _no_tensor() -> TensorMismatch:
    return TensorMismatch("the next message is no tensor", hint="receive it with recv() or recv_multipart()")


def _expect_for_numpy(meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
    """The sink of the common case: checks before the payload is read, and leaves memory to the pool."""
    recipe = known_recipes.get(meta)
    if recipe is None or nbytes != recipe.nbytes or recipe.make_array is None:
        if _may_be_delimiter(meta, nbytes):
            return
        recipe = _expect_tensor(meta)
        check_length(recipe, nbytes)
        NUMPY.check(recipe)


def _sink_for(builder: Builder | GpuBuilder) -> Sink:
    def sink(meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        if _may_be_delimiter(meta, nbytes):
            return
        recipe = _expect_tensor(meta)
        check_length(recipe, nbytes)
        builder.check(recipe)

    return sink


class _OntoGpu:
    """The sink of one tensor for a new one on a GPU. placed: the memory that it gave last, of `arrival`."""

    __slots__ = ("_builder", "_check", "arrival", "placed")

    def __init__(self, builder: GpuBuilder) -> None:
        self._builder, self._check = builder, _sink_for(builder)
        self.arrival: Any = None
        self.placed: Any = None

    def __call__(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> Any:
        self.arrival = self.placed = None
        self._check(meta, topic, nbytes)
        if nbytes >= LARGE:
            self.arrival = self._builder.arrival(_expect_tensor(meta))
            self.placed = self.arrival.buffer()
        return self.placed

    def on_gpu(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
        """The core asks this for a payload that is on a GPU already."""
        self._check(meta, topic, nbytes)

    def landed(self, nbytes: int) -> None:
        """The core has read so much of the payload into what was given last."""
        self.arrival.landed(nbytes)


def _may_be_delimiter(meta: bytes | None, nbytes: int) -> bool:
    """Whether it is an empty plain frame: a DEALER's envelope begins so, and a REP strips it afterwards."""
    return meta is None and nbytes == 0


def _single(frames: list[Any]) -> tuple[Any, Recipe]:
    if len(frames) != 1:
        _check_envelope(frames)
        raise TensorMismatch(f"a message of {len(frames)} parts", hint="receive it with recv_multipart()")
    frame = frames[0]
    recipe = known_recipes.get(frame.meta) or _expect_tensor(frame.meta)
    if frame.flags & EXTENDED_FLAGS != recipe.flags:
        raise ProtocolError("tensor", f"flags {frame.flags:#04x} and tensor header disagree")
    return frame, recipe


def _check_envelope(frames: list[Any]) -> None:
    """Rejects an envelope: a ROUTER puts the sender's identity before the message, for `recv` only."""
    if type(frames[0]) is bytes:
        raise TensorMismatch(
            "a tensor behind an envelope", hint="a ROUTER receives a dict of tensors with recv_tensors_from()"
        )


def _take(frame: Any, recipe: Recipe, target: Target, placed: Any) -> None:
    """Copies data that could not be read directly into the target."""
    data = frame.data
    if frame.flags & _LZ4:
        data = _decompressed(bytes(data) if data is placed else data, recipe.nbytes)
    elif placed is not None and data is placed and target.direct:
        return
    check_length(recipe, len(data) if is_payload(data) else memoryview(data).nbytes)
    target.fill(recipe, data)


def _decompressed(data: Any, limit: int) -> bytearray:
    from transfer.lz4_frame import decompress_writable

    return decompress_writable(data, limit)


# --- a dict of tensors ------------------------------------------------------------------------


def receive_bundle(
    socket: _Receiver, flags: int, builder: Builder, targets: Mapping[str, Target] | None
) -> tuple[dict[str, Any], Any]:
    """Receives a dict of tensors and its metadata. Raises as `TensorMethods.recv_tensors`."""
    on_gpu = isinstance(builder, GpuBuilder) if targets is None else any(t.on_gpu for t in targets.values())
    arrival = (_GpuBundleArrival if on_gpu else BundleArrival)(builder, targets)
    frames = socket._recv_frames(flags, arrival)
    try:
        return arrival.finish(frames)
    except TensorMismatch:
        socket._unreceive(frames)
        raise


def receive_bundle_from(socket: _Receiver, flags: int, builder: Builder) -> tuple[bytes, dict[str, Any], Any]:
    """As `receive_bundle`, with the identity that a ROUTER puts before it."""
    arrival = BundleArrival(builder, None)
    frames = socket._recv_frames(flags, arrival)
    try:
        return _with_sender(arrival, frames)
    except TensorMismatch:
        socket._unreceive(frames)
        raise


def take_bundle(socket: _Receiver, flags: int, builder: Builder) -> tuple[dict[str, Any], Any]:
    """As `receive_bundle` without `out`, but also consumes a message that is no such dict."""
    frames = socket._recv_frames(flags, None)
    return BundleArrival(builder, None).finish(frames)


def take_bundle_from(socket: _Receiver, flags: int, builder: Builder) -> tuple[bytes, dict[str, Any], Any]:
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

    def on_gpu(self, meta: bytes | None, topic: bytes | None, nbytes: int) -> None:
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
        """Returns memory of the caller for a separate frame. Compressed frames do not pass here, so the next
        entry with this header is only likely the right one; `_fill` corrects that."""
        for position in range(self._position, len(index.own)):
            entry = index.own[position]
            if entry.header == meta:
                self._position = position + 1
                buffer = self._placed[position] = None if on_gpu else self._buffer_for(entry)
                return buffer
        raise ProtocolError("tensor", "a frame that is not in the index of its bundle")

    def _buffer_for(self, entry: Entry) -> Any:
        assert self._targets is not None
        return self._targets[entry.name].buffer_for(entry.recipe)

    def _first(self, meta: bytes | None, nbytes: int) -> Any:
        if meta is None:
            if _may_be_delimiter(meta, nbytes):
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
        _check_envelope(frames)
        first = frames[0]
        header = _expect_bundle(first.meta)
        if first.flags & EXTENDED_FLAGS != EXTENDED_FLAGS:
            raise ProtocolError("tensor", f"flags {first.flags:#04x} and bundle header disagree")
        data = first.data
        if first.flags & _LZ4:
            limit = header.limit
            data = _decompressed(data, limit if limit is not None else header.start + MAX_PACKED)
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
            if frame.flags & _LZ4:
                data = _decompressed(data, recipe.nbytes)
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
            if data is self._placed.get(position) and not frame.flags & _LZ4:
                if not self._targets[entry.name].direct:
                    self._targets[entry.name].fill(entry.recipe, data)
                continue
            # Frames that the sink did not see shift those behind them: data in the memory of another tensor
            # must be saved before that one is filled.
            elsewhere.append((entry, frame.flags, bytes(data) if id(data) in ours else data))
        for entry, flags, data in elsewhere:
            if flags & _LZ4:
                data = _decompressed(data, entry.recipe.nbytes)
            check_length(entry.recipe, len(data) if is_payload(data) else memoryview(data).nbytes)
            self._targets[entry.name].fill(entry.recipe, data)
        for entry in index.entries:
            if entry.offset is not None:
                self._targets[entry.name].fill(entry.recipe, packed, start + entry.offset)
        return {entry.name: self._targets[entry.name].out for entry in index.entries}


class _GpuBundleArrival(BundleArrival):
    """The same where targets, or the tensors to make, are on a GPU."""

    __slots__ = ("_arrivals", "_landed")

    def __init__(self, builder: Builder | GpuBuilder, targets: Mapping[str, Target] | None) -> None:
        super().__init__(builder, targets)
        self._places = True
        #: (memory that was given, the tensor that its payload is for), by the memory's identity
        self._arrivals: dict[int, tuple[Any, Arrival]] = {}
        self._landed: Any = None

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
        raise _no_tensor()
    if kind_of(meta) == KIND_TENSOR:
        raise TensorMismatch("the next message is a single tensor", hint="receive it with recv_tensor()")
    return unpack_bundle(meta)


def _other_header(entry: Entry) -> ProtocolError:
    return ProtocolError("tensor", f"the frame of {entry.name!r} has another header than in the index")
