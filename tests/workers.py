"""The tests in several processes (pytest-xdist, `make test`): which stay together, and which begin first.

The tests of a file stay in one worker: they share fixtures, and what one leaves behind is seen beside it.
Those of Spark share one session, take longest, and begin first, so that all workers end together.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any

import pytest

from tests.rdma.vm_plugin import ON_REAL_VERBS

#: folders whose tests stay together and begin first
TOGETHER = ("tests/spark/",)
_STDERR = pytest.StashKey[int]()
#: those of a thread that are told, the innermost
_FRAMES = 15


def group(name: str) -> str:
    """Of a test by its name: its file, or a folder."""
    if name.endswith(f"::{ON_REAL_VERBS}"):
        return name
    path = name.partition("::")[0]
    return next((folder for folder in TOGETHER if path.startswith(folder)), path)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(TOGETHER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

        def _reschedule(self, node: Any) -> None:
            """One that takes the place of a worker that died has no tests yet: it comes again with them."""
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Its worker died: what is left of its work is for others, but not the test in which it
            died, which would end them too."""
            work = self.assigned_work.pop(node)
            left = {scope: tests for scope, tests in work.items() if not all(tests.values())}
            if not left:
                return None
            tests = next(iter(left.values()))
            died_in = next(name for name, done in tests.items() if not done)
            tests[died_in] = True
            self.workqueue.update((scope, tests) for scope, tests in left.items() if not all(tests.values()))
            for other in self.assigned_work:
                self._reschedule(other)
            return died_in

    config.option.loadscopereorder = False  # ours is the order
    return InGroups(config, log)


# --- what a worker says when a test takes too long ---------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """As pytest-timeout does it, which would write to a worker's output: nobody reads that."""
    if _STDERR not in item.config.stash:
        return None
    timer = threading.Timer(settings.timeout, _give_up, (item, settings.timeout))
    timer.name = f"time-out of {item.nodeid}"
    timer.daemon = True

    def cancel() -> None:
        timer.cancel()
        timer.join()

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    timer.start()
    return True


def _give_up(item: pytest.Item, seconds: float) -> None:
    try:
        capture = item.config.pluginmanager.get_plugin("capturemanager")
        capture.suspend_global_capture(item)
        texts = [f"\n+++ {item.nodeid} took more than {seconds:g} s +++\n", *capture.read_global_capture()]
        frames = sys._current_frames()
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            if thread.ident in frames:
                texts.append(f"--- {thread.name}\n")
                texts += traceback.format_stack(frames[thread.ident], limit=_FRAMES)
        with open(item.config.stash[_STDERR], "w", closefd=False) as stderr:
            stderr.write("".join(texts))
    finally:
        os._exit(1)
