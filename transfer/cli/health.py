"""`transfer health`: asks a broker whether it is well, as a container's health check does.

The standard library's HTTP alone: it runs every few seconds.
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

from transfer.cli import EXIT_ERROR
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
#: bytes of an answer that are read
_MOST = 1 << 20
_ANYWHERE = ("", "*", "0.0.0.0", "::", "[::]")
#: for who asked by plain HTTP, and was not answered
WITHOUT_TLS = "does it want TLS? then ask by https://, with TRANSFER_TLS_CA and what else it wants"


@dataclass(frozen=True, slots=True)
class Asked:
    """Where to ask. path: with the slash."""

    host: str
    port: int
    path: str
    secure: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


def check(url: str | None, *, live: bool, timeout: float) -> int:
    """0: it is well; 1: it says that it is not. url: None: the broker that the environment configures.

    Raises AddressError, OptionError, SecurityError, UsageError; Broken and Again when nobody answers
    as a broker does.
    """
    told = configured()
    security = security_of(told)
    asked = target(url, told, security, live=live)
    status, body = _answer(asked, security, timeout)
    if status == 200:
        print("ok")
        return 0
    print(f"transfer: {asked} answers {status}: {_problems(body)}", file=sys.stderr)
    return EXIT_ERROR


def target(url: str | None, told: Mapping[str, str], security: Security, *, live: bool) -> Asked:
    """Where to ask. told: what a broker is told, by option. Raises AddressError, UsageError."""
    path = "/livez" if live else "/readyz"
    if url is None:
        port = told.get("http.port", str(_PORT))
        if not port.isdecimal() or port == "0":
            raise UsageError(f"http.port is {port!r}, so nobody knows where to ask", hint="give the URL")
        host = told.get("http.host") or told.get("broker.host", "")
        return Asked("127.0.0.1" if host in _ANYWHERE else host, int(port), path, bool(security.certificate))
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
    return Asked(parts.hostname, port_number or (443 if secure else 80), own, secure)


def trust(asked: Asked, security: Security, *, secret: bool) -> Trust:
    """What its certificate is checked by, and the name it has to have. secret: the request carries a secret,
    so the name is checked on loopback too. Raises OptionError."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False
    try:
        if security.authority:
            context = _only_from(context, cafile=security.authority)
        elif security.certificate:
            # It is this side's own: a broker that shows it is the one of this machine, whatever it names.
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
    # The loopback's address stands in few certificates. But any user of this machine may listen there: who
    # shows another host's certificate gets no secret.
    context.check_hostname = secret or bool(security.server_name) or not is_loopback(asked.host)
    return Trust(context, security.server_name or asked.host)


def _only_from(context: ssl.SSLContext, **authorities: str) -> ssl.SSLContext:
    only = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    only.minimum_version = context.minimum_version
    only.hostname_checks_common_name = False
    only.set_alpn_protocols(["http/1.1"])
    only.load_verify_locations(**authorities)
    return only


def _first(file: str) -> str:
    """Its first certificate alone: those behind it have signed others, too."""
    first, end, _ = Path(file).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----")
    return first + end


def _answer(asked: Asked, security: Security, timeout: float) -> tuple[int, bytes]:
    secured = trust(asked, security, secret=False) if asked.secure else None
    bounds = Bounds(timeout, _MOST)
    try:
        with http_client.asked(asked.host, asked.port, asked.path, bounds=bounds, trust=secured) as answer:
            return answer.status, answer.whole()
    except TimeoutError as error:
        raise Again(f"{asked} did not answer within {timeout:g} s") from error
    except ssl.SSLError as error:
        raise Broken(
            f"{asked}: {error.reason or error}",
            hint="TRANSFER_TLS_CA has to be of the authority of its certificate",
        ) from error
    except TooLarge as error:
        raise Broken(f"{asked} is no broker's health: its answer has {error}") from error
    except (OSError, http.client.HTTPException) as error:
        if ended_without_answer(error):
            hint = "" if asked.secure else WITHOUT_TLS
            raise Broken(f"{asked} ended the connection without an answer", hint=hint) from error
        raise Broken(f"nobody answers at {asked}: {error}", hint="is the broker running?") from error


def ended_without_answer(error: object) -> bool:
    """Whether there is somebody, who does not speak as he was asked."""
    refused = isinstance(error, ConnectionRefusedError)
    return isinstance(error, (ConnectionError, http.client.BadStatusLine)) and not refused


def _problems(body: bytes) -> str:
    try:
        found = json.loads(body)["problems"]
        return "; ".join(map(str, found))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no broker's answer"


def configured() -> dict[str, str]:
    """What the environment, and the file that it names, tell a broker, by option; nothing else is checked."""
    environment = broker_environment()
    told: dict[str, str] = {}
    if environment.file:
        from transfer.broker.config.configuration import read_file

        told = {one.name: str(one.value) for one in read_file(Path(environment.file))}
    return told | {option: text for _, option, text in environment.options}


#: options of the broker, and what they are of `Security`
_NAMED = {
    "cert": "certificate",
    "key": "key",
    "ca": "authority",
    "server_name": "server_name",
    "token_file": "token_file",
}


def security_of(told: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Security:
    """As the broker's options have it (`security.cert`), else its variables (TRANSFER_TLS_CERT). Raises
    SecurityError, OptionError."""
    given = {field: told.get(f"security.{option}", "") for option, field in _NAMED.items()}
    given = {field: text for field, text in given.items() if text}
    if "token_file" in given:
        given["token"] = ""  # the file is another place for it
    return read_security(environ, given=given)
