"""Streams keep their order: what a kernel still writes, what it still reads, what is overwritten at once."""

from __future__ import annotations

import threading

import pytest

import transfer

torch = pytest.importorskip("torch")

#: device cycles; some 5 ms
SLEEP = 10_000_000
ROUNDS = 100
#: bytes of a message whose pinned memory is not of the library's allocator
LARGE = 300_000_000


@pytest.mark.parametrize("size", [1000, 300_000, 20_000_000, LARGE])
def test_a_tensor_whose_kernel_still_runs_and_which_is_overwritten_after(sockets, size):
    stream = torch.cuda.Stream()
    tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
    for step in range(ROUNDS if size < 1_000_000 else 20 if size < LARGE else 4):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)
            tensor.fill_(step % 251)
            sockets.push.send_tensor(tensor)
            tensor.fill_(255)
        arrived = sockets.pull.recv_tensor()
        assert (arrived == step % 251).all()


@pytest.mark.parametrize("size", [6_000_000, LARGE])
def test_an_out_that_a_kernel_still_reads(sockets, size):
    stream = torch.cuda.Stream()
    out = torch.zeros(size, dtype=torch.uint8, device="cuda")
    for step in range(1, ROUNDS if size < LARGE else 5):
        sockets.push.send_tensor(torch.full((size,), step % 251, dtype=torch.uint8))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)
            old = out.clone()
            sockets.pull.recv_tensor(out=out)
            new = out.clone()
        stream.synchronize()
        assert bool((old == (step - 1) % 251).all()) and bool((new == step % 251).all())


def test_an_out_that_is_freed_at_once(sockets):
    """Its memory is not given to another tensor before the copy has ended."""
    for step in range(ROUNDS):
        sockets.push.send_tensor(torch.full((5_000_000,), 1, dtype=torch.uint8))
        out = torch.empty(5_000_000, dtype=torch.uint8, device="cuda")
        sockets.pull.recv_tensor(out=out)
        del out
        other = torch.full((5_000_000,), 7, dtype=torch.uint8, device="cuda")
        assert bool((other == 7).all()), step


@pytest.mark.parametrize("size", [5_000_000, LARGE])
def test_cupys_own_stream(sockets, size):
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    sleep = cupy.RawKernel(
        'extern "C" __global__ void nap(long long n) { long long t = clock64(); while (clock64() - t < n); }',
        "nap",
    )
    array = cupy.zeros(size, "u1")
    out = cupy.zeros(size, "u1")
    for step in range(ROUNDS if size < LARGE else 4):
        with stream:
            sleep((1,), (1,), (SLEEP,))
            array.fill(step % 251)
            sockets.push.send_tensor(array)
            array.fill(255)
            old = out.copy()
            sockets.pull.recv_tensor(out=out)
            new = out.copy()
        stream.synchronize()
        assert bool((new == step % 251).all()) and (not step or bool((old == (step - 1) % 251).all()))


def test_two_threads_with_streams_of_their_own(tcp):
    wrong: list[object] = []

    def exchange(kind: int) -> None:
        with transfer.Context() as context:
            push, pull = context.socket(transfer.PUSH), context.socket(transfer.PULL)
            with push, pull, torch.cuda.stream(torch.cuda.Stream()):
                push.sndtimeo = pull.rcvtimeo = 30_000
                pull.bind("tcp://127.0.0.1:0")
                push.connect(pull.last_endpoint)
                tensor = torch.zeros(9_000_000, dtype=torch.uint8, device="cuda")
                out = torch.zeros_like(tensor)
                for step in range(50):
                    torch.cuda._sleep(SLEEP // 10)
                    tensor.fill_(kind + step)
                    push.send_tensor(tensor)
                    tensor.fill_(255)
                    pull.recv_tensor(out=out)
                    if not bool((out == kind + step).all()):
                        wrong.append((kind, step))

    threads = [threading.Thread(target=exchange, args=(kind,)) for kind in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not wrong and not any(thread.is_alive() for thread in threads)
