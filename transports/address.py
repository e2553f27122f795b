"""Endpoints as users write them: `scheme://where?options`. Pure: this module looks up no name.

tcp://127.0.0.1:5555   tcp://*:5555   tcp://[::1]:5555   tcp://eth0:5555   tcp://localhost:*
rdma://node7:5555?policy=require      ucx://node7:5555
ipc:///tmp/queue.sock  ipc://@name (abstract, Linux)      inproc://name
dns://trainers.training.svc:5555      all addresses of the name; see discovery/
registry://broker:5580/trainers       all programs that a broker lists under this name
node7:5555             without a scheme only where the caller allows it
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from urllib.parse import parse_qsl

from transfer.transports import plugins
from transfer.transports.errors import AddressError

#: auto: the best that both sides have. prefer: fall back, and log it. require: fail instead.
POLICIES = ("auto", "prefer", "require")

#: best first; every pair has the last, since the hello travels on it. Transports of other distributions come
#: after the first: they were installed on both sides to be used
RANKING = ("local", "rdma", "ucx", "tcp")
LOCAL, BASE = RANKING[0], RANKING[-1]

#: where a SUB begins in the messages that a publisher keeps
BEGINS = ("old", "new")
_OPTIONS = {"policy": POLICIES, "begin": BEGINS}

#: schemes whose endpoint has a name behind `://`, and no host and port
_NAMED = frozenset({"ipc", "inproc"})

#: schemes whose endpoint stands for many: a name service lists them
_DIRECTORIES = frozenset({"dns", "registry"})

#: schemes whose endpoint is a host and a port and nothing else
_MET = ("tcp", "rdma", "ucx", "dns")

#: schemes that an endpoint may have; other distributions add theirs by entry points of this group
ENTRY_POINTS = "transfer.transports"
#: the same for transports to which peers upgrade after they have met by TCP
UPGRADE_POINTS = "transfer.upgrades"
_GROUPS = (ENTRY_POINTS, UPGRADE_POINTS)
SCHEMES = ("tcp", "rdma", "ucx", *sorted(_NAMED), *sorted(_DIRECTORIES))

#: sun_path holds 108 bytes: the path and its NUL, or the NUL of the abstract space and the name
MAX_IPC_PATH = 107
#: libzmq has the same limit for names
MAX_INPROC_NAME = 255
#: names under which programs register: letters, digits and . _ - inside
REGISTRY_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?\Z")

#: a scheme with a part of its `://`; the rest is not only a port, which would follow a host
_BROKEN = re.compile(r"([A-Za-z]+)(:*)(/{0,2})(?!\d+\Z|[:/])(.+)\Z")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z")
# Host names, with the underscore that many private networks use; interface names (eth0, br-1a, eth0.100).
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.@-]*[A-Za-z0-9_])?\.?\Z")
_MAX_HOST = 253


@dataclass(frozen=True, slots=True)
class Address:
    """One endpoint, parsed. `str()` returns its shortest form.

    scheme: in lower case. host: a name, a number without brackets, an interface, or "*"; empty
    for ipc and inproc. port: 0 stands for any free one. path: of ipc ("@" first for an abstract
    name), the name of inproc, or the name in a registry. policy, begin: from `?policy=&begin=`, or None.
    server_name: the name that the peer's certificate has to hold, where the host is a number that a name
    service found; not part of the text.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    policy: str | None = None
    server_name: str = ""
    begin: str | None = None

    def __str__(self) -> str:
        query = ""
        if self.policy or self.begin:
            options = [f"{name}={value}" for name in _OPTIONS if (value := getattr(self, name))]
            query = f"?{'&'.join(options)}"
        if self.scheme in _NAMED:
            return f"{self.scheme}://{self.path}{query}"
        path = f"/{self.path}" if self.path else ""
        return f"{self.scheme}://{format_host(self.host)}:{self.port}{path}{query}"

    @property
    def is_directory(self) -> bool:
        """It stands for every endpoint that a name service lists: for connecting only."""
        return self.scheme in _DIRECTORIES

    @property
    def is_named(self) -> bool:
        """It has a path or a name, and no host and port."""
        return self.scheme in _NAMED

    @property
    def is_abstract(self) -> bool:
        return self.path.startswith("@")

    @property
    def is_wildcard(self) -> bool:
        """It can be bound and not connected to: every interface, or a port that the system picks."""
        return not self.is_named and (self.host == "*" or self.port == 0)

    @property
    def needs_lookup(self) -> bool:
        """The host is a name, and resolving it may take long."""
        return not self.is_named and self.host not in ("*", "localhost") and not is_numeric(self.host)

    def with_port(self, port: int, host: str | None = None) -> Address:
        """The same endpoint with the port (and host) that binding returned."""
        return replace(self, port=port, host=self.host if host is None else host)


