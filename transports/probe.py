"""Which faster transports this process could use: looked at once, cheaply, never fatal.

Each transport brings a `probe()` of its own, also one of another distribution; what it says is told to peers
in the hello, shown by `transfer doctor`, and named when a wish cannot be met.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transfer.transports import plugins
from transfer.transports.address import UPGRADE_POINTS
from transfer.transports.forking import undivided
from transfer.transports.handshake.choice import LOCAL, RANKING

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
    """What was found of one transport.

    usable: it can be offered to peers. word: a constant word for why not ("no_device", "memlock").
    reason: the same for people. hint: what to do about it. better: it is expected to beat TCP here;
    else it is only used where somebody names it. details: for `transfer doctor`.
    """

    usable: bool
    reason: str = ""
    word: str = ""
    hint: str = ""
    better: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


#: of a transport that would carry data as it is, where all is to be encrypted
UNENCRYPTED = Probe(
    False,
    "it does not encrypt, and TRANSFER_ENCRYPT is all",
    "unencrypted",
    "TRANSFER_ENCRYPT=tcp lets authenticated peers use it",
)

_found: dict[str, Probe] = {}


def probe(name: str) -> Probe:
    """What is known of a transport; looked at once for each process. Never raises."""
    found = _found.get(name)
    if found is None:  # two threads may both look: they find the same
        with undivided():
            found = _found.setdefault(name, _look(name))
    return found


def _look(name: str) -> Probe:
    try:
        found = (importlib.import_module(_PROBES[name]) if name in _PROBES else load_plugin(name)).probe()
    except Exception as error:  # a broken driver stack must not keep anybody from using TCP
        logger.debug("probing %s failed", name, exc_info=True)
        return Probe(False, f"looking for it failed: {error!r}", "probe_failed")
    if not isinstance(found, Probe):
        return Probe(False, f"its probe said {found!r:.80}, which is no Probe", "probe_failed")
    return found


def forget() -> None:
    """Looks again at the next question: for tests, and for a child after fork."""
    _found.clear()


def names() -> tuple[str, ...]:
    """Every transport that can be probed, best first."""
    return (LOCAL, *plugin_names(), *(name for name in _PROBES if name != LOCAL))


def plugin_names() -> tuple[str, ...]:
    """Transports of other distributions to which a connection can be upgraded. Ours have priority."""
    return tuple(name for name in plugins.names(UPGRADE_POINTS) if name not in RANKING)


def load_plugin(name: str) -> type[Upgrade]:
    """The class of one of them. Raises OptionError."""
    with undivided():
        base = importlib.import_module("transfer.transports.handshake.upgrade").Upgrade
    return plugins.load(UPGRADE_POINTS, name, base)
