"""The processes that Spark starts for a session of this process: Java and its Python workers.

Spark leaves their end to Java's noticing that this process is gone: seconds later, while the files of
the session are being removed, and never when Ctrl-C came while Java was starting. These functions
look them up in /proc and end them. On systems without it they find none, and nothing changes.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

#: what PySpark's launcher has in the environment of the Java that it starts
_MARK = b"_PYSPARK_DRIVER_CONN_INFO_PATH="
#: seconds that Java has for its own tidying before it is killed; Spark's takes less than one
_PATIENCE = 10.0
#: seconds within which the kernel removes what was killed
_KILL_PATIENCE = 5.0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C has no effect within. For short work with a deadline, which must not be left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never interrupt it
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # None: not set by Python, which cannot put it back
            signal.signal(signal.SIGINT, before)


def java_processes() -> set[int]:
    """The Java processes of sessions that this process has started, one that is only starting too."""
    return {pid for pid in _children(os.getpid()) if _MARK in _read(Path(f"/proc/{pid}/environ"))}


def end(pids: Iterable[int], patience: float = _PATIENCE) -> None:
    """Ends these children of this process and returns when they and all below them are gone.

    They are asked to; what is left after `patience` seconds is killed.
    """
    with ExitStack() as stack:
        roots = _handles(pids, stack)
        others = _handles({below for pid in roots for below in _descendants(pid)} - set(roots), stack)
        # Only the roots: what Java started ends when Java does, in its own order.
        _send(roots.values(), signal.SIGTERM)
        left = _wait([*roots.values(), *others.values()], patience)
        _send(left, signal.SIGKILL)
        _wait(left, _KILL_PATIENCE)
        for pid in roots:
            _reap(pid)


def _handles(pids: Iterable[int], stack: ExitStack) -> dict[int, int]:
    """pid -> descriptor, which goes on meaning this process when the kernel gives its number to another."""
    found = {}
    for pid in pids:
        try:
            found[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        stack.callback(os.close, found[pid])
    return found


def _send(handles: Iterable[int], number: signal.Signals) -> None:
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            continue


def _wait(handles: Iterable[int], patience: float) -> list[int]:
    """Waits for the ends of these processes; what still runs after so many seconds."""
    left = set(handles)
    poll = select.poll()
    for handle in left:
        poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + patience
    while left and (rest := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(rest * 1000):
            poll.unregister(handle)
            left.remove(handle)
    return list(left)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # its owner did


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for child in _children(pid):
        found |= {child} | _descendants(child)
    return found


def _children(pid: int) -> set[int]:
    """By all threads of this process: each has a list of those that it started."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        lists = [_read(task / "children") for task in tasks.iterdir()]
    except OSError:
        return set()
    return {int(child) for text in lists for child in text.split()}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended
