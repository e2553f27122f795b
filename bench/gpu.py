"""Tensors of a GPU: `python -m bench.gpu --report FILE.json`, on a machine that has one.

Each row names the slowest raw stage that its bytes must pass, measured in the same run, and the ratio to it.
Without a device it says "not run" and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import gpu_pack
from bench.machine import describe

MIB, GIB = 1 << 20, 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "--report", type=Path, help="write the rows as JSON here, and a table with the suffix .md"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="DIR", help="only make what has to travel to a machine without an index"
    )
    parser.add_argument("--python", default="3.12", help="the Python of that machine (3.12)")
    options = parser.parse_args()
    if options.pack:
        return _pack(options.pack, options.python)
    try:
        import torch
    except ImportError:
        print("not run: torch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("not run: there is no CUDA device")
        return 0
    rows: list[dict[str, Any]] = []
    report = {"machine": describe(), "gpu": _gpu(torch), "rows": rows}
    raw: dict[str, float] = {}
    for case in (raw_copies, raw_streams, staged_sends, pairs, by_ucx, state_dicts, shared, pauses):
        for row in case(torch, raw):
            rows.append(row)
            print(_line(row), flush=True)
            if options.report:
                options.report.write_text(json.dumps(report, indent=1) + "\n")
    if options.report:
        options.report.with_suffix(".md").write_text(table(report))
    return 0


def _pack(folder: Path, python: str) -> int:
    nbytes = gpu_pack.pack(folder, python)
    print(f"{folder}: {nbytes / 1e6:.1f} MB for Python {python}; make test-gpu GPU_PACK={folder}")
    if nbytes > gpu_pack.MOST:
        print(f"more than {gpu_pack.MOST / 1e6:.0f} MB", file=sys.stderr)
        return 1
    return 0


def _gpu(torch: Any) -> dict[str, Any]:
    query = "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    seen = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"device": seen.stdout.strip(), "torch": torch.__version__, "cuda": torch.version.cuda}


def _row(name: str, nbytes: int, seconds: float, limit: str = "", floor: float = 0.0) -> dict[str, Any]:
    rate = nbytes / seconds / 1e9
    return {
        "case": name,
        "bytes": nbytes,
        "gb_s": round(rate, 2),
        "limit": limit,
        "ratio": round(rate / floor, 2) if floor else None,
    }


def _line(row: dict[str, Any]) -> str:
    if "gb_s" not in row:
        return f"{row['case']:<48} {row['value']}"
    ratio = f"{row['ratio']} of {row['limit']}" if row["ratio"] is not None else ""
    first = f"  first {row['first_s']} s" if "first_s" in row else ""
    return f"{row['case']:<48} {row['bytes'] / MIB:>7.0f} MiB {row['gb_s']:>9.2f} GB/s  {ratio}{first}"


def table(report: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = ["| case | size | result | of its slowest raw stage | the first |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        if "gb_s" in row:
            ratio = f"{row['ratio']} of {row['limit']}" if row["ratio"] is not None else ""
            first = f"{row['first_s']} s" if "first_s" in row else ""
            rate = f"{row['gb_s']} GB/s"
            lines.append(f"| {row['case']} | {row['bytes'] // MIB} MiB | {rate} | {ratio} | {first} |")
        else:
            lines.append(f"| {row['case']} | | {row['value']} | | |")
    return "\n".join(lines) + "\n"


def timed(work: Callable[[], object], repeat: int = 5) -> float:
    """Seconds of one round, the median after one that does not count."""
    work()
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


# --- raw limits --------------------------------------------------------------------------------


def raw_copies(torch: Any, raw: dict[str, float]) -> Any:
    """Device to device, and over PCIe with pinned and with pageable memory."""
    nbytes = GIB
    device = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    memory = {
        "D2D": torch.empty_like(device),
        "pinned": torch.empty(nbytes, dtype=torch.uint8, pin_memory=True),
        "pageable": torch.zeros(nbytes, dtype=torch.uint8),
    }

    def copied(target: Any, source: Any) -> float:
        def work() -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        return timed(work)

    for name, target, source in (
        ("raw D2D", memory["D2D"], device),
        ("raw D2H pinned", memory["pinned"], device),
        ("raw H2D pinned", device, memory["pinned"]),
        ("raw D2H pageable", memory["pageable"], device),
        ("raw H2D pageable", device, memory["pageable"]),
        ("raw memcpy of the host", memory["pageable"], memory["pinned"]),
    ):
        row = _row(name, nbytes, copied(target, source))
        raw[name] = row["gb_s"]
        yield row


def raw_streams(torch: Any, raw: dict[str, float]) -> Any:
    """Host tensors between two processes."""
    for transport in ("tcp", "local"):
        for nbytes in (64 * MIB, GIB):
            name = f"raw host → {transport} → host"
            first, later = between(transport, nbytes, device=False)
            row = _row(name, nbytes, later)
            raw[f"{name} {nbytes}"] = row["gb_s"]
            yield row | {"first_s": first}


# --- ours ---------------------------------------------------------------------------------------


def staged_sends(torch: Any, raw: dict[str, float]) -> Any:
    """Device to host, the send side alone."""
    from transfer.tensors.export import export

    for nbytes in (64 * 1024, MIB, 64 * MIB, GIB):
        tensor = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        start = time.perf_counter()
        export(tensor)
        first = round(time.perf_counter() - start, 3)
        seconds = timed(partial(export, tensor))
        row = _row("device → host, send side", nbytes, seconds, "D2H pinned", raw["raw D2H pinned"])
        yield row | {"first_s": first}


def pairs(torch: Any, raw: dict[str, float]) -> Any:
    """Device to device between two processes."""
    from transfer.tensors.pinned import POOL

    for transport in ("tcp", "local"):
        for nbytes in (64 * MIB, GIB):
            limits = {
                "D2H pinned": raw["raw D2H pinned"],
                "H2D pinned": raw["raw H2D pinned"],
                transport: raw[f"raw host → {transport} → host {nbytes}"],
            }
            if transport == "local":  # the GPU copies twice: to the sender's block, and into `out`
                limits = {"D2D ÷ 2": raw["raw D2D"] / 2}
            limit = min(limits, key=lambda name: limits[name])
            POOL.give_back()  # so that the first is one
            first, later = between(transport, nbytes, device=True)
            row = _row(f"device → {transport} → device", nbytes, later, limit, limits[limit])
            yield row | {"first_s": first}


def by_ucx(torch: Any, raw: dict[str, float]) -> Any:
    """The same by UCX with CUDA, where this machine has one."""
    from transfer.transports.errors import TransferError
    from transfer.transports.ucx import driver

    try:
        missing = "" if driver.fabric().has_cuda else "this UCX has no CUDA"
    except TransferError as error:
        missing = str(error).partition("\n")[0]
    for nbytes in () if missing else (64 * MIB, GIB):
        first, later = between("ucx", nbytes, device=True, lent=True)
        # the GPU copies twice: between the processes, and into `out`
        row = _row("device → ucx → device", nbytes, later, "D2D ÷ 2", raw["raw D2D"] / 2)
        yield row | {"first_s": first}
    if missing:
        yield {"case": "device → ucx → device", "value": f"not run: {missing}"}


def state_dicts(torch: Any, raw: dict[str, float]) -> Any:
    """A dict of 300 tensors of 48 MiB, 14 GiB in all, between two processes, mapped."""
    nbytes = DICT * 48 * MIB
    _, later = between("local", nbytes, device=True, several=True)
    yield _row("dict of 300 tensors, device → device", nbytes, later, "D2D", raw["raw D2D"])


def shared(torch: Any, raw: dict[str, float]) -> Any:
    """Device to device between two processes, the sender's tensor as the receiver's: seconds of a message,
    whose size should not matter."""
    for nbytes in (64 * MIB, GIB, 4 * GIB):
        _, later = between("local", nbytes, device=True, lent=True)
        yield {"case": f"device → device, shared, {nbytes // MIB} MiB", "value": f"{later * 1e6:.0f} µs"}


def pauses(torch: Any, raw: dict[str, float]) -> Any:
    """The longest time for which a ticking thread stood still while tensors are staged: 8 GiB through slabs,
    and 2 GiB to memory that is pinned for it."""
    from transfer.tensors.export import export
    from transfer.tensors.pinned import POOL

    for nbytes in (8 * GIB, 2 * GIB):
        POOL.give_back()
        tensor = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        taken, longest = _ticking(partial(export, tensor))
        yield _row(
            f"{nbytes // GIB} GiB staged, the first", nbytes, taken, "D2H pinned", raw["raw D2H pinned"]
        )
        yield {"case": "longest pause of a thread meanwhile", "value": f"{longest * 1000:.1f} ms"}


def _ticking(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of some work, and the longest pause of another thread meanwhile."""
    stop = threading.Event()
    longest = 0.0

    def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not stop.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    work()
    taken = time.perf_counter() - start
    stop.set()
    thread.join()
    return taken, longest


