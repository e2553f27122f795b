"""The spool keeps rows between Spark and trainers; see `docs/spool.md`.

Everything is imported on first use; `tensor-transfer[spool]` installs numpy and msgspec.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import MissingLibrary, missing_library

if TYPE_CHECKING:
    from transfer.spool.client.admin import SpoolAdmin
    from transfer.spool.client.lineage import Lineage
    from transfer.spool.client.row_stream import RowStream
    from transfer.spool.client.stream_state import merge_states
    from transfer.spool.server.server import Spool

__all__ = ["Lineage", "RowStream", "Spool", "SpoolAdmin", "merge_states"]
_HOMES = {
    "Lineage": "client.lineage",
    "RowStream": "client.row_stream",
    "Spool": "server.server",
    "SpoolAdmin": "client.admin",
    "merge_states": "client.stream_state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"transfer.spool.{_HOMES[name]}"), name)
    except (ModuleNotFoundError, MissingLibrary) as error:
        raise missing_library(f"transfer.spool.{name}", error, "spool") from error
