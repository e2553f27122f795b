"""`transfer health`: checks a broker's health, for example for a container.

It uses only the standard library's HTTP, since it runs every few seconds.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from transfer.broker.config import values
from transfer.broker.config.options import OPTIONS, OTHER_NAMES
from transfer.cli.exits import EXIT_ERROR
from transfer.config import broker_environment
from transfer.http import client as http_client
from transfer.http.client import Bounds, TooLarge, Trust
from transfer.transports.config import security as read_security
from transfer.transports.errors import AddressError, Again, Broken, OptionError, UsageError
from transfer.transports.security.guard import is_loopback
from transfer.transports.security.settings import Security

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORT = 9180
#: bytes of an answer at most
_MOST = 1 << 20
_ANYWHERE = ("", "*", "0.0.0.0", "::", "[::]")
#: a hint if a plain HTTP request got no answer
WITHOUT_TLS = "does it require TLS? then use https://, with TRANSFER_TLS_CA and its other variables"


@dataclass(frozen=True, slots=True)
class HealthTarget:
    """The URL of a request. path: with its slash."""

    host: str
    port: int
    path: str
    secure: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


def check(url: str | None, *, live: bool, timeout: float) -> int:
    """Checks a broker. Returns 0 if it is healthy, 1 if it reports problems.

    url: None: the broker that the environment configures. Raises AddressError, OptionError, SecurityError,
    UsageError; Broken and Again if no broker answers.
    """
    options = configured()
    security = security_of(options)
    place = target(url, options, security, live=live)
    status, body = _answer(place, security, timeout)
    if status == 200:
        print("ok")
        return 0
    print(f"transfer: {place} answers {status}: {_problems(body)}", file=sys.stderr)
    return EXIT_ERROR


def target(url: str | None, options: Mapping[str, str], security: Security, *, live: bool) -> HealthTarget:
    """Returns the URL of the request. options: of the broker. Raises AddressError, UsageError."""
    path = "/livez" if live else "/readyz"
    if url is None:
        port = options.get("http.port", str(_PORT))
        if not port.isdecimal() or port == "0":
            raise UsageError(f"http.port is {port!r}, so its address is unknown", hint="give the URL")
        host = options.get("http.host") or options.get("broker.host", "")
        return HealthTarget(
            "127.0.0.1" if host in _ANYWHERE else host, int(port), path, bool(security.certificate)
        )
    parts = urlsplit(url)
    try:
        port_number = parts.port
    except ValueError:
        port_number = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port_number == -1:
        raise AddressError(
            f"{url!r} is no address of a broker",
            hint="write it, or TRANSFER_ADMIN_URL, as http://127.0.0.1:9180",
        )
    secure = parts.scheme == "https"
    own = parts.path if parts.path not in ("", "/") else path
    return HealthTarget(parts.hostname, port_number or (443 if secure else 80), own, secure)


def trust(place: HealthTarget, security: Security, *, secret: bool) -> Trust:
    """Returns the checks of the broker's certificate.

    secret: the request contains a secret, so the certificate's name is checked on loopback too. Raises
    OptionError.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False
    try:
        if security.authority:
            context = _only_from(context, cafile=security.authority)
        elif security.certificate:
            # This machine's certificate: a broker that shows it is this machine's broker, whatever its name
            # is.
            context = _only_from(context, cadata=_first(security.certificate))
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            secret = False
        if security.certificate:
            context.load_cert_chain(security.certificate, security.key)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the certificates cannot be read: {error}",
            hint="TRANSFER_TLS_CERT, TRANSFER_TLS_KEY and TRANSFER_TLS_CA",
        ) from error
    # Few certificates contain the loopback address. But any user of this machine may listen there: a server
    # with another host's certificate must not get a secret.
    context.check_hostname = secret or bool(security.server_name) or not is_loopback(place.host)
    return Trust(context, security.server_name or place.host)


def _only_from(context: ssl.SSLContext, **authorities: str) -> ssl.SSLContext:
    only = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    only.minimum_version = context.minimum_version
    only.hostname_checks_common_name = False
    only.set_alpn_protocols(["http/1.1"])
    only.load_verify_locations(**authorities)
    return only


def _first(file: str) -> str:
    """Returns only the file's first certificate: the following ones have signed other certificates, too."""
    first, end, _ = Path(file).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----")
    return first + end


def _answer(place: HealthTarget, security: Security, timeout: float) -> tuple[int, bytes]:
    secured = trust(place, security, secret=False) if place.secure else None
    bounds = Bounds(timeout, _MOST)
    try:
        with http_client.request(place.host, place.port, place.path, bounds=bounds, trust=secured) as answer:
            return answer.status, answer.whole()
    except TimeoutError as error:
        raise Again(f"{place} did not answer within {timeout:g} s") from error
    except ssl.SSLError as error:
        raise Broken(
            f"{place}: {error.reason or error}",
            hint="TRANSFER_TLS_CA has to be the authority that signed its certificate",
        ) from error
    except TooLarge as error:
        raise Broken(f"{place} is no broker's health: its answer has {error}") from error
    except (OSError, http.client.HTTPException) as error:
        if ended_without_answer(error):
            hint = "" if place.secure else WITHOUT_TLS
            raise Broken(f"{place} ended the connection without an answer", hint=hint) from error
        raise Broken(f"no answer from {place}: {error}", hint="is the broker running?") from error


def ended_without_answer(error: object) -> bool:
    """Whether a server accepted the connection, but did not answer by HTTP."""
    refused = isinstance(error, ConnectionRefusedError)
    return isinstance(error, (ConnectionError, http.client.BadStatusLine)) and not refused


def _problems(body: bytes) -> str:
    try:
        found = json.loads(body)["problems"]
        return "; ".join(map(str, found))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no broker's answer"


def configured() -> dict[str, str]:
    """Returns the broker's options from the environment and its configuration file, without checks."""
    environment = broker_environment(OTHER_NAMES)
    options: dict[str, str] = {}
    if environment.file:
        from transfer.broker.config.configuration import read_file

        options = {one.name: str(one.value) for one in read_file(Path(environment.file))}
    return options | {option: text for _, option, text in environment.options}


def security_of(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Security:
    """Returns Security of the broker's options (`security.cert`), else of its variables (TRANSFER_TLS_CERT).

    Raises SecurityError, OptionError.
    """
    given = {
        one.path[1]: options[one.name]  # files and a name: what this side's own connections need
        for one in OPTIONS
        if one.path[:1] == ("security",) and one.read is values.text and options.get(one.name)
    }
    if "token_file" in given:
        given["token"] = ""  # the file replaces it
    return read_security(environ, given=given)
