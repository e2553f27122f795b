"""PyTorch side: data sets whose rows arrive on a PULL socket, or are read from a run in a spool.

Nothing is imported until it is asked for; torch comes with `tensor-transfer[torch]`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transports.errors import MissingLibrary, missing_library

if TYPE_CHECKING:
    from transfer.torch.dataset import StreamDataset
    from transfer.torch.eager import RunSummary
    from transfer.torch.runs import RunDataset
    from transfer.torch.sharded import ShardedStream

__all__ = ["RunDataset", "RunSummary", "ShardedStream", "StreamDataset"]
_HOMES = {
    "RunDataset": "runs",
    "RunSummary": "eager",
    "ShardedStream": "sharded",
    "StreamDataset": "dataset",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"transfer.torch.{_HOMES[name]}"), name)
    except (ModuleNotFoundError, MissingLibrary) as error:
        raise missing_library(f"transfer.torch.{name}", error, "torch") from error
