"""The sending side of one task attempt: begin, numbered frames, end; then it waits for confirmation."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transfer.spool.client.connection import refused
from transfer.spool.format.run_messages import (
    Commit,
    Message,
    RowsFrame,
    TaskBegin,
    TaskEnd,
    Winner,
    chain,
    checksum,
    to_meta,
    to_table,
)
from transfer.transports.errors import Again, Broken

if TYPE_CHECKING:
    import numpy as np

    from transfer.spark.options import WriteOptions

    Arrays = dict[str, np.ndarray[Any, Any]]


#: milliseconds after which a blocked sender checks whether the receiver is alive
_LOOK_EVERY = 500
#: bytes that the tasks of all cores together send ahead of a slow receiver, at least one each
_HOST_WINDOW, _LEAST_WINDOW = 256 << 20, 8 << 20


def window() -> int:
    """Returns the bytes that one task sends ahead of its receiver; on its host they are shared memory."""
    return max(_LEAST_WINDOW, _HOST_WINDOW // (os.cpu_count() or 1))


class FrameTracker(Protocol):
    """The part of the result of `send(…, track=True)` that is used here."""

    def wait_confirmed(self, timeout: float | None = None) -> Any: ...


class Sender(Protocol):
    """A connection to one receiver; `SocketSender` is the real one. `send` raises Again, having sent nothing,
    soon after the receiver falls behind, so that the caller can check whether it is alive."""

    transport: str

    def send(self, arrays: Arrays, meta: dict[str, Any]) -> FrameTracker: ...
    def alive(self) -> bool: ...
    def close(self, linger: float = 0.0) -> None: ...


class SocketSender:
    """A PUSH socket with a separate context, connected to one receiver.

    Raises Again if no receiver answers within `connect_timeout`.
    """

    def __init__(self, endpoint: str, options: WriteOptions, connect_timeout: float | None = None) -> None:
        import transfer

        self._endpoint = endpoint
        self._context = transfer.Context()
        try:
            self._socket = self._context.socket(transfer.PUSH)
            self._socket.sndtimeo = _LOOK_EVERY
            self._socket.checksum = options.checksum
            self._socket.compression = "lz4" if options.compression else None
            self._socket.connect(endpoint)
            self._wait_for_receiver(connect_timeout or options.connect_timeout)
            self.transport = self._socket.peers()[0].transport
        except BaseException:
            self._context.destroy(0)
            raise

    def send(self, arrays: Arrays, meta: dict[str, Any]) -> FrameTracker:
        tracker: FrameTracker = self._socket.send_tensors(arrays, meta=meta, track=True)
        return tracker

    def alive(self) -> bool:
        """Whether the receiver is still connected. A later one would not have the rows that this one has
        consumed, so a sender is useless after its receiver has gone."""
        return bool(self._socket.peers())

    def close(self, linger: float = 0.0) -> None:
        """Waits up to `linger` seconds until the kernel has sent everything. Important messages are confirmed
        before, so the default is not to wait."""
        self._context.destroy(int(linger * 1000))

    def _wait_for_receiver(self, timeout: float) -> None:
        try:
            self._socket.wait_for_peers(1, timeout=timeout)
        except Again as error:
            raise refused(
                f"no peer listens at {self._endpoint}; waited {timeout:g} s",
                "Start the training process first, and use the `endpoint` that its data set prints. "
                "The executors must be able to reach that host and port.",
                error,
            ) from error


class _TaskDelivery:
    """Messages to one receiver, each tracked until the receiver has consumed it.

    `timeout`: seconds that the receiver may be behind, for each call. Unconsumed messages have at most
    `window()` bytes, or there is a single one. Methods raise Again after the timeout, and Broken as soon as
    the receiver dies with unconsumed messages.
    """

    def __init__(self, sender: Sender, timeout: float) -> None:
        self._sender = sender
        self._timeout = timeout
        self._window = window()
        self._waiting: deque[tuple[FrameTracker, int]] = deque()
        self._unconfirmed = 0

    def send(self, arrays: Arrays, message: Message) -> None:
        """Blocks while the receiver is behind."""
        deadline = time.monotonic() + self._timeout
        nbytes = sum(array.nbytes for array in arrays.values())
        while self._unconfirmed and self._unconfirmed + nbytes > self._window:
            left = min(_LOOK_EVERY / 1000, max(0.0, deadline - time.monotonic()))
            if self._settle_oldest(left):
                continue
            self._check_alive()
            if time.monotonic() >= deadline:
                raise self._not_consumed("the rows of a task")
        while True:
            try:
                tracker = self._sender.send(arrays, to_meta(message))
                break
            except Again:
                # Full, or the receiver is gone.
                self._settle(0.0)
                self._check_alive()
                if time.monotonic() > deadline:
                    raise
        self._waiting.append((tracker, nbytes))
        self._unconfirmed += nbytes
        self._settle(0.0)

    def wait(self, what: str) -> None:
        """Blocks until everything is consumed. `what` is for the error."""
        deadline = time.monotonic() + self._timeout
        while not self._settle(min(_LOOK_EVERY / 1000, max(0.0, deadline - time.monotonic()))):
            # A message that the kernel never had waits for another peer, so its tracker reports nothing.
            self._check_alive()
            if time.monotonic() >= deadline:
                raise self._not_consumed(what)

    def _not_consumed(self, what: str) -> Again:
        return Again(
            f"{what}: the receiver did not consume all of it within {self._timeout:g} s",
            hint="A trainer that takes long steps, or a spool whose disk is full, needs a longer option "
            "'ack_timeout'.",
        )

    def _check_alive(self) -> None:
        if not self._sender.alive():
            raise Broken("the receiver is gone")

    def _settle(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._waiting:
            if not self._settle_oldest(max(0.0, deadline - time.monotonic())):
                return False
        return True

    def _settle_oldest(self, timeout: float) -> bool:
        tracker, nbytes = self._waiting[0]
        try:
            tracker.wait_confirmed(timeout)
        except Again:
            return False
        self._waiting.popleft()
        self._unconfirmed -= nbytes
        return True


@dataclass(frozen=True, slots=True)
class Receipt:
    """The counts of a task attempt whose rows the receiver has consumed."""

    winner: Winner
    transport: str
    seconds: float


class TaskAttempt:
    """One attempt at one partition. The caller closes the sender."""

    def __init__(
        self,
        sender: Sender,
        run: str,
        job: str,
        partition: int,
        attempt: int,
        number: int = 0,
        *,
        columns: str = "",
        timeout: float = 600.0,
    ) -> None:
        self._key = (run, job, partition, attempt)
        self._delivery = _TaskDelivery(sender, timeout)
        self._transport = sender.transport
        self._frames = self._rows = self._bytes = self._crc = 0
        self._began = time.monotonic()
        self._send({}, TaskBegin(*self._key, number, columns))

    def send(self, arrays: Arrays, rows: int) -> None:
        """Sends one frame of rows; blocks while the receiver is behind. Raises Broken when it died."""
        crc = checksum(arrays)
        self._send(arrays, RowsFrame(*self._key, self._frames, rows, crc))
        self._crc = chain(self._crc, self._frames, rows, crc)
        self._frames += 1
        self._rows += rows
        self._bytes += sum(array.nbytes for array in arrays.values())

    def finish(self) -> Receipt:
        """Sends the end; returns when the receiver has consumed everything."""
        run, _, partition, attempt = self._key
        self._send({}, TaskEnd(*self._key, self._frames, self._rows, self._crc))
        with self._explained():
            self._delivery.wait(f"partition {partition} of run {run}, {self._rows:,} rows")
        winner = Winner(partition, attempt, self._frames, self._rows, self._bytes, self._crc)
        return Receipt(winner, self._transport, time.monotonic() - self._began)

    def _send(self, arrays: Arrays, message: Message) -> None:
        with self._explained():
            self._delivery.send(arrays, message)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Broken as error:
            run, _, partition, _ = self._key
            raise Broken(
                f"the receiver went away while partition {partition} of run {run} was sent to it",
                hint="Is it still running? Spark retries the task if spark.task.maxFailures allows it.",
            ) from error


def send_commit(sender: Sender, message: Commit, winners: list[Winner], timeout: float) -> None:
    """Informs a receiver that its run is complete, and waits until it has consumed that."""
    import numpy as np

    table = {name: np.array(column, dtype=np.int64) for name, column in to_table(winners).items()}
    delivery = _TaskDelivery(sender, timeout)
    delivery.send(table, message)
    delivery.wait(f"the commit of run {message.run}")
