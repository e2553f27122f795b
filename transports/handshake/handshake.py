"""The exchange of hellos as a state machine: it takes bytes, and returns what to send and how it ended.

It reads exactly the bytes of the handshake, so that it takes nothing of the first message:

    begin()  -> bytes to send          the connecting side's hello
    peeking  -> pass it the first header with `look`, without reading it off the connection
    wants    -> how many bytes it needs next; pass at most so many to `feed`
    outcome  -> None, an Agreement, or the HandshakeError; then the driver sends the rest of `output`
    made(fd) -> after an Agreement: the transport of the data (see upgrade.py, whose dialogue comes before)

Reasons of a HandshakeError: those of `hello.REASONS`, which may come from either side; `refused` for
an unknown reason of the peer; `no_hello` (a message instead of the hello); and the driver's own:
`timeout`, `closed` (without a byte), `truncated` (in the middle), `broken` (by the network), `tls`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from transfer.transports.address import BASE, POLICIES
from transfer.transports.core.wire import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_DATA,
    MAX_TOPIC,
    TENSOR_HEADER_SIZE,
    VERSION,
    Flag,
    SocketType,
    arrived_type,
)
from transfer.transports.errors import HandshakeError, without_frames
from transfer.transports.handshake.authentication import Authentication
from transfer.transports.handshake.choice import Choice, strictness
from transfer.transports.handshake.compatibility import talks_to
from transfer.transports.handshake.curve import CurveKeys
from transfer.transports.handshake.foreign_protocols import foreign_protocol_error
from transfer.transports.handshake.hello import (
    MAX_HELLO,
    Agreement,
    Hello,
    decode_body,
    encode,
    encode_refusal,
    negotiate,
    plain_peer,
)
from transfer.transports.handshake.proving import Proving
from transfer.transports.handshake.upgrade import (
    Declined,
    Dialogue,
    Made,
    Refusal,
    Upgrade,
    UpgradeFactory,
    declined,
)
from transfer.transports.security.mechanism import NO_MECHANISM, Mechanism, Question, Verdict
from transfer.transports.security.proof import transcript

#: raises HandshakeError for a peer that cannot be accepted now
Admits = Callable[[Agreement], object]

_MAGIC = MAGIC.to_bytes(4, "little")
_PLAIN_FLAGS = Flag.TENSOR | Flag.TOPIC | Flag.ACK


class Handshake:
    """One connection's handshake, on this side. Not thread-safe.

    local: our hello, with a nonce for this connection. connecting: whether this side connected (and sends
    first). base: the transport of this connection. upgrades: makes this side's part of an upgrade.
    tokens: those that the peer may prove to know, ours first.
    guarded: unauthenticated peers get no more than the hello: faster transports are for authenticated peers.
    refusal: the only answer to a peer that connects.
    admits: raises HandshakeError for a peer that cannot be accepted now. Called before the accepting side's
    last step: after it the other side sends messages, which would be lost with the connection.
    mechanism: ZeroMQ's, of this side; keys: those of CURVE. address: of the peer, for the authenticator.
    """

    def __init__(
        self,
        local: Hello,
        *,
        connecting: bool,
        base: str = BASE,
        upgrades: UpgradeFactory | None = None,
        tokens: tuple[bytes, ...] = (),
        guarded: bool = False,
        refusal: HandshakeError | None = None,
        admits: Admits | None = None,
        mechanism: Mechanism = NO_MECHANISM,
        keys: CurveKeys | None = None,
        address: str = "",
    ) -> None:
        self.local = replace(
            local, proves=bool(tokens), mechanism=mechanism.word, approves=mechanism.approves
        )
        self.mechanism = mechanism
        self.connecting = connecting
        #: True until the first header was checked: it may be that of a plain peer's first message
        self.peeking = not connecting
        self.wants = HEADER_SIZE
        self.outcome: Agreement | HandshakeError | None = None
        #: bytes to send; the driver removes what it sent
        self.output = bytearray()
        self._base = base
        self._input = bytearray()
        self._socket_type: SocketType | None = None  # of the peer, once its header has arrived
        self._upgrades = upgrades
        self._agreed: Agreement | None = None
        self._dialogue: Dialogue | None = None  # of the upgrade, once hellos are exchanged
        self._tokens = tokens
        self._guarded = guarded
        self._refusal = refusal
        self._admits = admits
        self._proving: Proving | None = None  # of the token, before that
        self._keys, self._address = keys, address
        self._authentication: Authentication | None = None  # by a mechanism, between the two
        self._encrypted = self._authenticated = False
        self._binding = b""
        self._sent = b""  # our hello
        self._received = b""  # the peer's, so far

    def secured(self, binding: bytes, *, authenticated: bool) -> None:
        """The connection is TLS. binding: what proofs cover of it, as in `transcript`.
        authenticated: this side has checked the peer's certificate. Call it before `begin`."""
        self._encrypted, self._authenticated = True, authenticated
        self._binding = binding
        if self._keys is not None and self.mechanism.server:
            self.local = replace(self.local, key=self._keys.ephemeral.hex())
        self.peeking = False  # a TLS peer always sends a hello

    def begin(self) -> None:
        """Puts the connecting side's hello into `output`."""
        if self.connecting:
            self._sent = encode(self.local)
            self.output += self._sent

    def look(self, header: bytes) -> bool:
        """Checks the first 34 bytes, which were peeked at. False: too few, call again when more have arrived.

        After True either `outcome` is set (a plain peer, or bytes that are no frame), and nothing was
        taken, or the header is that of a hello, which is read with the rest.
        """
        if not _MAGIC.startswith(header[:4]) and not header.startswith(_MAGIC):
            self._fail(foreign_protocol_error(header), send=False)
            return True
        if len(header) < HEADER_SIZE:
            return False
        try:
            self._look(header[:HEADER_SIZE])
        except HandshakeError as error:
            self._fail(error, send=False)
        self.peeking = False
        return True

    def feed(self, data: bytes) -> None:
        """Takes the bytes that were read: at least one and at most `wants`."""
        assert data and len(data) <= self.wants and not self.peeking and self.outcome is None
        if self._dialogue is not None:
            self._feed_dialogue(data)
            return
        if self._proving is not None:
            self._feed_proving(self._proving, data)
            return
        if self._authentication is not None:
            self._step(self._authentication, partial(self._authentication.feed, data))
            return
        self._received += data
        self._input += data
        self.wants -= len(data)
        if self._socket_type is None and not self._input.startswith(_MAGIC[: len(self._input)]):
            # Before the header is complete: a peer of another protocol waits for our greeting, and sends no
            # more.
            self._fail(foreign_protocol_error(bytes(self._input)), send=False)
        if self.wants or self.outcome is not None:
            return
        try:
            if self._socket_type is None:
                self._socket_type, self.wants = _hello_header(bytes(self._input))
                self._input.clear()
            else:
                self._decide(decode_body(bytes(self._input), self._socket_type))
        except HandshakeError as error:
            if error.reason == "socket_type" and not error.hint:  # a refusal has no hint
                error = HandshakeError(error.reason, error.message, hint=talks_to(self.local.socket_type))
            self._fail(error, send=not self.connecting)

    @property
    def question(self) -> Question | None:
        """The question for the authenticator that is due; nothing is read before `answer`."""
        return None if self._authentication is None else self._authentication.question

    def answer(self, verdict: Verdict | None) -> None:
        """The authenticator's decision; None: there is none."""
        authentication = self._authentication
        if authentication is not None and authentication.question is not None:
            self._step(authentication, partial(authentication.answer, verdict))

    @property
    def begun(self) -> bool:
        """Some of the peer's bytes were taken."""
        return bool(self._input) or self._socket_type is not None

    def fail(self, reason: str, message: str, *, hint: str = "") -> None:
        """For the driver's own reasons: timeout, truncated. Sends nothing to the peer."""
        self._fail(HandshakeError(reason, message, hint=hint), send=False)

    # ------------------------------------------------------------------------------------------

    def _look(self, header: bytes) -> None:
        if HEADER.unpack(header)[3] & Flag.CONTROL:
            return
        socket_type = _plain_header(header, int(self.local.limits.get("max_message", MAX_DATA)))
        self.wants = 0
        self.outcome = self._negotiate(plain_peer(socket_type))

    def _decide(self, remote: Hello) -> None:
        agreement = self._negotiate(remote)
        if not self.connecting:
            if not (self.local.proves or self.local.approves):
                # else an unauthenticated peer would learn which others are connected
                self._check_admission(agreement)
            self._sent = encode(self.local)
            self.output += self._sent
        self._agreed = agreement
        if not self.local.proves:
            self._authenticate()
            return
        self._proving = Proving(
            self.local.socket_type, self._tokens, self._conversation, connecting=self.connecting
        )
        self._after_proof(self._proving)

    @property
    def _conversation(self) -> bytes:
        hellos = (self._sent, self._received) if self.connecting else (self._received, self._sent)
        return transcript(*hellos, self._binding)

    def _negotiate(self, remote: Hello) -> Agreement:
        if self._refusal is not None:
            raise self._refusal
        return negotiate(self.local, remote, base=self._base)

    def _feed_proving(self, proving: Proving, data: bytes) -> None:
        try:
            proving.feed(data)
            if proving.done and self._agreed is not None:
                self._check_admission(self._agreed)
        except HandshakeError as error:
            self._proving = None
            self._fail(error, send=True)
        else:
            self._after_proof(proving)

    def _check_admission(self, agreement: Agreement) -> None:
        if self._admits is not None and not self.connecting:
            self._admits(agreement)

    def _after_proof(self, proving: Proving) -> None:
        self.output += proving.output
        proving.output.clear()
        self.wants = proving.wants
        if proving.done:
            self._proving = None
            self._authenticated = True
            self._authenticate()

    def _authenticate(self) -> None:
        """By the mechanism, if one of the sides has to approve."""
        assert self._agreed is not None
        remote = self._agreed.remote
        if not self.local.approves and not remote.approves:
            self._agree(self._agreed)
            return
        made = Authentication(
            self.local.socket_type, self.mechanism, remote, self._address, self._conversation, self._keys
        )
        self._authentication = made
        self._step(made, made.begin)

    def _step(self, authentication: Authentication, step: Callable[[], object]) -> None:
        try:
            step()
            if authentication.output and self._agreed is not None:
                self._check_admission(self._agreed)
        except HandshakeError as error:
            self._authentication = None
            self._fail(error, send=True)
            return
        self.output += authentication.output
        authentication.output.clear()
        self.wants = authentication.wants
        if authentication.done:
            assert self._agreed is not None
            self._authentication = None
            self._authenticated |= authentication.authenticates
            self._agree(replace(self._agreed, properties=authentication.properties))

    def _agree(self, agreement: Agreement) -> None:
        agreement = replace(agreement, encrypted=self._encrypted, authenticated=self._authenticated)
        if agreement.choice.transport == self._base:
            self.outcome = agreement
        else:
            self._begin_upgrade(agreement)

    def _begin_upgrade(self, agreement: Agreement) -> None:
        self._agreed = agreement
        upgrade: Upgrade
        try:
            if self._guarded and not agreement.authenticated:
                raise Declined("stranger", "the peer has not authenticated")
            if self._upgrades is None:
                raise Declined("unavailable", f"nothing here sets up {agreement.choice.transport}")
            upgrade = self._upgrades(agreement, self.connecting)
        except Exception as error:  # noqa: BLE001 - also from another distribution's transport
            upgrade = Refusal(declined(error), connecting=self.connecting)
        self._dialogue = Dialogue(upgrade, self.local.socket_type)
        self._dialogue.begin()
        self._after_step()

    def _feed_dialogue(self, data: bytes) -> None:
        assert self._dialogue is not None and self._agreed is not None
        try:
            self._dialogue.feed(data)
        except HandshakeError as error:
            self._fail(error, send=False)
            return
        try:
            if self._dialogue.outcome is not None and self._dialogue.output:
                self._check_admission(self._agreed)
        except HandshakeError as error:
            self._fail(error, send=True)
        else:
            self._after_step()

    def _after_step(self) -> None:
        assert self._dialogue is not None and self._agreed is not None
        self.output += self._dialogue.output
        self._dialogue.output.clear()
        self.wants = self._dialogue.wants
        ended = self._dialogue.outcome
        if ended is None:
            return
        self.wants = 0
        if ended is True:
            self.outcome = self._agreed
            return
        assert isinstance(ended, Declined)
        self.abandon()
        wanted = self._agreed.choice.transport
        reason = f"{wanted} could not be set up: {str(ended).partition(chr(10))[0]}"
        if strictness(self.local.offer, self._agreed.remote.offer) >= POLICIES.index("require"):
            # The peer decides the same by itself, after it has received `output`.
            self.outcome = HandshakeError("policy", reason, hint=ended.hint)
            self.outcome.__cause__ = ended
            return
        choice = Choice(self._base, reason, fallback=True, wanted=wanted, word=ended.reason)
        self.outcome = replace(self._agreed, choice=choice)

    def made(self, fd: int, channel: Any = None) -> Made:
        """Makes the transport of the data, after an Agreement. `fd`: the connection, which belongs to the
        result; channel: TLS on it."""
        if self._dialogue is None:
            return Made(fd, channel=channel)
        try:
            made = self._dialogue.upgrade.made(fd, channel)
            if not isinstance(made, Made):
                raise TypeError(f"{made!r:.80} is no Made")
        except BaseException:
            self.abandon()
            raise
        self._dialogue = None
        return made

    def abandon(self) -> None:
        """Releases the resources of an upgrade, if there is one. Idempotent."""
        dialogue, self._dialogue = self._dialogue, None
        if dialogue is not None:
            try:
                dialogue.upgrade.close()
            except Exception as error:  # noqa: BLE001 - as above
                declined(error)

    def _fail(self, error: HandshakeError, *, send: bool) -> None:
        self.outcome = without_frames(error)
        self.abandon()
        self.peeking = False
        self.wants = 0
        self.output.clear()
        if send:
            self.output += encode_refusal(self.local.socket_type, error)


