"""The core in use: the compiled one, or its Python twin.

The variable TRANSFER_CORE ("auto", "native", "pure") decides; "auto" takes the compiled one if it
was built. `IMPLEMENTATION` says which it is, `REASON` why it is the twin.
"""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from transfer.transports.config import core_choice
from transfer.transports.errors import InternalError

HOW = "install a C compiler and run `make setup` (or `pip install .`) again, or set TRANSFER_CORE=pure"


def _choose(choice: str) -> tuple[ModuleType, str, str]:
    """(module, implementation, reason). Raises InternalError if "native" was asked for and is missing."""
    if choice == "pure":
        return importlib.import_module("transfer.transports.core.pure"), "pure", "TRANSFER_CORE=pure"
    try:
        native = importlib.import_module("transfer.transports.core.native")
        for name in __all__:
            if name not in ("IMPLEMENTATION", "REASON"):
                getattr(native, name)
    except (ImportError, AttributeError) as error:
        reason = f"the compiled core is missing ({error})"
        if choice == "native":
            raise InternalError(f"TRANSFER_CORE=native, but {reason}", hint=HOW) from error
        warnings.warn(f"{reason}; the slower Python core is used. {HOW}", RuntimeWarning, stacklevel=3)
        return importlib.import_module("transfer.transports.core.pure"), "pure", reason
    return native, "native", ""


__all__ = [
    "IMPLEMENTATION",
    "REASON",
    "Flusher",
    "Frame",
    "HeldBuffer",
    "Lease",
    "Mapping",
    "Pool",
    "Region",
    "Slots",
    "SocketBase",
    "Stream",
    "TlsChannel",
    "TlsContext",
    "Turn",
    "address_of",
    "check_json",
    "copy_into",
    "crc32c",
    "openssl_version",
]

if TYPE_CHECKING:
    from transfer.transports.core.contract import (
        Flusher,
        Frame,
        HeldBuffer,
        Lease,
        Mapping,
        Pool,
        Region,
        Slots,
        SocketBase,
        Stream,
        TlsChannel,
        TlsContext,
        Turn,
        address_of,
        check_json,
        copy_into,
        crc32c,
        openssl_version,
    )

    IMPLEMENTATION: str
    REASON: str
else:
    _module, IMPLEMENTATION, REASON = _choose(core_choice())
    Flusher = _module.Flusher
    Frame = _module.Frame
    HeldBuffer = _module.HeldBuffer
    Lease = _module.Lease
    Mapping = _module.Mapping
    Pool = _module.Pool
    Region = _module.Region
    Slots = _module.Slots
    SocketBase = _module.SocketBase
    Stream = _module.Stream
    TlsChannel = _module.TlsChannel
    TlsContext = _module.TlsContext
    Turn = _module.Turn
    address_of = _module.address_of
    check_json = _module.check_json
    copy_into = _module.copy_into
    crc32c = _module.crc32c
    openssl_version = _module.openssl_version
