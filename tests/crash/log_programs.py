"""Programs of the log, and what each step leaves."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.crash.program import Mark, Program
from transfer.log import Log, Retention, journal
from transfer.transports.errors import InternalError

Step = tuple[Any, ...]


def payload(number: int, size: int) -> bytes:
    """Bytes that follow from a number."""
    return random.Random(number).randbytes(size)


@dataclass
class Model:
    """What a log holds. topics: name to (offset, body, blob's number and size, or None, discarded)."""

    topics: dict[str, list[tuple[int, bytes, tuple[int, int] | None, bool]]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    groups: dict[tuple[str, str], int] = field(default_factory=dict)
    state: dict[bytes, bytes] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        kind, *rest = step
        if kind == "append":
            topic, body, blob = rest
            end = self.ends.get(topic, 0)
            self.topics.setdefault(topic, []).append((end, body, blob, False))
            self.ends[topic] = end + 1
        elif kind == "put":
            self.state[rest[0]] = rest[1]
        elif kind == "remove":
            self.state.pop(rest[0], None)
        elif kind == "acknowledge":
            self.groups[rest[0], rest[1]] = rest[2]
        elif kind == "leave":
            self.groups.pop((rest[0], rest[1]), None)
        elif kind == "discard":
            topic, begin, end = rest
            self.topics[topic] = [
                (offset, body, blob, gone or (blob is not None and begin <= offset < end))
                for offset, body, blob, gone in self.topics.get(topic, [])
            ]
        elif kind == "drop":
            self.topics.pop(rest[0], None)
            self.ends.pop(rest[0], None)
            self.groups = {key: value for key, value in self.groups.items() if key[0] != rest[0]}

    def needed_from(self, topic: str) -> int:
        """Messages before this offset may go, by retention."""
        return min((offset for (its, _), offset in self.groups.items() if its == topic), default=0)


@dataclass
class Seen:
    """What is read from a log, of one lane."""

    topics: dict[str, list[tuple[int, bytes, bytes | None, bool]]]
    groups: dict[tuple[str, str], int]
    state: dict[bytes, bytes]

    def difference(self, model: Model) -> str:
        """The first one, or nothing."""
        if self.groups != model.groups:
            return f"groups {self.groups}, not {model.groups}"
        if self.state != model.state:
            return f"state {self.state}, not {model.state}"
        for topic in {*self.topics, *model.topics}:
            mine, its = self.topics.get(topic, []), model.topics.get(topic, [])
            begin = mine[0][0] if mine else model.ends.get(topic, 0)
            if begin > model.needed_from(topic) and begin > (its[0][0] if its else 0):
                return f"topic {topic} begins at {begin}"
            wanted = [one for one in its if one[0] >= begin]
            if len(mine) != len(wanted):
                return f"topic {topic} has {len(mine)} messages, not {len(wanted)}"
            for (at, body, blob, gone), (offset, text, spec, discarded) in zip(mine, wanted, strict=True):
                early = gone and not discarded and spec is not None and at < model.needed_from(topic)
                if (at, body) != (offset, text) or (gone != discarded and not early):
                    return f"message {offset} of {topic} is {at}, {body[:20]!r}, discarded: {gone}"
                whole = payload(*spec) if spec is not None and not gone else None
                if blob != whole:
                    return f"the blob of message {offset} of {topic} is wrong"
        return ""


def look(log: Log, lane: str) -> Seen:
    """All that a lane has in the log."""
    topics = {}
    groups = {}
    for name in log.topics:
        if not name.startswith(lane):
            continue
        begin, end = log.range(name)
        found = []
        while begin < end:
            some = log.read(name, begin, nbytes=1 << 30)
            assert some, f"{name} from {begin} to {end} cannot be read"
            for one in some:
                blob = bytes(one.blob) if one.blob is not None else None
                found.append((one.offset, bytes(one.body), blob, one.discarded))
            begin = some[-1].offset + 1
        if found:
            topics[name] = found
        for group, offset in log.groups(name).items():
            groups[name, group] = offset
    state = {key: value for key, value in log.state.items() if key.startswith(lane.encode())}
    return Seen(topics, groups, state)


class Lane:
    """One thread's steps on a log: marked before they are done, and when they are committed."""

    def __init__(self, log: Log, mark: Mark, name: str) -> None:
        self.log = log
        self.name = name
        self._mark = mark
        self._done = self._last = 0

    def do(self, *step: Any) -> None:
        kind, *rest = step
        if kind not in ("put", "remove"):
            rest[0] = self.name + rest[0]
        self._mark(("try", self.name, (kind, *rest)))
        if kind == "append":
            topic, body, blob = rest
            self._last, _ = self.log.append(topic, body, blob=payload(*blob) if blob is not None else None)
        else:
            self._last = getattr(self.log, kind)(*rest)

    def append(self, topic: str, number: int, size: int = 0) -> None:
        """A message, with a blob if there is a size."""
        self.do("append", topic, b"%d " % number * (number % 9 + 1), (number, size) if size else None)

    def append_many(self, topic: str, numbers: range) -> None:
        bodies = [b"many %d" % number for number in numbers]
        for body in bodies:
            self._mark(("try", self.name, ("append", self.name + topic, body, None)))
        first, _ = self.log.append_many(self.name + topic, bodies)
        self._last = first + len(bodies) - 1

    def append_all(self, topics: list[str], number: int) -> None:
        messages = [(self.name + topic, b"all %d" % number) for topic in topics]
        for topic, body in messages:
            self._mark(("try", self.name, ("append", topic, body, None)))
        first, _ = self.log.append_all(messages)
        self._last = first + len(messages) - 1

    def append_pieces(self, topic: str, number: int, size: int, *, sync: bool = False) -> None:
        data = payload(number, size)
        with self.log.blob(self.name + topic, size) as writer:
            for at in range(0, size, 3000):
                writer.write(data[at : at + 3000])
                if sync:
                    writer.sync()
            self._mark(("try", self.name, ("append", self.name + topic, b"pieces", (number, size))))
            self._last, _ = writer.commit(b"pieces")

    def commit(self) -> None:
        self.log.commit(self._last)
        self._mark(("ack", self.name))

    def close(self) -> None:
        """Keeps what was appended, too."""
        self.log.close()
        self._mark(("ack", self.name))


class LogProgram(Program):
    """Steps on a log. options: of `Log`."""

    def __init__(self, name: str, steps: Callable[[LogProgram, Path, Mark], None], **options: Any) -> None:
        super().__init__(name)
        self._steps = steps
        self._options = {"segment_bytes": 1 << 14, **options}

    def open(self, folder: Path) -> Log:
        return Log(folder / "log", **self._options)

    def run(self, folder: Path, mark: Mark) -> None:
        self._steps(self, folder, mark)

    def check(self, folder: Path, marks: list[Any], mark: Mark) -> None:
        lanes = _lanes(marks)
        with self.open(folder) as log:
            for lane, (steps, acknowledged) in lanes.items():
                count = _matching(look(log, lane), steps, acknowledged)
                mark(("seen", lane, count))
                del steps[count:]
            mine = Lane(log, mark, "after/")
            steps, _ = lanes.setdefault("after/", ([], 0))
            for size in (0, 9000):
                mine.append("t", len(steps), size)
                body = b"%d " % len(steps) * (len(steps) % 9 + 1)
                steps.append(("append", "after/t", body, (len(steps), size) if size else None))
            mine.commit()
        with self.open(folder) as log:
            for lane, (steps, _) in lanes.items():
                _matching(look(log, lane), steps, len(steps))
            found = log.verify()
            assert found.whole, found


def _lanes(marks: list[Any]) -> dict[str, tuple[list[Step], int]]:
    """What each lane tried, and how much of it was acknowledged."""
    lanes: dict[str, tuple[list[Step], int]] = {}
    for kind, lane, *rest in marks:
        steps, acknowledged = lanes.setdefault(lane, ([], 0))
        if kind == "try":
            steps.append(rest[0])
        elif kind == "ack":
            acknowledged = len(steps)
        elif kind == "seen":
            acknowledged = rest[0]
            del steps[acknowledged:]
        lanes[lane] = steps, acknowledged
    return lanes


def _matching(seen: Seen, steps: list[Step], acknowledged: int) -> int:
    """Of how many steps, all acknowledged ones among them, the log holds what they leave."""
    model = Model()
    first, found = "", -1
    for count in range(len(steps) + 1):
        if count:
            model.take(steps[count - 1])
        if count >= acknowledged:
            difference = seen.difference(model)
            if not difference:
                found = count
            first = first or difference
    assert found >= 0, f"{first}, after {acknowledged} of {len(steps)} steps were acknowledged"
    return found


# -- the programs --------------------------------------------------------------------------------------------


def _appends(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Messages, state and groups, over several segments, closed and opened again."""
    for round_ in range(3):
        with program.open(folder) as log:
            lane = Lane(log, mark, "main/")
            for number in range(round_ * 100, round_ * 100 + 24):
                lane.append(f"t{number % 2}", number * 37)
                if number % 4 == 0:
                    lane.do("put", b"main/key", b"%d" % number)
                if number % 5 == 0:
                    lane.do("acknowledge", "t0", "g", 1)
                if number % 3 == 0:
                    lane.commit()
            lane.close()


def _blobs(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Large payloads of all kinds, in several segments."""
    for round_ in range(2):
        with program.open(folder) as log:
            lane = Lane(log, mark, "main/")
            for number in range(round_ * 100, round_ * 100 + 8):
                lane.append("t", number, 1000 + number % 8 * 4000)
                lane.append("t", number)
                if number % 2:
                    lane.append_pieces("p", number, 10_000, sync=number % 4 == 1)
                    lane.commit()
            with log.blob("t", 5000) as writer:
                writer.write(bytes(5000))  # abandoned
            lane.append("t", 7)
            lane.commit()


def _batches(program: LogProgram, folder: Path, mark: Mark) -> None:
    """append_many and append_all."""
    with program.open(folder) as log:
        lane = Lane(log, mark, "main/")
        for number in range(14):
            lane.append_many("t", range(number * 10, number * 10 + 7))
            lane.append_all(["t", "u", "v"], number)
            if number % 2:
                lane.commit()


def _discards(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Blobs that are given back, topics that are dropped and begun again."""
    with program.open(folder) as log:
        lane = Lane(log, mark, "main/")
        for number in range(10):
            lane.append("t", number, 9000)
            lane.append("gone", number, 5000)
            if number in (3, 6):
                lane.do("discard", "t", number - 3, number - 1)
            lane.commit()
            if number in (4, 8):
                lane.do("drop", "gone")
                lane.append("gone", 99)
                lane.commit()
        log.collect()
        lane.do("discard", "t", 7, 9)
        lane.append("t", 11, 3000)
        lane.commit()


def _retention(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Segments go that all groups have acknowledged; a group leaves."""
    with program.open(folder) as log:
        lane = Lane(log, mark, "main/")
        lane.do("acknowledge", "t", "slow", 0)
        lane.commit()
        for number in range(60):
            lane.append("t", number * 31, 6000 if number % 4 == 0 else 0)
            if number % 6 == 5:
                lane.do("acknowledge", "t", "fast", number - 2)
                lane.commit()
            if number % 20 == 19:
                lane.do("acknowledge", "t", "slow", number - 10)
                lane.commit()
                log.collect()
        lane.do("leave", "t", "slow")
        lane.commit()
        log.collect()
        lane.append("t", 5)
        lane.commit()


def _compaction(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Messages that a slow group holds are carried, with their blobs, and old segments go."""
    with program.open(folder) as log:
        lane = Lane(log, mark, "main/")
        lane.do("acknowledge", "slow", "g", 0)
        lane.do("acknowledge", "fast", "g", 0)
        lane.append("slow", 1)
        lane.append("slow", 2, 7000)
        lane.commit()
        for number in range(70):
            lane.append("fast", number * 9 + 8)
            if number % 10 == 9:
                lane.do("acknowledge", "fast", "g", number)
                lane.commit()
            if number % 25 == 24:
                log.collect()
                log.compact()
        lane.append("slow", 3, 2000)
        lane.commit()
        log.compact()
        lane.do("acknowledge", "slow", "g", 1)
        lane.commit()


def _threads(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Four threads share syncs."""
    with program.open(folder) as log:

        def work(name: str) -> None:
            lane = Lane(log, mark, name)
            for number in range(12):
                lane.append("t", number, 3000 if number % 5 == 2 else 0)
                lane.do("put", name.encode() + b"k", b"%d" % number)
                lane.commit()

        threads = [threading.Thread(target=work, args=(f"{name}/",)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)


def _abandoned(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Opened again without a clean close, several times, as after kill -9."""
    for round_ in range(4):
        log = program.open(folder)
        lane = Lane(log, mark, "main/")
        mark(("seen", "main/", log.range("main/t")[1]))  # what was read once does not go
        for number in range(round_ * 50, round_ * 50 + 6):
            lane.append("t", number, 5000 if number % 50 in (0, 5) and not round_ % 2 else 0)
            if number % 4 == 3:
                lane.commit()
        log._journal._flush(sync=False)  # the system has it, the disk has not
        _kill(log)


def _begun(program: LogProgram, folder: Path, mark: Mark) -> None:
    """Killed when a segment was begun, and its name was not synced."""

    def end(_: Path) -> None:
        raise OSError("killed")

    log = program.open(folder)
    lane = Lane(log, mark, "main/")
    lane.append("t", 0, 5000)
    lane.commit()
    with patch.object(journal, "sync_folder", end), suppress(InternalError):
        for number in range(200):
            lane.append("t", number * 9 + 8)
    _kill(log)
    log = program.open(folder)
    lane = Lane(log, mark, "main/")
    mark(("seen", "main/", log.range("main/t")[1]))
    for number in range(3):
        lane.append("t", number)
        lane.commit()
    lane.close()


def _kill(log: Log) -> None:
    """What the end of the process does: descriptors are closed."""
    its = log._journal
    its._closed = True
    for segment in its.segments:
        with suppress(OSError):
            segment.close()
    os.close(log._lock_fd)


ACKNOWLEDGED = Retention(acknowledged=True)

PROGRAMS: dict[str, Callable[[], Program]] = {
    "log_appends": lambda: LogProgram("log_appends", _appends),
    "log_blobs": lambda: LogProgram("log_blobs", _blobs),
    "log_batches": lambda: LogProgram("log_batches", _batches, segment_bytes=4096),
    "log_discards": lambda: LogProgram("log_discards", _discards),
    "log_retention": lambda: LogProgram(
        "log_retention", _retention, retention=ACKNOWLEDGED, segment_bytes=4096
    ),
    "log_compaction": lambda: LogProgram(
        "log_compaction", _compaction, retention=ACKNOWLEDGED, segment_bytes=4096
    ),
    "log_threads": lambda: LogProgram("log_threads", _threads),
    "log_interval": lambda: LogProgram("log_interval", _threads, fsync="interval", interval=0.002),
    "log_killed": lambda: LogProgram("log_killed", _abandoned),
    "log_begun": lambda: LogProgram("log_begun", _begun, segment_bytes=4096),
}
