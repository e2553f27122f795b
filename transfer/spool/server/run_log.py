"""A run's records in the log: its events, with rows as blobs; its state; the index of a sealed run."""

from __future__ import annotations

import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from transfer.log import Log, LogMessage
from transfer.log.ranges import consecutive
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.row_source import SEALED
from transfer.spool.format.run_messages import Message, to_meta
from transfer.spool.format.stored_arrays import decode, encode
from transfer.spool.server.replay import INDEX
from transfer.spool.server.run_record import RunRecord, state_of
from transfer.transports.errors import LogDamaged

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array, Arrays

_log = logging.getLogger("transfer.spool")

#: frames whose arrays are cached; each is a mapping of a file, of which a process has about 65,000
_KEPT_FRAMES = 2048
_BATCH = 4096


class RunLog:
    """Writes and reads the records of all runs. Any thread; lock: the store's, which guards the frames."""

    def __init__(self, log: Log, lock: threading.RLock) -> None:
        self.log = log
        self._lock = lock
        #: by the run's number and the frame's offset, the most recently used at the end
        self._frames: OrderedDict[tuple[int, int], Arrays] = OrderedDict()

    def close(self) -> None:
        """Releases the mappings of frames; the owner of the log closes it."""
        self._frames.clear()

    def append(self, entry: RunRecord, message: Message, arrays: Mapping[str, Array] | None = None) -> int:
        """Appends an event of the run. Returns the sequence to wait for."""
        return self.append_rows(entry, message, arrays or {})[0]

    def append_rows(self, entry: RunRecord, message: Message, arrays: Mapping[str, Array]) -> tuple[int, int]:
        """Appends an event with rows. Returns the sequence to wait for, and the event's offset."""
        body, blob = encode(arrays, to_meta(message))
        return self.log.append(entry.topic, body, blob=blob or None)

    def discard(self, entry: RunRecord, offsets: Iterable[int]) -> None:
        """Frees the space of frames."""
        offsets = [*offsets]
        for offset in offsets:
            self._frames.pop((entry.number, offset), None)  # a view would keep its space on the disk
        for begin, end in consecutive(sorted(offsets)):
            self.log.discard(entry.topic, begin, end)

    def put(self, entry: RunRecord) -> int:
        """Stores the run's state. Returns the sequence to wait for."""
        entry.noted = entry.touched, dict(entry.active)
        return self.log.put(*state_of(entry))

    def messages(self, topic: str) -> Iterable[LogMessage]:
        """Returns all messages of a topic."""
        offset = 0
        while found := self.log.read(topic, offset, limit=_BATCH, nbytes=1 << 40, verify=False):
            yield from found
            offset = found[-1].offset + 1

    # -- frames ------------------------------------------------------------------------------------------

    def frame(self, entry: RunRecord, number: int) -> Arrays:
        """Returns the arrays of a visible frame: read-only views of the log's files. Raises LogDamaged."""
        offset = entry.run.visible.offsets[number]
        key = entry.number, offset
        with self._lock:
            arrays = self._frames.get(key)
            if arrays is not None:
                self._frames.move_to_end(key)
                return arrays
        try:
            found = self.log.read(entry.topic, offset, limit=1)
        except LogDamaged as error:
            mark_damaged(entry, error)
            entry.check_whole()
            raise
        if not found or found[0].offset != offset or found[0].discarded:
            raise LogDamaged(f"rows of run {entry.run.name} are not in the log any more")
        arrays, _ = decode(found[0].body, found[0].blob)
        with self._lock:
            self._frames[key] = arrays
            while len(self._frames) > _KEPT_FRAMES:
                self._frames.popitem(last=False)
        return arrays

    def forget_frames(self, entry: RunRecord) -> None:
        """Drops the views of a deleted run, which would keep its space on the disk."""
        for key in [key for key in self._frames if key[0] == entry.number]:
            del self._frames[key]

    # -- the index ---------------------------------------------------------------------------------------

    def keep_index(self, entry: RunRecord) -> None:
        """Stores a message with the whole state of a sealed run."""
        run = entry.run
        meta = {
            INDEX: 1,
            "layouts": row_layouts.to_json(run.layouts or ()),
            "done": list(run.done),
            "names": run.names,
            "bytes": run.visible_bytes,
        }
        body, blob = encode(integer_columns(run.visible.columns()), meta)
        entry.index = self.log.append(entry.topic, body, blob=blob or None)[1]

    def read_index(self, entry: RunRecord) -> bool:
        """Reads the state of a sealed run from its index. False: it has none. Raises LogDamaged."""
        if entry.index < 0:
            return False
        found = self.log.read(entry.topic, entry.index, limit=1)
        if not found or found[0].offset != entry.index:
            raise LogDamaged(f"the index of run {entry.run.name} is not in the log any more")
        arrays, meta = decode(found[0].body, found[0].blob)
        run = entry.run
        for name, column in run.visible.columns().items():
            column.frombytes(arrays[name].tobytes())
        run.layouts = row_layouts.from_json(meta["layouts"]) or None
        run.done, run.names = dict.fromkeys(meta["done"]), meta["names"]
        run.state, run.visible_bytes = SEALED, meta["bytes"]
        return True


def mark_damaged(entry: RunRecord, error: Exception) -> None:
    """Records the damage of a run, which is not served any more."""
    entry.damage = str(error).partition("\n  hint: ")[0] or repr(error)
    _log.error("run %s is damaged, and is not served: %s", entry.run.name, entry.damage)


def integer_columns(table: Mapping[str, Sequence[int] | array[int]]) -> dict[str, Array]:
    """Converts columns of integers to arrays."""
    import numpy as np

    return {name: np.array(column, dtype=np.int64) for name, column in table.items()}
