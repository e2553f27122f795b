"""Verifies an audit's folder: reads all files and reports damage. Changes nothing.

The files are `audit.log`, and `audit.2.log`, `audit.3.log` …, each begun after damage to the one before.
`audit.head` has a line for every event: the file's number, the sequence, the file's length after the event,
the hash, and a checksum. With it a truncated file is detected.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from transfer.broker.storage.audit_chain import GENESIS, SEGMENT, AuditEvent, Chain, Json, decode
from transfer.transports.errors import LogDamaged

HEAD = "audit.head"
#: most digits of a file's number; a file with more is not part of the chain
_MAX_DIGITS = 4
#: most problems that are reported of one file
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
    """Damage in a file. line: the first wrong line, from 1; 0: the whole file.
    known: a later file names this damage, and the damaged file has not changed since."""

    file: str
    line: int
    text: str
    known: bool = False

    def as_json(self) -> dict[str, Json]:
        """Returns the problem for `--json` and the HTTP API."""
        return {"file": self.file, "line": self.line, "problem": self.text, "known": self.known}

    def __str__(self) -> str:
        place = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{place}: {self.text}" + (" (known)" if self.known else "")


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of verifying an audit's folder.

    head: the last event. Its hash covers all events before it; a copy kept elsewhere can be compared later.
    latest: the latest time of an event. torn: bytes after the head, of an event that was never acknowledged.
    files: SHA-256 of each existing file.
    """

    problems: tuple[AuditProblem, ...]
    events: int
    head: AuditHead
    latest: str = ""
    torn: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

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

    @property
    def open_problems(self) -> tuple[AuditProblem, ...]:
        """The problems that no later file names."""
        return tuple(problem for problem in self.problems if not problem.known)


