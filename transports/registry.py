"""Finds the transport of a scheme. A class is loaded when its scheme is first used.

Other distributions add theirs by an entry point in the group `transfer.transports`, named like the
scheme and pointing to a `transports.base.Transport` that is made with one argument, SocketOptions.
"""

from __future__ import annotations

import errno
import importlib
from importlib import metadata

from transports.base import Transport
from transports.config import SocketOptions
from transports.errors import AddressError

ENTRY_POINTS = "transfer.transports"

#: scheme -> module:class. rdma and ucx meet their peer by TCP; what carries the data is chosen then.
_BUILTIN = {
    "tcp": "transports.tcp:TcpTransport",
    "rdma": "transports.tcp:TcpTransport",
    "ucx": "transports.tcp:TcpTransport",
    "ipc": "transports.ipc:IpcTransport",
    "inproc": "transports.inproc:InprocTransport",
}

_loaded: dict[str, type[Transport]] = {}


def find(scheme: str) -> type[Transport]:
    """The class for a scheme. Raises AddressError for one that nobody brings."""
    if scheme not in _loaded:  # two threads may both load it: they find the same class
        _loaded[scheme] = _load(scheme)
    return _loaded[scheme]


def open_transport(scheme: str, options: SocketOptions | None = None) -> Transport:
    """A transport for one endpoint. It holds no descriptor by itself and needs no closing."""
    make = find(scheme)
    return make(SocketOptions() if options is None else options)  # type: ignore[call-arg]


def schemes() -> tuple[str, ...]:
    """All schemes that an endpoint may have, sorted."""
    return tuple(sorted({*_BUILTIN, *(point.name for point in metadata.entry_points(group=ENTRY_POINTS))}))


def available() -> tuple[str, ...]:
    """The transports that this process can offer to a peer for the data, best first."""
    return ("tcp",)  # rdma and ucx are offered by the releases that have them


def _load(scheme: str) -> type[Transport]:
    if scheme in _BUILTIN:
        module, _, name = _BUILTIN[scheme].partition(":")
        loaded = getattr(importlib.import_module(module), name)
    else:
        points = metadata.entry_points(group=ENTRY_POINTS, name=scheme)
        if not points:
            raise AddressError(
                f"nothing here speaks {scheme}://",
                hint="known schemes: " + ", ".join(schemes()),
                errno=errno.EPROTONOSUPPORT,
            )
        loaded = next(iter(points)).load()
    if not (isinstance(loaded, type) and issubclass(loaded, Transport)):
        raise AddressError(f"what is registered for {scheme}:// is no transport: {loaded!r}")
    return loaded
