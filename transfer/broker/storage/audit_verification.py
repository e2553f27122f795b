"""Verifies an audit's folder: reads all files and reports damage. Changes nothing.

The chain is in `audit.log`. `audit.head` has a line for every event: the file's number, the sequence, the
file's length after the event, the hash, and a checksum. With it a truncated file is detected. In folders of
earlier versions the chain goes on in `audit.2.log`, `audit.3.log` …, each begun after damage.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transfer.broker.storage.audit_chain import DAMAGED, GENESIS, SEGMENT, AuditEvent, Chain, Json, decode
from transfer.transports.errors import LogDamaged

HEAD = "audit.head"
#: most digits of a file's number; a file with more is not part of the chain
_MAX_DIGITS = 4
#: most problems that are reported
_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The last acknowledged event: its file, sequence, hash, and the file's length after it."""

    segment: int
    sequence: int = 0
    nbytes: int = 0
    hash: str = GENESIS

    def encode(self) -> bytes:
        """Returns the line for `audit.head`."""
        text = f"{self.segment} {self.sequence} {self.nbytes} {self.hash}".encode()
        return b"%b %08x\n" % (text, zlib.crc32(text))

    @classmethod
    def decode(cls, line: bytes) -> AuditHead | None:
        """Returns the head of a line; None if the line is damaged."""
        text, _, check = line.rstrip(b"\n").rpartition(b" ")
        if check != b"%08x" % zlib.crc32(text):
            return None
        segment, sequence, nbytes, hash = text.split(b" ")
        return cls(int(segment), int(sequence), int(nbytes), hash.decode())


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """Damage in a file. line: the first wrong line, from 1; 0: the whole file."""

    file: str
    line: int
    text: str

    def as_json(self) -> dict[str, Json]:
        """Returns the problem for `--json`, the HTTP API, and the event that names it."""
        return {"file": self.file, "line": self.line, "problem": self.text}

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of verifying an audit's folder.

    head: the event that the next one follows, and its file's length. Its hash covers all events before it; a
    copy kept elsewhere can be compared later. latest: the latest time of an event. torn: bytes after the
    head, of an event that was never acknowledged. unended: the last line has no end, and is damaged.
    unnamed: problems that no event of the chain names.
    """

    problems: tuple[AuditProblem, ...]
    events: int
    head: AuditHead
    latest: str = ""
    torn: int = 0
    unended: bool = False
    unnamed: tuple[AuditProblem, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether there is no damage."""
        return not self.problems

    def as_json(self) -> dict[str, Json]:
        """Returns the verdict for `--json` and the HTTP API."""
        head = self.head
        return {
            "whole": self.whole,
            "events": self.events,
            "problems": [problem.as_json() for problem in self.problems],
            "head": {"file": name_of(head.segment), "sequence": head.sequence, "hash": head.hash},
            "torn": self.torn,
        }


def name_of(segment: int) -> str:
    """Returns the name of a file of the chain."""
    return "audit.log" if segment == 1 else f"audit.{segment}.log"


def segments_in(folder: Path) -> list[int]:
    """Returns the numbers of the chain's existing files, in order."""
    numbers = {1}
    for path in folder.glob("audit.*.log"):
        middle = path.name.removeprefix("audit.").removesuffix(".log")
        if middle.isdecimal() and len(middle) <= _MAX_DIGITS:
            numbers.add(int(middle))
    return sorted(number for number in numbers if number and (folder / name_of(number)).exists())


