"""A good client at each port of a broker, in one process: each makes round trips until it is stopped.

    python -m tests.fuzz.good_clients '{"ports": {...}, "endpoints": {...}}'

It says "ready" after the first round of each. For every line of input it tells in JSON, by port, how many
rounds there were since the last one, and the seconds of the slowest and of the 99th of 100; a port that
fails is named with its error, and goes round no more.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from transfer.broker.clients.abtp import AbtpProducer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.registry import look_up
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.spool.client.admin import SpoolAdmin

HERE = "127.0.0.1"
#: seconds between two rounds of a port
_REST = 0.05
#: seconds without an answer after which a client gives up
_PATIENCE = 20.0

#: one round: publishes this number and gets an answer
Round = Callable[[int], None]


@contextmanager
def _native(places: Any) -> Iterator[Round]:
    with BrokerClient(places["endpoints"]["requests"], timeout=_PATIENCE) as client:
        consumer = client.consume("good.native", "good", begin="new")

        def go(number: int) -> None:
            client.publish("good.native", b"%d" % number)
            message = consumer.recv(_PATIENCE)
            assert bytes(message.data) == b"%d" % number, (bytes(message.data), number)
            consumer.ack(message, wait=True)

        yield go


@contextmanager
def _ttp(places: Any) -> Iterator[Round]:
    with TtpClient(HERE, places["ports"]["ttp"], timeout=_PATIENCE) as client:
        yield lambda number: client.publish("good.ttp", b"%d" % number, wait=True)


@contextmanager
def _pybroker(places: Any) -> Iterator[Round]:
    with PyBrokerClient(HERE, places["ports"]["pybroker"], timeout=_PATIENCE) as client:
        at = 0

        def go(number: int) -> None:
            nonlocal at
            said = b"%d " % number
            client.publish("good.pybroker", said)
            found, deadline = b"", time.monotonic() + _PATIENCE
            while len(found) < len(said):
                assert time.monotonic() < deadline, "what was published is not fetched"
                found += bytes(client.fetch("good.pybroker", at + len(found)))
            assert found == said, (found, said)
            at += len(said)

        yield go


@contextmanager
def _rqueue(places: Any) -> Iterator[Round]:
    with RqueueClient(HERE, places["ports"]["rqueue"], timeout=_PATIENCE) as client:
        client.subscribe("good.rqueue")

        def go(number: int) -> None:
            client.publish("good.rqueue", b"%d" % number)
            found = client.recv(_PATIENCE)
            assert bytes(found.content) == b"%d" % number, (bytes(found.content), number)

        yield go


@contextmanager
def _abtp(places: Any) -> Iterator[Round]:
    with AbtpProducer(places["endpoints"]["abtp router"], timeout=_PATIENCE) as client:
        yield lambda number: client.publish("good.abtp", {"number": number}) and None


@contextmanager
def _http(places: Any) -> Iterator[Round]:
    authority = os.environ.get("TRANSFER_TLS_CA")
    secured = {"context": ssl.create_default_context(cafile=authority)} if authority else {}
    kind: Any = http.client.HTTPSConnection if authority else http.client.HTTPConnection

    def go(_: int) -> None:
        with closing(kind(HERE, places["ports"]["http"], timeout=_PATIENCE, **secured)) as connection:
            connection.request("GET", "/readyz")
            assert connection.getresponse().status == 200

    yield go


@contextmanager
def _registry(places: Any) -> Iterator[Round]:
    requests = places["endpoints"]["requests"].removeprefix("tcp://")
    yield lambda _: look_up(f"registry://{requests}/good") and None


@contextmanager
def _spool(places: Any) -> Iterator[Round]:
    with SpoolAdmin("run" + places["endpoints"]["spool"].removeprefix("tcp"), timeout=_PATIENCE) as admin:
        yield lambda _: admin.overview() and None


CLIENTS = {
    "native": _native, "ttp": _ttp, "pybroker": _pybroker, "rqueue": _rqueue, "abtp": _abtp, "http": _http,
    "registry": _registry, "spool": _spool,
}  # fmt: skip


class ClientLoop(threading.Thread):
    """Makes round trips at one port."""

    def __init__(self, name: str, places: Any, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.places, self.stop = places, stop
        self.numbers = 0
        self.error = ""
        self._times: list[float] = []

    def run(self) -> None:
        try:
            with CLIENTS[self.name](self.places) as go:
                while not self.stop.wait(_REST):
                    begun = time.perf_counter()
                    go(self.numbers)
                    self._times.append(time.perf_counter() - begun)
                    self.numbers += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the port did not serve
            self.error = f"{type(error).__name__}: {error}"

    def report(self) -> dict[str, Any]:
        times, self._times = sorted(self._times), []
        last = len(times) - 1
        return {
            "rounds": len(times),
            "numbers": self.numbers,
            "slowest": times[-1] if times else 0.0,
            "99 %": times[int(last * 0.99)] if times else 0.0,
            "error": self.error,
        }


def main() -> int:
    places, stop = json.loads(sys.argv[1]), threading.Event()
    loops = [ClientLoop(name, places, stop) for name in CLIENTS]
    with ExitStack() as ending:
        for loop in loops:
            loop.start()
            ending.callback(loop.join, _PATIENCE * 2)
        ending.callback(stop.set)
        deadline = time.monotonic() + _PATIENCE
        while not all(loop.numbers or loop.error for loop in loops) and time.monotonic() < deadline:
            time.sleep(0.01)
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps({loop.name: loop.report() for loop in loops}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
