"""transfer moves tensors between processes with ZeroMQ's messaging patterns.

Importing this package loads no submodule and starts no thread; each name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transfer.transports.forking import undivided as _undivided

if TYPE_CHECKING:
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
    from transfer.transports.errors import (
        AddressError as AddressError,
        Again as Again,
        Broken as Broken,
        Closed as Closed,
        Fatal as Fatal,
        NotSupported as NotSupported,
        ProtocolError as ProtocolError,
        SecurityError as SecurityError,
        StateError as StateError,
        TransferError as TransferError,
        Unroutable as Unroutable,
        UsageError as UsageError,
    )
    from transfer.transports.security.settings import Security as Security

__version__ = "0.1.0"

_HOMES = {
    "transfer.constants": (
        "REQ REP PUB SUB PUSH PULL PAIR DEALER ROUTER DONTWAIT NOBLOCK SNDMORE POLLIN POLLOUT POLLERR"
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
        "ArgumentError MissingLibrary NoSuchAttribute NotRegistered "
        "AddressInUse AddressNotAvailable NotATensor TensorMismatch Unroutable SecurityError ForkedError "
        "MessageRefused PickleRefused "
        "ProtocolError HandshakeError DeviceError RegistrationError OutOfDescriptors LogDamaged InDoubt "
        "LogInUse LogFull Closed ContextTerminated Broken Again Fatal"
    ),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = {
    "errors": "transfer.transports.errors",
    **{
        name: f"transfer.{name}"
        for name in ("asyncio", "metrics", "mooncake", "spark", "tensors", "torch", "zmq")
    },
}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        with _undivided():  # one thread may load the module while another one forks
            value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        with _undivided():
            return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'transfer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_MODULES})
