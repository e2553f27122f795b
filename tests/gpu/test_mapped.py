"""Tensors that stay on the GPU between two processes of one host, by CUDA IPC."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

import transfer
from transfer.transports import cuda, gpu
from transfer.transports.errors import Broken

torch = pytest.importorskip("torch")

spawn = multiprocessing.get_context("spawn")
#: device cycles; some 5 ms
SLEEP = 10_000_000
PATIENCE = 60.0


class Ends:
    """The sender here, and what the receiver says."""

    def __init__(self, push: transfer.Socket, pipe: Any, pid: int) -> None:
        self.push, self.pipe, self.pid = push, pipe, pid

    def hear(self) -> Any:
        assert self.pipe.poll(PATIENCE), "the receiver says nothing"
        return self.pipe.recv()

    def until_mapped(self) -> None:
        """Sends until the receiver maps what is sent: the first ones go by the host."""
        tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            self.push.send_tensor(tensor)
            if self.hear() == "mapped":
                return
        pytest.fail("the receiver never maps memory of the GPU")


def _receiver(receive: Callable[[Any, Any], None], pipe: Any) -> None:
    os.environ["TRANSFER_LOCAL"] = "on"
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.rcvtimeo = int(PATIENCE * 1000)
        pull.bind("tcp://127.0.0.1:0")
        pipe.send(pull.last_endpoint)
        mapped = False
        while not mapped:
            tensor = pull.recv_tensor(device="cuda:0", like="torch")
            mapped = _is_foreign(tensor)
            pipe.send("mapped" if mapped else "staged")
        del tensor
        receive(pull, pipe)


def _is_foreign(tensor: Any) -> bool:
    """Whether the memory is no block of torch's allocator."""
    segments = torch.cuda.memory_snapshot()
    begin = tensor.data_ptr()
    return not any(one["address"] <= begin < one["address"] + one["total_size"] for one in segments)


def both(send: Callable[[Ends], None], receive: Callable[[Any, Any], None], monkeypatch: Any) -> None:
    monkeypatch.setenv("TRANSFER_LOCAL", "on")
    from transfer.transports import probe

    probe.forget()
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_receiver, args=(receive, theirs))
    process.start()
    try:
        assert ours.poll(PATIENCE), "the receiver does not start"
        with transfer.Context() as context, context.socket(transfer.PUSH) as push:
            push.sndtimeo = int(PATIENCE * 1000)
            push.connect(ours.recv())
            push.wait_for_peers(1, timeout=PATIENCE)
            ends = Ends(push, ours, process.pid or 0)
            ends.until_mapped()
            send(ends)
        process.join(PATIENCE)
    finally:
        process.kill()
        process.join()
        probe.forget()


SIZES = (100_000, 64 << 20, 1 << 30)


def send_in_order(ends: Ends) -> None:
    stream = torch.cuda.Stream()
    for size in SIZES:
        tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
        for step in range(1, 11):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP)
                tensor.fill_(step)
                ends.push.send_tensor(tensor)
                tensor.fill_(255)
            assert ends.hear() == (size, step, True)


def receive_in_order(pull: Any, pipe: Any) -> None:
    for size in SIZES:
        for step in range(1, 11):
            tensor = pull.recv_tensor(device="cuda:0", like="torch")
            pipe.send((size, step, bool((tensor == step).all()) and _is_foreign(tensor)))


def test_in_the_order_of_streams(monkeypatch):
    both(send_in_order, receive_in_order, monkeypatch)


def send_shared(ends: Ends) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool):
        tensor = torch.ones(3, 500, 700, device="cuda").to(dtype)
        tracker = ends.push.send_tensor(tensor, copy=False)
        assert ends.hear() == (str(dtype), [3, 500, 700], True)
        tracker.wait(PATIENCE)
    turned = torch.ones(300, 400, device="cuda").t()
    ends.push.send_tensor(turned, copy=False).wait(PATIENCE)
    assert ends.hear() == ("torch.float32", [400, 300], True)


def receive_shared(pull: Any, pipe: Any) -> None:
    for _ in range(6):
        tensor = pull.recv_tensor(device="cuda:0", like="torch")
        pipe.send((str(tensor.dtype), list(tensor.shape), bool((tensor.to(torch.complex64) == 1).all())))
        del tensor


def test_the_tensor_itself(monkeypatch):
    both(send_shared, receive_shared, monkeypatch)


def send_expandable(ends: Ends) -> None:
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        for size in (3 << 20, 100 << 20, 1 << 30):
            tensor = torch.full((size,), 5, dtype=torch.uint8, device="cuda")
            assert gpu.is_exported_by_pieces(cuda.load().attributes(tensor.data_ptr()))
            tracker = ends.push.send_tensor(tensor, copy=False)
            assert ends.hear() is True
            tracker.wait(PATIENCE)
            assert bool((tensor == 7).all()), "the receiver wrote to this memory"
            del tensor
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def receive_expandable(pull: Any, pipe: Any) -> None:
    for _ in range(3):
        tensor = pull.recv_tensor(device="cuda:0", like="torch")
        right = bool((tensor == 5).all())
        tensor.fill_(7)
        torch.cuda.synchronize()
        pipe.send(right)
        del tensor


def test_memory_of_expandable_segments(monkeypatch):
    both(send_expandable, receive_expandable, monkeypatch)


def send_state(ends: Ends) -> None:
    tensors = {f"{number}.weight": torch.full((1000, 300), number, device="cuda") for number in range(50)}
    tensors["bias"] = torch.full((7,), 3.0, device="cuda")
    for copy in (None, False):
        tracker = ends.push.send_tensors(tensors, copy=copy)
        assert ends.hear() is True
        if tracker:
            tracker.wait(PATIENCE)


def receive_state(pull: Any, pipe: Any) -> None:
    for _ in range(2):
        tensors, _ = pull.recv_tensors(device="cuda:0", like="torch")
        right = all(
            bool((tensor == (3 if name == "bias" else int(name.split(".")[0]))).all())
            for name, tensor in tensors.items()
        )
        pipe.send(right and len(tensors) == 51)
        del tensors


def test_a_dict_of_tensors(monkeypatch):
    both(send_state, receive_state, monkeypatch)


def send_to_killed(ends: Ends) -> None:
    tensor = torch.ones(1 << 20, device="cuda")
    tracker = ends.push.send_tensor(tensor, copy=False)
    ends.hear()
    os.kill(ends.pid, signal.SIGKILL)
    with contextlib.suppress(Broken):  # unless its receipt was confirmed
        tracker.wait(PATIENCE)
    assert tracker.done


def receive_and_wait(pull: Any, pipe: Any) -> None:
    kept = pull.recv_tensor(device="cuda:0", like="torch")
    pipe.send("kept")
    time.sleep(PATIENCE)
    del kept


def test_a_receiver_that_is_killed(monkeypatch):
    both(send_to_killed, receive_and_wait, monkeypatch)
