"""The environment variables: a misspelt one is refused, so that it is not ignored.

`transports/config.py` and `transfer/config.py` read them; a test compares this list with both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches

from transfer.transports.errors import OptionError

_OURS, _MOONCAKE = "TRANSFER_", "MC_"

#: variables by the part after their prefix
OURS = frozenset(
    {"ADMIN_URL", "ADVERTISE", "BROKER_CONFIG", "CORE", "CUDA_IPC", "DNS", "DNS_FAMILY", "ENCRYPT"}
    | {
        "EXIT_LINGER",
        "GPU_PINNED",
        "LIBCUDA",
        "LIBIBVERBS",
        "LIBSSL",
        "LOCAL",
        "LOG",
        "PICKLE_ALLOW",
        "PROTOCOL",
        "TLS_CA",
        "TLS_CERT",
        "TLS_CLIENTS",
        "TLS_KEY",
        "TLS_SERVER_NAME",
    }
    | {"TOKEN", "TOKEN_FILE", "TOKENLESS", "UCX_DRIVER", "UNAUTHENTICATED"}
)
#: the variables of Mooncake that are read here; it has many more
MOONCAKES = frozenset(
    {"RPC_PROTOCOL", "RPC_POLICY", "RDMA_DEVICES", "IB_PORT", "GID_INDEX", "MTU", "IB_TC", "IB_SL"}
    | {"PKEY_INDEX"}
)

#: variables of Kubernetes for services whose names begin with "transfer", options of a broker (which checks
#: them itself), and variables for building and testing this project
_OTHERS = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)\Z"
    r"|BROKER__|TEST_|NO_NATIVE\Z|NEED_NATIVE\Z|CORE_FLAGS\Z|VERSION\Z"
)
#: how similar a name has to be to a known one to count as misspelt
_NEAR, _NEAR_MOONCAKES = 0.8, 0.85

logger = logging.getLogger("transfer")
_warned: set[str] = set()


def check_names(environ: Mapping[str, str]) -> None:
    """Raises OptionError for a misspelt known variable. Logs a warning once for each other one that begins
    with TRANSFER_: it may be the program's own, and has no effect here."""
    for name in environ:
        if name.startswith(_OURS):
            rest = name.removeprefix(_OURS)
            if rest in OURS or _OTHERS.match(rest):
                continue
            _refuse(name, rest, OURS, _OURS, _NEAR)
            if name not in _warned:
                _warned.add(name)
                logger.warning("the environment variable %s means nothing to transfer", name)
        elif name.startswith(_MOONCAKE) and (rest := name.removeprefix(_MOONCAKE)) not in MOONCAKES:
            _refuse(name, rest, MOONCAKES, _MOONCAKE, _NEAR_MOONCAKES)


def warn_of_empty(name: str) -> None:
    """Warns once of a variable that was to protect something, and is set to nothing."""
    if name not in _warned:
        _warned.add(name)
        logger.warning(
            "the environment variable %s is empty, as if it were not set: it protects nothing", name
        )


def _refuse(name: str, rest: str, known: frozenset[str], prefix: str, cutoff: float) -> None:
    near = get_close_matches(rest, known, 1, cutoff)
    if near:
        raise OptionError(
            f"there is no environment variable {name}", hint=f"did you mean {prefix}{near[0]}? else unset it"
        )
