"""The options of a socket: attributes, and numbers for `setsockopt`. A change takes effect at once.

Those marked with an asterisk are for connections made later. Times are milliseconds, -1: without limit.

Attributes:
    sndhwm: messages queued for each peer; 0: no limit
    sndhwm_bytes: payload bytes queued for each peer; 0: no limit
    hwm: sets `sndhwm` and `rcvhwm`; reading returns `sndhwm`
    adaptive_hwm: milliseconds that a message should wait in a peer's queue; 0: off. The byte limit of each
        queue then follows what its peer receives in that time: at least 1 MiB, at most `sndhwm_bytes`.
        `peers()` shows it as `queue_limit`. All queues of the socket together take at most half of the free
        memory, also within a container's limit. PUB, and ROUTER without `router_mandatory`, drop messages at
        the lower limit. Messages in shared memory do not count
    rcvhwm: kept, without effect
    sndtimeo: time that a send may block
    rcvtimeo: time that a receive may block. Of a REQ of `transfer`: 30,000
    linger: time that `close` may take to send what is queued, and with `resend` to have it confirmed
    immediate: True: only peers that are connected get messages, and a send without one waits. False: an
        endpoint gets messages as soon as `connect` was called, and they queue until its peer is there
    conflate: keep only the newest message
    resend: send again what a dead peer had not confirmed
    routing_id: this socket's identity at a ROUTER *
    identity: ZeroMQ's older name of `routing_id` *
    subscribe: of a SUB, can only be set: adds a subscription to the topics that begin with this
    unsubscribe: of a SUB, can only be set: takes back one such subscription
    router_mandatory: an unknown identity raises `Unroutable`
    router_handover: the newest connection takes an identity over
    xpub_verbose: True: an XPUB receives each subscription, False: a prefix's first one
    xpub_verboser: True: as `xpub_verbose`, and each peer's unsubscriptions, False: a prefix's last one
    xpub_manual: True: of the peer whose subscription was received last, `subscribe` and `unsubscribe` of the
        XPUB decide which messages it gets. False: its own subscriptions do
    xpub_nodrop: of a PUB or XPUB. True: a send waits until all subscribed peers have room
    xpub_welcome_msg: of a PUB or XPUB: a message that it sends each new peer first; empty: none *
    req_relaxed: a REQ may send again while its request is open, which replaces it
    req_correlate: a ROUTER sees the request's number
    maxmsgsize: bytes accepted in one message, all parts together; -1: 16 GiB
    checksum: CRC-32 on every frame sent
    gpu_staging: False: a tensor of 64 KiB or more on a GPU that would be copied through the host raises
        RegistrationError instead, with the reason
    balance: None: peers take turns. `"load"`: the PULL with the fewest unconfirmed messages (of a DEALER's
        and REQ's peers only unwritten messages count). A dict of weights by connected endpoint
        (`{"tcp://node7:5555": 3}`, 1 to 1000, others 1; spelt as in `connect`): turns by weight while all
        have room. Costs some microseconds a message. `conflate` disables it
    compression: `"lz4"`: compress when it pays
    copy_threshold: bytes from which `send(data)` does not copy `bytes`
    spin_us: microseconds of busy waiting before a receive sleeps
    reconnect_ivl: the longest first pause before connecting again: each pause is a random part of a limit
        that begins with this and doubles up to `reconnect_ivl_max` *
    reconnect_ivl_max: the longest pause; 0: pauses do not grow *
    connect_timeout: for one attempt to connect; 0: 30 s *
    handshake_ivl: for the hello of a peer; 0: 30 s *
    heartbeat_ivl: time without traffic after which a heartbeat is sent; 0: off
    heartbeat_timeout: silence after which a peer that promised heartbeats is disconnected; -1: off
    frame_timeout: time that a peer may be silent inside a message
    backlog: connections that the kernel keeps for a listener *
    sndbuf: bytes of the kernel's send buffer; -1: the kernel chooses
    rcvbuf: bytes of the kernel's receive buffer; -1: the kernel chooses
    tcp_keepalive: as in TCP; -1: the system's *
    tcp_keepalive_idle: as in TCP; -1: the system's *
    tcp_keepalive_intvl: as in TCP; -1: the system's *
    tcp_keepalive_cnt: as in TCP; -1: the system's *
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, TypeVar, overload

from transfer.transports.arguments import number as number_of, shown
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import ArgumentError, Closed, OptionError

if TYPE_CHECKING:
    from transfer.sockets.defaults import Defaults


G = TypeVar("G")
S = TypeVar("S")


class Option(Generic[G, S]):
    """One option as a descriptor. `check(value)` returns the value as kept, or raises ValueError.

    number: ZeroMQ's. attribute: the attribute of the core that holds it. effect: name of the
    socket's method to call after a change. Defaults: `defaults.py`.
    """

    def __init__(
        self,
        check: Callable[[Any], G],
        number: int | None = None,
        *,
        attribute: str = "",
        effect: str = "",
    ) -> None:
        self.check = check
        self.number = number
        self.attribute = attribute
        self.effect = effect
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        OPTIONS[name] = self
        if self.number is not None:
            NUMBERS[self.number] = name

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


#: the options that `Socket` declares, by name
OPTIONS: dict[str, Option[Any, Any]] = {}
#: names by ZeroMQ's number: of those options, and of other attributes and methods
NUMBERS: dict[int, str] = {
    6: "subscribe",
    7: "unsubscribe",
    13: "rcvmore",
    14: "fd",
    15: "events",
    16: "type",
    32: "last_endpoint",
    1000: "hwm",
    1004: "spin_us",
    1006: "copy_threshold",
}


def _wrong(name: str, value: object, error: Exception) -> OptionError:
    return OptionError(f"{name} cannot be {shown(value)}", hint=str(error))


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


def message(value: Any) -> bytes:
    """A check: bytes or text."""
    if not isinstance(value, str | bytes | bytearray | memoryview):
        raise ValueError("bytes or text")
    return value.encode() if isinstance(value, str) else bytes(value)


def compression(value: Any) -> CompressionOption:
    """A check: None or "lz4"."""
    if value in (None, "", False, 0):
        return None
    if value != "lz4":
        raise ValueError('None or "lz4"')
    return "lz4"


MILLISECONDS = whole(-1, 2**31 - 1, " of milliseconds (-1: endless)")
DURATION = whole(0, 2**31 - 1, " of milliseconds")
Number = Option[int, int]
Switch = Option[bool, bool]
BalanceOption = Literal["load"] | Mapping[str, int] | None
CompressionOption = Literal["lz4"] | None
#: what is taken for it: "", False and 0 are None
CompressionGiven = Literal["lz4", "", False, 0] | None


class SocketOptions(TypedDict, total=False):
    """The options that `Context.socket` takes as keyword arguments, for type checkers."""

    sndhwm: int
    rcvhwm: int
    hwm: int
    sndhwm_bytes: int
    adaptive_hwm: int
    sndtimeo: int
    rcvtimeo: int
    linger: int
    immediate: bool
    conflate: bool
    resend: bool
    routing_id: bytes | str
    identity: bytes | str
    subscribe: bytes | str
    unsubscribe: bytes | str
    router_mandatory: bool
    router_handover: bool
    xpub_verbose: bool
    xpub_verboser: bool
    xpub_manual: bool
    xpub_nodrop: bool
    xpub_welcome_msg: bytes | str
    req_relaxed: bool
    req_correlate: bool
    maxmsgsize: int
    checksum: bool
    gpu_staging: bool
    balance: BalanceOption
    compression: CompressionGiven
    copy_threshold: int
    spin_us: int
    reconnect_ivl: int
    reconnect_ivl_max: int
    connect_timeout: int
    handshake_ivl: int
    heartbeat_ivl: int
    heartbeat_timeout: int
    frame_timeout: int
    backlog: int
    sndbuf: int
    rcvbuf: int
    tcp_keepalive: int
    tcp_keepalive_cnt: int
    tcp_keepalive_idle: int
    tcp_keepalive_intvl: int


def initial_values(defaults: Defaults) -> dict[str, Any]:
    """The values of a new socket's options, by name, except for those that are attributes of the core."""
    return {name: getattr(defaults, name) for name, option in OPTIONS.items() if not option.attribute}


