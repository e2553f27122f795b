"""Waiting for streams of other transports to be flushed."""

from __future__ import annotations

import socket as sockets
import time

import pytest

from tests.core.test_foreign_streams import Foreign
from transfer.sockets import drain
from transfer.transports.errors import Broken


def test_a_stream_whose_control_connection_is_writable_does_not_make_us_spin():
    class Slow(Foreign):
        looks = 0

        def flush(self) -> bool:
            self.looks += 1
            return False

    one, other = sockets.socketpair()
    with one, other:
        stream = Slow()
        stream.fd = one.fileno()
        drain.flush([stream], time.monotonic() + 0.2)
    assert 1 < stream.looks < 1000


def test_nobody_waits_for_a_stream_that_has_nowhere_to_go(monkeypatch):
    """A peer that was there a moment ago: the socket waited for all of its linger with a credit for it."""

    class Cut(Foreign):
        broken = Broken("the connection ended")

        def flush(self) -> bool:
            return False

    waits = []
    monkeypatch.setattr(drain, "_wait_for_room", lambda *_: waits.append(1) or pytest.fail("it waits"))
    drain.flush([Cut()], time.monotonic() + 60)
    assert not waits