def parse(endpoint: str | bytes, *, default_scheme: str | None = None) -> Address:
    """Parses an endpoint. Raises AddressError, with a hint.

    default_scheme: for endpoints without one ("node7:5555"); None refuses them.
    """
    return _parsed(_text(endpoint), default_scheme)


@functools.lru_cache(maxsize=1024)  # programs that make sockets again and again connect to the same endpoints
def _parsed(text: str, default_scheme: str | None) -> Address:
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise AddressError(f"the endpoint {text!r} has control characters in it")
    scheme, separator, rest = text.partition("://")
    if not separator:
        if default_scheme is None:
            raise AddressError(f"the endpoint {text!r} has no scheme", hint=_whole(text))
        scheme, rest = default_scheme, text
    scheme = scheme.lower()
    if not _SCHEME.match(scheme):
        hint = _whole(f"{scheme.strip(':')}:/{rest}")
        raise AddressError(f"{scheme!r} in {text!r} is no scheme", hint=hint)
    try:
        return _taken_apart(scheme, rest, text)
    except AddressError as error:
        if scheme in SCHEMES or any(scheme in plugins.names(group) for group in _GROUPS):
            raise
        # The rules for the rest are unknown, so the scheme is the error.
        raise AddressError(f"nothing here speaks {scheme}://", hint=scheme_hint(scheme)) from error


def near_scheme(scheme: str, known: Iterable[str] = SCHEMES) -> str:
    """The known scheme that the user probably meant, or nothing."""
    return next(iter(get_close_matches(scheme, known, 1)), "")


def scheme_hint(scheme: str, known: Iterable[str] = SCHEMES) -> str:
    """The hint for an unknown scheme."""
    near = near_scheme(scheme, known)
    return f"did you mean {near}://?" if near else "known schemes: " + ", ".join(sorted(known))


def _whole(text: str) -> str:
    """The hint for an endpoint without `://`."""
    broken = _BROKEN.match(text)
    if broken is not None:
        scheme, colons, slashes, rest = broken.groups()
        near = near_scheme(scheme.lower()) if slashes else scheme.lower()
        if near in SCHEMES and (colons or len(slashes) == 2):
            port = ":port" if near in _MET and ":" not in rest else ""
            return f"write {near}://{'/' if near == 'ipc' and slashes == '/' else ''}{rest}{port}"
    try:
        return f"write {_taken_apart('tcp', text, text)}"
    except AddressError:
        return "write for instance tcp://host:port"


def _taken_apart(scheme: str, rest: str, text: str) -> Address:
    if scheme == "inproc":  # its name is opaque, as in ZeroMQ
        return Address(scheme, path=_name(rest, text))
    rest, options = _split_query(rest, text)
    if scheme == "ipc":
        return Address(
            scheme, path=_path(rest, text), policy=options.get("policy"), begin=options.get("begin")
        )
    name = ""
    if scheme == "registry":
        rest, name = _registry_name(rest, text)
    host, port = _host_and_port(rest, text)
    address = Address(scheme, host, port, name, options.get("policy"), begin=options.get("begin"))
    if address.is_directory and address.is_wildcard:
        raise AddressError(f"{text!r} has no host and port", hint="name both")
    if scheme == "dns" and is_numeric(host):
        raise AddressError(f"{host} in {text!r} is no name", hint=f"write tcp://{format_host(host)}:{port}")
    return address


def advertised(text: str, port: int) -> Address:
    """The address at which others reach this machine: a host, with or without a port. Raises AddressError."""
    bare = not text.rpartition(":")[2].isdecimal() or (text.count(":") != 1 and "]:" not in text)
    if bare:
        text = f"{format_host(text) if is_numeric(text) else text}:{port}"
    named = parse(text, default_scheme="tcp")
    return Address("tcp", named.host, named.port)


