"""TLS for the clients of the broker's fronts: as the TRANSFER_TLS_ variables say, or as they are told."""

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
    """What is shown; None: what the environment says. Raises ArgumentError, OptionError, SecurityError."""
    if given is None:
        return read_security()
    if not isinstance(given, Security):
        raise wrong("security", given, "a transfer.Security: Security(authority=...)")
    return given


def security_for(peer: str, given: Security | None) -> Security:
    """What is shown to a broker whose protocol knows no token. given: None: what the environment says. Raises
    SecurityError where nothing would show who answers, and OptionError."""
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
    """TLS on a connection, the handshake done, which is non-blocking from now on; None: there is none.

    host: whose certificate to expect. deadline: as time.monotonic tells it. Raises HandshakeError, Again,
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
    error: OSError, peer: str, channel: TlsChannel | None, *, heard: bool = True
) -> HandshakeError | Broken:
    """What to raise: a client hears of its certificate's refusal when it reads or writes. heard: whether the
    peer has said anything yet."""
    said = error.strerror or str(error)
    hint = hints.hint_of(said)
    if channel is not None and (error.errno == errno.EPROTO or hint):
        return HandshakeError("tls", f"no TLS with {peer}: {said}", hint=hint)
    return Broken(f"the connection to {peer} broke: {said}", hint=_without_a_word(channel, heard))


def closed(peer: str, channel: TlsChannel | None, *, heard: bool) -> Broken:
    """What to raise when the peer has closed the connection."""
    return Broken(f"{peer} has closed the connection", hint=_without_a_word(channel, heard))


def _without_a_word(channel: TlsChannel | None, heard: bool) -> str:
    """What who wants TLS does to those who begin without."""
    return hints.PLAIN if channel is None and not heard else ""
