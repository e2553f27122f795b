"""Programs that speak the protocol of the broker's own front word by word."""

from __future__ import annotations

import json
import os
import random
from contextlib import contextmanager

import transfer
from tests.broker.native_peers import wait_for
from transfer.broker.protocols.native import Join, Op, decode, encode, encode_deliveries, encode_join
from transfer.broker.protocols.native_batch import decode_several
from transfer.broker.protocols.native_pieces import (
    LARGE_FROM,
    Begin,
    Place,
    decode_grant,
    decode_place,
    encode_begin,
    encode_place,
)

MIB = 1 << 20
#: a message that goes in pieces, and is no number of them
PAYLOAD = random.Random(5).randbytes(LARGE_FROM * 3 + 12_345)


class Program:
    """A DEALER of its own."""

    def __init__(self, socket):
        self.socket = socket
        self._heard = []

    def say(self, head, *parts):
        self.socket.send_multipart([head, *parts])

    def hear(self, *ops):
        """(head, parts) of the next word; of one of these ops, others are passed over."""
        while True:
            if not self._heard:
                first, *parts = self.socket.recv_frames()
                head = decode(bytes(first.data))
                if head.op is Op.SEVERAL_FROM_BROKER:
                    self._heard = [(one, parts[its]) for one, its in decode_several(head, len(parts))]
                else:
                    self._heard = [(head, parts)]
            head, parts = self._heard.pop(0)
            if not ops or head.op in ops:
                return head, parts

    def begin(self, number, nbytes, topic=b"t", parts=b""):
        self.say(encode_begin(number, Begin(topic, nbytes, parts)))

    def piece(self, number, data):
        self.say(encode(Op.PIECE, number), data)

    def end(self, number):
        self.say(encode(Op.END, number))

    def granted(self):
        """(number, position) of the next GRANT."""
        head, _ = self.hear()
        assert head.op is Op.GRANT
        return head.number, decode_grant(head)

    def refused(self):
        """(number, what is said) of the REFUSED that comes next, apart from GRANTs."""
        head, _ = self.hear(Op.REFUSED, Op.KEPT)
        assert head.op is Op.REFUSED
        return head.number, json.loads(head.body)["message"]

    def kept(self):
        """The number of the next message that is kept."""
        head, _ = self.hear(Op.REFUSED, Op.KEPT)
        assert head.op is Op.KEPT, head.body
        return head.number

    def join(self, topic, group="g", number=99, **wishes):
        self.say(encode(Op.JOIN, number, encode_join(Join(topic, group, begin="old", **wishes))))
        assert self.hear(Op.JOINED)[0].number == number

    def offered(self):
        """The place of the message that is offered next: its size is the position."""
        head, _ = self.hear()
        assert head.op is Op.OFFER
        return decode_place(head)[0]

    def fetch(self, place, position, number=99):
        self.say(encode_place(Op.FETCH, number, Place(place.offset, place.attempt, position)))

    def ranges(self, position):
        """The bytes up to a position, which was fetched."""
        data = b""
        while len(data) < position:
            head, parts = self.hear()
            assert head.op is Op.RANGE
            assert decode_place(head)[0].position == len(data)
            data += bytes(parts[0].buffer)
        return data

    def ack(self, place, number=99):
        self.say(encode(Op.ACK, number, encode_deliveries([(place.offset, place.attempt, 0)])))


@contextmanager
def program(endpoint):
    """One that is connected."""
    with transfer.Context() as context, context.socket(transfer.DEALER) as socket:
        socket.rcvtimeo = socket.sndtimeo = 20_000
        socket.linger = 0
        socket.identity = b"t" + os.urandom(8)
        socket.connect(endpoint)
        socket.wait_for_peers(1, 10)
        yield Program(socket)


def quiet(broker):
    """Nothing is on its way, and nothing is kept of what was broken off."""
    wait_for(lambda: not broker.hub._uploads and not broker.hub._writer.open)
    assert not broker.fronts["native"]._sockets[0].arrivals.open
    return True