def format_host(host: str) -> str:
    """The host as it stands before ":port": IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def is_numeric(host: str) -> bool:
    """True for an IPv4 or IPv6 address, also with a zone (fe80::1%eth0)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# --- the parts --------------------------------------------------------------------------------


def _text(endpoint: str | bytes) -> str:
    if isinstance(endpoint, bytes):
        try:
            endpoint = endpoint.decode()
        except UnicodeDecodeError as error:
            raise AddressError(f"the endpoint {endpoint!r} is not UTF-8") from error
    if not isinstance(endpoint, str):
        what = f"an endpoint is text, not {type(endpoint).__name__}"
        raise AddressError(what, hint="write for instance tcp://127.0.0.1:5555")
    if not endpoint:
        raise AddressError("the endpoint is empty", hint="write for instance tcp://127.0.0.1:5555")
    return endpoint


def _split_query(rest: str, text: str) -> tuple[str, dict[str, str]]:
    where, _, query = rest.partition("?")
    options: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        known = _OPTIONS.get(key)
        if known is None:
            raise AddressError(f"unknown option {key!r} in {text!r}", hint="there are ?policy= and ?begin=")
        if value not in known:
            raise AddressError(f"unknown {key} {value!r} in {text!r}", hint="one of " + ", ".join(known))
        if key in options:
            raise AddressError(f"{key} stands twice in {text!r}", hint="leave one of them out")
        options[key] = value
    if query and not options:
        raise AddressError(f"cannot read the options of {text!r}", hint="write ?policy=require")
    return where, options


def _host_and_port(rest: str, text: str) -> tuple[str, int]:
    where = rest.rstrip("/")
    if "/" in where:
        raise AddressError(f"{text!r} has a path behind its port", hint="write scheme://host:port")
    host, colon, port = where.rpartition(":")
    if not colon or port.endswith("]"):
        raise AddressError(f"{text!r} has no port", hint="add one, or :* for any free port when binding")
    return _host(host, text), _port(port, text)


def _host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_numeric(host) or ":" not in host:
            raise AddressError(f"{host!r} in {text!r} is no IPv6 address")
        return host
    if host == "*":
        return host
    if not host:
        raise AddressError(f"{text!r} has no host", hint="* binds every interface")
    if ":" in host:
        raise AddressError(
            f"{text!r} has more than one colon in its host",
            hint="put an IPv6 address in brackets: tcp://[::1]:5555",
        )
    if len(host) > _MAX_HOST or not _HOST.match(host):
        raise AddressError(f"{host!r} in {text!r} is no host name, number or interface")
    return host


def _port(port: str, text: str) -> int:
    if port == "*":
        return 0
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise AddressError(f"{port!r} in {text!r} is no port", hint="0 to 65535; 0 or * when any will do")
    return int(port)


def _registry_name(rest: str, text: str) -> tuple[str, str]:
    """(host and port of the broker, the name behind them)"""
    where, _, name = rest.partition("/")
    if not REGISTRY_NAME.match(name):
        raise AddressError(
            f"{name!r} in {text!r} is no name in a registry",
            hint="write registry://broker:5580/name; letters, digits and . _ - between them, 128 at most",
        )
    return where, name


def _path(path: str, text: str) -> str:
    if path in ("", "@"):
        raise AddressError(f"{text!r} has no path", hint="write ipc:///tmp/name.sock or ipc://@name")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_IPC_PATH:
        raise AddressError(
            f"the path of {text!r} is longer than {MAX_IPC_PATH} bytes",
            hint="a Unix socket has no room for more; use a shorter directory, or ipc://@name",
            errno=errno.ENAMETOOLONG,
        )
    return path


def _name(name: str, text: str) -> str:
    if not name:
        raise AddressError(f"{text!r} has no name", hint="write inproc://name")
    if len(name.encode("utf-8", "surrogateescape")) > MAX_INPROC_NAME:
        raise AddressError(f"the name of {text!r} is longer than {MAX_INPROC_NAME} bytes")
    return name
