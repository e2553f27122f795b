"""Defaults of sockets, and what the environment says above the transports.

| variable | meaning |
|---|---|
| TRANSFER_EXIT_LINGER | seconds that interpreter exit waits at most for unsent messages (default 2) |
| MOONCAKE_ALLOW_PICKLE | 1: `send_pyobj` and `recv_pyobj` work (default: they refuse) |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from transports.errors import OptionError


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a new socket's options are. Times in milliseconds, -1 endless; sizes in bytes.

    reply_timeout: the receive time-out of a REQ. immediate: messages wait for a connection (True)
    or queue for an endpoint that is not connected yet (False).
    """

    linger: int = 1000
    immediate: bool = True
    reply_timeout: int = 30_000
    send_high_water: int = 1000
    send_high_water_bytes: int = 64 << 20
    reconnect_ivl_max: int = 5000
    heartbeat_ivl: int = 5000
    heartbeat_timeout: int = 60_000


TRANSFER = Defaults()
#: pyzmq's own, for `transfer.zmq`
PYZMQ = Defaults(
    linger=-1,
    immediate=False,
    reply_timeout=-1,
    reconnect_ivl_max=0,
    heartbeat_ivl=0,
    heartbeat_timeout=-1,
)


def exit_linger(environ: Mapping[str, str] | None = None) -> float:
    """Seconds, from TRANSFER_EXIT_LINGER. Raises OptionError."""
    environ = os.environ if environ is None else environ
    text = environ.get("TRANSFER_EXIT_LINGER", "").strip()
    if not text:
        return 2.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 3600:
        raise OptionError(f"TRANSFER_EXIT_LINGER is {text!r}", hint="a number of seconds, 0 to 3600")
    return seconds


def pickle_allowed(environ: Mapping[str, str] | None = None) -> bool:
    """Whether objects may be pickled: MOONCAKE_ALLOW_PICKLE=1, looked up at each call."""
    environ = os.environ if environ is None else environ
    return environ.get("MOONCAKE_ALLOW_PICKLE", "").strip() == "1"


def torch_allocator(environ: Mapping[str, str] | None = None) -> str:
    """What PYTORCH_CUDA_ALLOC_CONF and its newer name tell torch's allocator, as one text."""
    environ = os.environ if environ is None else environ
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return ",".join(environ[name] for name in names if environ.get(name))
