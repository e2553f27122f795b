"""The core in use: the compiled one, or the one in Python.

The variable TRANSFER_CORE ("auto", "native", "pure") decides; "auto" uses the compiled one if it was built.
`IMPLEMENTATION` names it, `REASON` is why the Python core is in use. Nothing is loaded until a name of a core
is used: `wire.py`, with the constants, needs none. The first context of a process logs a warning if the
compiled core is missing; an import alone logs nothing.

buffers       views of users' memory, and the sizes of blocks
copies        copies of data that do not change with the memory that was sent
first_record  the first bytes of a TLS client: one record that holds its whole ClientHello
fork          detects whether this process is a fork of the one in which an object was made
frames        frames as bytes: what streams in Python share, the twin's and those of other transports
message_size  the limit of a message, for all of its frames together
native        the compiled core
pure          the core in Python: the reference for the compiled one, and its replacement where it is missing
python_tls    TLS 1.3 over a descriptor by Python's `ssl`: for the twin, HTTP servers and abtp's client
wire          the layout of a frame: constants only
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING

from transfer.transports.config import core_choice
from transfer.transports.errors import InternalError
from transfer.transports.forking import undivided

logger = logging.getLogger("transfer")

#: what to do where the compiled core is missing
HOW = (
    "install a wheel that has it (`pip install --force-reinstall --only-binary :all: tensor-transfer`), or a "
    "C compiler and Python's headers (`apt install gcc python3-dev`) before `pip install` or, in a checkout, "
    "`make build`; TRANSFER_CORE=pure accepts the slower core"
)
_CHOSEN = "TRANSFER_CORE=pure"
_warned = False


def _choose(choice: str) -> tuple[ModuleType, str, str]:
    """(module, implementation, reason). Raises InternalError if "native" was requested and is missing."""
    if choice == "pure":
        return importlib.import_module("transfer.transports.core.pure"), "pure", _CHOSEN
    try:
        native = importlib.import_module("transfer.transports.core.native")
        for name in __all__[2:]:
            getattr(native, name)
    except (ImportError, AttributeError) as error:
        reason = f"the compiled core is missing ({error})"
        if choice == "native":
            raise InternalError(f"TRANSFER_CORE=native, but {reason}", hint=HOW) from error
        return importlib.import_module("transfer.transports.core.pure"), "pure", reason
    return native, "native", ""


def warn_if_missing() -> None:
    """Logs once in this process that the compiled core is missing, and what to do.

    Silent where TRANSFER_CORE chose the Python core.

    Raises:
        InternalError: TRANSFER_CORE asks for the compiled core, which is missing.
    """
    global _warned
    module = importlib.import_module(__name__)  # by name: `__getattr__` may have to choose a core first
    if module.IMPLEMENTATION == "pure" and module.REASON != _CHOSEN and not _warned:
        _warned = True
        logger.warning("%s; the Python core is used, which is several times slower: %s", module.REASON, HOW)


__all__ = [
    "IMPLEMENTATION",
    "REASON",
    "Flusher",
    "Frame",
    "HeldBuffer",
    "InprocEnd",
    "Lease",
    "Mapping",
    "Pool",
    "SocketThread",
    "Region",
    "Slots",
    "SocketBase",
    "Stream",
    "TlsChannel",
    "TlsContext",
    "Turn",
    "UnfinishedMessages",
    "address_of",
    "check_json",
    "copy_into",
    "crc32c",
    "openssl_version",
    "poll_sockets",
    "x25519",
]

if TYPE_CHECKING:
    from transfer.transports.core.contract import (
        Flusher,
        Frame,
        HeldBuffer,
        InprocEnd,
        Lease,
        Mapping,
        Pool,
        Region,
        Slots,
        SocketBase,
        SocketThread,
        Stream,
        TlsChannel,
        TlsContext,
        Turn,
        UnfinishedMessages,
        address_of,
        check_json,
        copy_into,
        crc32c,
        openssl_version,
        poll_sockets,
        x25519,
    )

    IMPLEMENTATION: str
    REASON: str
else:

    def __getattr__(name: str) -> object:
        """Chooses the core when one of its names is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with undivided():
            module, implementation, reason = _choose(core_choice())
            found = {one: getattr(module, one) for one in __all__[2:]}
            globals().update(found | {"IMPLEMENTATION": implementation, "REASON": reason})
        return globals()[name]
