"""The spool's desk: every request, who waits for what, and which reader has which shard."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from transfer import rows as row_layouts
from transfer.log.group_committer import GroupCommitter
from transfer.runs import Begin, End, Rows, Winner, checksum
from transfer.spool import protocol
from transfer.spool.answers import Answers
from transfer.spool.entry import Entry, Seen
from transfer.spool.expiry import Expiry
from transfer.spool.group import MAX_SHARDS, Group, Position
from transfer.spool.protocol import raised, refusal
from transfer.spool.reader import Reader, Sent
from transfer.spool.row_requests import RowRequests
from transfer.spool.source import OPEN
from transfer.spool.store import Store
from transfer.spool.telling import jobs_of, summary, winners_of
from transports.errors import Broken, LogFull, OptionError, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults
    from transfer.rows import Array, Arrays

_log = logging.getLogger("transfer.spool")


#: (identity, arrays, metadata); None: nobody is there any more
Answer = Callable[[bytes, "Arrays", dict[str, Any]], Sent | None]
#: (run, job, partition, attempt)
Key = tuple[str, str, int, int]
#: ends of attempts that are remembered for whoever asks again
_REMEMBERED = 100_000
#: seconds after which an attempt that is asked for must have come: its task has sent all of it before it asks
_MISSING = 5.0
#: commits that may wait for room
_MAX_WAITING = 256
#: attempts that may be asked for while they are not there
_MAX_ASKING = 100_000


class Desk:
    """Answers requests. `ask`, `serve_waiting` and `tick` are for one thread; `attempt_*` for any.

    full: why writers wait just now, or "". receiving: the attempt whose message the rows' thread has taken
    from its socket and not yet put into the books.
    """

    def __init__(
        self,
        store: Store,
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
        self._committer = committer
        self._answer = answer
        self._port = port
        self._faults = faults
        self._expiry = expiry
        self._readers: dict[bytes, Reader] = {}
        #: groups by (number of the run, name), whose positions are to be kept
        self._unnoted: dict[tuple[int, str], Entry] = {}
        self._rows = RowRequests(store, answers, answer, faults, self._delivered)
        self._lock = threading.Lock()
        #: how attempts ended: None is well. And who asked before that was known
        self._ends: OrderedDict[Key, TransferError | None] = OrderedDict()
        self._aborted: OrderedDict[tuple[str, str], list[str] | None] = OrderedDict()  # jobs, and why
        self._asking: dict[Key, list[tuple[bytes, int, float]]] = {}
        #: commits that wait for room on the disk
        self._stuck: list[tuple[bytes, protocol.CommitJob, list[Winner]]] = []
        self.full = ""
        self.receiving: Key | None = None
        self._handlers: dict[type, Callable[[bytes, Any, Mapping[str, Array]], dict[str, Any] | None]] = {
            protocol.Declare: self._declare,
            protocol.Ended: self._ended,
            protocol.CommitJob: self._commit,
            protocol.AbortJob: self._abort,
            protocol.OpenRun: self._open,
            protocol.Fetch: self._fetch,
            protocol.Read: self._read,
            protocol.Acknowledge: self._acknowledge,
            protocol.Release: self._release,
            protocol.ListRuns: self._list,
            protocol.InspectRun: self._inspect,
            protocol.DeleteRun: self._delete,
            protocol.ForgetGroup: self._forget_group,
            protocol.Explain: self._explain,
            protocol.Lineage: self._lineage,
        }

    def ask(self, identity: bytes, request: protocol.Request, arrays: Mapping[str, Array]) -> None:
        """Answers at once, or later. Raises what the request is refused with."""
        found = self._handlers[type(request)](identity, request, arrays)
        if found is not None:
            self._answer(identity, {}, {"id": request.id, **found})

    # -- writers -----------------------------------------------------------------------------------------

    def _declare(self, identity: bytes, request: protocol.Declare, _: Any) -> dict[str, Any] | None:
        job = request.run, request.job
        if request.task and request.kind == "batch" and job in self._aborted:
            # Its job failed while it began: it must not open the run again, which nobody would ever end.
            cause = self._aborted[job]
            if cause is not None:
                raise raised(cause)
            raise Broken(f"job {request.job} of run {request.run} was aborted")
        self._aborted.pop(job, None)
        wanted = self._store.declare(
            request.run, request.job, request.delivery, request.kind, request.if_complete
        )
        answer = {"port": self._port, "done": not wanted, "full": self.full}
        if wanted:
            return answer
        sequence = self._store.entry(request.run).sequence  # that it is done may not be on the disk yet
        self._committer.when_committed(sequence, lambda: self._say(identity, request, answer))
        return None

    def _say(self, identity: bytes, request: protocol.Ask, answer: dict[str, Any]) -> None:
        self._answer(identity, {}, {"id": request.id, **answer})

    def _ended(self, identity: bytes, request: protocol.Ended, _: Any) -> dict[str, Any] | None:
        key = request.run, request.job, request.partition, request.attempt
        attempt = self._store.attempt(*key)
        with self._lock:
            if key in self._ends:
                error = self._ends[key]
            elif attempt is not None and attempt.kept:  # before this process began
                error = None
            else:
                if len(self._asking) >= _MAX_ASKING:
                    raise _not_there(key[0], key[2])
                self._asking.setdefault(key, []).append((identity, request.id, time.monotonic() + _MISSING))
                return None
        if error is not None:
            raise error
        return {}

    def attempt_began(self, message: Begin) -> None:
        """What was known of an attempt of this name is of one before, whose job was aborted."""
        with self._lock:
            self._ends.pop((message.run, message.job, message.partition, message.attempt), None)

    def attempt_came_for_nobody(self, message: End) -> None:
        """The spool was restarted while it was sent, or its job is over."""
        self._attempt_over(message, _not_there(message.run, message.partition))

    def attempt_kept(self, message: End) -> None:
        """All of an attempt is on the disk."""
        self._store.attempt_kept(message)
        self._attempt_over(message, None)

    def attempt_failed(self, message: Begin | Rows | End, error: TransferError) -> None:
        """An attempt sent what cannot be kept."""
        self._attempt_over(message, error)

    def _attempt_over(self, message: Begin | Rows | End, error: TransferError | None) -> None:
        key = message.run, message.job, message.partition, message.attempt
        with self._lock:
            self._ends.setdefault(key, error)
            while len(self._ends) > _REMEMBERED:
                self._ends.popitem(last=False)
            error = self._ends[key]
            asking = self._asking.pop(key, [])
        for identity, number, _ in asking:
            self._answer(identity, {}, {"id": number} | ({"error": refusal(error)} if error else {}))

    def _commit(self, identity: bytes, request: protocol.CommitJob, arrays: Mapping[str, Array]) -> None:
        self._commit_now(identity, request, winners_of(arrays))

    def _commit_now(self, identity: bytes, request: protocol.CommitJob, winners: list[Winner]) -> None:
        try:
            sequence, before = self._store.commit(request.run, request.job, winners, request.if_complete)
        except LogFull as error:  # as its rows do, it waits until there is room
            if len(self._stuck) >= _MAX_WAITING:
                raise
            _log.warning("the commit of run %s waits: %s", request.run, error)
            self._stuck.append((identity, request, winners))
            return
        entry = self._store.entry(request.run)
        self._committer.when_committed(
            sequence, lambda: self._say(identity, request, {"rows": entry.rows, "done": before})
        )

    def _abort(self, identity: bytes, request: protocol.AbortJob, _: Any) -> dict[str, Any] | None:
        job = request.run, request.job
        self._aborted[job] = self._aborted.get(job) or request.cause
        if len(self._aborted) > _REMEMBERED:
            self._aborted.popitem(last=False)
        sequence = self._store.abort(request.run, request.job)
        if sequence is None:
            return {}
        self._committer.when_committed(sequence, lambda: self._say(identity, request, {}))
        return None

    # -- readers -----------------------------------------------------------------------------------------

    def _open(self, identity: bytes, request: protocol.OpenRun, _: Any) -> dict[str, Any] | None:
        if request.shard >= request.shards:
            raise UsageError(f"shard {request.shard} of {request.shards}", hint="shards are counted from 0")
        if request.shards > MAX_SHARDS:
            raise UsageError(f"{request.shards:,} shards", hint=f"a group has at most {MAX_SHARDS:,}")
        if request.run not in self._store.entries and not request.run_id:
            return {"missing": True}
        entry = self._store.entry(request.run, request.run_id)
        entry.check_whole()
        alone = True
        for other, reader in [*self._readers.items()]:
            if (reader.run, reader.group) != (request.run, request.group) or other == identity:
                continue
            if reader.entry is not entry:  # its shards would be of two runs
                return {"busy": f"shard {reader.shard} of {reader.shards} of {reader.entry.run_id}, deleted"}
            if reader.token == request.token and reader.shard == request.shard:
                del self._readers[other]  # its connection broke, and it is here again
            elif (reader.shards, reader.shard) == (
                request.shards,
                request.shard,
            ) or reader.shards != request.shards:
                return {"busy": f"shard {reader.shard} of {reader.shards}"}
            else:
                alone = False
        group = self._store.group(entry, request.group)
        _check_kept(entry, request.group, group)
        came_back = group.given_up
        group.used, group.given_up = self._store.now(), False
        if not group.settled:
            group.before, group.settled = group.delivered, True
        if request.run_id:
            changed = group.rejoin(request.shard, request.shards, request.delivered)
        else:
            changed = group.join(request.shard, request.shards, alone=alone)
        if changed or came_back:
            group.noted = self._store.note(entry, request.group)
        self._readers[identity] = Reader(
            entry, request.run, request.group, request.shard, request.shards, request.token
        )
        seen = entry.seen
        answer = {
            "name": entry.run.name,
            "run_id": entry.run_id,
            "state": seen.state,
            "visible": seen.rows,
            "layouts": row_layouts.to_json(entry.run.layouts or ()),
            "acknowledged": group.acknowledged,
            "delivered": group.before,
        }
        # From now on a stream keeps rows for its sake, after a crash too, which does not take the run's id.
        self._committer.when_committed(group.noted, lambda: self._say(identity, request, answer))
        return None

    def _fetch(self, identity: bytes, request: protocol.Fetch, _: Any) -> None:
        reader = self._readers.get(identity)
        if reader is None:
            raise Broken("this reader has no lease", hint="open the run first")
        self._rows.fetch(identity, reader, request)

    def serve_waiting(self) -> float:
        """Answers the requests for rows that can be answered now. Seconds until it is to be called again."""
        return self._rows.serve_waiting(self._readers)

    def _delivered(self, reader: Reader, request: protocol.Fetch, seen: Seen) -> None:
        if not any(one is reader for one in self._readers.values()):
            return  # it went while its answer was made
        entry = reader.entry
        group = entry.groups[reader.group]
        if group.deliver(reader.shard, request, seen.rows, over=seen.state != OPEN):
            self._unnoted[entry.number, reader.group] = entry
        end = min(request.begin + (request.times - 1) * request.stride + request.rows, entry.rows)
        position = request.epoch, end
        if group.delivered is None or group.delivered < position:
            group.delivered = position

    def _read(self, identity: bytes, request: protocol.Read, _: Any) -> None:
        self._store.entry(request.run, request.run_id).touched = self._store.now()
        self._rows.read(identity, request)

    def _acknowledge(self, identity: bytes, request: protocol.Acknowledge, _: Any) -> None:
        entry = self._store.entry(request.run, request.run_id)
        if request.group not in entry.groups:
            raise UsageError(
                f"group {request.group!r} has not opened run {request.run}",
                hint="open the run with this group first",
            )
        lease = request.shard, request.count, request.shards
        if request.shard + request.count > request.shards or request.shards > MAX_SHARDS:
            raise UsageError(f"shards {request.shard} to {request.shard + request.count} of {request.shards}")
        position = request.epoch, request.row
        sequence = self._store.acknowledge(request.run, request.group, position, request.steps, lease)
        self._committer.when_committed(sequence, lambda: self._say(identity, request, {}))

    def _release(self, identity: bytes, request: protocol.Release, _: Any) -> dict[str, Any]:
        reader = self._readers.pop(identity, None)
        if reader is not None:
            self._leave(reader, request.used)
        return {}

    # -- runs --------------------------------------------------------------------------------------------

    def _list(self, identity: bytes, request: protocol.ListRuns, _: Any) -> dict[str, Any]:
        with self._store.lock:
            return {
                "runs": [summary(entry, self._store.now()) for entry in self._store.entries.values()],
                "disk_bytes": self._store.log.disk_bytes,
                "full": self.full,
            }

    def _inspect(self, identity: bytes, request: protocol.InspectRun, _: Any) -> dict[str, Any]:
        with self._store.lock:
            entry = self._store.entry(request.run)
            found = summary(entry, self._store.now())
            found["columns"] = row_layouts.to_json(entry.run.layouts or ())
            found["readers"] = [
                {"group": reader.group, "shard": reader.shard, "shards": reader.shards}
                for reader in self._readers.values()
                if reader.run == request.run
            ]
            found["jobs"] = jobs_of(entry)
            return found

    def _delete(self, identity: bytes, request: protocol.DeleteRun, _: Any) -> None:
        with self._store.lock:
            entry = self._store.entry(request.run, request.run_id)
            readers = sum(reader.run == request.run for reader in self._readers.values())
            if (readers or entry.run.jobs) and not request.force:
                raise UsageError(
                    f"run {request.run} has {readers} readers and {len(entry.run.jobs)} jobs that write",
                    hint="they will fail if it goes; delete it with --force if that is meant",
                )
            rows, nbytes = self._store.delete(request.run)
        gone = {"rows": rows, "bytes": nbytes}
        self._committer.when_committed(entry.sequence, lambda: self._say(identity, request, gone))

    def _forget_group(self, identity: bytes, request: protocol.ForgetGroup, _: Any) -> None:
        with self._store.lock:
            entry = self._store.entry(request.run)
            if request.group not in entry.groups:
                names = ", ".join(sorted(entry.groups)[:5]) or "none"
                raise OptionError(
                    f"run {request.run} has no group {request.group!r}", hint=f"there are: {names}"
                )
            readers = [
                one
                for one, reader in self._readers.items()
                if reader.entry is entry and reader.group == request.group
            ]
            if readers and not request.force:
                raise UsageError(
                    f"group {request.group!r} of run {request.run} has {len(readers)} readers",
                    hint="they will fail if it goes; forget it with --force if that is meant",
                )
            for one in readers:
                self._end_lease(one)
            before = entry.bytes_from(0)
            sequence = self._store.forget(entry, request.group)
            gone = {"bytes": before - entry.bytes_from(0)}
        self._committer.when_committed(sequence, lambda: self._say(identity, request, gone))

    def _end_lease(self, identity: bytes) -> None:
        """This reader has no group any more; what it waits for is refused."""
        reader = self._readers.pop(identity)
        error = refusal(Broken(f"group {reader.group!r} of run {reader.run} was forgotten"))
        for request in reader.waiting:
            self._answer(identity, {}, {"id": request.id, "error": error})

    def _explain(self, identity: bytes, request: protocol.Explain, _: Any) -> None:
        entry = self._store.entry(request.run, request.run_id)
        entry.check_whole()
        found = self._answers.explain(entry, request)
        meta = {"id": request.id, "jobs": entry.run.names, "crc": checksum(found)}
        self._answer(identity, found, meta)

    def _lineage(self, identity: bytes, request: protocol.Lineage, _: Any) -> dict[str, Any]:
        entry = self._store.entry(request.run)
        return {"run_id": entry.run_id, "steps": self._store.lineage(entry, request.group)}

    # -- by the clock ------------------------------------------------------------------------------------

    def tick(self, connected: set[bytes]) -> None:
        """Readers whose connection is gone have no lease any more; runs whose time is over go."""
        self.note_all()
        for identity in [identity for identity in self._readers if identity not in connected]:
            reader = self._readers.pop(identity)
            _log.info("a reader of run %s, group %s went away", reader.run, reader.group)
            self._leave(reader, None)
        self._rows.tick(connected)
        stuck, self._stuck = self._stuck, []
        if stuck:  # room comes back when it is on the disk that it is not needed
            self._committer.when_committed(self._store.log.put(b"room", b""), lambda: None)
        for identity, request, winners in stuck:
            if identity in connected:
                self._retry(identity, request, winners)
        self._look_for_missing()
        self._expiry.look({(reader.entry.number, reader.group) for reader in self._readers.values()})

    def _leave(self, reader: Reader, used: Position | None) -> None:
        """The group's positions are kept soon: once for all readers that go together."""
        group = reader.entry.groups.get(reader.group)
        if group is None:
            return  # it was forgotten meanwhile
        group.used = self._store.now()
        group.settled = False  # who comes next is told what this one was sent
        group.leave(reader.shard, used)
        self._unnoted[reader.entry.number, reader.group] = reader.entry

    def note_all(self) -> None:
        """Positions of groups that were not kept yet are; also when the desk is closed."""
        unnoted, self._unnoted = self._unnoted, {}
        for (_, group), entry in unnoted.items():
            if self._store.entries.get(entry.run.name) is entry and group in entry.groups:
                self._store.note(entry, group)

    def _retry(self, identity: bytes, request: protocol.CommitJob, winners: list[Winner]) -> None:
        try:
            self._commit_now(identity, request, winners)
        except Exception as error:  # noqa: BLE001 - of this commit; the others are tried
            told = self._faults.refusal("a commit", error, identity)
            self._say(identity, request, {"error": refusal(told)})

    def _look_for_missing(self) -> None:
        """Who asks for an attempt that this process does not know is told so: it ended with the one
        before."""
        if self.full:
            return  # they may come when there is room
        now = time.monotonic()
        with self._lock:
            late = {key: asking for key, asking in self._asking.items() if asking[0][2] < now}
        for key, asking in late.items():
            if key == self.receiving:
                continue  # its end has come, and the disk is slow
            attempt = self._store.attempt(*key)
            if attempt is not None and attempt.ended is not None:
                continue  # it waits for the disk
            with self._lock:
                self._asking.pop(key, None)
            error = _not_there(key[0], key[2])
            for identity, number, _ in asking:
                self._answer(identity, {}, {"id": number, "error": refusal(error)})


def _check_kept(entry: Entry, name: str, group: Group) -> None:
    """Raises Broken: the group was given up, and rows that it has not read were given back."""
    row = group.acknowledged[1] if group.acknowledged is not None else 0
    if entry.run.kind == "stream" and row < entry.first:
        raise Broken(
            f"group {name!r} of run {entry.run.name} was given up after a long silence: its rows {row:,} to "
            f"{entry.first:,} are not kept any more",
            hint=f"to begin at row {entry.first:,}: transfer runs forget-group, or another group",
        )


def _not_there(run: str, partition: int) -> Broken:
    return Broken(
        f"partition {partition} of run {run} is not there",
        hint="the spool was restarted meanwhile, or its job is over; Spark tries the task again",
    )
