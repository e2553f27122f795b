"""The options of a socket: attributes, and numbers for `setsockopt`. A change takes effect at once."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from transfer.sockets import balance
from transfer.transports.arguments import number as number_of, shown
from transfer.transports.core.wire import MAX_DATA
from transfer.transports.errors import ArgumentError, Closed, OptionError

if TYPE_CHECKING:
    from transfer.sockets.defaults import Defaults


G = TypeVar("G")
S = TypeVar("S")


class Option(Generic[G, S]):
    """One option as a descriptor. `check(value)` returns the value as kept, or raises ValueError.

    number: ZeroMQ's. attribute: the attribute of the core that holds it. effect: name of the
    socket's method to call after a change. default: a value, or the name of a field of Defaults.
    """

    def __init__(
        self,
        default: Any,
        check: Callable[[Any], G],
        number: int | None = None,
        *,
        attribute: str = "",
        effect: str = "",
    ) -> None:
        self.default = default
        self.check = check
        self.number = number
        self.attribute = attribute
        self.effect = effect
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, socket: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, socket: Any, owner: type | None = None) -> G: ...
    def __get__(self, socket: Any, owner: type | None = None) -> Any:
        if socket is None:
            return self
        return getattr(socket, self.attribute) if self.attribute else socket._values[self.name]

    def __set__(self, socket: Any, value: S) -> None:
        try:
            kept = self.check(value)
        except (ValueError, TypeError) as error:
            raise _wrong(self.name, value, error) from error
        if socket.closed:
            raise Closed("the socket is closed")
        if self.attribute:
            setattr(socket, self.attribute, kept)
        else:
            socket._values[self.name] = kept
        if self.effect:
            getattr(socket, self.effect)()

    def initial(self, defaults: Defaults) -> Any:
        return getattr(defaults, self.default[1:]) if _is_field(self.default) else self.default


def _wrong(name: str, value: object, error: Exception) -> OptionError:
    return OptionError(f"{name} cannot be {shown(value)}", hint=str(error))


def _is_field(default: object) -> bool:
    return isinstance(default, str) and default.startswith(".")


def whole(low: int, high: int = 2**63 - 1, of: str = "", *, truth: bool = False) -> Callable[[Any], int]:
    """A check: an integer from low to high. of: what it counts, for error texts. truth: also True, False."""
    wanted = f"a whole number{of}, " + (f"{low} or more" if high > 2**30 else f"{low} to {high}")

    def check(value: Any) -> int:
        even = isinstance(value, float) and value.is_integer()
        found = number_of(int(value) if even else value)
        if found is None or not low <= found <= high or (isinstance(value, bool) and not truth):
            raise ValueError(wanted)
        return found

    return check


def switch(value: Any) -> bool:
    """A check: a truth value or 0 or 1."""
    if value not in (0, 1, True, False):
        raise ValueError("True or False")
    return bool(value)


def name_of_peer(value: Any) -> bytes:
    """A check: up to 255 bytes that do not begin with a zero."""
    if not isinstance(value, str | bytes | bytearray | memoryview):
        raise ValueError("bytes or text")
    kept = value.encode() if isinstance(value, str) else bytes(value)
    if len(kept) > 255:
        raise ValueError("at most 255 bytes")
    if kept[:1] == b"\0":
        raise ValueError("identities that begin with a zero byte are given by a ROUTER")
    return kept


def compression(value: Any) -> str | None:
    """A check: None or "lz4"."""
    if value in (None, "", False, 0):
        return None
    if value != "lz4":
        raise ValueError('None or "lz4"')
    return "lz4"


_MS = whole(-1, 2**31 - 1, " of milliseconds (-1: endless)")
_DURATION = whole(0, 2**31 - 1, " of milliseconds")
_Number = Option[int, int]
_Switch = Option[bool, bool]


class SocketOptions:
    """The options as attributes of `Socket`, with ZeroMQ's numbers."""

    if TYPE_CHECKING:
        _values: dict[str, Any]

        def _check_forked(self) -> None: ...

    sndhwm = _Number(".send_high_water", whole(0), 23, effect="_limits_changed")
    rcvhwm = _Number(1000, whole(0), 24)
    sndhwm_bytes = _Number(".send_high_water_bytes", whole(0), 1001, effect="_limits_changed")
    sndtimeo = _Number(-1, _MS, 28, attribute="send_timeout")
    rcvtimeo = _Number(-1, _MS, 27, attribute="receive_timeout")
    linger = _Number(".linger", _MS, 17)
    reconnect_ivl = _Number(100, _MS, 18)
    reconnect_ivl_max = _Number(".reconnect_ivl_max", _DURATION, 21)
    sndbuf = _Number(-1, whole(-1, 2**31 - 1), 11, effect="_buffers_changed")
    rcvbuf = _Number(-1, whole(-1, 2**31 - 1), 12, effect="_buffers_changed")
    routing_id = Option[bytes, bytes | str](b"", name_of_peer, 5)
    maxmsgsize = _Number(MAX_DATA, whole(-1), 22, effect="_limits_changed")
    tcp_keepalive = _Number(-1, whole(-1, 1, truth=True), 34)
    tcp_keepalive_cnt = _Number(-1, whole(-1), 35)
    tcp_keepalive_idle = _Number(-1, whole(-1), 36)
    tcp_keepalive_intvl = _Number(-1, whole(-1), 37)
    checksum = _Switch(False, switch, 1002, effect="_limits_changed")
    compression = Option[str | None, str | None](None, compression, 1003, effect="_ways_changed")
    immediate = _Switch(".immediate", switch, 39)
    conflate = _Switch(False, switch, 54, effect="_ways_changed")
    router_mandatory = _Switch(False, switch, 33, effect="_pattern_changed")
    router_handover = _Switch(False, switch, 56)
    req_relaxed = _Switch(False, switch, 53, effect="_pattern_changed")
    req_correlate = _Switch(False, switch, 52, effect="_pattern_changed")
    heartbeat_ivl = _Number(".heartbeat_ivl", _DURATION, 75, effect="_checks_changed")
    heartbeat_timeout = _Number(".heartbeat_timeout", _MS, 77)
    frame_timeout = _Number(60_000, _MS, 1007, effect="_checks_changed")
    handshake_ivl = _Number(".handshake_ivl", _DURATION, 66)
    connect_timeout = _Number(0, _DURATION, 79)
    resend = _Switch(False, switch, 1005, effect="_ways_changed")
    adaptive_hwm = _Number(0, _DURATION, 1009, effect="_checks_changed")
    balance = Option[Any, Any](None, balance.checked, 1008, effect="_balance_changed")
    backlog = _Number(4096, whole(1, 65535), 19)

    def set(self, option: int | str, value: Any) -> None:
        """Sets an option by name or number.

        Args:
            option: a name ("rcvtimeo", in any case) or ZeroMQ's number.
            value: its new value, of the option's type.

        Raises:
            OptionError: there is no such option, or it cannot have this value.
        """
        name = _name(option)
        if name == "hwm":
            self.sndhwm = value
            self.rcvhwm = value
        elif name in ACTIONS:
            getattr(self, name)(value)
        elif name in READ_ONLY:
            raise OptionError(f"{name} can only be read")
        else:
            setattr(self, name, value)

    def get(self, option: int | str) -> Any:
        """Returns the value of an option, by name or number. Raises OptionError."""
        name = _name(option)
        if name in ACTIONS:
            raise OptionError(f"{name} can only be set")
        return self.sndhwm if name == "hwm" else getattr(self, name)

    setsockopt = set
    getsockopt = get

    @property
    def hwm(self) -> int:
        """Both high-water marks, in messages; reading returns the one for sending."""
        value: int = self.sndhwm
        return value

    @hwm.setter
    def hwm(self, value: int) -> None:
        self.set("hwm", value)

    @property
    def identity(self) -> bytes:
        """ZeroMQ's older name of `routing_id`."""
        value: bytes = self.routing_id
        return value

    @identity.setter
    def identity(self, value: bytes | str) -> None:
        self.routing_id = value

    def _checked(self, name: str, value: Any) -> Any:
        self._check_forked()
        return checked(name, value)

    def _initial_values(self, defaults: Defaults) -> dict[str, Any]:
        return {name: option.initial(defaults) for name, option in OPTIONS.items() if not option.attribute}


