"""transfer moves tensors between processes with ZeroMQ's messaging patterns.

Importing this package loads no submodule and starts no thread; each name is loaded on first use.

__main__       the command `transfer`, as `python -m transfer`
asyncio        sockets whose blocking calls are coroutines, with the names and semantics of `zmq.asyncio`
broker         the broker: one process and one folder of data for all protocols; see `docs/broker.md`
certificates   makes a certificate authority and certificates that it signs
cli            the command line
config         the environment variables of the layers above the transports
constants      constants of the API; their numbers are ZeroMQ's
doctor         checks what works on this machine, with hints for what does not
errors         the errors by a short name: `from transfer.errors import Again`
http           the HTTP client of the commands, and TLS for this process's HTTP servers
json_text      decodes a peer's JSON to values that can be encoded again
log            one durable append-only log for messages of many topics and for state; see `docs/log.md`
log_output     shows what the library logs: by the variable TRANSFER_LOG in a program, by `-v` in a command
lz4_frame      LZ4 frames: compresses only when it pays, and never allocates more than the limit
metrics        metrics for Prometheus: `transfer.metrics.register(context)`
mooncake       the API of Mooncake's communicator: `from transfer import ZmqInterface, ZmqSocketType`
objects        Python objects as bytes, without pickle: what `send_pyobj` and `recv_pyobj` use
peer_faults    counts unexpected exceptions that peers' bytes cause, and logs them at a bounded rate
sockets        what users send and receive with, and their connections
spark          writes DataFrames for training, and reads runs
spool          the spool keeps rows between Spark and trainers; see `docs/spool.md`
steady_clock   a time of day that does not jump: the wall clock at the process's start, plus the elapsed time
tensors        tensors on the wire and in files: numpy, torch, DLPack, the buffer protocol
throttled_log  limits log lines that any peer can cause: a few of each kind, and the number of omitted ones
torch          PyTorch data sets whose rows arrive on a PULL socket, or are read from a run in a spool
units          sizes and times as people write them: in flags, variables and files
zmq            pyzmq's API over `transfer`: with `import transfer.zmq as zmq` a program runs unchanged
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transfer.transports.forking import undivided as _undivided

if TYPE_CHECKING:
    from transfer import (
        asyncio as asyncio,
        metrics as metrics,
        mooncake as mooncake,
        tensors as tensors,
        zmq as zmq,
    )
    from transfer.constants import (
        DEALER as DEALER,
        DONTWAIT as DONTWAIT,
        NOBLOCK as NOBLOCK,
        PAIR as PAIR,
        POLLERR as POLLERR,
        POLLIN as POLLIN,
        POLLOUT as POLLOUT,
        PUB as PUB,
        PULL as PULL,
        PUSH as PUSH,
        REP as REP,
        REQ as REQ,
        ROUTER as ROUTER,
        SNDMORE as SNDMORE,
        SUB as SUB,
        XPUB as XPUB,
        XSUB as XSUB,
    )
    from transfer.mooncake import (
        MessageCodec as MessageCodec,
        ZmqConfig as ZmqConfig,
        ZmqInterface as ZmqInterface,
        ZmqSocketOption as ZmqSocketOption,
        ZmqSocketType as ZmqSocketType,
    )
    from transfer.sockets.context import Context as Context
    from transfer.sockets.monitor import Event as Event, EventKind as EventKind, Monitor as Monitor
    from transfer.sockets.peer import PeerInfo as PeerInfo
    from transfer.sockets.poller import Poller as Poller
    from transfer.sockets.socket import Socket as Socket
    from transfer.sockets.tracker import Tracker as Tracker
    from transfer.transports import errors as errors
    from transfer.transports.core.wire import SocketType as SocketType
    from transfer.transports.errors import (
        AddressError as AddressError,
        AddressInUse as AddressInUse,
        AddressNotAvailable as AddressNotAvailable,
        Again as Again,
        ArgumentError as ArgumentError,
        Broken as Broken,
        Closed as Closed,
        ContextTerminated as ContextTerminated,
        DeviceError as DeviceError,
        Fatal as Fatal,
        ForkedError as ForkedError,
        HandshakeError as HandshakeError,
        InDoubt as InDoubt,
        InternalError as InternalError,
        LogDamaged as LogDamaged,
        LogFull as LogFull,
        LogInUse as LogInUse,
        MessageRefused as MessageRefused,
        MissingLibrary as MissingLibrary,
        NoSuchAttribute as NoSuchAttribute,
        NotATensor as NotATensor,
        NotRegistered as NotRegistered,
        NotSupported as NotSupported,
        OptionError as OptionError,
        OptionOverflow as OptionOverflow,
        OutOfDescriptors as OutOfDescriptors,
        PeerError as PeerError,
        PickleRefused as PickleRefused,
        ProtocolError as ProtocolError,
        RegistrationError as RegistrationError,
        SecurityError as SecurityError,
        StateError as StateError,
        TensorMismatch as TensorMismatch,
        TransferError as TransferError,
        Unroutable as Unroutable,
        UsageError as UsageError,
    )
    from transfer.transports.security.settings import Security as Security

    __version__: str

_HOMES = {
    "transfer.constants": (
        "REQ REP PUB SUB PUSH PULL PAIR DEALER ROUTER XPUB XSUB "
        "DONTWAIT NOBLOCK SNDMORE POLLIN POLLOUT POLLERR"
    ),
    "transfer.sockets.context": "Context",
    "transfer.sockets.socket": "Socket",
    "transfer.sockets.poller": "Poller",
    "transfer.sockets.tracker": "Tracker",
    "transfer.sockets.peer": "PeerInfo",
    "transfer.sockets.monitor": "Monitor Event EventKind",
    "transfer.mooncake": "MessageCodec ZmqInterface ZmqConfig ZmqSocketType ZmqSocketOption",
    "transfer.transports.security.settings": "Security",
    "transfer.transports.core.wire": "SocketType",
    "transfer.transports.errors": (
        "TransferError UsageError PeerError InternalError StateError NotSupported OptionError AddressError "
        "ArgumentError MissingLibrary NoSuchAttribute NotRegistered OptionOverflow "
        "AddressInUse AddressNotAvailable NotATensor TensorMismatch Unroutable SecurityError ForkedError "
        "MessageRefused PickleRefused "
        "ProtocolError HandshakeError DeviceError RegistrationError OutOfDescriptors LogDamaged InDoubt "
        "LogInUse LogFull Closed ContextTerminated Broken Again Fatal"
    ),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = {
    name: f"transfer.{name}"
    for name in ("asyncio", "errors", "metrics", "mooncake", "spark", "tensors", "torch", "zmq")
}

if not TYPE_CHECKING:  # a type checker knows the names above, and refuses others
    __all__ = [*_WHERE]

    def __getattr__(name: str) -> Any:
        if name in _WHERE:
            with _undivided():  # one thread may load the module while another one forks
                value = getattr(importlib.import_module(_WHERE[name]), name)
            globals()[name] = value
            return value
        if name == "__version__":  # looked up when it is asked for: it takes longer than all of this module
            with _undivided():
                value = globals()[name] = _installed_version()
            return value
        if name in _MODULES:
            with _undivided():
                return importlib.import_module(_MODULES[name])
        raise AttributeError(f"module 'transfer' has no attribute {name!r}")


def _installed_version() -> str:
    """The version of the installed distribution; `0+unknown` for a checkout that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("tensor-transfer")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_MODULES, "__version__"})
