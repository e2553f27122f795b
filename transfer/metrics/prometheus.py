"""Metrics for Prometheus. The fast path only adds to integers; a scrape reads them.

    context = transfer.Context(metrics_port=9100)     # serves them at http://127.0.0.1:9100/metrics
    transfer.metrics.register(context)                # or: into the default registry

`docs/metrics.md` lists all names. For several processes, set PROMETHEUS_MULTIPROC_DIR to an empty folder
before Python starts. Then each process writes its numbers to memory-mapped files there, every two seconds and
when a context ends, and the serving process sums them.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
    make_wsgi_app,
    multiprocess,
    values,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from transfer.http.tls import Https
from transfer.metrics.counters import Key, LatencyCounts, Tally, peer_counts, peer_gauges, socket_counts
from transfer.metrics.families import FAMILIES, Family
from transfer.metrics.http_server import MetricsServer, check_registering
from transfer.transports.errors import AddressInUse, AddressNotAvailable, OptionError
from transfer.transports.forking import undivided
from transfer.transports.req_rep_turn import Turn

_log = logging.getLogger("transfer")

if TYPE_CHECKING:
    from transfer.sockets.context import Context

#: seconds between two updates of a process's files
PUBLISH_INTERVAL: Final = 2.0


def register(context: Context, registry: CollectorRegistry | None = None) -> None:
    """Adds the context's numbers to a registry, by default prometheus_client's default registry.

    It sums the contexts of a registry. With PROMETHEUS_MULTIPROC_DIR it writes the numbers to files there
    instead, which `prometheus_client.multiprocess.MultiProcessCollector` reads. Idempotent; `Context.term`
    calls `unregister`.
    """
    check_registering(context, registry)
    if _multi_process():
        _process_files.add(context)
        return
    registry = REGISTRY if registry is None else registry
    with undivided(), _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _ContextCollector()
            registry.register(collector)
            _collectors[registry] = collector
    collector.add(context)


def unregister(context: Context, registry: CollectorRegistry | None = None) -> None:
    """Removes a context's gauges, and keeps its totals. Idempotent."""
    check_registering(context, registry)
    if _multi_process():
        _process_files.remove(context)
        return
    with undivided(), _lock:
        collector = _collectors.get(REGISTRY if registry is None else registry)
    if collector is not None:
        collector.remove(context)


def _multi_process() -> bool:
    """Whether PROMETHEUS_MULTIPROC_DIR was set when prometheus_client was imported."""
    return values.ValueClass is not values.MutexValue


_lock = threading.Lock()
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _ContextCollector] = weakref.WeakKeyDictionary()


