"""A tensor of 10 GB between two processes delays no acknowledgement, no heartbeat, and nobody else.

All sockets of a process share one context, so one flusher and one reactor. Heartbeats come every
200 ms, and who is silent for a second is dead: the monitors would tell. Requests and tracked messages
beside the tensor have two seconds each. What was measured is printed as one line of JSON.
"""

from __future__ import annotations

import json
import time

import psutil
import pytest

from tests.faults.raw_peer import pending_events
from tests.faults.repeated_pages import WINDOW, pattern, window
from tests.sockets.helpers import Thread
from tests.sockets.processes import Program
from transfer import PAIR, PUSH, REQ

GB = 1 << 30
LARGE = 10 * GB
OPTIONS = {"heartbeat_ivl": 200, "heartbeat_timeout": 1000}
#: milliseconds for a round trip and for a confirmation
DEADLINE = 2000

OTHER_SIDE = """
    import sys, threading, time
    import numpy, transfer
    from tests.faults.repeated_pages import WINDOW, pattern, window

    kind, large = getattr(transfer, sys.argv[1]), int(sys.argv[2])
    options = {"heartbeat_ivl": 200, "heartbeat_timeout": 1000}
    context = transfer.Context()
    big, rep, pull = (context.socket(each, **options) for each in (kind, transfer.REP, transfer.PULL))
    for sock in (big, rep, pull):
        sock.bind("tcp://127.0.0.1:0")
        print(sock.last_endpoint, flush=True)

    def answer():
        while (message := rep.recv()) != b"end":
            rep.send(message)
        rep.send(b"end")

    def consume():
        while pull.recv() != b"end":
            pass

    def take():
        "Into the same window of memory again and again."
        with window(large) as out:
            big.recv_tensor(out=out)
            assert (out[-WINDOW // 8:] == pattern()).all()
            out = None

    def take_all():
        "Into memory of the pool, so that every byte can be looked at."
        received, expected = big.recv_tensor(), pattern()
        assert received.nbytes == large
        for part in received.reshape(-1, WINDOW // 8):
            assert (part == expected).all()

    def give():
        with window(large) as source:
            source[:WINDOW // 8] = pattern()
            big.send_tensor(source, copy=False).wait(300)
            source = None

    def both():
        thread = threading.Thread(target=give)
        thread.start()
        take()
        thread.join()

    def late():
        time.sleep(3)
        take()

    def give_up():
        "In the middle: what has come must move out of memory that is the caller's again."
        with window(large) as out:
            big.rcvtimeo = 1500
            try:
                big.recv_tensor(out=out)
                print("too quick", flush=True)
            except transfer.Again:
                big.rcvtimeo = 300_000
            out = None
        take_all()

    for sock in (big, rep, pull):
        sock.wait_for_peers(1, 20)
    big.rcvtimeo = 300_000  # whoever started this may be killed
    threads = [threading.Thread(target=call, daemon=True) for call in (answer, consume)]
    for thread in threads:
        thread.start()
    monitors = [sock.get_monitor() for sock in (big, rep, pull)]
    for line in sys.stdin:
        if line.strip() == "end":
            break
        globals()[line.strip()]()
        print("done", flush=True)
    else:
        sys.exit("told nothing any more")
    for thread in threads:
        thread.join(20)
    events = [monitor.recv(0).kind.value for monitor in monitors for _ in range(len(monitor._events))]
    print([event for event in events if event != "connected"], flush=True)
    context.destroy(1000)
"""


@pytest.fixture
def room(request):
    """Skips where the memory that a test says it needs is not free."""
    free = psutil.virtual_memory().available
    if free < request.param * GB:
        pytest.skip(f"needs {request.param} GB of free memory, there are {free / GB:.1f}")


