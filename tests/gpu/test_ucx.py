"""Tensors on a GPU by UCX with CUDA, in threads that never touched CUDA. Never run: see docs/gpu.md."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import transfer
from transfer.transports import probe
from transfer.transports.errors import NotSupported
from transfer.transports.ucx import driver

torch = pytest.importorskip("torch")


@pytest.fixture
def by_ucx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    try:
        if not driver.fabric().has_cuda:
            pytest.skip("this UCX has no CUDA: pip install libucx-cu13")
    except NotSupported as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("TRANSFER_LOCAL", "off")
    monkeypatch.setenv("MC_RPC_PROTOCOL", "ucx")
    probe.forget()
    torch.zeros(1, device="cuda")
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        with context.socket(transfer.PULL) as pull:
            push.sndtimeo = pull.rcvtimeo = 30_000
            pull.bind("tcp://127.0.0.1:0")
            push.connect(pull.last_endpoint)
            push.wait_for_peers(1)
            yield push, pull
    probe.forget()


def in_a_thread(work: Callable[[], object]) -> Any:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    assert found, "the thread has not finished"
    return found[0]


@pytest.mark.parametrize("size", [64 << 10, 1 << 20, 256 << 20])
def test_both_ways(by_ucx: Any, size: int) -> None:
    push, pull = by_ucx
    out = torch.zeros(size, dtype=torch.uint8, device="cuda")
    for number in range(1, 9):
        tensor = torch.full((size,), number, dtype=torch.uint8, device="cuda")
        tracker = in_a_thread(partial(push.send_tensor, tensor, copy=False))
        if number % 2:
            assert in_a_thread(lambda: pull.recv_tensor(out=out)) is out
            assert bool((out == number).all())
        else:
            found = in_a_thread(lambda: pull.recv_tensor(device="cuda:0", like="torch"))
            assert bool((found == number).all())
        tracker.wait(30)
    [peer], [other] = push.peers(), pull.peers()
    assert peer.gpu.startswith("pointer"), peer
    assert other.gpu_received.startswith("pointer"), other
