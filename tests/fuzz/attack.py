"""Hostile clients at the ports of one running broker, while good clients use each of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.broker.secure_peers import Identities
from tests.fuzz import dialers
from tests.fuzz.broker_conversations import talk
from tests.fuzz.fuzzed_broker import HERE, FuzzedBroker, Held, Process, good_clients, serving
from tests.fuzz.hostile_clients import HostileClients, SlowClients
from transfer import cli
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.transports.config import security as read_security
from transfer.transports.core.wire import SocketType
from transfer.transports.shm import unix_listener

#: bytes that a broker may keep when hostile clients have gone: its pool keeps 256 MiB of buffers for reuse,
#: and what the allocator keeps in between is as much again
MOST_MEMORY = 512 << 20
#: threads that its pools begin when they are first asked for something
MOST_THREADS = 16
#: at a time, while others connect one after the other
SLOW_CLIENTS = 40
#: sockets of those who greeted the Unix socket and were not asked for: the next one ends them after 30 s
MOST_GREETED = 3 * unix_listener._MOST_WAITING
_KINDS = {"rows": SocketType.PUSH, "pushes": SocketType.PUSH}


class Attack:
    """Sends talks to the ports of one broker, and checks after each few that it serves."""

    def __init__(self, broker: FuzzedBroker, good: Process, identities: Identities | None) -> None:
        self.broker, self.good, self.identities = broker, good, identities
        self.before = broker.held()
        self.slowest: dict[str, list[tuple[float, float]]] = {}
        self.came = self.put_out = 0
        self.greeted = False
        self.gone: set[str] = set()

    def dial(self, target: str) -> dialers.Dial:
        """How the hostile clients of a target connect."""
        place, how = self.broker.place(target), target.split()[-1]
        kind = _KINDS.get(target.split()[0], SocketType.DEALER)
        self.greeted |= how in ("greeting", "local", "upgrade")
        if how == "greeting":
            return dialers.greeting(lambda: dialers.unix_listener_name(self.broker.process.pid))
        if how in ("local", "upgrade"):
            return dialers.local(place, kind, mutated=how == "upgrade")
        if self.identities is not None and how == "tls":
            return dialers.encrypted(place, self.identities)
        if self.identities is not None and how in ("proved", "proof"):
            return dialers.proved(place, self.identities, kind, mutated=how == "proof")
        return dialers.plain(place)

    def at(self, target: str, seeds: Iterable[int], until: float = float("inf")) -> None:
        """One after the other."""
        clients = HostileClients(self.dial(target))
        said: list[tuple[int, list[bytes]]] = []
        try:
            for seed in seeds:
                if time.monotonic() > until:
                    break
                words = talk(target, seed)
                clients.connect(words, seed)
                said = [*said[-20:], (seed, words)]
                if (error := self.broker.errors()) or self.broker.process.process.poll() is not None:
                    self._fail(target, said, error or "it has ended")
        finally:
            clients.close()
        self.came = clients.came
        self.look(target)

    def for_a_while(self, target: str, seconds: float) -> None:
        """Fresh ones, and slow ones meanwhile."""
        self.slowest.clear()
        first = int(time.time() * 1000)
        with SlowClients(self.dial(target), lambda seed: talk(target, first + seed), SLOW_CLIENTS) as slow:
            self.at(target, range(first, first + (1 << 40)), time.monotonic() + seconds)
        self.put_out = slow.ended
        assert not (error := self.broker.errors()), error

    def kept(self, target: str, words: list[bytes]) -> None:
        """One that has broken something once."""
        clients = HostileClients(self.dial(target))
        for seed in range(5):
            clients.connect(words, seed)
        clients.close()
        self.look(target)
        assert not (error := self.broker.errors()), error

    def _fail(self, target: str, said: list[tuple[int, list[bytes]]], error: str) -> None:
        path = self.broker.folder.parent / f"{target.replace(' ', '_')}-{said[-1][0]}.json"
        path.write_text(json.dumps([word.hex() for word in said[-1][1]]))
        pytest.fail(f"{target}: seeds up to {said[-1][0]}; the last is kept in {path}\n{error}")

    def look(self, what: str) -> None:
        """Every good client has gone round meanwhile, and none has waited in vain."""
        deadline = time.monotonic() + 30
        rounds = dict.fromkeys(self.slowest, 0)
        while not rounds or not all(rounds.values()):
            assert time.monotonic() < deadline, rounds
            for name, report in self.good.asked().items():
                if name in self.gone:
                    continue  # it failed at an earlier target, and has stopped
                if report["error"]:
                    self.gone.add(name)
                    self.slowest.pop(name, None)
                    pytest.fail(f"{name} during {what}: {report['error']}")
                rounds[name] = rounds.get(name, 0) + report["rounds"]
                if report["rounds"]:
                    self.slowest.setdefault(name, []).append((report["99 %"], report["slowest"]))
            time.sleep(0.02)

    def ended(self) -> Held:
        """The hostile clients have gone: so has what they held."""
        more_sockets = MOST_GREETED if self.greeted else 0
        try:
            held = self.broker.settled(self.before, MOST_THREADS, more_sockets)
            assert held.memory - self.before.memory < MOST_MEMORY, (self.before, held)
        except AssertionError:
            self.before = self.broker.held()  # the next target is judged by itself
            raise
        return held


@contextmanager
def under_attack(folder: Path, identities: Identities | None = None) -> Iterator[Attack]:
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
        for target in ("native", "ttp"):
            consumer = client.consume(f"good.{target}", "check", begin="old", window=1000)
            found: list[int] = []
            while len(found) < numbers[target]:
                some = consumer.recv_many(1000)
                consumer.ack(*some)
                found += [int(bytes(one.data)) for one in some]
            assert found[: numbers[target]] == list(range(numbers[target]))
            consumer.leave()
    with PyBrokerClient(HERE, int(places["ports"]["pybroker"]), security=security) as client:
        wanted, heard = b"".join(b"%d " % one for one in range(numbers["pybroker"])), b""
        while len(heard) < len(wanted):
            heard += bytes(client.fetch("good.pybroker", len(heard)))
        assert heard[: len(wanted)] == wanted
