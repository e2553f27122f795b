"""Connections that have not shown yet who they are: one budget for all listeners of a process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from functools import partial

import pytest
from hypothesis import given, strategies as st

from transfer.transports.connect import pending
from transfer.transports.connect.pending import PendingBudget
from transfer.transports.descriptors import descriptor_hint, is_reserved, share_of_descriptors


@given(st.lists(st.integers(0, 11)), st.integers(1, 5))
def test_against_a_list(steps, most):
    """Which of them are left, and who made room: the oldest, at whichever listener."""
    connections = PendingBudget()
    model, gone, ended, number = [], [], [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending, "MOST", most)
        for step in steps:
            if step % 3 < 2:
                number += 1
                connections.add(number, partial(ended.append, number))
                model.append(number)
                connections.trim(0)
                gone += model[:-most]
                model = model[-most:]
            elif step == 11:
                quarter = (len(model) + 3) // 4
                assert connections.make_room() == bool(model)
                gone += model[:quarter]
                model = model[quarter:]
            elif model:
                connections.remove(one := model.pop(step % len(model)))
                connections.remove(one)
            assert len(connections) == len(model) and ended == gone


def test_a_listener_may_have_more_by_itself_but_not_of_the_descriptors(monkeypatch):
    connections, ended = PendingBudget(), []
    monkeypatch.setattr(pending, "MOST", 2)
    for number in range(10):
        connections.add(number, partial(ended.append, number))
    connections.trim(7)
    assert ended == [0, 1, 2]
    monkeypatch.setattr(pending, "share_of_descriptors", lambda: 5)
    connections.trim(7)
    assert ended == [0, 1, 2, 3, 4]


def test_an_end_may_remove_it_and_others():
    """What ends a connection takes the locks of its listener, and comes back here."""
    connections = PendingBudget()

    def end(number):
        connections.remove(number)
        connections.remove(number + 1)

    for number in range(8):
        connections.add(number, partial(end, number))
    assert connections.make_room()
    assert len(connections) == 5


def test_many_threads():
    connections, ended = PendingBudget(), []

    def work(begin):
        for number in range(begin, begin + 2000):
            connections.add(number, partial(ended.append, number))
            connections.trim()
            if number % 2:
                connections.remove(number)

    threads = [threading.Thread(target=work, args=(each * 2000,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(connections) + len(set(ended)) >= 4000
    assert len(ended) == len(set(ended))


def test_a_forked_child_begins_with_none():
    program = """if True:
        import os
        from transfer.transports.connect.pending import PENDING
        PENDING.add("parent's", print)
        PENDING._lock.acquire()
        if not (child := os.fork()):
            PENDING.add("own", print)
            os._exit(len(PENDING))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=os.getcwd())


def test_the_last_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        assert [is_reserved(fd) for fd in (0, 895, 896, 1023)] == [False, False, True, True]
        assert share_of_descriptors() == 256
        assert f"now 1024, hard limit {hard}" in descriptor_hint()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert not is_reserved(223) and is_reserved(224)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
