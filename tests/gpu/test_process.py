"""What a process keeps: contexts, memory, descriptors, threads; what a fork leaves of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from transfer.tensors import device
from transfer.tensors.pinned import POOL, PinnedPool

torch = pytest.importorskip("torch")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_opens_no_device():
    assert (
        run("import transfer, transfer.tensors\nprint('libcuda' in open('/proc/self/maps').read())")
        == "False"
    )


NUMPY_ONLY = """
import numpy, torch, transfer
with transfer.Context() as context:
    with context.socket(transfer.PUSH) as push, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.send_tensor(numpy.ones(100_000))
        pull.recv_tensor(like="torch")
print(torch.cuda.is_initialized())
"""


def test_host_tensors_open_no_device():
    assert run(NUMPY_ONLY) == "False"


def test_a_thousand_sends_keep_nothing(tcp):
    tensor = torch.zeros(1_000_000, device="cuda")
    out = torch.zeros_like(tensor)

    def rounds(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            tcp.push.send_tensor(tensor)
            tcp.pull.recv_tensor(out=out)
        torch.cuda.synchronize()
        free, _ = torch.cuda.mem_get_info()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        return free, resident, len(os.listdir("/proc/self/fd"))

    free, resident, descriptors = rounds(100)
    free_after, resident_after, descriptors_after = rounds(1000)
    assert free_after >= free and descriptors_after == descriptors
    assert resident_after - resident < 32 << 20


def test_large_messages_keep_what_they_may_until_it_is_given_back(tcp):
    POOL.give_back()  # what other tests had
    tensor = torch.zeros(320 << 20, dtype=torch.uint8, device="cuda")
    out = torch.zeros_like(tensor)

    def locked() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(8):
        sender = threading.Thread(target=tcp.push.send_tensor, args=(tensor,))
        sender.start()
        tcp.pull.recv_tensor(out=out)
        sender.join()
        torch.cuda.synchronize()
    kept, resident = POOL.total, locked()
    assert 320 << 20 <= kept <= 4 * (320 << 20), "in turn, not one for each"
    POOL.give_back()
    assert POOL.total < kept and locked() <= resident - (kept - POOL.total) * 0.9


def test_a_message_beyond_the_limit_is_slower_not_wrong(tcp, monkeypatch):
    monkeypatch.setattr(device, "POOL", PinnedPool(0))
    tensor = torch.randint(0, 255, (300_000_001,), dtype=torch.uint8, device="cuda")
    out = torch.zeros_like(tensor)
    sender = threading.Thread(target=tcp.push.send_tensor, args=(tensor,))
    sender.start()
    tcp.pull.recv_tensor(out=out)
    sender.join()
    assert torch.equal(tensor, out)


FORKED = """
import os, torch, transfer
SIZE = %d
with transfer.Context() as context:
    with context.socket(transfer.PUSH) as push, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.send_tensor(torch.ones(SIZE, dtype=torch.uint8, device="cuda"))
        pull.recv_tensor()
        child = os.fork()
        if not child:
            try:
                torch.ones(10, device="cuda")
            except RuntimeError as error:
                with transfer.Context() as own:
                    with own.socket(transfer.PUSH) as a, own.socket(transfer.PULL) as b:
                        b.bind("tcp://127.0.0.1:0")
                        a.connect(b.last_endpoint)
                        a.send_tensor(torch.ones(1000))
                        os._exit(0 if float(b.recv_tensor().sum()) == 1000 else 5)
            os._exit(6)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        push.send_tensor(torch.ones(SIZE, dtype=torch.uint8, device="cuda"))
        print(int(pull.recv_tensor().sum()))
"""


@pytest.mark.parametrize("size", [4_000_000, 300_000_000])
def test_a_child_forked_after_cuda_began(size):
    """It has no CUDA, by NVIDIA's rules; host tensors work, and its parent goes on."""
    assert run(FORKED % size).split() == ["0", str(size)]


def test_staging_lets_other_threads_run(tcp):
    """No time is asserted: `python -m bench.gpu` prints the longest pause. Here they run at all."""
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    tensor = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    receiver = threading.Thread(target=lambda: tcp.pull.recv_tensor(out=torch.empty_like(tensor)))
    receiver.start()
    tcp.push.send_tensor(tensor)
    receiver.join(50)
    stop.set()
    thread.join(10)
    assert ticks > 20 and not receiver.is_alive()
