"""pyzmq's Context over `transfer`: defaults for sockets, shadows, and a `term` that wakes waiting calls."""

# Methods have pyzmq's types, and those of `transfer.Context` differ.
# mypy: disable-error-code="override"

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Self, overload

import transfer.sockets.context
from transfer.sockets.attributes import no_such
from transfer.sockets.defaults import PYZMQ
from transfer.transports.arguments import linger_of, whole
from transfer.transports.errors import ArgumentError, OptionOverflow
from transfer.transports.forking import undivided
from transfer.zmq.constants import ContextOption, Errno, SocketOption
from transfer.zmq.derived import close_front, declares
from transfer.zmq.error import ZMQError
from transfer.zmq.linger import Linger
from transfer.zmq.mechanisms import mechanism_of
from transfer.zmq.socket import Socket

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from transfer.zmq.option_attributes import ContextAttributes

    SocketT = TypeVar("SocketT", bound=Socket[Any], default=Socket[bytes], covariant=True)
    Made = TypeVar("Made")

    class Base(ContextAttributes, transfer.sockets.context.Context): ...
else:
    from typing import TypeVar

    SocketT = TypeVar("SocketT", covariant=True)
    Base = transfer.sockets.context.Context

__all__ = ["Context", "SyncContext"]

#: the options of `get`; the first two can be set, and none has an effect
_OPTIONS = {
    ContextOption.IO_THREADS: 1,
    ContextOption.MAX_SOCKETS: 1023,
    ContextOption.SOCKET_LIMIT: 65535,
    ContextOption.MAX_MSGSZ: 2147483647,
    ContextOption.MSG_T_SIZE: 64,
}


#: contexts whose `underlying` was read, for `shadow`
_by_address: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class ContextState(Base):
    """The state of a Context: a class, since programs call `super(zmq.Context, self).__init__()`."""

    __slots__ = ("_transfer_has_ended", "_transfer_names", "_transfer_original")

    sockopts: dict[int, Any]
    #: the context whose state a shadow has; None: it is no shadow
    _transfer_original: Context[Any] | None
    #: names of the state; all others are attributes of one object, as a program's class sets them
    _transfer_names: frozenset[str]

    _transfer_mechanism = staticmethod(mechanism_of)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_transfer_original", None)
        object.__setattr__(made, "_transfer_names", frozenset())
        return made

    def __init__(self, io_threads: int | Context[Any] = 1, shadow: Context[Any] | int | None = None) -> None:
        if isinstance(io_threads, Context):
            io_threads, shadow = 1, io_threads
        whole(io_threads, "io_threads")
        if shadow:
            if isinstance(shadow, int):
                shadow = _by_address.get(shadow)
            if not isinstance(shadow, Context):
                raise ZMQError(Errno.EINVAL, "only contexts of this package can be shadowed")
            # All state is shared, also later changes: a shadow is the same context.
            object.__setattr__(self, "_transfer_original", shadow._transfer_original or shadow)
            return
        before = self.__dict__.keys() | ()
        super().__init__(defaults=PYZMQ)
        self._transfer_options = {**_OPTIONS, ContextOption.IO_THREADS: int(io_threads)}
        self._transfer_lingering = Linger()
        self._transfer_warns = False
        self._transfer_ending = False
        self.__dict__["sockopts"] = {}
        object.__setattr__(self, "_transfer_names", frozenset(self.__dict__.keys() - before))


