"""A signal's handler that raises while a message is sent over ucx://, at each point of our code in turn: the
message comes whole or not at all. Its connection may end, and with it what was sent behind it."""

from __future__ import annotations

import sys

import pytest

import transfer
from tests.sockets.test_interrupted import Point
from tests.ucx.isolated.isolated_sockets import connected
from transfer.transports.errors import Again

pytestmark = pytest.mark.keeps("UCX's own descriptors")


def interrupted_at(number, push):
    point, before = Point(number), sys.gettrace()
    sys.settrace(point)
    try:
        push.send_multipart([b"%d" % number, b"whole"])
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        point.behind.clear()
    return point.reached


@pytest.mark.timeout(200)
def test_an_interrupted_send_is_whole_or_not_at_all():
    with transfer.Context() as context:
        number, reached = 0, True
        while reached:
            push, pull = connected(context, transfer.PUSH, transfer.PULL)
            with push, pull:
                pull.rcvtimeo = 1000
                lost = False
                while reached and not lost:
                    reached = interrupted_at(number, push)
                    message, behind = [b"%d" % number, b"whole"], [b"behind", b"%d" % number]
                    push.send_multipart(behind)
                    came = []
                    try:
                        while not came or came[-1] != behind:
                            came.append(pull.recv_multipart())
                    except Again:
                        lost = True
                    assert came in ([], [message], [behind], [message, behind])
                    assert reached or came == [message, behind]
                    number += 1
        assert number > 20
