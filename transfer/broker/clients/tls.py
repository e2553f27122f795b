"""TLS for the clients of the broker's fronts, by the TRANSFER_TLS_ variables or a given Security."""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import TYPE_CHECKING

from transfer.transports import core
from transfer.transports.arguments import wrong
from transfer.transports.config import security as read_security
from transfer.transports.errors import Again, Broken, HandshakeError
from transfer.transports.security import hints
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.guard import check_connecting
from transfer.transports.security.settings import Security

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel


def checked(given: Security | None) -> Security:
    """Returns `given`, or the environment's Security. Raises ArgumentError, OptionError, SecurityError."""
    if given is None:
        return read_security()
    if not isinstance(given, Security):
        raise wrong("security", given, "a transfer.Security: Security(authority=...)")
    return given


def security_for(peer: str, given: Security | None) -> Security:
    """Returns the Security for a broker whose protocol has no token. given: None: from the environment.

    Raises OptionError, and SecurityError if the broker could not be authenticated.
    """
    security = checked(given)
    check_connecting(peer, security)
    return security


def secured(
    connection: socket.socket,
    host: str,
    deadline: float,
    security: Security,
    protocols: tuple[str, ...] = (),
) -> TlsChannel | None:
    """Performs the TLS handshake, and returns the channel; None without TLS. The socket becomes non-blocking.

    host: the name in the peer's certificate. deadline: by time.monotonic. Raises HandshakeError, Again,
    Broken, SecurityError.
    """
    connection.setblocking(False)
    if not security.tls:
        return None
    context = Credentials(security, core).context(server=False, protocols=protocols)
    channel: TlsChannel = core.TlsChannel(context, connection.fileno(), security.server_name or host)
    try:
        while not channel.handshake():
            _wait(connection, channel, deadline, host)
    except OSError as error:
        known = failure(error, host, channel)
        if isinstance(known, HandshakeError):
            raise known from error
        raise HandshakeError("tls", f"no TLS with {host}: {error.strerror}", hint=hints.CLOSED) from error
    channel.ahead()
    return channel


def _wait(connection: socket.socket, channel: TlsChannel, deadline: float, host: str) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise Again(f"{host} did not finish the TLS handshake in time", hint=hints.CLOSED)


def failure(
    error: OSError, peer: str, channel: TlsChannel | None, *, received: bool = True
) -> HandshakeError | Broken:
    """Returns the error to raise. received: whether the peer has sent anything.

    A client learns of its certificate's refusal only when it reads or writes.
    """
    text = error.strerror or str(error)
    hint = hints.hint_of(text)
    if channel is not None and (error.errno == errno.EPROTO or hint):
        return HandshakeError("tls", f"no TLS with {peer}: {text}", hint=hint)
    return Broken(f"the connection to {peer} broke: {text}", hint=_plain_hint(channel, received))


def closed(peer: str, channel: TlsChannel | None, *, received: bool) -> Broken:
    """Returns the error to raise when the peer has closed the connection."""
    return Broken(f"{peer} has closed the connection", hint=_plain_hint(channel, received))


def _plain_hint(channel: TlsChannel | None, received: bool) -> str:
    """Returns a hint if the peer may require TLS: such a peer closes plain connections without an answer."""
    return hints.PLAIN if channel is None and not received else ""
