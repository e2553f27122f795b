"""`run://host:port/NAME`: a run at a spool. Pure."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import quote, unquote

from transfer.spool.format.run_messages import MAX_NAME
from transfer.transports.arguments import shown
from transfer.transports.errors import AddressError

SCHEME = "run://"
DEFAULT_PORT = 5570
#: schemes that may be misspelt `run://`
_BROKEN = re.compile(r"([A-Za-z]+)(?::/{0,2}|/{2})(?=[^/])")


class RunAddress(NamedTuple):
    """endpoint: of the spool, for a socket. run: the name; "" means the spool itself."""

    endpoint: str
    run: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.endpoint.removeprefix('tcp://')}/{quote(self.run, safe='')}".rstrip("/")


def parse(text: str) -> RunAddress:
    """Parses `run://host:port/NAME`; the default port is 5570. Raises AddressError."""
    if not isinstance(text, str):
        raise AddressError(f"{shown(text)} is no run's address", hint="text such as run://HOST:PORT/NAME")
    rest = text.removeprefix(SCHEME)
    host, _, path = rest.partition("/")
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not name:
        name, port = host, ""
    if rest == text or not name or "/" in path or len(unquote(path)) > MAX_NAME:
        near = meant(text)
        hint = f"did you mean {near}?" if near else "run://HOST:PORT/NAME, as `transfer serve` prints it"
        raise AddressError(f"{text!r} is no run's address", hint=hint)
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise AddressError(f"{text!r} has no port that can be connected to", hint="a number from 1 to 65535")
    return RunAddress(f"tcp://{name}:{port or DEFAULT_PORT}", unquote(path))


def parse_run(text: str) -> RunAddress:
    """As `parse`, for an address that names a run. Raises AddressError."""
    address = parse(text)
    if not address.run:
        raise AddressError(f"{text!r} names no run", hint="run://HOST:PORT/NAME")
    return address


def meant(text: str) -> str:
    """Returns the run's address that one with a misspelt scheme probably means; "" if there is none."""
    found = _BROKEN.match(text)
    if found is None or text.startswith(SCHEME) or not get_close_matches(found[1].lower(), ["run"]):
        return ""
    return SCHEME + text[found.end() :]


def default_rows_endpoint(endpoint: str) -> str:
    """Returns the default endpoint for rows: the next port, 5571 for 5570, so that firewalls can name both.
    Raises AddressError if runs could have no address there."""
    if not endpoint.startswith("tcp://"):
        raise AddressError(
            f"a spool cannot listen at {endpoint!r}: runs have addresses such as run://HOST:PORT/NAME",
            hint=f"tcp://HOST:PORT, for instance tcp://127.0.0.1:{DEFAULT_PORT}",
        )
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + 1 if port.isdecimal() and 0 < int(port) < 65535 else 0}"
