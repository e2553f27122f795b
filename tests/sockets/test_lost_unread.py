"""A peer that does not read what waits for it, and then is gone."""

from __future__ import annotations

from pathlib import Path

from tests.core.test_dropped_unsent import forget_peak, peak
from transfer import DEALER, DONTWAIT, PULL, PUSH, ROUTER
from transfer.sockets.connections.connection_loss import ConnectionLoss

from .helpers import eventually, pair_of

MIB = 1 << 20


def test_what_goes_to_nobody_else_is_not_copied(context):
    """Hundreds of megabytes of borrowed memory wait for a ROUTER's peer: no more is taken when it ends."""
    router, dealer = pair_of(
        context, ROUTER, DEALER, bound_options={"sndhwm": 0, "sndhwm_bytes": 0}, routing_id=b"lazy"
    )
    data = bytearray(MIB)
    for _ in range(400):
        router.send_frames(
            [(None, None, 0, b"lazy"), (None, None, 0, memoryview(data))], DONTWAIT, copy=False
        )
    waiting = router.routes()[b"lazy"]
    assert waiting > 300
    before = forget_peak()
    dealer.close(0)
    assert eventually(lambda: not router.routes())
    assert eventually(lambda: router._links.state.counts.get("disconnected"))
    assert peak() - before < 100 * MIB
    assert waiting - 1 <= router._links.state.pattern.drops["peer_gone"] <= waiting


def test_a_connection_ends_though_what_it_left_cannot_be_had(context, monkeypatch, caplog):
    """No memory for it, say. The descriptor is closed, and the next peer is served."""

    def fails(*_):
        raise MemoryError("none left")

    push, pull = pair_of(context, PUSH, PULL)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(ConnectionLoss, "_rescue", fails)
    pull.close(0)
    assert eventually(lambda: push._links.state.counts.get("disconnected"))
    assert eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) < descriptors)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [MemoryError]
    again = context.socket(PULL)
    again.rcvtimeo = 10_000
    again.connect(push.last_endpoint)
    push.send(b"goes on")
    assert again.recv() == b"goes on"
