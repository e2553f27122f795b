"""`transfer bench broker sink` and `pusher`: rqueue's two programs that measure a server together."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.protocols.rqueue import PORT
from transfer.cli.tables import print_json
from transfer.transports.errors import AddressError, Again, OptionError

#: each payload begins with the number of its message
NUMBER = struct.Struct("<Q")
#: seconds without a message after which the sink takes the pusher for finished
IDLE_TIMEOUT = 5.0


@dataclass(slots=True)
class Flow:
    """What was sent, or received: messages, bytes of payload, seconds from the first to the last. missing:
    numbers below the highest that did not come."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    missing: int = 0

    def report(self, *, as_json: bool) -> None:
        rate = self.messages / self.seconds if self.seconds else 0.0
        if as_json:
            print_json({**asdict(self), "messages_per_second": rate})
            return
        gap = f", {self.missing:,} missing" if self.missing else ""
        megabytes = self.bytes / max(self.seconds, 1e-9) / 1e6
        said = f"{self.messages:,} messages in {self.seconds:.3f} s: {rate:,.0f} a second"
        print(f"{said}, {megabytes:.1f} MB/s{gap}")


def sink(address: str, topic: str, count: int, timeout: float, *, as_json: bool, quiet: bool) -> int:
    """Receives until `count` messages came, or none for `IDLE_TIMEOUT`. 1: some are missing. Raises Again if
    the first does not come within `timeout` seconds."""
    flow, begun, last, highest = Flow(), 0.0, 0.0, -1
    with _connected(address) as client:
        client.subscribe(topic)
        if not quiet:
            print(f"waiting for messages of {topic!r}; now the pusher", file=sys.stderr, flush=True)
        try:
            while flow.messages < count:
                try:
                    content = client.recv(IDLE_TIMEOUT if flow.messages else timeout).content
                except Again:
                    if not flow.messages:
                        raise
                    break
                last = time.perf_counter()
                begun = begun or last
                flow.messages += 1
                flow.bytes += len(content)
                if len(content) >= NUMBER.size:
                    highest = max(highest, NUMBER.unpack_from(content)[0])
        finally:
            flow.seconds, flow.missing = last - begun, max(0, highest + 1 - flow.messages)
            if flow.messages:
                flow.report(as_json=as_json)
    return 1 if flow.missing else 0


def pusher(address: str, topic: str, count: int, size: int, *, as_json: bool) -> int:
    """Publishes `count` messages of `size` bytes. The protocol acknowledges nothing: what arrived, the sink
    tells. Raises OptionError."""
    if size < NUMBER.size:
        raise OptionError(f"--size {size}: a message has a number of {NUMBER.size} bytes in front")
    flow, rest = Flow(), bytes(size - NUMBER.size)
    with _connected(address) as client:
        begun = time.perf_counter()
        try:
            for number in range(count):
                client.publish(topic, NUMBER.pack(number) + rest)
                flow.messages += 1
        finally:
            flow.seconds, flow.bytes = time.perf_counter() - begun, flow.messages * size
            flow.report(as_json=as_json)
    return 0


@contextmanager
def _connected(address: str) -> Iterator[RqueueClient]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise AddressError(f"{address!r} is no HOST:PORT", hint=f"for instance 127.0.0.1:{PORT}")
    with RqueueClient(host.strip("[]"), int(port)) as client:
        yield client
