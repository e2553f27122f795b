"""Reads the environment variables of the transports. Nothing else in `transports/` reads them.

Variables:
    TRANSFER_PROTOCOL: `auto`, `tcp`, `rdma`, `ucx`: the transport to ask for; takes precedence over the
        next
    MC_RPC_PROTOCOL: the same, read by Mooncake's processes too
    MC_RPC_POLICY: `auto`, `prefer`, `require`: what to do when that transport is not available; `auto` is
        `prefer` where a transport is named
    TRANSFER_LOCAL: `on`, `off`: whether peers on one host may use shared memory; `off` on either side
        prevents it
    TRANSFER_CUDA_IPC: `on`, `off`: whether tensors may stay on a GPU between processes of one host; `off` at
        the receiver keeps its peers from it
    MC_RDMA_DEVICES: names, with commas: devices in order of preference; by default the fastest active port
    MC_IB_PORT: number of the port
    MC_GID_INDEX: number of the GID; by default, on Ethernet, RoCE v2 with an IPv4 address first
    MC_MTU: 256 to 4096 bytes; the smallest of both ends and the port counts
    MC_IB_TC: traffic class of RDMA packets, 0 to 255; over Ethernet its upper six bits are the DSCP, by which
        switches choose the queue, such as 106 for DSCP 26; by default 0
    MC_IB_SL: service level on InfiniBand, 0 to 15; by default 0
    MC_PKEY_INDEX: the place of the partition's key in the port's table; by default 0
    TRANSFER_LIBIBVERBS: path of another libibverbs.so.1
    TRANSFER_LIBCUDA: path of another libcuda.so.1
    TRANSFER_UCX_DRIVER: `auto`, `libucp`: the second also uses a UCX that only the system has
    TRANSFER_CORE: `auto`, `native`, `pure`: the compiled core, or the one in Python
    TRANSFER_DNS: `host[:port]`, several with commas: name servers for `dns://`, instead of the system's
    TRANSFER_DNS_FAMILY: `auto` (IPv4, or IPv6 where there is no IPv4 address), `ipv4`, `ipv6`, `both`: the
        addresses that `dns://` uses
    TRANSFER_TLS_CERT, TRANSFER_TLS_KEY: PEM files: this side's certificate with its intermediates, and its
        key
    TRANSFER_TLS_CA: PEM file: the trusted authorities. It turns TLS on for every `tcp://` endpoint, in both
        directions
    TRANSFER_TLS_CLIENTS: `certificate` (mutual TLS; the default with a CA), `token`: what clients must show
    TRANSFER_TLS_SERVER_NAME: the name that a server's certificate must have, instead of the endpoint's
        host: for IP addresses and discovery
    TRANSFER_TOKEN, TRANSFER_TOKEN_FILE: a secret, or its file, that both sides prove to know; one that can
        be guessed is refused. A file may have several, one a line: the first is used, all are accepted
    TRANSFER_UNAUTHENTICATED: `allow`: accept connections without authentication beyond loopback
    TRANSFER_TOKENLESS: `allow`: although there is a token, protocols that cannot check it listen on this
        machine (a broker's fronts, HTTP and metrics without TLS), and their clients connect without TLS
    TRANSFER_ENCRYPT: `tcp`, `all`: the second does not use rdma and ucx, which do not encrypt
    TRANSFER_LIBSSL: path of another OpenSSL for the compiled core, newer and faster than Python's
    TRANSFER_ADVERTISE: the host that a registry lists for this process

`variables.py` lists the names, and refuses a misspelt one. `load` refuses every wrong value, also of a
variable that is not used: what a user sets has to have an effect.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from transfer.transports import probe
from transfer.transports.address import POLICIES, advertised, is_numeric
from transfer.transports.descriptors import refuse_exhausted
from transfer.transports.errors import AddressError, OptionError, SecurityError
from transfer.transports.security.settings import CLIENTS, ENCRYPT, Security
from transfer.transports.variables import check_names, warn_of_empty

PROTOCOLS = ("auto", "tcp", "rdma", "ucx")
CORES = ("auto", "native", "pure")
UCX_DRIVERS = ("auto", "libucp")
SWITCH = ("on", "off")
DNS_FAMILIES = ("auto", "ipv4", "ipv6", "both")
#: names of the arguments, where an error names a variable otherwise
ARGUMENT_PROTOCOL, ARGUMENT_POLICY = "protocol=", "policy="
SYSTEMS_LIBIBVERBS = "libibverbs.so.1"
SYSTEMS_LIBCUDA = "libcuda.so.1"
RDMA_VARIABLES = (
    *("MC_RDMA_DEVICES", "MC_IB_PORT", "MC_GID_INDEX", "MC_MTU"),
    *("MC_IB_TC", "MC_IB_SL", "MC_PKEY_INDEX"),
)
_NUMBERS: Mapping[str, tuple[Container[int], str]] = {
    "MC_IB_PORT": (range(1, 256), "a number from 1 to 255"),
    "MC_GID_INDEX": (range(256), "a number from 0 to 255"),
    "MC_MTU": ((256, 512, 1024, 2048, 4096), "256, 512, 1024, 2048 or 4096"),
    "MC_IB_TC": (range(256), "a number from 0 to 255"),
    "MC_IB_SL": (range(16), "a number from 0 to 15"),
    "MC_PKEY_INDEX": (range(1 << 16), "a number from 0 to 65535"),
}
#: the variable of each field of `Security`
_SECURITY = {
    "certificate": "TRANSFER_TLS_CERT",
    "key": "TRANSFER_TLS_KEY",
    "authority": "TRANSFER_TLS_CA",
    "clients": "TRANSFER_TLS_CLIENTS",
    "server_name": "TRANSFER_TLS_SERVER_NAME",
    "token": "TRANSFER_TOKEN",
    "token_file": "TRANSFER_TOKEN_FILE",
    "encrypt": "TRANSFER_ENCRYPT",
}
_FILES = ("TRANSFER_TLS_CERT", "TRANSFER_TLS_KEY", "TRANSFER_TLS_CA", "TRANSFER_TOKEN_FILE")


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """The preferred transport, and which variable chose it, for log lines."""

    protocol: str = "auto"
    protocol_source: str = "default"
    policy: str = "auto"
    policy_source: str = "default"


@dataclass(frozen=True, slots=True)
class DescriptorOptions:
    """Options set on a descriptor before it connects or listens. -1 (or 0 for sizes): the system's default.

    send_buffer, receive_buffer: kernel buffers, in bytes.
    keepalive: 1 on, 0 off. keepalive_idle, keepalive_interval: seconds. keepalive_count: probes.
    """

    send_buffer: int = 0
    receive_buffer: int = 0
    keepalive: int = -1
    keepalive_idle: int = -1
    keepalive_interval: int = -1
    keepalive_count: int = -1


def load(
    environ: Mapping[str, str] | None = None, *, protocol: str | None = None, policy: str | None = None
) -> TransportConfig:
    """Reads the environment (or the mapping); arguments take precedence. Raises OptionError for an unknown
    value, and for a misspelt variable."""
    environ = os.environ if environ is None else environ
    check_names(environ)
    for read in _READ_AT_ONCE:
        read(environ)
    rdma_wishes(environ)
    for name, value in (("protocol", protocol), ("policy", policy)):
        if not (value is None or isinstance(value, str)):
            raise OptionError(f"{name} cannot be {value!r:.40}", hint="text, or None")
    if protocol is not None:
        environ = {**environ, ARGUMENT_PROTOCOL: protocol}
    if policy is not None:
        environ = {**environ, ARGUMENT_POLICY: policy}
    names = (ARGUMENT_PROTOCOL, "TRANSFER_PROTOCOL", "MC_RPC_PROTOCOL")
    wished, wished_by = _choice(environ, names, (*PROTOCOLS, *probe.plugin_names()))
    strict, strict_by = _choice(environ, (ARGUMENT_POLICY, "MC_RPC_POLICY"), POLICIES)
    if strict == "auto" and wished != "auto":
        strict = "prefer"  # what to name a transport means
    return TransportConfig(wished, wished_by, strict, strict_by)


def settings_in(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables of a device that are set and that an error's text names: their values are the reason."""
    environ = os.environ if environ is None else environ
    return [name for name in (*RDMA_VARIABLES, "TRANSFER_LIBIBVERBS") if environ.get(name) and name in text]


