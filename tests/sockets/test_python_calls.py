"""How many Python functions one call of a socket enters: each costs as much as the core's whole work."""

from __future__ import annotations

import gc
import sys

import numpy
import pytest

import transfer
from tests.sockets.conftest import core_module
from tests.sockets.helpers import pair_of

#: `flag & other` of an enum.Flag enters three more since Python 3.13; a message of two parts has two of them
ENUM = 6 if sys.version_info >= (3, 13) else 0
#: (send, receive, Python functions at most for each)
CALLS = {
    "one part": (lambda s: s.send(b"x"), lambda s: s.recv(), 0, 0),
    "a frame": (lambda s: s.send(b"x", copy=False), lambda s: s.recv(copy=False), 0, 0),
    "two parts": (lambda s: s.send_multipart([b"x", b"y"]), lambda s: s.recv_multipart(), 10, 18 + ENUM),
    "a tensor": (lambda s: s.send_tensor(numpy.zeros(9)), lambda s: s.recv_tensor(), 13, 10),
}


def entered(call, socket) -> int:
    counted = [0]

    def count(frame, event, argument):
        counted[0] += event == "call"

    gc.disable()  # its callbacks, such as hypothesis', are Python functions too
    sys.setprofile(count)
    try:
        call(socket)
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted[0] - 1  # `call` itself


@pytest.mark.parametrize("what", CALLS)
def test_a_message_enters_few_python_functions(what):
    send, receive, most_sending, most_receiving = CALLS[what]
    with transfer.Context(core=core_module("native")) as context:
        pull, push = pair_of(context, transfer.PULL, transfer.PUSH)
        for _ in range(3):  # the first calls of each kind load and keep things
            send(push)
            receive(pull)
        sending = entered(send, push)
        assert pull.poll(10_000)
        assert (sending <= most_sending, entered(receive, pull) <= most_receiving) == (True, True)
