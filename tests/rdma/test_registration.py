"""`Context.register`: memory that the device knows before it is sent."""

from __future__ import annotations

import errno

import numpy
import pytest

import transfer
from tests.rdma.test_sockets import context, pair  # noqa: F401 - the fixture
from transfer.metrics.prometheus import _read
from transfer.transports import probe
from transfer.transports.errors import RegistrationError, UsageError
from transfer.transports.slab_pool import SLAB


def spent(context) -> float:  # noqa: F811
    return _read(context)["transfer_registration_seconds_total", ()]


def test_sending_from_it_registers_nothing_on_the_way(context) -> None:  # noqa: F811
    tensor = numpy.arange(SLAB, dtype=numpy.float32)
    early = context.register(tensor)
    assert not early.transports and "first connection" in early.reason
    push, pull = pair(context, transfer.PUSH, transfer.PULL)
    pull.rcvtimeo = 30_000
    assert early.transports == ("rdma",) and not early.reason
    late = context.register(numpy.ones(1000))
    assert late.transports == ("rdma",)
    first = push.send_tensor(tensor, copy=False)  # brings the receiver's memory
    assert (pull.recv_tensor() == tensor).all()
    first.wait(30)
    before = spent(context)
    assert before > 0
    domain = context.shared["rdma.domains"].get()
    for part in (tensor, tensor[1000:-1000]):
        tracker = push.send_tensor(part, copy=False)
        assert (pull.recv_tensor() == part).all()
        tracker.wait(30)
    assert spent(context) == before and domain.sources.registrations == 0
    early.close()
    early.close()
    assert early.reason == "it is closed" and len(domain.regions) == 1
    push.send_tensor(tensor, copy=False)
    assert (pull.recv_tensor() == tensor).all()
    assert spent(context) > before and domain.sources.registrations == 1


def test_it_ends_with_the_context(context) -> None:  # noqa: F811
    tensor = bytearray(5000)
    with context.register(tensor) as first:
        pair(context, transfer.PUSH, transfer.PULL)
        assert first.transports == ("rdma",)
    tensor.append(1)
    second = context.register(tensor)
    for socket in context._kept:
        socket.close(0)
    context.destroy()
    assert second.closed and not second.transports
    tensor.append(1)


def test_a_refusal_is_told(context, request) -> None:  # noqa: F811
    if "real" in request.node.name:
        pytest.skip("a device that works refuses nothing")
    early = context.register(bytearray(1 << 20))
    pair(context, transfer.PUSH, transfer.PULL)
    request.getfixturevalue("null").fault(f"register={errno.ENOMEM}")
    with pytest.raises(RegistrationError, match="ENOMEM"):
        context.register(bytearray(1 << 20))
    assert early.transports == ("rdma",)


def test_where_nobody_needs_it_it_says_so(monkeypatch) -> None:
    seen = probe.probe
    monkeypatch.setattr(
        probe,
        "probe",
        lambda name: probe.Probe(False, "there is no device") if name == "rdma" else seen(name),
    )
    with transfer.Context() as made:
        held = made.register(numpy.zeros(10))
        assert held.nbytes == 80 and not held.transports
        assert "no device" in held.reason and "no device" in repr(held)
        with pytest.raises(UsageError, match="gaps"):
            made.register(numpy.zeros((10, 10))[::2, ::2])
    assert held.closed
