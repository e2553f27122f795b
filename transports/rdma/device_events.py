"""What a device reports by itself: that it is gone, and that the link of a port went down or came back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from transfer.transports.errors import Broken, TransferError
from transfer.transports.rdma.driver import DeviceEventKind
from transfer.transports.reactor import READABLE, Reactor

if TYPE_CHECKING:
    from transfer.transports.rdma.domain import Domain

logger = logging.getLogger("transfer")


class DeviceEvents:
    """Takes the events of a domain's device, in the reactor. Closed before the device."""

    def __init__(self, domain: Domain, reactor: Reactor) -> None:
        self._domain = domain
        self._reactor = reactor
        self._fd = domain.device.event_fd
        if self._fd >= 0:
            reactor.register(self._fd, READABLE, self._ready)

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._reactor.unregister(fd)

    def _ready(self, _events: int) -> None:
        while self._fd >= 0 and (event := self._domain.device.take_event()) is not None:
            name = self._domain.device.name
            if event.kind == DeviceEventKind.GONE:
                logger.warning("the RDMA device %s is gone: its connections end, and return by TCP", name)
                self.close()
                self._domain.lose(Broken(f"the RDMA device {name} is gone"))
            elif event.kind == DeviceEventKind.LINK_DOWN:
                logger.warning(
                    "the link of %s port %d is down: connections end if it stays down for some seconds",
                    name,
                    event.port,
                )
            elif event.kind == DeviceEventKind.LINK_UP:
                logger.warning("the link of %s port %d is up again", name, event.port)


def watch(domain: Domain, reactor: Reactor) -> DeviceEvents | None:
    """None: the reactor has ended."""
    try:
        return DeviceEvents(domain, reactor)
    except TransferError:
        return None