def _hello_header(header: bytes) -> tuple[SocketType, int]:
    """(socket type, length of the body) of a hello's or refusal's header. Raises HandshakeError."""
    magic, version, kind, flags, sequence, topic_length, length, checksum = HEADER.unpack(header)
    socket_type = _check_start(magic, version, kind)
    if not flags & Flag.CONTROL:
        raise HandshakeError("no_hello", "the peer sent a message where its hello was due")
    if flags != Flag.CONTROL or sequence or topic_length or checksum:
        raise HandshakeError("flags", "the header of the hello has more in it than a hello may have")
    if not 1 < length <= MAX_HELLO + 1:
        raise HandshakeError("length", f"a hello of {length} bytes; {MAX_HELLO + 1} are allowed")
    return socket_type, length


def _plain_header(header: bytes, max_data: int) -> SocketType:
    """The socket type of a peer whose first bytes are this message's header. Raises HandshakeError."""
    magic, version, kind, flags, _, topic_length, length, _ = HEADER.unpack(header)
    socket_type = _check_start(magic, version, kind)
    if flags & ~int(_PLAIN_FLAGS):
        raise HandshakeError("flags", "flags that need a hello before them")
    meta = TENSOR_HEADER_SIZE if flags & Flag.TENSOR else 0
    if topic_length > MAX_TOPIC or length > max_data + meta:
        raise HandshakeError(
            "length", f"a first message with a topic of {topic_length}, data of {length} bytes"
        )
    return socket_type


def _check_start(magic: int, version: int, kind: int) -> SocketType:
    if magic != MAGIC:
        raise HandshakeError("magic", "the first bytes are not those of a frame")
    if version != VERSION:
        raise HandshakeError("version", f"a frame of version {version}; this side understands {VERSION}")
    try:
        return arrived_type(kind)
    except ValueError as error:
        raise HandshakeError("socket_type", f"{kind} is no socket type") from error
