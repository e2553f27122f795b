"""`RunClient`: fetches a run's rows for a trainer, and continues after a restart of the spool."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transfer.spool.client.connection import ReconnectingClient, changed, check, is_intact
from transfer.spool.format import rows as row_layouts
from transfer.spool.format.address import parse_run
from transfer.spool.format.protocol import Acknowledge, AnswerTooLarge, Fetch, OpenRun, Release
from transfer.spool.format.row_source import Rows, RunInfo, ShardLease
from transfer.transports.arguments import patience
from transfer.transports.errors import (
    Again,
    Broken,
    Closed,
    OptionError,
    TransferError,
    UsageError,
    comes_with,
)

with comes_with("spool", __name__):
    import msgspec

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays

_log = logging.getLogger("transfer")

#: seconds between two checks whether a run exists, or a lease is free
_LOOK = 0.2
#: seconds after which a reader that waits for its run says so
_SILENCE = 5.0
#: seconds to wait for another reader's lease: the connection of a killed one may look alive for a while
_LEASE_PATIENCE = 20.0


class RunClient:
    """One reader of `run://host:port/NAME`; a `RowSource`.

    timeout: seconds to wait for the run to exist, and for a lost spool to return. Not thread-safe, except
    that another thread may call `acknowledge` during `request` and `collect`, and any thread `close`.
    """

    def __init__(self, url: str, *, timeout: float = 600.0) -> None:
        address = parse_run(url)
        self.run = address.run
        self._timeout = timeout = patience(timeout, endless=False) or 0.0
        self._link = ReconnectingClient(address.endpoint, timeout=timeout)
        self._beside = ReconnectingClient(
            address.endpoint, timeout=timeout
        )  # acknowledges while rows are in transit
        self._wanted: OpenRun | None = None
        self._waiting: deque[Fetch] = deque()
        self._came: dict[int, tuple[Arrays, dict[str, Any]]] = {}
        #: of the oldest request, if it is too large for one answer: received parts, and how many are due
        self._parts: list[Rows] = []
        self._corrupted: set[Any] = set()  # numbers of requests whose answers were corrupted
        self._due = 0
        self._number = 1 << 32  # distinct from the numbers of the link's requests
        self._lost_since: float | None = None  # when the run ceased to be open: no spool, or no answer yet
        self._closed = threading.Event()

    def open(
        self,
        group: str,
        shard: int = 0,
        shards: int = 1,
        *,
        columns: Sequence[str] | None = None,
        shuffled: bool = False,
    ) -> RunInfo:
        """See `RowSource.open`."""
        self._wanted = OpenRun(
            run=self.run,
            group=group,
            shard=shard,
            shards=shards,
            token=random.randbytes(16).hex(),
            columns=None if columns is None else [*columns],
            shuffled=shuffled,
        )
        now = time.monotonic()
        return self._open(now, now + self._timeout)

    def request(self, fetch: Fetch) -> None:
        """See `RowSource.request`."""
        fetch = self._numbered(fetch)
        self._waiting.append(fetch)
        self._send(fetch)

    def collect(self, timeout: float | None) -> Rows:
        """See `RowSource.collect`. Fetches and joins several answers if one cannot hold the rows."""
        if not self._waiting:
            raise UsageError("no request is open")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                part = self._collect(deadline)
            except AnswerTooLarge as error:
                if self._waiting[0].times * self._waiting[0].rows <= 1:
                    self._drop_oldest()
                    raise
                self._split(error.most)
                continue
            if not self._due:
                return part
            self._parts.append(part)
            self._due -= 1
            if not self._due:
                parts, self._parts = self._parts, []
                return self._joined(parts)

    def _numbered(self, fetch: Fetch) -> Fetch:
        self._number += 1
        return msgspec.structs.replace(fetch, id=self._number)

    def _send(self, fetch: Fetch) -> None:
        try:
            if self._is_open():
                self._link.line(self._timeout).send(fetch, {})
        except Broken:
            self._link.disconnect()  # `collect` asks again

    def _is_open(self) -> bool:
        """Whether there is a connection on which the run is open."""
        return self._link.connected and self._lost_since is None

    def _split(self, most: int) -> None:
        """Splits the oldest request into requests of at most so many rows."""
        fetches = [self._numbered(part) for part in split(self._waiting.popleft(), most)]
        self._due = max(self._due, 1) + len(fetches) - 1
        self._waiting.extendleft(reversed(fetches))
        for fetch in fetches:
            self._send(fetch)

    def _joined(self, parts: list[Rows]) -> Rows:
        filled = [part.arrays for part in parts if part.count]
        arrays = row_layouts.join(filled, row_layouts.layouts_of(filled[0])) if filled else {}
        return Rows(arrays, sum(part.count for part in parts), parts[-1].visible, parts[-1].state)

    def _collect(self, deadline: float | None) -> Rows:
        """Returns the answer to the oldest request and removes it. Raises AnswerTooLarge, and keeps it."""
        number = self._waiting[0].id
        while number not in self._came:
            if self._closed.is_set():
                raise Closed("the reader was closed")
            if not self._is_open():
                self._reconnect(deadline)
            try:
                line = self._link.line(self._timeout)
                arrays, meta = line.receive(
                    None if deadline is None else max(0.0, deadline - time.monotonic())
                )
            except (Broken, Again) as error:
                if isinstance(error, Again) and deadline is not None and time.monotonic() >= deadline:
                    raise
                self._link.disconnect()
                continue
            if not is_intact(arrays, meta):
                self._retry_corrupted(meta.get("id"))
                continue
            self._came[meta.get("id", 0)] = arrays, meta
        self._corrupted.discard(number)
        arrays, meta = self._came.pop(number)
        try:
            check(meta)
        except AnswerTooLarge:
            raise
        except TransferError:
            self._drop_oldest()
            raise
        fetch = self._waiting.popleft()
        assert self._wanted is not None
        if fetch.next is not None and meta["visible"] >= fetch.need:
            self._wanted = msgspec.structs.replace(self._wanted, delivered=fetch.next)
        return Rows(arrays, meta["count"], meta["visible"], meta["state"])

    def _retry_corrupted(self, number: Any) -> None:
        """Handles a corrupted answer: requests it again, once, on a new connection."""
        self._link.disconnect()
        if number in self._corrupted:
            self._corrupted.clear()
            self._came.clear()
            self._waiting.clear()
            self._parts, self._due = [], 0
            raise changed()
        self._corrupted.add(number)

    def _drop_oldest(self) -> None:
        """Removes the oldest request with all its parts."""
        for _ in range(max(self._due, 1)):
            self._came.pop(self._waiting.popleft().id, None)
        self._parts, self._due = [], 0

    def acknowledge(self, epoch: int, row: int, steps: list[list[int]]) -> None:
        """See `RowSource.acknowledge`."""
        wanted = self._wanted
        if wanted is None:
            raise UsageError("the run is not open")
        lease = ShardLease(wanted.run_id, wanted.group, wanted.shard, wanted.shards)
        self.acknowledge_for(lease, epoch, row, steps)

    def acknowledge_for(self, lease: ShardLease, epoch: int, row: int, steps: list[list[int]]) -> None:
        """See `RowSource.acknowledge_for`."""
        self._beside.ask(Acknowledge(run=self.run, epoch=epoch, row=row, steps=steps, **asdict(lease)))

    def close(self, used: tuple[int, int] | None = None) -> None:
        """See `RowSource.close`."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            if self._link.connected:
                self._link.line(0.0).send(Release(used=used), {})
        except (Broken, Closed):
            pass  # the spool sees the end of the connection
        self._link.close()
        self._beside.close()

    def _reconnect(self, deadline: float | None) -> None:
        """Makes a new connection and repeats all open requests on it.

        Raises Again (not by the deadline), Broken (the timeout is over).
        """
        if self._closed.is_set():
            raise Closed("the reader was closed")
        self._lost_since = since = self._lost_since or time.monotonic()
        until = since + self._timeout
        try:
            self._open(since, until if deadline is None else min(deadline, until))
        except Again as error:
            if time.monotonic() < until - _LOOK:
                raise
            raise Broken(
                f"the spool at {self._link.endpoint} is gone, and was not back within {self._timeout:g} s",
                hint="start it again on its folder, and the training from its last checkpoint",
            ) from error
        self._lost_since = None
        line = self._link.line(self._timeout)
        for fetch in self._waiting:
            if fetch.id not in self._came:
                try:
                    line.send(fetch, {})
                except Broken:
                    return  # the next `receive` raises it, too

    def _open(self, since: float, deadline: float) -> RunInfo:
        """since: time of the first attempt. Raises Again at the deadline."""
        assert self._wanted is not None
        warned = False
        names = f"`transfer runs list {self._link.endpoint.removeprefix('tcp://')}` lists all runs"
        while True:
            _, meta = self._link.ask(self._wanted, timeout=max(0.1, deadline - time.monotonic()), resume=True)
            now, over = time.monotonic(), since + self._timeout
            if "busy" in meta and now >= min(since + _LEASE_PATIENCE, over):
                raise UsageError(
                    f"group {self._wanted.group!r} of run {self.run} is being read: {meta['busy']}",
                    hint="every trainer needs a separate group; the ranks of one have as many shards",
                )
            if meta.get("missing") and now >= over:
                raise OptionError(
                    f"there is no run {self.run!r} at {self._link.endpoint}; waited {now - since:.0f} s",
                    hint=names,
                )
            if meta.get("missing") and not warned and now >= since + _SILENCE:
                warned = True
                text = "waits for the run %r, which is not at %s yet (up to %.0f s); %s"
                _log.warning(text, self.run, self._link.endpoint, self._timeout, names)
            if "busy" not in meta and not meta.get("missing"):
                info = _info(meta)
                # From now on it must be this run: another one of its name has other rows.
                self._wanted = msgspec.structs.replace(self._wanted, run_id=info.run_id)
                return info
            if now >= deadline:
                raise Again("the run cannot be opened yet")
            if self._closed.wait(min(_LOOK, max(0.0, over - now))):
                raise Closed("the reader was closed")


def split(fetch: Fetch, most: int) -> list[Fetch]:
    """Splits a fetch of two or more rows into fetches of at most `most` rows, or of one longer range."""
    step = max(1, min(most, fetch.times * fetch.rows - 1))
    change = msgspec.structs.replace
    one = change(fetch, next=None)  # the shard's next step begins behind the last part
    if fetch.times > 1:
        step = max(1, min(step // fetch.rows, fetch.times - 1))
        starts = range(0, fetch.times, step)
        parts = [
            change(one, begin=one.begin + n * one.stride, times=min(step, one.times - n)) for n in starts
        ]
    else:
        starts = range(0, fetch.rows, step)
        parts = [change(one, begin=one.begin + n, rows=min(step, one.rows - n)) for n in starts]
    parts[-1] = change(parts[-1], next=fetch.next)
    return parts


def _info(meta: dict[str, Any]) -> RunInfo:
    def position(value: Any) -> tuple[int, int] | None:
        return None if value is None else (int(value[0]), int(value[1]))

    return RunInfo(
        meta["name"],
        meta["state"],
        meta["visible"],
        row_layouts.from_json(meta["layouts"]),
        position(meta["acknowledged"]),
        position(meta["delivered"]),
        meta["run_id"],
    )
