"""`StreamDataset`: batches of tensors of a run in a spool, or directly from Spark's tasks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from transfer.spool.format.address import meant
from transfer.torch.eager_reader import EagerReader, RunSummary
from transfer.torch.run_dataset import RUN_SCHEME, BatchT, RunDataset, RunOptions, Tensors, TensorTuple
from transfer.transports.arguments import shown, text
from transfer.transports.errors import AddressError, OptionError, UsageError

if TYPE_CHECKING:
    from transfer.spool.client.row_stream import RowStream
    from transfer.spool.format.row_source import RowSource
    from transfer.torch.run_reader import MessageSource

__all__ = ["RunSummary", "StreamDataset"]


class StreamOptions(RunOptions, total=False):
    """The further arguments of a `StreamDataset`. Only one that listens has `verify`."""

    verify: bool
    source: Callable[[], RowSource] | MessageSource | None


#: options of a data set that reads a run, and of one that listens
_RUN = (*RunOptions.__annotations__, "source")
_EAGER = ("drop_last", "timeout", "verify", "source")


class StreamDataset(RunDataset[BatchT]):
    """The rows of a Spark write, as batches of torch tensors.

        dataset = StreamDataset("run://spool:5570/digits", 256, epochs=3, shuffle=7)

    With a URL `run://host:port/NAME` it reads a run from a spool: see `RunDataset`. With another endpoint, or
    none, it listens for rows that Spark's tasks send directly (`delivery=eager`), and one iteration is one
    run. The rest of this text is about that.

    Args:
        endpoint: where to listen. Port 0 takes a free one; the attribute `endpoint` has it.
        batch_size: rows in a batch; None yields the frames as they were sent.
        columns: yields a tuple of these columns in this order; by default a dict of all columns.
        drop_last: drops the last batch if it is shorter.
        timeout: seconds without a message after which `Again` is raised; None waits without limit.
        verify: checks the checksum of each frame.

    Tensors are writable views of the receive buffers and keep them alive; only a batch that spans two frames
    is copied. If an iteration is left early, the next one continues where it stopped.

    Raises, in the iteration:
        ProtocolError: a row is lost or doubled.
        Broken: the run failed in Spark.
        Again, Closed: see above.

    Use it with `DataLoader(dataset, batch_size=None, num_workers=0)` or without a DataLoader. Not
    thread-safe, except that another thread may call `close`.
    """

    @overload
    def __init__(
        self: StreamDataset[Tensors],
        endpoint: str = ...,
        batch_size: int | None = ...,
        *,
        columns: None = ...,
        **options: Unpack[StreamOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: StreamDataset[TensorTuple],
        endpoint: str = ...,
        batch_size: int | None = ...,
        *,
        columns: Sequence[str],
        **options: Unpack[StreamOptions],
    ) -> None: ...

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:0",
        batch_size: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._eager: EagerReader | None = None
        if text(endpoint, "endpoint").startswith(RUN_SCHEME):
            _check_options(options, _RUN, "a run in a spool")
            super().__init__(endpoint, batch_size, columns=columns, **options)
            return
        if near := meant(endpoint):
            raise AddressError(f"{endpoint!r} is no run's address", hint=f"did you mean {near}?")
        _check_options(options, _EAGER, "one that listens")
        self._eager = EagerReader(endpoint, batch_size=batch_size, columns=columns, **options)
        self.endpoint = self._eager.endpoint

    def __iter__(self) -> Iterator[BatchT]:
        """Yields the batches of all remaining epochs; if it listens, of the current or next run."""
        return super().__iter__() if self._eager is None else iter(self._eager)

    def close(self) -> None:
        """Releases the lease, or stops listening: tasks that still send fail. An iteration in another thread
        raises Closed."""
        if self._eager is None:
            super().close()
        else:
            self._eager.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._eager is not None:
            raise UsageError("a StreamDataset that listens cannot be copied to another process")
        return super().__getstate__()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch; if it listens, the runs that were read completely.

        These have no position inside a run: Spark fails a run that a crash interrupted, and delivers it from
        the first row when it is written again.
        """
        return super().state_dict() if self._eager is None else self._eager.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. Raises OptionError for a state that this release cannot read."""
        if self._eager is None:
            super().load_state_dict(state)
        else:
            if not isinstance(state, Mapping):
                raise OptionError(f"a state is a result of `state_dict()`, not {shown(state)}")
            self._eager.load_state_dict(dict(state))

    # --- methods of only one of the two --------------------------------------------------------------

    @property
    def stream(self) -> RowStream:
        """See `RunDataset.stream`."""
        self._of_a_run()
        return super().stream

    def set_epoch(self, epoch: int) -> None:
        """See `RunDataset.set_epoch`."""
        self._of_a_run()
        super().set_epoch(epoch)

    def acknowledge(self, state: Mapping[str, Any] | None = None) -> None:
        """See `RunDataset.acknowledge`."""
        self._of_a_run()
        super().acknowledge(state)

    @property
    def runs(self) -> list[RunSummary]:
        """Summaries of the runs that were read completely, oldest first. Only if it listens."""
        return self._listening().runs

    @property
    def progress(self) -> RunSummary:
        """The counts of the current run, for any thread. Only if it listens."""
        return self._listening().progress

    def _of_a_run(self) -> None:
        if self._eager is not None:
            raise UsageError(
                "a StreamDataset that listens has no epochs and no position",
                hint="Write to a spool, and read run://HOST:PORT/NAME.",
            )

    def _listening(self) -> EagerReader:
        if self._eager is None:
            raise UsageError("a data set of a run receives no messages", hint="`stream` has its counters.")
        return self._eager


def _check_options(options: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    """Raises OptionError for an unknown option, with the nearest one of this kind of data set."""
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."
            raise OptionError(f"StreamDataset has no option {option!r} for {kind}", hint=hint)
