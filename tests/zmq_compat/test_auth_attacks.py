"""Hostile and broken peers and authenticators: none lets a message through, and none keeps others waiting."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress

import pytest

import transfer.zmq as zmq
from tests.security.relay import Relay
from tests.zmq_compat.conftest import keeping
from tests.zmq_compat.zap_handler import ADDRESS, Handler, accept, refuse
from transfer import certificates
from transfer.transports.address import Address
from transfer.transports.core import pure
from transfer.transports.core.wire import HEADER, MAGIC, VERSION, SocketType
from transfer.transports.errors import NotSupported, SecurityError
from transfer.transports.handshake import exchange
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.security.mechanism import Question
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until
from transfer.zmq import zap

PLAIN = {"plain_username": b"admin", "plain_password": b"a-secret-password"}
PUBLIC, SECRET = zmq.curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = zmq.curve_keypair()
CURVE_SERVER = {"curve_server": 1, "curve_secretkey": SECRET}
CURVE = {"curve_serverkey": PUBLIC, "curve_publickey": CLIENT_PUBLIC, "curve_secretkey": CLIENT_SECRET}
#: (the server's options, the client's), by mechanism
MECHANISMS = {
    "NULL": ({"zap_domain": b"global"}, {}),
    "PLAIN": ({"plain_server": 1}, PLAIN),
    "CURVE": (CURVE_SERVER, CURVE),
}
#: ms in which nothing may arrive
QUIET = 200


@pytest.fixture(params=MECHANISMS)
def options(request):
    return MECHANISMS[request.param]


@pytest.fixture(autouse=True)
def on_tcp(monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", "off")


@pytest.fixture
def ctx(on_tcp):
    with ExitStack() as stack:
        context = keeping(zmq.Context, [])()
        stack.callback(context.destroy, 0)
        context.setsockopt(zmq.LINGER, 0)
        context.setsockopt(zmq.RCVTIMEO, 5000)
        yield context


def made(ctx, kind, options):
    sock = ctx.socket(kind)
    for name, value in options.items():
        setattr(sock, name, value)
    return sock


def listening(ctx, options, **more):
    pull = made(ctx, zmq.PULL, {**options, **more})
    pull.bind("tcp://127.0.0.1:*")
    return pull


def connected(ctx, pull, options, **more):
    push = made(ctx, zmq.PUSH, {**options, **more})
    push.connect(pull.last_endpoint)
    return push


def raw(pull):
    host, port = pull.last_endpoint.decode().removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def unfinished(pull):
    [record] = pull._links.state.endpoints
    return record.acceptor._listener.unfinished


# --- peers ----------------------------------------------------------------------------------------

GARBAGE = {
    "zeros": bytes(100),
    "random": os.urandom(4000),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 506,
    "ZMTP": b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(50),
    "a message": HEADER.pack(MAGIC, VERSION, SocketType.PUSH, 0, 1, 0, 5, 0) + b"hello",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage(ctx, options, data):
    server, client = options
    with Handler(zmq, ctx) as handler:
        pull = listening(ctx, server)
        with raw(pull) as peer:
            peer.sendall(data)
            peer.settimeout(5)
            with suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass
        assert not handler.asked and not pull.poll(0)
        connected(ctx, pull, client).send(b"x")
        assert pull.recv() == b"x"


def test_a_client_that_stops_in_the_middle(ctx, options):
    """Its handshake has a deadline, and others do not wait for it."""
    server, client = options
    with Handler(zmq, ctx):
        pull = listening(ctx, server, handshake_ivl=300)
        said = bytearray()

        def first_part(connecting, data):
            if connecting:
                said.extend(data)
            return data

        address = pull._links.state.endpoints[0].acceptor.address
        with Relay(address, first_part) as relay:
            push = made(ctx, zmq.PUSH, client)
            push.connect(str(relay.address))
            push.send(b"x")
            assert pull.recv() == b"x"
            push.close()
        for size in (1, 34, len(said) // 2):
            with raw(pull) as peer:
                peer.sendall(said[:size])
                other = connected(ctx, pull, client)
                other.send(b"y")
                assert pull.recv() == b"y"
                other.close()
                until(lambda: not unfinished(pull), "the end of the handshake")
        assert not pull.poll(0)


def test_a_recorded_client_is_no_client(ctx, options):
    """All that a client has said, again: only NULL and PLAIN without TLS have nothing against it."""
    server, client = options
    if "curve_server" not in server:
        pytest.skip("NULL and PLAIN protect nothing on the network")
    with Handler(zmq, ctx) as handler:
        pull = listening(ctx, server)
        with Relay(pull._links.state.endpoints[0].acceptor.address) as relay:
            push = made(ctx, zmq.PUSH, client)
            push.connect(str(relay.address))
            push.send(b"x")
            assert pull.recv() == b"x"
            push.close()
        with raw(pull) as peer:
            peer.sendall(relay.said[0][True])
            peer.settimeout(5)
            with suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass
        assert len(handler.asked) == 1 and not pull.poll(0)


def test_curve_hides_messages_keys_and_names(ctx):
    with Handler(zmq, ctx):
        pull = listening(ctx, {**CURVE_SERVER, "routing_id": b"the-servers-name"})
        with Relay(pull._links.state.endpoints[0].acceptor.address) as relay:
            push = made(ctx, zmq.PUSH, {**CURVE, "routing_id": b"the-clients-name"})
            push.connect(str(relay.address))
            push.send(b"a message that is not to be read")
            assert pull.recv() == b"a message that is not to be read"
        [said] = relay.said
        everything = bytes(said[True] + said[False])
        decode = zmq.z85.decode
        for text in (
            b"not to be read",
            b"name",
            b"CURVE",
            b"curve_server",
            CLIENT_PUBLIC,
            decode(CLIENT_PUBLIC),
            decode(PUBLIC),
        ):
            assert text not in everything and text.hex().encode() not in everything


@pytest.mark.parametrize("at", [20, 200, 400, 700])
@pytest.mark.parametrize("connecting", [True, False])
def test_curve_notices_every_change(ctx, at, connecting):
    changed = []

    def change(from_client, data):
        place = at - sum(changed)
        if from_client is not connecting or not place >= 0:
            return data
        changed.append(len(data))
        if place >= len(data):
            return data
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    pull = listening(ctx, CURVE_SERVER)
    with Relay(pull._links.state.endpoints[0].acceptor.address, change) as relay:
        push = made(ctx, zmq.PUSH, {**CURVE, "reconnect_ivl": 60_000})
        push.connect(str(relay.address))
        push.send(b"x" * 1000)
        until(lambda: sum(changed) > at, "the change")
        assert not pull.poll(QUIET) or pull.recv() == b"x" * 1000  # it was behind all that was said


def test_messages_of_a_peer_that_does_not_wait(ctx):
    """They are not read before the decision, and a refusal ends them."""
    with Handler(zmq, ctx, refuse) as handler:
        pull = listening(ctx, {"zap_domain": b"global"})
        endpoint = pull._links.state.endpoints[0]
        with raw(pull) as peer:
            peer.sendall(encode(make_hello(SocketType.PUSH)))
            peer.sendall(HEADER.pack(MAGIC, VERSION, SocketType.PUSH, 0, 1, 0, 5, 0) + b"hello")
            until(lambda: handler.asked, "the question")
            assert not pull.poll(QUIET)
        assert not pull._links.state.peers and endpoint.acceptor is not None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_many_silent_and_unfinished_connections(ctx, mechanism):
    """They cost a descriptor each, for a time; a good client gets in."""
    server, client = MECHANISMS[mechanism]
    with Handler(zmq, ctx), ExitStack() as stack:
        pull = listening(ctx, server, handshake_ivl=700, backlog=1000)
        for number in range(200):
            peer = stack.enter_context(raw(pull))
            if number % 2:
                peer.sendall(b"\x16\x03\x01" if mechanism == "CURVE" else MAGIC.to_bytes(4, "little"))
        connected(ctx, pull, client).send(b"x")
        assert pull.recv() == b"x"
        until(lambda: not unfinished(pull), "the end of all handshakes")


# --- authenticators -------------------------------------------------------------------------------


def test_an_authenticator_that_never_answers(ctx, options):
    """The handshake ends in time. Others that need no answer connect meanwhile."""
    server, client = options
    with Handler(zmq, ctx, lambda _: time.sleep(0.6), "ROUTER") as handler:
        pull = listening(ctx, server, handshake_ivl=300)
        push = connected(ctx, pull, client, handshake_ivl=300)
        push.send(b"x")
        until(lambda: handler.asked, "the question")
        free = listening(ctx, {})
        connected(ctx, free, {}).send(b"y")
        assert free.recv() == b"y"
        assert not pull.poll(QUIET)
        push.close()
        until(lambda: not unfinished(pull), "the end of the handshake")


@pytest.mark.parametrize("kind", ["REP", "ROUTER"])
def test_an_answer_that_comes_too_late(ctx, kind):
    """It is for a connection that has ended, and the authenticator lives on."""
    late, answers = threading.Event(), []

    def decide(request):
        if not late.is_set():
            time.sleep(0.4)
            late.set()
        answers.append(request)
        return accept(request)

    with Handler(zmq, ctx, decide, kind):
        pull = listening(ctx, {"plain_server": 1}, handshake_ivl=150)
        push = connected(ctx, pull, PLAIN, reconnect_ivl=20)
        push.send(b"x")
        assert pull.recv() == b"x"
        assert len(answers) > 1


def test_an_authenticator_that_ends_with_the_question(ctx, options):
    server, client = options
    with ctx.socket(zmq.ROUTER) as handler:
        handler.bind(ADDRESS)
        pull = listening(ctx, server)
        push = connected(ctx, pull, client)
        push.send(b"x")
        assert handler.poll(5000)
    assert not pull.poll(QUIET)  # at the next try there is none to ask, either
    with Handler(zmq, ctx):
        other = connected(ctx, pull, client)
        other.send(b"y")
        assert pull.recv() in (b"x", b"y")


def test_an_authenticator_that_has_ended_lets_no_one_in(ctx, options):
    """Although it was never asked."""
    server, client = options
    with Handler(zmq, ctx):
        pass
    pull = listening(ctx, server)
    connected(ctx, pull, client).send(b"x")
    assert not pull.poll(QUIET)
    with Handler(zmq, ctx):
        assert pull.recv() == b"x"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("allowed", [True, False])
def test_without_an_authenticator_no_other_machine_gets_in(caplog, host, allowed):
    for mechanism in ("CURVE", "NULL"):
        server, client = MECHANISMS[mechanism]
        token = "137dc6fd7764291e151bed2a85c14358" if mechanism == "NULL" else ""
        context = secured(Security(token=token, unauthenticated=allowed))
        try:
            pull = made(context, zmq.PULL, server)
            port = pull.bind_to_random_port(f"tcp://{host}")
            push = made(context, zmq.PUSH, client)
            push.connect(f"tcp://127.0.0.1:{port}")
            push.send(b"x")
            if allowed or host == "127.0.0.1":
                assert pull.recv() == b"x"
            else:
                until(lambda: "start one in this context" in caplog.text, "the warning")
                assert not pull.poll(QUIET)
                with Handler(zmq, context):
                    assert pull.recv() == b"x"
        finally:
            context.destroy(0)
        caplog.clear()


def test_refusals_are_logged_once(ctx, caplog):
    with Handler(zmq, ctx, refuse) as handler:
        pull = listening(ctx, {"plain_server": 1})
        connected(ctx, pull, PLAIN, reconnect_ivl=10).send(b"x")
        until(lambda: len(handler.asked) > 2, "several attempts")
    mine = [record.message for record in caplog.records if record.message.startswith("PULL")]
    assert len([text for text in mine if "denied_400" in text and "the authenticator: no" in text]) == 1


def said_at_once(ctx, peer, then):
    """Sends a hello, and calls `then`, before the reactor sees any of it."""
    reached, go = threading.Event(), threading.Event()
    ctx.reactor.call_soon(lambda: (reached.set(), go.wait(5)))
    assert reached.wait(5)
    peer.sendall(encode(make_hello(SocketType.PUSH)))
    then()
    go.set()


def test_a_peer_that_has_left_is_not_asked_about(ctx):
    with ctx.socket(zmq.ROUTER) as handler:
        handler.bind(ADDRESS)
        pull = listening(ctx, {"zap_domain": b"global"}, handshake_ivl=60_000)
        with raw(pull) as peer:
            until(lambda: unfinished(pull), "the connection")
            said_at_once(ctx, peer, lambda: peer.shutdown(socket.SHUT_WR))
            until(lambda: not unfinished(pull), "the end of the handshake")
        assert not handler.poll(QUIET)


def test_bytes_behind_the_question_do_not_wake_the_reactor(ctx, monkeypatch):
    """Where the system has no edge-triggered readiness."""
    calls = []
    ready = exchange.Exchange._ready

    def counted(self, events):
        calls.append(events)
        ready(self, events)

    monkeypatch.setattr(exchange, "EDGE", 0)
    monkeypatch.setattr(exchange.Exchange, "_ready", counted)
    with ctx.socket(zmq.ROUTER) as handler:
        handler.bind(ADDRESS)
        pull = listening(ctx, {"zap_domain": b"global"})
        with raw(pull) as peer:
            peer.sendall(encode(make_hello(SocketType.PUSH)) + b"more")
            assert handler.poll(5000)
            assert not pull.poll(QUIET)
            assert len(calls) < 100


def test_an_authenticator_that_comes_later(ctx):
    pull = listening(ctx, {"plain_server": 1})
    push = connected(ctx, pull, PLAIN)
    push.send(b"x")
    assert not pull.poll(QUIET)
    with Handler(zmq, ctx):
        assert pull.recv() == b"x"


def test_an_endpoint_that_is_no_authenticator(ctx, options):
    server, client = options
    with ctx.socket(zmq.PULL) as wrong:
        wrong.bind(ADDRESS)
        pull = listening(ctx, server)
        connected(ctx, pull, client).send(b"x")
        assert not pull.poll(QUIET)


LONG = struct.pack(">BsI", 1, b"x", 1 << 20) + b"v" * 100
REPLIES = {
    "no parts": [],
    "a status alone": [b"200"],
    "too few parts": [b"200", b"OK", b"someone"],
    "too many parts": [b"200", b"OK", b"someone", b"", b""],
    "a status of two digits": [b"20", b"OK", b"", b""],
    "a status of four": [b"2000", b"OK", b"", b""],
    "an unknown status": [b"100", b"OK", b"", b""],
    "a sign": [b"+200", b"OK", b"", b""],
    "an empty status": [b"", b"OK", b"", b""],
    "metadata of one byte": [b"200", b"OK", b"u", b"\x05"],
    "a name cut off": [b"200", b"OK", b"u", b"\x05Hel"],
    "a value cut off": [b"200", b"OK", b"u", LONG],
    "no text as user": [b"200", b"OK", b"\xff\xfe", b""],
    "much metadata": [b"200", b"OK", b"u", b"m" * 100_000],
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_reply_that_is_none(ctx, reply):
    with Handler(zmq, ctx, lambda _: reply) as handler:
        pull = listening(ctx, {"plain_server": 1})
        connected(ctx, pull, PLAIN).send(b"x")
        until(lambda: handler.asked, "the question")
        assert not pull.poll(QUIET)


@pytest.mark.parametrize("number", [b"", b"2", b"1" * 1000])
def test_a_reply_to_another_request(ctx, number):
    with ctx.socket(zmq.ROUTER) as handler:
        handler.bind(ADDRESS)
        pull = listening(ctx, {"plain_server": 1})
        connected(ctx, pull, PLAIN).send(b"x")
        who, empty, version, _, *_ = handler.recv_multipart()
        handler.send_multipart([who, empty, version, number, b"200", b"OK", b"u", b""])
        assert not pull.poll(QUIET)


def test_many_questions_at_once(ctx):
    with Handler(zmq, ctx) as handler:
        pull = listening(ctx, {"plain_server": 1}, backlog=1000)
        pushes = [connected(ctx, pull, PLAIN) for _ in range(100)]
        for push in pushes:
            push.send(b"x")
        for _ in pushes:
            assert pull.recv() == b"x"
        assert len(handler.asked) == 100


def test_the_context_ends_during_a_question(ctx):
    with ctx.socket(zmq.ROUTER) as handler:
        handler.bind(ADDRESS)
        pull = listening(ctx, {"plain_server": 1})
        connected(ctx, pull, PLAIN).send(b"x")
        assert handler.poll(5000)
        ctx.destroy(0)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"curve_server": 1},
        {"curve_serverkey": PUBLIC},
        {"curve_secretkey": SECRET},
        {**CURVE_SERVER, "curve_publickey": CLIENT_PUBLIC},
        {**CURVE, "curve_publickey": PUBLIC},
        {**CURVE, "curve_server": 1},
        {**PLAIN, **CURVE},
        {**CURVE_SERVER, "plain_server": 1},
    ],
)
@pytest.mark.parametrize("call", ["bind", "connect"])
def test_mixed_and_incomplete_settings(ctx, settings, call):
    sock = made(ctx, zmq.PULL, settings)
    with pytest.raises(SecurityError) as caught:
        getattr(sock, call)("tcp://127.0.0.1:5999" if call == "connect" else "tcp://127.0.0.1:*")
    assert SECRET.decode() not in str(caught.value) and "a-secret" not in str(caught.value)
    for name in ("plain_server", "curve_server"):
        setattr(sock, name, 0)  # takes them back


def test_the_hint_leads_to_an_encrypted_socket(ctx):
    for settings, back in ((CURVE, "plain_server"), (CURVE_SERVER, "plain_server"), (PLAIN, "curve_server")):
        for order in ({**PLAIN, **settings}, {**settings, **PLAIN}):
            if settings is PLAIN:
                order = {**order, "curve_serverkey": PUBLIC}
            pull = made(ctx, zmq.PULL, order)
            with pytest.raises(SecurityError, match="PLAIN_SERVER = 0 or CURVE_SERVER = 0"):
                pull.bind("tcp://127.0.0.1:*")
            setattr(pull, back, 0)
            pull.bind("tcp://127.0.0.1:*")
            assert pull.mechanism == (zmq.PLAIN if settings is PLAIN else zmq.CURVE)
            assert pull.curve_server == (settings is CURVE_SERVER)


@pytest.mark.parametrize("settings", [CURVE, CURVE_SERVER])
def test_keys_without_curve_are_an_error(ctx, settings):
    sock = made(ctx, zmq.PULL, settings)
    sock.curve_server = False
    for call in (sock.bind, sock.connect):
        with pytest.raises(SecurityError, match="nothing is encrypted"):
            call("tcp://127.0.0.1:5999")


def test_which_endpoints_other_machines_may_reach(ctx):
    listening_at = "tcp://0.0.0.0:*"
    made(ctx, zmq.PULL, CURVE_SERVER).bind(listening_at)
    made(ctx, zmq.PULL, CURVE).bind(listening_at)
    for settings, text in (
        ({"plain_server": 1}, "passwords in plain text"),
        (PLAIN, "without authentication"),
        ({"zap_domain": b"global"}, "without authentication"),
        ({}, "without authentication"),
    ):
        with pytest.raises(SecurityError, match=text):
            made(ctx, zmq.PULL, settings).bind(listening_at)


def secured(security):
    """A context of `transfer.zmq` with these credentials."""
    context = keeping(zmq.Context, [])()
    context.__dict__["credentials"] = type(context.credentials)(security, context.core)
    context.setsockopt(zmq.LINGER, 0)
    context.setsockopt(zmq.RCVTIMEO, 5000)
    return context


@pytest.fixture(scope="module")
def security(tmp_path_factory):
    authority = certificates.Authority(tmp_path_factory.mktemp("authority"))
    issued = authority.issue()
    return Security(certificate=issued.certificate, key=issued.key, authority=authority.path)


def test_plain_inside_tls(security):
    context = secured(security)
    try:
        with Handler(zmq, context) as handler:
            pull = made(context, zmq.PULL, {"plain_server": 1})
            pull.bind("tcp://0.0.0.0:*")
            bound = pull._links.state.endpoints[0].acceptor.address
            with Relay(Address("tcp", "127.0.0.1", bound.port)) as relay:
                push = made(context, zmq.PUSH, PLAIN)
                push.connect(str(relay.address))
                push.send(b"x")
                assert pull.recv() == b"x"
            [said] = relay.said
            assert b"a-secret-password" not in said[True] and b"admin" not in said[True]
            assert handler.asked[0][4:] == [b"admin", b"a-secret-password"]
    finally:
        context.destroy(0)


def test_curve_and_certificates_are_one_too_many(security):
    context = secured(security)
    try:
        with pytest.raises(SecurityError, match="CURVE and certificates"):
            made(context, zmq.PULL, CURVE_SERVER).bind("tcp://127.0.0.1:*")
    finally:
        context.destroy(0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("same", [True, False])
def test_a_token_is_required_too(mechanism, same):
    server, client = MECHANISMS[mechanism]
    contexts = [
        secured(Security(token=token))
        for token in ("137dc6fd7764291e151bed2a85c14358", "7d0c52e3b19f4a86ce05d1f7328b94aa")
    ]
    try:
        with Handler(zmq, contexts[0]) as handler:
            pull = listening(contexts[0], server)
            push = connected(contexts[0 if same else 1], pull, client)
            push.send(b"x")
            if same:
                assert pull.recv() == b"x"
            else:
                assert not pull.poll(QUIET)
            assert bool(handler.asked) is same
    finally:
        for context in contexts:
            context.destroy(0)


def test_without_the_compiled_core_curve_is_refused():
    context = secured(Security())
    core, context.__dict__["core"] = context.core, pure
    try:
        with pytest.raises(NotSupported, match="Python core"):
            made(context, zmq.PULL, CURVE_SERVER).bind("tcp://127.0.0.1:*")
    finally:
        context.__dict__["core"] = core
        context.destroy(0)


def test_no_log_or_text_has_a_secret(ctx, caplog):
    caplog.set_level(logging.DEBUG)
    texts = []
    for mechanism in ("PLAIN", "CURVE"):
        server, client = MECHANISMS[mechanism]
        for decide in (accept, refuse):
            with Handler(zmq, ctx, decide):
                pull = listening(ctx, server)
                push = connected(ctx, pull, client)
                push.send(b"x")
                pull.poll(QUIET)
                texts += [repr(each) for each in (pull, push, ctx, pull._links.state.endpoints[0].error)]
                texts += [
                    str(ctx.dump()),
                    *(repr(ctx._transfer_mechanism(each, Address("tcp"))) for each in (pull, push)),
                ]
                texts += [repr(peer) for peer in (*pull.peers(), *push.peers())]
                pull.close(), push.close()
    for text in (*texts, caplog.text):
        for secret in (
            b"a-secret-password",
            SECRET,
            CLIENT_SECRET,
            zmq.z85.decode(SECRET),
            zmq.z85.decode(CLIENT_SECRET),
        ):
            assert (
                secret.decode("latin-1") not in text
                and repr(secret)[2:-1] not in text
                and secret.hex() not in text
            )


def test_an_authenticator_that_never_answers_is_not_asked_for_ever(ctx, monkeypatch):
    """Nothing of an ended question is left for it, and others are refused at once."""
    monkeypatch.setattr(zap, "_MOST_UNANSWERED", 3)
    monkeypatch.setattr(zap, "_PAUSE", 60)
    with ctx.socket(zmq.ROUTER) as authenticator:
        authenticator.rcvtimeo = 5000
        authenticator.bind("inproc://zeromq.zap.01")
        question = Question("PLAIN", "127.0.0.1", (b"name", b"password"))
        verdicts = []

        def asked():
            return zap.ask(ctx.reactor, b"", b"", question, verdicts.append)

        asked()
        authenticator.recv_multipart()
        ends = [asked() for _ in range(2)]
        until(lambda: all(end.__self__._stream for end in ends), "the questions")
        for end in ends:
            end()
        assert verdicts == []
        assert authenticator.poll(100) == 0
        asked()
        assert [verdict.status for verdict in verdicts] == [500]
        assert "does not answer" in verdicts[0].text
