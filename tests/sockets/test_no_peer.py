"""What waits without a peer says so: one warning a socket, with the text that its time-out would have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket as sockets
import threading

import pytest

import transfer
import transfer.asyncio
from transfer import PUB, PULL, PUSH, REP, REQ, SUB, Again, zmq
from transfer.sockets.connections import connections
from transfer.transports.errors import Fatal, HandshakeError
from transfer.transports.handshake.hello import encode_refusal
from transfer.zmq import asyncio as zmq_asyncio

from .helpers import TCP, Thread, eventually, pair_of

#: ms of waiting after which a test's socket says so, and how long calls wait
SOON, LONG = 30, 3_000


@pytest.fixture
def lines(caplog):
    """The warnings of the log, so far."""
    caplog.set_level(logging.WARNING, "transfer")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "transfer"]


@pytest.fixture
def unserved():
    """An endpoint that nothing serves, and that nothing else gets."""
    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def waiting(context, kind, **options):
    made = context.socket(kind, sndtimeo=LONG, rcvtimeo=LONG, **options)
    made._long_wait = SOON
    return made


CALLS = {
    "send": (PUSH, lambda s: s.send(b"x")),
    "send of parts": (PUSH, lambda s: s.send_multipart([b"x", b"y"])),
    "large send": (PUSH, lambda s: s.send(bytes(1 << 20))),
    "recv": (PULL, lambda s: s.recv()),
    "recv of parts": (SUB, lambda s: s.recv_multipart()),
    "request": (REQ, lambda s: s.send(b"x")),
    "poll": (PULL, lambda s: s.poll(LONG)),
    "poll for room": (PUSH, lambda s: s.poll(LONG, transfer.POLLOUT)),
    "peers": (PUSH, lambda s: s.wait_for_peers(1, LONG / 1000)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_waits_says_that_nothing_serves_the_endpoint(context, unserved, lines, call):
    kind, do = CALLS[call]
    made = waiting(context, kind)
    made.connect(unserved)
    caller = Thread(do, made)
    assert eventually(lines)
    made.close(0)
    with pytest.raises((transfer.Closed, AssertionError)):
        caller.finish()
        raise AssertionError  # `poll` may return nothing
    (line,) = lines()
    assert f"a {kind.name} waits: " in line and f"no peer listens at {unserved} yet: tried for" in line
    assert "; " in line and "\n" not in line, "the hint is there too"


@pytest.mark.parametrize(("kind", "call"), [(PULL, "recv"), (PUSH, "send")])
def test_a_socket_that_is_neither_bound_nor_connected(context, lines, kind, call):
    made = waiting(context, kind)
    caller = Thread(getattr(made, call), *([b"x"] if call == "send" else []))
    assert eventually(lines)
    assert "neither bound nor connected; call bind() or connect() first" in lines()[0]
    made.close(0)
    with pytest.raises(transfer.Closed):
        caller.finish()


def test_a_receive_that_ends_says_what_is_the_matter(context, unserved):
    pull = context.socket(PULL, rcvtimeo=50)
    with pytest.raises(Again, match="neither bound nor connected"):
        pull.recv()
    pull.connect(unserved)
    with pytest.raises(Again, match="no peer listens at"):
        pull.recv()


def test_one_warning_for_a_socket(context, unserved, lines):
    made = waiting(context, PUSH)
    made.connect(unserved)
    made.sndtimeo = 4 * SOON
    for _ in range(3):
        with pytest.raises(Again):
            made.send(b"x")
    assert len(lines()) == 1


def test_who_only_listens_and_who_has_peers_say_nothing(context, lines):
    pull, push = pair_of(context, PULL, PUSH)
    alone = context.socket(REP, rcvtimeo=10 * SOON)
    alone.bind(TCP)
    for made in (pull, push, alone):
        made._long_wait = SOON
        made.rcvtimeo = 10 * SOON
    for made in (pull, alone):
        with pytest.raises(Again):
            made.recv()
    assert pull.poll(5 * SOON) == 0
    assert lines() == []


def test_a_peer_that_goes_while_a_call_waits(context, lines):
    push, pull = pair_of(context, PUSH, PULL)
    pull._long_wait = SOON
    pull.rcvtimeo = LONG * 10
    caller = Thread(pull.recv)
    push.close(0)
    assert eventually(lambda: any("no peer listens at" in line for line in lines()), 20)
    pull.close(0)
    with pytest.raises(transfer.Closed):
        caller.finish()


def test_a_callback_that_nothing_calls(context, unserved, lines):
    made = waiting(context, PULL)
    made.connect(unserved)
    made.set_callback(print)
    assert eventually(lambda: any("no peer listens at" in line for line in lines()))


def test_a_subscriber_without_subscriptions(context, lines):
    pub = context.socket(PUB)
    pub.bind(TCP)
    sub = waiting(context, SUB)
    sub.connect(pub.last_endpoint)
    assert eventually(sub.peers)
    with pytest.raises(Again, match=r"0 of 1 peers after 0\.05 s: this SUB .* subscribed to nothing"):
        sub.wait_for_peers(1, 0.05)
    sub.rcvtimeo = 50
    with pytest.raises(Again, match=r"subscribed to nothing\n  hint: call subscribe\(b\"\"\)"):
        sub.recv()
    sub.rcvtimeo = LONG
    caller = Thread(sub.recv)
    assert eventually(lines)
    assert "subscribed to nothing" in lines()[0]
    sub.subscribe()
    pub.wait_for_peers(1, 10)
    pub.send(b"x")
    assert caller.finish() == b"x"


def test_a_publisher_says_that_its_peers_have_subscribed_to_nothing(context):
    pub, sub = context.socket(PUB), context.socket(SUB)
    pub.bind(TCP)
    sub.connect(pub.last_endpoint)
    assert eventually(pub.peers)
    with pytest.raises(Again, match="1 of the 1 that are connected have subscribed to"):
        pub.wait_for_peers(1, 0.05)


def test_fewer_peers_than_are_waited_for(context):
    pull, _ = pair_of(context, PULL, PUSH)
    with pytest.raises(Again, match=r"1 of 2 peers after 0\.05 s: only 1 are connected"):
        pull.wait_for_peers(2, 0.05)


def test_a_close_that_waits(context, lines, monkeypatch):
    monkeypatch.setattr(connections, "_LONG_WAIT", SOON / 1000)
    pull, push = pair_of(context, PULL, PUSH)
    while True:  # more than the kernel takes
        try:
            push.send(bytes(1 << 16), transfer.DONTWAIT)
        except Again:
            break
    pull.close(0)
    assert eventually(lambda: not push.peers())
    push.close(60 * SOON)  # a busy machine looks late
    assert any("no peer listens at" in line for line in lines())


# -- what can never work ---------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "connected"), [(PUSH, PUSH), (PULL, REQ), (PUB, PULL), (REP, SUB)])
def test_types_that_do_not_talk_are_said_at_once_on_both_sides(context, lines, bound, connected):
    one, other = context.socket(bound), context.socket(connected)
    one.bind(TCP)
    other.connect(one.last_endpoint)
    assert eventually(lambda: len(lines()) == 2)
    both = " and ".join(lines())
    assert f"{connected.name} connecting to {one.last_endpoint}" in both
    assert f"{bound.name} listening on {one.last_endpoint}" in both
    assert all(kind.name in line for kind in (bound, connected) for line in lines())
    with pytest.raises(Again, match=f"hint: {connected.name} talks to "):
        other.wait_for_peers(1, 0.05)


@contextlib.contextmanager
def answering(*answers):
    """The endpoint of a server that reads what comes and answers so, in turn, the last one for ever; b"": it
    closes without a word."""
    server = sockets.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            for answer in itertools.chain(answers[:-1], itertools.repeat(answers[-1])):
                accepted, _ = server.accept()
                with accepted:
                    accepted.recv(1 << 16)
                    accepted.sendall(answer)

    thread = Thread(serve)
    with server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(sockets.SHUT_RDWR)
        thread.finish()


def test_who_closes_without_a_word_may_want_tls_or_have_no_descriptors_which_is_said_at_once(context, lines):
    push = context.socket(PUSH, reconnect_ivl=1)
    with answering(b"") as endpoint:
        push.connect(endpoint)
        assert eventually(lines)
        assert eventually(lambda: push._links.state.endpoints[0].attempts > 5)
        push.close(0)
    (line,) = lines()
    assert "the other side's log says why: it may want TLS" in line
    assert "no descriptors left" in line, "that closes without a word, too"
    assert "another protocol may listen there" in line, "as at the broker's port for abtp"


def test_a_reason_that_lasts_stays_known(context):
    """The tries that follow end without a word."""
    refusal = encode_refusal(transfer.PULL, HandshakeError("token", "the peer has no token"))
    push = context.socket(PUSH, reconnect_ivl=1)
    with answering(refusal, b"") as endpoint:
        push.connect(endpoint)
        assert eventually(lambda: push._links.state.endpoints[0].attempts > 3)
        with pytest.raises(Again, match=r"\(token: .*\)\n  hint: give both sides the same token"):
            push.wait_for_peers(1, 0.05)
        push.close(0)


def test_a_server_that_says_nothing_is_no_missing_one(context):
    with sockets.create_server(("127.0.0.1", 0)) as server:
        push = context.socket(PUSH)
        push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        assert eventually(lambda: push._links.state.endpoints[0].connector.state == "shaking hands")
        with pytest.raises(
            Again, match=r"\(connected, but the other side sends nothing\)\n  hint: does a peer"
        ):
            push.wait_for_peers(1, 0.05)
        push.close(0)


GREETING = bytes.fromhex("ff00000000000000017f")


def test_a_server_of_zeromq_is_named_at_once(context, lines):
    """Its greeting comes in two parts: ten bytes, and the rest when ours is there."""
    with sockets.create_server(("127.0.0.1", 0)) as server:
        push = context.socket(PUSH)
        push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(GREETING)
            assert eventually(lines)
    assert "speaks ZeroMQ's own protocol" in lines()[0] and "transfer.zmq" in lines()[0]


def test_a_client_of_zeromq_is_named_at_once(context, lines):
    pull = context.socket(PULL)
    pull.bind(TCP)
    with sockets.create_connection(("127.0.0.1", int(pull.last_endpoint.rpartition(":")[2]))) as client:
        client.sendall(GREETING)
        assert eventually(lines)
    assert "speaks ZeroMQ's own protocol" in lines()[0]


def test_what_other_programs_cause_is_one_line_for_each_reason(context, lines):
    pull = context.socket(PULL)
    pull.bind(TCP)
    monitor = pull.get_monitor()
    for begin in (GREETING, b"GET / HTTP/1.1\r\n", GREETING):
        with sockets.create_connection(("127.0.0.1", int(pull.last_endpoint.rpartition(":")[2]))) as client:
            client.sendall(begin)
            assert monitor.recv(10).kind == "handshake_failed"
    assert len(lines()) == 1


@pytest.mark.parametrize("bound", [True, False])
def test_pyzmq_itself(context, lines, bound):
    pyzmq = pytest.importorskip("zmq")
    theirs = pyzmq.Context()
    try:
        with theirs.socket(pyzmq.PULL) as pull:
            pull.linger = 0
            push = context.socket(PUSH)
            if bound:
                port = pull.bind_to_random_port("tcp://127.0.0.1")
                push.connect(f"tcp://127.0.0.1:{port}")
            else:
                push.bind(TCP)
                pull.connect(push.last_endpoint)
            assert eventually(lines)
            assert "ZeroMQ" in lines()[0]
    finally:
        theirs.term()


# -- asyncio, and the other surface ----------------------------------------------------------------


ASYNC_CALLS = {
    "recv": (PULL, lambda s: s.recv()),
    "send": (PUSH, lambda s: s.send(b"x")),
    "poll": (PULL, lambda s: s.poll(10 * SOON)),
}


@pytest.mark.parametrize("call", ASYNC_CALLS)
def test_asyncio(core, unserved, lines, call):
    kind, do = ASYNC_CALLS[call]

    async def wait() -> None:
        with transfer.asyncio.Context(core=core) as context:
            made = context.socket(kind, rcvtimeo=10 * SOON, sndtimeo=10 * SOON)
            made._long_wait = SOON
            made.connect(unserved)
            if call == "poll":
                assert await do(made) == 0
            else:
                with pytest.raises(Again, match="no peer listens at"):
                    await do(made)
            made.close(0)

    asyncio.run(wait())
    (line,) = lines()
    assert "no peer listens at" in line


def of_zmq(kind, unserved):
    with zmq.Context() as context, context.socket(kind) as made:
        made.linger = 0
        made._long_wait = SOON
        made.rcvtimeo = made.sndtimeo = 10 * SOON
        made.connect(unserved)
        yield made


def test_the_other_surface(unserved, lines):
    for made in of_zmq(zmq.PULL, unserved):
        with pytest.raises(zmq.Again):
            made.recv()
    assert len(lines()) == 1 and "no peer listens at" in lines()[0]


def test_a_request_that_waits_in_its_queue(unserved, lines):
    for made in of_zmq(zmq.REQ, unserved):
        made.send(b"x")
        with pytest.raises(zmq.Again, match="no peer listens at"):
            made.recv()
    assert len(lines()) == 1 and "no peer listens at" in lines()[0]


def test_what_is_queued_and_goes_nowhere_is_said_without_a_call(unserved, lines):
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 0
        push._long_wait = SOON
        push.connect(unserved)
        push.send(b"x")
        assert eventually(lines)
        assert "no peer listens at" in lines()[0]


def test_asyncio_of_the_other_surface(unserved, lines):
    async def wait() -> None:
        with zmq_asyncio.Context() as context, context.socket(zmq.PULL) as pull:
            pull._transfer_socket._long_wait = SOON
            pull.rcvtimeo = 10 * SOON
            pull.connect(unserved)
            with pytest.raises(zmq.Again):
                await pull.recv()

    asyncio.run(wait())
    assert len(lines()) == 1 and "no peer listens at" in lines()[0]


def test_a_thread_that_waits_before_another_one_connects_gets_its_message(context):
    push = context.socket(PUSH)
    push.bind(TCP)
    pull = waiting(context, PULL)
    caller = Thread(pull.recv)
    assert eventually(lambda: threading.active_count() > 1)
    pull.connect(push.last_endpoint)
    push.wait_for_peers(1, 10)
    push.send(b"x")
    assert caller.finish() == b"x"


def test_a_peer_that_was_there_has_left():
    with transfer.Context() as context:
        pull, push = pair_of(context, PULL, PUSH, TCP)
        push.close()
        eventually(lambda: not pull.peers())
        pull.rcvtimeo = SOON
        with pytest.raises(Again, match=r"the last peer at tcp://.* has left"):
            pull.recv()


def test_a_listener_says_that_it_refused_its_only_peer(context):
    """It asks for a transport that this host lacks, or that the other side did not name."""
    pull = context.socket(PULL, rcvtimeo=50)
    pull.bind(TCP)
    with transfer.Context(protocol="rdma", policy="require") as strict, strict.socket(PUSH, linger=0) as push:
        with contextlib.suppress(Fatal):
            push.connect(pull.last_endpoint)
            push.wait_for_peers(1, 5)

        def explained():
            with pytest.raises(Again) as caught:
                pull.recv()
            return "one was refused: policy" in str(caught.value)

        assert eventually(explained)
