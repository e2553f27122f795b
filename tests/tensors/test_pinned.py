"""Pinned memory that is kept between messages: within its limit, never in use twice, and given back."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from transfer.tensors import pinned
from transfer.tensors.pinned import PinnedPool

MIB = 1 << 20
STEP = pinned.STEP


class Library:
    """Pins, or refuses to. `live`: addresses that are pinned."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.pinned = 0
        self.refuse = ""

    def pin(self, pages):
        if self.refuse:
            raise RuntimeError(self.refuse)
        address = np.frombuffer(pages, "u1").ctypes.data
        assert address not in self.live
        self.live.add(address)
        self.pinned += len(pages)
        return lambda: self._unpin(address)

    def _unpin(self, address):
        if self.refuse:
            raise RuntimeError(self.refuse)
        self.live.remove(address)


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def made():
    """Makes pools, whose threads end with the test."""
    pools = []

    def make(*arguments, **options):
        pools.append(PinnedPool(*arguments, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.give_back()
        assert not pool.total


def taken(pool, library, nbytes):
    region = pool.take(nbytes, library.pin)
    return None if region is None else np.frombuffer(region, "u1")


def test_a_message_takes_what_an_earlier_one_returned(library, made):
    pool = made(8 * STEP)
    first = taken(pool, library, STEP + 5)
    assert first.nbytes == STEP + 5 and pool.total == 2 * STEP, "whole steps, so that similar sizes fit"
    address, view = first.ctypes.data, first[7:]
    del first
    assert taken(pool, library, STEP + 5).ctypes.data != address, "a view of it is still used"
    del view
    assert taken(pool, library, STEP // 2).ctypes.data in library.live and len(library.live) == 2
    assert pool.total == 4 * STEP


def test_the_smallest_that_is_large_enough(library, made):
    pool = made(8 * STEP)
    places = {size: taken(pool, library, size * STEP) for size in (3, 1, 2)}
    addresses = {size: place.ctypes.data for size, place in places.items()}
    places.clear()
    assert taken(pool, library, STEP + 1).ctypes.data == addresses[2]
    assert library.pinned == 6 * STEP


def test_no_more_is_pinned_than_the_limit(library, made, caplog):
    pool = made(3 * STEP)
    first, second = taken(pool, library, 2 * STEP), taken(pool, library, STEP)
    assert taken(pool, library, 1) is None and taken(pool, library, 4 * STEP) is None
    assert pool.total == 3 * STEP
    [line] = caplog.records
    assert line.levelno == logging.WARNING and "TRANSFER_GPU_PINNED" in line.getMessage(), "once"
    del first, second
    assert taken(pool, library, 4 * STEP) is None and len(library.live) == 2, "nothing is unpinned in vain"
    assert taken(pool, library, 3 * STEP) is not None and len(library.live) == 1, "in place of both"
    assert pool.total == 3 * STEP


def test_what_a_device_still_reads_is_lent_to_nobody(library, made):
    pool, done = made(8 * STEP), []
    place = taken(pool, library, STEP)
    address = place.ctypes.data
    pool.hold(place, lambda: bool(done))
    del place
    other = taken(pool, library, STEP)
    assert other.ctypes.data != address
    done.append(True)
    assert taken(pool, library, STEP).ctypes.data == address


def test_what_is_not_used_goes_back_to_the_system(library, made):
    pool = made(8 * STEP, rest=0.05)
    kept = taken(pool, library, STEP)
    taken(pool, library, 2 * STEP)
    assert pool.total == 3 * STEP
    eventually(lambda: pool.total == STEP and len(library.live) == 1)
    assert kept.ctypes.data in library.live, "not what is in use"
    del kept
    eventually(lambda: not library.live and "transfer-pinned" not in names())
    assert taken(pool, library, STEP) is not None and pool.total == STEP
    eventually(lambda: not library.live)


def names():
    return [thread.name for thread in threading.enumerate()]


def eventually(what):
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_memory_that_cannot_be_pinned(library, made, caplog):
    pool = made(8 * STEP)
    library.refuse = "cudaHostRegister returns 2\nand more"
    assert taken(pool, library, STEP) is None and taken(pool, library, STEP) is None and not pool.total
    [line] = caplog.records
    assert line.getMessage().endswith("cudaHostRegister returns 2")
    library.refuse = ""
    assert taken(pool, library, STEP) is not None


def test_memory_that_cannot_be_unpinned_stays_where_it_is(library, made, caplog):
    """Else something else is mapped there, which the library takes for pinned."""
    pool = made(8 * STEP)
    address = taken(pool, library, STEP).ctypes.data
    library.refuse = "operation not permitted when stream is capturing"
    pool.give_back()
    assert not pool.total and "capturing" in caplog.text
    library.refuse = ""
    assert taken(pool, library, STEP).ctypes.data != address
    [pages] = pinned._lost
    assert np.frombuffer(pages, "u1").ctypes.data == address
    pinned._lost.clear()


def test_an_interrupted_pinning_is_not_counted(library, made):
    pool = made(STEP)

    def interrupted(pages):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.take(STEP, interrupted)
    assert taken(pool, library, STEP) is not None


def test_it_can_be_switched_off(library, made, monkeypatch, caplog):
    monkeypatch.setenv("TRANSFER_GPU_PINNED", "off")
    assert taken(made(), library, 1) is None and not caplog.records, "as its user wants it"


@pytest.mark.parametrize(
    ("environment", "available", "limit"),
    [
        ("", 1 << 40, 512 * MIB),
        ("", 256 * MIB, 64 * MIB),
        ("96MiB", 1 << 40, 96 * MIB),
        ("1GiB", MIB, 1 << 30),
    ],
)
def test_the_limit_is_of_the_environment_or_of_the_machine(
    library, made, monkeypatch, environment, available, limit
):
    monkeypatch.setenv("TRANSFER_GPU_PINNED", environment)
    monkeypatch.setattr(pinned, "available_memory", lambda: available)
    monkeypatch.setattr(pinned, "LIMIT", 512 * MIB)
    pool = made()
    assert taken(pool, library, limit + 1) is None
    assert taken(pool, library, limit) is not None and pool.total == limit


def test_many_threads_never_share(library, made):
    pool, wrong = made(3 * STEP), []

    def work(number):
        for _ in range(100):
            place = taken(pool, library, STEP)
            if place is None:
                continue
            place[:8] = number
            time.sleep(0)
            if not (place[:8] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and pool.total <= 3 * STEP >= library.pinned


FORKED = """
import os
import numpy
from transfer.tensors.pinned import PinnedPool
unpinned = []
def pin(pages):
    return lambda: unpinned.append(os.getpid())
pool = PinnedPool(1 << 30)
place = numpy.frombuffer(pool.take(1 << 20, pin), "u1")
place[:] = 7
child = os.fork()
if not child:
    empty = not place.any()
    del place
    pool.give_back()
    os._exit(0 if empty and not unpinned else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (place == 7).all()
del place
pool.give_back()
assert unpinned == [os.getpid()]
"""


def test_a_forked_child_has_none_of_it_and_unpins_nothing():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
