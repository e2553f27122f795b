"""Types and settings of the Mooncake API: socket types, options, configuration."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from transfer.transports.arguments import seconds, whole, wrong
from transfer.transports.errors import OptionError

T = TypeVar("T")


class ZmqSocketType(IntEnum):
    """Socket types by Mooncake's numbers, which also travel on the wire."""

    REQ = 0
    REP = 1
    PUB = 2
    SUB = 3
    PUSH = 4
    PULL = 5
    PAIR = 6


class ZmqSocketOption(IntEnum):
    """Options of `set_socket_option`. Times in milliseconds, sizes in bytes, marks in messages."""

    RCVTIMEO = 0
    SNDTIMEO = 1
    SNDHWM = 2
    RCVHWM = 3
    LINGER = 4
    RECONNECT_IVL = 5
    RCVBUF = 6
    SNDBUF = 7
    ROUTING_ID = 8


@dataclass_transform(kw_only_default=True)
def _settings(cls: type[T]) -> type[T]:
    """Makes the attributes of a class the keyword arguments of its `__init__`, for type checkers."""
    return cls


@_settings
class ZmqConfig:
    """Settings of a `ZmqInterface`, as keyword arguments or attributes. Raises OptionError for other names.

    Attributes:
        thread_count: how many requests of one REP may be in callbacks at the same time. By default one, so
            that callbacks need no locks.
        timeout_seconds: how long a request waits for its reply.
        pool_size: how many requests a REQ may have open with each peer; 0: any number.
        enable_rdma: endpoints without a scheme mean rdma://, which falls back to TCP with a warning.
        high_water_mark: messages that may be queued for a peer.

    The other settings are milliseconds, and bytes of the kernel's buffers.
    """

    thread_count: int = 8
    timeout_seconds: float = 30
    pool_size: int = 10
    enable_rdma: bool = False
    high_water_mark: int = 1000
    rcv_timeout_ms: int = 5000
    snd_timeout_ms: int = 5000
    linger_ms: int = 1000
    reconnect_interval_ms: int = 100
    rcv_buffer_size: int = 65536
    snd_buffer_size: int = 65536

    __slots__ = ("__dict__", "_given")

    if TYPE_CHECKING:

        @property
        def _given(self) -> set[str]:
            """Names of the settings that the program has set."""

    else:

        def __init__(self, **settings: Any) -> None:
            object.__setattr__(self, "_given", set())
            self.__dict__.update({name: getattr(ZmqConfig, name) for name in _SETTINGS})
            for name, value in settings.items():
                setattr(self, name, value)

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in _SETTINGS:
                raise OptionError(f"unknown setting {name!r}", hint="one of " + ", ".join(sorted(_SETTINGS)))
            self._given.add(name)
            super().__setattr__(name, value)

    @property
    def callbacks_at_once(self) -> int:
        """Number of callbacks of one REP that may run at the same time."""
        return self.thread_count if "thread_count" in self._given else 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZmqConfig) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ZmqConfig({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


_SETTINGS = frozenset(name for name in ZmqConfig.__annotations__ if name[0] != "_")


def as_config(given: ZmqConfig | Mapping[str, Any] | None) -> ZmqConfig:
    """Returns the configuration in any form of `initialize`. Raises OptionError, ArgumentError."""
    if given is None:
        return ZmqConfig()
    if isinstance(given, ZmqConfig):
        return _checked(given)
    if not isinstance(given, Mapping):
        raise wrong("config", given, "a ZmqConfig, a dict of its settings, or None")
    unknown = sorted(set(given) - _SETTINGS, key=str)
    if unknown:
        raise OptionError(
            f"unknown setting {', '.join(map(repr, unknown))}",
            hint="one of " + ", ".join(sorted(_SETTINGS)),
        )
    return _checked(ZmqConfig(**given))


#: settings that are whole numbers: the lowest value of each; -1 means without limit
_LOWEST = {
    "thread_count": 1,
    "pool_size": 0,
    "high_water_mark": 0,
    "rcv_timeout_ms": -1,
    "snd_timeout_ms": -1,
    "linger_ms": -1,
    "reconnect_interval_ms": 0,
    "rcv_buffer_size": 0,
    "snd_buffer_size": 0,
}


def _checked(config: ZmqConfig) -> ZmqConfig:
    """Checks the values before a socket uses them. Raises ArgumentError."""
    for name, lowest in _LOWEST.items():
        if isinstance(getattr(config, name), bool):
            raise wrong(name, getattr(config, name), "a whole number")
        whole(getattr(config, name), name, lowest, 2**31 - 1)
    if seconds(config.timeout_seconds, "timeout_seconds") is None:
        raise wrong("timeout_seconds", config.timeout_seconds, "a number of seconds; -1 waits without limit")
    if not isinstance(config.enable_rdma, bool):
        raise wrong("enable_rdma", config.enable_rdma, "True or False")
    return config


def as_socket_type(given: ZmqSocketType | int | str) -> ZmqSocketType:
    """Converts an enum, number or name to a socket type. Raises OptionError."""
    try:
        if isinstance(given, bool | float):  # 1 == True == 1.0
            raise ValueError
        return ZmqSocketType[given.upper()] if isinstance(given, str) else ZmqSocketType(given)
    except (KeyError, ValueError):
        names = ", ".join(kind.name for kind in ZmqSocketType)
        raise OptionError(f"{given!r} is no socket type", hint=f"one of {names}") from None


def as_option(given: ZmqSocketOption | int | str) -> ZmqSocketOption:
    """Converts an enum, number or name to an option. Raises OptionError."""
    try:
        if isinstance(given, bool | float):
            raise ValueError
        return ZmqSocketOption[given.upper()] if isinstance(given, str) else ZmqSocketOption(given)
    except (KeyError, ValueError):
        names = ", ".join(option.name for option in ZmqSocketOption)
        raise OptionError(f"{given!r} is no socket option", hint=f"one of {names}") from None
