"""Dispatches the spool's requests, answers those about runs, and runs periodic work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from transfer.log.group_committer import GroupCommitter
from transfer.spool.format import protocol, rows as row_layouts
from transfer.spool.format.run_messages import checksum
from transfer.spool.server.answers import Answers
from transfer.spool.server.attempt_ends import AttemptEnds
from transfer.spool.server.expiry import Expiry
from transfer.spool.server.reader_requests import ReaderRequests
from transfer.spool.server.responder import Answer, Responder
from transfer.spool.server.run_record import RunRecord
from transfer.spool.server.store import SpoolStore
from transfer.spool.server.summaries import jobs_of, summary, winners_of
from transfer.spool.server.writer_requests import WriterRequests
from transfer.transports.errors import OptionError, UsageError

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults
    from transfer.spool.format.rows import Array


class RequestHandler:
    """Answers requests. For one thread, except `attempts`.

    attempts, writers, readers: they answer tasks that send rows, their jobs, and readers.
    """

    def __init__(
        self,
        store: SpoolStore,
        answers: Answers,
        committer: GroupCommitter,
        answer: Answer,
        port: int,
        faults: PeerFaults,
        *,
        expiry: Expiry,
    ) -> None:
        self._store = store
        self._answers = answers
        self._answer = answer
        self._expiry = expiry
        self._committer = committer
        self._responder = Responder(answer, committer)
        self.attempts = AttemptEnds(store, self._responder)
        self.writers = WriterRequests(store, committer, self._responder, port, faults)
        self.readers = ReaderRequests(store, answers, answer, self._responder, faults)
        self._handlers: dict[type, Callable[[bytes, Any], dict[str, Any] | None]] = {
            protocol.Declare: self.writers.declare,
            protocol.Ended: self.attempts.ask,
            protocol.AbortJob: self.writers.abort,
            protocol.OpenRun: self.readers.open,
            protocol.Fetch: self.readers.fetch,
            protocol.Read: self.readers.read,
            protocol.Acknowledge: self.readers.acknowledge,
            protocol.Release: self.readers.release,
            protocol.ListRuns: self._list,
            protocol.InspectRun: self._inspect,
            protocol.DeleteRun: self._delete,
            protocol.ForgetGroup: self._forget_group,
            protocol.Explain: self._explain,
            protocol.LineageRequest: self._lineage,
        }

    def ask(self, identity: bytes, request: protocol.Request, arrays: Mapping[str, Array]) -> None:
        """Answers at once, or later. Raises the refusal of a request."""
        if isinstance(request, protocol.CommitJob):  # the only one that has arrays
            self.writers.commit(identity, request, winners_of(arrays))
            return
        found = self._handlers[type(request)](identity, request)
        if found is not None:
            self._responder.respond(identity, request, found)

    def tick(self, connected: set[bytes]) -> None:
        """Ends the leases of lost readers, and removes runs by their age."""
        self.readers.tick(connected)
        self.writers.tick(connected)
        if not self.writers.full:  # else attempts may still arrive when there is room
            self.attempts.refuse_missing()
        removed = self._expiry.check({(reader.entry.number, reader.group) for reader in self.readers.leases})
        if removed is not None:  # readers see it, and its space is free, only then
            self._committer.when_committed(removed, lambda: None)

    # -- runs --------------------------------------------------------------------------------------------

    def _list(self, identity: bytes, request: protocol.ListRuns) -> dict[str, Any]:
        with self._store.lock:
            return {
                "runs": [summary(entry, self._store.now()) for entry in self._store.entries.values()],
                "disk_bytes": self._store.log.disk_bytes,
                "full": self.writers.waits,
            }

    def _inspect(self, identity: bytes, request: protocol.InspectRun) -> dict[str, Any]:
        with self._store.lock:
            entry = self._store.entry(request.run)
            found = summary(entry, self._store.now())
            found["columns"] = row_layouts.to_json(entry.run.layouts or ())
            found["readers"] = [
                {"group": reader.group, "shard": reader.shard, "shards": reader.shards}
                for reader in self.readers.leases
                if reader.run == request.run
            ]
            found["jobs"] = jobs_of(entry)
            return found

    def _delete(self, identity: bytes, request: protocol.DeleteRun) -> None:
        with self._store.lock:
            entry = self._store.entry(request.run, request.run_id)
            readers = sum(reader.run == request.run for reader in self.readers.leases)
            if (readers or entry.run.jobs) and not request.force:
                raise UsageError(
                    f"run {request.run} has {readers} readers and {len(entry.run.jobs)} jobs that write",
                    hint="they will fail if it is deleted; --force deletes it anyway",
                )
            self.writers.run_deleted(entry)
            rows, nbytes = self._store.delete(request.run)
        gone = {"rows": rows, "bytes": nbytes}
        self._responder.respond_when_committed(entry.sequence, identity, request, lambda: gone)

    def _forget_group(self, identity: bytes, request: protocol.ForgetGroup) -> None:
        with self._store.lock:
            entry = self._store.entry(request.run)
            _check_group(entry, request.group)
            readers = [
                one for one in self.readers.leases if one.entry is entry and one.group == request.group
            ]
            if readers and not request.force:
                raise UsageError(
                    f"group {request.group!r} of run {request.run} has {len(readers)} readers",
                    hint="they will fail if it is deleted; --force deletes it anyway",
                )
            self.readers.end_leases(entry, request.group)
            before = entry.bytes_from(0)
            sequence = self._store.forget(entry, request.group)
            gone = {"bytes": before - entry.bytes_from(0)}
        self._responder.respond_when_committed(sequence, identity, request, lambda: gone)

    def _explain(self, identity: bytes, request: protocol.Explain) -> None:
        entry = self._store.entry(request.run, request.run_id)
        entry.check_whole()
        found = self._answers.explain(entry, request)
        meta = {"id": request.id, "jobs": entry.run.names, "crc": checksum(found)}
        self._answer(identity, found, meta)

    def _lineage(self, identity: bytes, request: protocol.LineageRequest) -> dict[str, Any]:
        entry = self._store.entry(request.run)
        steps = self._store.lineage(entry, request.group)
        if not steps:  # else the steps of a forgotten group are known, too
            _check_group(entry, request.group)
        return {"run_id": entry.run_id, "steps": steps}


def _check_group(entry: RunRecord, group: str) -> None:
    """Raises OptionError if the run has no such group."""
    if group not in entry.groups:
        names = ", ".join(sorted(entry.groups)[:5]) or "none"
        raise OptionError(f"run {entry.run.name} has no group {group!r}", hint=f"there are: {names}")
