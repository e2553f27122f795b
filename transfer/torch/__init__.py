"""PyTorch data sets whose rows arrive on a PULL socket, or are read from a run in a spool.

Everything is imported on first use; `tensor-transfer[torch]` installs torch.

eager_reader    `EagerReader`: batches of tensors directly from a PULL socket, each row exactly once
run_dataset     `RunDataset`: batches of tensors of a run in a spool, which can be resumed at any step
run_reader      reads runs from a source of messages, one run after the other
sharded_stream  `ShardedStream`: a run that the ranks of a distributed training share
slicer          cuts a stream of frames of any length into batches of equal length
stream_dataset  `StreamDataset`: batches of tensors of a run in a spool, or directly from Spark's tasks
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.torch.eager_reader import RunSummary
    from transfer.torch.run_dataset import RunDataset
    from transfer.torch.sharded_stream import ShardedStream
    from transfer.torch.stream_dataset import StreamDataset

__all__ = ["RunDataset", "RunSummary", "ShardedStream", "StreamDataset"]

exports(
    __name__,
    {
        "eager_reader": "RunSummary",
        "run_dataset": "RunDataset",
        "sharded_stream": "ShardedStream",
        "stream_dataset": "StreamDataset",
    },
    extra="torch",
)
