"""Tensors on a GPU through the host, without a GPU: `python -m bench.staging`.

The driver is that of the tests (tests/cuda/null_driver). Its GPU is memory of the host, which a thread for
each stream copies: copies cost what memcpy costs, and share the machine's processors with TCP. With `--rate`
they take their time without a processor, as a GPU's copies do, and copy nothing. It shows what the way adds
to its stages, and whether they run at once; what a GPU does shows bench.gpu.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
ROUNDS = 8
PATIENCE = 120.0

spawn = multiprocessing.get_context("spawn")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.staging", description=__doc__)
    parser.add_argument("--size", type=int, default=64, metavar="MIB", help="of a tensor (64)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds of each case (3)")
    parser.add_argument("--staged", type=int, default=8192, metavar="MIB", help="while a thread ticks (8192)")
    parser.add_argument("--rate", type=int, default=0, metavar="MB/S", help="of copies without a processor")
    parser.add_argument("--report", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    from tests.cuda import null_driver

    name = f"bench{os.getpid()}"
    os.environ |= {
        "TRANSFER_LIBCUDA": str(null_driver.build()),
        "TRANSFER_LOCAL": "off",
        "NULL_CUDA_NAME": name,
        "NULL_CUDA_MEMORY": str(2 << 30),
        "NULL_CUDA_RATE": str(options.rate),
    }
    try:
        result = measure(options.size * MIB, options.repeat, options.staged * MIB)
    finally:
        null_driver.remove(name)
    for case, value in result.items():
        print(f"{case:<52} {value}")
    if options.report:
        options.report.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(nbytes: int, repeat: int, staged: int) -> dict[str, float]:
    """GB/s of each stage and of the whole, in turns; the longest pause of a thread that ticks, in ms."""
    cases = {
        "memcpy, device to pinned memory": lambda: copies(nbytes),
        "tcp, host to host": lambda: between(nbytes, "host"),
        "device to tcp to device": lambda: between(nbytes, "device"),
        "the same, one stage after the other": lambda: between(nbytes, "device", in_pieces=False),
    }
    rates: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(repeat):
        for case, run in cases.items():
            rates[case].append(nbytes / run() / 1e9)
    found = {case: round(statistics.median(each), 2) for case, each in rates.items()}
    copied, sent, whole, after = found.values()
    ratios = {
        "of the slowest stage": round(whole / min(copied, sent), 2),
        "of it, one stage after the other": round(after / min(copied, sent), 2),
    }
    pause = {"longest pause of a thread meanwhile, ms": round(1e3 * longest_pause(nbytes, staged), 1)}
    return found | ratios | pause


class Gpu:
    """The null driver's."""

    def __init__(self) -> None:
        from transfer.transports import cuda

        driver = cuda.load()
        assert driver is not None
        self.context = driver.context(0)

    def array(self, nbytes: int) -> Any:
        from tests.cuda.null_driver import Array

        return Array(self.context, (nbytes,), "|u1")


def copies(nbytes: int) -> float:
    """Seconds of one copy to memory that is pinned and was used before."""
    import numpy

    from transfer.transports.core import address_of

    made = Gpu()
    array, host = made.array(nbytes), numpy.zeros(nbytes, "u1")
    address = address_of(host)
    made.context.pin(address, nbytes)
    try:
        taken = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            made.context.copy(address, array.pointer, nbytes, 0)
            made.context.synchronize(0)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)
    finally:
        made.context.unpin(address)
        array.close()


def whole_messages() -> None:
    """Copies a message before it is sent, and after it has come."""
    from transfer.tensors import device, export

    export.device.begin_to_host = device.to_host  # type: ignore[attr-defined]
    device.Landing.landed = _landed_whole  # type: ignore[method-assign]


def _landed_whole(self: Any, nbytes: int) -> None:
    if nbytes == self._flat.nbytes and self._slab is not None and not self._copied:
        self._copied = nbytes
        self._device.copy_in(self._slab, self._flat, 0, nbytes)


def tensor(kind: str, nbytes: int) -> Any:
    import numpy

    return Gpu().array(nbytes) if kind == "device" else numpy.ones(nbytes, "u1")


def sends(endpoint: str, kind: str, nbytes: int, in_pieces: bool) -> None:
    import transfer

    if not in_pieces:
        whole_messages()
    with transfer.Context() as context, context.socket(transfer.PUSH, sndtimeo=int(PATIENCE * 1000)) as push:
        push.connect(endpoint)
        sent = tensor(kind, nbytes)
        for _ in range(2 * ROUNDS):
            push.send_tensor(sent)
        push.close(linger=int(PATIENCE * 1000))


def between(nbytes: int, kind: str, *, in_pieces: bool = True) -> float:
    """Seconds of a message between two processes, of those behind the first ROUNDS. This one receives, so
    that each call has a process of its own too."""
    ours, theirs = spawn.Pipe(duplex=False)
    receiver = spawn.Process(target=receives, args=(theirs, kind, nbytes, in_pieces))
    receiver.start()
    theirs.close()
    sender = None
    try:
        assert ours.poll(PATIENCE), "the receiver does not start"
        sender = spawn.Process(target=sends, args=(ours.recv(), kind, nbytes, in_pieces))
        sender.start()
        assert ours.poll(PATIENCE), "nothing arrives"
        return float(ours.recv())
    finally:
        for process in (receiver, sender):
            if process is not None:
                process.join(10)
                process.kill()
                process.join()


def receives(pipe: Any, kind: str, nbytes: int, in_pieces: bool) -> None:
    import transfer

    if not in_pieces:
        whole_messages()
    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=int(PATIENCE * 1000)) as pull:
        pull.bind("tcp://127.0.0.1:0")
        out = tensor(kind, nbytes)
        pipe.send(pull.last_endpoint)
        for number in range(2 * ROUNDS):
            if number == ROUNDS:
                _settle(kind)
                began = time.perf_counter()
            pull.recv_tensor(out=out)
        _settle(kind)
        pipe.send((time.perf_counter() - began) / ROUNDS)


def _settle(kind: str) -> None:
    if kind == "device":
        Gpu().context.synchronize(1)


def longest_pause(nbytes: int, staged: int) -> float:
    """Seconds between two ticks of another thread while so many bytes are staged, at most."""
    import transfer

    ours, theirs = spawn.Pipe(duplex=False)
    receiver = spawn.Process(target=drains, args=(theirs, staged // nbytes))
    receiver.start()
    longest, ending = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not ending.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now

    try:
        with transfer.Context() as context, context.socket(transfer.PUSH) as push:
            push.sndtimeo = int(PATIENCE * 1000)
            push.connect(ours.recv())
            sent = tensor("device", nbytes)
            push.send_tensor(sent)  # pins memory
            ticker = threading.Thread(target=tick)
            ticker.start()
            for _ in range(staged // nbytes - 1):
                push.send_tensor(sent)
            ending.set()
            ticker.join()
            push.close(linger=int(PATIENCE * 1000))
        receiver.join(PATIENCE)
    finally:
        ending.set()
        receiver.kill()
        receiver.join()
    return longest[0]


def drains(pipe: Any, count: int) -> None:
    import transfer

    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=int(PATIENCE * 1000)) as pull:
        pull.bind("tcp://127.0.0.1:0")
        pipe.send(pull.last_endpoint)
        for _ in range(count):
            pull.recv()


if __name__ == "__main__":
    raise SystemExit(main())
