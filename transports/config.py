"""What the environment says about transports. Nothing else in `transports/` reads it.

| variable | values | meaning |
|---|---|---|
| TRANSFER_PROTOCOL | auto, tcp, rdma, ucx | the transport wished for; wins over the next |
| MC_RPC_PROTOCOL | auto, tcp, rdma, ucx | the same, read by Mooncake processes too |
| MC_RPC_POLICY | auto, prefer, require | what to do when the wish cannot be met |
| TRANSFER_LOCAL | on, off | whether peers on one host may use shared memory |
| MC_RDMA_DEVICES, MC_IB_PORT, MC_GID_INDEX, MC_MTU | | see verbs/choosing.py |
| TRANSFER_UCX_DRIVER | auto, ucxx, libucp | what the ucx transport calls UCX by; see ucx/driver.py |
| TRANSFER_CORE | auto, native, twin | the compiled core, or its Python twin |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from transports.address import POLICIES
from transports.errors import OptionError

PROTOCOLS = ("auto", "tcp", "rdma", "ucx")
CORES = ("auto", "native", "twin")
UCX_DRIVERS = ("auto", "ucxx", "libucp")
SWITCH = ("on", "off")
#: how arguments are called where a variable would be named
ARGUMENT_PROTOCOL, ARGUMENT_POLICY = "protocol=", "policy="
RDMA_VARIABLES = ("MC_RDMA_DEVICES", "MC_IB_PORT", "MC_GID_INDEX", "MC_MTU")


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """The wish and who made it, so that a log line can name the variable that decided."""

    protocol: str = "auto"
    protocol_source: str = "default"
    policy: str = "auto"
    policy_source: str = "default"


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """What a descriptor is told before it connects or listens. -1 (or 0 for sizes): the system's own.

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
    """Reads the environment (or the mapping given); arguments win. Raises OptionError for a value that
    it does not know."""
    environ = os.environ if environ is None else environ
    if protocol is not None:
        environ = {**environ, ARGUMENT_PROTOCOL: protocol}
    if policy is not None:
        environ = {**environ, ARGUMENT_POLICY: policy}
    names = (ARGUMENT_PROTOCOL, "TRANSFER_PROTOCOL", "MC_RPC_PROTOCOL")
    wished, wished_by = _choice(environ, names, PROTOCOLS)
    strict, strict_by = _choice(environ, (ARGUMENT_POLICY, "MC_RPC_POLICY"), POLICIES)
    return TransportConfig(wished, wished_by, strict, strict_by)


def core_choice(environ: Mapping[str, str] | None = None) -> str:
    """ "auto", "native" or "twin", from TRANSFER_CORE. Raises OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_CORE",), CORES)[0]


def local_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Whether TRANSFER_LOCAL allows the same-host transport, as it does unless it is off. Raises
    OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_LOCAL",), SWITCH)[0] == "on"


def rdma_wishes(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The variables about RDMA devices, which Mooncake users know; `verbs/choosing.py` reads them."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in RDMA_VARIABLES if environ.get(name)}


def ucx_driver(environ: Mapping[str, str] | None = None) -> str:
    """ "auto", "ucxx" or "libucp", from TRANSFER_UCX_DRIVER. Raises OptionError."""
    return _choice(os.environ if environ is None else environ, ("TRANSFER_UCX_DRIVER",), UCX_DRIVERS)[0]


def ucx_of_the_system(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ucxx was told to load the system's UCX before the one of its wheel."""
    environ = os.environ if environ is None else environ
    return environ.get("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "false").lower() != "false"


def ucx_options(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of UCX's options that the user's environment does not decide by itself. Those of a transport
    that UCX_TLS leaves out are not among them: UCX would warn of them."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("UCX_TLS", "all")
    tcp = chosen.startswith("^") or bool({"all", "tcp"} & set(chosen.split(",")))
    return {
        name: value
        for name, value in options.items()
        if f"UCX_{name}" not in environ and (tcp or not name.startswith("TCP_"))
    }


@contextmanager
def ucx_variables_kept() -> Iterator[None]:
    """ucxx sets UCX_* variables when it is imported, which would reach every other user of UCX in
    this process and its children: they are as before when this ends."""
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("UCX_") and name not in before]:
            del os.environ[name]
        os.environ.update(before)


def _choice(environ: Mapping[str, str], names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, str]:
    """(value, variable it came from) of the first variable that is set and not empty."""
    for name in names:
        value = environ.get(name, "").strip().lower()
        if not value:
            continue
        if value not in allowed:
            raise OptionError(
                f"the environment variable {name} is {environ[name]!r}"
                if not name.endswith("=")
                else f"{name}{environ[name]!r}",
                hint="unset it, or set it to one of " + ", ".join(allowed),
            )
        return value, name
    return allowed[0], "default"
