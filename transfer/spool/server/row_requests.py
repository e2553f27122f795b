"""Requests for rows: which client waits for which rows, and whose answer is made next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.spool.format import protocol
from transfer.spool.format.protocol import refusal
from transfer.spool.format.row_source import OPEN
from transfer.spool.format.run_messages import checksum_in_slices
from transfer.spool.server.answer_queue import AnswerQueue, Slices
from transfer.spool.server.reader import RowTaker, SpoolReader
from transfer.transports.errors import TransferError, UsageError

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults
    from transfer.spool.format.rows import Arrays
    from transfer.spool.server.answers import Answers
    from transfer.spool.server.reader import PendingAnswer
    from transfer.spool.server.run_record import VisibleState
    from transfer.spool.server.store import SpoolStore

#: requests of one connection that may wait
_MAX_WAITING = 256
#: seconds between two checks whether a reader's connection has taken its answers, and without such
_PRESSED, _IDLE = 0.01, 60.0


class RowRequests:
    """Handles fetches of readers with a lease, and reads without one. For one thread.

    answer: sends (identity, arrays, metadata). delivered: called after a fetch of a group is answered.
    """

    def __init__(
        self,
        store: SpoolStore,
        answers: Answers,
        answer: Callable[[bytes, Arrays, dict[str, Any]], PendingAnswer | None],
        faults: PeerFaults,
        delivered: Callable[[SpoolReader, protocol.Fetch, VisibleState], None],
    ) -> None:
        self._store = store
        self._answers = answers
        self._answer = answer
        self._faults = faults
        self._delivered = delivered
        self._takers: dict[bytes, RowTaker] = {}  # clients that read without a lease
        self._queue = AnswerQueue()

    def fetch(self, identity: bytes, reader: SpoolReader, request: protocol.Fetch) -> None:
        """Queues a reader's fetch. Raises UsageError."""
        if len(reader.waiting) >= _MAX_WAITING:
            raise UsageError(f"more than {_MAX_WAITING} fetches wait")
        reader.waiting.append(request)
        self._serve(identity, reader)

    def read(self, identity: bytes, request: protocol.Read) -> None:
        """Queues a read without a lease. Raises UsageError."""
        taker = self._takers.setdefault(identity, RowTaker())
        if len(taker.waiting) >= _MAX_WAITING:
            raise UsageError(f"more than {_MAX_WAITING} reads wait")
        taker.waiting.append(request)
        self._serve_reads(identity, taker)

    def serve_waiting(self, readers: Mapping[bytes, SpoolReader]) -> float:
        """Answers what can be answered now. Returns the seconds until the next call."""
        self._queue.turn()
        for identity, taker in [*readers.items(), *self._takers.items()]:
            try:
                if isinstance(taker, SpoolReader):
                    self._serve(identity, taker)
                else:
                    self._serve_reads(identity, taker)
            except Exception as error:  # noqa: BLE001 - of this one; the others are served
                self._faults.note("a fetch", error, identity)
        if self._queue.busy:
            return 0.0
        takers = [*readers.values(), *self._takers.values()]
        return _PRESSED if any(taker.waiting and taker.unsent for taker in takers) else _IDLE

    def tick(self, connected: set[bytes]) -> None:
        """Removes clients that have disconnected, or wait for nothing."""
        self._takers = {
            identity: taker
            for identity, taker in self._takers.items()
            if identity in connected and (taker.waiting or taker.busy or taker.unsent)
        }

    def _serve(self, identity: bytes, reader: SpoolReader) -> None:
        """Answers a reader's fetches in their order."""
        entry = reader.entry
        while reader.ready:
            request = reader.waiting[0]
            there = self._store.entries.get(reader.run) is entry
            seen = entry.seen
            if there and seen.state == OPEN and seen.rows < request.need:
                return
            reader.waiting.popleft()
            if not there:
                self._send(identity, request, {"error": refusal(self._store.gone(entry))})
                continue
            meta = {"visible": seen.rows, "state": seen.state}
            done = partial(self._delivered, reader, request, seen)
            self._make(identity, reader, request, self._answers.rows(entry, request, seen), meta, done)

    def _serve_reads(self, identity: bytes, taker: RowTaker) -> None:
        while taker.ready:
            request: protocol.Read = taker.waiting.popleft()
            try:
                entry = self._store.entry(request.run, request.run_id)
                entry.check_whole()
            except TransferError as error:
                self._send(identity, request, {"error": refusal(error)})
                continue
            seen, rows = entry.seen, max(0, request.end - request.begin)
            fetch = protocol.Fetch(
                epoch=0,
                seed=None,
                begin=request.begin,
                rows=rows,
                stride=0,
                times=1,
                need=0,
                columns=request.columns,
            )
            meta = {"visible": seen.rows, "state": seen.state, "first": entry.first, "run_id": entry.run_id}
            self._make(identity, taker, request, self._answers.rows(entry, fetch, seen), meta)

    def _make(
        self,
        identity: bytes,
        taker: RowTaker,
        request: protocol.Ask,
        slices: Slices,
        meta: dict[str, Any],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Has the answer made, in turns with others."""

        def made(result: tuple[Arrays, int, int] | Exception) -> None:
            taker.busy = False
            if isinstance(result, Exception):
                error = self._faults.refusal("a fetch", result, identity)
                self._send(identity, request, {"error": refusal(error)})
                return
            arrays, count, crc = result
            sent = self._answer(identity, arrays, {"id": request.id, "count": count, "crc": crc, **meta})
            if sent is not None:
                taker.unsent.append((sent, sum(array.nbytes for array in arrays.values())))
            done()

        taker.busy = True
        self._queue.begin(_summed(slices), made)

    def _send(self, identity: bytes, request: protocol.Ask, answer: dict[str, Any]) -> None:
        self._answer(identity, {}, {"id": request.id, **answer})


def _summed(slices: Slices) -> Generator[int, None, tuple[Arrays, int, int]]:
    """Returns the rows, their number, and their checksum."""
    arrays, count = yield from slices
    return arrays, count, (yield from checksum_in_slices(arrays))
