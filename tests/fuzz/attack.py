"""Strangers at the doors of one running broker, and the good clients that go round there meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.broker.secure_peers import Identities
from tests.fuzz import ways
from tests.fuzz.doors import talk
from tests.fuzz.serving import HERE, FuzzedBroker, Held, Process, good_clients, serving
from tests.fuzz.stranger import Drips, Strangers
from transfer import cli
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.transports.config import security as read_security
from transfer.transports.core.wire import SocketType
from transfer.transports.shm import unix_listener as unix_door

#: bytes that a broker may have more when strangers are gone: its pool keeps 256 MiB of buffers for reuse, and
#: what the allocator keeps in between is as much again
MOST_MEMORY = 512 << 20
#: threads that its pools begin when they are first asked for something
MOST_THREADS = 16
#: slow ones at a time, beside those that come one after the other
DRIPS = 40
#: sockets of those who greeted the Unix socket and were not asked for: the next one ends them after 30 s
MOST_GREETED = 3 * unix_door._MOST_WAITING
_KINDS = {"rows": SocketType.PUSH, "pushes": SocketType.PUSH}


class Attack:
    """Says talks at the doors of one broker, and sees after each few that it serves."""

    def __init__(self, broker: FuzzedBroker, good: Process, identities: Identities | None) -> None:
        self.broker, self.good, self.identities = broker, good, identities
        self.before = broker.held()
        self.slowest: dict[str, list[tuple[float, float]]] = {}
        self.came = self.put_out = 0
        self.greeted = False
        self.gone: set[str] = set()

    def way(self, door: str) -> ways.Way:
        """How the strangers of a door come to it."""
        place, how = self.broker.place(door), door.split()[-1]
        kind = _KINDS.get(door.split()[0], SocketType.DEALER)
        self.greeted |= how in ("greeting", "local", "upgrade")
        if how == "greeting":
            return ways.greeting(lambda: ways.unix_door(self.broker.process.pid))
        if how in ("local", "upgrade"):
            return ways.local(place, kind, mutated=how == "upgrade")
        if self.identities is not None and how == "tls":
            return ways.encrypted(place, self.identities)
        if self.identities is not None and how in ("proved", "proof"):
            return ways.proved(place, self.identities, kind, mutated=how == "proof")
        return ways.plain(place)

    def at(self, door: str, seeds: Iterable[int], until: float = float("inf")) -> None:
        """One after the other."""
        strangers = Strangers(self.way(door))
        said: list[tuple[int, list[bytes]]] = []
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
        self.came = strangers.came
        self.look(door)

    def for_a_while(self, door: str, seconds: float) -> None:
        """Fresh ones, and slow ones meanwhile."""
        self.slowest.clear()
        first = int(time.time() * 1000)
        with Drips(self.way(door), lambda seed: talk(door, first + seed), DRIPS) as drips:
            self.at(door, range(first, first + (1 << 40)), time.monotonic() + seconds)
        self.put_out = drips.ended
        assert not (error := self.broker.errors()), error

    def kept(self, door: str, words: list[bytes]) -> None:
        """One that has broken something once."""
        strangers = Strangers(self.way(door))
        for seed in range(5):
            strangers.come(words, seed)
        strangers.close()
        self.look(door)
        assert not (error := self.broker.errors()), error

    def _fail(self, door: str, said: list[tuple[int, list[bytes]]], error: str) -> None:
        path = self.broker.folder.parent / f"{door.replace(' ', '_')}-{said[-1][0]}.json"
        path.write_text(json.dumps([word.hex() for word in said[-1][1]]))
        pytest.fail(f"{door}: seeds up to {said[-1][0]}; the last is kept in {path}\n{error}")

    def look(self, what: str) -> None:
        """Every good client has gone round meanwhile, and none has waited in vain."""
        deadline = time.monotonic() + 30
        rounds = dict.fromkeys(self.slowest, 0)
        while not rounds or not all(rounds.values()):
            assert time.monotonic() < deadline, rounds
            for name, report in self.good.asked().items():
                if name in self.gone:
                    continue  # it failed at an earlier door, and goes round no more
                if report["error"]:
                    self.gone.add(name)
                    self.slowest.pop(name, None)
                    pytest.fail(f"{name} during {what}: {report['error']}")
                rounds[name] = rounds.get(name, 0) + report["rounds"]
                if report["rounds"]:
                    self.slowest.setdefault(name, []).append((report["99 %"], report["slowest"]))
            time.sleep(0.02)

    def ended(self) -> Held:
        """Strangers have gone: so has what they held."""
        more_sockets = MOST_GREETED if self.greeted else 0
        try:
            held = self.broker.settled(self.before, MOST_THREADS, more_sockets)
            assert held.memory - self.before.memory < MOST_MEMORY, (self.before, held)
        except AssertionError:
            self.before = self.broker.held()  # the next door is judged by itself
            raise
        return held


@contextmanager
def attacked(folder: Path, identities: Identities | None = None) -> Iterator[Attack]:
    """A broker and its good clients. At the end its log is whole, and has all that good clients published."""
    broker_says, client_says = _environment(identities)
    with serving(folder, **broker_says) as broker:
        with good_clients(broker, **client_says) as good:
            made = Attack(broker, good, identities)
            yield made
            made.ended()
            numbers = {name: report["numbers"] for name, report in good.asked().items()}
        with ExitStack() as ending:
            patch = ending.enter_context(pytest.MonkeyPatch.context())
            for name, value in client_says.items():
                patch.setenv(name, value)
            check_kept(broker.places, numbers)
        assert broker.process.end() == 0
        assert not broker.errors()
    assert cli.run(["broker", "check", str(folder)]) == 0


def _environment(identities: Identities | None) -> tuple[dict[str, str], dict[str, str]]:
    """(the broker's, its good clients'): mutual TLS and a token, or nothing."""
    if identities is None:
        return {}, {}
    both = {
        "TRANSFER_TLS_CA": identities.authority.path,
        "TRANSFER_TOKEN_FILE": str(identities.token_file),
    }
    shown = [
        {"TRANSFER_TLS_CERT": issued.certificate, "TRANSFER_TLS_KEY": issued.key}
        for issued in (identities.server, identities.client)
    ]
    return both | shown[0], both | shown[1]


def check_kept(places: dict[str, dict[str, str]], numbers: dict[str, int]) -> None:
    """What good clients published is there, in its order."""
    security = read_security()
    with BrokerClient(places["endpoints"]["requests"], timeout=20) as client:
        for door in ("own", "ttp"):
            consumer = client.consume(f"good.{door}", "check", begin="old", window=1000)
            found: list[int] = []
            while len(found) < numbers[door]:
                some = consumer.recv_many(1000)
                consumer.ack(*some)
                found += [int(bytes(one.data)) for one in some]
            assert found[: numbers[door]] == list(range(numbers[door]))
            consumer.leave()
    with PyBrokerClient(HERE, int(places["ports"]["pybroker"]), security=security) as client:
        wanted, heard = b"".join(b"%d " % one for one in range(numbers["pybroker"])), b""
        while len(heard) < len(wanted):
            heard += bytes(client.fetch("good.pybroker", len(heard)))
        assert heard[: len(wanted)] == wanted
