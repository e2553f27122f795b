"""Writes DataFrames for training: `df.write.format("transfer")`, through a spool or directly to a trainer.

Everything is imported on first use; `tensor-transfer[spark]` installs PySpark and pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.transports.errors import MissingLibrary, missing_library

if TYPE_CHECKING:
    from transfer.spark.session import local_session
    from transfer.spark.source import TransferDataSource
    from transfer.spark.writer import register, write

__all__ = ["TransferDataSource", "local_session", "register", "write"]

_HOMES = {
    "TransferDataSource": "source",
    "local_session": "session",
    "register": "writer",
    "write": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"transfer.spark.{_HOMES[name]}"), name)
    except (ModuleNotFoundError, MissingLibrary) as error:
        raise missing_library(f"transfer.spark.{name}", error, "spark") from error
