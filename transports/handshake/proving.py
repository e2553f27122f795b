"""The part of a handshake in which both sides prove that they know the token: bytes in, bytes out. Pure.

    connecting side                     accepting side
    PROOF, after both hellos     ->
                                  <-    PROOF, only to a side that has proved it: accepted

The connecting side proves first: a client without the token gets nothing by which to guess it offline. A side
that refuses sends REFUSED instead. The body of a PROOF is the length of the token's name (one byte), the
name, and the proof. Tokens have no names so far.
"""

from __future__ import annotations

from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.hello import refusal_in
from transfer.transports.security.proof import ACCEPTING, CONNECTING, SIZE, prove, proved_token

_HINT = "give both sides the same token"
#: bytes of a refusal, which may come instead of a proof
_MAX_REFUSAL = 4096


class Proving:
    """This side's part. wants: the most bytes for the next `feed`. output: bytes to send. done: both sides
    have proved the token. `feed` raises HandshakeError("token")."""

    def __init__(
        self, socket_type: SocketType, tokens: tuple[bytes, ...], conversation: bytes, *, connecting: bool
    ) -> None:
        self.wants = HEADER_SIZE
        self.done = False
        self.output = bytearray()
        self._socket_type = socket_type
        self._tokens = tokens
        self._conversation = conversation
        self._connecting = connecting
        self._input = bytearray()
        self._in_body = False
        if connecting:
            self._say(prove(tokens[0], CONNECTING, conversation))

    def feed(self, data: bytes) -> None:
        self._input += data
        self.wants -= len(data)
        if self.wants:
            return
        whole = bytes(self._input)
        self._input.clear()
        if not self._in_body:
            self._in_body, self.wants = True, _length(whole)
        else:
            self._in_body, self.wants = False, HEADER_SIZE
            self._take(whole)

    def _take(self, body: bytes) -> None:
        if body[0] == Control.REFUSED:
            refusal = refusal_in(body)
            if refusal is not None:  # the proof was valid
                raise refusal
            raise HandshakeError("token", "the peer refused this side's token", hint=_HINT)
        if body[0] != Control.PROOF:
            raise HandshakeError("token", "another control frame where a proof of the token was due")
        who = ACCEPTING if self._connecting else CONNECTING
        token = proved_token(self._tokens, who, self._conversation, _proof_in(body))
        if token is None:
            raise HandshakeError("token", "the peer has another token", hint=_HINT)
        if not self._connecting:
            self._say(prove(token, ACCEPTING, self._conversation))  # the one of several that the peer knows
        self.done = True
        self.wants = 0

    def _say(self, proof: bytes) -> None:
        data = bytes([Control.PROOF, 0]) + proof
        self.output += HEADER.pack(MAGIC, VERSION, self._socket_type, Flag.CONTROL, 0, 0, len(data), 0) + data


def _proof_in(body: bytes) -> bytes:
    """The proof in the body of a PROOF. Raises HandshakeError."""
    if len(body) < 2 or len(body) != 2 + body[1] + SIZE:
        raise HandshakeError("token", "a proof of the token with another length than it has")
    if body[1]:
        raise HandshakeError("token", "the peer has a token with a name, which this side does not know")
    return body[2:]


def _length(header: bytes) -> int:
    magic, version, _, flags, _, topic_length, length, _ = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION or flags != Flag.CONTROL or topic_length:
        raise HandshakeError("token", "a message where a proof of the token was due")
    if not 1 <= length <= _MAX_REFUSAL:
        raise HandshakeError("token", f"a proof of {length} bytes")
    return int(length)
