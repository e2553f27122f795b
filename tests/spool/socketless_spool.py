"""A spool without sockets and threads: store and request handler on the real log, readers that ask at once.

What happens is decided by the calls alone, so that a sequence of them can be repeated.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import deque

import msgspec
import numpy as np

from transfer.peer_faults import PeerFaults
from transfer.spool.client import prefetcher as prefetch, run_client as client
from transfer.spool.client.connection import check
from transfer.spool.format.protocol import Fetch, refusal
from transfer.spool.format.run_messages import TaskBegin, TaskEnd
from transfer.spool.server.answers import Answers
from transfer.spool.server.expiry import Expiry
from transfer.spool.server.max_ages import Ages
from transfer.spool.server.request_handler import RequestHandler
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Again, Broken, TransferError


class Committer:
    """Commits when it is called."""

    def __init__(self, store):
        self._store = store
        self._waiting = []

    def when_committed(self, sequence, done):
        self._waiting.append((sequence, done))

    def flush(self):
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            sequence = max(one[0] for one in waiting)
            self._store.log.commit(sequence)
            self._store.kept(sequence)
            for _, done in waiting:
                done()


class Memory:
    """What `Answers` needs of a pool."""

    @staticmethod
    def lease(size):
        return bytearray(size)


class SocketlessSpool:
    """A spool on a folder of its own, which crashes and is started again. lives: how often it was started."""

    def __init__(self, folder):
        self._folder = folder
        self.lives = 0
        self._start(folder / "0")

    def _start(self, folder):
        self.lives += 1
        self.store = SpoolStore(folder)
        self.committer = Committer(self.store)
        self.inboxes = {}
        faults = PeerFaults(logging.getLogger("transfer.spool"))
        answers = Answers(self.store, Memory)
        expiry = Expiry(self.store, Ages(), lambda *_: None)
        self.request_handler = RequestHandler(
            self.store, answers, self.committer, self._answer, 0, faults, expiry=expiry
        )

    def restart(self, *, crash):
        """crash: what was not committed is lost; connections are lost either way."""
        before = self.store
        folder = before.log.folder
        if crash:
            folder = self._folder / str(self.lives)
            shutil.copytree(before.log.folder, folder)
        else:
            self.committer.flush()
            self.request_handler.readers.store_positions()
        before.close()
        self._start(folder)

    def close(self):
        self.store.close()

    def _answer(self, identity, arrays, meta):
        inbox = self.inboxes.get(identity)
        if inbox is not None:
            copies = {name: np.array(array) for name, array in arrays.items()}
            inbox.append((copies, json.loads(json.dumps(meta))))  # as it travels

    def sync(self):
        """Commits all that was done, also what nobody waits for."""
        self.committer.when_committed(self.store.log.put(b"test", b""), lambda: None)
        self.committer.flush()

    def put(self, identity, request, arrays):
        try:
            self.request_handler.ask(identity, request, arrays)
        except TransferError as error:
            self._answer(identity, {}, {"id": request.id, "error": refusal(error)})
        self.serve()

    def serve(self):
        """Answers all requests for rows that can be answered."""
        while not self.request_handler.readers.serve_waiting():
            pass

    def ask(self, request, arrays=None, *, commit=True):
        """Asks on a connection of its own. commit: else the answer may be None, and what was done is lost
        in a crash."""
        inbox = self.inboxes[b"once"] = deque()
        try:
            self.put(b"once", request, arrays or {})
            if commit:
                self.committer.flush()
            if not inbox:
                return None
            found, meta = inbox.popleft()
            check(meta)
            return found, meta
        finally:
            del self.inboxes[b"once"]

    def receive(self, message, arrays):
        """What a task pushes."""
        try:
            sequence = self.store.receive(message, arrays)
        except TransferError as error:
            self.request_handler.attempts.failed(message, error)
            return
        if isinstance(message, TaskBegin) and sequence is not None:
            self.request_handler.attempts.began(message)
        if isinstance(message, TaskEnd):
            if sequence is None:
                self.request_handler.attempts.dropped(message)
            else:
                self.committer.when_committed(sequence, lambda: self.request_handler.attempts.kept(message))

    def tick(self):
        """Readers whose connections are gone have no lease any more."""
        self.request_handler.tick(set(self.inboxes))


class SocketlessConnection:
    """A reader's connection. fetches: those that were asked for, by number."""

    count = 0

    def __init__(self, spool):
        SocketlessConnection.count += 1
        self._spool = spool
        self._life = spool.lives
        self._identity = str(SocketlessConnection.count).encode()
        self._inbox = spool.inboxes[self._identity] = deque()
        self.fetches = {}

    def send(self, request, arrays):
        if self._life != self._spool.lives:
            raise Broken("the spool closed the connection")
        if isinstance(request, Fetch):
            self.fetches[request.id] = request
        self._spool.put(self._identity, request, arrays)

    def receive(self, timeout):
        if self._life != self._spool.lives:
            raise Broken("the spool closed the connection")
        if not self._inbox:
            self._spool.serve()
        if not self._inbox:
            raise Again("nothing was answered")
        return self._inbox.popleft()

    def unreceived(self):
        """The metadata of answers that are under way."""
        return [meta for _, meta in self._inbox]

    def rows_of(self, meta):
        """(epoch, position) of the rows of an answer that are of whole steps: readers throw others away."""
        fetch = self.fetches.get(meta["id"])
        if fetch is None or fetch.next is None or "count" not in meta:
            return set()
        found = set()
        for number in range(fetch.times):
            if fetch.need - (fetch.times - 1 - number) * fetch.stride <= meta["visible"]:
                begin = fetch.begin + number * fetch.stride
                found |= {(fetch.epoch, row) for row in range(begin, begin + fetch.rows)}
        return found

    def close(self):
        if self._life == self._spool.lives:
            del self._spool.inboxes[self._identity]


