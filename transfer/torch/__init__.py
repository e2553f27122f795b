"""PyTorch side: a data set whose rows arrive on a PULL socket.

Nothing is imported until it is asked for; torch comes with `tensor-transfer[torch]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.torch.dataset import RunSummary, StreamDataset

__all__ = ["RunSummary", "StreamDataset"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transfer.torch import dataset

    return getattr(dataset, name)
