"""What runs in a virtual machine that is killed again and again, at the start with this number:
`python -m tests.crash.killed_machine ext4 /dev/vda 3 /notes`, and one word more at the last start.

Each start mounts the disk, checks what the one before has written, and goes on writing until the machine is
killed. What the program tries and what is acknowledged is noted in a folder of the host, which no kill of the
machine touches.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.log_programs import LogProgram
from tests.crash.power import call, read_notes, steps

#: kills after which the program begins with an empty folder
KILLS = 2


def main() -> None:
    kind, disk, number, notes = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    root = Path("/tmp/disk")
    root.mkdir()
    if not number:
        call(f"mkfs.{kind}", "-q", disk)
    call("mount", "-t", kind, disk, str(root))
    program = LogProgram("killed", lambda *_: None)
    if number:
        begin = _first(number - 1)
        marks = [mark for one in range(begin, number) for mark in read_notes(notes / f"{begin}.{one}")]
        program.check(root / str(begin), marks, _noting(notes / f"{begin}.{number}"))
        print(f"{len(marks)} notes, all is there", flush=True)
    if len(sys.argv) > 5:  # the last start
        return
    begin = _first(number)
    folder = root / str(begin)
    if begin == number:
        (folder / "log").mkdir(parents=True)
        call("sync")
    with program.open(folder) as log:
        steps(log, _noting(notes / f"{begin}.{number}"), random.Random(number))


def _first(number: int) -> int:
    """The start that began the folder which this start writes to."""
    return number - number % KILLS


def _noting(path: Path) -> Callable[[Any], None]:
    """Appends to a file of the host: system calls, which the host has done when they return."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def note(what: Any) -> None:
        os.write(fd, repr(what).encode() + b"\n")

    return note


if __name__ == "__main__":
    main()