class _ContextCollector(Collector):
    """Reads the numbers of its contexts at each scrape. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: weakref.WeakKeyDictionary[Context, weakref.finalize[..., Context]] = (
            weakref.WeakKeyDictionary()
        )
        self._ended: dict[Key, float] = defaultdict(float)
        self._ended_requests = LatencyCounts()
        # Tallies of contexts that were garbage-collected without `term`. A deque, since the garbage collector
        # may append to it while this thread holds the lock.
        self._forgotten: deque[Tally] = deque()

    def add(self, context: Context) -> None:
        with undivided(), self._lock:
            if context not in self._contexts:
                end = weakref.finalize(context, self._forgotten.append, context.tally)
                end.atexit = False
                self._contexts[context] = end

    def remove(self, context: Context) -> bool:
        """Keeps the totals of a context that ends. Returns whether no context is left."""
        with undivided(), self._lock:
            end = self._contexts.pop(context, None)
            if end is not None and end.detach() is not None:
                self._keep(_read(context), _round_trips(context))
            return not self._contexts

    def _keep(self, numbers: Mapping[Key, float], requests: LatencyCounts) -> None:
        for key, value in numbers.items():
            if FAMILIES[key[0]].kind == "counter":
                self._ended[key] += value
        self._ended_requests.merge(requests)

    def read(self) -> tuple[dict[Key, float], LatencyCounts]:
        """Returns all numbers by name and labels, and the histogram of requests."""
        with undivided(), self._lock:
            contexts = list(self._contexts)
            while self._forgotten:
                tally = self._forgotten.popleft()
                self._keep(tally.ended(), tally.requests)
            total = defaultdict(float, self._ended)
            requests = LatencyCounts()
            requests.merge(self._ended_requests)
        for context in contexts:
            if context.forked:  # the parent process counts it
                continue
            for key, value in _read(context).items():
                total[key] += value
            requests.merge(_round_trips(context))
        return total, requests

    def describe(self) -> Iterable[Metric]:
        """Returns the names, so that the registry refuses a second metric of the same name at once."""
        return [_family(name, spec, {}) for name, spec in FAMILIES.items() if spec.kind != "histogram"]

    def collect(self) -> Iterator[Metric]:
        numbers, requests = self.read()
        by_name: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for (name, labels), value in numbers.items():
            by_name[name][labels] = value
        for name, spec in FAMILIES.items():
            if spec.kind == "histogram":
                yield HistogramMetricFamily(
                    name, spec.text, buckets=list(_cumulative(requests)), sum_value=requests.total_ns / 1e9
                )
            else:
                yield _family(name, spec, by_name[name])


class _GivenNumbers(Collector):
    """Given numbers of given families."""

    def __init__(self, families: Mapping[str, Family], numbers: Mapping[Key, float]) -> None:
        self._families = families
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        by_name: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for (name, labels), value in self._numbers.items():
            by_name[name][labels] = value
        for name, spec in self._families.items():
            yield _family(name, spec, by_name[name])


def exposition(
    contexts: Sequence[Context], families: Mapping[str, Family], numbers: Mapping[Key, float]
) -> bytes:
    """Returns the sums of contexts, other numbers, and this process's resources in Prometheus' text format.

    families: counters and gauges by name. numbers: by name and labels, of these families. It only covers this
    process, regardless of PROMETHEUS_MULTIPROC_DIR. Any thread.
    """
    registry = CollectorRegistry()
    collector = _ContextCollector()
    for context in contexts:
        collector.add(context)
    registry.register(collector)
    registry.register(_GivenNumbers(families, numbers))
    ProcessCollector(registry=registry)
    try:
        return generate_latest(registry)
    finally:
        for context in contexts:
            collector.remove(context)


def _family(name: str, spec: Family, samples: Mapping[tuple[str, ...], float]) -> Metric:
    make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = make(name.removesuffix("_total"), spec.text, labels=spec.labels)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def _read(context: Context) -> dict[Key, float]:
    """Returns the current numbers of one context."""
    total: dict[Key, float] = defaultdict(float, context.tally.ended())
    for socket in context.sockets:
        links = socket._links
        kind = links.state.pattern.socket_type.name
        counts = [*socket_counts(socket)]
        for peer in list(links.state.peers.values()):
            name = context.tally.name_of(peer)
            counts += [*peer_counts(kind, peer, name), *peer_gauges(kind, peer, name)]
        counts.append((("transfer_sockets", (kind,)), 1))
        if links.state.followed:
            counts.append((("transfer_discovery_members", (kind,)), links.state.followed))
        for key, value in counts:
            total[key] += value
    total["transfer_pool_bytes", ("in_use",)] += context.pool.in_use
    total["transfer_pool_bytes", ("cached",)] += context.pool.cached
    for kind, name in (("segments", "local.carriers"), ("tensors", "local.blocks")):
        total["transfer_local_bytes", (kind,)] += getattr(context.shared.get(name), "nbytes", 0)
    total["transfer_core_info", (context.core.IMPLEMENTATION,)] += 1
    # Only rdma registers memory; the metric exists from the start.
    spent = sum(getattr(kept, "registration_ns", 0) for kept in list(context.shared.values()))
    total["transfer_registration_seconds_total", ()] += spent / 1e9
    return total


def _round_trips(context: Context) -> LatencyCounts:
    """Returns the round trips of all requests of one context."""
    requests = LatencyCounts()
    requests.merge(context.tally.requests)
    for socket in context.sockets:
        requests.merge_turn(socket)
    return requests


def _bounds() -> list[str]:
    return [floatToGoString(bound / 1e9) for bound in Turn.BOUNDS] + ["+Inf"]


def _cumulative(requests: LatencyCounts) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip(_bounds(), requests.counts, strict=True):
        total += count
        yield bound, total


# --- serving ------------------------------------------------------------------------------------


class Server:
    """The metrics of a context: its registration, and an HTTP server if it has a port.

    `serve` makes it; the context closes it after its sockets. port: the real one; None if this process does
    not serve, or another process of the group serves already.
    """

    def __init__(self, context: Context, registry: CollectorRegistry | None) -> None:
        self.port: int | None = None
        self._context = context
        self._registry = registry
        self._http: MetricsServer | None = None
        self._thread: threading.Thread | None = None
        register(context, registry)

    def listen(self, address: str, port: int, registry: CollectorRegistry) -> None:
        """Serves a registry over HTTP, in a thread.

        Raises AddressInUse, AddressNotAvailable, SecurityError.
        """
        https = Https(self._context.credentials.security)
        try:
            self._http = MetricsServer(make_wsgi_app(registry), address, port, https)
        except OSError as error:
            if not (_multi_process() and error.errno == errno.EADDRINUSE):
                raise _address_error(error, address, port) from error
        else:
            self._thread = self._http.start()
            self.port = self._http.port

    def close(self) -> None:
        """Stops the server and its thread; the context's totals stay in the registry. Idempotent."""
        http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()
        if self._thread is not None:
            self._thread.join(10.0)
            self._thread = None
        unregister(self._context, self._registry)