@dataclass(slots=True)
class _Read:
    """The result of reading one file.

    nbytes: bytes of its complete lines. last: offset of the last complete line. beyond: events after the
    head's.
    """

    number: int
    problems: list[AuditProblem] = field(default_factory=list)
    first: AuditEvent | None = None
    lines: int = 0
    events: int = 0
    highest: int = 0
    latest: str = ""
    nbytes: int = 0
    last: int = 0
    beyond: int = 0
    torn: int = 0
    digest: str = ""

    def add_problem(self, line: int, text: str) -> None:
        """Adds a problem; only the first one of each line counts."""
        known = self.problems and line and self.problems[-1].line == line
        if not known and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(AuditProblem(name_of(self.number), line, text))


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
    heads, problems = _read_heads(folder)
    last = max([*segments_in(folder), *heads, 1])
    chain, found = Chain(), []
    for number in range(1, last + 1):
        head = heads.get(number)
        read = _examine_file(folder, number, head, chain)
        headed = head is not None or (heads and number == last)
        if read.beyond > 1 and headed and not _went_on(folder, read):
            read.add_problem(0, f"{read.beyond} events follow the last one in {HEAD}, which was set back")
        if head is not None and (read.problems or chain.hash is None):
            # The next event continues the acknowledged one, even if that is lost.
            chain.sequence, chain.hash = head.sequence, head.hash
        found.append(read)
    if not heads and any(one.nbytes or one.torn for one in found):
        problems.append(AuditProblem(HEAD, 0, "it is missing: a truncated file cannot be detected"))
    if begun and not heads and not segments_in(folder):
        problems.append(AuditProblem(HEAD, 0, "the whole audit is missing"))
    for one in found:
        known = any(_names(later.first, one) for later in found[one.number :])
        problems += [replace(problem, known=known) for problem in one.problems]
    highest = chain.sequence if chain.sequence is not None else max(one.highest for one in found)
    return AuditVerdict(
        tuple(problems),
        sum(one.events for one in found),
        AuditHead(last, highest, found[-1].nbytes, chain.hash or GENESIS),
        max(one.latest for one in found),
        found[-1].torn,
        {name_of(one.number): one.digest for one in found if one.digest},
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


def _read_heads(folder: Path) -> tuple[dict[int, AuditHead], list[AuditProblem]]:
    """Returns the last head of each file, and the problems of the last lines of `audit.head`."""
    heads: dict[int, AuditHead] = {}
    bad = 0
    try:
        with (folder / HEAD).open("rb") as file:
            for number, line in enumerate(file, 1):
                head = AuditHead.decode(line)
                if head is not None:
                    heads[head.segment] = head
                    bad = 0  # this line replaces any damaged line before it
                elif not _is_torn(line):  # else its event was never acknowledged
                    bad = bad or number
    except FileNotFoundError:
        pass
    return heads, [AuditProblem(HEAD, bad, "it is damaged")] if bad else []


def _is_torn(line: bytes) -> bool:
    """Whether a crash may have left this line: without its end, or with zeros in place of sectors."""
    return not line.endswith(b"\n") or b"\0" in line


def _examine_file(folder: Path, number: int, head: AuditHead | None, chain: Chain) -> _Read:
    """Reads one file and advances `chain` over it."""
    read = _Read(number)
    acknowledged = head.nbytes if head is not None else 0
    digest = hashlib.sha256()
    try:
        with (folder / name_of(number)).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for line in file:
                digest.update(line)
                at_end = read.nbytes + len(line) == size and read.nbytes >= acknowledged
                if not line.endswith(b"\n") or (at_end and _is_torn(line)):
                    if read.nbytes >= acknowledged:
                        read.torn = len(line)
                    elif read.nbytes + len(line) >= acknowledged:
                        read.add_problem(read.lines + 1, "its line end was changed")
                    break
                _examine_line(read, line, chain)
                if read.nbytes - len(line) < acknowledged <= read.nbytes:
                    _compare(read, head, chain)
                read.beyond += read.nbytes > acknowledged
    except FileNotFoundError:
        if acknowledged or number > 1:
            read.add_problem(0, "the file is missing")
        return read
    read.digest = digest.hexdigest()
    if read.nbytes < acknowledged and head is not None:
        lost = f"{read.nbytes} bytes of whole lines are left of {acknowledged}, up to event {head.sequence}"
        read.add_problem(read.lines + 1, f"the tail was cut off here: {lost}")
    return read


def _examine_line(read: _Read, line: bytes, chain: Chain) -> None:
    read.lines += 1
    read.last = read.nbytes
    read.nbytes += len(line)
    try:
        event = chain.follow(line)
    except LogDamaged as error:
        read.add_problem(read.lines, str(error))
        return
    read.events += 1
    read.highest = max(read.highest, event.sequence)
    read.latest = max(read.latest, event.time)
    begins = event.action.operation == SEGMENT
    if read.lines == 1:
        read.first = event
    if begins != (read.lines == 1 and read.number > 1):
        read.add_problem(
            read.lines, "a file begins in the middle" if begins else "it does not name the file before it"
        )


def _compare(read: _Read, head: AuditHead | None, chain: Chain) -> None:
    """Checks that the line at the head's end is the head's event."""
    if head is not None and (read.nbytes, chain.hash) != (head.nbytes, head.hash):
        read.add_problem(
            read.lines, f"it is not the event in {HEAD}: it was changed, or an earlier one was removed"
        )


def _went_on(folder: Path, read: _Read) -> bool:
    """Whether all events after the head except the last were acknowledged while the file was read."""
    head = _read_heads(folder)[0].get(read.number)
    return head is not None and head.nbytes >= read.last


def _names(first: AuditEvent | None, damaged: _Read) -> bool:
    """Whether the first event of a file names the damage as it still is."""
    if (
        first is None
        or first.action.operation != SEGMENT
        or not isinstance(first.action.prior_state, Mapping)
    ):
        return False
    files = first.action.prior_state.get("files")
    name = name_of(damaged.number)
    return isinstance(files, Mapping) and name in files and files[name] == (damaged.digest or None)
