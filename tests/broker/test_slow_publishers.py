"""A publisher whose bytes hardly come, to subscribers that others publish to as well."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.broker.single_front import receive, single_front
from tests.broker.test_announced import FRONTS, PROTOCOLS, connect
from transfer.broker.protocols import rqueue
from transfer.broker.protocols.ttp import encode_head

LARGE = 400 << 20
SUBSCRIBES = {"rqueue": lambda: rqueue.encode_subscribe("news"), "ttp": lambda: encode_head(2, b"t")}


@pytest.mark.parametrize("protocol", sorted(SUBSCRIBES))
def test_it_is_ended_when_it_holds_up_others_for_too_long(tmp_path, protocol):
    announce = PROTOCOLS[protocol]
    with single_front(tmp_path, FRONTS[protocol]) as broker:
        subscriber, drips, good = (connect(broker.port) for _ in range(3))
        with subscriber, drips, good:
            subscriber.sendall(SUBSCRIBES[protocol]())
            broker.until(lambda: broker.hub.fanout.subscriptions())
            drips.sendall(announce(LARGE) + b"x" * 70_000)
            receive(subscriber, 70_000)

            def pass_time(seconds):
                broker._now = getattr(broker, "_now", 0) + seconds
                broker.call(lambda: broker.hub.tick(broker._loop.time() + broker._now))

            for _ in range(15):  # nobody waits for anything else
                drips.sendall(b"y")
                while receive(subscriber, 1) != b"y":
                    pass
                broker.until(lambda: not any(one.queued for one in broker.hub.fanout.subscriptions()))
                pass_time(1.0)
            assert broker.hub.counts["revoked"] == 0
            good.sendall(announce(3) + b"abc")
            broker.until(lambda: broker.hub.store.messages == 1)
            pass_time(1.0)
            assert broker.hub.counts["revoked"] == 1
            while receive(subscriber, 1 << 16):
                pass
            with suppress(ConnectionError):
                answer = drips.recv(1 << 16)
                assert (b"came too slowly" in answer) if protocol == "ttp" else not answer
        again = connect(broker.port)
        with again, connect(broker.port) as good:
            again.sendall(SUBSCRIBES[protocol]())
            broker.until(lambda: broker.hub.fanout.subscriptions())
            good.sendall(announce(3) + b"def")
            assert receive(again, 12)
