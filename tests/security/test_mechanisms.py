"""ZeroMQ's mechanisms in a handshake, without sockets: what each side says, takes and refuses."""

from __future__ import annotations

import os
from typing import Any

import pytest

from transfer.transports.core.wire import HEADER, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError, SecurityError
from transfer.transports.handshake.authentication import Authentication
from transfer.transports.handshake.curve import BASE_POINT, CurveKeys
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import APPROVAL, Agreement, plain_peer
from transfer.transports.handshake.identity import FEATURES, make_hello
from transfer.transports.security.mechanism import CURVE, PLAIN, Mechanism, Question, Verdict

native = pytest.importorskip("transfer.transports.core.native")

ACCEPTED, REFUSED = Verdict(200, properties={"User-Id": "someone"}), Verdict(400, "no")
BINDING = b"b" * 32


def never(question, decided):
    raise AssertionError("the driver asks, and here that is the test")


NULL_ASKS = Mechanism(asks=never)
PLAIN_SERVER = Mechanism(PLAIN, server=True, asks=never, required=True)
PLAIN_CLIENT = Mechanism(PLAIN, username=b"admin", password=b"correct")


def curve(**changed: Any) -> tuple[Mechanism, Mechanism]:
    """(the server's side, the client's)."""
    secrets = os.urandom(32), os.urandom(32)
    key = native.x25519(secrets[0], BASE_POINT)
    return (
        Mechanism(CURVE, server=True, secret=secrets[0], asks=never, core=native),
        Mechanism(CURVE, **{"secret": secrets[1], "server_key": key, "core": native, **changed}),
    )


def shaken(
    mechanism: Mechanism, *, connecting: bool, binding: bytes = BINDING, admits: Any = None, **changed: Any
) -> Handshake:
    keys = CurveKeys(mechanism) if mechanism.encrypts else None
    made = Handshake(
        make_hello(SocketType.PUSH if connecting else SocketType.PULL, **changed),
        connecting=connecting, mechanism=mechanism, keys=keys, address="10.0.0.1", admits=admits,
    )  # fmt: skip
    if keys is not None:
        made.secured(binding, authenticated=False)
    made.begin()
    return made


def passed(source: Handshake, target: Handshake) -> None:
    """What one side has said, in the pieces that the other one wants."""
    while source.output and target.outcome is None and target.question is None:
        data = bytes(source.output)
        if target.peeking:
            target.look(data[:34])
            continue
        part = data[: target.wants]
        del source.output[: len(part)]
        target.feed(part)


def run(one: Handshake, other: Handshake, verdict: Verdict | None = ACCEPTED) -> list[Question]:
    """Until neither has more to say; returns what the authenticator was asked."""
    asked = []
    for _ in range(8):
        for source, target in ((one, other), (other, one)):
            passed(source, target)
            if target.question is not None:
                asked.append(target.question)
                target.answer(verdict)
    return asked


def both(one: Mechanism, other: Mechanism) -> list[tuple[Handshake, Handshake]]:
    """Whichever of the two connects."""
    return [
        (shaken(one, connecting=True), shaken(other, connecting=False)),
        (shaken(one, connecting=False), shaken(other, connecting=True)),
    ]


def reasons(*sides: Handshake) -> list[str]:
    return [side.outcome.reason if isinstance(side.outcome, HandshakeError) else "" for side in sides]


@pytest.mark.parametrize("mechanism", ["null", "plain", "curve"])
def test_both_agree(mechanism):
    server, client = {
        "null": (NULL_ASKS, Mechanism()),
        "plain": (PLAIN_SERVER, PLAIN_CLIENT),
        "curve": curve(),
    }[mechanism]
    for one, other in both(server, client):
        asked = run(one, other)
        assert isinstance(one.outcome, Agreement) and isinstance(other.outcome, Agreement)
        kind = other.local.socket_type.name
        known = {"Socket-Type": kind, "Identity": "", "Peer-Address": "10.0.0.1"}
        assert one.outcome.properties == {"User-Id": "someone", **known}
        assert not other.outcome.properties
        assert [(question.mechanism, question.address) for question in asked] == [(server.name, "10.0.0.1")]
        assert one.outcome.authenticated is (mechanism != "null")
        assert other.outcome.authenticated is (mechanism == "curve")


