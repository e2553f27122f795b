"""The part of a handshake in which both sides prove to know the token: bytes in, bytes out. Pure.

    accepting side                      connecting side
    PROOF, with the hello         ->
                                  <-    PROOF    only to a side that has proved it
    PROOF, empty: come in         ->

Whoever is not satisfied says REFUSED instead.
"""

from __future__ import annotations

from transports.errors import HandshakeError
from transports.security.proof import ACCEPTING, CONNECTING, SIZE, is_proved, prove
from transports.wire import HEADER, HEADER_SIZE, MAGIC, VERSION, Control, Flag, SocketType

_HINT = "give both sides the same token"
#: of a refusal, which may come where a proof is due
_MAX_REFUSAL = 4096


class Proving:
    """Our side's part. wants: bytes that it takes next with `feed`, at most. output: to be sent.
    done: both sides have proved it. Raises HandshakeError("token") from `feed`."""

    def __init__(
        self, socket_type: SocketType, tokens: tuple[bytes, ...], said: bytes, *, connecting: bool
    ) -> None:
        self.wants = HEADER_SIZE
        self.done = False
        self.output = bytearray()
        self._socket_type = socket_type
        self._tokens = tokens
        self._said = said
        self._connecting = connecting
        self._proved = False  # the peer has
        self._input = bytearray()
        self._in_body = False
        if not connecting:
            self._say(prove(tokens[0], ACCEPTING, said))

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
            raise HandshakeError("token", "the peer refused this side's token", hint=_HINT)
        if body[0] != Control.PROOF:
            raise HandshakeError("token", "another control frame where a proof of the token was due")
        proof = body[1:]
        if self._proved:
            if proof:
                raise HandshakeError("token", "a second proof of the token")
            self._end()
            return
        who = ACCEPTING if self._connecting else CONNECTING
        if len(proof) != SIZE or not is_proved(self._tokens, who, self._said, proof):
            raise HandshakeError("token", "the peer has another token", hint=_HINT)
        self._proved = True
        if self._connecting:
            self._say(prove(self._tokens[0], CONNECTING, self._said))
        else:
            self._say(b"")
            self._end()

    def _end(self) -> None:
        self.done = True
        self.wants = 0

    def _say(self, proof: bytes) -> None:
        data = bytes([Control.PROOF]) + proof
        self.output += HEADER.pack(MAGIC, VERSION, self._socket_type, Flag.CONTROL, 0, 0, len(data), 0) + data


def _length(header: bytes) -> int:
    magic, version, _, flags, _, topic_length, length, _ = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION or flags != Flag.CONTROL or topic_length:
        raise HandshakeError("token", "a message where a proof of the token was due")
    if not 1 <= length <= _MAX_REFUSAL:
        raise HandshakeError("token", f"a proof of {length} bytes")
    return int(length)