class Sides:
    """The big socket, and beside it a REQ and a PUSH whose messages are tracked, to one process."""

    def __init__(self, context, program, kind):
        self.program = program
        self.big, self.req, self.push = (
            context.socket(each, **OPTIONS, sndtimeo=DEADLINE, rcvtimeo=DEADLINE)
            for each in (kind, REQ, PUSH)
        )
        self.big.sndtimeo = self.big.rcvtimeo = 300_000
        for sock in (self.big, self.req, self.push):
            sock.connect(program.line())
            sock.wait_for_peers(1, 20)
        self.monitors = [sock.get_monitor() for sock in (self.big, self.req, self.push)]
        self.round_trips, self.confirmations = [], []

    def beside(self, *threads):
        """Requests and tracked messages for as long as the other side and these threads work."""
        done = Thread(self.program.line)
        while done.is_alive() or any(thread.is_alive() for thread in threads):
            for thread in threads:
                if not thread.is_alive():
                    thread.finish()  # raises what went wrong
            started = time.monotonic()
            self.req.send(b"ask")
            assert self.req.recv() == b"ask"
            self.round_trips.append(time.monotonic() - started)
            started = time.monotonic()
            self.push.send(b"small", track=True).wait_confirmed(DEADLINE / 1000)
            self.confirmations.append(time.monotonic() - started)
            time.sleep(0.01)
        for thread in threads:
            thread.finish()
        assert done.finish() == "done"

    def end(self):
        """Nobody was thought to be dead, on either side."""
        ours = [event.kind.value for monitor in self.monitors for event in pending_events(monitor)]
        assert [event for event in ours if event != "connected"] == []
        self.push.send(b"end")
        self.req.send(b"end")
        assert self.req.recv() == b"end"
        self.program.tell("end")
        code, out, errors = self.program.finish()
        assert (code, out.strip(), errors) == (0, "[]", "")

    def told(self, name, core, started):
        found = {"test": name, "core": core, "seconds": round(time.monotonic() - started, 1)}
        for what, times in (("round_trips", self.round_trips), ("confirmations", self.confirmations)):
            times.sort()
            found[what] = {
                "count": len(times), "median_ms": round(times[len(times) // 2] * 1e3, 2),
                "worst_ms": round(times[-1] * 1e3, 1),
            }  # fmt: skip
        print("\n10 GB: " + json.dumps(found), flush=True)


def give(sock, copy):
    """Sends 10 GB; returns when their memory is free."""
    with window(LARGE) as source:
        source[: WINDOW // 8] = pattern()
        tracker = sock.send_tensor(source, copy=copy)
        if tracker is not None:
            tracker.wait(300)
        del source


def take(sock):
    with window(LARGE) as out:
        sock.recv_tensor(out=out)
        assert (out[-WINDOW // 8 :] == pattern()).all()
        del out


def play(context, kind, other_side, *here):
    """The other side does what it is told while these calls run here, and others talk beside them."""
    core = context.core.__name__.rpartition(".")[2]
    with Program(OTHER_SIDE, kind, LARGE, core=core) as program:
        sides = Sides(context, program, {"PULL": PUSH, "PAIR": PAIR}[kind])
        started = time.monotonic()
        program.tell(other_side)
        sides.beside(*(Thread(call, sides.big, *arguments) for call, *arguments in here))
        sides.told(other_side, core, started)
        assert len(sides.round_trips) >= 10
        sides.end()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("room", [13], indirect=True)
def test_into_new_memory(context, room):
    """Every byte arrives, in memory of the receiver's pool."""
    play(context, "PULL", "take_all", (give, False))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("room", [13], indirect=True)
def test_from_memory_that_is_the_callers_again(context, room):
    """What the kernel takes no progress with is copied; into memory of the receiver's choice."""
    play(context, "PULL", "take", (give, None))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("room", [13], indirect=True)
def test_to_a_receiver_in_a_long_step(context, room):
    """It reads nothing for three seconds: meanwhile the sender copies nearly all of it."""
    play(context, "PULL", "late", (give, None))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("room", [13], indirect=True)
def test_a_receiver_that_gives_up_in_the_middle(context, room):
    """Its memory is its own again, so what has come is copied, and the rest goes on."""
    play(context, "PULL", "give_up", (give, False))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("room", [3], indirect=True)
def test_both_ways_at_once(context, room):
    """On one connection: the heartbeats, credits and the other tensor pass."""
    play(context, "PAIR", "both", (give, False), (take,))
