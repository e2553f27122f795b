"""The garbage collector and shared memory: views that die in cycles, in threads, thousands of times.

A memoryview whose memory somebody exports must not be cleared by the collector, and nothing may be
unmapped that is still seen. Each run is a process of its own, which has to end well: with the
allocator that checks itself, and with a traceback if it does not.
"""

from __future__ import annotations

import pytest

from tests.sockets.processes import Program

CYCLES = """
    import faulthandler, gc, os, sys, threading, traceback
    from pathlib import Path
    faulthandler.enable()
    import numpy as np
    import transfer
    from transfer.transports import core

    assert core.IMPLEMENTATION == sys.argv[1]
    TURNS = int(sys.argv[2])
    with_torch = sys.argv[3] == "torch"
    if with_torch:
        import torch

    class Knot:
        '''Holds itself, and what it is given.'''
        def __init__(self, *held):
            self.me, self.held = self, held
        def __del__(self):
            for each in self.held:  # still whole when the collector begins
                if isinstance(each, np.ndarray) and each.size:
                    each[..., 0]

    def views(tensor):
        yield tensor, tensor[3:], tensor.T
        flat = memoryview(tensor).cast("B")
        yield flat, flat[10:], memoryview(flat[5:])
        yield np.frombuffer(flat, "u1"), np.asarray(flat[7:9])
        yield tensor.base, memoryview(tensor.base)
        if with_torch:
            made = torch.from_numpy(tensor)
            yield made, made[1:], made.numpy(), torch.frombuffer(flat, dtype=torch.uint8)

    def tie(tensor, number):
        knots = [Knot(*each, tensor) for each in views(tensor)]
        knots[0].other = knots  # one cycle of all
        if number % 3 == 0:
            knots.append(knots)

    def fail():
        traceback.print_exc()
        os._exit(3)  # the others would wait for this thread

    def send(context, endpoint, number):
        try:
            with context.socket(transfer.PUSH, sndtimeo=30000) as push:
                push.connect(endpoint)
                push.wait_for_peers(1, 20)
                assert push.peers()[0].transport == "local"
                plain = np.full((40, 1024), number, "float32")
                for turn in range(TURNS):
                    if turn % 4 == 0:
                        shared = context.empty((40, 1024), "float32")
                        shared[:] = number
                        push.send_tensor(shared)
                        tie(shared, turn)
                        shared = None
                    elif turn % 4 == 1:
                        push.send(memoryview(plain), copy=False)
                    else:
                        push.send_tensor(plain)
                push.close(20000)
        except BaseException:
            fail()

    def receive(context, pull, share, number):
        try:
            mine = context.socket(transfer.PULL, rcvtimeo=30000)
            pull.append(mine)
            mine.bind("tcp://127.0.0.1:0")
            share.append(mine.last_endpoint)
            for turn in range(TURNS):
                frames = mine.recv_multipart(copy=False)
                (frame,) = frames
                data = np.frombuffer(frame.buffer, "float32").reshape(40, 1024)
                assert (data == number).all()
                tie(data, turn)
                knot = Knot(frame, frame.buffer, frame.buffer[3:], data)
                knot.frames = frames
                data = frame = frames = knot = None
                if turn % 50 == 0:
                    gc.collect()
        except BaseException:
            fail()

    stop = threading.Event()

    def collect():
        while not stop.wait(0.002):
            gc.collect(1)

    gc.set_threshold(50, 2, 2)
    context, other = transfer.Context(), transfer.Context()
    pulls, threads = [], []
    collector = threading.Thread(target=collect)
    collector.start()
    for number in (3, 4):
        share = []
        one = threading.Thread(target=receive, args=(other, pulls, share, number))
        one.start()
        while not share:
            pass
        two = threading.Thread(target=send, args=(context, share[0], number))
        two.start()
        threads += [one, two]
    for thread in threads:
        thread.join()
    for pull in pulls:
        pull.close(0)
    gc.collect()
    last = [Knot(context.empty(100_000)) for _ in range(10)]  # dies behind its context
    context.destroy(0)
    other.destroy(0)
    last.clear()
    stop.set()
    collector.join()
    gc.collect()
    maps = sum("memfd:transfer" in line for line in Path("/proc/self/maps").read_text().splitlines())
    print("mapped", maps, flush=True)
"""


def run(core, turns, way):
    with Program(
        CYCLES, core, turns, way, core=core, TRANSFER_LOCAL="on", PYTHONMALLOC="debug"
    ) as program:  # fmt: skip
        code, out, errors = program.finish(240)
    assert (code, out.strip()) == (0, "mapped 0"), f"{code}: {out} {errors}"


@pytest.mark.parametrize("core", ["native", "pure"])
def test_views_that_die_in_cycles(core):
    run(core, 300, "plain")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["plain", "torch"])
@pytest.mark.parametrize("core", ["native", "pure"])
def test_views_that_die_in_cycles_thousands_of_times(core, way):
    pytest.importorskip("torch")
    run(core, 4000, way)


#: what the parts do, without sockets: a region and its view in one cycle, in each order of making
PARTS = """
    import faulthandler, gc, os, sys
    from pathlib import Path
    faulthandler.enable()
    from importlib import import_module
    from transfer.transports.shm.memory import make_memfd

    core = import_module("transfer.transports.core." + sys.argv[1])
    heard = []

    def knot(order, size=8192):
        fd = make_memfd(size)
        mapping = core.Mapping(fd, size)
        os.close(fd)
        block = memoryview(mapping)
        region = core.Region(block[100:5000], lambda: heard.append(order))
        slots = core.Slots(mapping, 4096, 4096, 1)
        assert slots.take() == 0
        lent = slots.lend(0, 4096)
        parts = [block, region, lent, memoryview(region), memoryview(lent), memoryview(region)[5:],
                 core.HeldBuffer(memoryview(lent)[1:]), memoryview(memoryview(lent)[2:]).toreadonly()]
        cycle = []
        for step in range(len(parts)):
            cycle.append(parts[(step * 3 + order) % len(parts)])
        cycle.append(cycle)
        if order % 2:
            cycle.reverse()

    for turn in range(3000):
        knot(turn % 16)
        if turn % 7 == 0:
            gc.collect()
    gc.collect()
    maps = sum("memfd:transfer" in line for line in Path("/proc/self/maps").read_text().splitlines())
    print(len(heard), maps, flush=True)
"""


@pytest.mark.parametrize("core", ["native", "pure"])
def test_regions_slots_and_their_views_in_cycles(core):
    with Program(PARTS, core, core=core, PYTHONMALLOC="debug") as program:
        code, out, errors = program.finish(60)
    assert (code, out.strip()) == (0, "3000 0"), f"{code}: {out} {errors}"
