"""Name services by the scheme of an endpoint: each is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transfer.transports.forking import undivided

if TYPE_CHECKING:
    from transfer.sockets.context import Context
    from transfer.transports.address import Address
    from transfer.transports.discovery.directory import Directory

#: module:class, and whether it asks by sockets of the context
_DIRECTORIES = {
    "dns": ("transfer.transports.discovery.dns:DnsDirectory", False),
    "registry": ("transfer.broker.clients.registry:RegistryDirectory", True),
}
_ANNOUNCEMENT = "transfer.broker.clients.registry:RegisteredName"


def open_directory(address: Address, context: Context) -> Directory:
    """The name service of an endpoint. Raises NotSupported, OptionError."""
    make, needs_sockets = _DIRECTORIES[address.scheme]
    found: Directory = _load(make)(address, context) if needs_sockets else _load(make)(address)
    return found


def announce(registry: str, endpoint: str, **settings: Any) -> Any:
    """Announces an endpoint to a registry: a `transfer.broker.clients.registry.RegisteredName`."""
    return _load(_ANNOUNCEMENT)(registry, endpoint, **settings)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    with undivided():
        return getattr(importlib.import_module(module), name)
