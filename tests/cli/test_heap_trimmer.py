"""What a service has freed goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from transfer.cli import heap_trimmer
from transfer.cli.heap_trimmer import HeapTrimmer

PROGRAM = """
import os, random
from transfer.cli import heap_trimmer

heap_trimmer._INTERVAL = 0.0
heap = heap_trimmer.HeapTrimmer()

def resident():
    [line] = (line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10

random.seed(1)
before = resident()
pieces, kept = [], []
for number in range(5000):  # of a size that malloc takes from its heap, and small ones between them
    pieces.append(os.urandom(1) * 60_000)
    kept.append(bytes(1000 + number % 700))
random.shuffle(pieces)
assert not heap.trim() and not heap.trim()  # nothing is free
pieces.clear()
held = resident()
trims = [heap.trim() for _ in range(4)]
print(held - before, resident() - before, *trims)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc before 2.33, or another library"
)
def test_what_was_freed_goes_back_when_it_stays_free():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, check=True
    )
    held, left, *trims = run.stdout.split()
    assert trims == ["False", "True", "False", "False"], "what cannot be returned is not tried again"
    assert int(held) > 100 and int(left) < int(held) // 2


def test_it_looks_now_and_then_only(monkeypatch):
    heap, looks = HeapTrimmer(), []
    heap._info = lambda: looks.append(1)
    assert not heap.trim() and not looks
    monkeypatch.setattr(heap_trimmer.time, "monotonic", lambda: heap._due + 1)
    heap._trim = None
    assert not heap.trim() and not looks