def serve(
    context: Context, port: int | str | None = None, registry: CollectorRegistry | None = None
) -> Server:
    """Registers the context's numbers, and serves them over HTTP if a port is given.

    port: a number (0: a free one, see `Server.port`) serves only this machine. "host:port", for example with
    0.0.0.0, also serves other machines, by HTTPS with a certificate or the token (docs/security.md).
    registry: where to register; None: a new one if it is served, else the default one.
    Raises OptionError, AddressInUse, AddressNotAvailable, SecurityError.
    """
    if port is None:
        return Server(context, registry)
    host, _, digits = str(port).rpartition(":")
    address = host.strip("[]") or "127.0.0.1"
    if not digits.isdecimal() or int(digits) > 65535:
        raise OptionError(f"metrics_port cannot be {port!r}", hint='a port from 0 to 65535, or "host:port"')
    if registry is None:
        registry = CollectorRegistry()
    server = Server(context, registry)
    if _multi_process():
        registry.register(_AllProcesses())
    try:
        server.listen(address, int(digits), registry)
        if not int(digits):
            _log.info("serving metrics at port %d of %s", server.port, address)
    except BaseException:
        server.close()
        raise
    return server


def _address_error(error: OSError, address: str, port: int) -> AddressInUse | AddressNotAvailable:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"port {port} for metrics is in use", hint="choose another metrics_port, or 0 for any free one"
        )
    return AddressNotAvailable(f"metrics cannot be served at {address}:{port}: {error}", errno=error.errno)


# --- several processes ----------------------------------------------------------------------------


class _AllProcesses(Collector):
    """Sums the files of all processes, without the gauges of dead processes."""

    def collect(self) -> Iterator[Metric]:
        _process_files.publish()
        folder = multiprocess.MultiProcessCollector(None)
        _forget_dead(Path(folder._path))
        yield from folder.collect()


def _forget_dead(folder: Path) -> None:
    """Removes the gauges of killed processes, which could not remove them."""
    for file in folder.glob("gauge_livesum_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not Path("/proc", pid).exists() and Path("/proc/self").exists():
            multiprocess.mark_process_dead(int(pid), str(folder))


class _ProcessFiles:
    """Writes the numbers of this process to prometheus_client's memory-mapped files.

    A custom collector works only in its process; all processes read these files. A thread writes them while a
    context is registered. A forked child starts with empty counters.
    """

    def __init__(self) -> None:
        self._hooked = False
        self._begin()

    def _begin(self) -> None:
        # After a fork the parent's lock may stay locked for ever in the child, and the parent's numbers are
        # in its own file.
        self._lock = threading.Lock()
        self._collector = _ContextCollector()
        self._values: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, context: Context) -> None:
        self._collector.add(context)
        with self._lock:
            if not self._hooked:
                self._hooked = True
                os.register_at_fork(after_in_child=self._begin)
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(target=self._run, name="transfer-metrics", daemon=True)
                self._thread.start()
        self.publish()

    def remove(self, context: Context) -> None:
        last = self._collector.remove(context)
        with self._lock:
            thread = None
            if last:
                thread, self._thread = self._thread, None
                self._stop.set()
        if thread is not None:
            thread.join(10.0)
            self.publish()

    def publish(self) -> None:
        """Writes the current numbers; gauges that do not exist any more become 0."""
        numbers, requests = self._collector.read()
        with self._lock:
            for key, value in self._values.items():
                if key[0] in FAMILIES and FAMILIES[key[0]].kind == "gauge" and key not in numbers:
                    value.set(0.0)
            for (name, labels), number in numbers.items():
                self._value(name, name, labels).set(number)
            name = "transfer_request_seconds"
            self._value(name, f"{name}_sum", ()).set(requests.total_ns / 1e9)
            # Not cumulative: the reader sums them.
            for bound, count in zip(_bounds(), requests.counts, strict=True):
                self._value(name, f"{name}_bucket", (bound,), ("le",)).set(count)

    def _value(self, name: str, sample: str, labels: tuple[str, ...], names: tuple[str, ...] = ()) -> Any:
        """Returns the number's entry in the files."""
        value = self._values.get((sample, labels))
        if value is None:
            spec = FAMILIES[name]
            metric = name.removesuffix("_total")
            value = values.ValueClass(
                spec.kind,
                metric,
                sample,
                names or spec.labels,
                labels,
                spec.text,
                multiprocess_mode="livesum",
            )
            self._values[sample, labels] = value
        return value

    def _run(self) -> None:
        while not self._stop.wait(PUBLISH_INTERVAL):
            self.publish()


_process_files = _ProcessFiles()
