"""Every error of the project: three families and four plain classes.

* `UsageError`: the caller's mistake. Correct the call.
* `PeerError`: the peer broke the protocol, and its connection has ended; or a broker refuses.
* `InternalError`: a fault of this library or of the machine. Please report it.

The plain ones are `Closed` (you closed it), `Broken` (the connection ended; the cause is chained),
`Again` (it would block, or the time-out expired) and `Fatal` (do not retry).

Each class carries the `errno` that a ZeroMQ program expects, so that `transfer.zmq` needs no map.
"""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar

_Error = TypeVar("_Error", bound=BaseException)

# ZeroMQ's own numbers (zmq.h: ZMQ_HAUSNUMERO = 156384712), for programs that compare them.
EFSM = 156384763
ETERM = 156384765


def describe(errno: int | None) -> str:
    """The text of an error number, ZeroMQ's own numbers included."""
    if errno is None:
        return ""
    return _OWN_TEXTS.get(errno) or os.strerror(errno)


_OWN_TEXTS = {
    EFSM: "Operation cannot be accomplished in current state",
    ETERM: "Context was terminated",
}


class ZMQBaseError(Exception):
    """Root of the errors that a ZeroMQ program knows. It stands here, above ours, because `except` looks at
    real base classes only: `transfer.zmq` has nothing to translate on the fast path."""


class ZMQError(ZMQBaseError):
    """An error with a number, constructed as in pyzmq: `ZMQError(errno, msg)`."""

    errno: int | None = None

    def __init__(self, errno: int | None = None, msg: str | None = None) -> None:
        if errno is not None:
            self.errno = errno
        super().__init__(msg or "")

    def __str__(self) -> str:
        return super().__str__() or describe(self.errno)

    @property
    def strerror(self) -> str:
        return str(self)