# --- two processes ------------------------------------------------------------------------------


#: tensors of a dict
DICT = 300
#: messages that do not count: as many as are on their way at once take memory for the first time
WARM = 4


def between(
    transport: str, nbytes: int, *, device: bool, lent: bool = False, several: bool = False
) -> tuple[float, float]:
    """Seconds for a tensor from one process to another: of the first, and of each of several in a row. lent:
    one at a time, from the sender's own memory. several: a dict of DICT tensors."""
    count = 3 if several else max(8, min(20, 2 * GIB // nbytes))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_receive, args=(theirs, transport, nbytes, count, device, lent, several))
    child.start()
    try:
        with _context(transport) as made, made.socket(_kinds("PUSH")) as push:
            push.sndtimeo = 60_000
            push.connect(ours.recv())
            push.wait_for_peers(1)
            assert push.peers()[0].transport == transport
            tensor = _tensor(nbytes, device)
            parts = {f"t{number}": part for number, part in enumerate(tensor.chunk(DICT))} if several else {}
            start = time.perf_counter()
            for _ in range(WARM + count):
                if several:
                    push.send_tensors(parts)
                    continue
                tracker = push.send_tensor(tensor, copy=False if lent else None)
                if lent:
                    tracker.wait(60)
            marks = ours.recv()
        child.join(30)
        return round(marks[0] - start, 3), (marks[-1] - marks[WARM - 1]) / count
    finally:
        child.kill()
        child.join()


def _receive(
    pipe: Any, transport: str, nbytes: int, count: int, device: bool, lent: bool, several: bool
) -> None:
    import torch

    with _context(transport) as made, made.socket(_kinds("PULL")) as pull:
        pull.rcvtimeo = 60_000
        pull.rcvhwm = 2
        pull.bind("tcp://127.0.0.1:0")
        out = None if lent or several else _tensor(nbytes, device)
        settle = torch.cuda.synchronize if device else time.perf_counter
        settle()
        pipe.send(pull.last_endpoint)
        marks = []
        for _ in range(WARM + count):
            if several:
                pull.recv_tensors(device="cuda:0", like="torch")
            elif out is None:
                pull.recv_tensor(device="cuda:0", like="torch")
            else:
                pull.recv_tensor(out=out)
            settle()
            marks.append(time.perf_counter())  # a clock that both processes have
        pipe.send(marks)


def _context(transport: str) -> Any:
    import os

    os.environ["TRANSFER_LOCAL"] = "on" if transport == "local" else "off"
    os.environ["MC_RPC_PROTOCOL"] = "ucx" if transport == "ucx" else "auto"
    import transfer
    from transfer.transports import probe

    probe.forget()  # the process may have looked before, under another switch
    return transfer.Context()


def _kinds(name: str) -> Any:
    import transfer

    return getattr(transfer, name)


def _tensor(nbytes: int, device: bool) -> Any:
    import torch

    return torch.zeros(nbytes, dtype=torch.uint8, device="cuda" if device else "cpu")


if __name__ == "__main__":
    sys.exit(main())
