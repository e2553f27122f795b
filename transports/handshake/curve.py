"""The keys of one connection of CURVE: which key its TLS has, and how the client proves its own.

    client                                          server
    TLS 1.3, key K(e, S): identity E        <->     finds it by K(s, E): only the server knows s
    hello                                   <->     hello with T, a public key for this connection
    C, HMAC(K(c, T), all of the above)       ->     checks it by K(t, C); then it asks who C is

K(x, Y) is HKDF-SHA-256 of X25519. S and C are the lasting public keys of server and client, s and c their
secrets; E and T live as long as the handshake. TLS adds a key of its own (psk_dhe_ke), so stolen lasting keys
decrypt no recorded connection. C is sent to the authenticated server only. A stolen s does not let others
pass as a client, since t is new.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

from transfer.transports.errors import HandshakeError
from transfer.transports.security.mechanism import KEY, Mechanism

#: X25519 with it makes a public key
BASE_POINT = b"\x09" + bytes(KEY - 1)
#: bytes of a proof
PROOF = 32
_TLS, _CLIENT = b"transfer curve 1 tls", b"transfer curve 1 client"
#: before the client's key in the identity, which TLS ends at the first zero
_IDENTITY = b"transfer-curve-1 "


class CurveKeys:
    """This side's keys for one connection. Raises SecurityError for invalid keys, NotSupported without the
    compiled core."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._agree: Callable[[bytes, bytes], bytes] = mechanism.core.x25519
        self._fresh = os.urandom(KEY)

    @cached_property  # not before the peer has sent something
    def ephemeral(self) -> bytes:
        """The public key for this connection alone."""
        return self._agree(self._fresh, BASE_POINT)

    @cached_property
    def public(self) -> bytes:
        """The public key of this side."""
        return self._agree(self._mechanism.secret, BASE_POINT)

    def channel(self, fd: int) -> Any:
        """TLS on a connection."""
        core, server = self._mechanism.core, self._mechanism.server
        context = _context(core, server)
        if server:
            return core.TlsChannel(context, fd, finds=self._key_of)
        shared = self._agree(self._fresh, self._mechanism.server_key)
        key = _derived(_TLS, shared, self.ephemeral + self._mechanism.server_key)
        return core.TlsChannel(context, fd, key=(_IDENTITY + self.ephemeral.hex().encode(), key))

    def _key_of(self, identity: bytes) -> bytes:
        if not identity.startswith(_IDENTITY):
            raise ValueError("the identity of another protocol")
        theirs = bytes.fromhex(identity.removeprefix(_IDENTITY).decode("ascii"))
        return _derived(_TLS, self._agree(self._mechanism.secret, theirs), theirs + self.public)

    def prove(self, peers: bytes, conversation: bytes) -> bytes:
        """A client's key, and the proof that it has the secret. peers: the server's key for this connection.
        conversation: all that was said."""
        shared = self._agree(self._mechanism.secret, peers)
        return self.public + _proof(shared, self.public, self._mechanism.server_key, conversation)

    def proved(self, credentials: bytes, conversation: bytes) -> bytes:
        """The client's key, proved. Raises HandshakeError, SecurityError."""
        client, proof = credentials[:KEY], credentials[KEY:]
        if len(credentials) != KEY + PROOF:
            raise HandshakeError("credentials", "a proof of a key of CURVE with another length than it has")
        shared = self._agree(self._fresh, client)
        if not hmac.compare_digest(_proof(shared, client, self.public, conversation), proof):
            raise HandshakeError("credentials", "the peer does not have the key that it names")
        return client


@lru_cache(maxsize=8)
def _context(core: Any, server: bool) -> Any:
    return core.TlsContext(server=server, keyed=True)


def _derived(label: bytes, shared: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 (RFC 5869), one block."""
    return hmac.digest(hmac.digest(label, shared, "sha256"), info + b"\x01", "sha256")


def _proof(shared: bytes, client: bytes, server: bytes, conversation: bytes) -> bytes:
    return hmac.digest(_derived(_CLIENT, shared, client + server), conversation, "sha256")
