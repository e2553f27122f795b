"""The way of a kept TTP message through the broker, counted in Python calls.

    python -m tests.broker.message_path [--burst 64] [--messages 2000] [--unanswered] [--all]

prints the functions that the loop calls from the publisher's socket to the subscriber's, and to the ACK.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import transfer
from tests.broker.in_process_broker import running
from tests.broker.single_front import PATIENCE
from transfer.broker.protocols.ttp import HEADER_SIZE, WANTED, TtpKind, encode_head

_ROOT = str(Path(transfer.__file__).parents[1]) + "/"
_HUB = "transfer/broker/delivery/hub.py"
_PAYLOAD = bytes(256)
#: bursts before the count: the disk's and the connections' averages settle
_WARM_UP = 20


@dataclass(frozen=True)
class Call:
    """One call of a Python function: its file, its name, and the file of its caller."""

    file: str
    name: str
    caller: str


@dataclass(frozen=True)
class Way:
    """The calls of each round, in order; in a round so many messages came at once. What is counted is that of
    the median round: now and then the broker has something else to do. own: calls of the product's functions;
    the others are asyncio's."""

    rounds: list[list[Call]]
    burst: int

    def _each(self, count: Callable[[list[Call]], int]) -> float:
        return median(map(count, self.rounds)) / self.burst

    @property
    def own(self) -> Way:
        return Way([[call for call in calls if call.file[0] != "/"] for calls in self.rounds], self.burst)

    @property
    def calls_each(self) -> float:
        """Python calls for one message."""
        return self._each(len)

    @property
    def hub_entries_each(self) -> float:
        """How often another file calls a function of the hub for one message."""
        return self._each(lambda calls: sum(call.file == _HUB != call.caller for call in calls))

    @property
    def moves_each(self) -> float:
        """How often one call is in another file than the call before it."""
        return self._each(lambda calls: sum(one.file != other.file for one, other in pairwise(calls)))

    @property
    def files(self) -> float:
        """How many files the messages of a round pass."""
        return median(len({call.file for call in calls}) for calls in self.rounds)

    def __str__(self) -> str:
        own = self.own
        return (
            f"{own.calls_each:.1f} Python calls for a message ({self.calls_each:.1f} with asyncio's), "
            f"{own.hub_entries_each:.2f} of them enter the hub; "
            f"{own.files:g} files, {own.moves_each:.1f} moves between files"
        )

    def trace(self) -> str:
        """Returns the functions in the order of their first call, with their calls for one message."""
        counts = Counter((call.file, call.name) for calls in self.rounds for call in calls)
        messages = len(self.rounds) * self.burst
        return "\n".join(
            f"{count / messages:8.3f}  {file.rpartition('/lib/')[2]} {name}"
            for (file, name), count in counts.items()
            if count * 100 >= messages
        )


class _Profile:
    """Records the calls of one thread; `start` and `stop` run on it."""

    def __init__(self):
        self.calls = []

    def start(self):
        sys.setprofile(self._on_event)

    def stop(self):
        sys.setprofile(None)

    def take(self):
        """The calls since the last time, from another thread."""
        calls, self.calls = self.calls, []
        return calls

    def _on_event(self, frame, event, argument):
        if event == "call" and frame.f_code is not _Profile.stop.__code__:
            caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
            name = frame.f_code.co_filename.removeprefix(_ROOT)
            self.calls.append(Call(name, frame.f_code.co_qualname, caller.removeprefix(_ROOT)))


def _on_loop(broker, function):
    done = threading.Event()
    broker.call(lambda: (function(), done.set()))
    assert done.wait(PATIENCE)


def _read(connection, nbytes):
    while nbytes:
        some = connection.recv(nbytes)
        assert some, "the broker has closed the connection"
        nbytes -= len(some)


def count(folder, *, messages, burst=1, answered=True, **settings):
    """Publishes kept messages of 256 bytes, so many at once, and returns their way. answered: the publisher
    wants an ACK for each."""
    with running(folder, **settings) as broker:
        address = ("127.0.0.1", broker.ports["ttp"])
        with (
            socket.create_connection(address, PATIENCE) as publisher,
            socket.create_connection(address, PATIENCE) as subscriber,
        ):
            subscriber.sendall(encode_head(TtpKind.SUBSCRIBE, b"kept", flags=WANTED))
            _read(subscriber, HEADER_SIZE)
            flags = WANTED if answered else 0
            frame = encode_head(TtpKind.PUBLISH, b"kept", size=len(_PAYLOAD), flags=flags) + _PAYLOAD
            profile, rounds = _Profile(), []
            for number in range(-_WARM_UP, messages // burst):
                if number == 0:
                    _on_loop(broker, profile.start)
                publisher.sendall(frame * burst)
                _read(subscriber, len(frame) * burst)
                if answered:
                    _read(publisher, HEADER_SIZE * burst)
                rounds.append(profile.take())
            _on_loop(broker, profile.stop)
    return Way(rounds[_WARM_UP:], burst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--burst", type=int, default=1, help="messages that come at once")
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--unanswered", action="store_true", help="the publisher wants no ACK")
    parser.add_argument("--all", action="store_true", help="asyncio's functions, too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        way = count(
            Path(folder), messages=chosen.messages, burst=chosen.burst, answered=not chosen.unanswered
        )
    print(way)
    print((way if chosen.all else way.own).trace())


if __name__ == "__main__":
    main()
