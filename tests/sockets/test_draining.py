"""Waiting for streams of other transports to be flushed."""

from __future__ import annotations

import socket as sockets
import time

from tests.core.test_foreign import Foreign
from transfer import draining


def test_a_stream_whose_connection_beside_is_writable_does_not_make_us_spin():
    class Slow(Foreign):
        looks = 0

        def flush(self) -> bool:
            self.looks += 1
            return False

    one, other = sockets.socketpair()
    with one, other:
        stream = Slow()
        stream.fd = one.fileno()
        draining.flush([stream], time.monotonic() + 0.2)
    assert 1 < stream.looks < 1000
