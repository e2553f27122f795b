"""PyTorch data sets whose rows arrive on a PULL socket, or are read from a run in a spool.

Everything is imported on first use; `tensor-transfer[torch]` installs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import MissingLibrary, missing_library

if TYPE_CHECKING:
    from transfer.torch.eager_reader import RunSummary
    from transfer.torch.run_dataset import RunDataset
    from transfer.torch.sharded_stream import ShardedStream
    from transfer.torch.stream_dataset import StreamDataset

__all__ = ["RunDataset", "RunSummary", "ShardedStream", "StreamDataset"]
_HOMES = {
    "RunDataset": "run_dataset",
    "RunSummary": "eager_reader",
    "ShardedStream": "sharded_stream",
    "StreamDataset": "stream_dataset",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"transfer.torch.{_HOMES[name]}"), name)
    except (ModuleNotFoundError, MissingLibrary) as error:
        raise missing_library(f"transfer.torch.{name}", error, "torch") from error
