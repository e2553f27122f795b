"""Ends the processes that Spark starts for a session of this process: Java and its Python workers.

Spark leaves that to Java, which notices the end of this process seconds later, while the session's files are
being removed; after Ctrl-C during Java's start it never does. These functions find the processes in /proc and
end them. On systems without /proc they find none and do nothing.
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

#: set by PySpark's launcher in the environment of the Java that it starts
_MARK = b"_PYSPARK_DRIVER_CONN_INFO_PATH="
#: seconds that Java has to clean up before it is killed; Spark needs less than one
_PATIENCE = 10.0
#: seconds within which the kernel removes a killed process
_KILL_PATIENCE = 5.0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C inside. For short work with a deadline, which must not be interrupted halfway."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never interrupt it
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # None: not set by Python, which cannot restore it
            signal.signal(signal.SIGINT, before)


def java_processes() -> set[int]:
    """Returns the Java processes of sessions that this process has started, including starting ones."""
    return {pid for pid in _children(os.getpid()) if _MARK in _read(Path(f"/proc/{pid}/environ"))}


def end(pids: Iterable[int], patience: float = _PATIENCE) -> None:
    """Ends these children of this process; returns when they and all their descendants are gone.

    They get SIGTERM first; processes that are left after `patience` seconds are killed.
    """
    with ExitStack() as stack:
        roots = _handles(pids, stack)
        others = _handles({below for pid in roots for below in _descendants(pid)} - set(roots), stack)
        # Only the roots: Java ends its own children, in its order.
        _send(roots.values(), signal.SIGTERM)
        left = _wait([*roots.values(), *others.values()], patience)
        _send(left, signal.SIGKILL)
        _wait(left, _KILL_PATIENCE)
        for pid in roots:
            _reap(pid)


def _handles(pids: Iterable[int], stack: ExitStack) -> dict[int, int]:
    """Returns pid -> descriptor, which still means this process if the kernel reuses its number."""
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
    """Waits for the ends of these processes; returns those that still run after so many seconds."""
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
        return  # its owner has reaped it


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for child in _children(pid):
        found |= {child} | _descendants(child)
    return found


def _children(pid: int) -> set[int]:
    """Returns the children of all threads of this process: the kernel lists them for each thread."""
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