def checked(name: str, value: Any) -> Any:
    """Checks the value of an option that is an attribute of the core. Raises OptionError."""
    if name not in CORE:
        return value
    try:
        return CORE[name][1](value)
    except ValueError as error:
        raise _wrong(name, value, error) from error


OPTIONS: dict[str, Option[Any, Any]] = {
    name: option for name, option in vars(SocketOptions).items() if isinstance(option, Option)
}
ACTIONS = {"subscribe", "unsubscribe"}
READ_ONLY = {"rcvmore", "fd", "events", "type", "last_endpoint"}
#: plain attributes of the core: it reads them for each message, so no descriptor wraps them
CORE = {"spin_us": (1004, whole(0, 2**31 - 1, " of microseconds")), "copy_threshold": (1006, whole(0))}
NUMBERS: dict[int, str] = {
    **{option.number: option.name for option in OPTIONS.values() if option.number is not None},
    **{number: name for name, (number, _) in CORE.items()},
    6: "subscribe",
    7: "unsubscribe",
    13: "rcvmore",
    14: "fd",
    15: "events",
    16: "type",
    32: "last_endpoint",
    1000: "hwm",
}
_NAMES = set(NUMBERS.values()) | {"identity"}


def _name(option: int | str) -> str:
    """Returns the option's name for its number or for any spelling of its name."""
    if not isinstance(option, str | int):
        what = f"an option is a name or a number, not {type(option).__name__}"
        raise ArgumentError(what, hint='for instance "rcvtimeo"; options: ' + ", ".join(sorted(_NAMES)))
    name = option.lower() if isinstance(option, str) else NUMBERS.get(int(option), "")
    if name not in _NAMES:
        near = get_close_matches(str(option).lower(), _NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else "options: " + ", ".join(sorted(_NAMES))
        raise OptionError(f"there is no option {option!r}", hint=hint)
    return name
