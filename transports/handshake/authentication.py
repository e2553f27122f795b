"""The part of a handshake in which one side approves the other, as ZeroMQ's mechanisms do. Pure.

    client of PLAIN or CURVE                   server
    CREDENTIALS, after hellos and token   ->
                                         <-    APPROVED, or REFUSED: the authenticator has decided

A side with NULL that asks an authenticator approves the same way, without credentials. Its hello says that
the other side has to wait for it. Neither takes nor sends messages before.
"""

from __future__ import annotations

from typing import Any

from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError, SecurityError
from transfer.transports.handshake.curve import CurveKeys
from transfer.transports.handshake.hello import Hello, refusal_of
from transfer.transports.security.mechanism import (
    CURVE,
    NO_AUTHENTICATOR,
    NULL,
    OK,
    PLAIN,
    Mechanism,
    Question,
    Verdict,
)

#: bytes of credentials, or of a refusal, which may come instead
MAX_FRAME = 4096


class Authentication:
    """This side's part. wants: the most bytes for the next `feed`; 0: none now. output: bytes to send.
    question: for the authenticator, whose answer goes to `answer`. done: both sides approve. Every method
    raises HandshakeError."""

    def __init__(
        self,
        socket_type: SocketType,
        mechanism: Mechanism,
        remote: Hello,
        address: str,
        conversation: bytes,
        keys: CurveKeys | None,
    ) -> None:
        self.output = bytearray()
        self.question: Question | None = None
        self.verdict: Verdict | None = None
        self._socket_type, self._mechanism, self._remote = socket_type, mechanism, remote
        self._address, self._conversation, self._keys = address, conversation, keys
        self._input = bytearray()
        self._in_body, self._missing = False, HEADER_SIZE
        self._decides, self._waits = mechanism.approves, remote.approves
        self._expects_credentials = mechanism.server

    def begin(self) -> None:
        if self._mechanism.is_client:
            self._say(Control.CREDENTIALS, self._credentials())
        elif self._decides and not self._mechanism.server:
            self.question = Question(NULL, self._address)

    @property
    def done(self) -> bool:
        return not self._decides and not self._waits

    @property
    def authenticates(self) -> bool:
        """Whether the peer has authenticated. At a server an authenticator says so: without one, knowing
        a public key is enough. A client knows its server by CURVE only; NULL approves an address."""
        if self._mechanism.server:
            return self.verdict is not None
        return self._mechanism.encrypts

    @property
    def wants(self) -> int:
        return 0 if self.done or self.question is not None else self._missing

    @property
    def properties(self) -> dict[str, str]:
        """Those of a peer that this side approved, by ZeroMQ's names."""
        if not self._mechanism.approves:
            return {}
        return {
            **({} if self.verdict is None else self.verdict.properties),
            "Socket-Type": self._remote.socket_type.name,
            "Identity": self._remote.routing_id.decode("utf-8", "replace"),
            "Peer-Address": self._address,
        }

    def feed(self, data: bytes) -> None:
        self._input += data
        self._missing -= len(data)
        if self._missing:
            return
        whole = bytes(self._input)
        self._input.clear()
        self._in_body = not self._in_body
        self._missing = _length(whole) if self._in_body else HEADER_SIZE
        if not self._in_body:
            self._take(whole)

    def answer(self, verdict: Verdict | None) -> None:
        """The authenticator's decision. None: there is no authenticator."""
        self.question = None
        if verdict is None and self._mechanism.required:
            verdict = Verdict(500, NO_AUTHENTICATOR)
        self.verdict = verdict
        if verdict is not None and verdict.status != OK:
            text = "access is denied"
            raise HandshakeError(f"denied_{verdict.status}", text, hint=verdict.text)
        self._decides = False
        self._say(Control.APPROVED, b"")

    # ------------------------------------------------------------------------------------------

    def _take(self, body: bytes) -> None:
        kind = body[0]
        if kind == Control.REFUSED:
            raise refusal_of(body)
        if kind == Control.CREDENTIALS and self._expects_credentials:
            self._expects_credentials = False
            self.question = Question(self._mechanism.name, self._address, self._checked(body[1:]))
        elif kind == Control.APPROVED and self._waits and len(body) == 1:
            self._waits = False
        else:
            raise HandshakeError("credentials", "another control frame than was due")

    def _credentials(self) -> bytes:
        mechanism = self._mechanism
        if mechanism.name == PLAIN:
            return b"".join(bytes([len(one)]) + one for one in (mechanism.username, mechanism.password))
        assert mechanism.name == CURVE and self._keys is not None
        return _valid(self._keys.prove, bytes.fromhex(self._remote.key), self._conversation)

    def _checked(self, data: bytes) -> tuple[bytes, ...]:
        """The peer's credentials, as the authenticator gets them."""
        if self._mechanism.name == CURVE:
            assert self._keys is not None
            return (_valid(self._keys.proved, data, self._conversation),)
        username, rest = _short(data)
        password, rest = _short(rest)
        if rest:
            raise HandshakeError("credentials", "more than a name and a password")
        return username, password

    def _say(self, kind: Control, data: bytes) -> None:
        body = bytes([kind]) + data
        self.output += HEADER.pack(MAGIC, VERSION, self._socket_type, Flag.CONTROL, 0, 0, len(body), 0) + body


def _valid(call: Any, *arguments: bytes) -> bytes:
    """The result. Raises HandshakeError for a peer's key that is none."""
    try:
        made: bytes = call(*arguments)
    except SecurityError as error:
        raise HandshakeError("credentials", f"the peer's key: {error}") from error
    return made


def _short(data: bytes) -> tuple[bytes, bytes]:
    """A text behind its length, and what follows."""
    if not data or len(data) <= data[0]:
        raise HandshakeError("credentials", "a name or password that is cut off")
    end = 1 + data[0]
    return data[1:end], data[end:]


def _length(header: bytes) -> int:
    magic, version, _, flags, _, topic_length, length, _ = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION or flags != Flag.CONTROL or topic_length:
        raise HandshakeError("credentials", "a message where the other side's approval was due")
    if not 1 <= length <= MAX_FRAME:
        raise HandshakeError("credentials", f"a control frame of {length} bytes")
    return int(length)
