"""ZeroMQ's mechanisms and authenticators: NULL, PLAIN and CURVE, as libzmq has them."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import time

import pytest

from tests.zmq_compat.zap_handler import Handler, accept, refuse

#: ms in which nothing may arrive
QUIET = 250
TCP = "tcp://127.0.0.1:*"


class Keys:
    """Key pairs of a server and of a client."""

    def __init__(self, zmq):
        self.public, self.secret = zmq.curve_keypair()
        self.client_public, self.client_secret = zmq.curve_keypair()

    @property
    def server(self):
        return {"curve_server": True, "curve_publickey": self.public, "curve_secretkey": self.secret}

    @property
    def client(self):
        return {
            "curve_serverkey": self.public,
            "curve_publickey": self.client_public,
            "curve_secretkey": self.client_secret,
        }


PLAIN = {"plain_username": b"admin", "plain_password": b"correct"}
SERVER = {"plain_server": True}


def utilities(zmq, name):
    return importlib.import_module(f"{zmq.__name__}.utils.{name}")


@pytest.fixture(autouse=True)
def local(request, monkeypatch):
    """Whether peers of one host may leave TCP for shared memory."""
    monkeypatch.setenv("TRANSFER_LOCAL", getattr(request, "param", "off"))


BOTH = pytest.mark.parametrize("local", ["on", "off"], indirect=True)


@pytest.fixture
def keys(zmq):
    return Keys(zmq)


@pytest.fixture
def meet(zmq, ctx):
    """meet(server's options, client's) -> (server, client), connected by TCP; either may bind."""

    def make(server, client, *, kinds=("PULL", "PUSH"), binds="server", endpoint=TCP):
        ends = []
        for kind, options in zip(kinds, (server, client), strict=True):
            sock = ctx.socket(getattr(zmq, kind))
            sock.linger = 0
            for name, value in options.items():
                setattr(sock, name, value)
            ends.append(sock)
        bound, connected = ends if binds == "server" else ends[::-1]
        bound.bind(endpoint)
        connected.connect(bound.last_endpoint)
        return ends

    return make


def delivers(server, client):
    client.sndtimeo = 2000
    client.send(b"hello")
    return server.poll(2000) and server.recv() == b"hello"


def stays_out(zmq, server, client, quiet=QUIET):
    """No message reaches the server."""
    client.sndtimeo = quiet
    try:
        client.send(b"hello")
    except zmq.Again:  # no peer that has room
        return not server.poll(0)
    return not server.poll(quiet)


# --- NULL -----------------------------------------------------------------------------------------


def test_null_is_not_asked_about_without_a_domain(zmq, ctx, meet):
    with Handler(zmq, ctx, refuse) as handler:
        assert delivers(*meet({}, {}))
    assert not handler.asked


@pytest.mark.parametrize("binds", ["server", "client"])
def test_null_with_a_domain_is_accepted(zmq, ctx, meet, binds):
    with Handler(zmq, ctx) as handler:
        assert delivers(*meet({"zap_domain": b"global", "routing_id": b"ME"}, {}, binds=binds))
    assert handler.asked == [[b"global", b"127.0.0.1", b"ME", b"NULL"]]


@pytest.mark.parametrize("status", [b"300", b"400", b"500"])
def test_null_with_a_domain_is_refused(zmq, ctx, meet, status):
    with Handler(zmq, ctx, lambda _: [status, b"no", b"", b""]) as handler:
        assert stays_out(zmq, *meet({"zap_domain": b"global"}, {}))
        assert handler.asked


def test_either_side_may_ask(zmq, ctx, meet):
    """The side with a domain asks, whichever has it: the other one waits for its approval."""
    with Handler(zmq, ctx, refuse) as handler:
        assert stays_out(zmq, *meet({}, {"zap_domain": b"mine"}))
        assert handler.asked[0][0] == b"mine"


def test_both_sides_may_ask(zmq, ctx, meet):
    with Handler(zmq, ctx) as handler:
        assert delivers(*meet({"zap_domain": b"one"}, {"zap_domain": b"two"}))
    assert sorted(request[0] for request in handler.asked) == [b"one", b"two"]


def test_a_domain_without_a_handler_keeps_none_out(zmq, meet):
    assert delivers(*meet({"zap_domain": b"global"}, {}))


def test_unless_the_domain_is_enforced(zmq, meet):
    ends = meet({"zap_domain": b"global", "zap_enforce_domain": 1}, {})
    assert stays_out(zmq, *ends)


def test_ipc_names_the_process(zmq, ctx, meet, tmp_path):
    with Handler(zmq, ctx) as handler:
        assert delivers(*meet({"zap_domain": b"global"}, {}, endpoint=f"ipc://{tmp_path}/socket"))
    host, user, group, process = handler.asked[0][1].split(b":")
    assert host == b"localhost" and all(map(bytes.isdigit, (user, group, process)))


def test_inproc_needs_nothing(zmq, ctx, meet, keys):
    with Handler(zmq, ctx, refuse) as handler:
        assert delivers(*meet({"zap_domain": b"global"}, {}, endpoint="inproc://one"))
        assert delivers(*meet(SERVER, {}, endpoint="inproc://two"))
        assert delivers(*meet(keys.server, {}, endpoint="inproc://three"))
    assert not handler.asked


# --- PLAIN ----------------------------------------------------------------------------------------


def knows_admin(request):
    return accept(request) if request[4:] == [b"admin", b"correct"] else refuse(request)


@pytest.mark.parametrize("binds", ["server", "client"])
@pytest.mark.parametrize("kind", ["REP", "ROUTER"])
def test_plain(zmq, ctx, meet, binds, kind):
    with Handler(zmq, ctx, knows_admin, kind) as handler:
        assert delivers(*meet({**SERVER, "zap_domain": b"global", "routing_id": b"ME"}, PLAIN, binds=binds))
    assert handler.asked == [[b"global", b"127.0.0.1", b"ME", b"PLAIN", b"admin", b"correct"]]


@pytest.mark.parametrize(
    "client",
    [
        {**PLAIN, "plain_password": b"wrong"},
        {**PLAIN, "plain_username": b"another"},
        {"plain_username": b"admin"},
    ],
    ids=["password", "name", "no password"],
)  # fmt: skip
@pytest.mark.parametrize("binds", ["server", "client"])
def test_plain_with_wrong_credentials(zmq, ctx, meet, client, binds):
    with Handler(zmq, ctx, knows_admin) as handler:
        assert stays_out(zmq, *meet(SERVER, client, binds=binds))
        assert handler.asked


def test_plain_without_a_handler_lets_none_in(zmq, meet):
    assert stays_out(zmq, *meet(SERVER, PLAIN))


@pytest.mark.parametrize("binds", ["server", "client"])
def test_both_sides_need_the_mechanism(zmq, ctx, meet, keys, binds):
    with Handler(zmq, ctx) as handler:
        for server, client in (
            (SERVER, {}), ({}, PLAIN), (SERVER, SERVER), (PLAIN, PLAIN), (keys.server, {}), ({}, keys.client),
            (keys.server, PLAIN), (SERVER, keys.client), (keys.client, keys.client),
        ):  # fmt: skip
            assert stays_out(zmq, *meet(server, client, binds=binds), quiet=60), (server, client)
    assert not handler.asked


# --- CURVE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("binds", ["server", "client"])
def test_curve(zmq, ctx, meet, keys, binds):
    with Handler(zmq, ctx) as handler:
        server = {**keys.server, "zap_domain": b"global", "routing_id": b"ME"}
        assert delivers(*meet(server, keys.client, binds=binds))
    key = utilities(zmq, "z85").decode(keys.client_public)
    assert handler.asked == [[b"global", b"127.0.0.1", b"ME", b"CURVE", key]]


def test_curve_by_ipc(zmq, ctx, meet, keys, tmp_path):
    with Handler(zmq, ctx):
        assert delivers(*meet(keys.server, keys.client, endpoint=f"ipc://{tmp_path}/socket"))


@pytest.mark.parametrize("binds", ["server", "client"])
def test_curve_is_refused(zmq, ctx, meet, keys, binds):
    with Handler(zmq, ctx, refuse) as handler:
        assert stays_out(zmq, *meet(keys.server, keys.client, binds=binds))
        assert handler.asked


@pytest.mark.parametrize("binds", ["server", "client"])
def test_curve_with_another_servers_key(zmq, ctx, meet, keys, binds):
    client = {**keys.client, "curve_serverkey": zmq.curve_keypair()[0]}
    with Handler(zmq, ctx) as handler:
        assert stays_out(zmq, *meet(keys.server, client, binds=binds))
    assert not handler.asked


def test_curve_without_a_handler_lets_in_who_knows_the_server(zmq, meet, keys):
    assert delivers(*meet(keys.server, keys.client))


@pytest.mark.parametrize(
    "kinds", [("REP", "REQ"), ("ROUTER", "DEALER"), ("PAIR", "PAIR"), ("DEALER", "DEALER")]
)
def test_curve_both_ways(zmq, ctx, meet, keys, kinds):
    server, client = meet(keys.server, keys.client, kinds=kinds)
    client.send_multipart([b"a", b"b" * 100_000])
    parts = server.recv_multipart()
    assert parts[-2:] == [b"a", b"b" * 100_000]
    server.send_multipart(parts)
    assert client.recv_multipart() == [b"a", b"b" * 100_000]


def test_curve_pub_sub(zmq, ctx, meet, keys):
    pub, sub = meet(keys.server, {**keys.client, "subscribe": b"a"}, kinds=("PUB", "SUB"))
    for _ in range(200):
        pub.send(b"a message")
        if sub.poll(10):
            break
    assert sub.recv() == b"a message"


def test_messages_of_a_closed_socket_are_for_the_server_only(zmq, ours, ctx, keys):
    """They are sent in the background, by the same mechanism."""
    if not ours:
        pytest.skip("libzmq does not try again after another mechanism")
    with Handler(zmq, ctx), ctx.socket(zmq.PULL) as null, ctx.socket(zmq.PULL) as pull:
        null.bind(TCP)
        endpoint = null.last_endpoint
        push = ctx.socket(zmq.PUSH)
        for name, value in keys.client.items():
            setattr(push, name, value)
        push.connect(endpoint)
        push.send(b"for the server")
        push.close(5000)
        assert not null.poll(QUIET)
        null.unbind(endpoint)
        for name, value in keys.server.items():
            setattr(pull, name, value)
        pull.bind(endpoint)
        assert pull.recv(copy=False).get("User-Id") == "someone"


@BOTH
def test_peers_are_authenticated_whatever_carries_the_data(zmq, ours, ctx, meet, keys, local):
    with Handler(zmq, ctx):
        server, client = meet(keys.server, keys.client)
        assert delivers(server, client)
        if ours:
            [peer] = server.peers()
            assert peer.authenticated and peer.encrypted is (peer.transport == "tcp")


@BOTH
def test_a_public_key_alone_does_not_authenticate(ours, meet, keys, local):
    if not ours:
        pytest.skip("pyzmq does not list peers")
    server, client = meet(keys.server, keys.client)
    assert delivers(server, client)
    [peer], [other] = server.peers(), client.peers()
    assert not peer.authenticated and other.authenticated and peer.transport == "tcp"


def test_many_clients_of_one_listener(zmq, ctx, keys):
    with Handler(zmq, ctx) as handler, ctx.socket(zmq.PULL) as pull:
        for name, value in keys.server.items():
            setattr(pull, name, value)
        pull.bind(TCP)
        for number in range(20):
            push = ctx.socket(zmq.PUSH)
            push.linger = 0
            for name, value in keys.client.items():
                setattr(push, name, value)
            push.connect(pull.last_endpoint)
            push.send(b"%d" % number)
        assert sorted(int(pull.recv()) for _ in range(20)) == list(range(20))
    assert len(handler.asked) == 20


# --- properties -----------------------------------------------------------------------------------

PROPERTIES = {
    "User-Id": "someone", "Hello": "World", "Socket-Type": "DEALER", "Identity": "CLIENT",
    "Peer-Address": "127.0.0.1",
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("kind", ["DEALER", "ROUTER"])
def test_frames_have_the_properties_of_their_peer(zmq, ctx, meet, kind):
    with Handler(zmq, ctx):
        server, client = meet(SERVER, {**PLAIN, "routing_id": b"CLIENT"}, kinds=(kind, "DEALER"))
        client.send_multipart([b"a", b"b"])
        frames = server.recv_multipart(copy=False)
        for frame in frames[-2:]:
            assert {name: frame.get(name) for name in PROPERTIES} == PROPERTIES
            assert frame["User-Id"] == "someone"
        with pytest.raises(zmq.ZMQError):
            frames[0].get("Another")
        client.send_multipart([b"a", b"b"])
        parts = [server.recv(copy=False)]
        while parts[-1].more:
            parts.append(server.recv(copy=False))
        assert [part.bytes for part in parts[-2:]] == [b"a", b"b"]
        assert {part.get("User-Id") for part in parts[-2:]} == {"someone"}
        client.send_multipart([b"a", b"b"])
        parts = [server.recv() for _ in frames[1:]]  # another kind of call for the last one
        assert server.recv(copy=False).get("User-Id") == "someone"


@BOTH
def test_each_frame_has_those_of_its_own_peer(zmq, ctx):
    with (
        Handler(zmq, ctx, lambda request: [b"200", b"OK", request[4], b""]),
        ctx.socket(zmq.PULL) as pull,
    ):
        pull.plain_server = True
        pull.bind(TCP)
        for name in (b"one", b"two", b"three"):
            push = ctx.socket(zmq.PUSH)
            push.plain_username, push.plain_password = name, b"x"
            push.connect(pull.last_endpoint)
            for _ in range(20):
                push.send(name)
        for _ in range(60):
            frame = pull.recv(copy=False)
            assert frame.get("User-Id").encode() == frame.bytes


@BOTH
def test_a_peer_that_has_left(zmq, ctx, meet):
    with Handler(zmq, ctx):
        server, client = meet(SERVER, PLAIN)
        for _ in range(3):
            client.send(b"last")
        client.close(1000)
        time.sleep(0.1)  # its end arrives behind the messages
        for _ in range(3):
            assert server.recv(copy=False).get("User-Id") == "someone"


def test_without_a_handler_there_is_no_user(zmq, ctx, meet, keys):
    server, client = meet(keys.server, keys.client)
    client.send(b"hello")
    with pytest.raises(zmq.ZMQError):
        server.recv(copy=False).get("User-Id")


# --- events ---------------------------------------------------------------------------------------


def test_both_sides_report_the_refusal(zmq, ctx, meet):
    with Handler(zmq, ctx, refuse):
        ends = [ctx.socket(zmq.PULL), ctx.socket(zmq.PUSH)]
        monitors = [end.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) for end in ends]
        server, client = ends
        server.plain_server = True
        client.linger, client.plain_username = 0, b"admin"
        server.bind(TCP)
        client.connect(server.last_endpoint)
        for end, monitor in zip(ends, monitors, strict=True):
            assert monitor.poll(2000)
            event = utilities(zmq, "monitor").parse_monitor_message(monitor.recv_multipart())
            assert (event["event"], event["value"]) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
            end.disable_monitor()
            monitor.close()


# --- options and keys -----------------------------------------------------------------------------


def test_defaults(zmq, ctx):
    with ctx.socket(zmq.PULL) as sock:
        assert (
            sock.mechanism == zmq.NULL
            and sock.zap_domain == sock.plain_username == sock.plain_password == b""
        )
        assert sock.plain_server == sock.curve_server == sock.zap_enforce_domain == 0
        with pytest.raises(zmq.ZMQError):
            sock.mechanism = zmq.PLAIN


def test_the_last_option_chooses_the_mechanism(zmq, ctx, keys):
    with ctx.socket(zmq.PULL) as sock:
        sock.plain_server = 1
        assert (sock.mechanism, sock.plain_server, sock.curve_server) == (zmq.PLAIN, 1, 0)
        sock.plain_username = b"u"
        assert (sock.mechanism, sock.plain_server) == (zmq.PLAIN, 0)
        sock.curve_secretkey = keys.secret
        assert (sock.mechanism, sock.curve_server) == (zmq.CURVE, 0)
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        assert sock.getsockopt(zmq.CURVE_SERVER) == 1
        sock.curve_serverkey = keys.public
        assert sock.curve_server == 0
        sock.plain_server = sock.curve_server = 0
        assert sock.mechanism == zmq.NULL


@pytest.mark.parametrize(
    ("name", "value"),
    [("PLAIN_SERVER", 2), ("PLAIN_SERVER", -1), ("CURVE_SERVER", 7), ("PLAIN_USERNAME", b""),
     ("PLAIN_USERNAME", b"u" * 256), ("PLAIN_PASSWORD", b""), ("PLAIN_PASSWORD", b"p" * 256),
     ("CURVE_SECRETKEY", b"short"), ("CURVE_SECRETKEY", b" " * 40), ("CURVE_PUBLICKEY", b""),
     ("CURVE_SERVERKEY", b"x" * 39), ("ZAP_DOMAIN", b"d" * 256)],
)  # fmt: skip
def test_wrong_values(zmq, ctx, name, value):
    with ctx.socket(zmq.PULL) as sock:
        with pytest.raises(zmq.ZMQError) as caught:
            sock.setsockopt(getattr(zmq, name), value)
        assert caught.value.errno == zmq.Errno.EINVAL
        assert sock.mechanism == zmq.NULL


def test_keys_as_bytes(zmq, ctx, meet, keys):
    decode = utilities(zmq, "z85").decode
    raw = [
        {n: decode(v) if n.endswith("key") else v for n, v in side.items()}
        for side in (keys.server, keys.client)
    ]
    assert delivers(*meet(*raw))


def test_key_pairs(zmq):
    pairs = {zmq.curve_keypair() for _ in range(3)}
    assert len(pairs) == 3
    for public, secret in pairs:
        assert len(public) == len(secret) == 40 and zmq.curve_public(secret) == public
        assert len(utilities(zmq, "z85").decode(public)) == 32
    with pytest.raises(ValueError, match="40"):
        zmq.curve_public(b"short")
    assert zmq.has("curve")


def test_defaults_of_a_context(zmq, ctx, meet, keys):
    ctx.setsockopt(zmq.PLAIN_USERNAME, b"admin")
    ctx.plain_password = b"correct"
    with Handler(zmq, ctx, knows_admin):
        assert delivers(*meet(SERVER, {}))


# --- pyzmq's authenticators -----------------------------------------------------------------------

PROGRAM = """
    import asyncio, sys, tempfile
    import zmq, zmq.asyncio, zmq.auth
    from zmq.auth.thread import ThreadAuthenticator
    from zmq.auth.asyncio import AsyncioAuthenticator

    folder = tempfile.mkdtemp()
    public, secret_file = zmq.auth.create_certificates(folder, "client")
    key, secret = zmq.auth.load_certificate(secret_file)
    server_key, server_secret = zmq.curve_keypair()

    async def arrives(context, server, client):
        with context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
            push.linger = 0
            for sock, options in ((pull, server), (push, client)):
                for name, value in options.items():
                    setattr(sock, name, value)
            port = pull.bind_to_random_port("tcp://127.0.0.1")
            push.connect(f"tcp://127.0.0.1:{port}")
            await push.send(b"x")
            return bool(await pull.poll(300))

    async def main(kind):
        with zmq.asyncio.Context() as context:
            auth = kind(context)
            auth.start()
            try:
                auth.configure_plain("*", {"admin": "correct"})
                for password, expected in ((b"correct", True), (b"wrong", False)):
                    client = {"plain_username": b"admin", "plain_password": password}
                    assert await arrives(context, {"plain_server": True}, client) is expected
                server = {"curve_server": True, "curve_secretkey": server_secret}
                client = {"curve_serverkey": server_key, "curve_publickey": key, "curve_secretkey": secret}
                assert not await arrives(context, server, client)
                auth.configure_curve("*", folder)
                assert await arrives(context, server, client)
                assert await arrives(context, {"zap_domain": b"d"}, {})
                auth.deny("127.0.0.1")
                assert not await arrives(context, {"zap_domain": b"d"}, {})
            finally:
                auth.stop()

    for kind in (ThreadAuthenticator, AsyncioAuthenticator):
        asyncio.run(main(kind))
"""


def test_authenticators_of_pyzmq_run_unchanged():
    start = "from transfer.zmq import as_zmq; as_zmq.install()\n"
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(PROGRAM)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
