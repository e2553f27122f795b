"""Reads runs from a source of messages, one run after the other. Does not use torch."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from transfer.spool.format.run_messages import (
    Abort,
    Commit,
    Message,
    RowsFrame,
    RunLedger,
    TaskBegin,
    TaskEnd,
    fits,
    from_meta,
    from_table,
)
from transfer.transports.errors import Again, ProtocolError, TensorMismatch, TransferError, UsageError

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

_log = logging.getLogger("transfer.torch")

#: names of past runs that are remembered, so that their late messages are dropped
_REMEMBERED_RUNS = 10_000


class MessageSource(Protocol):
    """A source of messages; `SocketSource` is the real one."""

    endpoint: str

    def receive(self, timeout: float | None) -> tuple[Arrays, dict[str, Any] | None]:
        """Returns the next message. Raises Again after `timeout` seconds (None: never), Closed."""

    def peers(self) -> dict[str, str]:
        """Returns the connected peers: address -> transport."""

    def close(self) -> None: ...


class SocketSource:
    """A new PULL socket, bound to `endpoint`. Received arrays own their memory and are writable."""

    def __init__(self, endpoint: str) -> None:
        import transfer

        self._context = transfer.Context()
        try:
            self._socket = self._context.socket(transfer.PULL)
            self._socket.bind(endpoint)
            self.endpoint: str = self._socket.last_endpoint
        except BaseException:
            self._context.destroy(0)
            raise

    def receive(self, timeout: float | None) -> tuple[Arrays, dict[str, Any] | None]:
        self._socket.rcvtimeo = -1 if timeout is None else max(1, int(timeout * 1000))
        try:
            arrays, meta = self._socket.recv_tensors()
        except TensorMismatch:
            self._socket.recv_multipart()  # the foreign message is still unread: discard it
            return {}, None
        return arrays, meta

    def peers(self) -> dict[str, str]:
        return {peer.address: peer.transport for peer in self._socket.peers()}

    def close(self) -> None:
        self._context.destroy(0)


class RunReader:
    """Reads the rows of one run after the other, each row once. Not thread-safe, except that another thread
    may close the source."""

    def __init__(self, source: MessageSource, *, timeout: float | None, verify: bool) -> None:
        self._source = source
        self._timeout = timeout
        self._verify = verify
        self._pushed_back: tuple[Arrays, Message] | None = None
        #: past runs: (name, "") for a complete one, (name, job) with the ends of its partitions. None: it
        #: failed, or an earlier process received it
        self._over: OrderedDict[tuple[str, str], frozenset[tuple[int, int, int]] | None] = OrderedDict()
        self._doubted: tuple[str, str] | None = None  # a job that sent different rows of a complete run
        self._layout: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.ledger: RunLedger | None = None  # of the current run
        self.transports = ""  # as in the last commit
        self.peers: dict[str, str] = {}  # of this run
        self.late = 0  # messages of past runs
        self.foreign = 0  # messages that belong to no run

    def read(self) -> Arrays | None:
        """Returns the next frame of rows, or None when the run is complete and all its rows were returned.

        Raises Again when nothing arrived in time (call again to continue), Broken when the run failed in
        Spark, ProtocolError when a row is lost or doubled. Raises UsageError when another run begins before
        this one is complete, or when a job sent different rows of a complete run, which were dropped. After
        these the run is over, and the next call waits for another one.
        """
        if self.ledger is not None and self.ledger.complete:
            self.ledger = None
        try:
            while True:
                self._check_doubted()
                arrays, message = self._next()
                if self._is_late(message) or not self._belongs(arrays, message):
                    continue
                if isinstance(message, RowsFrame):
                    if self._take(arrays, message):
                        return arrays
                elif self._record(arrays, message):
                    return None
        except Again:
            raise
        except TransferError:
            self._finish(committed=False)
            raise

    def remember(self, runs: list[str]) -> None:
        """Records runs that a process before this one received (from a checkpoint): they are refused."""
        for run in runs:
            self._over[run, ""] = None

    @property
    def committed(self) -> list[str]:
        """Names of the runs that were received completely, oldest first."""
        return [run for run, job in self._over if not job]

    def _next(self) -> tuple[Arrays, Message]:
        if self._pushed_back is not None:
            pushed_back, self._pushed_back = self._pushed_back, None
            return pushed_back
        while True:
            arrays, meta = self._receive()
            try:
                return arrays, from_meta(meta)
            except ProtocolError as error:
                # A foreign message is no reason to end a run; a lost frame of this run would be noticed.
                self.foreign += 1
                if self.foreign == 1:
                    _log.warning("a message was dropped (the first of these that is logged): %s", error)

    def _receive(self) -> tuple[Arrays, dict[str, Any] | None]:
        try:
            return self._source.receive(self._timeout)
        except Again as error:
            raise Again(
                f"no rows arrived for {self._timeout:g} s",
                hint="Is the Spark job running, and does it write to this data set's `endpoint`? "
                "A job that computes longer before its first row needs a longer `timeout`.",
            ) from error

    def _is_late(self, message: Message) -> bool:
        if (message.run, "") not in self._over and (message.run, message.job) not in self._over:
            return False
        self.late += 1
        if isinstance(message, TaskBegin) and (message.run, "") in self._over:
            _log.warning("run %s was received before: its rows are dropped", message.run)
        whole = self._over.get((message.run, ""))
        if isinstance(message, TaskEnd) and message.rows and whole is not None:
            known = (message.partition, message.rows, message.crc) in whole
            if not known and (message.run, message.job) not in self._over:
                self._doubted = message.run, message.job
        return True

    def _check_doubted(self) -> None:
        """Raises the error of a doubted job, between two runs, where that loses nothing."""
        if self._doubted is None or self.ledger is not None:
            return
        (run, job), self._doubted = self._doubted, None
        self._over[run, job] = None  # raised once
        raise UsageError(
            f"run {run} was received completely, then another job sent other rows under its name: they were "
            "dropped, although Spark reports them as written",
            hint="Write them again under another name, or with no name. The next iteration continues.",
        )

    def _belongs(self, arrays: Arrays, message: Message) -> bool:
        """Whether the message belongs to the current run; begins a run if there is none."""
        if self.ledger is None:
            if isinstance(message, RowsFrame | TaskEnd):
                self.late += 1  # a trainer that is gone has its beginning; Spark retries the task
                return False
            self.ledger = RunLedger(message.run, message.job)
            self.peers = {}
            self._layout = {}
        elif (message.run, message.job) != (self.ledger.run, self.ledger.job):
            self._pushed_back = arrays, message
            raise UsageError(
                f"run {message.run} began before run {self.ledger.run} was complete",
                hint="A data set reads one run at a time: start the next write when the last has "
                "returned, or give each job a separate data set.",
            )
        return True

    def _take(self, arrays: Arrays, message: RowsFrame) -> bool:
        assert self.ledger is not None
        layout = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
        if (
            not layout
            or any(not a.ndim or len(a) != message.rows for a in arrays.values())
            or not message.rows
        ):
            raise ProtocolError("run", "a frame's columns do not have the rows that it announces")
        if self._verify and not fits(arrays, message.crc):
            raise ProtocolError(
                "checksum", f"partition {message.partition}: a frame's rows were changed on the way"
            )
        if layout != (self._layout or layout):
            raise ProtocolError("run", f"partition {message.partition} has columns of another type or shape")
        self._layout = layout
        return self.ledger.rows(message)

    def _record(self, arrays: Arrays, message: TaskBegin | TaskEnd | Commit | Abort) -> bool:
        """Records a message of the run's protocol. Returns True when the run is complete."""
        assert self.ledger is not None
        if isinstance(message, TaskBegin):
            self.ledger.begin(message)
            self.peers |= self._source.peers()
        elif isinstance(message, TaskEnd):
            self.ledger.end(message)
        elif isinstance(message, Abort):
            self.ledger.abort(message)
        else:
            table = {name: column.tolist() for name, column in arrays.items()}
            self.ledger.commit(message, from_table(table))
            self.transports = message.transports
            self._finish(committed=True)
            return True
        return False

    def _finish(self, committed: bool) -> None:
        """Ends the run. A committed name is refused from now on; a failed one may be tried again."""
        if self.ledger is None:
            return
        over = self.ledger.run, "" if committed else self.ledger.job
        self._over[over] = self.ledger.ends if committed else None
        while len(self._over) > _REMEMBERED_RUNS:
            self._over.popitem(last=False)
        if not committed:
            self.ledger = None
