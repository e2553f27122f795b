"""Steps that a fork must not interrupt: a thread loads a library, or makes an object that exists once.

A child of fork has the forking thread only. A lock that another thread held stays locked in the child for
ever, also Python's locks of modules that are being imported. So a fork waits for such steps.
"""

from __future__ import annotations

import logging  # noqa: F401 - else a fork during its import would call half of its hooks
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: seconds that a fork waits for other threads, and they for a fork. UCX loads in two
_PATIENCE = 10.0

_changed = threading.Condition()
#: thread -> how deep it is inside of `undivided`
_inside: dict[int, int] = {}
_forks = 0
_watching = False


@contextmanager
def undivided() -> Iterator[None]:
    """No other thread forks inside the block. For short steps: a fork waits for them. May be nested."""
    _watch()
    me = threading.get_ident()
    with _changed:
        if me not in _inside:
            _changed.wait_for(lambda: not _forks, _PATIENCE)
        _inside[me] = _inside.get(me, 0) + 1
    try:
        yield
    finally:
        with _changed:
            _inside[me] -= 1
            if not _inside[me]:
                del _inside[me]
                _changed.notify_all()


def _watch() -> None:
    """Registers the hooks at the first use: an import has no effects."""
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    global _forks
    me = threading.get_ident()
    deadline = time.monotonic() + _PATIENCE
    _changed.acquire()
    _forks += 1
    while _inside.keys() - {me} and (left := deadline - time.monotonic()) > 0:
        _changed.wait(left)


def _in_parent() -> None:
    global _forks
    _forks -= 1
    _changed.notify_all()
    _changed.release()


def _in_child() -> None:
    global _changed, _forks
    _changed = threading.Condition()
    _forks = 0
    me = threading.get_ident()
    for other in _inside.keys() - {me}:
        del _inside[other]
