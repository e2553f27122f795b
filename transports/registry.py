"""Finds the transport of a scheme. A class is loaded when its scheme is first used.

Other distributions add theirs by an entry point in the group `transfer.transports`. It is named like the
scheme and points to a `transfer.transports.base.Transport` that is made with one argument, SocketOptions. The
group `transfer.upgrades` is for transports to which peers upgrade after they have met by TCP.
"""

from __future__ import annotations

import errno
import importlib
import logging
from collections.abc import Callable
from functools import cache, partial

from transfer.transports import plugins, probe
from transfer.transports.address import BASE, ENTRY_POINTS, LOCAL, SCHEMES, scheme_hint
from transfer.transports.base import Transport
from transfer.transports.config import DescriptorOptions, TransportConfig
from transfer.transports.errors import AddressError, OptionError, TransferError
from transfer.transports.forking import undivided
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.upgrade import Declined, Upgrade

logger = logging.getLogger("transfer")

#: scheme -> module:class. rdma and ucx meet their peer by TCP; the handshake chooses the transport of the
#: data.
_BUILTIN = {
    "tcp": "transfer.transports.tcp:TcpTransport",
    "rdma": "transfer.transports.tcp:TcpTransport",
    "ucx": "transfer.transports.tcp:TcpTransport",
    "ipc": "transfer.transports.ipc:IpcTransport",
    "inproc": "transfer.transports.inproc:InprocTransport",
}

#: transport of the data of a pair that met by TCP -> module:class
_UPGRADES = {
    "local": "transfer.transports.shm.upgrade:LocalUpgrade",
    "rdma": "transfer.transports.rdma.upgrade:VerbsUpgrade",
    "ucx": "transfer.transports.ucx.upgrade:UcxUpgrade",
}

#: loads a library that takes longer than the reactor may be blocked -> module:function
_LOADERS = {"rdma": "transfer.transports.rdma.driver:load", "ucx": "transfer.transports.ucx.driver:fabric"}
#: the transports whose loader was called
_prepared: set[str] = set()

_loaded: dict[str, type[Transport]] = {}


def find(scheme: str) -> type[Transport]:
    """The class for a scheme. Raises AddressError for one that no distribution provides."""
    if scheme not in _loaded:  # two threads may both load it: they get the same class
        with undivided():
            _loaded[scheme] = _load(scheme)
    return _loaded[scheme]


def open_transport(scheme: str, options: DescriptorOptions | None = None) -> Transport:
    """A transport for one endpoint. It holds no descriptor and needs no closing."""
    make = find(scheme)
    return make(DescriptorOptions() if options is None else options)  # type: ignore[call-arg]


def schemes() -> tuple[str, ...]:
    """All schemes that an endpoint may have, sorted."""
    return tuple(sorted({*_BUILTIN, *probe.plugin_names(), *plugins.names(ENTRY_POINTS)}))


def offer(config: TransportConfig, encrypt: str = "tcp") -> Offer:
    """The transports that this process offers to a peer, best first, and why it lacks the others.

    encrypt: "all": nothing without encryption over a network.

    A transport that is no better than TCP here follows TCP, for requests by name.
    """
    found = {name: probe.probe(name) for name in probe.names()}
    if encrypt == "all":
        found = {name: seen if name == LOCAL else probe.UNENCRYPTED for name, seen in found.items()}
    better = [name for name, seen in found.items() if seen.usable and seen.better]
    others = [name for name, seen in found.items() if seen.usable and not seen.better]
    lacking = {
        name: f"{seen.word}: {seen.reason}{seen.hint and '; '}{seen.hint}"
        for name, seen in found.items()
        if not seen.usable
    }
    return Offer((*better, BASE, *others), config.protocol, config.policy, config.protocol_source, lacking)


def upgrade(name: str) -> type[Upgrade]:
    """The class that upgrades a TCP connection to this transport. Raises Declined if there is none."""
    if name in probe.plugin_names():
        return probe.load_plugin(name)
    if name not in _UPGRADES:
        raise Declined("unavailable", f"nothing here sets up {name}")
    return _load_upgrade(name)


@cache
def _load_upgrade(name: str) -> type[Upgrade]:
    module, _, attribute = _UPGRADES[name].partition(":")
    with undivided():
        found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, type) and issubclass(found, Upgrade)
    return found


def preparation(offer: Offer, scheme: str) -> Callable[[], None] | None:
    """A function to call, outside of the reactor, before a connection by this scheme: it loads the library
    of the transport that will probably be chosen (UCX: 1 to 2 s, once for the process).

    None: there is nothing to load. The function never raises: the upgrade reports errors.
    """
    if _LOADERS.keys().isdisjoint(offer.transports):
        return None
    named = scheme if scheme in _LOADERS else offer.protocol
    if named == "auto":
        loaded = offer.better & _LOADERS.keys()
        named = next((name for name in offer.transports if name in loaded), "")
    if named not in _LOADERS or named not in offer.transports or named in _prepared:
        return None
    return partial(_prepare, named)


def _prepare(name: str) -> None:
    _prepared.add(name)
    module, _, function = _LOADERS[name].partition(":")
    try:
        with undivided():
            getattr(importlib.import_module(module), function)()
    except TransferError:
        logger.debug("loading %s failed", name, exc_info=True)


def _load(scheme: str) -> type[Transport]:
    if scheme in _BUILTIN or scheme in probe.plugin_names():  # peers that upgrade meet by TCP
        module, _, name = _BUILTIN.get(scheme, _BUILTIN["tcp"]).partition(":")
        loaded = getattr(importlib.import_module(module), name)
        assert isinstance(loaded, type) and issubclass(loaded, Transport)
        return loaded
    if scheme not in plugins.names(ENTRY_POINTS):
        raise AddressError(
            f"nothing here speaks {scheme}://",
            hint=scheme_hint(scheme, {*schemes(), *SCHEMES}),
            errno=errno.EPROTONOSUPPORT,
        )
    try:
        return plugins.load(ENTRY_POINTS, scheme, Transport)  # type: ignore[type-abstract]
    except OptionError as error:
        raise AddressError(
            f"{scheme}:// cannot be used: {str(error).partition(chr(10))[0]}", hint=error.hint
        ) from error
