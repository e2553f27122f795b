"""Checks the certificates and tokens of the environment, and how long they are valid."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from typing import Any

from transfer.doctor.finding import Check
from transfer.transports import config
from transfer.transports.errors import TransferError
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.exposure import exposures
from transfer.transports.security.settings import Security

#: days before a certificate's end from which it is a warning
_SOON = 14


def security() -> Iterator[Check]:
    from transfer.transports import core
    from transfer.transports.core import python_tls

    try:
        wanted = config.security()
        credentials = Credentials(wanted, python_tls)
        tokens = len(credentials.tokens())
    except TransferError as error:
        yield Check("security", "settings", "fail", str(error), error.hint)
        return
    try:
        yield Check("security", "openssl", "ok", core.openssl_version())
    except TransferError as error:
        yield Check("security", "openssl", "fail" if wanted.tls else "warn", str(error), error.hint)
    yield _tls(wanted)
    if wanted.certificate:
        yield _certificate(wanted)
    open_to_others = list(exposures(wanted))
    if not any(one.name == "token" for one in open_to_others):
        token = f"{tokens} known, the first is shown" if tokens else "none"
        yield Check("security", "token", "ok" if tokens else "off", token)
    for one in open_to_others:
        yield Check("security", one.name, "warn", one.text, one.hint)
    if wanted.unauthenticated:
        yield Check(
            "security",
            "strangers",
            "warn",
            "other machines may connect without authentication (TRANSFER_UNAUTHENTICATED)",
            "use certificates or a token: docs/security.md",
        )


def _tls(wanted: Security) -> Check:
    listens = wanted.unauthenticated or wanted.authenticates
    if not wanted.tls:
        why = "data between machines can be read and changed in the network" if listens else _LOCAL_ONLY
        return Check("security", "tls", "off", f"none: {why}", _HOW)
    mode = "mutual" if wanted.asks_certificates else "with certificates of the accepting sides"
    if not wanted.certificate:
        mode += "; without a certificate this machine can only connect"
    elif not listens:
        mode += f"; {_LOCAL_ONLY}, since clients are not authenticated"
    return Check("security", "tls", "ok", f"TLS 1.3, {mode}")


_LOCAL_ONLY = "sockets may only listen on this machine"
_HOW = "`transfer certificates` makes certificates; see docs/security.md"


def _certificate(wanted: Security) -> Check:
    """Verifies the certificate as a peer does."""
    try:
        shown = _shown(wanted)
    except ssl.SSLCertVerificationError as error:
        detail = f"peers with the same authority refuse it: {error.verify_message}"
        return Check("security", "certificate", "fail", detail, "is it of another authority, or too old?")
    except (ssl.SSLError, OSError, TransferError) as error:
        return Check("security", "certificate", "fail", str(error))
    if not shown:
        return Check("security", "certificate", "ok", "present; without an authority it cannot be verified")
    hosts = ", ".join(value for _, value in shown.get("subjectAltName", ()))
    days = (ssl.cert_time_to_seconds(shown["notAfter"]) - time.time()) / 86400
    return Check(
        "security",
        "certificate",
        "ok" if days >= _SOON else "warn",
        f"for {hosts or 'no host'}, for {days:.0f} days more",
        "" if days >= _SOON else "replace the files: no restart is needed",
    )


def _shown(wanted: Security) -> dict[str, Any]:
    """Returns the certificate as a client with this authority gets it; empty without an authority."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(wanted.certificate, wanted.key, password=lambda: b"")
    if not wanted.authority:
        return {}
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(wanted.authority)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there)
    other = server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one.getpeercert() or {}
