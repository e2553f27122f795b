"""Context: owns the reactor thread, the flusher and the buffer pool, and makes sockets."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import threading
import time
import types
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from transfer import config, log_output
from transfer.metrics.counters import Tally
from transfer.sockets.attributes import check_name
from transfer.sockets.defaults import TRANSFER, Defaults
from transfer.sockets.options import core_values, initial_values
from transfer.transports.arguments import linger_of, whole, wrong
from transfer.transports.config import load, security as read_security
from transfer.transports.errors import Closed, ContextTerminated, ForkedError, comes_with
from transfer.transports.forking import undivided
from transfer.transports.handshake.choice import Offer
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.registry import offer
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.mechanism import no_mechanism
from transfer.transports.security.settings import Security
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from enum import Enum

    from transfer.patterns import Pattern
    from transfer.sockets.options import SocketOptions
    from transfer.sockets.registration import Registration
    from transfer.sockets.socket import Socket
    from transfer.transports.core.wire import SocketType

logger = logging.getLogger("transfer")

#: modules that sockets import later, in the first thread that needs them
_LOADED_WITH = (
    "transfer.sockets.socket", "transfer.sockets.poller", "transfer.sockets.callback",
    "transfer.lz4_frame",
    "transfer.transports.connect.acceptor", "transfer.transports.connect.connector",
)  # fmt: skip
_live: weakref.WeakSet[Context] = weakref.WeakSet()
#: contexts of the parent, in a forked child: kept, since freeing them would touch what the parent uses
_inherited: list[Any] = []
_hooks_set = False


class Context:
    """Makes sockets and owns their threads and memory.

    A context may be used from any thread, but not in a forked child: make a new one there. No thread starts
    before the first socket is bound or connected.

    Args:
        io_threads: ignored; present for pyzmq.
        metrics_port: serves Prometheus metrics on this port: a number, or "host:port" for one interface.
            0 takes any free port; None (the default) serves none.
        registry: a `prometheus_client.CollectorRegistry` instead of the default one.
        defaults: default values of the sockets' options.
        core: the module of the core, for tests of the pure Python core.
        protocol: the transport to use, overrides the environment variable MC_RPC_PROTOCOL.
        policy: the transport policy, overrides MC_RPC_POLICY.
        security: certificates and tokens, instead of the TRANSFER_TLS_ and TRANSFER_TOKEN variables
            (docs/security.md).

    Raises:
        ArgumentError: an argument has the wrong type.
        SecurityError: the certificates or tokens cannot be used.
    """

    _transfer_instances: ClassVar[dict[type, Any]] = {}
    _instance_lock: ClassVar[Any] = threading.Lock()

    _transfer_complete = False
    #: how peers of a socket's next endpoint authenticate, beyond certificates and tokens
    _transfer_mechanism = staticmethod(no_mechanism)

    def __init__(
        self,
        io_threads: int = 1,
        *,
        metrics_port: int | str | None = None,
        registry: Any = None,
        defaults: Defaults = TRANSFER,
        core: types.ModuleType | None = None,
        protocol: str | None = None,
        policy: str | None = None,
        security: Security | None = None,
    ) -> None:
        whole(io_threads, "io_threads")
        _check_settings(defaults, core, security, registry)
        chosen = core is None  # by TRANSFER_CORE
        if core is None:
            with undivided():
                from transfer.transports import core as default_core

            core = default_core
        with undivided():  # else a thread may import them while another one forks
            for name in _LOADED_WITH:
                importlib.import_module(name)
        self.core: Any = core
        self.defaults = defaults
        self.transport_config = load(protocol=protocol, policy=policy)
        log_output.apply_environment()
        if chosen:
            core.warn_if_missing()
        config.exit_linger()  # a wrong value raises here and not at exit
        config.pinned_limit()
        config.pickle_allow_list()
        self.credentials = Credentials(read_security() if security is None else security, core)
        self._transfer_offer: Offer | None = None
        #: what transports keep for all sockets of this context, by name; the context closes it
        self.shared: dict[str, Any] = {}
        #: of these what tensors are made in: empty without `empty`
        self.lent: dict[str, Any] = {}
        self.reactor = Reactor()
        self.pool = core.Pool()
        self.flusher = core.Flusher()
        #: counts of closed sockets and lost peers, for the metrics
        self.tally = Tally()
        self.closed = False
        self.forked = False
        self._transfer_started = False
        self._transfer_lock = threading.RLock()
        self._transfer_sockets: weakref.WeakSet[Socket] = weakref.WeakSet()
        self._transfer_logged: set[str] = set()
        self._transfer_metrics: Any = None
        self._transfer_registered: set[Registration] = set()
        _live.add(self)
        _set_hooks()
        if metrics_port is not None or registry is not None:
            with undivided(), comes_with("metrics", "a context with metrics"):
                from transfer.metrics import prometheus as metrics

            self._transfer_metrics = metrics.serve(self, port=metrics_port, registry=registry)
        self._transfer_complete = True

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if self._transfer_complete and name[:1] != "_":
                check_name(self, name)
            super().__setattr__(name, value)

    @classmethod
    def instance(cls, io_threads: int = 1) -> Self:
        """Returns the context that all parts of a program may share; a new one after `term` or a fork.

        Args:
            io_threads: ignored; present for pyzmq.
        """
        with undivided(), Context._instance_lock:
            found: Self | None = Context._transfer_instances.get(cls)
            if found is None or found.closed or found.forked:
                found = Context._transfer_instances[cls] = cls(io_threads)
            return found

    @property
    def defaults(self) -> Defaults:
        """Default values of the options of new sockets."""
        return self._transfer_defaults

    @defaults.setter
    def defaults(self, defaults: Defaults) -> None:
        self._transfer_defaults = defaults
        #: of new sockets: the values of options, by name, and attributes of the core
        self.option_values, self.core_values = initial_values(defaults), core_values(defaults)

    @property
    def offer(self) -> Offer:
        """The transports that peers are offered, detected at the first connection: it probes the hardware."""
        if self._transfer_offer is None:
            self._transfer_offer = offer(self.transport_config, self.credentials.security.encrypt)
        return self._transfer_offer

    # -- sockets -------------------------------------------------------------------------------

    def socket(
        self,
        socket_type: SocketType | str | Enum,
        *,
        pattern: type[Pattern] | None = None,
        **options: Unpack[SocketOptions],
    ) -> Socket:
        """Makes a socket.

        Args:
            socket_type: `transfer.PUSH`, "PUSH", or the member of that name of another enumeration.
            pattern: a class derived from `patterns.Pattern` with this `socket_type`; it replaces the rules
                of the type.
            **options: socket options by name, for instance `linger=0`.

        Raises:
            UsageError: a bare number, which does not identify a type.
            ArgumentError: there is no such type.
            OptionError: an option or its value is not valid.
            ContextTerminated: the context is terminated.
        """
        self.check()
        made: Socket = self._socket_class()(self, socket_type, pattern)
        try:
            for name, value in options.items():
                made.set(name, value)
        except BaseException:
            made.close(0)
            raise
        return made

    def _socket_class(self) -> type:
        from transfer.sockets.socket import socket_class

        return socket_class(self.core)

    def empty(self, shape: Any, dtype: Any = "float32", *, like: Any = None) -> Any:
        """Makes an uninitialized tensor in memory that peers on this host can receive without a copy.

        Sending it by `send_tensor` returns a tracker. Until the tracker is done the peer reads the same
        memory, so do not write to it before. Peers on other hosts receive the bytes as of any other tensor.
        The context reuses the memory when the tensor and all of its views are deleted.

        Args:
            shape: a number or a sequence of numbers, in elements.
            dtype: a name, or a type of numpy or torch; "float32" by default.
            like: the kind of tensor, as in `recv_tensor`: numpy by default, `torch` for torch.

        Raises:
            UsageError: the shape is not valid.
            NotATensor: the dtype or `like` is not supported.
            InternalError: there is no memory.
        """
        with undivided():
            from transfer.tensors.empty import empty

        self.check()
        return empty(self._transfer_allocate_shared, shape, dtype, like)

    def _transfer_allocate_shared(self, nbytes: int) -> Any:
        # Also where no peer may share it: `send_tensor` must return a tracker whatever the variables are.
        if not nbytes or not hasattr(os, "memfd_create"):
            return self.pool.lease(nbytes)
        with undivided():
            from transfer.transports.shm.blocks import NAME, Blocks

        with self._transfer_lock:
            blocks = self.shared.get(NAME)
            if blocks is None:
                blocks = self.shared[NAME] = self.lent[NAME] = Blocks(self.core)
        return blocks.allocate(nbytes)

    def register(self, tensor: Any) -> Registration:
        """Registers a tensor's memory with the network card, once for many sends.

        Only rdma needs it: `send_tensor(tensor, copy=False)` of the tensor, or of a part of it, then neither
        registers nor copies. Before the first connection the device is not open, and the request is kept
        until then. Where no transport needs it, nothing happens and `reason` of the result says why.

        Args:
            tensor: a contiguous tensor. The Registration holds it until it is closed.

        Returns:
            A Registration: a context manager; the context closes it, too.

        Raises:
            NotATensor: the object is no tensor.
            UsageError: the tensor is not contiguous.
            RegistrationError: the open device refuses.
        """
        from transfer.sockets.registration import register

        self.check()
        made = register(self, tensor)
        self._transfer_registered.add(made)
        if self.closed:  # another thread closed the context
            made.close()
        return made

    def is_shared(self, data: Any) -> bool:
        """Returns whether all of these bytes lie in memory of `empty`."""
        blocks = self.shared.get("local.blocks")
        return blocks is not None and bool(blocks.holds(data))

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics, also where `metrics_port` was 0; None: they are not served."""
        return None if self._transfer_metrics is None else self._transfer_metrics.port

    @property
    def sockets(self) -> list[Socket]:
        """The open sockets; in a forked child none, since they belong to the parent."""
        if self.forked:  # before the lock, which a thread of the parent may hold for ever
            return []
        with self._transfer_lock:
            return [socket for socket in self._transfer_sockets if not socket.closed]

    def start(self) -> None:
        """Makes the reactor serve the flusher. Sockets call it before the first bind or connect."""
        if self._transfer_started:
            self.check()
            return
        with self._transfer_lock:
            self.check()
            if not self._transfer_started:
                self._transfer_started = True
                # No reference to this context: an object that the reactor's thread refers to is never freed.
                self.reactor.register(self.flusher.fileno(), READABLE, partial(_reap, self.flusher))

    def check(self) -> None:
        """Raises ForkedError or ContextTerminated."""
        if self.forked:
            raise ForkedError(
                "this context was made before fork",
                hint="make the context in the child, or start processes by spawn or forkserver",
            )
        if self.closed:
            raise ContextTerminated("the context is terminated")

    def log_once(self, text: str) -> None:
        """Logs a warning, once for each text."""
        with self._transfer_lock:
            if text in self._transfer_logged:
                return
            self._transfer_logged.add(text)
        logger.warning(text)

    # -- the end -------------------------------------------------------------------------------

    def term(self) -> None:
        """Closes all open sockets, each after its linger, and ends the threads. Idempotent.

        Blocking calls of other threads raise Closed. An open socket causes a ResourceWarning. It blocks for
        at most the longest linger.
        """
        for socket in self.sockets:
            warnings.warn(f"unclosed {socket!r}", ResourceWarning, stacklevel=2, source=socket)
        self.destroy()

    def destroy(self, linger: float | None = None) -> int:
        """Closes all sockets and ends the threads. Idempotent.

        Args:
            linger: milliseconds for each socket, -1 without limit; None uses the option of each socket.

        Returns:
            The number of messages that were not sent.
        """
        linger = linger_of(linger)
        if self.forked:
            return 0
        with self._transfer_lock:
            if self.closed:
                return 0
            sockets = [socket for socket in self._transfer_sockets if not socket.closed]
            self.closed = True
        try:
            return self._transfer_close_all(sockets, linger)
        except BaseException:  # Ctrl-C: the others do not wait
            uninterrupted(partial(self._transfer_close_all, sockets, 0), 0)
            raise
        finally:
            self._transfer_end_parts()

    def _transfer_end_parts(self) -> None:
        if self._transfer_metrics is not None:
            self._transfer_metrics.close()
        if self._transfer_started:
            try:
                self.reactor.unregister(self.flusher.fileno())
            except (OSError, ValueError):
                logger.debug("the flusher was closed before its context")
        self.reactor.close()
        for registration in list(self._transfer_registered):
            registration.close()
        for kept in self.shared.values():
            kept.close()
        self.flusher.reap()
        self.flusher.close()
        self.pool.close()
        _live.discard(self)

    @staticmethod
    def _transfer_close_all(sockets: list[Socket], linger: float | None) -> int:
        """Closes them within the longest of their lingers, not the sum."""
        begin = time.monotonic()
        unsent = 0
        for socket in sockets:
            own = socket.linger if linger is None else linger
            spent = (time.monotonic() - begin) * 1000
            unsent += socket.close(own if own < 0 else max(0.0, own - spent))
        return unsent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and not self.forked:
            self.destroy(0)

    def __repr__(self) -> str:
        state = "terminated" if self.closed else f"{len(self.sockets)} sockets"
        return f"<{type(self).__name__} {state}>"

    def dump(self) -> dict[str, Any]:
        """The state of this context, its sockets and their peers, for logs and bug reports.

        Returns what `json.dumps` takes: the core, what peers are offered, and for each open socket its type,
        endpoints, changed options and peers with their counts. Thread-safe; it waits for nothing.
        """
        with undivided():
            from transfer.sockets.dump import dump_context

        return dump_context(self)

    def _transfer_add(self, socket: Socket) -> None:
        with self._transfer_lock:
            self.check()
            self._transfer_sockets.add(socket)