def security(environ: Mapping[str, str] | None = None, *, given: Mapping[str, Any] | None = None) -> Security:
    """Reads the TRANSFER_TLS_ and TRANSFER_TOKEN variables. given: fields that take precedence over them.
    Raises OptionError, SecurityError."""
    environ = os.environ if environ is None else environ

    def setting(name: str) -> str:
        text = environ.get(f"TRANSFER_{name}", "").strip()
        if not text and f"TRANSFER_{name}" in environ:  # as a failed `$(…)` leaves it
            warn_of_empty(f"TRANSFER_{name}")
        return text

    fields: dict[str, Any] = {
        "certificate": setting("TLS_CERT"),
        "key": setting("TLS_KEY"),
        "authority": setting("TLS_CA"),
        "clients": _choice(environ, ("TRANSFER_TLS_CLIENTS",), ("", *CLIENTS))[0],
        "server_name": setting("TLS_SERVER_NAME"),
        "token": setting("TOKEN"),
        "token_file": setting("TOKEN_FILE"),
        "unauthenticated": _choice(environ, ("TRANSFER_UNAUTHENTICATED",), ("", "allow"))[0] == "allow",
        "tokenless": _choice(environ, ("TRANSFER_TOKENLESS",), ("", "allow"))[0] == "allow",
        "encrypt": _choice(environ, ("TRANSFER_ENCRYPT",), ENCRYPT)[0],
    }
    given = given or {}
    used = [name for field, name in _SECURITY.items() if field not in given and environ.get(name, "").strip()]
    try:
        found = Security(**fields | dict(given))
    except SecurityError as error:
        where = f" (the environment sets {', '.join(used)})" if used else ""
        what = str(error).partition("\n  hint: ")[0]
        raise SecurityError(f"{what}{where}", hint=error.hint) from None
    for name in used:
        if name in _FILES:
            _check_file(name, environ[name].strip())
    return found


