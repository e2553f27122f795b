"""The spool: receives rows from Spark's tasks, stores them, and sends them to trainers."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import transfer
from transfer.log import Log
from transfer.log.group_committer import GroupCommitter
from transfer.log.upkeep import Upkeep
from transfer.peer_faults import PeerFaults
from transfer.spool.format.address import RunAddress
from transfer.spool.format.protocol import MAX_REQUEST, from_meta as request_of, refusal
from transfer.spool.format.run_messages import RowsFrame, TaskBegin, TaskEnd, fits, from_meta as message_of
from transfer.spool.server.answers import Answers
from transfer.spool.server.expiry import Expiry
from transfer.spool.server.max_ages import Ages
from transfer.spool.server.message_receiver import MessageReceiver
from transfer.spool.server.request_handler import RequestHandler
from transfer.spool.server.store import SpoolStore
from transfer.spool.server.writer_requests import no_room
from transfer.tensors.bundle_arrival import take_bundle, take_bundle_from
from transfer.transports.address import parse as parse_endpoint
from transfer.transports.arguments import wrong
from transfer.transports.errors import (
    Again,
    Closed,
    InternalError,
    LogFull,
    NotSupported,
    ProtocolError,
    TransferError,
)
from transfer.transports.registry import find

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays
    from transfer.transports.security.settings import Security

_log = logging.getLogger("transfer.spool")

#: bytes of rows after which they are written to the disk, before a client waits for that: the end of an
#: attempt, which waits for all of it, finds most of it written
_SYNC_AHEAD = 16 << 20
#: seconds between two tries when the disk is full
_FULL_PAUSE = 0.5
#: requests that are received before the waiting fetches are served
_AT_ONCE = 1000
#: seconds between two checks of the connected clients
_TICK = 0.5
#: seconds within which a thread must end
_END = 60.0


def _checked_ages(ages: Ages | None, retention_age: float | None) -> Ages:
    if ages is not None and not isinstance(ages, Ages):
        raise wrong("ages", ages, "transfer.spool.server.max_ages.Ages(...), or None")
    ages = ages or Ages()
    return ages if retention_age is None else replace(ages, retention=retention_age)


def _checked_folder(folder: str | os.PathLike[str] | Log) -> Path | Log:
    if isinstance(folder, Log):
        return folder
    try:
        if os.fspath(folder):  # an empty one would be the current folder
            return Path(folder)
    except TypeError:
        pass
    raise wrong("folder", folder, "the path of a folder, or a log") from None


class Spool:
    """A spool in this process, on a separate folder, or on a log that others use, too.

    `close` ends it; acknowledged rows are kept.

    Args:
        folder: the path of the folder, or a log.
        endpoint: where readers and writers connect. Port 0 takes a free one; the attribute has it.
        rows_endpoint: where tasks send rows; by default a free port on the same host.
        retention_bytes: the limit of the folder, beyond which writers wait (a log has its own limits).
        retention_age: seconds after which a sealed run is removed that all its groups have read.
        ages: the ages at which other unused data is removed; by default `Ages()`.
        metrics_port, security: as in a Context.

    Raises:
        AddressInUse, LogInUse, LogDamaged: the endpoint or the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | Log,
        endpoint: str = "tcp://127.0.0.1:0",
        rows_endpoint: str | None = None,
        *,
        retention_bytes: int | None = None,
        retention_age: float | None = None,
        ages: Ages | None = None,
        metrics_port: int | str | None = None,
        security: Security | None = None,
    ) -> None:
        ages = _checked_ages(ages, retention_age)
        where = _checked_folder(folder)
        for wanted in filter(None, (endpoint, rows_endpoint)):
            find(parse_endpoint(wanted).scheme)
        #: the context of its sockets and metrics
        self.context = transfer.Context(metrics_port=metrics_port, security=security)
        try:
            self.store = SpoolStore(where, retention_bytes=retention_bytes)
        except BaseException:
            self.context.destroy(0)
            raise
        #: unexpected errors that peers' bytes raised
        self.faults = PeerFaults(_log)
        self._closing = threading.Event()
        self._ending = threading.Lock()
        self._closed = False
        self._unsynced = 0  # bytes of rows; only the receiving thread uses it
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads: list[threading.Thread] = []
        try:
            self._socket = self.context.socket(transfer.ROUTER)
            # The request handler limits each reader's unread answers; a limit here would drop answers.
            self._socket.sndhwm = self._socket.sndhwm_bytes = 0
            self._socket.maxmsgsize = MAX_REQUEST
            self._requests = MessageReceiver(self._socket, take_bundle_from, self.faults)
            self._socket.bind(endpoint)
            self.endpoint: str = self._socket.last_endpoint
            self._row_socket = self.context.socket(transfer.PULL)
            host = self.endpoint.rpartition(":")[0]
            self._row_socket.bind(rows_endpoint or f"{host}:0")
            self.rows_endpoint: str = self._row_socket.last_endpoint
            self._committer = GroupCommitter(
                self.store.log, "transfer-spool-sync", self._committed, self._failed
            )
            port = int(self.rows_endpoint.rpartition(":")[2])
            answers = Answers(self.store, self.context.pool)
            self._handler = RequestHandler(
                self.store,
                answers,
                self._committer,
                self._answer,
                port,
                self.faults,
                expiry=Expiry(self.store, ages, self._removed),
            )
            for name, work in (("rows", self._receive_rows), ("requests", self._serve_requests)):
                self._threads.append(self._start(name, work))
            if not isinstance(folder, Log):  # else its owner closes it
                self._upkeep = Upkeep(self.store.log, "upkeep", self._start)
        except BaseException:
            self.close()
            raise

    @property
    def failure(self) -> TransferError | None:
        """Why it has ended: its log, or one of its threads, has failed. Close it and start it again."""
        return self._committer.failure

    @property
    def connections(self) -> int:
        """Number of connected clients: those with requests, and tasks that send rows."""
        return len(self._socket.peers()) + len(self._row_socket.peers())

    @property
    def security(self) -> Security:
        """The certificates and tokens that clients need."""
        return self.context.credentials.security

    def url(self, run: str = "") -> str:
        """`run://host:port/NAME`."""
        return str(RunAddress(self.endpoint, run))

    def close(self) -> None:
        """Ends it within a moment. A client that waits for an answer must ask the next spool on this folder.
        Idempotent."""
        with self._ending:
            if self._closed:
                return
            self._closed = True
        self._hang_up()
        for thread in self._threads:
            thread.join(_END)
            if thread.is_alive():
                _log.critical("the thread %s has not ended in %g s", thread.name, _END)
        if hasattr(self, "_handler"):
            with suppress(TransferError):  # the log has failed: it stays as it was
                self._handler.readers.store_positions()
        if hasattr(self, "_committer"):
            self._committer.close()
        if hasattr(self, "_upkeep"):
            self._upkeep.close()
        self.store.close()
        if not any(thread.is_alive() for thread in self._threads):  # else one may write to it
            os.close(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- threads ---------------------------------------------------------------------------------------------

    def _start(self, name: str, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(
            target=self._run, args=(name, work), name=f"transfer-spool-{name}", daemon=True
        )
        thread.start()
        return thread

    def _run(self, name: str, work: Callable[[], object]) -> None:
        """Runs a thread of the spool. If it ends before the spool is closed, the spool has failed."""
        reason = "no error"
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the spool cannot continue without this thread
            _log.exception("the spool's thread %s has ended", name)
            reason = repr(error)
        if not self._closing.is_set():
            self._committer.fail(InternalError(f"the spool's thread {name} has ended: {reason}"))

    def _committed(self, sequence: int) -> None:
        self.store.kept(sequence)
        self._wake_up()

    def _removed(self, reason: str, nbytes: int) -> None:
        counts = {"transfer_spool_removals_total": 1, "transfer_spool_removed_bytes_total": nbytes}
        self.context.tally.add(((name, (reason,)), count) for name, count in counts.items())

    def _failed(self, error: TransferError) -> None:
        """Fails the spool: nothing can be stored any more, so all connections end."""
        _log.critical("the spool has failed: %s", error)
        self._hang_up()

    # -- rows ------------------------------------------------------------------------------------------------

    def _receive_rows(self) -> None:
        receiver = MessageReceiver(self._row_socket, take_bundle, self.faults)
        while not self._closing.is_set():
            try:
                received = receiver.next()
                message = message_of(received[1]) if received is not None else None
                if received is not None and isinstance(message, TaskBegin | RowsFrame | TaskEnd):
                    self._handler.attempts.receiving = (
                        message.run,
                        message.job,
                        message.partition,
                        message.attempt,
                    )
                    self._take(message, received[0])
            except Closed:
                return
            except ProtocolError as error:
                self.faults.warn("a message to the port for rows", error, "a peer")
            except Exception as error:  # noqa: BLE001 - of this message; the next one is received
                self.faults.note("a message to the port for rows", error)
            finally:
                self._handler.attempts.receiving = None

    def _take(self, message: TaskBegin | RowsFrame | TaskEnd, arrays: Arrays) -> None:
        try:
            if isinstance(message, RowsFrame) and not fits(arrays, message.crc):
                raise ProtocolError(
                    "checksum", f"partition {message.partition}: rows were corrupted in transit"
                )
            sequence = self._with_room(lambda: self.store.receive(message, arrays))
        except Closed:
            return
        except TransferError as error:
            if isinstance(error, InternalError):
                self._committer.check()
            self._handler.attempts.failed(message, error)
            return
        except Exception as error:  # noqa: BLE001 - it ends only this attempt
            self._handler.attempts.failed(message, self.faults.note("keeping rows", error, message.run))
            return
        if isinstance(message, TaskBegin) and sequence is not None:
            self._handler.attempts.began(message)
        if isinstance(message, RowsFrame) and sequence is not None:
            self._unsynced += sum(array.nbytes for array in arrays.values())
            if self._unsynced >= _SYNC_AHEAD:
                self._unsynced = 0
                self._committer.when_committed(sequence, lambda: None)
        if isinstance(message, TaskEnd):
            if sequence is None:
                self._handler.attempts.dropped(message)
                return
            self._committer.when_committed(sequence, lambda: self._handler.attempts.kept(message))

    def _with_room(self, work: Callable[[], int | None]) -> int | None:
        """Waits while the disk is full. Nothing is received meanwhile, so that Spark's tasks wait, too."""
        try:
            while True:
                try:
                    return work()
                except LogFull as error:
                    full = no_room(error)
                    if not self._handler.writers.full:
                        _log.warning("%s", full)
                    self._handler.writers.full = full
                if self._closing.wait(_FULL_PAUSE):
                    raise Closed("the spool was closed")
                # Space is free when the record that it is not needed is on the disk.
                with suppress(Again):
                    self.store.log.commit(timeout=_FULL_PAUSE)
        finally:
            self._handler.writers.full = ""

    # -- requests --------------------------------------------------------------------------------------------

    def _serve_requests(self) -> None:
        poller = transfer.Poller()
        poller.register(self._socket, transfer.POLLIN)
        poller.register(self._wake, transfer.POLLIN)
        due = time.monotonic() + _TICK
        pause = _TICK
        while not self._closing.is_set():
            try:
                left = max(0.0, due - time.monotonic())
                poller.poll(int(min(left, pause) * 1000))
                self._receive_requests()
                self._sleep_again()
                pause = self._handler.readers.serve_waiting()
                if time.monotonic() >= due:
                    due = time.monotonic() + _TICK
                    self._handler.tick({peer.identity for peer in self._socket.peers()})
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - of the periodic work: the next run may succeed
                self.faults.note("the spool's clock", error)
                if isinstance(error, InternalError):
                    self._committer.check()

    def _receive_requests(self) -> None:
        """Handles waiting requests, up to a limit, since fetches wait, too."""
        for _ in range(_AT_ONCE):
            try:
                received = self._requests.next(transfer.DONTWAIT)
                if received is not None:
                    self._ask(*received)
            except Again:
                return
            except Closed:
                raise
            except Exception as error:  # noqa: BLE001 - of this request; the next one is received
                self.faults.note("a request", error)

    def _ask(self, identity: bytes, arrays: Arrays, meta: Any) -> None:
        try:
            self._handler.ask(identity, request_of(meta), arrays)
            return
        except Closed:
            raise
        except TransferError as error:
            if isinstance(error, InternalError):
                self._committer.check()
            refused = refusal(error)
        except Exception as error:  # noqa: BLE001 - it ends only this request
            refused = refusal(self.faults.note("a request", error, identity))
        number = meta.get("id") if isinstance(meta, dict) else None
        number = number if type(number) is int else 0
        self._answer(identity, {}, {"id": number, "error": refused})

    def _answer(self, identity: bytes, arrays: Arrays, meta: dict[str, Any]) -> Any:
        """Sends an answer; returns its tracker. None: the client is gone, or sent no hello. Any thread."""
        try:
            return self._socket.send_tensors_to(identity, arrays, meta=meta, copy=False, track=bool(arrays))
        except (Closed, NotSupported):
            return None

    def _hang_up(self) -> None:
        """Ends all connections, and accepts no more, since nothing can be stored any more."""
        self._closing.set()
        self._wake_up()
        self.context.destroy(0)

    def _wake_up(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _sleep_again(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return
