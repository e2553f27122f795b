"""Peers that speak TTP frame by frame with a front alone."""

from __future__ import annotations

from contextlib import contextmanager

from tests.broker.single_front import Recorder, single_front
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.ttp import TtpFront, TtpSettings
from transfer.broker.protocols.ttp import (
    HEADER_SIZE,
    WANTED,
    TtpKind,
    decode_error,
    decode_header,
    encode_head,
)

MIB = 1 << 20
SETTINGS = TtpSettings(max_stream_memory=100_000, max_memory=150_000, max_streams=3)


class Peer:
    """A plain connection that speaks TTP frame by frame."""

    def __init__(self, broker):
        self.socket = broker.connect()

    def send(self, kind, topic=b"", meta=b"", data=b"", flags=0, number=0):
        self.socket.sendall(encode_head(kind, topic, meta, len(data), flags, number))
        self.socket.sendall(data)

    def read(self):
        """(type, flags, stream id, topic, metadata, data) of the next frame."""
        header = decode_header(self.exactly(HEADER_SIZE))
        sizes = header.topic_size, header.meta_size, header.data_size
        return (int(header.kind), header.flags, header.stream_id, *map(self.exactly, sizes))

    def ask(self, *arguments, number=77, **options):
        """The answer to a frame, and nothing before it."""
        self.send(*arguments, number=number, **options)
        return self.read()

    def refused(self):
        """(stream id, code) of the ERROR that comes next."""
        kind, _, number, _, _, data = self.read()
        assert kind == TtpKind.ERROR
        return number, decode_error(data)[0]

    def subscribe(self, text):
        assert self.ask(2, text, flags=WANTED)[:3] == (6, 0, 77)
        return self

    def alive(self):
        """The broker has taken all that was sent, said nothing to it, and is there."""
        assert self.ask(7, number=1234) == (7, 0, 1234, b"", b"", b"")
        return True

    def exactly(self, size):
        data = bytearray()
        while len(data) < size:
            some = self.socket.recv(min(size - len(data), MIB))
            assert some, "the broker has closed the connection"
            data += some
        return bytes(data)


@contextmanager
def serving(folder, count, *, durable=False, settings=SETTINGS):
    """A broker of this front alone, and so many peers."""
    with single_front(
        folder, lambda hub, lines: TtpFront(hub, lines, settings), durable=lambda name: durable
    ) as broker:
        peers = [Peer(broker) for _ in range(count)]
        try:
            yield broker, *peers
        finally:
            for peer in peers:
                peer.socket.close()


def subscribed_to_all(broker):
    """Somebody of another protocol who subscribes to everything."""
    recorder = Recorder()
    broker.call(broker.hub.subscribe, recorder, pattern(Kind.PREFIX, ""))
    return recorder


def answered_later(broker, peer, seconds):
    """As if this peer had answered so many seconds later."""
    name = "{}:{}".format(*peer.socket.getsockname())
    for connection in broker.front._connections:
        if connection.peer == name:
            connection.last_read += seconds
