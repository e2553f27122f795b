"""The steps of a write, without Spark's interfaces: an attempt, the commit and the abort, for each delivery.

Objects of this module travel to Spark's tasks, so they hold plain values; connections are made where they
are used.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transfer.spark.columns import ColumnReader, split
from transfer.spark.options import WriteOptions
from transfer.spark.producer import Receipt, Sender, SocketSender, TaskAttempt, send_commit
from transfer.spark.schema import Column
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.address import parse
from transfer.spool.format.protocol import AbortJob, CommitJob, Declare, Ended, Kind, refusal
from transfer.spool.format.run_messages import Abort, Commit, to_meta, to_table
from transfer.transports.errors import Again, Broken, NotATensor, TransferError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("transfer.spark")

#: seconds for which a failed job tries to reach a receiver without rows of it
_ABORT_TIMEOUT = 2.0
#: seconds for a connection for rows, before the client requests the spool's port again
_CONNECT = 5.0
#: seconds after which a sending task checks whether its job continues
_LOOK_EVERY = 1.0
#: characters of an error that other tasks receive
_MOST_TEXT = 4096
#: the process whose modules are hidden from the garbage collector
_settled = 0


@dataclass(frozen=True, slots=True)
class Task:
    """An attempt at a partition. number: of the retry, from 0."""

    partition: int
    attempt: int
    number: int


@dataclass(frozen=True, slots=True)
class EagerWrite:
    """Sends rows directly to trainers, which receive them at once."""

    options: WriteOptions
    columns: tuple[Column, ...]
    run: str
    job: str

    def check(self) -> None:
        """Checks on the driver, before any task, that trainers can take all columns. Raises NotATensor."""
        for column in self.columns:
            if column.kind not in ("dense", "vector") or column.nulls == "mask":
                raise NotATensor(
                    f"column {column.name!r} needs several tensors, which eager delivery cannot cut",
                    hint="Send it through a spool: endpoint run://HOST:PORT/NAME.",
                )

    def send(self, iterator: Iterator[RecordBatch], task: Task) -> Receipt | None:
        """Sends one partition; returns when the trainer has consumed it.

        Raises NotATensor for rows that cannot travel. The driver informs the trainer later, when the other
        tasks have ended: they wait until it has consumed their rows, which it does not after a failure.
        """
        endpoints = self.options.endpoint
        sender = SocketSender(endpoints[task.partition % len(endpoints)], self.options)
        try:
            return _send(sender, self, iterator, task)
        finally:
            sender.close()

    def commit(self, receipts: Sequence[Receipt]) -> None:
        """Sends every trainer the list of partitions."""
        winners = [receipt.winner for receipt in receipts]
        transports = ",".join(sorted({receipt.transport for receipt in receipts}))
        endpoints = self.options.endpoint
        for number, endpoint in enumerate(endpoints):
            sender = SocketSender(endpoint, self.options)
            try:
                message = Commit(self.run, self.job, number, len(endpoints), transports)
                send_commit(sender, message, winners, self.options.ack_timeout)
            finally:
                sender.close()

    def abort(self, *, declared: bool = True) -> None:
        """Informs every reachable trainer that the run has failed."""
        timeout = min(_ABORT_TIMEOUT, self.options.connect_timeout)
        for endpoint in self.options.endpoint:
            try:
                sender = SocketSender(endpoint, self.options, timeout)
                try:
                    sender.send({}, to_meta(Abort(self.run, self.job)))
                finally:
                    sender.close(linger=timeout)  # not confirmed: the trainer may be in a long step
            except TransferError as error:
                _log.info("no receiver at %s was informed that run %s failed: %s", endpoint, self.run, error)


@dataclass(frozen=True, slots=True)
class SpoolWrite:
    """Sends rows to a spool, which makes them visible as the mode of delivery requires."""

    options: WriteOptions
    columns: tuple[Column, ...]
    run: str
    job: str
    kind: Kind = "batch"

    def check(self) -> None:
        """Checks on the driver, before any task, that the spool answers and accepts the run.

        Raises Again; UsageError, for instance if another job has completed the run.
        """
        link = self._link(self.options.connect_timeout)
        try:
            link.ask(self._declaration())
        finally:
            link.close()

    def send(self, iterator: Iterator[RecordBatch], task: Task) -> Receipt | None:
        """Sends one partition; returns when the spool has it on its disk. None: the run is complete already.

        Raises NotATensor for rows that cannot travel, of this task or of another one of the job.
        """
        link = self._link(self.options.connect_timeout)
        try:
            sender = self._sender(link)
            if sender is None:
                return None
            try:
                receipt = _send(sender, self, self._watched(iterator, link), task)
            finally:
                sender.close()
            ended = Ended(run=self.run, job=self.job, partition=task.partition, attempt=task.attempt)
            link.ask(ended, timeout=self.options.ack_timeout)
            return receipt
        except Broken:
            self._check_job(link)
            raise
        except NotATensor as error:
            self._refuse(link, error)
            raise
        finally:
            link.close()

    def _watched(self, iterator: Iterator[RecordBatch], link: ReconnectingClient) -> Iterator[RecordBatch]:
        """Yields the batches, until the job has failed elsewhere."""
        looked = time.monotonic()
        for batch in iterator:
            if time.monotonic() - looked > _LOOK_EVERY:
                self._check_job(link)
                looked = time.monotonic()
            yield batch

    def _check_job(self, link: ReconnectingClient) -> None:
        """Raises NotATensor if another task of the job found rows that cannot travel."""
        try:
            link.ask(self._declaration(task=True))
        except (Again, Broken) as error:
            _log.info("whether run %s continues is unknown: %s", self.run, error)

    def _refuse(self, link: ReconnectingClient, error: NotATensor) -> None:
        """Fails the job at the spool: another attempt would find the same rows. Other tasks get the error.

        Not for a stream, whose next start tries the same job again.
        """
        if self.kind == "stream":
            return
        cause = [part[:_MOST_TEXT] for part in refusal(error)]
        try:
            link.ask(AbortJob(run=self.run, job=self.job, cause=cause))
        except TransferError as other:
            _log.info("the spool was not informed that run %s failed: %s", self.run, other)

    def commit(self, receipts: Sequence[Receipt]) -> None:
        """Makes all rows visible; returns when that is on the spool's disk. Retries until `ack_timeout`.

        Raises Again: whether they are visible is unknown; writing the same run again completes it, without
        doubled rows.
        """
        import numpy as np

        table = to_table([receipt.winner for receipt in receipts])
        arrays = {name: np.array(column, dtype=np.int64) for name, column in table.items()}
        link = self._link(self.options.ack_timeout)
        try:
            if_complete: Any = self.options.if_complete
            link.ask(CommitJob(run=self.run, job=self.job, if_complete=if_complete), arrays)
        except Again as error:
            raise Again(
                f"the spool did not answer the commit of run {self.run}, which may be complete or not",
                hint="Write it again with the same run name and if_complete=skip: nothing is written if the "
                "run is complete, and all of it if not.",
            ) from error
        finally:
            link.close()

    def abort(self, *, declared: bool = True) -> None:
        """Drops what was sent, unless it was committed. Retries until `abort_timeout`, since a spool that
        restarts would keep the rows. declared: the spool has answered this job before."""
        timeout = self.options.abort_timeout
        link = self._link(timeout if declared else min(_ABORT_TIMEOUT, timeout))
        try:
            link.ask(AbortJob(run=self.run, job=self.job))
        except TransferError as error:
            # Rows are sent only after its first answer.
            level, left = (
                (logging.WARNING, "keeps its rows") if declared else (logging.INFO, "has no rows of it")
            )
            text = "the spool was not informed that job %s of run %s failed, and %s: %s"
            _log.log(level, text, self.job, self.run, left, error)
        finally:
            link.close()

    def _sender(self, link: ReconnectingClient) -> SocketSender | None:
        """Connects to the spool's port for rows. None: the run is complete already.

        A restarted spool may use another port, so each attempt requests it again.
        """
        deadline = time.monotonic() + self.options.connect_timeout
        while True:
            _, answer = link.ask(self._declaration(task=True))
            if answer["done"]:
                return None
            rows = f"{self._endpoint.rpartition(':')[0]}:{answer['port']}"
            left = deadline - time.monotonic()
            try:
                return SocketSender(rows, self.options, min(_CONNECT, max(0.1, left)))
            except Again as error:
                if left > _CONNECT:
                    continue
                raise Again(
                    f"the spool at {self._endpoint} answers, but its port for rows does not: {rows}",
                    hint="Executors must be able to reach that port, too; `transfer serve` sets its number.",
                ) from error

    @property
    def _endpoint(self) -> str:
        return parse(self.options.endpoint[0]).endpoint

    def _link(self, timeout: float) -> ReconnectingClient:
        return ReconnectingClient(self._endpoint, timeout=timeout)

    def _declaration(self, *, task: bool = False) -> Declare:
        delivery: Any = self.options.delivery
        if_complete: Any = self.options.if_complete
        return Declare(
            run=self.run,
            job=self.job,
            delivery=delivery,
            kind=self.kind,
            task=task,
            if_complete=if_complete,
        )


Write = EagerWrite | SpoolWrite


def _send(sender: Sender, write: Write, iterator: Iterator[RecordBatch], task: Task) -> Receipt:
    """Sends the rows of one task, in frames."""
    reader = ColumnReader(write.columns, task.partition)
    timeout = write.options.ack_timeout
    attempt: TaskAttempt | None = None

    def begin(columns: str) -> TaskAttempt:
        names = write.run, write.job, task.partition, task.attempt, task.number
        return TaskAttempt(sender, *names, columns=columns, timeout=timeout)

    for batch in iterator:
        for part in split(batch, write.options.frame_rows):
            arrays = reader.read(part)
            if attempt is None:  # the shapes of its columns are known only now
                attempt = begin(json.dumps(row_layouts.to_json(reader.layouts)))
            attempt.send(arrays, part.num_rows)
    receipt = (attempt or begin("")).finish()
    _settle()
    return receipt


def _settle() -> None:
    """Hides this process's imported modules from the garbage collector, once. Spark's worker collects after
    each task, and scanning them took a tenth of a task's processor time."""
    global _settled
    if _settled != os.getpid():
        _settled = os.getpid()
        gc.collect()
        gc.freeze()