def _reap(flusher: Any, events: int) -> None:
    flusher.reap()


def _check_settings(defaults: Any, core: Any, security: Any, registry: Any) -> None:
    """Raises ArgumentError for values that would fail later, or not at all."""
    if not isinstance(defaults, Defaults):
        raise wrong("defaults", defaults, "a transfer.sockets.defaults.Defaults")
    if core is not None and not hasattr(core, "SocketBase"):
        raise wrong(
            "core",
            core,
            "a module: native or pure of transfer.transports.core (or set TRANSFER_CORE)",
        )
    if not (registry is None or hasattr(registry, "register")):
        raise wrong("registry", registry, "a prometheus_client.CollectorRegistry")
    if not (security is None or isinstance(security, Security)):
        raise wrong("security", security, "a transfer.Security: Security(token_file=...)")


def _set_hooks() -> None:
    """Sets the hooks once, with the first context: importing changes nothing."""
    global _hooks_set
    if not _hooks_set:
        _hooks_set = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Sends at interpreter exit what it can within a bounded time, and never hangs."""
    threading.excepthook = _without_closed_errors(threading.excepthook)
    deadline = time.monotonic() + config.exit_linger()
    unclosed = []
    for context in list(_live):
        for socket in context.sockets:
            unclosed.append((f"unclosed {socket!r}", socket))
            left = max(0.0, deadline - time.monotonic()) * 1000
            try:
                socket.close(left if socket.linger < 0 else min(left, socket.linger))
            except Exception:  # an error of one must not affect the others
                logger.exception("%r cannot be closed at the end of the interpreter", socket)
        try:
            context.destroy(0)
        except Closed:
            logger.debug("a context was closed while the interpreter ended")
    for text, socket in unclosed:  # last: where warnings are errors, the first one ends this function
        warnings.warn(text, ResourceWarning, stacklevel=1, source=socket)


def _without_closed_errors(hook: Any) -> Any:
    """A hook for threads without the traceback of daemons whose call ends because the interpreter exits."""

    def without_closed(args: threading.ExceptHookArgs) -> None:
        ended = isinstance(args.exc_value, Closed)
        if not (ended and args.thread is not None and args.thread.daemon):
            hook(args)

    return without_closed


def _after_fork() -> None:
    """Leaves the parent's objects alone in the child; the child's calls raise ForkedError."""
    for context in list(_live):
        context.forked = True
        _inherited.append(context)
        for socket in list(context._transfer_sockets):
            socket._forked()
            _inherited.append(socket)
    _live.clear()
