"""Which faster transports this process can use: probed once, cheaply, never fatal.

Each transport, also one of another distribution, has a `probe()`. Hellos carry its result to peers, `transfer
doctor` shows it, and an error names it when a requested transport is missing.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transfer.transports import plugins
from transfer.transports.address import LOCAL, RANKING, UPGRADE_POINTS
from transfer.transports.forking import undivided

if TYPE_CHECKING:
    from transfer.transports.handshake.upgrade import Upgrade

logger = logging.getLogger("transfer")

#: transport -> module with `probe()`; best first
_PROBES = {
    "local": "transfer.transports.shm.probe",
    "rdma": "transfer.transports.rdma.probe",
    "ucx": "transfer.transports.ucx.probe",
}


@dataclass(frozen=True, slots=True)
class Probe:
    """The result for one transport.

    usable: it can be offered to peers. word: a constant word for why not ("no_device", "memlock").
    reason: the same as text. hint: the remedy. better: it is expected to be faster than TCP here;
    else it is used only where a side names it. details: for `transfer doctor`.
    """

    usable: bool
    reason: str = ""
    word: str = ""
    hint: str = ""
    better: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


#: for a transport without encryption, where all data has to be encrypted
UNENCRYPTED = Probe(
    False,
    "it does not encrypt, and TRANSFER_ENCRYPT is all",
    "unencrypted",
    "TRANSFER_ENCRYPT=tcp lets authenticated peers use it",
)

_found: dict[str, Probe] = {}


def probe(name: str) -> Probe:
    """The result for a transport; probed once for each process. Never raises."""
    found = _found.get(name)
    if found is None:  # two threads may both probe: the results are equal
        with undivided():
            found = _found.setdefault(name, _look(name))
    return found


def _look(name: str) -> Probe:
    try:
        found = (importlib.import_module(_PROBES[name]) if name in _PROBES else load_plugin(name)).probe()
    except Exception as error:  # a broken driver stack must not prevent the use of TCP
        logger.debug("probing %s failed", name, exc_info=True)
        return Probe(False, f"its probe failed: {error!r}", "probe_failed")
    if not isinstance(found, Probe):
        return Probe(False, f"its probe returned {found!r:.80}, which is no Probe", "probe_failed")
    return found


def forget() -> None:
    """Drops the results, so that the next call probes again: for tests, and for a child after fork."""
    _found.clear()


def names() -> tuple[str, ...]:
    """Every transport that can be probed, best first."""
    return (LOCAL, *plugin_names(), *(name for name in _PROBES if name != LOCAL))


def plugin_names() -> tuple[str, ...]:
    """Transports of other distributions to which a connection can be upgraded. Built-in ones take
    precedence."""
    return tuple(name for name in plugins.names(UPGRADE_POINTS) if name not in RANKING)


def load_plugin(name: str) -> type[Upgrade]:
    """The class of such a transport. Raises OptionError."""
    with undivided():
        base = importlib.import_module("transfer.transports.handshake.upgrade").Upgrade
    return plugins.load(UPGRADE_POINTS, name, base)
