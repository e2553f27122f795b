"""No call of a socket, poller or context takes a wrong argument in silence, hangs, or raises an error without
what to do."""

from __future__ import annotations

import asyncio
import gc
import os

import numpy

import transfer
import transfer.asyncio
from tests.arguments.wrong_calls import Case, missing, outcome
from tests.sockets.conftest import KeepingContext, context, core  # noqa: F401 - fixtures
from tests.sockets.helpers import TCP, pair_of
from transfer import PUB, PULL, PUSH, ROUTER, SUB, UsageError
from transfer.patterns import Pusher

WEIGHTS = numpy.zeros(3)


def refused(case: Case) -> list[str]:
    """The calls that did not end with an error of ours and what to do."""
    found = []
    for what, arguments in case.wrong():
        ended = outcome(case.call, arguments)
        if not (isinstance(ended, UsageError) and ended.hint):
            found.append(f"{what}: {ended!r:.150}")
    return found


def ways_to_send(socket, peer_receives=None):
    """Each sends one message."""
    flags = {"flags": transfer.DONTWAIT}
    return [
        Case("send", lambda data, flags: socket.send(data, flags), {"data": b"x", **flags}),
        Case("send_multipart", socket.send_multipart, {"msg_parts": [b"x"], **flags}),
        Case("send_many", socket.send_many, {"messages": [b"x"], **flags}),
        Case("send_string", socket.send_string, {"u": "x", **flags}, ("u: text",)),
        Case("send_json", socket.send_json, {"obj": 1, **flags}, ("obj: text None -1 nan huge",)),
        Case(
            "send_tensor",
            socket.send_tensor,
            {"tensor": WEIGHTS, "topic": None, **flags},
            ("topic: text None",),
        ),
        Case(
            "send_tensors",
            socket.send_tensors,
            {"tensors": {"a": WEIGHTS}, "meta": None, "topic": None, **flags},
            ("topic: text None", "meta: text None -1 nan huge"),
        ),
        Case("send_frames", socket.send_frames, {"frames": [(None, None, 0, b"x")], **flags}),
    ]


def ways_to_receive(socket):
    return [
        Case("recv", lambda flags: socket.recv(flags), {"flags": 1}),
        Case("recv_multipart", socket.recv_multipart, {"flags": 1}),
        Case("recv_many", socket.recv_many, {"most": 2, "flags": 1}, ("most: huge",)),
        Case("recv_string", socket.recv_string, {"flags": 1}),
        Case("recv_json", socket.recv_json, {"flags": 1}),
        Case(
            "recv_into",
            lambda buffer, nbytes, flags: socket.recv_into(buffer, nbytes=nbytes, flags=flags),
            {"buffer": bytearray(9), "nbytes": 0, "flags": 1},
        ),
        Case("recv_tensor", socket.recv_tensor, {"flags": 1, "out": WEIGHTS}, ("out: None", "like: None")),
        Case(
            "recv_tensors",
            socket.recv_tensors,
            {"flags": 1, "out": {"a": WEIGHTS}},
            ("out: None", "like: None"),
        ),
        Case("recv_frames", socket.recv_frames, {"flags": 1}),
    ]


def waits(socket, endless=("timeout: None -1 huge",)):
    return [
        Case("poll", socket.poll, {"timeout": 0, "flags": 1}, endless),
        Case("wait_for_peers", socket.wait_for_peers, {"n": 0, "timeout": 0}, ("timeout: None -1 huge",)),
    ]


def the_rest(socket):
    return [
        Case("bind", socket.bind, {"addr": TCP}),
        Case("connect", socket.connect, {"addr": "tcp://127.0.0.1:9"}),
        Case("unbind", socket.unbind, {"addr": TCP}),
        Case("disconnect", socket.disconnect, {"addr": TCP}),
        Case("set", socket.set, {"option": "linger", "value": 1}, ("value: -1",)),
        Case("get", socket.get, {"option": "linger"}),
        Case("set_callback", socket.set_callback, {"callback": None}, ("callback: None",)),
        Case(
            "announce",
            socket.announce,
            {"registry": "registry://127.0.0.1:1/x", "endpoint": "tcp://127.0.0.1:5"},
            ("endpoint: None", "lease: None", "metadata: None", "advertise: text None"),
        ),
        Case("subscribe", socket.subscribe, {"prefix": b""}, ("prefix: text",)),
        Case("unsubscribe", socket.unsubscribe, {"prefix": b""}, ("prefix: text",)),
        Case("close", socket.close, {"linger": 0}, ("linger: None -1 huge",)),
    ]


def assert_refused(*cases):
    lines = [line for case in cases for line in refused(case)]
    assert not lines, "\n".join(["not refused as they should be:", *lines])


def test_a_sending_socket(context):  # noqa: F811
    pull, push = pair_of(context, PULL, PUSH, sndhwm=0, rcvhwm=0)
    cases = [*ways_to_send(push), *waits(push)]
    assert_refused(*cases)
    assert push.send_multipart([b"good"]) is None
    pull.rcvtimeo = 5000
    while pull.recv_multipart() != [b"good"]:
        pass


def test_a_receiving_socket(context):  # noqa: F811
    pull, push = pair_of(context, PULL, PUSH)
    for _ in range(3):
        push.send(b"x")
    assert pull.poll(5000)
    cases = [*ways_to_receive(pull), *waits(pull)]
    assert_refused(*cases)
    assert [pull.recv() for _ in range(3)] == [b"x"] * 3, "a wrong call takes no message"


