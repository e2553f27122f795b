"""Strangers at every door of a running broker, by seed, while good clients go round in each.

`make test` takes kept talks and a few by fixed seeds. The slow test says fresh ones at each door for
FUZZ_SECONDS (300) and prints how long good clients waited. A talk that breaks something is saved as JSON
next to the broker's folder; mended, it moves to `kept/`, named DOOR-WHAT.json, and the quick tests replay it.

What is asserted is that every good client is answered, within its patience. That 99 of 100 rounds take
less than 100 ms is asserted by the slow test alone, where FUZZ_QUIET says that nothing else runs here.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.cli.test_broker import HERE
from tests.fuzz.doors import TALKS, talk
from tests.fuzz.serving import good_clients, serving
from tests.fuzz.stranger import Strangers
from transfer import cli
from transfer.clients.own import BrokerClient
from transfer.clients.pybroker import PyBrokerClient

KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))
#: seconds at each door in the slow test, and talks there in the quick one
SECONDS = float(os.environ.get("FUZZ_SECONDS", "300"))
FEW = 25
#: bytes that a broker may grow by under strangers
MOST_MEMORY = 256 << 20
#: threads that its pools begin when they are first asked for something
MOST_THREADS = 16


class Attack:
    """Says talks at the doors of one broker, and sees after each few that it serves."""

    def __init__(self, broker, good):
        self.broker, self.good = broker, good
        self.before = broker.held()
        self.slowest = {}

    def at(self, door, seeds, until=float("inf")):
        strangers = Strangers(self.broker.place(door))
        said = []
        try:
            for seed in seeds:
                if time.monotonic() > until:
                    break
                words = talk(door, seed)
                strangers.come(words, seed)
                said = [*said[-20:], (seed, words)]
                if (error := self.broker.errors()) or self.broker.process.process.poll() is not None:
                    self._fail(door, said, error or "it has ended")
        finally:
            strangers.close()
        self.look(door)

    def _fail(self, door, said, error):
        path = self.broker.folder.parent / f"{door.replace(' ', '_')}-{said[-1][0]}.json"
        path.write_text(json.dumps([word.hex() for word in said[-1][1]]))
        pytest.fail(f"{door}: seeds up to {said[-1][0]}; the last is kept in {path}\n{error}")

    def look(self, what):
        """Every good client has gone round meanwhile, and none has waited in vain."""
        deadline = time.monotonic() + 30
        rounds = dict.fromkeys(self.slowest, 0)
        while not rounds or not all(rounds.values()):
            assert time.monotonic() < deadline, rounds
            for name, report in self.good.asked().items():
                assert not report["error"], f"{name} during {what}: {report['error']}"
                rounds[name] = rounds.get(name, 0) + report["rounds"]
                if report["rounds"]:
                    self.slowest.setdefault(name, []).append((report["99 %"], report["slowest"]))
            time.sleep(0.02)

    def ended(self):
        """Strangers have gone: so has what they held."""
        held = self.broker.settled(self.before, more_threads=MOST_THREADS)
        assert held.memory - self.before.memory < MOST_MEMORY, (self.before, held)
        return held


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    """The broker's log is whole at the end, and all that good clients published is in it."""
    folder = tmp_path_factory.mktemp("fuzz") / "data"
    with serving(folder) as broker:
        with good_clients(broker) as good:
            made = Attack(broker, good)
            yield made
            made.ended()
            numbers = {name: report["numbers"] for name, report in good.asked().items()}
        check_kept(broker.places, numbers)
        assert broker.process.end() == 0
        assert not broker.errors()
    assert cli.run(["broker", "check", str(folder)]) == 0


def check_kept(places, numbers):
    with BrokerClient(places["endpoints"]["requests"], timeout=20) as client:
        for door in ("own", "ttp"):
            consumer = client.consume(f"good.{door}", "check", begin="old", window=1000)
            found = []
            while len(found) < numbers[door]:
                some = consumer.recv_many(1000)
                consumer.ack(*some)
                found += [int(bytes(one.data)) for one in some]
            assert found[: numbers[door]] == list(range(numbers[door]))
            consumer.leave()
    with PyBrokerClient(HERE, places["ports"]["pybroker"]) as client:
        wanted, found = b"".join(b"%d " % one for one in range(numbers["pybroker"])), b""
        while len(found) < len(wanted):
            found += bytes(client.fetch("good.pybroker", len(found)))
        assert found[: len(wanted)] == wanted


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_talks(attack, path):
    door = path.stem.partition("-")[0].replace("_", " ")
    words = [bytes.fromhex(word) for word in json.loads(path.read_text())]
    strangers = Strangers(attack.broker.place(door))
    for way in range(5):
        strangers.come(words, way)
    strangers.close()
    attack.look(path.stem)
    assert not attack.broker.errors()


@pytest.mark.parametrize("door", TALKS)
def test_a_few_strangers(attack, door):
    attack.at(door, range(FEW))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("door", TALKS)
def test_strangers_for_minutes(attack, door):
    attack.slowest.clear()
    first = int(time.time() * 1000)
    attack.at(door, range(first, first + (1 << 40)), time.monotonic() + SECONDS)
    report = {name: max(times) for name, times in attack.slowest.items()}
    print(f"\n{door}: {attack.ended()}; 99 % and slowest, ms:", end=" ")
    print({name: [round(one * 1000) for one in times] for name, times in report.items()})
    if "FUZZ_QUIET" in os.environ:
        assert all(most <= 0.1 for most, _ in report.values()), report
