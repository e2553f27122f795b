"""Connections that nobody used for long: the first send behaves like any other.

The rest takes a second, or as many as TRANSFER_TEST_REST says: `TRANSFER_TEST_REST=3600` is the real
hour. What was measured is printed as one line of JSON (`-s` shows it); no time is asserted.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import threading
import time

import pytest

from tests.faults.raw_peer import pending_events
from tests.sockets.helpers import pair_of
from tests.sockets.processes import Program
from transfer import PUSH, REP, REQ
from transfer.sockets.drain import unread
from transfer.transports.core.wire import HEADER_SIZE

REST = float(os.environ.get("TRANSFER_TEST_REST", "1"))
#: seconds before each of the sends that are compared with the first after the rest, and how many
PAUSE, SENDS = (1.0, 30) if REST >= 60 else (0.05, 5)
BURST = 2000

OTHER_SIDE = """
    import json, resource, sys, threading, time
    import transfer

    context = transfer.Context()
    options = json.loads(sys.argv[1])
    pull, rep = (context.socket(kind, **options) for kind in (transfer.PULL, transfer.REP))
    received, arrivals = [], []
    for sock in (pull, rep):
        sock.bind("tcp://127.0.0.1:0")
        print(sock.last_endpoint, flush=True)

    def consume():
        while (message := pull.recv()) != b"end":
            arrivals.append(time.monotonic_ns())
            received.append(int(message))

    def answer():
        while (message := rep.recv()) != b"end":
            rep.send(message)
        rep.send(b"end")

    threads = [threading.Thread(target=call, daemon=True) for call in (consume, answer)]
    for thread in threads:
        thread.start()
    for sock in (pull, rep):
        sock.wait_for_peers(1, 20)
    monitors = [pull.get_monitor(), rep.get_monitor()]
    for line in sys.stdin:
        if line.strip() == "end":
            break
        deadline = time.monotonic() + 20
        while len(received) < int(line) and time.monotonic() < deadline:
            time.sleep(0.005)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        events = [str(monitor.recv(0)) for monitor in monitors for _ in range(len(monitor._events))]
        told = json.dumps({
            "received": received, "arrivals": arrivals, "events": events,
            "cpu_s": usage.ru_utime + usage.ru_stime, "wakeups": usage.ru_nvcsw,
            "threads": threading.active_count(),
            "peers": [[peer.address, peer.received] for sock in (pull, rep) for peer in sock.peers()],
        })
        received.clear(), arrivals.clear()  # before it is told, since more comes then
        print(told, flush=True)
    else:
        sys.exit("told nothing any more")  # whoever started this was killed
    for thread in threads:
        thread.join(20)
    context.destroy(1000)
