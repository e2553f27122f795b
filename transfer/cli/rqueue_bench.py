"""`transfer bench broker sink` and `pusher`: two programs that measure an rqueue server together."""

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
#: seconds without a message after which the sink ends
IDLE_TIMEOUT = 5.0


@dataclass(slots=True)
class Flow:
    """Sent or received messages. bytes: of payload. seconds: from the first message to the last.

    missing: message numbers below the highest one that did not arrive.
    """

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
        text = f"{self.messages:,} messages in {self.seconds:.3f} s: {rate:,.0f} a second"
        print(f"{text}, {megabytes:.1f} MB/s{gap}")


def sink(address: str, topic: str, count: int, timeout: float, *, as_json: bool, quiet: bool) -> int:
    """Receives `count` messages, or until none arrives for `IDLE_TIMEOUT`. Returns 1 if some are missing.

    Raises Again if the first one does not arrive within `timeout` seconds.
    """
    flow, begun, last, highest = Flow(), 0.0, 0.0, -1
    with _connected(address) as client:
        client.subscribe(topic)
        if not quiet:
            print(f"waiting for messages of {topic!r}; start the pusher now", file=sys.stderr, flush=True)
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
    """Publishes `count` messages of `size` bytes. Raises OptionError.

    The protocol has no acknowledgements: only the sink knows which messages arrived.
    """
    if size < NUMBER.size:
        raise OptionError(f"--size {size}: a message begins with a number of {NUMBER.size} bytes")
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
