"""Programs of abtp's direct delivery: what is accepted, given to a worker, acknowledged, refused for good."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.broker.http_requests import until
from tests.broker.in_process_broker import running
from tests.crash.broker_programs import body, small_segments
from tests.crash.program import Mark, Program, steps_of
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.server import Broker
from transfer.broker.storage.folder_check import check
from transfer.transports.errors import Again

_OPTIONS = {
    "abtp": AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
    "native": None,
    "ttp": None,
    "pybroker": None,
    "rqueue": None,
    "first_delay": 0.01,
    "max_attempts": 100,
}


@dataclass
class Model:
    """Messages that the worker has not acknowledged, and dead letters."""

    waiting: set[bytes] = field(default_factory=set)
    letters: set[bytes] = field(default_factory=set)

    def take(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        if kind == "publish":
            self.waiting.add(body(*rest))
            return
        self.waiting.discard(body(*rest))
        if kind == "die":
            self.letters.add(body(*rest))


class Driver:
    """A producer and a worker, which takes messages one after the other."""

    def __init__(self, broker: Broker, mark: Mark) -> None:
        self._broker = broker
        self._mark = mark
        router = broker.endpoints["abtp router"]
        self.producer = AbtpProducer(router)
        self.worker = AbtpConsumer("worker", ["orders.*"], router)

    def close(self) -> None:
        self.worker.close()
        self.producer.close()

    @contextmanager
    def _step(self, *step: Any) -> Iterator[None]:
        self._mark(("try", step))
        yield
        self._mark(("ack",))

    def publish(self, number: int, size: int = 10) -> None:
        with self._step("publish", number, size):
            self.producer.publish("orders.new", body(number, size))

    def settle(self, numbers: range) -> None:
        """Each third message becomes a dead letter."""
        for _ in numbers:
            message = self.worker.recv(20)
            text = bytes(message.payload)
            number, size = int(text.split()[0]), len(text) - len(b"%d " % int(text.split()[0]))
            if number % 3:
                with self._step("ack", number, size):
                    self.worker.ack(message, confirm=True)
                continue
            before = self._broker.letters.count()
            with self._step("die", number, size):
                self.worker.nack(message, "cannot", terminal=True, confirm=True)
                until(self._broker.letters.count, before + 1)


class DirectProgram(Program):
    """steps: with a function that runs a broker on the folder, and gives its driver."""

    def __init__(self, name: str, steps: Callable[[Callable[[], Any]], None]) -> None:
        super().__init__(name)
        self._steps = steps

    def run(self, folder: Path, mark: Mark) -> None:
        with small_segments():
            self._steps(lambda: _driving(folder / "data", mark))

    def check(self, folder: Path, marks: list[Any], mark: Mark) -> None:
        steps, acknowledged = steps_of(marks)
        with small_segments():
            seen = _read(folder / "data")
            mark(("seen", _matching(seen, steps, acknowledged)))
            report = check(folder / "data")
            assert report.whole, [part.problems for part in report.parts]


@contextmanager
def _driving(folder: Path, mark: Mark) -> Iterator[Driver]:
    with running(folder, **_OPTIONS) as broker:
        driver = Driver(broker, mark)
        try:
            yield driver
        finally:
            driver.close()


def _read(folder: Path) -> Model:
    """What a worker that comes now is given, with a message that is published behind all of it; it
    acknowledges none of it but that one."""
    seen = Model()
    with _driving(folder, lambda _: None) as driver:
        end = b"the end %d" % time.monotonic_ns()  # those of a check that a crash came into may be there too
        driver.producer.publish("orders.end", end)
        found: list[bytes] = []
        with suppress(Again):
            while True:
                message = driver.worker.recv(0.15 if end in found else 20)
                found.append(bytes(message.payload))
                if found[-1].startswith(b"the end"):
                    driver.worker.ack(message, confirm=True)
        assert len(set(found)) == len(found), f"{found} came twice"
        seen.waiting = {one for one in found if not one.startswith(b"the end")}
        for letter in driver._broker.letters.all():
            assert not driver._broker.letters.problem(letter)
            seen.letters.add(bytes(driver._broker.letters.begin(letter, 1 << 20)))
    return seen


def _matching(seen: Model, steps: list[tuple[Any, ...]], acknowledged: int) -> int:
    model, found = Model(), -1
    for count in range(len(steps) + 1):
        if count:
            model.take(steps[count - 1])
        if count >= acknowledged and seen == model:
            found = count
    assert found >= 0, (
        f"{sorted(one[:4] for one in seen.waiting)} wait and {sorted(one[:4] for one in seen.letters)} are "
        f"letters after {acknowledged} of {len(steps)} steps, the last of them {steps[-3:]}"
    )
    return found


# -- the program ---------------------------------------------------------------------------------------------


def _direct(drivers: Callable[[], Any]) -> None:
    """Messages of several sizes for a worker, over two brokers: some wait for the second one."""
    with drivers() as driver:
        for number in range(8):
            driver.publish(number, 10 if number % 4 else 70_000)
        driver.settle(range(5))
    with drivers() as driver:
        for number in range(8, 11):
            driver.publish(number)
        driver.settle(range(6))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "broker_direct": lambda: DirectProgram("broker_direct", _direct)
}
