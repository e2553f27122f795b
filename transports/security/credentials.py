"""The current certificates and tokens: files that change are read again, for later connections."""

from __future__ import annotations

import logging
import os
import threading
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from transfer.transports.descriptors import refuse_exhausted
from transfer.transports.errors import OutOfDescriptors, SecurityError
from transfer.transports.security.exposure import warn_of
from transfer.transports.security.settings import Security, tokens_of

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel, TlsContext

_log = logging.getLogger("transfer")

#: the ALPN protocol of our sockets; "/" and the socket type may follow
ALPN_PROTOCOL = "transfer/1"
#: seconds between two checks of the files
_LOOK = 1.0

_Seen = tuple[tuple[int, int, int], ...]


class Credentials:
    """The credentials that `Security` names, ready for use. Thread-safe.

    core: the core that makes contexts and channels. reloads: how often changed files were read again.
    failures: how often they could not be used; then the earlier credentials stay in use. Raises SecurityError
    if a file cannot be used, OutOfDescriptors; reads the files at once.
    """

    def __init__(self, security: Security, core: ModuleType | Any) -> None:
        self.security = security
        self.reloads = self.failures = 0
        self._core = core
        self._lock = threading.Lock()
        self._contexts: dict[tuple[bool, str, tuple[str, ...]], TlsContext] = {}
        self._tokens: tuple[bytes, ...] = ()
        self._looked = time.monotonic()
        self._seen = self._look()
        self._read()

    def tokens(self) -> tuple[bytes, ...]:
        """The first is for our proofs; the peer may prove any. Empty: there is no token."""
        self._refresh()
        return self._tokens

    def channel(self, fd: int, *, server_name: str = "", socket_type: str = "") -> TlsChannel | None:
        """TLS for a new connection of our sockets; None: no TLS. server_name: the name to expect in the
        peer's certificate, if this side connects; "": this side accepted. socket_type: the name of our type,
        sent by ALPN too, so that a shared port can choose the endpoint."""
        if not self.security.tls:
            return None
        name = server_name and (self.security.server_name or server_name)
        protocols = (ALPN_PROTOCOL, f"{ALPN_PROTOCOL}/{socket_type}") if socket_type else (ALPN_PROTOCOL,)
        made: TlsChannel = self._core.TlsChannel(self.context(server=not name, protocols=protocols), fd, name)
        return made

    def check_server(self) -> None:
        """Raises SecurityError if this side has no certificate for a server."""
        self.context(server=True, protocols=(ALPN_PROTOCOL,))

    def context(
        self, *, server: bool, protocols: tuple[str, ...] = (), clients: str | None = None
    ) -> TlsContext:
        """A context for these protocols. clients: of a server, overrides the settings: "none", "optional",
        "required". Raises SecurityError where a server has no certificate."""
        self._refresh()
        if clients is None:
            clients = "required" if self.security.asks_certificates else "none"
        with self._lock:
            key = (server, clients if server else "", protocols)
            if key not in self._contexts:
                self._contexts[key] = self._make(*key)
            return self._contexts[key]

    # ------------------------------------------------------------------------------------------

    def _make(self, server: bool, clients: str, protocols: tuple[str, ...]) -> TlsContext:
        security = self.security
        if server and not security.certificate:
            raise SecurityError(
                "this side has no certificate, which a server needs",
                hint="name its file and its key's (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY)",
            )
        for path in filter(None, (security.certificate, security.key, security.authority)):
            _check_readable(path)
        made: TlsContext = self._core.TlsContext(
            server=server,
            certificate=security.certificate,
            key=security.key,
            authorities=security.authority,
            clients=clients or "none",
            protocols=protocols,
        )
        return made

    def _read(self) -> None:
        """Reads all files, so that errors in them are found at once."""
        security = self.security
        contexts: dict[tuple[bool, str, tuple[str, ...]], TlsContext] = {}
        if security.tls:
            wanted = list(self._contexts) or [(False, "", (ALPN_PROTOCOL,))]
            contexts = {key: self._make(*key) for key in wanted}
        tokens: tuple[str, ...] = (security.token,) if security.token else ()
        if security.token_file:
            tokens = tokens_of(_text(security.token_file), security.token_file)
        warn_of(security)
        with self._lock:
            self._contexts = contexts
            self._tokens = tuple(token.encode() for token in tokens)

    def _refresh(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._looked < _LOOK:
                return
            self._looked = now
        seen = self._look()
        if seen == self._seen:
            return
        try:
            self._read()
        except OutOfDescriptors as error:  # the next check tries again
            _log.error("changed certificates or tokens are not read yet: %s", error)
            return
        except SecurityError as error:
            self.failures += 1
            _log.error("changed certificates or tokens cannot be used, the old ones stay: %s", error)
        else:
            self.reloads += 1
            _log.info("certificates and tokens were read again")
        self._seen = seen

    def _look(self) -> _Seen:
        security = self.security
        paths = (security.certificate, security.key, security.authority, security.token_file)
        return tuple(_seen(path) for path in paths if path)


def _seen(path: str) -> tuple[int, int, int]:
    """Values that change with the file: also with the target of a link, as Kubernetes mounts secrets."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _check_readable(path: str) -> None:
    """Raises SecurityError with the reason, which OpenSSL does not report."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        refuse_exhausted(error, f"reading {path}")
        raise SecurityError(f"{path} cannot be read: {error.strerror}") from error


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(64 * 1024)
    except (OSError, UnicodeDecodeError) as error:
        refuse_exhausted(error, f"reading {path}")
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise SecurityError(f"the tokens in {path} cannot be read: {why}") from error
