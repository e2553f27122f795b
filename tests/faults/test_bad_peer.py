"""Peers that break the protocol: their connection ends with a reason, and nobody else notices.

What the frames look like is tested byte by byte in tests/core and tests/tensors. Here the bytes come
over a real connection to a socket of a user, who has another peer that behaves.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import socket
import struct

import numpy
import psutil
import pytest

from tests.core.raw_frames import CONTROL, CRC, EXTENDED, LZ4, META, MORE, TENSOR, TOPIC, Raw, read_frame
from tests.faults.raw_peer import (
    accepted,
    is_closed,
    next_event,
    pending_events,
    raw_peer,
    reset,
    send_frames,
    tcp_connected,
)
from tests.sockets.helpers import TCP, Thread, eventually
from transfer import PUB, PULL, PUSH, REP, REQ, ROUTER
from transfer.patterns.pub_sub import MAX_SUBSCRIBED, MAX_SUBSCRIPTIONS
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, Broken, HandshakeError, ProtocolError, StateError
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello

BOMB = 1 << 27


def lz4_frame(content: bytes, size: int | None = None) -> bytes:
    """An LZ4 frame that says its content has `size` bytes."""
    import lz4.frame

    packed = bytearray(lz4.frame.compress(content, store_size=True))
    if size is not None:
        struct.pack_into("<Q", packed, 6, size)
    return bytes(packed)


def header(dtype: int, ndim: int, *shape: int, layout: int = 0) -> bytes:
    return struct.pack("<II4qB7x", dtype, ndim, *shape, *[0] * (4 - len(shape)), layout)


def extended(ndim: int, *shape: int, dtype: int = 2, itemsize: int = 4, text: bytes = b"") -> bytes:
    body = struct.pack(f"<BBBBBBHI{len(shape)}q", 1, dtype, ndim, 0, 1, 0, 0, itemsize, *shape) + text
    return struct.pack("<I", 4 + len(body)) + body


class Watched:
    """A PULL with a good peer and a monitor, and what is to be the same after a bad one was there."""

    def __init__(self, context, **options):
        self.pull = context.socket(PULL, rcvtimeo=10_000, **options)
        self.pull.bind(TCP)
        self.push = context.socket(PUSH, sndtimeo=10_000)
        self.push.connect(self.pull.last_endpoint)
        self.pull.wait_for_peers(1, 10)
        self.push.wait_for_peers(1, 10)
        self.pool = context.pool
        self.taken = self.pool.in_use, self.pool.cached
        self.monitor = self.pull.get_monitor()
        self.others = self.push.get_monitor()

    def look(self):
        """What is there to read is looked at, as a program that polls does."""
        assert self.pull.poll(10) == 0, "the bad message was handed out"

    def refuses(self, bare, reason, look=None):
        """The connection ends: told by a typed error, counted, seen by the monitor."""
        address = "{}:{}".format(*bare.getsockname())
        counts, word = self.pull._links.state.counts, f"protocol:{reason}"
        assert eventually(lambda: (look or self.look)() or word in counts)
        assert counts[word] == 1
        assert self.pool.in_use <= self.taken[0] + (1 << 20)  # what arrived, and no more
        event = next_event(self.monitor, "protocol_failed")
        assert (event.reason, event.peer) == (reason, address)
        assert isinstance(event.error, ProtocolError)
        assert next_event(self.monitor, "disconnected").peer == address
        assert is_closed(bare)

    def nobody_noticed(self):
        """The good peer has the connection that it had, and nothing is left of the bad one."""
        self.push.send(b"still here")
        assert self.pull.recv() == b"still here"
        assert eventually(lambda: len(self.pull.peers()) == 1)
        assert [event for event in pending_events(self.others) if event.kind != "connected"] == []
        assert eventually(lambda: gc.collect() >= 0 and self.pool.in_use == self.taken[0])
        assert self.pool.cached <= self.taken[1] + (8 << 20)


# --- frames that every receiver refuses ---------------------------------------------------------

BAD_FRAMES = {
    "wrong magic": ("magic", Raw(magic=0xDEADBEEF)),
    "garbage": ("magic", bytes(range(1, 256)) * 40),
    "text": ("magic", b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n"),
    "wrong version": ("version", Raw(version=2)),
    "unknown socket type": ("flags", Raw(socket_type=200)),
    "extended without tensor": ("flags", Raw(flags=EXTENDED, meta=bytes(40))),
    "length 2^63": ("length", Raw(length=1 << 63)),
    "length 2^64 - 1": ("length", Raw(length=(1 << 64) - 1)),
    "length over the limit": ("too_large", Raw(length=1_000_001)),
    "tensor over the limit": ("too_large", Raw(flags=TENSOR, meta=META, length=1 << 40)),
    "topic of 4 GB": ("topic", Raw(flags=TOPIC, topic_length=(1 << 32) - 1)),
    "topic of 64 KiB and a byte": ("topic", Raw(flags=TOPIC, topic_length=65_537)),
    "topic without its flag": ("topic", Raw(b"data", topic=b"topic")),
    "wrong checksum": ("checksum", Raw(b"data", CRC, checksum=1)),
    "wrong checksum, large": ("checksum", Raw(bytes(300_000), CRC, checksum=1)),
    "checksum of a tensor": ("checksum", Raw(bytes(24), CRC | TENSOR, meta=header(2, 1, 3), checksum=7)),
    "control over the limit": ("control", Raw(flags=CONTROL, length=1 << 20)),
    "control with more": ("control", Raw(b"\6", CONTROL | MORE)),
    "credit of a sender": ("control", Raw(b"\5" + struct.pack("<Q", 1 << 40), CONTROL)),
    "credit cut short": ("control", Raw(b"\5\1", CONTROL)),
    "subscription to a PULL": ("control", Raw(b"\2" + bytes(8), CONTROL)),
    "extended header of 4 GB": ("tensor", Raw(flags=TENSOR | EXTENDED, meta=b"\xff" * 16)),
    "extended header of 3 bytes": ("tensor", Raw(flags=TENSOR | EXTENDED, meta=b"\3" + bytes(19))),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_a_bad_frame_ends_its_connection_and_no_other(context, case):
    reason, bad = BAD_FRAMES[case]
    watched = Watched(context, maxmsgsize=1_000_000)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(b"before"), bad, bytes(64))
        assert watched.pull.recv() == b"before"
        watched.refuses(bare, reason)
    watched.nobody_noticed()


def test_a_topic_that_is_longer_than_said(context):
    """It swallows the data, the data what comes next, and where a frame should begin there is none."""
    watched = Watched(context)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(b"data", TOPIC, topic=b"topic", topic_length=9), b"next", bytes(64))
        assert watched.pull.recv_multipart() == [b"topicdata", b"next"]
        watched.refuses(bare, "magic")
    watched.nobody_noticed()


def test_a_bad_frame_does_not_end_the_wait_of_a_receiver(context):
    watched = Watched(context)
    waiting = Thread(watched.pull.recv)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(magic=1), bytes(64))
        assert is_closed(bare)
        assert next_event(watched.monitor, "protocol_failed").reason == "magic"
    watched.push.send(b"good")
    assert waiting.finish() == b"good"
    watched.nobody_noticed()


@pytest.mark.parametrize("size", [0, 100, 3_000_000])
@pytest.mark.parametrize("end", ["closed", "reset"])
def test_a_frame_cut_in_the_middle(context, size, end):
    watched = Watched(context)
    with raw_peer(watched.pull.last_endpoint) as bare:
        address = bare.getsockname()[:2]
        frame = Raw(bytes(size), TOPIC, topic=b"topic").encode()
        # Who speaks is read from meanwhile: how much the kernels keep in between is their affair.
        telling = Thread(send_frames, bare, Raw(b"before"), frame[: 34 + size // 2 if size else 17])
        assert watched.pull.recv() == b"before"
        assert eventually(lambda: watched.look() or not telling.is_alive())
        telling.finish()
        watched.look()
        # A close with a credit unread would be a reset, too.
        reset(bare) if end == "reset" else bare.shutdown(socket.SHUT_WR)
        counts = watched.pull._links.state.counts
        assert eventually(lambda: watched.look() or "disconnected" in counts)
        event = next_event(watched.monitor, "disconnected")
        assert event.peer == "{}:{}".format(*address)
        assert isinstance(event.error, ProtocolError if end == "closed" else (Broken, ProtocolError))
        if end == "closed":
            assert event.error.reason == "truncated"
            assert counts["protocol:truncated"] == 1
        del event  # its traceback refers to what was half read
    watched.nobody_noticed()


def test_announced_messages_that_never_come_cost_no_memory(context):
    """A header may say anything below the limit: memory is touched as bytes arrive, in small pages first."""
    watched = Watched(context)
    with contextlib.ExitStack() as bare:
        for _ in range(50):
            one = bare.enter_context(raw_peer(watched.pull.last_endpoint))
            send_frames(one, Raw(bytes(1000), length=3 << 30))
        assert eventually(lambda: len(watched.pull.peers()) == 51)
        resident = psutil.Process().memory_info().rss
        for _ in range(3):
            watched.look()
        watched.push.send(b"others are served")
        assert watched.pull.recv() == b"others are served"
        assert psutil.Process().memory_info().rss < resident + (16 << 20)
    assert eventually(lambda: watched.look() or "protocol:truncated" in watched.pull._links.state.counts)
    watched.nobody_noticed()


# --- headers of tensors -------------------------------------------------------------------------

BAD_TENSORS = {
    "unknown dtype": ("dtype", Raw(bytes(12), TENSOR, meta=header(99, 1, 3))),
    "dtype 0": ("dtype", Raw(bytes(12), TENSOR, meta=header(0, 1, 3))),
    "nine dimensions": ("shape", Raw(bytes(12), TENSOR, meta=header(2, 9, 3))),
    "2^32 - 1 dimensions": ("shape", Raw(bytes(12), TENSOR, meta=header(2, 2**32 - 1, 3))),
    "negative dimension": ("shape", Raw(bytes(12), TENSOR, meta=header(2, 1, -3))),
    "dimensions that overflow": ("shape", Raw(bytes(12), TENSOR, meta=header(2, 3, 2**31, 2**31, 2**31))),
    "shape larger than the data": ("shape", Raw(bytes(12), TENSOR, meta=header(2, 2, 1 << 20, 1 << 20))),
    "shape smaller than the data": ("shape", Raw(bytes(12), TENSOR, meta=header(2, 1, 2))),
    "the same, large": ("shape", Raw(bytes(400_000), TENSOR, meta=header(2, 1, 2))),
    "unknown layout": ("tensor", Raw(bytes(12), TENSOR, meta=header(2, 1, 3, layout=9))),
    "33 dimensions": ("shape", Raw(bytes(4), TENSOR | EXTENDED, meta=extended(33, *[1] * 33))),
    "fewer sizes than dimensions": ("tensor", Raw(bytes(4), TENSOR | EXTENDED, meta=extended(20, 1, 1))),
    "items of another size": ("dtype", Raw(bytes(4), TENSOR | EXTENDED, meta=extended(1, 4, itemsize=1))),
    "python objects": (
        "dtype",
        Raw(bytes(8), TENSOR | EXTENDED, meta=extended(1, 1, dtype=0, itemsize=8, text=b'"|O"')),
    ),
}


@pytest.mark.parametrize("receive", ["plain", "out"])
@pytest.mark.parametrize("case", BAD_TENSORS)
def test_a_bad_tensor_ends_its_connection_and_no_other(context, case, receive):
    reason, bad = BAD_TENSORS[case]
    watched = Watched(context)
    options = {"out": numpy.zeros(3, "f4")} if receive == "out" else {}
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, bad)

        def look():
            with pytest.raises(Again):
                watched.pull.receive_timeout = 20
                watched.pull.recv_tensor(**options)

        watched.refuses(bare, reason, look)
    watched.pull.receive_timeout = 10_000
    watched.push.send_tensor(numpy.ones(3, "f4"))
    assert watched.pull.recv_tensor(**options).tolist() == [1, 1, 1]
    watched.nobody_noticed()


# --- compressed data ----------------------------------------------------------------------------

BAD_LZ4 = {
    "bomb": lambda: _bomb(),
    "bomb that lies": lambda: lz4_frame(bytes(1 << 20), size=100),
    "bomb of 2^63": lambda: lz4_frame(b"x" * 1000, size=1 << 63),
    "no LZ4": lambda: b"not compressed at all" * 10,
    "cut off": lambda: lz4_frame(bytes(range(256)) * 100)[:-40],
}


@pytest.mark.parametrize("case", BAD_LZ4)
@pytest.mark.parametrize("how", ["recv", "recv_multipart", "recv_tensor"])
def test_bad_compression_ends_its_connection_and_no_other(context, case, how):
    watched = Watched(context, maxmsgsize=BOMB - 1)
    packed = BAD_LZ4[case]()
    meta = header(8, 1, 100) if how == "recv_tensor" else b""
    flags = LZ4 | (TENSOR if meta else 0)
    resident = psutil.Process().memory_info().rss
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(packed, flags, meta=meta))

        def look():
            with pytest.raises(Again):
                watched.pull.receive_timeout = 20
                getattr(watched.pull, how)()

        watched.refuses(bare, "compression", look)
        assert psutil.Process().memory_info().rss < resident + (64 << 20)
    watched.pull.receive_timeout = 10_000
    watched.nobody_noticed()


@functools.cache
def _bomb():
    """A few kB that would be 128 MB."""
    return lz4_frame(bytes(BOMB))


@pytest.mark.parametrize(("ours", "theirs"), [(REP, SocketType.REQ), (ROUTER, SocketType.DEALER)])
def test_a_server_survives_a_bad_request(context, ours, theirs):
    server = context.socket(ours, rcvtimeo=10_000)
    server.bind(TCP)
    monitor = server.get_monitor()
    serving = Thread(server.recv_multipart)
    with raw_peer(server.last_endpoint, theirs) as bare:
        send_frames(bare, Raw(b"", MORE), Raw(b"no LZ4" * 10, LZ4)) if ours is ROUTER else send_frames(
            bare, Raw(b"no LZ4" * 10, LZ4)
        )
        assert next_event(monitor, "protocol_failed").reason == "compression"
        assert is_closed(bare)
    client = context.socket(REQ)
    client.connect(server.last_endpoint)
    client.send(b"a good one")
    parts = serving.finish()
    assert parts[-1] == b"a good one"
    server.send_multipart([*parts[:-1], b"answer"])
    assert client.recv() == b"answer"


def test_a_bad_reply_fails_its_request(context):
    """The typed error comes out where the reply was awaited, and the next request is free to go."""
    client = context.socket(REQ, reconnect_ivl=10)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client.connect("tcp://{}:{}".format(*listener.getsockname()))
        bare = accepted(listener, SocketType.REP)
        with bare:
            client.send(b"question")
            asked = read_frame(bare)
            assert asked.data == b"question"
            send_frames(bare, Raw(b"no LZ4" * 10, LZ4, sequence=asked.sequence, socket_type=1))
            with pytest.raises((ProtocolError, Broken)):
                client.recv()
            assert is_closed(bare)
    assert client._links.state.counts["protocol:compression"] == 1
    with pytest.raises(StateError, match="no request"):
        client.recv()


# --- before and in the handshake ----------------------------------------------------------------

BAD_BEGINNINGS = {
    "garbage": ("magic", bytes(range(1, 200))),
    "wrong version": ("version", Raw(version=7).encode()),
    "first message of 2^63 bytes, no hello": ("length", Raw(length=1 << 63).encode()),
    "first message with a topic of 4 GB, no hello": (
        "length",
        Raw(b"data", TOPIC, topic_length=(1 << 32) - 1).encode(),
    ),
    "hello of 2^63 bytes": ("length", Raw(b"\1", CONTROL, 0, length=1 << 63).encode()),
    "hello of 1 GB": ("length", Raw(b"\1", CONTROL, 0, length=1 << 30).encode()),
    "hello without sense": ("hello", Raw(b"\1{]", CONTROL, 0).encode()),
    "wrong kind of socket": ("socket_type", encode(make_hello(SocketType.PUB))),
    "half a header": ("timeout", Raw(b"data").encode()[:17]),
    "half a hello": ("timeout", encode(make_hello(SocketType.PUSH))[:80]),
    "silence": ("timeout", b""),
}


@pytest.mark.parametrize("case", BAD_BEGINNINGS)
def test_a_bad_beginning_ends_its_connection_and_no_other(context, case):
    reason, data = BAD_BEGINNINGS[case]
    watched = Watched(context)
    watched.pull.handshake_ivl = 100 if reason == "timeout" else 20_000
    watched.pull.bind(TCP)  # the time holds for what is bound from now on
    with tcp_connected(watched.pull.last_endpoint) as bare:
        address = "{}:{}".format(*bare.getsockname())
        send_frames(bare, data)
        event = next_event(watched.monitor, "handshake_failed")
        assert (event.reason, event.peer) == (reason, address)
        assert isinstance(event.error, HandshakeError)
        assert watched.pull._links.state.counts[f"handshake:{reason}"] == 1
        assert is_closed(bare)
    watched.nobody_noticed()


def test_silence_inside_a_frame_of_a_peer_that_promised_heartbeats(context):
    watched = Watched(context, heartbeat_ivl=10, heartbeat_timeout=100)
    watched.push.heartbeat_ivl = 10
    with raw_peer(watched.pull.last_endpoint, extra={"heartbeat_ms": 10}) as bare:
        send_frames(bare, Raw(b"data").encode()[:17])
        watched.look()
        event = next_event(watched.monitor, "silent")
        assert event.peer == "{}:{}".format(*bare.getsockname())
        assert isinstance(next_event(watched.monitor, "disconnected").error, Broken)
        assert is_closed(bare)
    watched.push.send(b"still here")
    assert watched.pull.recv() == b"still here"


def test_a_subscription_too_long_or_too_many(context):
    """A PUB reads what strangers ask for, and there is a limit."""
    pub = context.socket(PUB)
    pub.bind(TCP)
    monitor = pub.get_monitor()
    with raw_peer(pub.last_endpoint, SocketType.SUB) as bare:
        order = b"\2" + struct.pack("<Q", 1)
        send_frames(bare, Raw(order + bytes(70_000), CONTROL, socket_type=3))
        assert next_event(monitor, "protocol_failed").reason == "control"
        assert is_closed(bare)
    for prefixes in (
        (number.to_bytes(4, "little") for number in range(MAX_SUBSCRIPTIONS + 1)),
        (number.to_bytes(4, "little") + bytes(60_000) for number in range(MAX_SUBSCRIBED // 60_000 + 1)),
    ):
        with raw_peer(pub.last_endpoint, SocketType.SUB) as bare:
            with contextlib.suppress(OSError):
                for prefix in prefixes:
                    send_frames(bare, Raw(b"\2" + struct.pack("<I", 1) + prefix, CONTROL, socket_type=3))
            event = next_event(monitor, "protocol_failed")
            assert "more subscriptions than one peer may have" in str(event.error)
            assert is_closed(bare)
    with raw_peer(pub.last_endpoint, SocketType.SUB) as bare:
        send_frames(bare, Raw(b"data is not for a PUB", socket_type=3))
        assert next_event(monitor, "protocol_failed").reason == "flags"
        assert is_closed(bare)


def test_what_the_program_handles_meanwhile_keeps_its_traceback(context):
    """An error that is kept loses its frames; the program's own one is its context, and is not ours."""
    pull = context.socket(PULL, rcvtimeo=2000)
    pull.bind(TCP)
    monitor = pull.get_monitor()
    with raw_peer(pull.last_endpoint) as bare:
        try:
            raise ValueError("the program's own")
        except ValueError as own:
            send_frames(bare, Raw(b"no LZ4", LZ4))
            with pytest.raises(Again):
                pull.recv()
            error = next_event(monitor, "protocol_failed").error
            kept = own.__traceback__
    assert kept is not None
    assert isinstance(error, ProtocolError)
    assert error.__traceback__ is None
    assert error.__context__ is None
