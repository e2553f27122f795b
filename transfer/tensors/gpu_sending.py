"""Sends tensors on a GPU: in memory that peers on this host map, by its pointer, or registered with the
network card, if every peer supports that, else through the host.

The ways without the host never ran on a GPU.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from transfer import config
from transfer.constants import DONTWAIT
from transfer.tensors.device import PIECE
from transfer.tensors.export import (
    Exported,
    begun,
    export,
    export_flat,
    gpu_of_flat,
    on_device,
    settled,
    staged,
)
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import DeviceError, RegistrationError
from transfer.transports.sizes import LARGE
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.sockets.tracker import Tracker

logger = logging.getLogger("transfer")

_DIRECT: Final = frozenset({gpu.GpuRoute.POINTER, gpu.GpuRoute.DMABUF, gpu.GpuRoute.PEERMEM})
#: where a tensor must not be staged: seconds that a peer may take to ask for it on its GPU, to map the first
#: block, and to let go of memory that a copy needs
_PATIENCE: Final = 5.0
#: seconds for a peer to unmap free blocks
_UNTIL_UNMAPPED: Final = 0.2
#: why a way that reads the tensor's own memory is not taken
_COPIED: Final = "the network card and UCX read a tensor's own memory, so with copy=False only"
_warned: Final[set[str]] = set()


def send_from_device(
    socket: Any, tensor: Any, topic: bytes | None, flags: int, track: bool, direct: bool
) -> Tracker | None:
    """Sends one tensor on a device. direct: its own memory, where that is possible, and with a tracker.
    Raises as `send_tensor`."""
    exported = export_flat(tensor)
    flat = exported[2]
    way = way_of(flat, _capabilities(socket, flags, [tensor]), direct)
    if way.route is gpu.GpuRoute.MAPPED or (direct and way.route in _DIRECT):
        bits, header, payload = _there(tensor, exported, way.route)
        frames = [(bits, 0, topic, header, payload)]
        sent, way = _send_there(socket, lambda: _send(socket, frames, flags, track, not direct), way, flags)
        if sent is not None:
            return sent[0]
    elif way.route in _DIRECT:
        way = gpu.Way(gpu.GpuRoute.STAGING, _COPIED)
    if flat is not None and flat.nbytes >= LARGE:
        _check_staged(socket, way)
        _note(socket, way)
    # Of one piece nothing could be sent before it is copied.
    is_one = flat is None or flat.nbytes <= PIECE
    bits, header, buffer = (staged if is_one else begun)(tensor, exported)
    # Nobody else has this memory, so it is referenced until it is sent, and never copied again.
    frames = [(bits, 0, topic, header, buffer)]
    tracker = _send_while_filled(lambda: _send(socket, frames, flags, track, False), [buffer])
    return tracker if track or direct else None


def _send(socket: Any, frames: list[Any], flags: int, track: bool, copy: bool | None) -> Tracker | None:
    sent: Tracker | None = socket._send_outframes(frames, flags, track, copy)
    return sent


def _send_there(
    socket: Any, send: Callable[[], Tracker | None], way: gpu.Way, flags: int
) -> tuple[tuple[Tracker | None] | None, gpu.Way]:
    """Sends by a way without the host: ((the tracker,), the way), or (None, why it has to be staged)."""
    begun, pause = time.monotonic(), 0.001
    while True:
        try:
            tracker = send()
        except (TypeError, BufferError, RegistrationError) as error:
            # A peer with another transport has connected, the core does not support device memory, the card
            # refuses this memory, the peer still tries to map the first block, or there is no room.
            reason = getattr(error, "reason", "")
            if time.monotonic() < begun + _patience(reason, _stages(socket), flags):
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
                continue
            why = str(error).partition("\n  hint: ")
            if reason != "gpu_tried" and _stages(socket):
                _warn(f"a tensor on a GPU is copied through the host after all: {''.join(why)}")
            return None, gpu.Way(gpu.GpuRoute.STAGING, why[0])
        _note(socket, way)
        return (tracker,), way


def _patience(reason: str, stages: bool, flags: int) -> float:
    """Seconds until what is missing may come."""
    if flags & DONTWAIT or reason not in ("gpu_tried", "gpu_leaving", "gpu_held"):
        return 0.0
    if not stages:
        return _PATIENCE
    return _UNTIL_UNMAPPED if reason == "gpu_leaving" else 0.0


def _stages(socket: Any) -> bool:
    return bool(getattr(socket, "gpu_staging", True))


def _note(socket: Any, way: gpu.Way) -> None:
    noted = getattr(socket, "_note_gpu", None)
    if noted is not None:
        noted(way.route.value, way.reason)


def _check_staged(socket: Any, way: gpu.Way) -> None:
    """Raises RegistrationError where the socket must not copy a tensor through the host."""
    if way.route is not gpu.GpuRoute.HOST and not _stages(socket):
        raise RegistrationError(
            "staging",
            f"gpu_staging=False, and a tensor on a GPU would be copied through the host: {way.reason}",
            hint="receive it with recv_tensor(device=...) or out= on that GPU (see docs/tensors.md); "
            "gpu_staging=True allows the copy",
        )


def _send_while_filled(send: Callable[[], Tracker | None], buffers: list[Any]) -> Tracker | None:
    """Sends, and waits until the copies from the GPU are done, from which connections write meanwhile."""
    try:
        return send()
    finally:
        filling = [buffer for buffer in buffers if hasattr(buffer, "complete")]
        # A signal handler that raised must not leave a message half filled.
        error = uninterrupted(partial(_complete, filling), None) if filling else None
        if error is not None:
            raise error


def _complete(filling: list[Any]) -> Exception | None:
    """Waits for all of them. The first error is returned, not raised."""
    found: Exception | None = None
    for buffer in filling:
        try:
            buffer.complete()
        except (DeviceError, RuntimeError) as error:  # the libraries' are of the last kind
            found = found or error
    return found


def _capabilities(socket: Any, flags: int, tensors: Collection[Any]) -> Capabilities:
    """Of all peers. Waits for those that have not asked for these tensors, if they must not be staged."""
    asked = getattr(socket, "_tensor_capabilities", None)
    if asked is None:
        return Capabilities()
    wanted = set() if _stages(socket) or flags & DONTWAIT else _gpus_of(tensors)
    if wanted and not socket.has_peers:
        socket.wait_for_peers(1, None if socket.sndtimeo < 0 else socket.sndtimeo / 1000)
    can: Capabilities = asked(flags)
    limit = time.monotonic() + _PATIENCE
    while wanted and _may_ask(can, wanted) and time.monotonic() < limit:
        time.sleep(0.001)
        can = asked(flags)
    return can


def _may_ask(can: Capabilities, wanted: set[bytes]) -> bool:
    """Whether a peer could map memory of these GPUs, but has not asked for all of it."""
    return can.host_only == gpu.NOT_ASKED or (bool(can.maps_gpus) and not wanted <= can.maps_gpus)


def _gpus_of(tensors: Collection[Any]) -> set[bytes]:
    """The GPUs, by their UUIDs, of those tensors that are not too small to stay there."""
    driver = cuda.load()
    if driver is None:
        return set()
    memories = [memory for memory in map(_described, tensors) if memory is not None]
    large = [one for one in memories if one.kind == gpu.CUDA and one.nbytes >= LARGE]
    numbers = {driver.number_of(memory.pointer) for memory in large}
    return {driver.uuid(number) for number in numbers if number is not None}


def _described(tensor: Any) -> gpu.DeviceMemory | None:
    try:
        return gpu.described(tensor)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):  # its export says what is wrong
        return None


def send_bundle(
    socket: Any,
    frames_with: Callable[..., list[Any]],
    tensors: Any,
    flags: int,
    track: bool,
    copy: bool | None,
    host_only: str = "",
) -> Tracker | None:
    """Sends several tensors as one message. frames_with: makes its frames, given an exporter or not.
    host_only: why tensors on a GPU have to go through the host, if they have."""
    sent: Tracker | None
    if not (_is_gpu_used() and isinstance(tensors, Mapping) and any(map(on_device, tensors.values()))):
        sent = socket._send_outframes(frames_with(), flags, track, copy)
        return sent
    there = [tensor for tensor in tensors.values() if on_device(tensor)]
    can = Capabilities(host_only=host_only) if host_only else _capabilities(socket, flags, there)
    if copy is not False and (can.device_memory or can.registers_memory):
        can = Capabilities(maps_gpus=can.maps_gpus, host_only=can.host_only or _COPIED)
    exports = _Exports(socket, can, copy is False)
    frames = exports.complete(frames_with)
    if exports.there is not None:
        send = partial(exports.send, frames, flags, track, copy)
        done, way = _send_there(socket, send, exports.there, flags)
        if done is not None:
            exports.note_staged()  # behind the others: it says what is slow
            return done[0]
        exports = _Exports(socket, Capabilities(), False, way)
        frames = exports.complete(frames_with)
    exports.note_staged()
    # No other code has the copies, so that they are referenced until they are sent.
    held = False if copy is None and all(map(on_device, tensors.values())) else copy
    sent = exports.send(frames, flags, track, held)
    return sent if track or copy is False else None


def _is_gpu_used() -> bool:
    """Whether this process may have a tensor on a GPU: known without a look at each."""
    torch = sys.modules.get("torch")
    own = "transfer.transports.core.native.cuda" in sys.modules
    return own or "cupy" in sys.modules or (torch is not None and torch.cuda.is_initialized())


class _Exports:
    """As `export`, for the tensors of one message. there: the way of those that stay on their GPU, if any do.
    direct: as in `send_from_device`. instead: why none does, although they could."""

    def __init__(self, socket: Any, can: Capabilities, direct: bool, instead: gpu.Way | None = None) -> None:
        self._socket, self._can, self._direct, self._instead = socket, can, direct, instead
        self.there: gpu.Way | None = None
        #: of a large one that is copied through the host
        self._staged: gpu.Way | None = None
        #: copies in memory of the host that have begun
        self._buffers: list[Any] = []

    def complete(self, frames_with: Callable[..., list[Any]]) -> list[Any]:
        """Returns the frames. No copy runs on where that raises."""
        try:
            return frames_with(self)
        except BaseException:
            _send_while_filled(lambda: None, self._buffers)
            raise

    def __call__(self, tensor: Any) -> Exported:
        if not on_device(tensor):
            return export(tensor)
        exported = export_flat(tensor)
        flat = exported[2]
        way = way_of(flat, self._can, self._direct)
        if way.route is gpu.GpuRoute.MAPPED or way.route in _DIRECT:
            self.there = way
            return _there(tensor, exported, way.route)
        if flat is not None and flat.nbytes >= LARGE and self._staged is None:
            _check_staged(self._socket, self._instead or way)
            self._staged = self._instead or way
        made = begun(tensor, exported)
        self._buffers.append(made[2])
        return made

    def note_staged(self) -> None:
        """Says of one large tensor that it was copied through the host, if one was."""
        if self._staged is not None:
            _note(self._socket, self._staged)

    def send(self, frames: list[Any], flags: int, track: bool, copy: bool | None) -> Tracker | None:
        """Sends them."""
        return _send_while_filled(lambda: _send(self._socket, frames, flags, track, copy), self._buffers)


def _there(tensor: Any, exported: Exported, route: gpu.GpuRoute) -> Exported:
    """For a way that leaves the payload on its GPU."""
    if route is gpu.GpuRoute.MAPPED:
        return _mappable(tensor, exported)
    bits, header, payload = settled(tensor, exported)
    return bits, header, registrable(payload) if route is gpu.GpuRoute.DMABUF else payload


def _mappable(tensor: Any, exported: Exported) -> Exported:
    """For peers that map it, in the order of the tensor's current stream."""
    bits, header, flat = exported
    driver, memory = cuda.load(), gpu.described(flat)
    assert driver is not None
    assert memory is not None
    index = driver.number_of(memory.pointer) or 0
    where = gpu_of_flat(tensor, flat)
    current, stream = where.current()
    copied = partial(where.copied, flat, current)
    memory = replace(memory, index=index)
    return bits, header, gpu.OnGpu(flat, memory, driver.uuid(index), stream, copied)