def examine(folder: Path, *, begun: bool = False) -> AuditVerdict:
    """Reads all of an audit. A broker may append meanwhile: events not yet acknowledged are no damage.
    begun: the folder had an audit before, so an empty folder is damage."""
    known, bad = _read_head(folder)
    head = known or AuditHead(1)
    numbers = segments_in(folder)
    last = max([*numbers, head.segment])
    chain, end = Chain(), AuditHead(1)
    problems = [AuditProblem(HEAD, bad, "it is damaged")] if bad else []
    named: set[tuple[object, object]] = set()
    events, latest, torn, unended = 0, "", 0, False
    rows, lengths = dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 0)
    for number, line, is_end in _lines(folder, numbers):
        acknowledged = (number, lengths[number]) < (head.segment, head.nbytes)
        if is_end and number == last and not acknowledged and _is_torn(line):
            torn = len(line)
            break
        rows[number] += 1
        lengths[number] += len(line)
        event, text = chain.follow(line)
        unended = not line.endswith(b"\n")
        if unended:
            text = "the file was cut off here"
        elif event is not None and event.sequence == head.sequence and event.hash != head.hash:
            text = text or f"it is not the event in {HEAD}: it was changed, or an earlier one was removed"
        if event is not None:
            events += 1
            latest = max(latest, event.time)
            end = AuditHead(number, event.sequence, 0, event.hash)
            named |= _named(event)
        if text and len(problems) < _MAX_PROBLEMS:
            problems.append(AuditProblem(name_of(number), rows[number], text))
    if chain.sequence is not None and chain.sequence < head.sequence:
        text = f"the file was cut off here: it had events up to {head.sequence}"
        problems.append(AuditProblem(name_of(last), rows.get(last, 0) + 1, text))
    now = _read_head(folder)[0]
    if known is None and any(lengths.values()):
        problems.append(AuditProblem(HEAD, 0, "it is missing: a truncated file cannot be detected"))
    elif now is not None and chain.sequence is not None and chain.sequence > now.sequence + 1:
        problems.append(AuditProblem(HEAD, 0, "events follow the last one in it: it was set back"))
    if begun and known is None and not numbers:
        problems.append(AuditProblem(HEAD, 0, "the whole audit is missing"))
    end = max(head, end, key=lambda one: one.sequence)
    return AuditVerdict(
        tuple(problems),
        events,
        AuditHead(last, end.sequence, lengths.get(last, 0), end.hash),
        latest,
        torn,
        unended,
        tuple(one for one in problems if (one.file, one.line) not in named),
    )


def readable(folder: Path) -> Iterator[tuple[bytes, AuditEvent | None]]:
    """Yields the lines of all files in order, each with its event; None: the line is damaged.
    Does not check the chain, as `examine` does. Leaves out a line that is being written."""
    for number in segments_in(folder):
        with (folder / name_of(number)).open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    yield line, decode(line)
                except LogDamaged:
                    yield line, None


def _lines(folder: Path, numbers: Iterable[int]) -> Iterator[tuple[int, bytes, bool]]:
    """Yields each line with its file's number, and whether the file ended with it when it was opened."""
    for number in numbers:
        with (folder / name_of(number)).open("rb") as file:
            left = os.fstat(file.fileno()).st_size
            for line in file:
                left -= len(line)
                yield number, line, left <= 0


def _read_head(folder: Path) -> tuple[AuditHead | None, int]:
    """Returns the last head, and the number of the first damaged line after it, or 0."""
    head, bad = None, 0
    try:
        with (folder / HEAD).open("rb") as file:
            for number, line in enumerate(file, 1):
                found = AuditHead.decode(line)
                if found is not None:
                    head, bad = found, 0  # this line replaces any damaged line before it
                elif not _is_torn(line):  # else its event was never acknowledged
                    bad = bad or number
    except FileNotFoundError:
        pass
    return head, bad


def _is_torn(line: bytes) -> bool:
    """Whether a crash may have left this line: without its end, or with zeros in place of sectors."""
    return not line.endswith(b"\n") or b"\0" in line


def _named(event: AuditEvent) -> set[tuple[object, object]]:
    """Returns the file and line of each damage that an event names."""
    state = event.action.prior_state
    if event.action.operation not in (DAMAGED, SEGMENT) or not isinstance(state, Mapping):
        return set()
    problems = state.get("problems")
    found = [one for one in problems if isinstance(one, Mapping)] if isinstance(problems, Sequence) else []
    return {(one.get("file"), one.get("line")) for one in found}
