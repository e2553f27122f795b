"""Every wait has a finite time-out: an endless one hangs where nobody looks, and inf raises OverflowError."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for package in ("transfer", "transports", "patterns") for path in (ROOT / package).rglob("*.py")
)
CYTHON = sorted((ROOT / "transports").rglob("*.p[yx][xd]"))
#: methods that wait, and the place of their time-out among the arguments
METHODS = {
    **dict.fromkeys(("wait", "join", "result", "communicate", "poll", "select"), 0),
    "wait_for": 1,
}
#: methods of which an argument says whether they block, and its place; their time-out stands behind it
BLOCKING = {"get": 0, "acquire": 0, "put": 1}
_ONLY_BY_NAME = 99
#: functions that wait, as they are called, and the place of their time-out
FUNCTIONS = {
    **dict.fromkeys(("asyncio.wait", "connection.wait", "futures.wait", "futures.as_completed"), 1),
    **dict.fromkeys(("subprocess.run", "subprocess.call"), _ONLY_BY_NAME),
    **dict.fromkeys(("subprocess.check_call", "subprocess.check_output"), _ONLY_BY_NAME),
    **dict.fromkeys(("asyncio.wait_for", "create_connection"), 1),
    **dict.fromkeys(("urlopen", "HTTPConnection", "HTTPSConnection"), 2),
    "select.select": 3,
    "asyncio.timeout": 0,
    "settimeout": 0,
}

_LOCK = "a lock whose holder never waits"
_NO_WAIT = "it is a look-up, or its result is there: it does not wait"
_ENDING = "a thread that has just been asked to end, and whose own waits are all finite"
_WISH = "the caller asked for no time-out, as None or -1 says in its signature; closing ends it"
_WOKEN = "the sleep of a thread of ours: a descriptor that stays readable until it is read ends it"
_CANCELLED = "a coroutine, which a cancel ends"
_STARTING = "a start in a thread of its own, which ends with a result or an error: recovery may take long"
#: (file, call): why it may be as it is
ALLOWED = {
    ("transfer/asyncio.py", "asyncio.timeout(timeout / 1000 if timeout >= 0 else None)"): _CANCELLED,
    (
        "transfer/sockets/async_poller.py",
        "thing._input().wait()",
    ): "a coroutine, made a task that is cancelled in time",
    ("transfer/broker/bench/processes.py", "self._line.poll()"): _NO_WAIT,
    ("transfer/broker/bench/target.py", "self._member.line.poll()"): _NO_WAIT,
    ("transfer/broker/bench/roles.py", "self._stage.poll()"): _NO_WAIT,
    ("transfer/broker/offload_pool.py", "future.result()"): _NO_WAIT,
    ("transfer/broker/server.py", "self._thread.join()"): _ENDING,
    ("transfer/broker/server.py", "started.result()"): _STARTING,
    ("transfer/broker/clients/native.py", "self._lock.acquire()"): _LOCK,
    (
        "transfer/broker/clients/tunnel.py",
        "asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)",
    ): _CANCELLED,
    ("transfer/broker/clients/tunnel.py", "asyncio.wait(rest)"): "tasks that have just been cancelled",
    ("transfer/broker/clients/tunnel.py", "self._started.wait()"): _STARTING,
    ("transfer/broker/clients/tunnel.py", "self._thread.join()"): _ENDING,
    (
        "transfer/mooncake/replies.py",
        "self._changed.wait_for(self._has_room, timeout if timeout >= 0 else None)",
    ): _WISH,
    (
        "transfer/tensors/device.py",
        "future.result()",
    ): "a copy by a GPU, whose events have no time-out either",
    ("transfer/log/journal.py", "self.lock.acquire()"): _LOCK,
    ("transfer/spark/source.py", "TaskContext.get()"): _NO_WAIT,
    ("transfer/spark/writer.py", "TaskContext.get()"): _NO_WAIT,
    ("transfer/zmq/asyncio.py", "Socket(_from_socket=thing).poll(None, bits)"): _CANCELLED,
    ("transfer/zmq/asyncio.py", "asyncio.wait({ready}, timeout=limit)"): _CANCELLED,
    ("transfer/zmq/monitor.py", "self._thread.join()"): _ENDING,
    ("transfer/zmq/pending_futures.py", "future.result()"): _NO_WAIT,
    ("transfer/zmq/proxy.py", "poller.poll()"): "pyzmq's proxy(): it ends with its context, or is told to",
    ("transfer/zmq/tracker.py", "peer.wait(-1 if left is None else left)"): _WISH,
    ("transports/forking.py", "_changed.acquire()"): _LOCK,
    ("transports/core/native/thread.pyx", "ppoll(descriptors, watched, limit, NULL)"): _WOKEN,
    ("transports/core/native/thread.pyx", "pthread_join(flusher.thread, NULL)"): _ENDING,
    ("transports/reactor.py", "self._poll.poll(None if timeout is None else timeout * 1000.0)"): _WOKEN,
    ("transports/core/pure/flusher.py", "selector.select(timeout)"): _WOKEN,
    ("transports/core/pure/flusher.py", "thread.join()"): _ENDING,
    ("transports/rdma/domain.py", "self.get()"): _NO_WAIT,
    (
        "transports/rdma/upgrade.py",
        "domains_in(self.around.shared, self.around.core.copy_into).get()",
    ): _NO_WAIT,
}


def is_endless(timeout: ast.expr, names: frozenset[str] = frozenset()) -> bool:
    """Whether None, a negative number or infinity may stand there. names: of variables that may have such a
    value."""
    if isinstance(timeout, ast.IfExp):
        return is_endless(timeout.body, names) or is_endless(timeout.orelse, names)
    text = ast.unparse(timeout)
    return text in ("None", "-1", "-1.0", "float('inf')", "math.inf") or text in names


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


def endless(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that wait without a finite time-out. A parameter may be None: that is the caller's wish."""
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    queues = frozenset(
        name
        for name, value in _assigned(tree)
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Queue")
        if value.args or value.keywords
    )
    functions = [one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found: dict[int, ast.Call] = {}
    for scope in (tree, *functions):
        names = frozenset(name for name, value in _assigned(scope) if scope is not tree and is_endless(value))
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and _waits(node, id(node) in awaited, queues, names):
                found[id(node)] = node
    yield from found.values()


def _waits(call: ast.Call, awaited: bool, queues: frozenset[str], names: frozenset[str]) -> bool:
    words = ast.unparse(call.func).split(".")
    name, qualified = words[-1], ".".join(words[-2:])
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    function = next((FUNCTIONS[one] for one in (qualified, name) if one in FUNCTIONS), None)
    place = METHODS.get(name, _ONLY_BY_NAME) if function is None else function
    timeout = keywords.get("timeout", call.args[place] if len(call.args) > place else None)
    if qualified == "select.poll" or (name == "join" and len(call.args) > 1):
        return False  # it makes what polls; it joins paths
    if function is None and isinstance(call.func, ast.Attribute) and name in BLOCKING:
        is_queue = name != "put" or ast.unparse(call.func.value) in queues
        return is_queue and not awaited and _blocks(call, keywords, BLOCKING[name], names)
    if timeout is not None:
        return is_endless(timeout, names)
    if function is not None:
        return True
    return (
        isinstance(call.func, ast.Attribute) and name in METHODS and len(call.args) == place and not awaited
    )


def _blocks(call: ast.Call, keywords: dict[str | None, ast.expr], place: int, names: frozenset[str]) -> bool:
    """For calls as `acquire(blocking, timeout)` and `put(item, block, timeout)`."""
    wish = keywords.get(
        "block", keywords.get("blocking", call.args[place] if len(call.args) > place else None)
    )
    if wish is not None and ast.unparse(wish) != "True":
        return False  # it does not block; or it is a look-up, as get(key)
    timeout = keywords.get("timeout", call.args[place + 1] if len(call.args) > place + 1 else None)
    return timeout is None or is_endless(timeout, names)


#: functions of C that wait, and the place of their time-out among the arguments; without one: they have none
C_FUNCTIONS = {
    "epoll_wait": 3,
    "poll": 2,
    "ppoll": 2,
    "select": 4,
    "PyThread_acquire_lock": 1,
    "PyThread_acquire_lock_timed": 1,
    **dict.fromkeys(
        ("pthread_cond_wait", "pthread_join", "sem_wait", "sigwait", "wait4", "waitpid"), _ONLY_BY_NAME
    ),
}
_C_CALL = re.compile(rf"(?<![\w.])({'|'.join(C_FUNCTIONS)})\(([^()]*)\)")
_C_DECLARATION = re.compile(r"^\s*(cdef )?(const )?\w+ \*?\w+\(")
_METHOD = re.compile(r"[\w.]+\.(?:wait|join|acquire|result|get)\(\)")


def endless_in_cython(text: str) -> Iterator[tuple[int, str]]:
    """Line and call of what waits without a finite time-out."""
    unbounded = {"-1", "NULL", *re.findall(r"\b(\w+) = (?:-1|NULL)$", text, re.MULTILINE)}
    code = re.sub(r"#.*", "", text)
    for found in _METHOD.finditer(code):
        yield code.count("\n", 0, found.start()) + 1, found[0]
    for found in _C_CALL.finditer(code):
        number = code.count("\n", 0, found.start())
        arguments = [one.strip() for one in found[2].split(",")]
        place = C_FUNCTIONS[found[1]]
        timeout = arguments[place] if place < len(arguments) else "NULL"
        endless = timeout in unbounded or (found[1] == "PyThread_acquire_lock" and timeout != "0")
        if endless and not _C_DECLARATION.match(code.splitlines()[number]):
            yield number + 1, f"{found[1]}({', '.join(arguments)})"


def found() -> dict[tuple[str, str], int]:
    return {
        (str(path.relative_to(ROOT)), ast.unparse(node)): node.lineno
        for path in FILES
        for node in endless(ast.parse(path.read_text()))
    } | {
        (str(path.relative_to(ROOT)), call): number
        for path in CYTHON
        for number, call in endless_in_cython(path.read_text())
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
        ("event.wait(None)", 1),
        ("event.wait(timeout=None)", 1),
        ("event.wait(None if seconds < 0 else seconds)", 1),
        ("def f():\n    limit = None\n    event.wait(limit)", 1),
        ("def f(limit=None):\n    event.wait(limit)", 0),
        ("log.commit(timeout=None)", 1),
        ("os.path.join(folder, name)", 0),
        ("lock.acquire(True)", 1),
        ("lock.acquire(False)", 0),
        ("lock.acquire(True, 2.0)", 0),
        ("lock.acquire(timeout=-1)", 1),
        ("words.get('revision', -1)", 0),
        ("items.get(block=True)", 1),
        ("items = queue.Queue(5)\nitems.put(1)", 1),
        ("items = queue.Queue(5)\nitems.put(1, timeout=2)\nitems.put(1, False)\nitems.put(1, True, 2)", 0),
        ("items = queue.Queue()\nitems.put(1)", 0),
        ("process.communicate()", 1),
        ("process.communicate(timeout=5)", 0),
        ("subprocess.run(command, check=True)", 1),
        ("subprocess.run(command, timeout=5)", 0),
        ("select.select([one], [], [])", 1),
        ("select.select([one], [], [], None)", 1),
        ("select.select([one], [], [], 1.0)", 0),
        ("select.poll()", 0),
        ("poll.poll()", 1),
        ("poll.poll(-1)", 1),
        ("poll.poll(100)", 0),
        ("selector.select()", 1),
        ("connection.settimeout(None)", 1),
        ("connection.settimeout(5)", 0),
        ("socket.create_connection((host, port))", 1),
        ("socket.create_connection((host, port), 5)", 0),
        ("await asyncio.wait_for(task, None)", 1),
        ("await asyncio.wait_for(task, 5)", 0),
        ("await asyncio.wait(tasks)", 1),
        ("await asyncio.wait(tasks, timeout=1)", 0),
    ],
)
def test_what_it_finds(text, count):
    assert len(list(endless(ast.parse(text)))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("count = epoll_wait(fd, events, 64, -1)", 1),
        ("count = epoll_wait(fd, events, 64, 0)", 0),
        ("count = epoll_wait(fd, events, 64, wait)", 0),
        ("wait = -1\ncount = epoll_wait(fd, events,\n                   64, wait)", 1),
        ("poll(&room, 1, PATIENCE_MS)", 0),
        ("ppoll(descriptors, 2, NULL, NULL)", 1),
        ("pthread_cond_wait(&one.changed, &one.mutex)", 1),
        ("pthread_cond_timedwait(&one.changed, &one.mutex, &limit)", 0),
        ("PyThread_acquire_lock(self.lock, 1)", 1),
        ("PyThread_acquire_lock(self.lock, 0)", 0),
        ("    int PyThread_acquire_lock(PyThread_type_lock, int)", 0),
        ("self.thread.join()", 1),
    ],
)
def test_what_it_finds_in_cython(text, count):
    assert len(list(endless_in_cython(text))) == count