def test_without_a_verdict_a_client_of_curve_has_not_authenticated():
    for one, other in both(*curve()):
        run(one, other, None)
        assert not one.outcome.authenticated and other.outcome.authenticated


@pytest.mark.parametrize("mechanism", ["null", "plain", "curve"])
@pytest.mark.parametrize("verdict", [ACCEPTED, REFUSED])
def test_who_is_connected_is_not_for_unauthenticated_peers(mechanism, verdict):
    """The place may be taken, but only a peer that is approved learns that."""

    def taken(agreement):
        raise HandshakeError("identity", "another socket has this identity")

    server, client = {
        "null": (NULL_ASKS, Mechanism()),
        "plain": (PLAIN_SERVER, PLAIN_CLIENT),
        "curve": curve(),
    }[mechanism]
    one, other = shaken(server, connecting=False, admits=taken), shaken(client, connecting=True)
    run(one, other, verdict)
    assert reasons(one, other) == ["identity" if verdict is ACCEPTED else "denied_400"] * 2


@pytest.mark.parametrize("mechanism", ["null", "plain", "curve"])
def test_neither_goes_on_before_the_decision(mechanism):
    server, client = {
        "null": (NULL_ASKS, Mechanism()),
        "plain": (PLAIN_SERVER, PLAIN_CLIENT),
        "curve": curve(),
    }[mechanism]
    for one, other in both(server, client):
        for _ in range(8):
            passed(one, other)
            passed(other, one)
        assert one.question is not None and one.outcome is None and other.outcome is None
        assert one.wants == 0 and not one.output
        one.answer(REFUSED)
        passed(one, other)
        assert reasons(one, other) == ["denied_400", "denied_400"]
        assert "no" not in str(other.outcome).split("\n")[0].split(), "the authenticator's reason is not sent"


def test_credentials_are_sent_to_a_server_of_the_mechanism_only():
    for other in (Mechanism(), NULL_ASKS, PLAIN_CLIENT):
        for one, two in both(PLAIN_CLIENT, other):
            said = bytearray()
            for _ in range(8):
                for source, target in ((one, two), (two, one)):
                    said += source.output
                    passed(source, target)
            assert b"correct" not in said
            assert set(reasons(one, two)) == {"mechanism"}


def test_an_authenticator_that_is_required():
    for one, other in both(PLAIN_SERVER, PLAIN_CLIENT):
        run(one, other, None)
        assert reasons(one, other) == ["denied_500", "denied_500"]


@pytest.mark.parametrize("mechanism", [NULL_ASKS, PLAIN_SERVER, PLAIN_CLIENT])
def test_a_peer_without_hello_is_refused(mechanism):
    side = shaken(mechanism, connecting=False)
    side.look(HEADER.pack(MAGIC, VERSION, SocketType.PUSH, 0, 1, 0, 5, 0))
    assert reasons(side) == ["mechanism"]
    assert plain_peer(SocketType.PUSH).mechanism == ""


def test_an_older_peer_does_not_wait_and_is_refused():
    old = shaken(Mechanism(), connecting=True, features=FEATURES - {APPROVAL})
    side = shaken(NULL_ASKS, connecting=False)
    run(old, side)
    assert reasons(side) == ["mechanism"]


# --- CURVE ----------------------------------------------------------------------------------------


def test_another_servers_key_is_no_use():
    """TLS refuses it; if it did not, the proof would."""
    server, client = curve()
    _, other = curve()
    wrong = Mechanism(CURVE, secret=client.secret, server_key=other.server_key, core=native)
    one, two = shaken(server, connecting=False), shaken(wrong, connecting=True)
    assert not run(one, two)
    assert reasons(one, two) == ["credentials", "credentials"]


