"""Every wait has a finite time-out: an endless one hangs where nobody looks, and inf raises OverflowError."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for package in ("transfer", "transports", "patterns") for path in (ROOT / package).rglob("*.py")
)
WAITS = {"wait", "wait_for", "join", "get", "acquire", "result"}

_LOCK = "a lock whose holder never waits"
_NO_WAIT = "it is a look-up, or its result is there: it does not wait"
_ENDING = "a thread that has just been asked to end, and whose own waits are all finite"
_STARTING = "a start in a thread of its own, which ends with a result or an error: recovery may take long"
#: (file, call): why it may be as it is
ALLOWED = {
    ("transfer/asyncio.py", "thing._input().wait()"): "a coroutine, made a task that is cancelled in time",
    ("transfer/broker/beside.py", "future.result()"): _NO_WAIT,
    ("transfer/broker/server.py", "self._thread.join()"): _ENDING,
    ("transfer/broker/server.py", "started.result()"): _STARTING,
    ("transfer/clients/own.py", "self._lock.acquire()"): _LOCK,
    ("transfer/clients/tunnel.py", "self._started.wait()"): _STARTING,
    ("transfer/clients/tunnel.py", "self._thread.join()"): _ENDING,
    ("transfer/log/journal.py", "self.lock.acquire()"): _LOCK,
    ("transfer/spark/source.py", "TaskContext.get()"): _NO_WAIT,
    ("transfer/spark/writing.py", "TaskContext.get()"): _NO_WAIT,
    ("transfer/zmq/context.py", "thread.join()"): "pyzmq's term(): it waits for linger, endlessly by default",
    ("transfer/zmq/monitor.py", "self._thread.join()"): _ENDING,
    ("transfer/zmq/watch.py", "future.result()"): _NO_WAIT,
    ("transports/twin/flusher.py", "thread.join()"): _ENDING,
    ("transports/ucx/port.py", "self._lock.acquire()"): _LOCK,
    ("transports/verbs/domain.py", "self.get()"): _NO_WAIT,
    ("transports/verbs/port.py", "self._domains.get()"): _NO_WAIT,
}


def endless(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that wait without a finite time-out."""
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name = node.func.attr
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        # wait_for's first argument is what it waits for
        bare = len(node.args) == (1 if name == "wait_for" else 0)
        if (
            bare
            and id(node) not in awaited
            and name in WAITS
            and not keywords.keys() & {"timeout", "blocking"}
        ):
            yield node
        timeout = keywords.get("timeout")
        if timeout is not None and ast.unparse(timeout) in ("float('inf')", "math.inf"):
            yield node


def found() -> dict[tuple[str, str], int]:
    return {
        (str(path.relative_to(ROOT)), ast.unparse(node)): node.lineno
        for path in FILES
        for node in endless(ast.parse(path.read_text()))
    }


def test_every_wait_is_finite():
    assert {place: line for place, line in found().items() if place not in ALLOWED} == {}


def test_no_exception_is_out_of_date():
    assert set(ALLOWED) <= set(found())
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("event.wait()", 1),
        ("event.wait(1.0)", 0),
        ("thread.join()", 1),
        ("', '.join(parts)", 0),
        ("await event.wait()", 0),
        ("lock.acquire(timeout=2)", 0),
        ("log.commit(timeout=float('inf'))", 1),
        ("changed.wait_for(ready)", 1),
        ("future.result()", 1),
    ],
)
def test_what_it_finds(text, count):
    assert len(list(endless(ast.parse(text)))) == count
