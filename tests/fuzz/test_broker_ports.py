"""Hostile clients at every port of a running broker, by seed, while good clients use each of them.

`make test` takes kept talks and a few by fixed seeds. The slow test sends fresh ones to each port for
FUZZ_SECONDS (300), with slow ones at the same time, and prints how long good clients waited. A talk that
breaks something is saved as JSON next to the broker's folder; mended, it moves to `corpus/`, named
TARGET-WHAT.json, and the quick tests replay it.

What is asserted is that every good client is answered, within its patience. That 99 of 100 rounds take
less than 100 ms is asserted by the slow test alone, where FUZZ_QUIET says that nothing else runs here.
"""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from pathlib import Path

import pytest

from tests.fuzz.attack import under_attack
from tests.fuzz.broker_conversations import PORTS, SECURED, TALKS, talk
from tests.fuzz.dialers import Local, plain, unix_listener_name
from tests.fuzz.fuzzed_broker import HERE, Process
from tests.fuzz.hostile_clients import HostileClients, SlowClients
from tests.security.limits import LIMITS, SECTIONS

KEPT = sorted((Path(__file__).parent / "corpus").glob("*.json"))
#: seconds at each port in the slow test, and talks there in the quick one
SECONDS = float(os.environ.get("FUZZ_SECONDS", "300"))
FEW = 25
#: ports that the table of limits has for all at once
_FOR_ALL = {
    "all TCP ports of a process together",
    "all fronts",
    # of what this side asks, not of its ports
    "answers that the `transfer` commands read over HTTP",
    "names that have many members: `dns://`, `registry://`",
    "tensors on a GPU",
}


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    with under_attack(tmp_path_factory.mktemp("fuzz") / "data") as made:
        yield made


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_talks(attack, path):
    target = path.stem.partition("-")[0].replace("_", " ")
    attack.kept(target, [bytes.fromhex(word) for word in json.loads(path.read_text())])


@pytest.mark.parametrize("target", TALKS)
def test_a_few_hostile_clients(attack, target):
    attack.at(target, range(FEW))


def test_good_and_hostile_clients_use_the_unix_socket(attack):
    assert unix_listener_name(attack.broker.process.pid)
    peer = attack.dial("requests local")(random.Random(1))
    assert isinstance(peer, Local)
    peer.close()


def test_slow_ones_are_served_and_put_out(attack):
    """Those whose first bytes make no sense at once; the slow test waits for the time-outs of the others."""
    with SlowClients(attack.dial("ttp"), lambda seed: talk("ttp", seed), 20) as slow:
        deadline = time.monotonic() + 60
        while not slow.ended:
            assert time.monotonic() < deadline, "none was put out"
            attack.look("slow ones")
    assert not attack.broker.errors()


def test_every_port_is_in_the_set(attack):
    places = attack.broker.places
    there = {*places["ports"], *places["endpoints"]}
    assert there == {target for target in TALKS if target in there}
    limited = {port for port, _ in LIMITS} - _FOR_ALL | set(SECTIONS.values())
    assert {port for ports in PORTS.values() for port in ports} == limited
    assert set(PORTS) <= {*TALKS, *SECURED, "metrics"}


def report(attack, target):
    """Prints how long the good clients waited."""
    times = {name: max(found) for name, found in attack.slowest.items()}
    load = os.getloadavg()[0]
    print(
        f"\n{target}: {attack.came} came, {attack.put_out} slow ones were put out; {attack.ended()}", end="; "
    )
    print(f"load {load:.1f}; 99 % and slowest, ms:", end=" ")
    print({name: [round(one * 1000) for one in found] for name, found in times.items()})
    if "FUZZ_QUIET" in os.environ:
        assert all(most <= 0.1 for most, _ in times.values()), times


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("target", list(TALKS))
def test_hostile_clients_for_minutes(attack, target):
    attack.for_a_while(target, SECONDS)
    report(attack, target)


# -- the port of metrics, which a broker has not ---------------------------------------------------

_SERVES = """
import sys, transfer
with transfer.Context(metrics_port=0) as context:
    print(context.metrics_port, flush=True)
    sys.stdin.read()
"""


def serve_metrics(tmp_path, seeds, until=float("inf")):
    process = Process(tmp_path / "log", "-c", _SERVES)
    try:
        place = HERE, int(process.first)
        clients = HostileClients(plain(place))
        with SlowClients(plain(place), lambda seed: talk("metrics", seed), 20):
            for seed in seeds:
                if time.monotonic() > until:
                    break
                clients.connect(talk("metrics", seed), seed)
                if seed % 25 == 24:
                    answer = urllib.request.urlopen(f"http://{HERE}:{place[1]}/metrics", timeout=20)
                    assert b"transfer_sockets" in answer.read()
        clients.close()
        assert process.log.read_text() == ""
    finally:
        process.close()


def test_a_few_hostile_clients_at_metrics(tmp_path):
    serve_metrics(tmp_path, range(FEW))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_hostile_clients_at_metrics_for_minutes(tmp_path):
    first = int(time.time() * 1000)
    serve_metrics(tmp_path, range(first, first + (1 << 40)), time.monotonic() + SECONDS)
