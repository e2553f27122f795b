"""Spark writes straight into a training process: `df.write.format("transfer")`.

Nothing is imported until it is asked for; PySpark and pyarrow come with `tensor-transfer[spark]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.spark.session import local_session
    from transfer.spark.source import TransferDataSource, register, write

__all__ = ["TransferDataSource", "local_session", "register", "write"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "transfer.spark.session" if name == "local_session" else "transfer.spark.source"
    return getattr(import_module(home), name)
