"""Programs of the broker: its own front, groups, dead letters small and large, purges with their audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.broker.http_requests import ask, until
from tests.broker.in_process_broker import FREE, running
from tests.crash.log_programs import payload
from tests.crash.program import Mark, Program, steps_of
from tests.spool import task_sender
from transfer.broker import server
from transfer.broker.clients.native import BrokerClient, Consumer
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.server import Broker
from transfer.broker.storage.audit import Audit
from transfer.broker.storage.database import Database
from transfer.broker.storage.dead_letter_operations import Operator
from transfer.broker.storage.dead_letter_table import DeadLetters
from transfer.broker.storage.folder_check import check
from transfer.log import Log
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Again

#: beyond what a letter keeps in the database
_LARGE = 70_000
_OWN = {
    "native": NativeSettings(FREE, "", ""),
    "ttp": None,
    "pybroker": None,
    "rqueue": None,
    "first_delay": 0.01,
}
_END = b"the end"


@dataclass
class Model:
    """What was published to each topic, what of it is done with, dead letters, how many were purged, and the
    rows of each run."""

    published: dict[str, list[bytes]] = field(default_factory=dict)
    done: set[bytes] = field(default_factory=set)
    letters: set[bytes] = field(default_factory=set)
    purged: int = 0
    rows: dict[str, list[int]] = field(default_factory=dict)

    def take(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        if kind == "publish":
            self.published.setdefault(rest[0], []).append(body(*rest[1:]))
        elif kind == "ack":
            self.done.add(body(*rest))
        elif kind == "dead":
            self.done.add(body(*rest))
            self.letters.add(body(*rest))
        elif kind == "republish":
            self.published[rest[0]].append(body(*rest[1:]))
            self.done.discard(body(*rest[1:]))
        elif kind == "commit":
            self.rows[rest[0]] = rest[1]
        else:
            self.letters.discard(body(*rest))
            self.purged += kind == "purge"


def body(number: int, size: int) -> bytes:
    return b"%d " % number + payload(number, size)


@contextmanager
def small_segments() -> Iterator[None]:
    """Logs that are written fast."""
    real = server.Log
    server.Log = partial(Log, segment_bytes=1 << 16)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        server.Log = real  # type: ignore[misc]


class Driver:
    """One program that publishes to a topic and takes from it for the group "g"."""

    def __init__(self, broker: Broker, client: BrokerClient, mark: Mark, topic: str) -> None:
        self._broker = broker
        self._client = client
        self._mark = mark
        self._topic = topic
        self._consumer: Consumer | None = None

    @contextmanager
    def _step(self, *step: Any) -> Iterator[None]:
        self._mark(("try", step))
        yield
        self._mark(("ack",))

    def publish(self, number: int, size: int = 10) -> None:
        with self._step("publish", self._topic, number, size):
            self._client.publish(self._topic, body(number, size))

    def recv(self) -> Any:
        if self._consumer is None:
            self._consumer = self._client.consume(self._topic, "g", begin="old")
        return self._consumer.recv(20)

    def ack(self, number: int, size: int = 10) -> None:
        message = self.recv()
        assert bytes(message.data) == body(number, size)
        with self._step("ack", number, size):
            assert self._consumer is not None
            self._consumer.ack(message, wait=True)

    def die(self, number: int, size: int = 10) -> None:
        message = self.recv()
        assert bytes(message.data) == body(number, size)
        before = self._broker.letters.count()
        with self._step("dead", number, size):
            assert self._consumer is not None
            self._consumer.nack(message, "cannot", retry=False)
            until(self._broker.letters.count, before + 1)

    def purge(self, offset: int, number: int, size: int = 10) -> None:
        said = {"actor": "me", "reason": "why", "ids": [f"{self._topic}/g/{offset}"], "confirm": "PURGE"}
        with self._step("purge", number, size):
            status, text = ask(self._broker.ports["http"], "/api/admin/dlq/purge", method="POST", body=said)
            assert status == 200 and json.loads(text)["purged"] == 1, text

    def replay(self, offset: int, number: int, size: int = 10) -> None:
        """It is published again, and then its letter goes: a crash may come in between."""
        said = {"actor": "me", "reason": "why", "ids": [f"{self._topic}/g/{offset}"], "confirm": "REPLAY"}
        said |= {"target_consumer": "g", "target_topic": self._topic}
        self._mark(("try", ("republish", self._topic, number, size)))
        with self._step("replayed", number, size):
            status, text = ask(self._broker.ports["http"], "/api/admin/dlq/replay", method="POST", body=said)
            assert status == 200 and json.loads(text)["replayed"] == 1, text

    def rows(self, run: str, first: int) -> None:
        """A job of two tasks, on the log that has the messages."""
        endpoint = self._broker.endpoints["spool"]
        tasks = [
            task_sender.push(
                endpoint, run, "job", number, number, first + number * 5, [3, 2], task_sender.WIDE
            )
            for number in range(2)
        ]
        with self._step("commit", run, [*range(first, first + 10)]):
            task_sender.commit(endpoint, run, "job", tasks)


class BrokerProgram(Program):
    """steps: with a function that runs a broker on the folder. options: of the broker."""

    def __init__(self, name: str, steps: Callable[[Callable[[], Any], Mark], None], **options: Any) -> None:
        super().__init__(name)
        self._steps = steps
        self._options = {**_OWN, **options}

    def run(self, folder: Path, mark: Mark) -> None:
        with small_segments():
            self._steps(lambda: running(folder / "data", **self._options, http=0), mark)

    def check(self, folder: Path, marks: list[Any], mark: Mark) -> None:
        steps, acknowledged = steps_of(marks)
        with small_segments():
            replayed = any(step[0] == "republish" for step in steps)
            seen = self._read(folder / "data", replayed=replayed)
            count = _matching(seen, steps, acknowledged)
            report = check(folder / "data")
            assert report.whole, [part.problems for part in report.parts]
            mark(("seen", count))

    def _read(self, folder: Path, *, replayed: bool) -> Model:
        """What a broker gives: as a model whose `done` is what it does not deliver. replayed: letters were,
        and may come behind what is published now."""
        seen = Model()
        with running(folder, **self._options) as broker, BrokerClient(broker.endpoints["requests"]) as client:
            for name, topic in list(broker.hub.store.topics.items()):
                messages = broker.hub.store.read(topic, 0)
                found = [bytes(message.payload) for message in messages]
                del messages
                if not found:
                    continue
                seen.published[name] = [one for one in found if one != _END]
                client.publish(name, _END)
                consumer = client.consume(name, "g", begin="old")
                came = []
                while not came or came[-1] != _END:
                    message = consumer.recv(20)
                    came.append(bytes(message.data))
                    if came[-1] == _END:
                        consumer.ack(message, wait=True)
                came += _behind(consumer) if replayed else []
                # A check that a crash came into has published an end too.
                came = [one for one in came if one != _END]
                assert len(set(came)) == len(came), f"{came} came twice"
                seen.done |= set(seen.published[name]) - set(came)
            for letter in broker.letters.all():
                assert not broker.letters.problem(letter), broker.letters.problem(letter)
                whole = broker.letters.begin(letter, 1 << 20)
                seen.letters.add(bytes(whole))
            if broker.spool is not None:
                seen.rows = _rows(broker.spool.store)
        seen.purged = _purged(folder)
        return seen


def _behind(consumer: Consumer) -> list[bytes]:
    found = []
    with suppress(Again):
        while True:
            found.append(bytes(consumer.recv(0.15).data))
    return found


def _rows(store: SpoolStore) -> dict[str, list[int]]:
    """Ids of the rows of all runs."""
    found = {}
    for name, entry in store.entries.items():
        frames = [store.frame(entry, number) for number in range(len(entry.run.visible.ends))]
        if frames:
            found[name] = [one for frame in frames for one in task_sender.agrees(frame, task_sender.WIDE)]
    return found


def _purged(folder: Path) -> int:
    """How many purges the audit has, when those are in it that a crash came into."""
    database = Database(folder / "state.db")
    try:
        with Audit(folder / "audit", 0) as audit:
            Operator(DeadLetters(database), audit, lambda *_: None, clock=lambda: 0)
            return sum("purge" in event.action.operation for event in audit.events())
    finally:
        database.close()


def _matching(seen: Model, steps: list[tuple[Any, ...]], acknowledged: int) -> int:
    model, first, found = Model(), "", -1
    for count in range(len(steps) + 1):
        if count:
            model.take(steps[count - 1])
        if count >= acknowledged:
            names = ("published", "done", "letters", "purged", "rows")
            difference = [name for name in names if getattr(seen, name) != getattr(model, name)]
            found = found if difference else count
            first = first or ", ".join(
                f"{name}: {_short(getattr(seen, name))}, not {_short(getattr(model, name))}"
                for name in difference
            )
    assert found >= 0, f"{first}, after {acknowledged} of {len(steps)} steps were acknowledged"
    return found


def _short(what: Any) -> Any:
    if isinstance(what, dict):
        return {key: _short(value) for key, value in what.items()}
    return what if isinstance(what, int) else [one if isinstance(one, int) else one[:6] for one in what]


# -- the programs --------------------------------------------------------------------------------------------


def _groups(brokers: Callable[[], Any], mark: Mark) -> None:
    """Messages of several sizes, acknowledged in order, over several segments and two brokers."""
    for begin in (0, 100):
        with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
            driver = Driver(broker, client, mark, "orders")
            for number in range(begin, begin + 8):
                driver.publish(number, 10 if number % 3 else 30_000)
            for number in range(begin, begin + 8):
                driver.ack(number, 10 if number % 3 else 30_000)


def _letters(brokers: Callable[[], Any], mark: Mark) -> None:
    """Dead letters, in the database and in files of their own, that are purged."""
    with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
        driver = Driver(broker, client, mark, "orders")
        for number in range(6):
            driver.publish(number, _LARGE if number % 2 else 10)
        driver.die(0)
        driver.die(1, _LARGE)
        driver.ack(2)
        driver.purge(1, 1, _LARGE)
        driver.die(3, _LARGE)
        driver.purge(0, 0)
        driver.publish(7)
    with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
        driver = Driver(broker, client, mark, "orders")
        driver.die(4)
        driver.ack(5, _LARGE)
        driver.purge(3, 3, _LARGE)


def _topics(brokers: Callable[[], Any], mark: Mark) -> None:
    """Several topics, each with a group, in one broker."""
    with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
        drivers = [Driver(broker, client, mark, f"topic{number}") for number in range(3)]
        for number in range(9):
            drivers[number % 3].publish(number, 2000)
        for number in range(6):
            (drivers[number % 3].die if number % 2 else drivers[number % 3].ack)(number, 2000)


def _replays(brokers: Callable[[], Any], mark: Mark) -> None:
    """Dead letters, small and large, go back to their group; some of them are acknowledged then."""
    with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
        driver = Driver(broker, client, mark, "orders")
        for number in range(5):
            driver.publish(number, _LARGE if number % 2 else 10)
        for number in range(3):
            driver.die(number, _LARGE if number % 2 else 10)
        driver.replay(1, 1, _LARGE)
        driver.ack(3, _LARGE)
        driver.ack(4)
        driver.ack(1, _LARGE)
        driver.replay(0, 0)
    with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
        driver = Driver(broker, client, mark, "orders")
        driver.publish(7)
        driver.replay(2, 2)


def _rows_and_messages(brokers: Callable[[], Any], mark: Mark) -> None:
    """A spool in the broker: rows and messages in turn, in one log."""
    for begin in (0, 100):
        with brokers() as broker, BrokerClient(broker.endpoints["requests"]) as client:
            driver = Driver(broker, client, mark, "orders")
            for number in range(begin, begin + 3):
                driver.publish(number, 10 if number % 3 else 30_000)
                driver.rows(f"run{number}", number * 10)
            for number in range(begin, begin + 3):
                driver.ack(number, 10 if number % 3 else 30_000)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "broker_groups": lambda: BrokerProgram("broker_groups", _groups),
    "broker_letters": lambda: BrokerProgram("broker_letters", _letters),
    "broker_topics": lambda: BrokerProgram("broker_topics", _topics),
    "broker_replays": lambda: BrokerProgram("broker_replays", _replays),
    "broker_spool": lambda: BrokerProgram("broker_spool", _rows_and_messages, spool=FREE),
}
