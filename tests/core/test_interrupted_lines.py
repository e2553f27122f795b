"""An interrupt before any line of the twin's sending part: the stream goes on whole, or has ended."""

from __future__ import annotations

import linecache
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.core.conftest import Kit
from tests.core.raw_frames import Raw, eventually, plain, read_frame
from transfer.transports.core import pure

LARGE = bytes(range(256)) * 400  # more than the kernel takes at once
_FOLDER = str(Path(pure.__file__).parent)
#: what a send goes through
_FILES = {f"{_FOLDER}/{name}.py" for name in ("flusher", "message", "outgoing", "peer_choice")}
#: lines at which the interpreter runs no signal handler: that of a `with` comes again at its end, before the
#: lock is free, and no call is done between what returns a message and these
_NOT_HERE = ("with ", "try:", "if message is None", "return message")


class Interrupt(Exception):
    """As of a signal handler."""


class Lines:
    """Raises Interrupt before a line of these files, by its number in the order of their run."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in _FILES or self.left < 0:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(_NOT_HERE):
            self.left -= 1
            if self.left < 0:
                raise Interrupt
        return self


def run_interrupted(number: int, call) -> bool:
    """Whether the call came to this line."""
    lines = Lines(number)
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    assert lines.left >= 0, "the interrupt was lost"
    return False


def read_all(far: socket.socket, got: list[Raw]) -> None:
    try:
        while True:
            got.append(read_frame(far))
    except (AssertionError, OSError):
        pass


def interrupt_send(number: int, threshold: int) -> bool:
    """A send with an interrupt before one line. False: it has fewer lines."""
    kit = Kit(pure)
    data = bytearray(LARGE)
    got: list[Raw] = []
    try:
        stream, far = kit.raw("tcp", buffer=4096)
        pusher = kit.pusher(stream)
        pusher.copy_threshold = threshold
        reader = threading.Thread(target=read_all, args=(far, got))
        reader.start()
        try:
            pusher.send(b"before")
            came = run_interrupted(number, lambda: pusher._send_frames([plain(data)], 1000))
            data[:] = b"x" * len(data)  # the caller has its memory back
            ended = stream.broken is not None
            if not ended:
                pusher.send(b"after")
                eventually(stream.flush)
        finally:
            stream.close()
            reader.join()
    finally:
        kit.close()
    texts = [raw.data for raw in got]
    if came and ended:
        assert texts in ([b"before"], [b"before", LARGE])
    elif came:
        assert texts in ([b"before", b"after"], [b"before", LARGE, b"after"]), (number, len(texts))
    else:
        assert texts == [b"before", LARGE, b"after"]
    return came


def interrupt_every_line(threshold: int) -> int:
    number = 0
    while interrupt_send(number, threshold):
        number += 1
    return number


@pytest.mark.parametrize("threshold", [1000, 1 << 20])
def test_an_interrupt_before_any_line_of_a_send(threshold):
    # In a thread of its own: the interpreter may keep the context of an exception that a trace raised inside
    # an `except`, and later tests would report it.
    with ThreadPoolExecutor(1) as one:
        assert one.submit(interrupt_every_line, threshold).result() > 50
