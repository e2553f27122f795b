"""Closing in the middle of a rendezvous, in a process of its own: UCX may crash there.

Seen with UCX 1.21, about once in ten runs: a segmentation fault in uct_tcp_iface_handle_events, UCX's
own TCP, which handles an event of an endpoint that it has destroyed.
"""

from __future__ import annotations

import time

import pytest

from tests.ucx.isolated.ends import kit
from transfer.transports.testing.ends import plain, until


@pytest.mark.keeps(reason="UCX keeps a worker with its descriptors when a request of it was cancelled")
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_in_the_middle_of_a_rendezvous_never_hangs(taken):
    for _ in range(10):
        with kit() as made:
            one, other = made.connect()
            for _ in range(4):
                one.send(plain(bytes(4 << 20)))
            for _ in range(taken):
                other.receive()
            first, second = (one, other) if taken % 2 else (other, one)
            begin = time.monotonic()
            first.close()
            until(lambda: second.broken is not None, "the end at the other side")  # noqa: B023
            second.close()
            assert time.monotonic() - begin < 10
