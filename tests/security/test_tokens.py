"""Tokens: proved by both sides, for one conversation alone, and never sent."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.security.conftest import TOKEN
from tests.security.relay import Relay
from transfer.transports.address import parse
from transfer.transports.core.wire import HEADER_SIZE, Control, SocketType
from transfer.transports.errors import HandshakeError, SecurityError
from transfer.transports.handshake.hello import PROVES_FIRST, encode
from transfer.transports.handshake.identity import FEATURES, make_hello
from transfer.transports.handshake.proving import Proving
from transfer.transports.security import credentials as module, proof
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.proof import ACCEPTING, CONNECTING, prove, proved_token, transcript
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until

OTHER = "4562ddd1c277bf3c39f024c0574f4c6d"
SECURITY = Security(token=TOKEN)


def read_frame(end: socket.socket) -> bytes:
    """The next frame, whole; b"": the peer has closed."""
    data = b""
    size = HEADER_SIZE
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            return b""
        data += part
        if len(data) >= HEADER_SIZE:
            size = HEADER_SIZE + int.from_bytes(data[22:30], "little")
    return data


class Peer:
    """One who connects, and says what a test tells him to."""

    def __init__(self, address, hello: bytes = b"") -> None:
        self.end = socket.create_connection((address.host, address.port), timeout=10)
        self.hello = hello or encode(make_hello(SocketType.PUSH, proves=True))
        self.end.sendall(self.hello)
        self.heard = read_frame(self.end)

    @property
    def said(self) -> bytes:
        return transcript(self.hello, self.heard, b"")

    def prove(self, mac: bytes) -> bytes:
        """What the answer is: a control byte and the rest."""
        data = bytes([Control.PROOF, 0]) + mac
        self.end.sendall(self.hello[:22] + len(data).to_bytes(8, "little") + bytes(4) + data)
        return read_frame(self.end)[HEADER_SIZE:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.close()


def test_both_know_it(pair):
    server, address = pair.serve(SECURITY)
    client = pair.reach(address, SECURITY)
    pair.meets(server, client)
    for side in (server, client):
        agreement = side.connected[0].agreement
        assert agreement.authenticated and not agreement.encrypted


@pytest.mark.parametrize("ours", [{"token": OTHER}, {}], ids=["another", "none"])
@pytest.mark.parametrize("side", ["server", "client"])
def test_one_has_another_or_none(pair, side, ours):
    both = SECURITY, Security(**ours)
    server, address = pair.serve(both[side == "client"])
    client = pair.reach(address, both[side == "server"])
    for error in pair.refused(server, client):
        assert isinstance(error, HandshakeError) and error.reason == "token"
        assert TOKEN not in str(error) and OTHER not in str(error)


def test_the_peer_of_these_tests_can_prove_it(pair):
    server, address = pair.serve(SECURITY)
    with Peer(address) as peer:
        answer = peer.prove(prove(TOKEN.encode(), CONNECTING, peer.said))
        assert answer == bytes([Control.PROOF, 0]) + prove(TOKEN.encode(), ACCEPTING, peer.said)
    until(lambda: server.connected, "the connection")


def test_an_unauthenticated_peer_gets_nothing_to_guess_the_token_by(pair):
    """The accepting side proves nothing to a peer that has not proved the token itself."""
    server, address = pair.serve(SECURITY, timeout=0.5)
    with Peer(address) as peer:
        rest = read_frame(peer.end)
        assert rest[HEADER_SIZE : HEADER_SIZE + 1] != bytes([Control.PROOF])
    until(lambda: server.failed, "the end")
    with Peer(address) as peer:
        answer = peer.prove(prove(b"guessed", CONNECTING, peer.said))
        assert answer[:1] == bytes([Control.REFUSED])


@pytest.mark.parametrize("old", ["server", "client"])
def test_older_versions_with_a_token_are_refused_at_once(pair, old):
    """Their accepting side proves first. It is named what they are, long before the handshake's time ends."""
    before = FEATURES - {PROVES_FIRST}
    server, address = pair.serve(SECURITY, **({"features": before} if old == "server" else {}))
    client = pair.reach(address, SECURITY, **({"features": before} if old == "client" else {}))
    new, peer = (client, server) if old == "server" else (server, client)
    until(lambda: new.failed and peer.failed, "the refusal")
    assert new.failed[0].reason == "token" and "the peer is an older version" in str(new.failed[0])
    assert peer.failed[0].reason in ("token", "closed", "truncated")
    if old == "client":
        assert "this side is an older version" in str(peer.failed[0])


def test_older_versions_without_a_token_are_served(pair):
    server, address = pair.serve(Security(), features=FEATURES - {PROVES_FIRST})
    pair.meets(server, pair.reach(address, Security()))


