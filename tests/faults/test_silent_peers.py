"""Peers that fall silent inside a message: a finite time, then a typed error, and nobody else notices.

Silence in the hello is in test_bad_peer.py, that of peers with heartbeats too.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy
import pytest

from tests.core.raw_frames import CONTROL, MORE, TENSOR, TOPIC, Raw, read_frame
from tests.faults.raw_peer import accepted, is_closed, next_event, raw_peer, send_frames, tcp_connected
from tests.faults.test_bad_peer import Watched, header
from tests.sockets.helpers import TCP, Thread, eventually
from transfer import PUB, PULL, PUSH, REQ
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, ProtocolError, TensorMismatch

ON: dict[str, int] = {}
OFF = {"heartbeat_ivl": 0, "heartbeat_timeout": -1}
HALVES = {
    "a byte": Raw(b"data").encode()[:1],
    "half a header": Raw(b"data").encode()[:17],
    "a header without its data": Raw(b"data").encode()[:34],
    "half of the data": Raw(bytes(100)).encode()[:80],
    "half of large data": Raw(bytes(300_000)).encode()[:150_000],
    "half a topic": Raw(b"data", TOPIC, topic=b"topic" * 100).encode()[:60],
    "a topic longer than the message": Raw(b"data", TOPIC, topic=b"topic", topic_length=60_000).encode(),
    "half a tensor header": Raw(bytes(12), TENSOR, meta=header(2, 1, 3)).encode()[:60],
    "half a control frame": Raw(b"\6" + bytes(99), CONTROL, 0).encode()[:50],
    "a part that says more follow": Raw(b"part", MORE).encode(),
}


@pytest.mark.parametrize("options", [ON, OFF], ids=["heartbeats", "no heartbeats"])
@pytest.mark.parametrize("case", HALVES)
def test_half_a_message_and_then_silence(context, case, options):
    watched = Watched(context, frame_timeout=100, **options)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(b"before"), HALVES[case])
        assert watched.pull.recv() == b"before"
        watched.refuses(bare, "stalled")
    watched.nobody_noticed()


@pytest.mark.parametrize("case", ["half a header", "half of large data"])
def test_a_peer_without_hello(context, case):
    watched = Watched(context, frame_timeout=100)
    with tcp_connected(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(b"before"), HALVES[case])
        assert watched.pull.recv() == b"before"
        watched.refuses(bare, "stalled")
    watched.nobody_noticed()


def test_a_peer_without_hello_that_sends_one_header_only(context):
    """The header is its hello; what it announces holds the memory no longer than this."""
    watched = Watched(context, frame_timeout=100)
    with tcp_connected(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(length=1 << 30).encode())
        assert eventually(lambda: watched.look() or "protocol:stalled" in watched.pull._links.state.counts)
        assert next_event(watched.monitor, "protocol_failed").reason == "stalled"
        assert is_closed(bare)
    watched.nobody_noticed()


def test_a_receiver_that_waits_goes_on_waiting(context):
    watched = Watched(context, frame_timeout=100)
    waiting = Thread(watched.pull.recv)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, HALVES["half a header"])
        assert next_event(watched.monitor, "protocol_failed").reason == "stalled"
        assert is_closed(bare)
    watched.push.send(b"good")
    assert waiting.finish() == b"good"
    watched.nobody_noticed()


@pytest.mark.parametrize(("ours", "theirs"), [(PUB, SocketType.SUB), (PUSH, SocketType.PULL)])
def test_at_a_socket_that_only_sends(context, ours, theirs):
    server = context.socket(ours, frame_timeout=100, sndtimeo=10_000, **OFF)
    server.bind(TCP)
    monitor = server.get_monitor()
    with raw_peer(server.last_endpoint, theirs) as bare:
        order = Raw(b"\2" + struct.pack("<Q", 1), CONTROL, 0, socket_type=int(theirs)).encode()
        send_frames(bare, order[:17])
        event = next_event(monitor, "protocol_failed")
        assert event.reason == "stalled" and isinstance(event.error, ProtocolError)
        assert server._links.state.counts["protocol:stalled"] == 1
        assert is_closed(bare)


def test_a_server_that_falls_silent_in_its_reply(context):
    """The request fails with a typed error, and the client connects again."""
    client = context.socket(REQ, frame_timeout=100, reconnect_ivl=10, **OFF)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client.connect("tcp://{}:{}".format(*listener.getsockname()))
        with accepted(listener, SocketType.REP) as bare:
            client.send(b"question")
            asked = read_frame(bare)
            send_frames(bare, Raw(b"answer", sequence=asked.sequence, socket_type=1).encode()[:-3])
            with pytest.raises(Broken, match="before it replied") as caught:
                client.recv()
            assert isinstance(caught.value.__cause__, ProtocolError)
            assert caught.value.__cause__.reason == "stalled"
            assert is_closed(bare)
        with accepted(listener, SocketType.REP) as bare:
            client.send(b"again")
            asked = read_frame(bare)
            send_frames(bare, Raw(b"answer", sequence=asked.sequence, socket_type=1))
            assert client.recv() == b"answer"
    assert client._links.state.counts["protocol:stalled"] == 1


def test_the_time_may_be_changed_while_it_runs(context):
    watched = Watched(context, **OFF)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, HALVES["half a header"])
        watched.look()
        watched.pull.frame_timeout = 100  # the next look would have been in 15 s
        watched.refuses(bare, "stalled")
    watched.nobody_noticed()


# --- who is not given up, however late it is -----------------------------------------------------


class Judged:
    """One raw peer of a PULL, and whether it is still connected a quarter of an hour from now."""

    def __init__(self, context, bare, pull):
        self.pull, self.bare = pull, bare
        self.links = pull._links
        (self.peer,) = self.links.state.peers.values()

    def stalled(self, later: int = 900 * 10**9) -> bool:
        return self.links.heartbeats._is_stalled(self.pull, self.peer, time.monotonic_ns() + later)

    def arrived(self, nbytes: int) -> None:
        """Waits until the kernel has so many bytes of it unread."""
        from transfer.sockets import drain

        assert eventually(lambda: drain.unread(self.peer) >= nbytes)


@pytest.fixture
def judged(context):
    pull = context.socket(PULL, rcvtimeo=10_000)
    pull.bind(TCP)
    with raw_peer(pull.last_endpoint) as bare:
        pull.wait_for_peers(1, 10)
        yield Judged(context, bare, pull)


def test_silence_between_messages(judged):
    assert not judged.stalled()
    send_frames(judged.bare, Raw(b"data"))
    assert judged.pull.recv() == b"data"
    assert judged.pull.poll(10) == 0
    assert not judged.stalled()


def test_what_nobody_reads_waits(judged):
    send_frames(judged.bare, HALVES["half a header"])
    judged.arrived(17)
    assert not judged.stalled()
    assert judged.pull.poll(10) == 0
    assert judged.stalled()
    assert not judged.stalled(later=0), "its time has just begun"
    judged.pull.frame_timeout = -1
    assert not judged.stalled()


def test_messages_that_were_read_ahead_are_not_lost(judged):
    """As long as one of them was not taken, half of another is no reason."""
    send_frames(judged.bare, Raw(b"one"), Raw(b"two"), HALVES["half a header"])
    judged.arrived(2 * 37 + 17)
    assert judged.pull.recv() == b"one"
    assert not judged.stalled()
    assert judged.pull.recv() == b"two"
    assert judged.pull.poll(10) == 0
    assert judged.stalled()
    send_frames(judged.bare, Raw(b"data").encode()[17:])
    assert judged.pull.recv() == b"data"
    assert not judged.stalled()


def test_a_message_that_came_in_two_halves(judged):
    frame = Raw(bytes(300_000)).encode()
    send_frames(judged.bare, frame[:150_000])
    judged.arrived(1)
    assert eventually(lambda: judged.pull.poll(10) or judged.stalled())
    send_frames(judged.bare, frame[150_000:])
    assert len(judged.pull.recv()) == 300_000
    assert not judged.stalled()


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_tensor_that_does_not_fit_its_place_yet(judged, size):
    """It stays unread, whole, for as long as the application thinks about it."""
    frame = Raw(bytes(4 * size), TENSOR, meta=header(2, 1, size)).encode()
    send_frames(judged.bare, frame)
    judged.arrived(min(len(frame), 1000))
    with pytest.raises(TensorMismatch):
        judged.pull.recv_tensor(out=numpy.zeros(2, "f4"))
    assert not judged.stalled() or judged.pull.poll(10)
    assert judged.pull.recv_tensor().shape == (size,)
    assert not judged.stalled()
