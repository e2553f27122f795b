"""Records how attempts ended. The task of an attempt waits here until its rows are on the disk."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

from transfer.spool.format.protocol import Ended, refusal
from transfer.spool.format.run_messages import RowsFrame, TaskBegin, TaskEnd
from transfer.spool.server.responder import Responder
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Broken, TransferError

#: (run, job, partition, attempt)
Key = tuple[str, str, int, int]
#: ends of attempts that are kept for a task that asks again
_REMEMBERED = 100_000
#: seconds after which an awaited attempt must have arrived: its task has sent all of it before it asks
_MISSING = 5.0
#: attempts that may be awaited while they are missing
_MAX_ASKING = 100_000


class AttemptEnds:
    """The ends of attempts. Any thread.

    receiving: the attempt whose message the rows' thread has taken from its socket and not recorded yet.
    """

    def __init__(self, store: SpoolStore, responder: Responder) -> None:
        self._store = store
        self._responder = responder
        self._lock = threading.Lock()
        #: None: it ended well
        self._ends: OrderedDict[Key, TransferError | None] = OrderedDict()
        #: tasks that asked before the end was known, and their deadlines
        self._asking: dict[Key, list[tuple[bytes, Ended, float]]] = {}
        self.receiving: Key | None = None

    def ask(self, identity: bytes, request: Ended) -> dict[str, Any] | None:
        """Returns the answer; None: it follows. Raises the error of a failed attempt."""
        key = request.run, request.job, request.partition, request.attempt
        attempt = self._store.attempt(*key)
        with self._lock:
            if key in self._ends:
                error = self._ends[key]
            elif attempt is not None and attempt.kept:  # before this process started
                error = None
            else:
                if len(self._asking) >= _MAX_ASKING:
                    raise _missing(key[0], key[2])
                self._asking.setdefault(key, []).append((identity, request, time.monotonic() + _MISSING))
                return None
        if error is not None:
            raise error
        return {}

    def began(self, message: TaskBegin) -> None:
        """Forgets the end of an earlier attempt of this name, whose job was aborted."""
        with self._lock:
            self._ends.pop((message.run, message.job, message.partition, message.attempt), None)

    def dropped(self, message: TaskEnd) -> None:
        """Records an attempt whose job is over, or that was cut off by the spool's restart."""
        self._over(message, self._why_missing(message.run, message.job, message.partition))

    def _why_missing(self, run: str, job: str, partition: int) -> TransferError:
        entry = self._store.entries.get(run)
        try:
            if entry is not None:
                entry.check_job(job)
        except Broken as error:
            return error
        return _missing(run, partition)

    def kept(self, message: TaskEnd) -> None:
        """Records that all of an attempt is on the disk."""
        self._store.attempt_kept(message)
        self._over(message, None)

    def failed(self, message: TaskBegin | RowsFrame | TaskEnd, error: TransferError) -> None:
        """Records that an attempt sent data that cannot be stored."""
        self._over(message, error)

    def _over(self, message: TaskBegin | RowsFrame | TaskEnd, error: TransferError | None) -> None:
        key = message.run, message.job, message.partition, message.attempt
        with self._lock:
            self._ends.setdefault(key, error)
            while len(self._ends) > _REMEMBERED:
                self._ends.popitem(last=False)
            error = self._ends[key]
            asking = self._asking.pop(key, [])
        for identity, request, _ in asking:
            self._responder.respond(identity, request, {"error": refusal(error)} if error else {})

    def refuse_missing(self) -> None:
        """Refuses tasks that wait for an attempt of an earlier process."""
        now = time.monotonic()
        with self._lock:
            late = {key: asking for key, asking in self._asking.items() if asking[0][2] < now}
        for key, asking in late.items():
            if key == self.receiving:
                continue  # its end has arrived, and the disk is slow
            attempt = self._store.attempt(*key)
            if attempt is not None and attempt.ended is not None:
                continue  # it waits for the disk
            with self._lock:
                self._asking.pop(key, None)
            error = self._why_missing(key[0], key[1], key[2])
            for identity, request, _ in asking:
                self._responder.respond(identity, request, {"error": refusal(error)})


def _missing(run: str, partition: int) -> Broken:
    return Broken(
        f"partition {partition} of run {run} is missing",
        hint="the spool was restarted, or the job is over; Spark retries the task",
    )
