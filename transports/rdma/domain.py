"""An open device with its protection domain, which all sockets of a context share."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from transfer.transports.base import Capabilities
from transfer.transports.errors import Closed, ForkedError, TransferError
from transfer.transports.gpu_receiving import GpuReceiving
from transfer.transports.rdma.device_events import DeviceEvents, watch
from transfer.transports.rdma.device_selection import DeviceRoute, choose_route
from transfer.transports.rdma.driver import DeviceHandle, Driver, load
from transfer.transports.rdma.memory import Handle, Regions, Sources, register_received, slab_pool
from transfer.transports.reactor import Reactor


class Domain:
    """One device, opened. Thread-safe; not for a forked child.

    received, received_on_gpu: memory that payloads are READ into. sources: makes payloads readable for peers.
    lost: why the device works no more. on_lost: called with that error, once, if their owners live; each adds
    and removes itself.
    """

    lost: TransferError | None = None
    _events: DeviceEvents | None = None

    def __init__(self, device: DeviceHandle, route: DeviceRoute, copy_into: Any) -> None:
        self.device = device
        self._chosen = route
        self.route = route.seen_by(device)
        self.received = slab_pool(device, received=True)
        self.staging = slab_pool(device, received=False)
        self.received_on_gpu = GpuReceiving(
            Capabilities(registers_memory=True), partial(register_received, device)
        )
        self.regions = Regions(device)
        self.sources = Sources(device, self.staging, self.regions, copy_into)
        self.on_lost: dict[Any, weakref.ref[Callable[[TransferError], object]]] = {}

    def look_again(self) -> DeviceRoute:
        """The route as it is now: a link may be down, and addresses may have changed. Raises DeviceError."""
        self.route = self._chosen.seen_by(self.device)
        return self.route

    def watch(self, reactor: Reactor) -> None:
        """Takes the device's events from now on, in the reactor. Only the first call has an effect."""
        self.received_on_gpu.reactor = reactor
        if self._events is None:
            self._events = watch(self, reactor)

    def lose(self, error: TransferError) -> None:
        """The device is gone: nothing new is made with it, and all that was made ends."""
        self.lost = error
        for found in list(self.on_lost.values()):
            if (callback := found()) is not None:
                callback(error)

    def close(self) -> None:
        """Closes regions, protection domain, context; queue pairs and queues have to be closed before."""
        if self._events is not None:
            self._events.close()
        self.regions.close()
        self.sources.cache.close()
        self.received.close()
        self.received_on_gpu.close()
        self.staging.close()
        self.device.close()


class Wish:
    """The user's memory that is registered as soon as the device is open. Made by `Domains.wish`.

    handle: its registration, or None so far; error: why it failed although the device is open.
    """

    def __init__(self, domains: Domains, data: Any) -> None:
        self.handle: Handle | None = None
        self.error: TransferError | None = None
        self._domains = domains
        self._data = data

    def begin(self, domain: Domain) -> None:
        """Registers the memory. Raises RegistrationError. Called under the lock of its owner."""
        self.handle = domain.regions.add(self._data)

    def end(self) -> None:
        """Deregisters the memory. Called under the lock of its owner."""
        handle, self.handle = self.handle, None
        self._data = None
        if handle is not None:
            handle.close()

    def close(self) -> None:
        """Idempotent; any thread. Does nothing in a forked child."""
        self._domains.forget(self)


class Domains:
    """The domains of one context, opened at their first use. Closed with the context."""

    def __init__(self, copy_into: Any, driver: Callable[[], Driver] = load) -> None:
        self._copy_into = copy_into
        self._load = driver
        self._lock = threading.RLock()  # the collector may end a registration in it
        self._domain: Domain | None = None
        self._lost: list[Domain] = []  # closed last: their ports and streams are their sockets'
        self._wishes: set[Wish] = set()
        self._spent_ns = 0  # by closed domains
        self._pid = os.getpid()
        self._closed = False

    def get(self) -> Domain:
        """The domain of the selected device. Raises DeviceError, OptionError, Closed, ForkedError."""
        check_process(self._pid)
        with self._lock:
            if self._closed:
                raise Closed("the context is closed")
            if self._domain is not None and self._domain.lost is not None:
                self._lost.append(self._domain)
                self._domain = None
            if self._domain is None:
                self._domain = self._open()
            return self._domain

    def _open(self) -> Domain:
        driver = self._load()
        route = choose_route()
        device = driver.open(route.device)
        try:
            domain = Domain(device, route, self._copy_into)
        except BaseException:
            device.close()
            raise
        for wish in self._wishes:
            try:
                wish.begin(domain)
            except TransferError as error:  # the connection works without it
                wish.error = error
        return domain

    def wish(self, data: Any) -> Wish:
        """Registers flat memory now, if the device is open, else as soon as it is.

        Raises RegistrationError, TypeError, BufferError, Closed, ForkedError.
        """
        check_process(self._pid)
        made = Wish(self, data)
        with self._lock:
            if self._closed:
                raise Closed("the context is closed")
            if self._domain is not None:
                made.begin(self._domain)
            self._wishes.add(made)
        return made

    def forget(self, wish: Wish) -> None:
        if os.getpid() == self._pid:
            with self._lock:
                self._wishes.discard(wish)
                wish.end()

    @property
    def registration_ns(self) -> int:
        """Time spent registering memory, for metrics."""
        domain = self._domain
        return self._spent_ns + (0 if domain is None else domain.device.registration_ns)

    def register(self, data: Any) -> Handle:
        """Registers the user's memory, so that a send from it needs no registration.

        Raises DeviceError, RegistrationError, TypeError, BufferError.
        """
        return self.get().regions.add(data)

    def close(self) -> None:
        """Idempotent. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            for wish in self._wishes:
                wish.end()
            self._wishes.clear()
            self._spent_ns = self.registration_ns
            domains, self._domain, self._lost = [*self._lost, self._domain], None, []
        for domain in domains:
            if domain is not None:
                domain.close()


def check_process(pid: int) -> None:
    """Raises ForkedError in a child of the process `pid`."""
    if os.getpid() != pid:
        raise ForkedError(
            "RDMA devices opened before fork cannot be used in the child",
            hint="make the context in the child, or start processes by spawn or forkserver",
        )
