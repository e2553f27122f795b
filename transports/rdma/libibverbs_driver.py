"""The driver over libibverbs.so.1 itself, bound by the compiled core: for any Python and rdma-core."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import DeviceError
from transfer.transports.rdma import failures
from transfer.transports.rdma.driver import (
    DeviceEvent,
    DeviceEventKind,
    DeviceHandle,
    DeviceLimits,
    Driver,
    MemoryRegion,
    PortState,
)

if TYPE_CHECKING:
    import transfer.transports.core.native.verbs as verbs
    from transfer.transports.core.native.ring_channel import RingChannel

#: of enum ibv_access_flags
_LOCAL_WRITE, _REMOTE_READ = 1, 4
#: of enum ibv_event_type
_EVENTS = {8: DeviceEventKind.GONE, 9: DeviceEventKind.LINK_UP, 10: DeviceEventKind.LINK_DOWN}
#: READs at once that more would not make faster
_READS = 16


@contextmanager
def _mapped(device: str, what: str) -> Iterator[None]:
    """Translates the binding's errors."""
    try:
        yield
    except OSError as error:
        raise failures.device_failed(error.errno or 0, device, what) from error


def load_binding() -> tuple[Any, Any]:
    """The modules of the compiled core: the library, and its objects. Raises DeviceError."""
    try:
        import transfer.transports.core.native.libibverbs as library
        import transfer.transports.core.native.verbs as binding
    except ImportError as error:
        raise DeviceError(
            "no_core",
            "libibverbs needs the compiled core, which this installation lacks",
            hint="install a wheel, or gcc and python3-dev and then tensor-transfer again",
        ) from error
    return library, binding


class LibibverbsDriver(Driver):
    """Raises DeviceError when there is no libibverbs, or no compiled core."""

    name = "libibverbs"

    def __init__(self) -> None:
        self._library, self._binding = load_binding()
        # libibverbs.so.1.14.44.0: of rdma-core 44
        self.version = self._library.library_file().partition(".so.")[2] or "1"

    def devices(self) -> list[str]:
        try:
            return sorted(self._library.device_names())
        except OSError as error:
            raise DeviceError(
                "no_device",
                "this machine has no verbs devices",
                hint="modprobe ib_uverbs; is rdma-core there?",
            ) from error

    def open(self, device: str) -> DeviceHandle:
        return _Device(self._library, self._binding, device)


class _Device(DeviceHandle):
    def __init__(self, library: Any, binding: Any, name: str) -> None:
        self.name = name
        self._binding = binding
        self._pinned = 0
        self._regions = 0
        with _mapped(name, "opening the device"):
            self.handle: verbs.VerbsDevice = binding.VerbsDevice(name)
            self.event_fd = self.handle.async_fd
            self.forks_freely = library.forks_freely()
            pairs, completions, requests, regions, target, initiator = self.handle.limits()
        self.limits = DeviceLimits(
            queue_pairs=pairs,
            completions=completions,
            requests=requests,
            regions=regions,
            reads=min(target, initiator, _READS),
        )

    def port(self, number: int) -> PortState:
        with _mapped(self.name, f"asking for port {number}"):
            active, mtu, lid, ethernet = self.handle.port(number)
        return PortState(active=active, mtu=mtu, lid=lid, ethernet=ethernet)

    def gid(self, port: int, index: int) -> str:
        with _mapped(self.name, f"asking for GID {index} of port {port}"):
            return str(ipaddress.IPv6Address(self.handle.gid(port, index)))

    def register(
        self,
        address: int,
        length: int,
        *,
        local_write: bool,
        remote_read: bool,
        device_memory: bool = False,
    ) -> MemoryRegion:
        return _Region(self, address, length, local_write, remote_read, device_memory)

    def register_dmabuf(
        self, fd: int, offset: int, length: int, *, local_write: bool, remote_read: bool
    ) -> MemoryRegion:
        return _Region(self, offset, length, local_write, remote_read, True, fd)

    def channel(self, size: int) -> RingChannel:
        from transfer.transports.core.native.ring_channel import RingChannel

        with _mapped(self.name, "making a queue pair"):
            return RingChannel(self.handle, size, self.reclaim)

    def connect(self, channel: RingChannel, *destination: Any) -> None:
        with _mapped(self.name, "connecting a queue pair"):
            channel.connect(*destination)

    def take_event(self) -> DeviceEvent | None:
        with _mapped(self.name, "asking for events"):
            found = self.handle.take_event()
        return None if found is None else DeviceEvent(_EVENTS.get(found[0], DeviceEventKind.OTHER), found[1])

    def close(self) -> None:
        with _mapped(self.name, "closing the device"):
            self.handle.close()


class _Region(MemoryRegion):
    def __init__(
        self,
        device: _Device,
        address: int,
        length: int,
        local_write: bool,
        remote_read: bool,
        device_memory: bool,
        dmabuf: int = -1,
    ) -> None:
        rights = (_LOCAL_WRITE if local_write else 0) | (_REMOTE_READ if remote_read else 0)
        self._device = device
        try:
            try:
                self._region = device._binding.VerbsRegion(device.handle, address, length, rights, dmabuf)
            except OSError as error:
                scarce = error.errno in (errno.ENOMEM, errno.EAGAIN)
                if not (scarce and device.reclaim is not None and device.reclaim()):
                    raise
                self._region = device._binding.VerbsRegion(device.handle, address, length, rights, dmabuf)
        except OSError as error:
            now = failures.circumstances(
                *(address, length, device._pinned, device._regions, device.limits.regions, device_memory)
            )
            raise failures.registration_failed(
                error, error.errno or 0, device=device.name, address=address, size=length, now=now
            ) from error
        self.address, self.length = address, length
        self.lkey, self.rkey = self._region.lkey, self._region.rkey
        self._open = True
        device._pinned += length
        device._regions += 1

    def close(self) -> None:
        if self._open:
            self._open = False
            self._region.close()
            self._device._pinned -= self.length
            self._device._regions -= 1