WRONG = {
    "nothing": lambda peer: b"",
    "zeros": lambda peer: bytes(32),
    "with a name": lambda peer: b"\x03one" + prove(TOKEN.encode(), CONNECTING, peer.said, b"one"),
    "a piece": lambda peer: prove(TOKEN.encode(), CONNECTING, peer.said)[:-1],
    "more than it": lambda peer: prove(TOKEN.encode(), CONNECTING, peer.said) + b"\0",
    "of the other side": lambda peer: prove(TOKEN.encode(), ACCEPTING, peer.said),
    "of the hellos exchanged": lambda peer: prove(
        TOKEN.encode(), CONNECTING, transcript(peer.heard, peer.hello, b"")
    ),
    "of another certificate": lambda peer: prove(
        TOKEN.encode(), CONNECTING, transcript(peer.hello, peer.heard, b"x")
    ),
    "by no token": lambda peer: prove(b"", CONNECTING, peer.said),
    "the token": lambda peer: TOKEN.encode().ljust(32)[:32],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_proofs_that_are_none(pair, wrong):
    server, address = pair.serve(SECURITY)
    with Peer(address) as peer:
        answer = peer.prove(WRONG[wrong](peer))
        assert answer[:1] == bytes([Control.REFUSED]) and b"token" in answer
        assert not read_frame(peer.end), "and then it closes"
    until(lambda: server.failed, "the refusal")
    assert server.failed[0].reason == "token" and not server.connected


def test_a_proof_of_another_connection(pair):
    """Even of the same client to the same server, with the same hello, while both are open."""
    server, address = pair.serve(SECURITY)
    with Peer(address) as one, Peer(address, one.hello) as other:
        good = prove(TOKEN.encode(), CONNECTING, one.said)
        assert other.prove(good)[:1] == bytes([Control.REFUSED])
        assert one.prove(good)[:1] == bytes([Control.PROOF])
    until(lambda: server.connected and server.failed, "both ends")
    assert len(server.connected) == 1


def test_a_conversation_that_was_overheard(pair):
    """All that a good client said, said again: refused, at once and later. The token was not in it."""
    server, address = pair.serve(SECURITY)
    with Relay(address) as between:
        client = pair.reach(between.address, SECURITY)
        pair.meets(server, client)
        said = bytes(between.said[0][True])
        both = said + bytes(between.said[0][False])
    assert TOKEN.encode() not in both and TOKEN.encode().hex().encode() not in both
    for _ in range(2):
        server.failed.clear()
        with socket.create_connection((address.host, address.port), timeout=10) as thief:
            thief.sendall(said)
            until(lambda: server.failed, "the refusal")
        assert server.failed[0].reason == "token"
    assert len(server.connected) == 1


def test_a_server_that_was_overheard(pair):
    """Who recorded the server's part cannot play it to a client that comes later."""
    server, address = pair.serve(SECURITY)
    with Relay(address) as between:
        pair.meets(server, pair.reach(between.address, SECURITY))
        said = bytes(between.said[0][False])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = pair.reach(parse(f"tcp://127.0.0.1:{listener.getsockname()[1]}"), SECURITY)
        thief, _ = listener.accept()
        with thief:
            thief.sendall(said)
            until(lambda: client.failed, "the refusal")
    assert client.failed[0].reason == "token" and not client.connected


@pytest.mark.parametrize("connecting", [True, False])
def test_who_changes_a_hello_on_the_way(pair, connecting):
    """Another wish, another nonce: the proofs are of what was said."""
    change = (b'"lazy":false', b'"lazy": true')
    server, address = pair.serve(SECURITY)
    with Relay(address, lambda side, data: data.replace(*change) if side == connecting else data) as between:
        found, told = pair.refused(server, pair.reach(between.address, SECURITY))
    assert found.reason == told.reason == "token"


def test_who_shows_a_certificate_of_his_own_in_between(pair, pki):
    """He has one that the client would take, and passes on every word between two connections with TLS."""
    security = pki.security(clients="token", token=TOKEN)
    server, address = pair.serve(security)
    thief = pki.authority.issue("thief")
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(thief.certificate, thief.key)
    connecting = ssl.create_default_context(cafile=pki.authority.path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = pair.reach(parse(f"tcp://127.0.0.1:{listener.getsockname()[1]}"), security)
        plain, _ = listener.accept()
        with (
            accepting.wrap_socket(plain, server_side=True) as near,
            socket.create_connection((address.host, address.port), timeout=10) as raw,
            connecting.wrap_socket(raw, server_hostname=address.host) as far,
        ):
            far.sendall(read_frame(near))
            near.sendall(read_frame(far))
            far.sendall(read_frame(near))
            refusal = read_frame(far)
            assert refusal[HEADER_SIZE] == Control.REFUSED
            near.sendall(refusal)
            until(lambda: client.failed and server.failed, "the refusal")
    assert client.failed[0].reason == server.failed[0].reason == "token"


# --- several at once -----------------------------------------------------------------------------


def test_a_token_is_changed_without_a_pause(pair, tmp_path, monkeypatch):
    """First all take the new one, then all show it, then nobody takes the old one."""
    monkeypatch.setattr(module, "_LOOK", 0.0)
    file, one, two = (
        tmp_path / "tokens",
        "340751ebba5d16a4c5880014500b6993",
        "46221ee0bf27e3fdd06470f56f319d17",
    )
    file.write_text(one)
    known = Credentials(Security(token_file=str(file)), pair.core)
    server, address = pair.serve(known.security, credentials=known)

    def comes_in(*tokens):
        count = len(server.connected)
        theirs = tmp_path / "theirs"
        theirs.write_text("\n".join(tokens))
        client = pair.reach(address, Security(token_file=str(theirs)))
        until(lambda: client.connected or client.failed, "an answer")
        until(lambda: client.failed or len(server.connected) > count, "the connection")
        return bool(client.connected)

    assert comes_in(one) and not comes_in(two)
    file.write_text(f"{one}\n\n  {two}  \n")
    assert comes_in(one) and comes_in(two, one) and comes_in(two), "the proof is by the one that came"
    file.write_text(f"{two}\n{one}\n")
    assert comes_in(one, two) and comes_in(two)
    file.write_text(two)
    assert comes_in(two) and not comes_in(one)
    file.write_text("")
    assert comes_in(two) and known.failures


@pytest.mark.parametrize(
    "text", [b"", b"\n \n", b"short", b"52887e6520ab92e83983741456303ec6\nshort", b"\xff" * 40]
)
def test_files_without_a_good_token(core, tmp_path, text):
    file = tmp_path / "tokens"
    file.write_bytes(text)
    with pytest.raises(SecurityError) as caught:
        Credentials(Security(token_file=file), core)
    assert str(file) in str(caught.value) and "52887e6520ab92e83983741456303ec6" not in str(caught.value)
    with pytest.raises(SecurityError):
        Credentials(Security(token_file=str(tmp_path / "none")), core)


# --- the state machine, which is pure --------------------------------------------------------------


def run(one: Proving, other: Proving, sizes: list[int]) -> None:
    """Bytes go both ways in pieces, until both have nothing to say."""
    number = 0
    while one.output or other.output:
        for source, target in ((one, other), (other, one)):
            while source.output:
                size = min(sizes[number % len(sizes)], len(source.output), target.wants)
                number += 1
                if not size:
                    return
                data = bytes(source.output[:size])
                del source.output[:size]
                target.feed(data)


TOKENS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=3, unique=True).map(tuple)


@given(
    TOKENS, TOKENS, st.binary(max_size=50), st.binary(max_size=50), st.lists(st.integers(1, 80), min_size=1)
)
def test_both_are_done_or_one_refuses(ours, theirs, said, heard, sizes):
    """A model: good if the accepting side knows what the other shows, and both mean the same conversation."""
    connecting = Proving(SocketType.PUSH, ours, said, connecting=True)
    accepting = Proving(SocketType.PULL, theirs, heard, connecting=False)
    good = said == heard and ours[0] in theirs
    try:
        run(connecting, accepting, sizes)
    except HandshakeError as error:
        refused = error.reason
    else:
        refused = ""
    assert refused == ("" if good else "token")
    assert (connecting.done and accepting.done) == good


@given(st.booleans(), st.binary(min_size=1, max_size=200), st.lists(st.integers(1, 60), min_size=1))
def test_garbage_never_proves_anything(connecting, data, sizes):
    side = Proving(SocketType.PULL, (TOKEN.encode(),), b"said", connecting=connecting)
    number = 0
    try:
        while data and not side.done:
            assert 0 < side.wants <= 4096
            size = min(sizes[number % len(sizes)], side.wants)
            side.feed(data[:size])
            data, number = data[size:], number + 1
    except HandshakeError as error:
        data = error.reason.encode()
    assert not side.done and data in (b"", b"token")


@given(
    st.lists(st.binary(max_size=20), min_size=3, max_size=3),
    st.lists(st.binary(max_size=20), min_size=3, max_size=3),
)
def test_transcripts_tell_all_conversations_apart(one, other):
    """Also where the same bytes are divided otherwise."""
    assert (transcript(*one) == transcript(*other)) == (one == other)
    assert transcript(b"ab", b"", b"") != transcript(b"a", b"b", b"")


def test_proofs_by_any_of_the_tokens():
    tokens = b"one", b"two"
    for token in tokens:
        assert proved_token(tokens, CONNECTING, b"said", prove(token, CONNECTING, b"said")) == token
    for bad in (b"", b"x" * 32, prove(b"one", ACCEPTING, b"said"), prove(b"one", CONNECTING, b"other")):
        assert proved_token(tokens, CONNECTING, b"said", bad) is None
    assert proved_token((), CONNECTING, b"said", prove(b"", CONNECTING, b"said")) is None


def test_that_they_are_compared_in_constant_time():
    """Not by `==`, whose time tells how much of a guess was right."""
    assert "compare_digest" in Path(proof.__file__).read_text()