class Context(ContextState, Generic[SocketT]):
    """Makes sockets. Thread-safe.

    io_threads: stored and ignored. shadow (also as first argument): another context of this package; both
    then share all state, and only the class of new sockets differs.
    """

    _instance: Any = None
    _instance_pid = 0
    _instance_lock = threading.Lock()
    _socket_class: Any = Socket  # pyzmq's attribute is a class, that of `transfer` a method

    @classmethod
    def instance(cls, io_threads: int = 1) -> Self:
        """Returns the context that all parts of a program share; a new one after `term` or fork.

        As in pyzmq, a class without a context of its own has that of the class above it, if there is one.
        """
        with undivided(), Context._instance_lock:
            found = cls._instance
            if found is None or found.closed or cls._instance_pid != os.getpid():
                cls._instance = found = cls(io_threads=io_threads)
                cls._instance_pid = os.getpid()
            made: Self = found
            return made

    @classmethod
    def shadow(cls, address: Context[Any] | int) -> Self:
        """Returns a context of this class that shares another one, given as such or as `underlying`."""
        return cls(shadow=address)

    def __copy__(self, memo: Any = None) -> Self:
        return type(self)(shadow=self)

    __deepcopy__ = __copy__

    @property
    def underlying(self) -> int:
        """A number for this context, which `shadow` accepts. There is no libzmq behind it."""
        owner = self._transfer_original or self
        _by_address[id(owner)] = owner
        return id(owner)

    # -- sockets -------------------------------------------------------------------------------

    @overload
    def socket(
        self, socket_type: int | str | Enum, socket_class: None = ..., *, copy_threshold: int | None = ...
    ) -> SocketT: ...
    @overload
    def socket(
        self, socket_type: int | str | Enum, socket_class: Callable[..., Made], **kwargs: Any
    ) -> Made: ...
    def socket(self, socket_type: Any, socket_class: Any = None, **kwargs: Any) -> Any:
        """Makes a socket of this type, with the defaults that are set on the context."""
        if self.closed:
            # As in pyzmq: the program that terminated it gets ENOTSUP; else there is no such context.
            known = getattr(self, "_transfer_has_ended", False)
            raise ZMQError(Errno.ENOTSUP if known else Errno.EFAULT, "the context is terminated")
        made = (socket_class or self._socket_class)(self, socket_type, **kwargs)
        try:
            self._transfer_set_defaults(made)
        except BaseException:
            made.close(0)
            raise
        return made

    def _transfer_set_defaults(self, made: Any) -> None:
        for option, value in self.sockopts.items():
            try:
                made.setsockopt(option, value)
            except (ArgumentError, OptionOverflow):
                raise
            except ZMQError:
                continue  # it does not apply to this type, like SUBSCRIBE on a PUSH

    def setsockopt(self, opt: int, value: Any) -> None:
        """Sets a default for the sockets made from now on."""
        self.sockopts[opt] = value

    def getsockopt(self, opt: int) -> Any:
        """Returns the default for new sockets. Raises KeyError if none is set."""
        return self.sockopts[opt]

    # -- options -------------------------------------------------------------------------------

    def set(self, option: int, optval: int) -> None:
        """Sets an option of the context, which is stored and has no effect."""
        try:
            known = ContextOption(option)
        except ValueError:
            raise ZMQError(Errno.EINVAL, f"there is no context option {option!r}") from None
        self._transfer_options[known] = whole(optval, known.name, -1, 2**31 - 1)

    def get(self, option: int) -> int:
        """Returns an option of the context. Raises ZMQError (EINVAL)."""
        try:
            return self._transfer_options[ContextOption(option)]
        except (KeyError, ValueError):
            raise ZMQError(Errno.EINVAL, f"the context option {option!r} cannot be read") from None

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            upper, original = name.upper(), self._transfer_original
            if original is not None and name in original._transfer_names:
                object.__setattr__(original, name, value)
            elif name[:1] == "_" or name in self.__dict__ or declares(self, name):
                object.__setattr__(self, name, value)
            elif upper in SocketOption.__members__:
                self.sockopts[SocketOption[upper]] = value
            elif upper in ContextOption.__members__:
                self.set(ContextOption[upper], value)
            elif original is None and "sockopts" not in self.__dict__:
                super().__setattr__(name, value)
            else:
                options = [*SocketOption.__members__, *ContextOption.__members__]
                raise no_such(self, name, (option.lower() for option in options))

        def __getattr__(self, name: str) -> Any:
            upper, original = name.upper(), self._transfer_original
            if original is not None and name in original._transfer_names:
                return original.__dict__[name]
            if upper in ContextOption.__members__:
                try:
                    return self.get(ContextOption[upper])
                except ZMQError as error:
                    raise AttributeError(str(error)) from None
            options = (original or self).__dict__.get("sockopts", {})
            option = SocketOption.__members__.get(upper)
            if option is None or option not in options:
                raise AttributeError(f"{type(self).__name__} has no attribute or option {name}")
            return options[option]

        def __delattr__(self, name: str) -> None:
            option = SocketOption.__members__.get(name.upper())
            if name in self.__dict__:
                super().__delattr__(name)
            elif option is not None and option in self.sockopts:
                del self.sockopts[option]
            else:
                raise AttributeError(name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *ContextOption.__members__]

    # -- the end -------------------------------------------------------------------------------

    def term(self) -> None:
        """Ends the context: waiting calls raise ContextTerminated, and queued messages have their linger.

        Open sockets are closed, where libzmq would wait for their owners to do so.
        """
        self._transfer_end(None, Socket.close)

    def destroy(self, linger: float | None = None) -> int:
        """Closes all sockets, with this linger (ms) if given, and ends the context.

        The linger also applies to sockets that were closed before, so that the time is bounded.
        """
        return self._transfer_end(linger, close_front)

    def _transfer_end(self, linger: float | None, close: Callable[[Socket[Any], float | None], None]) -> int:
        linger = linger_of(linger)
        object.__setattr__(self, "_transfer_has_ended", True)
        with self._transfer_lock:
            if self._transfer_ending or self.forked:
                return 0
            self._transfer_ending = True
        try:
            for sock in self.sockets:
                if isinstance(sock, Socket):
                    if self._transfer_warns:
                        warnings.warn(f"unclosed {sock!r}", ResourceWarning, stacklevel=3, source=sock)
                    close(sock, linger)
            self._transfer_lingering.settle(linger)
        except BaseException:  # Ctrl-C: the caller may call it again, as with libzmq
            self._transfer_ending = False
            raise
        return super().destroy(0)

    def __exit__(self, *exc: object) -> None:
        self._transfer_warns = True
        self.destroy()

    def __del__(self) -> None:
        if (
            self._transfer_original is None
            and "sockopts" in self.__dict__
            and not self.closed
            and not self.forked
        ):
            self._transfer_end(0, Socket.close)

    def __repr__(self) -> str:
        count = len(self.sockets)
        state = f"{count} socket{'s' if count > 1 else ''}" if count else ""
        return f"<zmq.Context({state}) at {id(self):#x}{' closed' if self.closed else ''}>"


SyncContext = Context
