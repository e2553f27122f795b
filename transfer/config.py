"""The environment variables of the layers above the transports.

Variables:
    TRANSFER_EXIT_LINGER: seconds that interpreter exit waits at most for unsent messages (default 2)
    TRANSFER_GPU_PINNED: bytes of pinned memory that a process keeps for GPU tensors above 256 MiB, such as
        `8GiB`, or `off` (default 4 GiB, or a quarter of the available memory if that is less)
    TRANSFER_LOG: `debug`, `info`, `warning`, `error`: what the library logs goes to standard error
    TRANSFER_PICKLE_ALLOW: classes whose objects `send_pyobj` and `recv_pyobj` accept, beyond those of their
        codec: `package.module.Class`, or `package.module.*`, with commas between (default none)
    MOONCAKE_ALLOW_PICKLE: 1: `send_pyobj` and `recv_pyobj` pickle, as pyzmq: any sender can run any code
    TRANSFER_BROKER__SECTION__KEY: the option `section.key` of a broker
    TRANSFER_BROKER_CONFIG: the file of a broker's options
    WAL_PATH: a broker's `broker.data`, a folder
    WAL_ENABLED: a broker's `topics.keep`
    ROUTE_CATALOG_PATH: a broker's `routes.catalog`
    ADMIN_TOKEN: a broker's `http.token`
    DELIVERY_TIMEOUT_MS: a broker's `direct.ack_timeout`, in milliseconds
    MAX_INFLIGHT_PER_CONSUMER, MAX_PER_TOPIC_QUEUE, MAX_QUEUED_DIRECT, MAX_GLOBAL_INGRESS: options of the
        same names in a broker's `direct`
    FASTPATH_CUTOVER_BYTES: a broker's `large.cutover`
    FASTPATH_FALLBACK_TO_GO: a broker's `large.in_place`
    FASTPATH_REQUIRE: `true`: `large.in_place` is false, regardless of FASTPATH_FALLBACK_TO_GO
    FASTPATH_SIDECAR_ENABLED, FASTPATH_SOCKET_PATH: no effect; a broker logs that once
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from transfer import units
from transfer.transports.errors import OptionError

#: an entry of TRANSFER_PICKLE_ALLOW
_ALLOWED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.([^\W\d]\w*|\*)")
#: the values of TRANSFER_LOG
_LOG_LEVELS = ("debug", "info", "warning", "error")


def environment() -> dict[str, str]:
    """Returns a copy of the whole environment, for a child process."""
    return dict(os.environ)


def exit_linger(environ: Mapping[str, str] | None = None) -> float:
    """Returns the seconds of TRANSFER_EXIT_LINGER. Raises OptionError."""
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


def pinned_limit(environ: Mapping[str, str] | None = None) -> int | None:
    """Returns the bytes of TRANSFER_GPU_PINNED, 0 for `off`; None without it. Raises OptionError."""
    environ = os.environ if environ is None else environ
    text = environ.get("TRANSFER_GPU_PINNED", "").strip()
    try:
        return (0 if units.is_off(text) else units.size(text)) if text else None
    except ValueError:
        raise OptionError(f"TRANSFER_GPU_PINNED is {text!r}", hint="a size, such as 8GiB, or off") from None


def log_level(environ: Mapping[str, str] | None = None) -> str:
    """ "debug", "info", "warning" or "error", from TRANSFER_LOG; "" without it. Raises OptionError."""
    environ = os.environ if environ is None else environ
    text = environ.get("TRANSFER_LOG", "").strip()
    if text and text.lower() not in _LOG_LEVELS:
        hint = f"unset it, or set it to one of {', '.join(_LOG_LEVELS)}"
        raise OptionError(f"TRANSFER_LOG is {text!r}", hint=hint)
    return text.lower()


#: variables of other brokers without a meaning here: large payloads need no separate process
BROKER_IDLE_NAMES = ("FASTPATH_SIDECAR_ENABLED", "FASTPATH_SOCKET_PATH")
# Two underscores: Kubernetes sets TRANSFER_BROKER_PORT and others in each container for a service of that
# name.
_BROKER = "TRANSFER_BROKER__"


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """A broker's configuration from the environment.

    options: (variable, option, text); a later one overrides an earlier one. file: the configuration file.
    idle: variables that are set and have no effect.
    """

    options: tuple[tuple[str, str, str], ...]
    file: str | None
    idle: tuple[str, ...]


def broker_environment(
    other_names: Iterable[tuple[str, str]], environ: Mapping[str, str] | None = None
) -> BrokerEnvironment:
    """Reads the broker's variables, and ignores empty ones. other_names: (variable, option), of other
    brokers."""
    environ = os.environ if environ is None else environ
    given = {name: text.strip() for name, text in environ.items() if text.strip()}
    options = [
        (name, option, given[name] + "ms" * name.endswith("_MS"))
        for name, option in other_names
        if name in given
    ]
    if given.get("FASTPATH_REQUIRE", "").lower() in ("1", "true", "yes", "on"):
        options.append(("FASTPATH_REQUIRE", "large.in_place", "false"))
    for name in sorted(given):
        if name.startswith(_BROKER):
            option = name.removeprefix(_BROKER).lower().replace("__", ".")
            options.append((name, option, given[name]))
    idle = tuple(name for name in BROKER_IDLE_NAMES if name in given)
    return BrokerEnvironment(tuple(options), given.get("TRANSFER_BROKER_CONFIG"), idle)


def pickle_allowed(environ: Mapping[str, str] | None = None) -> bool:
    """Whether MOONCAKE_ALLOW_PICKLE=1 allows to pickle objects. It reads the variable at each call."""
    environ = os.environ if environ is None else environ
    return environ.get("MOONCAKE_ALLOW_PICKLE", "").strip() == "1"


def pickle_allow_list(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Returns the entries of TRANSFER_PICKLE_ALLOW, read at each call. Raises OptionError."""
    environ = os.environ if environ is None else environ
    return _entries(environ.get("TRANSFER_PICKLE_ALLOW", ""))


@lru_cache(8)
def _entries(text: str) -> tuple[str, ...]:
    entries = tuple(entry for entry in re.split(r"[\s,]+", text) if entry)
    for entry in entries:
        if not _ALLOWED.fullmatch(entry):
            hint = "names such as package.module.Class or package.module.*, with commas between"
            raise OptionError(f"TRANSFER_PICKLE_ALLOW has the entry {entry!r}", hint=hint)
    return entries


def torch_allocator(environ: Mapping[str, str] | None = None) -> str:
    """Returns the settings of torch's allocator: PYTORCH_CUDA_ALLOC_CONF and its newer name, as one text."""
    environ = os.environ if environ is None else environ
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return ",".join(environ[name] for name in names if environ.get(name))
