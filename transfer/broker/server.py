"""The broker: one process's loop, log, database and fronts, on one folder."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import transfer
from transfer.broker.config import tokenless
from transfer.broker.config.options import BY_NAME
from transfer.broker.config.settings import AbtpEndpoints, Settings
from transfer.broker.core.delivery import RetryPolicy
from transfer.broker.core.dispatcher import Rules
from transfer.broker.core.routes import RouteTable
from transfer.broker.delivery.dispatcher_driver import DispatcherDriver
from transfer.broker.delivery.hub import Hub
from transfer.broker.fronts.native import NativeFront
from transfer.broker.fronts.pybroker import PyBrokerFront
from transfer.broker.fronts.rqueue import RqueueFront
from transfer.broker.fronts.ttp import TtpFront
from transfer.broker.net.connection_group import ConnectionGroup
from transfer.broker.net.listener import Accepted
from transfer.broker.net.listener_set import ListenerSet, OnConnection
from transfer.broker.offload_pool import OffloadPool
from transfer.broker.protocols.ttp import ALPN
from transfer.broker.service_threads import ServiceThreads
from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_writer import AuditWriter
from transfer.broker.storage.catalog_file import read_file
from transfer.broker.storage.database import Database
from transfer.broker.storage.database_thread import DatabaseThread
from transfer.broker.storage.dead_letter_table import DeadLetters
from transfer.broker.storage.dead_letter_writer import DeadLetterWriter
from transfer.broker.storage.folder_parts import (
    AUDIT,
    LOG,
    OTHER_PARTS,
    STATE,
    check_state,
    made_parts,
    note_made,
)
from transfer.broker.storage.sessions import Sessions
from transfer.broker.storage.store import Store
from transfer.broker.storage.volume import log_room
from transfer.log import Log, Retention, gc_paused
from transfer.log.disk import make_folder
from transfer.log.private import claim
from transfer.log.upkeep import Upkeep
from transfer.sockets.defaults import TRANSFER
from transfer.transports.address import format_host
from transfer.transports.errors import AddressInUse, SecurityError, TransferError, comes_with

if TYPE_CHECKING:
    from transfer.spool.server.max_ages import Ages
    from transfer.spool.server.server import Spool

_log = logging.getLogger("transfer.broker")

#: seconds between two checks for slow or idle clients
_TICK = 1.0
#: seconds between two checks whether a drain is complete
_DRAIN_INTERVAL = 0.05


class _FrontServer(Protocol):
    """A protocol's server in the broker. counters: its events by name."""

    @property
    def counters(self) -> Mapping[str, int]: ...
    @property
    def connections(self) -> int: ...
    def tick(self, now: float) -> None: ...
    def close(self) -> None: ...


_F = TypeVar("_F", bound=_FrontServer)


@contextmanager
def _set_by(*options: str) -> Iterator[None]:
    """Adds to an address that another program has the flags that set another one."""
    try:
        yield
    except AddressInUse as error:
        flags = " or ".join(f"--{BY_NAME[option].flag}" for option in options)
        hint = f"end the program that has it, or choose another port, or off, with {flags}"
        raise AddressInUse(str(error).partition("\n")[0], hint=hint) from error


