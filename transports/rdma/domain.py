"""An open device with its protection domain: what all sockets of a context share of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from transfer.transports.errors import Closed, ForkedError, TransferError
from transfer.transports.rdma.device_selection import Route, choose_route
from transfer.transports.rdma.driver import DeviceHandle, Driver, load
from transfer.transports.rdma.memory import Handle, Regions, SlabPool, Sources


class Domain:
    """One device, opened. Thread-safe; not for a forked child.

    received: memory that payloads are READ into. sources: makes payloads readable for peers.
    """

    def __init__(self, device: DeviceHandle, route: Route, copy_into: Any) -> None:
        self.device = device
        self.route = route
        self.received = SlabPool(device, received=True)
        self.staging = SlabPool(device, received=False)
        self.regions = Regions(device)
        self.sources = Sources(device, self.staging, self.regions, copy_into)

    def close(self) -> None:
        """Regions, protection domain, context: queue pairs and queues are closed before."""
        self.regions.close()
        self.received.close()
        self.staging.close()
        self.device.close()


class Wish:
    """Memory of the user's that is registered when the device is open. Made by `Domains.wish`.

    handle: its registration, or None as yet; error: why there is none although the device is open.
    """

    def __init__(self, domains: Domains, data: Any) -> None:
        self.handle: Handle | None = None
        self.error: TransferError | None = None
        self._domains = domains
        self._data = data

    def begin(self, domain: Domain) -> None:
        """Raises RegistrationError. Called under the lock of its owner."""
        self.handle = domain.regions.add(self._data)

    def end(self) -> None:
        """Called under the lock of its owner."""
        handle, self.handle = self.handle, None
        self._data = None
        if handle is not None:
            handle.close()

    def close(self) -> None:
        """Idempotent; any thread. In a forked child it leaves all to the parent."""
        self._domains.forget(self)


class Domains:
    """The domains of one context, opened at the first use. Closed with the context."""

    def __init__(self, copy_into: Any, driver: Callable[[], Driver] = load) -> None:
        self._copy_into = copy_into
        self._load = driver
        self._lock = threading.Lock()
        self._domain: Domain | None = None
        self._wishes: set[Wish] = set()
        self._spent_ns = 0  # by domains that are closed
        self._pid = os.getpid()
        self._closed = False

    def get(self) -> Domain:
        """The domain of the chosen device. Raises DeviceError, OptionError, Closed, ForkedError."""
        check_process(self._pid)
        with self._lock:
            if self._closed:
                raise Closed("the context is closed")
            if self._domain is None:
                driver = self._load()
                route = choose_route()
                device = driver.open(route.device)
                try:
                    self._domain = Domain(device, route.seen_by(device), self._copy_into)
                except BaseException:
                    device.close()
                    raise
                for wish in self._wishes:
                    try:
                        wish.begin(self._domain)
                    except TransferError as error:  # the connection works without it
                        wish.error = error
            return self._domain

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
        """Registers memory of the user's, so that sending from it registers nothing on the way.

        Raises DeviceError, RegistrationError, TypeError, BufferError.
        """
        return self.get().regions.add(data)

    def close(self) -> None:
        """Idempotent. In a forked child it leaves all to the parent."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            for wish in self._wishes:
                wish.end()
            self._wishes.clear()
            self._spent_ns = self.registration_ns
            domain, self._domain = self._domain, None
        if domain is not None:
            domain.close()


def check_process(pid: int) -> None:
    """Raises ForkedError in a child of the process `pid`."""
    if os.getpid() != pid:
        raise ForkedError(
            "RDMA devices opened before fork cannot be used in the child",
            hint="make the context in the child, or start processes by spawn or forkserver",
        )