class SocketlessClient:
    """As `Link`, at a spool in this thread."""

    spool: SocketlessSpool

    def __init__(self, endpoint, *, timeout=0.0):
        self.endpoint = endpoint
        self._received = set()
        self._line = None
        self._number = 0

    @property
    def connected(self):
        return self._line is not None

    def line(self, timeout):
        if self._line is None:
            self._line = SocketlessConnection(self.spool)
        return self

    def send(self, request, arrays):
        self._line.send(request, arrays)

    def receive(self, timeout):
        arrays, meta = self._line.receive(timeout)
        self._received |= self._line.rows_of(meta)
        return arrays, meta

    @property
    def delivered(self):
        """(epoch, position) of all rows that the spool sent, though they were not received yet."""
        sent = self._line.unreceived() if self._line is not None else []
        return self._received.union(*map(self._line.rows_of, sent)) if sent else self._received

    def ask(self, request, arrays=None, *, timeout=None, resume=False):
        self._number += 1
        request = msgspec.structs.replace(request, id=self._number)
        try:
            self.line(0.0).send(request, arrays or {})
        except Broken:
            self.disconnect()
            self.line(0.0).send(request, arrays or {})
        self.spool.committer.flush()
        while True:
            found, meta = self._line.receive(0.0)
            if meta.get("id") == self._number:
                check(meta)
                return found, meta

    def disconnect(self):
        line, self._line = self._line, None
        if line is not None:
            line.close()

    close = disconnect


def _fetch_here(prefetcher):
    """Instead of the prefetcher's thread: it fetches what there is when a batch is taken."""
    while not prefetcher._has_outcome():
        before = len(prefetcher._asks), prefetcher._place
        try:
            if not prefetcher._turn():
                return
        except BaseException as error:  # noqa: BLE001 - raised where batches are taken
            prefetcher._error = error
        if before == (len(prefetcher._asks), prefetcher._place):
            return


def use(monkeypatch):
    """Readers that are opened from now on ask `SocketlessClient.spool`, and nothing waits."""
    monkeypatch.setattr(client, "ReconnectingClient", SocketlessClient)
    monkeypatch.setattr(client, "_LEASE_PATIENCE", 0.0)
    monkeypatch.setattr(prefetch, "_SLICE", 0.0)
    monkeypatch.setattr(prefetch.Prefetcher, "_start", _fetch_here)