def test_endpoints_and_all_else(context):  # noqa: F811
    before = len(os.listdir("/proc/self/fd"))
    socket = context.socket(SUB, linger=0)
    assert_refused(*the_rest(socket))
    context.destroy(0)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_types_with_calls_of_their_own(context):  # noqa: F811
    publisher, router = context.socket(PUB), context.socket(ROUTER)
    sending = {"flags": 1, "copy": None, "meta": None}
    cases = [
        Case("subscribers", publisher.subscribers, {"topic": b""}, ("topic: text None",)),
        Case("expel", router.expel, {"identity": b"a", "reason": "x"}, ("identity: text", "reason: text")),
        Case(
            "send_tensors_to",
            router.send_tensors_to,
            {"identity": b"a", "tensors": {"a": WEIGHTS}, **sending},
            ("identity: text", "meta: text None -1 nan huge"),
        ),
        Case("recv_tensors_from", router.recv_tensors_from, {"flags": 1}, ("like: None",)),
        Case("Monitor.recv", publisher.get_monitor().recv, {"timeout": 0}, ("timeout: None -1 huge",)),
    ]
    assert_refused(*cases)


def test_pollers(context):  # noqa: F811
    poller = transfer.Poller()
    poller.register(context.socket(PUB), transfer.POLLOUT)
    cases = [
        Case("register", poller.register, {"socket": 1, "flags": 0}),
        Case("modify", poller.modify, {"socket": 1, "flags": 0}),
        Case("poll", poller.poll, {"timeout": 0}, ("timeout: None -1 huge",)),
        Case("unregister", poller.unregister, {"socket": 1}),
    ]
    assert_refused(*cases)
    assert len(poller.sockets) == 1
    assert not missing("Poller", poller, cases, set())


def test_contexts(core):  # noqa: F811
    before = len(os.listdir("/proc/self/fd"))
    with transfer.Context(core=core) as context:  # noqa: F811
        cases = [
            Case(
                "Context",
                transfer.Context,
                {"core": core},
                (
                    "io_threads:",
                    "core: None",
                    "registry: None",
                    "metrics_port: None",
                    "security: None",
                    "protocol: None",
                    "policy: None",
                ),
            ),
            Case("socket", context.socket, {"socket_type": "PUSH", "pattern": Pusher}, ("pattern: None",)),
            Case("empty", context.empty, {"shape": (2,), "dtype": "float32", "like": None}, ("like: None",)),
            Case("register", context.register, {"tensor": WEIGHTS}),
            Case("destroy", context.destroy, {"linger": 0}, ("linger: None -1 huge",)),
        ]
        assert_refused(*cases)
        assert not missing(
            "Context", context, cases, {"check", "start", "term", "instance", "is_shared", "log_once", "dump"}
        )
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_security():
    texts = ("certificate", "key", "authority", "server_name", "token_file")
    takes = tuple(f"{name}: text" for name in texts)
    case = Case("Security", transfer.Security, {}, (*takes, "connections: huge", "unfinished: huge"))
    assert_refused(case)


def test_every_public_call_of_a_socket_is_here(context):  # noqa: F811
    socket = context.socket(ROUTER)
    cases = [*ways_to_send(socket), *ways_to_receive(socket), *waits(socket), *the_rest(socket)]
    elsewhere = {"subscribers", "expel", "send_tensors_to", "recv_tensors_from", "setsockopt", "getsockopt"}
    elsewhere |= {"waiting_bytes"}  # of the broker's own sockets
    bare = {"fileno", "peers", "routes", "get_monitor"}  # they take nothing
    assert missing("Socket", socket, cases, elsewhere | bare) == []


# -- coroutines --------------------------------------------------------------------------------------


def awaited(cases):
    """The same calls, each in an event loop of its own."""

    def in_loop(call):
        async def run(arguments):
            found = call(**arguments)
            return await found if asyncio.iscoroutine(found) else found

        return lambda **arguments: asyncio.run(run(arguments))

    for case in cases:
        case.good |= {}
        case.call = in_loop(case.call)
    return cases


def test_coroutines(core):  # noqa: F811
    with transfer.asyncio.Context(core=core) as context:  # noqa: F811
        pull, push = context.socket(PULL, rcvhwm=0), context.socket(PUSH, sndhwm=0)
        with pull, push:
            pull.bind(TCP)
            push.connect(pull.last_endpoint)
            asyncio.run(push.peers_ready(1, 10))
            poller = transfer.asyncio.Poller()
            poller.register(push, transfer.POLLOUT)
            cases = [
                *ways_to_send(push),
                Case(
                    "poll", push.poll, {"timeout": 0, "flags": transfer.POLLOUT}, ("timeout: None -1 huge",)
                ),
                Case("peers_ready", push.peers_ready, {"n": 0, "timeout": 0}, ("timeout: None -1 huge",)),
                Case("Poller.poll", poller.poll, {"timeout": 0}, ("timeout: None -1 huge",)),
                *ways_to_receive(pull),
                Case("close", push.close, {"linger": 0}, ("linger: None -1 huge",)),
            ]
            assert_refused(*awaited(cases))
