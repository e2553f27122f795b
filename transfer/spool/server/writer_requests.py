"""Writers' requests: declaring, committing and aborting a job."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from transfer.log.group_committer import GroupCommitter
from transfer.spool.format.protocol import AbortJob, CommitJob, Declare, raised, refusal
from transfer.spool.format.run_messages import Winner
from transfer.spool.server.responder import Responder
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Broken, LogFull

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults
    from transfer.spool.server.run_record import RunRecord

_log = logging.getLogger("transfer.spool")

#: aborted jobs that are remembered for their late tasks
_REMEMBERED = 100_000
#: commits that may wait for room
_MAX_WAITING = 256
#: the log's own hint is for a broker's topics
_ROOM = (
    "`transfer runs delete` frees space, --retention-age does so automatically, and in a stream readers that "
    "acknowledge; or raise the limit: --retention-bytes (a broker's: retention.bytes), or enlarge the disk"
)


class WriterRequests:
    """Handles writers' requests. For one thread. port: for rows. full: why writers wait, or ""."""

    def __init__(
        self,
        store: SpoolStore,
        committer: GroupCommitter,
        responder: Responder,
        port: int,
        faults: PeerFaults,
    ) -> None:
        self._store = store
        self._committer = committer
        self._responder = responder
        self._port = port
        self._faults = faults
        #: by (run, job): the cause
        self._aborted: OrderedDict[tuple[str, str], list[str] | None] = OrderedDict()
        #: commits that wait for room on the disk
        self._stuck: list[tuple[bytes, CommitJob, list[Winner]]] = []
        self.full = ""
        self._full = ""  # why the commits wait

    @property
    def waits(self) -> str:
        """Why rows or commits wait now, or ""."""
        return self.full or (self._full if self._stuck else "")

    def declare(self, identity: bytes, request: Declare) -> dict[str, Any] | None:
        """Declares a job. Returns the answer; None: it follows."""
        job = request.run, request.job
        if request.task and request.kind == "batch" and job in self._aborted:
            # Its job failed while it began: it must not open the run again, which no client would ever end.
            cause = self._aborted[job]
            if cause is not None:
                raise raised(cause)
            raise Broken(f"job {request.job} of run {request.run} was aborted")
        entry = self._store.entries.get(request.run)
        if request.task and entry is not None:
            entry.check_job(request.job)
        self._aborted.pop(job, None)
        wanted = self._store.declare(
            request.run, request.job, request.delivery, request.kind, request.if_complete
        )
        answer = {"port": self._port, "done": not wanted, "full": self.waits}
        if wanted:
            return answer
        sequence = self._store.entry(request.run).sequence  # its end may not be on the disk yet
        self._responder.respond_when_committed(sequence, identity, request, lambda: answer)
        return None

    def run_deleted(self, entry: RunRecord) -> None:
        """Refuses the jobs that write to a deleted run: their next task would make a run of its name again,
        with the rest of the rows."""
        name = entry.run.name
        cause = refusal(
            Broken(
                f"run {name}, {entry.run_id}, was deleted while this job wrote to it",
                hint="write it again, by another job",
            )
        )
        for job in entry.run.jobs:
            self._remember((name, job), cause)

    def _remember(self, job: tuple[str, str], cause: list[str] | None) -> None:
        self._aborted[job] = self._aborted.get(job) or cause
        if len(self._aborted) > _REMEMBERED:
            self._aborted.popitem(last=False)

    def commit(self, identity: bytes, request: CommitJob, winners: list[Winner]) -> None:
        """Commits a job; the answer follows when there is room for the commit and it is on the disk."""
        cause = self._aborted.get((request.run, request.job))
        if cause is not None and request.run not in self._store.entries:
            raise raised(cause)
        try:
            sequence, before = self._store.commit(request.run, request.job, winners, request.if_complete)
        except LogFull as error:  # like rows, the commit waits until there is room
            if len(self._stuck) >= _MAX_WAITING:
                raise
            self._full = no_room(error)
            _log.warning("the commit of run %s waits: %s", request.run, self._full)
            self._stuck.append((identity, request, winners))
            return
        entry = self._store.entry(request.run)
        self._responder.respond_when_committed(
            sequence, identity, request, lambda: {"rows": entry.rows, "done": before}
        )

    def abort(self, identity: bytes, request: AbortJob) -> dict[str, Any] | None:
        """Aborts a job. Returns the answer; None: it follows."""
        job = request.run, request.job
        self._remember(job, request.cause)
        sequence = self._store.abort(request.run, request.job)
        if sequence is None:
            return {}
        self._responder.respond_when_committed(sequence, identity, request, dict)
        return None

    def tick(self, connected: set[bytes]) -> None:
        """Retries the commits that wait for room."""
        stuck, self._stuck = self._stuck, []
        if stuck:  # space is free when that is recorded on the disk
            self._committer.when_committed(self._store.mark(), lambda: None)
        for identity, request, winners in stuck:
            if identity in connected:
                self._retry(identity, request, winners)

    def _retry(self, identity: bytes, request: CommitJob, winners: list[Winner]) -> None:
        try:
            self.commit(identity, request, winners)
        except Exception as error:  # noqa: BLE001 - of this commit; the others are tried
            found = self._faults.refusal("a commit", error, identity)
            self._responder.respond(identity, request, {"error": refusal(found)})


def no_room(error: LogFull) -> str:
    """Returns why writers wait, and how to free space."""
    text, _, _ = str(error).partition("\n  hint: ")
    return str(LogFull(text, hint=_ROOM))
