"""`ShardedStream`: a run that the ranks of a distributed training share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, overload

from transfer.spool.client.open import checked_numbers
from transfer.torch.run_dataset import BatchT, Tensors, TensorTuple
from transfer.torch.stream_dataset import StreamDataset, StreamOptions
from transfer.transports.arguments import wrong
from transfer.transports.errors import OptionError, UsageError, comes_with

with comes_with("torch", __name__):
    import torch.distributed as dist

#: the default dimension of a mesh along which ranks have different rows
_DATA = "dp"


class ShardedStream(StreamDataset[BatchT]):
    """This rank's rows of a run: `RunDataset` with the rank and world size of torch.distributed.

        stream = ShardedStream("run://spool:5570/digits", 64, epochs=3, shuffle=7)                # DDP
        stream = ShardedStream("run://spool:5570/digits", 64, mesh=mesh, mesh_dim="dp")           # a mesh

    All ranks have equally many steps, so that no collective waits for a rank that has finished. Each rank
    has a separate lease.

    Args:
        batch_size: rows in a batch of one rank.
        rank, world_size: used instead of those of torch.distributed; given together.
        mesh: a DeviceMesh. Ranks that differ only in other dimensions than `mesh_dim` have the same batches.
        mesh_dim: the dimensions along which ranks have different rows, one name or several (such as
            ("dp_replicate", "dp_shard")); by default "dp", or the only dimension.

    Raises:
        UsageError: torch.distributed is not initialized, or this rank is not in the mesh.
    """

    @overload
    def __init__(
        self: ShardedStream[Tensors],
        url: str,
        batch_size: int | None = ...,
        *,
        columns: None = ...,
        mesh: Any = ...,
        mesh_dim: str | Sequence[str] | None = ...,
        **options: Unpack[StreamOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ShardedStream[TensorTuple],
        url: str,
        batch_size: int | None = ...,
        *,
        columns: Sequence[str],
        mesh: Any = ...,
        mesh_dim: str | Sequence[str] | None = ...,
        **options: Unpack[StreamOptions],
    ) -> None: ...

    def __init__(
        self,
        url: str,
        batch_size: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        mesh_dim: str | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        if mesh is not None and not callable(getattr(mesh, "get_coordinate", None)):
            raise wrong("mesh", mesh, "a DeviceMesh, or None")
        if (rank is None) != (world_size is None) or (mesh is not None and rank is not None):
            raise OptionError("give rank and world_size together, or mesh, or none of them")
        if rank is not None and world_size is not None:
            checked_numbers(None, None, None, rank, world_size)
            index, size, seat = rank, world_size, (rank, world_size)
        else:
            seat = _current_rank()
            index, size = seat if mesh is None else _share_of(mesh, mesh_dim)
        super().__init__(url, batch_size, rank=index, world_size=size, seat=seat, **options)
        #: this rank's share of the rows: (index, number of shares)
        self.share = (index, size)


def _current_rank() -> tuple[int, int]:
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "torch.distributed is not initialized, so this rank's rows are unknown",
            hint="Call torch.distributed.init_process_group first, or give rank=0, world_size=1.",
        )
    return dist.get_rank(), dist.get_world_size()


def _share_of(mesh: Any, names: str | Sequence[str] | None) -> tuple[int, int]:
    """Returns (index, number) of this rank along dimensions of a DeviceMesh, the last one counting fastest.

    Raises OptionError for an unknown dimension, UsageError when this rank is not in the mesh.
    """
    known = tuple(mesh.mesh_dim_names or ())
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        raise UsageError("this rank is not in the mesh", hint="Give each rank a mesh that it is in.")
    if names is None and len(coordinates) == 1:
        dimensions = [0]
    else:
        wanted = (_DATA,) if names is None else (names,) if isinstance(names, str) else tuple(names)
        unknown = [name for name in wanted if name not in known]
        if unknown or not wanted:
            raise OptionError(
                f"the mesh has no dimension {unknown[0] if unknown else ''!r}",
                hint=f"It has: {', '.join(known) or 'none with a name'}. Rows differ along `mesh_dim`.",
            )
        dimensions = [known.index(name) for name in wanted]
    index, size = 0, 1
    for dimension in dimensions:
        index = index * mesh.size(dimension) + coordinates[dimension]
        size *= mesh.size(dimension)
    return index, size