class TransferError(ZMQError):
    """Base of all errors raised on purpose.

    `hint` is the advice, appended to the text; `errno` is a number or None.
    """

    hint = ""

    def __init__(self, message: str = "", *, hint: str = "", errno: int | None = None) -> None:
        self.hint = hint
        super().__init__(errno, f"{message}\n  hint: {hint}" if hint else message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles text and attributes: the arguments of a class need not be its text."""
        return _unpickled, (type(self), self.args, dict(self.__dict__))


# --- the caller's mistake -------------------------------------------------------------------


def _unpickled(kind: type[TransferError], args: tuple[Any, ...], attributes: dict[str, Any]) -> TransferError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class UsageError(TransferError):
    """The caller made a mistake: correct the call, a retry cannot help."""

    errno = _errno.EINVAL


class StateError(UsageError):
    """The socket's pattern does not allow this call now, for instance two sends on a REQ."""

    errno = EFSM


class NotSupported(UsageError):
    """This socket type or this build has no such operation."""

    errno = _errno.ENOTSUP


#: of a message for a peer that sent no hello
TOO_NEW = "the peer sent no hello, so it does not know this kind of message"
PLAIN_HINT = "it takes one part: bytes, or a tensor of the nine basic types with at most four dimensions"


class MissingLibrary(NotSupported, ImportError):
    """A library that this call needs is not installed; the hint is the command that installs the extra."""


class NoSuchAttribute(NotSupported, AttributeError):
    """An attribute that a socket or context does not have was set; the hint has the nearest name."""


class ArgumentError(UsageError, TypeError):
    """The call does not accept this argument, for instance text for `send`, or NaN for a time-out."""


class NotRegistered(UsageError, KeyError):
    """The object to unregister is not registered with the poller."""

    def __str__(self) -> str:  # a KeyError's text is the repr of its argument
        return str(self.args[0])


class OptionError(UsageError, ValueError):
    """The option is unknown, or cannot have the value."""


class OptionOverflow(OptionError, OverflowError):
    """The number of a `transfer.zmq` option does not fit into libzmq's type, mostly 32 bits."""


class AddressError(UsageError, ValueError):
    """The endpoint cannot be parsed, its host is not found, or its scheme is unknown (EPROTONOSUPPORT)."""


class AddressInUse(UsageError):
    """Another socket listens there already; sockets of one context may share an endpoint."""

    errno = _errno.EADDRINUSE


class AddressNotAvailable(UsageError):
    """This machine has no such interface or address."""

    errno = _errno.EADDRNOTAVAIL


class SecurityError(UsageError):
    """A certificate, key or token cannot be used, or the endpoint would accept unauthenticated clients."""

    errno = _errno.EACCES


class NotATensor(UsageError, TypeError):
    """The object has neither DLPack nor a buffer, or a dtype that cannot be sent."""


class TensorMismatch(UsageError, ValueError):
    """`out=` or `like=` does not match the tensor that arrived. The next receive returns that message."""


class Unroutable(UsageError):
    """A ROUTER with `router_mandatory` has no peer with this identity."""

    errno = _errno.EHOSTUNREACH


class ForkedError(UsageError):
    """A child process used a socket that was made before `fork`."""

    errno = _errno.EINVAL


class PickleRefused(UsageError):
    """An object of a class that TRANSFER_PICKLE_ALLOW does not have was sent or arrived, or a pickle arrived
    without MOONCAKE_ALLOW_PICKLE=1."""


def install_hint(extra: str) -> str:
    """The command that installs an extra. pip takes the distribution that is installed, from no index; where
    none is, as in a checkout on `PYTHONPATH`, it needs the folder."""
    from importlib import metadata

    what = "tensor-transfer"
    try:
        metadata.version(what)
    except metadata.PackageNotFoundError:
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        what = folder if os.path.exists(os.path.join(folder, "pyproject.toml")) else what
    return f"pip install '{what}[{extra}]'"


def missing_library(what: str, error: ImportError, extra: str, otherwise: str = "") -> MissingLibrary:
    """The error where a library of one of our extras is missing. otherwise: what to do without it."""
    library = (error.name or "a library").partition(".")[0]
    named = {"dns": "dnspython", "zmq": "pyzmq"}.get(library, library)
    hint = install_hint(extra) + (f", or {otherwise}" if otherwise else "")
    made = MissingLibrary(f"{what} needs {named}", hint=hint)
    made.name = library
    return made


@contextmanager
def comes_with(extra: str, what: str, otherwise: str = "") -> Iterator[None]:
    """Around the imports of `what` that the extra `extra` installs. otherwise: what to do without them.
    Raises MissingLibrary."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "transfer":
            raise
        raise missing_library(what, error, extra, otherwise) from error


def not_a_buffer(given: object) -> ArgumentError:
    """The error of a send for an object that is not bytes-like."""
    hint = "give bytes, or anything with a buffer (bytearray, memoryview, a numpy array)"
    if isinstance(given, str):
        hint = "encode it: text.encode(); a socket's send_string() does so"
    elif isinstance(given, (list, tuple)):
        hint = "each part is bytes; a socket's send_multipart() sends parts, its send_json() lists of JSON"
    elif isinstance(given, (dict, int, float)) or given is None:
        hint = "a socket's send_json() sends what JSON can encode, its send_tensors() a dict of tensors"
    elif hasattr(given, "__dlpack__"):
        hint = "send_tensor() of a socket and publish_tensor() of a broker's client send tensors"
    return ArgumentError(f"a message is bytes, not {type(given).__name__}", hint=hint)


# --- the peer's -----------------------------------------------------------------------------


class PeerError(TransferError):
    """The peer broke the protocol, and its connection has ended; or a broker refused a message: correct it,
    the connection goes on."""

    errno = _errno.EPROTO


class ProtocolError(PeerError):
    """Bytes that are no valid frame. `reason` is a short constant word, used as a metric label;
    docs/errors.md lists them."""

    def __init__(self, reason: str, message: str = "", *, hint: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {message}" if message else reason, hint=hint)


class HandshakeError(PeerError):
    """The handshake failed. `reason` is a short constant word (docs/errors.md); `message` describes it,
    without that word."""

    def __init__(self, reason: str, message: str = "", *, hint: str = "") -> None:
        self.reason = reason
        self.message = message or reason
        super().__init__(f"{reason}: {message}" if message else reason, hint=hint)


# --- ours -----------------------------------------------------------------------------------


class InternalError(TransferError):
    """A guarantee inside this library was broken (report it), or the machine ran out of a resource."""

    errno = _errno.EFAULT


class OutOfDescriptors(InternalError):
    """The process has no file descriptor left: raise `ulimit -n`."""

    errno = _errno.EMFILE


class DeviceError(InternalError):
    """A device for RDMA, or a GPU, cannot be used. `reason` is a short constant word: no_device, permission,
    memlock, device_full, no_core, library, version, link, no_gid, no_pkey, device; for GPUs no_cuda, version,
    cuda."""

    errno = _errno.ENODEV

    def __init__(self, reason: str, message: str, *, hint: str = "", errno: int | None = None) -> None:
        self.reason = reason
        super().__init__(message, hint=hint, errno=errno)


class RegistrationError(InternalError):
    """Memory could not be registered with a device, or shown to a peer. `reason` is a short constant word:
    memlock, keys, memory, read_only, address, permission, peermem, dmabuf, unsupported, register; gpu,
    gpu_tried; staging (`gpu_staging=False`)."""

    errno = _errno.ENOMEM

    def __init__(self, reason: str, message: str, *, hint: str = "", errno: int | None = None) -> None:
        self.reason = reason
        super().__init__(message, hint=hint, errno=errno)


class LogDamaged(InternalError):
    """A synced record of the log has changed: the disk lost it, or another program changed the file. Nothing
    was repaired: restore the file. docs/log.md says what is served without it."""

    errno = _errno.EIO


class InDoubt(InternalError):
    """Writing or syncing the log failed: the records may be kept or not. Opening the log again shows which;
    appending them once more may keep them twice."""

    errno = _errno.EIO


class LogInUse(UsageError):
    """Another process, or another object in this one, has the log's folder open."""

    errno = _errno.EBUSY


# --- facts ----------------------------------------------------------------------------------


class Closed(TransferError):
    """The application closed the socket or its context, also while a call waited."""

    errno = _errno.ENOTSOCK


class ContextTerminated(Closed):
    """The application terminated the context while a call was waiting."""

    errno = ETERM


class Broken(TransferError):
    """The peer ended, or the network failed; the cause is chained. The socket reconnects by itself."""

    errno = _errno.ECONNRESET
    #: a peer uses the memory of the message for good
    keeps_memory = False


class MessageRefused(Broken):
    """The peer cannot receive this message, and ended the connection for it: it is larger than its
    `maxmsgsize`, has no memory for it, or cannot decode it. `reason` is a word of the peer's, such as
    too_large or no_memory. The message is not sent again, with `resend` neither."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        self.reason = reason
        super().__init__(f"the peer refused the message: {reason}", hint=hint)


class Again(TransferError):
    """It would block, or the time-out expired (`DONTWAIT`, `sndtimeo`, `rcvtimeo`, `timeout=`): try later, or
    look for the peer that does not connect."""

    errno = _errno.EAGAIN


class LogFull(Again):
    """The log has no room for the records, on the disk or within its limit; it kept none of them.

    It is backpressure: append again when consumers have acknowledged, or there is room.
    """

    errno = _errno.ENOSPC


class Fatal(TransferError):
    """A retry cannot help, for instance the policy `require` cannot be met: change the configuration that the
    text names."""


def unraised(error: _Error) -> _Error:
    """A copy with the same cause: of an error that is kept while it is raised, or raised again and again.
    Itself it would get the frames of each caller."""
    if not isinstance(error, TransferError):
        return error
    made = copy(error)
    made.__cause__ = error.__cause__
    return made


def without_frames(error: _Error) -> _Error:
    """Returns the error, to be kept, without the frames of it and its causes.

    Frames hold their locals. If one of those keeps the error, only the collector frees the cycle. An error
    that was being handled when it was raised may be the program's, and stays as it is.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = link.__context__ = None
        link = link.__cause__
    return error