def way_of(tensor: Any, can: Capabilities, direct: bool = False) -> gpu.Way:
    """The decision of `gpu.decide` on this machine; logs its warning once. direct: with copy=False."""
    memory = _described(tensor)
    if memory is None:
        return gpu.Way(gpu.GpuRoute.STAGING, "nothing is known of its memory")
    driver = cuda.load() if memory.kind == gpu.CUDA else None
    if driver is not None and can.maps_gpus:
        index = driver.number_of(memory.pointer)
        memory = replace(memory, uuid=b"" if index is None else driver.uuid(index))
    if driver is not None and (can.device_memory or can.registers_memory):
        memory = replace(memory, virtual=gpu.is_virtual(driver.attributes(memory.pointer)))
    expandable = gpu.expandable_segments(config.torch_allocator())
    machine = cuda.machine(driver, memory.index, registers=can.registers_memory, expandable=expandable)
    way = gpu.decide(memory, can, machine)
    if way.warning:
        _warn(way.warning)
    lent = driver if direct and way.route is gpu.GpuRoute.MAPPED else None
    if lent is not None and not gpu.can_be_lent(lent.attributes(memory.pointer)):
        return way._replace(reason=f"{way.reason}, as a copy there: CUDA shares no memory of this kind")
    return way


def registrable(flat: Any) -> gpu.Exportable:
    """Returns flat device memory that can be exported as a dma-buf. Only if `decide` allows it."""
    driver = cuda.load()
    assert driver is not None
    pointer = int(flat.__cuda_array_interface__["data"][0])
    return gpu.Exportable(flat, partial(driver.export, pointer, int(flat.nbytes)))


def _warn(text: str) -> None:
    """Logs a warning, once for each text."""
    if text not in _warned:
        _warned.add(text)
        logger.warning(text)