class Broker:
    """A broker in this process, with exclusive use of a folder.

    It serves from its construction until `close`.

    ports: of HTTP and of the fronts that listen on TCP, by name. endpoints: of transfer's own sockets, by
    name. drained: set after `drain`, when all begun work has ended. late: delay of the loop in seconds,
    measured each second. Thread-safe, apart from hub and fronts: use them by `call`.
    Raises AddressInUse, LogInUse, LogDamaged, OptionError.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Settings | None = None) -> None:
        self.folder = Path(folder)
        self.settings = settings or Settings()
        self.ports: dict[str, int] = {}
        self.endpoints: dict[str, str] = {}
        self.fronts: dict[str, _FrontServer] = {}
        self.draining = False
        self.drained = threading.Event()
        self.late = 0.0
        self.threads = ServiceThreads()
        self.spool: Spool | None = None
        self._loop = asyncio.new_event_loop()
        self._owned = ExitStack()
        self._ended = False
        self._ending = threading.Lock()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="transfer-broker", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def failure(self) -> TransferError | None:
        """Why the log has failed; None: it works. After a failure the broker needs a restart."""
        return self.hub.durability.failure

    @property
    def spool_failure(self) -> TransferError | None:
        """Why the spool has ended; None: it runs, or there is none."""
        return self.spool.failure if self.spool is not None else None

    @property
    def contexts(self) -> list[transfer.Context]:
        """The contexts of the broker and of its spool."""
        return [self.context, *([self.spool.context] if self.spool is not None else [])]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's event loop."""
        return self._loop

    @property
    def listening(self) -> Collection[str]:
        """Names of the fronts on plain TCP that accept connections."""
        return self.listeners.listening

    def endpoints_of(self, front: str) -> list[str]:
        """Returns where a front listens, as texts for people."""
        if front == "native":
            queues = [name for name in self.endpoints if name.startswith("queue ")]
            names = ("requests", "pushes", "subscriptions", *queues)
            return [f"{self.endpoints[name]} {name}" for name in names if name in self.endpoints]
        if front == "spool":
            return [f"{self.endpoints[name]} {name}" for name in ("spool", "rows")]
        if front == "abtp":
            named = ((name, self.endpoints.get(f"abtp {name}")) for name in ("router", "pub"))
            return [f"{endpoint} {name}" for name, endpoint in named if endpoint]
        if front not in self.ports:
            return []
        host = (self.settings.http_host if front == "http" else None) or self.settings.host
        scheme = "tcp" if front != "http" else "https" if self.listeners.secured else "http"
        return [f"{scheme}://{format_host(host)}:{self.ports[front]}"]

    def drain(self) -> None:
        """Accepts no more connections, and sets `drained` when all begun work has ended. Idempotent.

        Work is payloads that arrive, waits for the disk, and bytes that clients still read. `close` it then.
        """
        with self._ending:
            if not self._ended:
                self._loop.call_soon_threadsafe(self._begin_drain)

    def close(self) -> None:
        """Stops the broker; messages that it has accepted stay in the log. Idempotent."""
        with self._ending:
            if not self._ended:
                self._ended = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(self, work: Callable[[], object]) -> None:
        """Schedules a call on the broker's loop. Any thread."""
        self._loop.call_soon_threadsafe(work)

    # -- the broker's thread -----------------------------------------------------------------------------

    def _run(self, started: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with self._owned:
                self._owned.callback(self._loop.close)
                try:
                    self._open()
                except BaseException as error:  # noqa: BLE001 - the constructor raises it
                    started.set_exception(error)
                    return
                started.set_result(None)
                self._loop.run_forever()
        except Exception:
            _log.exception("the broker has failed")
            raise

    def _open(self) -> None:
        settings, loop = self.settings, self._loop
        make_folder(self.folder)
        claim(self.folder, inside=OTHER_PARTS)
        room = log_room(settings.retention_bytes, self.folder / LOG)
        retention = Retention(bytes=room, age=settings.retention_age)
        log = self._owned.enter_context(Log(self.folder / LOG, retention=retention, damaged="serve"))
        check_state(log, self.folder)
        database = Database(self.folder / STATE)
        self._owned.callback(database.close)
        self.letters = DeadLetters(database)
        self.letters.sweep()
        now_ms = time.time_ns() // 1_000_000
        begun = AUDIT in made_parts(log.state)
        self.audit = self._owned.enter_context(Audit(self.folder / AUDIT, now_ms, begun=begun))
        note_made(log)
        thread = DatabaseThread(loop, self.threads)
        self._owned.callback(thread.close)  # it ends before the database that it writes to
        store = Store(log, settings.durable, most=settings.max_topics, room=room)
        retry = RetryPolicy(max_attempts=settings.max_attempts, initial=settings.first_delay)
        dead_letters = DeadLetterWriter(thread, self.letters, log)
        self.hub = Hub(
            loop,
            store,
            lambda attempt: None if retry.exhausted(attempt) else retry.delay(attempt, random.random),
            dead_letters.keep,
            is_dead_lettered=dead_letters.is_dead_lettered,
            patience=settings.stall_timeout,
            expire=settings.group_idle_age,
            max_groups=settings.max_groups,
            threads=self.threads,
            announced=settings.announced,
        )
        self._owned.callback(self.hub.close)
        audit_writer = AuditWriter(thread, self.audit, self.hub.counts)
        self.hub.groups.on_stale = audit_writer.stale_acks
        self.hub.groups.on_expired = audit_writer.group_expired
        self.direct = DispatcherDriver(
            loop,
            self.hub,
            self._routes(),
            Rules(
                limits=settings.direct,
                retry=retry,
                ack_timeout=settings.ack_timeout,
                route_grace=settings.route_grace,
            ),
            thread,
            self.letters,
            Sessions(database),
            audit_writer,
        )
        self._owned.callback(Upkeep(log, "transfer-broker-upkeep", self.threads.start).close)
        self._open_fronts()
        if settings.spool is not None:
            with _set_by("spool.endpoint"):
                self._open_spool(log, settings.spool, settings.spool_ages)
        if settings.http is not None:
            with _set_by("http.port"):
                self._open_http(settings.http)
        loop.call_later(_TICK, self._tick, loop.time() + _TICK)

    def _routes(self) -> RouteTable:
        """Loads the routes of the catalog file, if there is one."""
        table = RouteTable()
        if self.settings.catalog:
            with gc_paused():
                for route in read_file(self.settings.catalog):
                    table.add(route)
        return table

    def _open_abtp(self, where: AbtpEndpoints) -> None:
        """Opens the front for AetherBus's protocol, over ZeroMQ."""
        with comes_with("fronts", "the abtp front", "go without: --abtp off"):
            from transfer.broker.fronts.abtp import AbtpFront
            from transfer.broker.fronts.abtp_relay import PeerNames, PrivateFolder, relayed
            from transfer.broker.fronts.abtp_sockets import AbtpSettings
            from transfer.broker.protocols.abtp_signing import Signatures
        if where.signed and not self.context.credentials.security.has_token:
            raise SecurityError(
                "abtp.signed: consumers have to sign with a token, and no token is configured",
                hint="configure a file of tokens: TRANSFER_TOKEN_FILE, or security.token_file",
            )
        outside = {"router": where.router, "pub": where.pub}
        folder = PrivateFolder(self.folder)
        self._owned.callback(folder.close)
        inside = {name: folder.endpoint(name) for name in outside}
        names: PeerNames = PeerNames()
        relays = relayed(self.listeners, self._lines, outside, inside, names)
        self._owned.callback(relays.close)  # after libzmq has closed its ends
        pool = OffloadPool(self._loop, self.settings.fast_path, self.hub.counts, self.threads)
        self._owned.callback(pool.close)
        limits = self.settings.direct
        settings = AbtpSettings(
            inside["router"],
            inside["pub"],
            route_grace=self.settings.route_grace,
            awaiting=limits.max_queued_direct,
            awaiting_of_topic=limits.max_per_topic_queue,
        )
        front = AbtpFront(
            self.hub, self._loop, self.direct, settings,
            pool=pool, names=names, on_published=relays.relays["pub"].on_published,
            signatures=Signatures(self.context.credentials.tokens) if where.signed else None,
        )  # fmt: skip
        self._add("abtp", front)
        self.hub.direct = self.direct  # only the abtp front brings consumers for direct delivery
        self.endpoints |= {f"abtp {name}": endpoint for name, endpoint in relays.endpoints.items()}

    def _open_fronts(self) -> None:
        settings = self.settings
        own_defaults = replace(TRANSFER, handshake_ivl=max(1, int(settings.handshake_timeout * 1000)))
        self.context = context = transfer.Context(security=settings.security, defaults=own_defaults)
        self._owned.callback(context.destroy, 0)
        self.listeners = listeners = ListenerSet(self._loop, context, settings.handshake_timeout)
        self._owned.callback(listeners.close)
        self._lines = lines = ConnectionGroup(self._loop, context.pool)
        self._owned.callback(lines.close)
        if settings.native is not None:
            with _set_by("native.requests", "native.pushes", "native.subscriptions"):
                own = self._add("native", NativeFront(self.hub, self._loop, context, settings.native))
            self.endpoints = dict(own.endpoints)
        endpoints, disabled = tokenless.places(settings, context.credentials.security)
        if disabled:
            _log.warning(
                "%s: not listening: the protocol has no token (%s)", ", ".join(disabled), tokenless.HINT
            )
        if endpoints["ttp"] is not None:
            ttp = self._add("ttp", TtpFront(self.hub, lines, settings.ttp_limits))
            self._listen("ttp", endpoints["ttp"], self._acceptor("ttp", ttp, ttp.connected, ALPN))
        if endpoints["pybroker"] is not None:
            pybroker = self._add("pybroker", PyBrokerFront(self.hub, lines, settings.pybroker_limits))
            self._listen(
                "pybroker", endpoints["pybroker"], self._acceptor("pybroker", pybroker, pybroker.connected)
            )
        if endpoints["rqueue"] is not None:
            rqueue = self._add("rqueue", RqueueFront(self.hub, lines, settings.rqueue_limits))
            self._listen("rqueue", endpoints["rqueue"], self._acceptor("rqueue", rqueue, rqueue.connected))
        if endpoints["abtp"] is not None:
            with _set_by("abtp.router", "abtp.pub"):
                self._open_abtp(endpoints["abtp"])

    def _open_spool(self, log: Log, endpoint: str, ages: Ages) -> None:
        """Opens the spool for rows from Spark to training. It shares the log, and runs in other threads."""
        from transfer.spool.format.address import default_rows_endpoint
        from transfer.spool.server.server import Spool  # needs numpy and msgspec

        self.spool = spool = Spool(
            log,
            endpoint,
            default_rows_endpoint(endpoint),
            ages=ages,
            security=self.context.credentials.security,
        )
        self._owned.callback(spool.close)
        self.endpoints["spool"] = spool.endpoint
        self.endpoints["rows"] = spool.rows_endpoint

    def _open_http(self, port: int) -> None:
        """Opens HTTP: health, metrics, operators' calls and the console."""
        with comes_with("broker", "the broker's HTTP", "go without: --http off"):
            from transfer.broker.http.server import HttpServer
        server = HttpServer(self, self.settings.http_host or self.settings.host, port)
        self._owned.callback(server.close)
        self.ports["http"] = server.port

    def _add(self, name: str, front: _F) -> _F:
        self.fronts[name] = front
        self._owned.callback(front.close)
        return front

    def _listen(self, name: str, port: int, connected: Accepted) -> None:
        with _set_by(f"{name}.port"):
            self.ports[name] = self.listeners.listen(name, self.settings.host, port, connected).port

    def _acceptor(self, name: str, front: _FrontServer, connected: OnConnection, *protocols: str) -> Accepted:
        return self.listeners.acceptor(name, connected, lambda: front.connections, *protocols)

    def _begin_drain(self) -> None:
        if self.draining:
            return
        self.draining = True
        self.listeners.close()
        for socket in self.context.sockets:
            socket.unbind(socket.last_endpoint)
        self._check_drained(0)

    def _check_drained(self, quiet: int) -> None:
        """Sets `drained` when two checks in a row find no work: an answer may cause the next request."""
        quiet = 0 if self._is_busy() else quiet + 1
        if quiet >= 2:
            self.drained.set()
        self._loop.call_later(_DRAIN_INTERVAL, self._check_drained, quiet)

    def _is_busy(self) -> bool:
        if self.hub.busy or self._lines.busy:
            return True
        return any(peer.queued for socket in self.context.sockets for peer in socket.peers())

    def _tick(self, due: float) -> None:
        now = self._loop.time()
        self.late = max(0.0, now - due)
        self._loop.call_later(_TICK, self._tick, now + _TICK)
        for tick in [front.tick for front in self.fronts.values()] + [self.hub.tick]:
            try:
                tick(now)
            except Exception as error:  # noqa: BLE001 - the other ticks still run
                known = isinstance(error, TransferError)
                _log.error("a periodic check has failed: %s", error, exc_info=not known)
