"""Readers' requests: which reader leases which shard of a group, and what the group has read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from transfer.spool.format import rows as row_layouts
from transfer.spool.format.protocol import Acknowledge, Fetch, OpenRun, Read, Release, refusal
from transfer.spool.format.row_source import OPEN, check_opening
from transfer.spool.server.answers import Answers
from transfer.spool.server.group import MAX_SHARDS, Position, ReaderGroup
from transfer.spool.server.reader import SpoolReader
from transfer.spool.server.responder import Answer, Responder
from transfer.spool.server.row_requests import RowRequests
from transfer.spool.server.run_record import RunRecord, VisibleState
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Broken, UsageError

if TYPE_CHECKING:
    from transfer.peer_faults import PeerFaults

_log = logging.getLogger("transfer.spool")

_FORGOTTEN = "by `transfer runs forget-group`; a reader that opens the run again begins as a new group"


class ReaderRequests:
    """Handles readers' requests. For one thread. A reader leases its shard until it disconnects."""

    def __init__(
        self, store: SpoolStore, answers: Answers, answer: Answer, responder: Responder, faults: PeerFaults
    ) -> None:
        self._store = store
        self._responder = responder
        self._readers: dict[bytes, SpoolReader] = {}
        #: why a connected reader has lost its lease
        self._ended: dict[bytes, str] = {}
        #: groups by (number of the run, name), whose positions are to be stored
        self._unstored: dict[tuple[int, str], RunRecord] = {}
        self._rows = RowRequests(store, answers, answer, faults, self._delivered)

    @property
    def leases(self) -> list[SpoolReader]:
        """All readers with a lease."""
        return [*self._readers.values()]

    def open(self, identity: bytes, request: OpenRun) -> dict[str, Any] | None:
        """Leases a shard. Returns the answer; None: it follows."""
        if request.shard >= request.shards:
            raise UsageError(f"shard {request.shard} of {request.shards}", hint="shards are counted from 0")
        if request.shards > MAX_SHARDS:
            raise UsageError(f"{request.shards:,} shards", hint=f"a group has at most {MAX_SHARDS:,}")
        if request.run not in self._store.entries and not request.run_id:
            return {"missing": True}
        entry = self._store.entry(request.run, request.run_id)
        entry.check_whole()
        run, state = entry.run, entry.state
        check_opening(run.name, state, run.layouts or (), request.columns, shuffled=request.shuffled)
        busy, alone = self._check_other_readers(identity, request, entry)
        if busy:
            return {"busy": busy}
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
        self._ended.pop(identity, None)
        self._readers[identity] = SpoolReader(
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
        # From now on a stream keeps rows for it, also after a crash, which does not change the run's id.
        self._responder.respond_when_committed(group.noted, identity, request, lambda: answer)
        return None

    def fetch(self, identity: bytes, request: Fetch) -> None:
        """Queues a fetch; the rows follow when they are visible."""
        reader = self._readers.get(identity)
        if reader is None:
            if (ended := self._ended.get(identity)) is not None:
                raise Broken(ended, hint=_FORGOTTEN)
            raise Broken("this reader has no lease", hint="open the run first")
        self._rows.fetch(identity, reader, request)

    def read(self, identity: bytes, request: Read) -> None:
        """Queues a read without group and lease; the rows follow."""
        self._store.entry(request.run, request.run_id).touched = self._store.now()
        self._rows.read(identity, request)

    def serve_waiting(self) -> float:
        """Answers the requests for rows that can be answered now. Returns the seconds until the next call."""
        return self._rows.serve_waiting(self._readers)

    def acknowledge(self, identity: bytes, request: Acknowledge) -> None:
        """Acknowledges a position; the answer follows when it is on the disk."""
        entry = self._store.entry(request.run, request.run_id)
        if request.group not in entry.groups:
            raise UsageError(
                f"group {request.group!r} has not opened run {request.run}, or was forgotten",
                hint="open the run with this group first",
            )
        lease = request.shard, request.count, request.shards
        if request.shard + request.count > request.shards or request.shards > MAX_SHARDS:
            raise UsageError(f"shards {request.shard} to {request.shard + request.count} of {request.shards}")
        if request.row > entry.rows:  # later rows would count as read
            raise UsageError(
                f"row {request.row:,} of run {request.run}, which has {entry.rows:,} rows",
                hint="acknowledge a state of this run, at most as far as it was read",
            )
        position = request.epoch, request.row
        sequence = self._store.acknowledge(request.run, request.group, position, request.steps, lease)
        self._responder.respond_when_committed(sequence, identity, request, dict)

    def release(self, identity: bytes, request: Release) -> dict[str, Any]:
        """Ends a reader's lease."""
        reader = self._readers.pop(identity, None)
        if reader is not None:
            self._leave(reader, request.used)
        return {}

    def end_leases(self, entry: RunRecord, group: str) -> None:
        """Ends the leases of a forgotten group; its readers' open requests are refused."""
        text = f"group {group!r} of run {entry.run.name} was forgotten"
        error = refusal(Broken(text, hint=_FORGOTTEN))
        for identity, reader in [*self._readers.items()]:
            if reader.entry is entry and reader.group == group:
                del self._readers[identity]
                self._ended[identity] = text
                for request in reader.waiting:
                    self._responder.respond(identity, request, {"error": error})

    def tick(self, connected: set[bytes]) -> None:
        """Ends the leases of readers whose connection is lost."""
        self.store_positions()
        for identity in [identity for identity in self._readers if identity not in connected]:
            reader = self._readers.pop(identity)
            _log.info("a reader of run %s, group %s disconnected", reader.run, reader.group)
            self._leave(reader, None)
        for identity in [identity for identity in self._ended if identity not in connected]:
            del self._ended[identity]
        self._rows.tick(connected)

    def store_positions(self) -> None:
        """Stores the positions of groups that are not stored yet; also when the spool closes."""
        unstored, self._unstored = self._unstored, {}
        for (_, group), entry in unstored.items():
            if self._store.entries.get(entry.run.name) is entry and group in entry.groups:
                self._store.note(entry, group)

    def _check_other_readers(self, identity: bytes, request: OpenRun, entry: RunRecord) -> tuple[str, bool]:
        """Returns (why the shard cannot be leased, or ""; whether no other reader of the group exists)."""
        wanted, alone = (request.shards, request.shard), True
        for other, reader in [*self._readers.items()]:
            if (reader.run, reader.group) != (request.run, request.group) or other == identity:
                continue
            if reader.entry is not entry:  # the group's shards would be of two runs
                return f"shard {reader.shard} of {reader.shards} of {reader.entry.run_id}, deleted", False
            if reader.token == request.token and reader.shard == request.shard:
                del self._readers[other]  # it has reconnected
            elif (reader.shards, reader.shard) == wanted or reader.shards != request.shards:
                return f"shard {reader.shard} of {reader.shards}", False
            else:
                alone = False
        return "", alone

    def _delivered(self, reader: SpoolReader, request: Fetch, seen: VisibleState) -> None:
        if not any(one is reader for one in self._readers.values()):
            return  # it disconnected while its answer was made
        entry = reader.entry
        group = entry.groups[reader.group]
        if group.deliver(reader.shard, request, seen.rows, over=seen.state != OPEN):
            self._unstored[entry.number, reader.group] = entry
        end = min(request.begin + (request.times - 1) * request.stride + request.rows, entry.rows)
        position = request.epoch, end
        if group.delivered is None or group.delivered < position:
            group.delivered = position

    def _leave(self, reader: SpoolReader, used: Position | None) -> None:
        """Removes a reader. The group's positions are stored soon, once for all readers that end together."""
        group = reader.entry.groups.get(reader.group)
        if group is None:
            return  # the group was forgotten
        group.used = self._store.now()
        group.settled = False  # the next reader learns which rows this one was sent
        group.leave(reader.shard, used)
        self._unstored[reader.entry.number, reader.group] = reader.entry


def _check_kept(entry: RunRecord, name: str, group: ReaderGroup) -> None:
    """Raises Broken if the group was given up, and rows that it has not read were deleted."""
    row = group.acknowledged[1] if group.acknowledged is not None else 0
    if entry.run.kind == "stream" and row < entry.first:
        raise Broken(
            f"group {name!r} of run {entry.run.name} was given up after a long silence: its rows {row:,} to "
            f"{entry.first:,} are not kept any more",
            hint=f"to begin at row {entry.first:,}: transfer runs forget-group, or another group",
        )