@pytest.mark.parametrize("part", ["key", "proof"])
def test_credentials_of_another_client_are_no_use(part):
    """Not even those that it sent to this server on another connection."""
    server, client = curve()
    recorded = CurveKeys(client).prove(CurveKeys(server).ephemeral, b"another conversation")
    keys = CurveKeys(server)
    good = CurveKeys(client).prove(keys.ephemeral, b"this one")
    assert keys.proved(good, b"this one") == native.x25519(client.secret, BASE_POINT)
    mixed = (
        native.x25519(os.urandom(32), BASE_POINT) + good[32:] if part == "key" else good[:32] + recorded[32:]
    )
    for bad in (mixed, recorded, good[:-1], good + b"x", b"", bytes(64)):
        with pytest.raises((HandshakeError, SecurityError)):
            keys.proved(bad, b"this one")


def test_the_proof_is_for_one_connection():
    """A server in between cannot pass it on: its two connections have different bindings."""
    server, client = curve()
    one = shaken(server, connecting=False, binding=b"1" * 32)
    two = shaken(client, connecting=True, binding=b"2" * 32)
    assert not run(one, two)
    assert reasons(one, two) == ["credentials", "credentials"]


def test_every_connection_has_keys_of_its_own():
    server, client = curve()
    assert len({CurveKeys(each).ephemeral for each in (server, server, client, client)}) == 4


@pytest.mark.parametrize("key", ["", "00" * 32, "0100" + "00" * 30, "ab" * 31])
def test_a_server_with_a_bad_key_for_the_connection(key):
    server, client = curve()
    one, two = shaken(server, connecting=False), shaken(client, connecting=True)
    one.local = type(one.local)(
        **{name: getattr(one.local, name) for name in one.local.__slots__} | {"key": key}
    )
    run(one, two)
    assert reasons(two)[0] in ("mechanism", "credentials")


# --- what a peer may send -------------------------------------------------------------------------


def framed(data: bytes, flags: int = Flag.CONTROL, length: int | None = None) -> bytes:
    size = len(data) if length is None else length
    return HEADER.pack(MAGIC, VERSION, SocketType.PUSH, flags, 0, 0, size, 0) + data


def credentials(*texts: bytes) -> bytes:
    return bytes([Control.CREDENTIALS]) + b"".join(bytes([len(text)]) + text for text in texts)


@pytest.mark.parametrize(
    "data",
    [
        framed(b"hello", flags=0),
        framed(b"", length=0),
        framed(b"", length=1 << 40),
        framed(b"", length=5000),
        framed(bytes([Control.APPROVED])),
        framed(bytes([Control.APPROVED]) + b"x"),
        framed(bytes([Control.HELLO]) + b"{}"),
        framed(bytes([Control.PROOF]) + bytes(33)),
        framed(bytes([Control.CREDENTIALS])),
        framed(bytes([Control.CREDENTIALS]) + b"\xff"),
        framed(credentials(b"admin")),
        framed(credentials(b"admin", b"correct") + b"x"),
        framed(credentials(b"admin", b"correct", b"more")),
        framed(bytes([Control.REFUSED])),
        framed(bytes([Control.REFUSED]) + b'{"reason": "denied_400"}'),
        framed(bytes([Control.REFUSED]) + b"[" * 4000),
        b"GET / HTTP/1.1\r\nHost: a-long-name\r\n\r\n",
    ],
)  # fmt: skip
def test_anything_else_than_credentials_is_refused(data):
    side = Authentication(SocketType.PULL, PLAIN_SERVER, make_hello(SocketType.PUSH), "", b"", None)
    side.begin()
    with pytest.raises(HandshakeError):
        for _ in range(3):
            part, data = data[: side.wants], data[side.wants :]
            side.feed(part)
    assert side.question is None


def test_credentials_come_once():
    side = Authentication(SocketType.PULL, PLAIN_SERVER, make_hello(SocketType.PUSH), "", b"", None)
    side.begin()
    data = framed(credentials(b"admin", b"correct"))
    side.feed(data[:34]), side.feed(data[34:])
    assert side.question == Question(PLAIN, "", (b"admin", b"correct")) and side.wants == 0
    side.answer(ACCEPTED)
    assert side.done and side.wants == 0


def test_no_text_has_a_secret():
    server, client = curve()
    for each in (PLAIN_CLIENT, server, client, Question(PLAIN, "", (b"admin", b"correct"))):
        shown = f"{each!r}{each!s}"
        for secret in (b"correct", b"admin", server.secret, client.secret):
            assert repr(secret)[2:-1] not in shown