def core_values(defaults: Defaults) -> Sequence[tuple[str, int]]:
    """The attributes of the core that hold a new socket's other options, and their values."""
    attributes = {name: option.attribute for name, option in OPTIONS.items() if option.attribute}
    attributes |= {name: name for name in CORE}
    return [(attribute, getattr(defaults, name)) for name, attribute in attributes.items()]


def checked(name: str, value: Any, socket_type: SocketType) -> Any:
    """Checks that sockets of this type have the option, and the value of an attribute of the core.

    Raises OptionError.
    """
    only = OF_TYPES.get(name)
    unset = value is False or (type(value) is bytes and not value)  # as it is already
    if only is not None and socket_type not in only and not unset:
        names = " and ".join(kind.name for kind in only)
        what = f"{name} is an option of {names}, and this is a {socket_type.name}"
        raise OptionError(what, hint=f"set it on a {only[0].name}")
    if name == "conflate" and socket_type in (SocketType.XPUB, SocketType.XSUB) and not unset:
        what = f"conflate on an {socket_type.name} would drop subscriptions"
        raise OptionError(what, hint="set it on a PUB and its SUBs")
    if name not in CORE:
        return value
    try:
        return CORE[name](value)
    except ValueError as error:
        raise _wrong(name, value, error) from error


ACTIONS = {"subscribe", "unsubscribe"}
#: options that sockets of some types have
OF_TYPES = {
    "router_mandatory": (SocketType.ROUTER,),
    "router_handover": (SocketType.ROUTER,),
    "xpub_verbose": (SocketType.XPUB,),
    "xpub_verboser": (SocketType.XPUB,),
    "xpub_manual": (SocketType.XPUB,),
    "xpub_nodrop": (SocketType.PUB, SocketType.XPUB),
    "xpub_welcome_msg": (SocketType.PUB, SocketType.XPUB),
    "req_relaxed": (SocketType.REQ,),
    "req_correlate": (SocketType.REQ,),
}
#: further names of options, or of two at once
ALIASES = {"hwm", "identity"}
READ_ONLY = {"rcvmore", "fd", "events", "type", "last_endpoint"}
#: plain attributes of the core: it reads them for each message, so no descriptor wraps them
CORE = {"spin_us": whole(0, 2**31 - 1, " of microseconds"), "copy_threshold": whole(0)}


def name_of(option: int | str) -> str:
    """Returns the option's name for its number or for any spelling of its name."""
    names = {*NUMBERS.values(), *ALIASES}
    if not isinstance(option, str | int):
        what = f"an option is a name or a number, not {type(option).__name__}"
        raise ArgumentError(what, hint='for instance "rcvtimeo"; options: ' + ", ".join(sorted(names)))
    name = option.lower() if isinstance(option, str) else NUMBERS.get(int(option), "")
    if name not in names:
        near = get_close_matches(str(option).lower(), names, 1)
        hint = f"did you mean {near[0]}?" if near else "options: " + ", ".join(sorted(names))
        raise OptionError(f"there is no option {option!r}", hint=hint)
    return name
