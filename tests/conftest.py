"""Checks after every test that it left nothing behind, for all test suites.

Each test has a time-out (60 s, see pyproject.toml); a slow one raises its own.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

if "TRANSFER_CORE" not in os.environ:
    try:
        _ = importlib.import_module("transfer.transports.core.native").Stream
    except (ImportError, AttributeError):
        # Children of tests, whose output is compared, would log that the compiled core is missing.
        os.environ["TRANSFER_CORE"] = "pure"

with suppress(ImportError):  # a machine with a GPU may lack it
    # No test asserts a time: a busy machine takes longer than the 0.2 s that are the default for an example.
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("transfer", hypothesis.settings.default, deadline=None)
    hypothesis.settings.load_profile("transfer")

# On by default, but two sockets of one test are on one host: without this the suites of tcp would test
# shared memory. tests/shm switches it on, and tests/shm/test_suites.py runs other suites with it.
os.environ.setdefault("TRANSFER_LOCAL", "off")

pytest_plugins = ("tests.rdma.vm_plugin", "tests.workers")

#: seconds that threads, descriptors and children have to go after a test
GRACE = 3.0
#: descriptors that other libraries open once and keep
_KEPT = ("/dev/", "/proc/", "/sys/", "anon_inode:[perf", "/memfd:")
#: our own shared memory is none of them
_OURS = "/memfd:transfer"


#: processes of the standard library that stay until the program ends
_SERVICES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "keeps(reason): leaves something behind on purpose")
    config.addinivalue_line("markers", "raises_in_reactor: callbacks of a reactor raise on purpose")
    # A run that a shell starts in the background ignores Ctrl-C, and so would all that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What the tests of a module imported stays: no collection need look at it again. With torch and Spark
    in memory each one takes a quarter of a second, and many tests ask for one."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def descriptors() -> dict[int, str]:
    """Open descriptors of this process, and what they are."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            continue  # the directory itself
    return found


def _is_kept(target: str) -> bool:
    return target.startswith(_KEPT) and not target.startswith(_OURS)


def children() -> set[int]:
    """Processes that this one started and that still are, zombies too."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except OSError:
            continue  # the thread ended
    return {pid for pid in found if not _is_service(pid)}


def _is_service(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _SERVICES)


def _service_descriptors() -> set[int]:
    """Pipes to the resource tracker and the fork server, which the standard library keeps."""
    found = set()
    for module, attribute, names in (
        ("multiprocessing.resource_tracker", "_resource_tracker", ("_fd",)),
        ("multiprocessing.forkserver", "_forkserver", ("_forkserver_alive_fd",)),
    ):
        service = getattr(sys.modules.get(module), attribute, None)
        found.update(getattr(service, name, None) for name in names)
    return found - {None}


def _lasting_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def _left_descriptors(before: dict[int, str]) -> list[str]:
    kept = _service_descriptors()
    return [
        f"{fd} -> {target}"
        for fd, target in descriptors().items()
        if before.get(fd) != target and not _is_kept(target) and fd not in kept
    ]


def _settles(left: Callable[[], object]) -> object:
    """What is still left after the grace period; falsy when all went."""
    deadline = time.monotonic() + GRACE
    while (rest := left()) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return rest


class _Failures(logging.Handler):
    """What was raised where only a log tells: in callbacks of a reactor, in tasks that nobody awaits."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = str(record.msg)
        if text.startswith("a callback of %s failed") or "was never retrieved" in text:
            self.found.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@pytest.fixture(autouse=True)
def nothing_fails_unseen(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in whose time something raised where nobody looks, an assert of its own too.

    A test marked `raises_in_reactor` does it on purpose. Exceptions in other threads are warnings
    of pytest's, and warnings are errors.
    """
    failures = _Failures()
    loggers = [logging.getLogger(name) for name in ("transfer", "asyncio")]
    for logger in loggers:
        logger.addHandler(failures)
    yield
    for logger in loggers:
        logger.removeHandler(failures)
    if not request.node.get_closest_marker("raises_in_reactor"):
        assert not failures.found


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a descriptor, a thread or a child process behind.

    Tests marked `spark`, and those marked `keeps` with a reason, are let off: their session lives on.
    """
    if request.node.get_closest_marker("spark") or request.node.get_closest_marker("keeps"):
        yield
        return
    fds, threads, processes = descriptors(), _lasting_threads(), children()
    yield
    left = _settles(lambda: _lasting_threads() - threads)
    assert not left, f"threads left behind: {left}"
    left = _settles(lambda: children() - processes)
    assert not left, f"child processes left behind: {left}"
    left = _settles(lambda: _left_descriptors(fds))
    assert not left, f"descriptors left behind: {left}"