"""


class Pairs:
    """PUSH and REQ here, PULL and REP in another process, and what a send takes between them."""

    def __init__(self, context, program, options):
        self.program = program
        self.push, self.req = context.socket(PUSH, **options), context.socket(REQ, **options)
        for sock in (self.push, self.req):
            sock.connect(program.line())
            sock.wait_for_peers(1, 20)
        self.monitors = self.push.get_monitor(), self.req.get_monitor()
        self.sent = 0

    def ask(self, expected):
        """What the other side saw since it was asked last; it waits for so many messages."""
        self.program.tell(str(expected))
        return json.loads(self.program.line())

    def measure(self):
        """Microseconds of one message, of one round trip, and of a burst until its last has come."""
        started = time.monotonic_ns()
        self._push(1)
        arrived = self.ask(1)
        asked = time.monotonic_ns()
        self.req.send(b"%d" % self.sent)
        assert self.req.recv() == b"%d" % self.sent
        answered = time.monotonic_ns()
        self._push(BURST)
        burst = self.ask(BURST)
        first = self.sent - BURST
        assert arrived["received"] == [first - 1]
        assert burst["received"] == list(range(first, self.sent))  # all, once, in order
        return {
            "push": (arrived["arrivals"][0] - started) / 1e3,
            "round_trip": (answered - asked) / 1e3,
            "burst": (burst["arrivals"][-1] - answered) / 1e3,
        }

    def _push(self, count):
        for _ in range(count):
            self.push.send(b"%d" % self.sent)
            self.sent += 1

    def state(self):
        """What must be the same after the rest, on both sides, and the CPU time used so far."""
        other = self.ask(0)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        assert not other["events"]
        same = {
            "ours": [peer.address for sock in (self.push, self.req) for peer in sock.peers()],
            "theirs": [address for address, _ in other["peers"]],
            "threads": [threading.active_count(), other["threads"]],
        }
        cost = {
            "cpu_s": [usage.ru_utime + usage.ru_stime, other["cpu_s"]],
            "wakeups": [usage.ru_nvcsw, other["wakeups"]],
        }
        return same, cost

    def events(self):
        """What the monitors of both sides told since they were asked last."""
        return [event for monitor in self.monitors for event in pending_events(monitor)] + self.ask(0)[
            "events"
        ]

    def end(self):
        self.push.send(b"end")
        self.req.send(b"end")
        assert self.req.recv() == b"end"
        self.program.tell("end")
        code, _, errors = self.program.finish()
        assert (code, errors) == (0, "")


def summary(normal, first):
    """The first send after the rest, and where it stands among those after a short pause."""
    told = {}
    for name, value in first.items():
        others = sorted(each[name] for each in normal)
        told[name] = {
            "first_us": round(value, 1),
            "median_us": round(statistics.median(others), 1),
            "min_us": round(others[0], 1),
            "max_us": round(others[-1], 1),
        }
    return told


def between(before, after):
    """What was used by [this process, the other one]."""
    return {
        name: [round(b - a, 3) for a, b in zip(before[name], after[name], strict=True)] for name in before
    }


def test_heartbeats_do_not_gather(context):
    """Who sends a request after a rest would have to go through all of them before its reply."""
    rep, req = pair_of(context, REP, REQ, heartbeat_ivl=5, heartbeat_timeout=5000)
    (peer,) = req._links.state.peers.values()
    waiting = []
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        waiting.append(unread(peer) // (HEADER_SIZE + 1))
        time.sleep(0.005)
    assert 0 < max(waiting) < 50  # there would be 300
    req.rcvtimeo = rep.rcvtimeo = 10_000
    req.send(b"ask")
    assert rep.recv() == b"ask"
    rep.send(b"answer")
    assert req.recv() == b"answer"


@pytest.mark.timeout(120 + 2 * REST)
@pytest.mark.parametrize("heartbeats", [True, False], ids=["heartbeats", "no heartbeats"])
def test_the_first_send_after_a_rest(context, heartbeats):
    """Same connection, nothing lost, nothing told by a monitor, and next to no work meanwhile."""
    core = context.core.__name__.rpartition(".")[2]
    options = (
        {"rcvtimeo": -1} if heartbeats else {"heartbeat_ivl": 0, "heartbeat_timeout": -1, "rcvtimeo": -1}
    )
    with Program(OTHER_SIDE, json.dumps(options), core=core) as program:
        pairs = Pairs(context, program, options)
        pairs.req.rcvtimeo = 20_000
        for _ in range(3):
            pairs.measure()
        normal = []
        for _ in range(SENDS):
            time.sleep(PAUSE)
            normal.append(pairs.measure())
        _, cost_before = pairs.state()
        pairs.measure()
        pairs.events()  # those of the beginning
        same, cost = pairs.state()
        time.sleep(REST)
        first = pairs.measure()
        same_after, cost_after = pairs.state()
        assert same_after == same
        assert pairs.events() == []
        assert pairs.push.peers()[0].sent == pairs.sent
        pairs.end()
    used = {"a send and a burst": between(cost_before, cost), "the rest and these": between(cost, cost_after)}
    told = {"core": core, "heartbeats": heartbeats, "rest_s": REST, **summary(normal, first), "used": used}
    print("\nrest: " + json.dumps(told), flush=True)