def _check_file(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        refuse_exhausted(error, f"reading {path}")
        why = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"the environment variable {name} is {path!r}, which cannot be read: {why}",
            hint="unset it, or set it to the path of a file",
        ) from error


def libssl(environ: Mapping[str, str] | None = None) -> str:
    """The OpenSSL that the compiled core loads, from TRANSFER_LIBSSL; "": the one that Python uses.
    Raises OptionError."""
    return _library(environ, "TRANSFER_LIBSSL", "an OpenSSL 3, such as /opt/ssl/lib/libssl.so.3")


def libibverbs(environ: Mapping[str, str] | None = None) -> str:
    """The libibverbs that the compiled core loads, from TRANSFER_LIBIBVERBS. Raises OptionError."""
    example = "a libibverbs, such as /opt/rdma-core/lib/libibverbs.so.1"
    return _library(environ, "TRANSFER_LIBIBVERBS", example) or SYSTEMS_LIBIBVERBS


def libcuda(environ: Mapping[str, str] | None = None) -> str:
    """The CUDA driver that the compiled core loads, from TRANSFER_LIBCUDA. Raises OptionError."""
    example = "a CUDA driver, such as /usr/lib/wsl/lib/libcuda.so.1"
    return _library(environ, "TRANSFER_LIBCUDA", example) or SYSTEMS_LIBCUDA


def _library(environ: Mapping[str, str] | None, name: str, example: str) -> str:
    path = (os.environ if environ is None else environ).get(name, "").strip()
    if "/" in path and not os.path.isfile(path):  # else the system's loader searches for it
        raise OptionError(
            f"the environment variable {name} is {path!r}, which is no file",
            hint=f"unset it, or set it to the path of {example}",
        )
    return path


