"""Decisions at the start of a stream of rows."""

from __future__ import annotations

import os
from operator import index
from typing import TYPE_CHECKING

from transfer.spool.format.protocol import Fetch
from transfer.spool.format.row_source import OPEN
from transfer.spool.format.run_messages import MAX_NAME
from transfer.transports.arguments import shown, wrong
from transfer.transports.errors import OptionError

if TYPE_CHECKING:
    from transfer.spool.format.row_source import RowSource, RunInfo

#: bytes of a batch whose size is not given
BATCH_BYTES = 4 << 20
#: most rows of it
MOST_ROWS = 1 << 16
#: rows that are read to estimate their size
SAMPLE_ROWS = 64


def sensible_batch(source: RowSource, info: RunInfo, timeout: float | None) -> int:
    """Returns a batch size of about 4 MiB, from the size of the first rows, so that all ranks agree.

    While a run is being written these are the rows at the group's position: earlier ones may be deleted.
    """
    rows = SAMPLE_ROWS
    begin = info.acknowledged[1] if info.acknowledged is not None and info.state == OPEN else 0
    fetch = Fetch(epoch=0, seed=None, begin=begin, rows=rows, stride=rows, times=1, need=begin + rows)
    source.request(fetch)
    sample = source.collect(timeout)
    size = sum(array.nbytes for array in sample.arrays.values())
    return max(1, min(MOST_ROWS, BATCH_BYTES * sample.count // max(1, size)))


def close_in(process: int, source: RowSource) -> None:
    """Closes the source, unless this is a forked child of its owner."""
    if os.getpid() == process:
        source.close()


def open_source(url_or_source: str | RowSource, timeout: float | None) -> RowSource:
    """Opens a URL; returns a source unchanged. Raises AddressError, ArgumentError."""
    if not isinstance(url_or_source, str):
        if not callable(getattr(url_or_source, "collect", None)):
            raise wrong("url_or_source", url_or_source, "run://HOST:PORT/NAME, or a source of rows")
        return url_or_source
    from transfer.spool.client.run_client import RunClient

    return RunClient(url_or_source) if timeout is None else RunClient(url_or_source, timeout=timeout)


def whole(name: str, value: int) -> int:
    """Checks an integer argument, also one of numpy. Raises OptionError."""
    try:
        return index(value)
    except TypeError:
        raise OptionError(f"{name} is a whole number, not {value!r}") from None


def checked_numbers(
    batch: int | None, epochs: int | None, shuffle: int | None, rank: int, world: int
) -> tuple[int | None, int | None, int | None, int, int]:
    """Returns the arguments as plain integers. Raises OptionError."""
    batch = whole("batch_size", batch) if batch is not None else None
    epochs = whole("epochs", epochs) if epochs is not None else None
    shuffle = whole("shuffle", shuffle) if shuffle is not None else None
    rank, world = whole("rank", rank), whole("world_size", world)
    if batch is not None and batch < 1:
        raise OptionError(f"batch_size is at least 1, not {batch}")
    if epochs is not None and epochs < 1:
        raise OptionError(f"epochs is at least 1, or None without end, not {epochs}")
    if shuffle is not None and not 0 <= shuffle < 1 << 63:
        raise OptionError(f"shuffle is a seed from 0 to 2**63 - 1, or None, not {shuffle}")
    if not 0 <= rank < world:
        raise OptionError(f"rank is from 0 to world_size - 1, not {rank} of {world}")
    return batch, epochs, shuffle, rank, world


def checked_pair(name: str, given: tuple[int, int] | None) -> tuple[int, int] | None:
    """Checks (number, count), or None. Raises OptionError."""
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise OptionError(f"{name} is (number, how many), or None, not {shown(given)}")
    number, count = (whole(name, one) for one in given)
    if not 0 <= number < count:
        raise OptionError(f"{name} is (number, how many), the first below the second, not {shown(given)}")
    return number, count


def check_group(group: str) -> None:
    """Checks a group's name. Raises OptionError."""
    if not isinstance(group, str) or not 0 < len(group) <= MAX_NAME:
        raise OptionError(f"group is a name of 1 to {MAX_NAME} characters, not {group!r:.80}")
