"""`RunDataset`: batches of tensors of a run in a spool, which can be resumed at any step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from transfer.spool.client.lineage import Lineage, with_seed
from transfer.spool.client.open import check_group, checked_numbers, checked_pair, open_source, whole
from transfer.spool.client.row_stream import RowStream
from transfer.spool.client.stream_state import STATE_VERSION, check_run, merge_states
from transfer.spool.format.address import parse_run
from transfer.spool.format.row_source import ShardLease
from transfer.spool.format.rows import column_names
from transfer.transports.arguments import callable_or_none, patience, shown, text, whole as number_from
from transfer.transports.errors import OptionError, UsageError, comes_with

with comes_with("torch", __name__):
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from transfer.spool.format.row_source import RowSource, RunInfo
    from transfer.spool.format.rows import Array, Arrays

RUN_SCHEME = "run://"


#: the type of a batch without `columns`, and with
Tensors = dict[str, torch.Tensor]
TensorTuple = tuple[torch.Tensor, ...]
BatchT = TypeVar("BatchT", bound=Tensors | TensorTuple)


class RunOptions(TypedDict, total=False):
    """The further arguments of a data set that reads a run, except `columns` and `source`."""

    group: str
    epochs: int | None
    shuffle: int | None
    drop_last: bool
    rank: int
    world_size: int
    seat: tuple[int, int] | None
    prefetch_bytes: int
    timeout: float | None


class RunDataset(IterableDataset[BatchT], Generic[BatchT]):
    """The rows of a run, as batches of torch tensors, in the order of `transfer.spool.client.RowStream`.

        dataset = StreamDataset("run://spool:5570/digits", 256, epochs=3, shuffle=7)
        loader = DataLoader(dataset, batch_size=None, num_workers=2)

    One iteration yields all remaining epochs: `for batch in loader` is the whole training. To go epoch by
    epoch, as with a sampler, call `dataset.set_epoch(epoch)` before each `for batch in loader`, with `epochs`
    the number of them. Iterating after the end raises UsageError.

    Args:
        url, batch_size, ...: as those of `RowStream`.
        columns: yields a tuple of these arrays in this order; by default batches are dicts of all arrays.
        seat: (this rank, ranks) for the leases, if other ranks read the same rows.
        source: makes the source, instead of `url`, also in worker processes; picklable for "spawn".

    Nothing is opened before the first batch. With W workers of a DataLoader each opens its own connection and
    reads every W-th step, and the loader yields the steps in exact order. torchdata's `StatefulDataLoader`
    saves the position: pass `loader.state_dict()` to `dataset.acknowledge`, or, to continue with another
    number of workers, to `dataset.load_state_dict`. Without workers `state_dict` is the position after the
    last batch.

    Tensors are writable views of the received memory. Errors: those of `RowStream`. Not thread-safe, except
    that another thread may call `close`.
    """

    @overload
    def __init__(
        self: RunDataset[Tensors],
        url: str,
        batch_size: int | None = ...,
        *,
        columns: None = ...,
        source: Callable[[], RowSource] | None = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: RunDataset[TensorTuple],
        url: str,
        batch_size: int | None = ...,
        *,
        columns: Sequence[str],
        source: Callable[[], RowSource] | None = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...

    def __init__(
        self,
        url: str,
        batch_size: int | None = None,
        *,
        group: str = "default",
        epochs: int | None = 1,
        shuffle: int | None = None,
        columns: Sequence[str] | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        seat: tuple[int, int] | None = None,
        prefetch_bytes: int = 32 << 20,
        timeout: float | None = 600.0,
        source: Callable[[], RowSource] | None = None,
    ) -> None:
        text(url, "url")
        check_group(group)
        batch_size, epochs, shuffle, rank, world_size = checked_numbers(
            batch_size, epochs, shuffle, rank, world_size
        )
        self._batch_size = batch_size
        self._columns = column_names(columns)
        self._options: dict[str, Any] = {
            "group": group,
            "epochs": epochs,
            "shuffle": shuffle,
            "columns": self._columns,
            "drop_last": drop_last,
            "rank": rank,
            "world_size": world_size,
            "prefetch_bytes": number_from(prefetch_bytes, "prefetch_bytes", 1),
            "timeout": patience(timeout),
        }
        self._seat = checked_pair("seat", seat) or (rank, world_size)
        self._source = callable_or_none(source, "source", "nothing, and makes a source of rows")
        if source is None:
            parse_run(url)
        self._state: dict[str, Any] | None = None  # the state to continue from
        self._acknowledged = (0, 0)  # for workers: their lineage has been sent up to this position
        self._only: int | None = None  # the epoch of an iteration
        self._stream: RowStream | None = None
        self._open_here = False
        #: the id of the run that was opened first, in any process; zeros: none was
        self._run_id = torch.zeros(16, dtype=torch.uint8).share_memory_()
        self._process = os.getpid()
        self.endpoint = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process: the position, but no connection."""
        stream = self._stream
        state = self._state if stream is None else stream.state_dict()
        return self.__dict__ | {"_stream": None, "_open_here": False, "_state": state}

    def close(self) -> None:
        """Releases the lease; an iteration in another thread raises Closed.

        The next iteration takes a new lease and continues after the last batch.
        """
        if self._stream is not None and self._process == os.getpid():
            self._stream.close()
            self._open_here = False

    @property
    def stream(self) -> RowStream:
        """The stream of this process, opened on first use: counters, lineage, the run's description."""
        stream = self._stream
        if self._process != os.getpid() or stream is None or not (self._open_here or stream.finished):
            self._open()
        assert self._stream is not None
        return self._stream

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, or of the next one, in this process."""
        return self.stream.epoch

    def _open(self) -> None:
        state = self._state
        if self._stream is not None:
            state = self._stream.state_dict()  # from a parent process, or before `close`
        self._stream, self._process = None, os.getpid()
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        shard, shards = self._seat
        stream = RowStream(
            self._new_source(),
            self._batch_size,
            worker=number,
            workers=workers,
            lease=(shard * workers + number, shards * workers),
            **self._options,
        )
        try:
            self._check_run(stream.info)
            if state is not None:
                stream.load_state_dict(state)
        except BaseException:
            stream.close()
            raise
        self._stream, self._open_here = stream, True

    def _check_run(self, info: RunInfo) -> None:
        """Checks that all epochs and workers read the run that was opened first."""
        if not self._run_id.any():
            self._run_id.copy_(torch.tensor(list(bytes.fromhex(info.run_id)), dtype=torch.uint8))
        check_run(info.name, info.run_id, bytes(self._run_id.tolist()).hex())

    def _new_source(self) -> RowSource:
        return self._source() if self._source else open_source(self.endpoint, self._options["timeout"])

    # --- reading ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[BatchT]:
        """Yields the batches of all remaining epochs, or of the one that `set_epoch` chose.

        If it is left early, the next iteration in this process continues.
        """
        if self._only is not None and not self.stream.stands_in(self._only):
            self._rewind(self._only)
        yield from self._batches(self._only)

    def one_epoch(self) -> Iterator[BatchT]:
        """Yields the remaining batches of the epoch; the next call, of the next. Without workers."""
        yield from self._batches(self.stream.state_dict()["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """Limits the next iteration to this epoch: the rest of it, if a state is in the middle of it.

        It does not reach workers that a DataLoader keeps (`persistent_workers`). Raises OptionError.
        """
        epoch, epochs = whole("epoch", epoch), self._options["epochs"]
        if epoch < 0 or (epochs is not None and epoch >= epochs):
            raise OptionError(
                f"epoch {epoch} is none of the {epochs} epochs", hint="`epochs=` sets their number."
            )
        self._only = epoch

    def _rewind(self, epoch: int) -> None:
        self.close()
        self._stream, self._state = None, None
        self.stream.seek(epoch)

    def _batches(self, epoch: int | None) -> Iterator[BatchT]:
        stream = self.stream
        for batch in stream if epoch is None else stream.one_epoch(epoch):
            yield self._tensors(batch)
        if get_worker_info() is not None:
            self.close()  # a worker process ends abruptly, or waits for another iteration

    def _tensors(self, batch: Arrays) -> Any:
        tensors = {name: _tensor(array) for name, array in batch.items()}
        return tensors if self._columns is None else tuple(tensors[name] for name in self._columns)

    # --- position --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch. In a worker process: of this worker's steps."""
        if self._stream is None and get_worker_info() is not None:
            self._open()
        if self._stream is not None:
            return self._stream.state_dict()
        return self._state or {"version": STATE_VERSION, "run": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of this class, or from a `StatefulDataLoader`'s with all its workers.

        Opening the run checks that the state belongs to this run and seed. Raises OptionError.
        """
        self.close()
        self._stream = None
        self._state = None
        self._run_id.zero_()
        if not isinstance(state, Mapping):
            raise OptionError(f"a state is a result of `state_dict()`, not {shown(state)}")
        if "version" in state and state.get("run", "") is None:
            return  # saved before the first batch
        if get_worker_info() is not None and "version" in state:
            self._state = dict(state)
        else:
            self._state = _whole(state)

    def acknowledge(self, state: Mapping[str, Any] | None = None) -> None:
        """Acknowledges all steps before a state to the spool; durable when it returns.

        Call it when the checkpoint with that state is saved. One rank that calls it is enough.

        Args:
            state: the position; None takes the current one. With worker processes it is required: that of
                the `StatefulDataLoader`.

        Raises:
            UsageError: there is no position in this process.
            OptionError: the state belongs to another run or shuffle.
        """
        if self._open_here and self._process == os.getpid():
            self.stream.acknowledge(_whole(state) if state is not None else None)
        elif state is not None:
            whole = _whole(state)
            self._acknowledge_from_here(whole, max(one["workers"] for one in _states_in(state)))
        else:
            raise UsageError(
                "this process has read nothing, so it has no position to acknowledge",
                hint="With workers: `dataset.acknowledge(loader.state_dict())`, of a StatefulDataLoader.",
            )

    def _acknowledge_from_here(self, state: Mapping[str, Any], workers: int) -> None:
        """Acknowledges for the leases of all workers, where only workers read."""
        if self._options["shuffle"] != state["seed"]:
            raise OptionError(f"the state belongs to another shuffle: {state['seed']}")
        rank, ranks = self._seat
        lease = ShardLease(state["run_id"], self._options["group"], rank * workers, ranks * workers, workers)
        steps = Lineage(state["lineage"]).since(*self._acknowledged)
        source = self._new_source()
        try:
            source.acknowledge_for(lease, state["epoch"], state["row"], with_seed(steps, state["seed"]))
        finally:
            source.close()
        self._acknowledged = state["epoch"], state["row"]


def _whole(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one state of a rank, also from a loader's state with several workers. Raises OptionError."""
    found = list(_states_in(state))
    if not found:
        raise OptionError("this is no state of a RunDataset, nor of a StatefulDataLoader with one")
    return merge_states(found)


def _states_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return
    if "version" in value and "run" in value:
        yield value
        return
    for part in value.values():
        yield from _states_in(part)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