def core_choice(environ: Mapping[str, str] | None = None) -> str:
    """ "auto", "native" or "pure", from TRANSFER_CORE. Raises OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_CORE",), CORES)[0]


def local_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Whether TRANSFER_LOCAL enables the shared memory transport; enabled unless it is off. Raises
    OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_LOCAL",), SWITCH)[0] == "on"


def cuda_ipc_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Whether TRANSFER_CUDA_IPC lets tensors stay on a GPU; enabled unless it is off. Raises OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_CUDA_IPC",), SWITCH)[0] == "on"


def rdma_wishes(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The variables about RDMA devices, which Mooncake has too; `rdma/device_selection.py` reads them.
    Raises OptionError for a wrong number."""
    environ = os.environ if environ is None else environ
    found = {name: text for name in RDMA_VARIABLES if (text := environ.get(name, "").strip())}
    for name, (numbers, permitted) in _NUMBERS.items():
        if name in found and not (found[name].isdecimal() and int(found[name]) in numbers):
            raise OptionError(
                f"the environment variable {name} is {found[name]!r}",
                hint=f"unset it, or set it to {permitted}",
            )
    return found


def ucx_driver(environ: Mapping[str, str] | None = None) -> str:
    """ "auto" or "libucp", from TRANSFER_UCX_DRIVER. Raises OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_UCX_DRIVER",), UCX_DRIVERS)[0]


def ucx_of_the_system(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user prefers the system's UCX to the one of the wheel; ucxx has the same variable."""
    environ = os.environ if environ is None else environ
    return environ.get("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "false").lower() != "false"


def ucx_options(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The UCX options that the user's environment does not set. Options of a transport that UCX_TLS excludes
    are left out: UCX would warn about them."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("UCX_TLS", "all")
    tcp = chosen.startswith("^") or bool({"all", "tcp"} & set(chosen.split(",")))
    return {
        name: value
        for name, value in options.items()
        if f"UCX_{name}" not in environ and (tcp or not name.startswith("TCP_"))
    }


def name_servers(environ: Mapping[str, str] | None = None) -> tuple[tuple[str, int], ...]:
    """(host, port) of each server in TRANSFER_DNS; empty: the system's servers. Raises OptionError."""
    environ = os.environ if environ is None else environ
    found = []
    for text in filter(None, (part.strip() for part in environ.get("TRANSFER_DNS", "").split(","))):
        host, colon, port = text.rpartition(":")
        if is_numeric(text) or text.endswith("]") or not colon:  # an IPv6 address has colons too
            host, port = text, "53"
        host = host.removeprefix("[").removesuffix("]")
        if not is_numeric(host) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(
                f"the environment variable TRANSFER_DNS has {text!r}",
                hint="addresses with or without a port, for instance 10.96.0.10 or 127.0.0.1:5353",
            )
        found.append((host, int(port)))
    return tuple(found)


def dns_family(environ: Mapping[str, str] | None = None) -> str:
    """ "auto", "ipv4", "ipv6" or "both", from TRANSFER_DNS_FAMILY. Raises OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_DNS_FAMILY",), DNS_FAMILIES)[0]


def advertised_host(environ: Mapping[str, str] | None = None) -> str:
    """The host in TRANSFER_ADVERTISE, with or without a port, or nothing. Raises OptionError."""
    text = (os.environ if environ is None else environ).get("TRANSFER_ADVERTISE", "").strip()
    if text:
        try:
            advertised(text, 1)
        except AddressError as error:
            raise OptionError(
                f"the environment variable TRANSFER_ADVERTISE is {text!r}",
                hint="unset it, or set it to a host, with or without a port: node7, or node7.example:5555",
            ) from error
    return text


def _choice(environ: Mapping[str, str], names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, str]:
    """(value, name) of the first variable that is set and not empty."""
    for name in names:
        value = environ.get(name, "").strip().lower()
        if not value:
            continue
        if value not in allowed:
            raise OptionError(
                f"the environment variable {name} is {environ[name]!r}"
                if not name.endswith("=")
                else f"{name}{environ[name]!r}",
                hint="unset it, or set it to one of " + ", ".join(filter(None, allowed)),
            )
        return value, name
    return allowed[0], "default"


#: what `load` checks although something else uses it
_READ_AT_ONCE = (
    *(core_choice, local_enabled, cuda_ipc_enabled, ucx_driver, name_servers, dns_family, advertised_host),
    *(libssl, libibverbs, libcuda),
)
