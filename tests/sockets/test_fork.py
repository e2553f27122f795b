"""Children of fork that make a context of their own, whatever the parent's threads were doing."""

from __future__ import annotations

import pytest

from transfer.transports.ucx.installed import available

from .processes import Program

#: what each of the programs below begins with
_BEGIN = """
    import os, signal, sys, threading, time, warnings
    import transfer

    warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: that is the point
    kind, count, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

    def endpoint(name):
        where = {"inproc": f"inproc://{name}", "ipc": f"ipc://{folder}/{os.getpid()}-{name}"}
        return where.get(kind, "tcp://127.0.0.1:*")

    def exchange(name):
        with transfer.Context() as context:
            server, client = context.socket(transfer.REP), context.socket(transfer.REQ)
            with server, client:
                server.rcvtimeo = client.rcvtimeo = 20000
                server.bind(endpoint(name))
                client.connect(server.last_endpoint)
                client.send(b"request")
                server.send(server.recv() + b" and reply")
                return client.recv() == b"request and reply"

    def child():
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = 0 if exchange("child") else 2
            finally:
                os._exit(code)
        return pid

    def ended(pid, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "it hangs"
"""

_FIRST_CONNECT = (
    _BEGIN
    + """
    def first(delay):
        for name in ("one", "two"):
            threading.Thread(target=exchange, args=(name,), daemon=True).start()
        time.sleep(delay)
        os._exit(0 if ended(child(), 15) == 0 else 3)

    def parent(delay):
        pid = os.fork()  # each has its first connection before it
        if not pid:
            first(delay)
        return ended(pid)

    print([parent(0.003 * (n % 12)) for n in range(count)].count(0))
    """
)

_BUSY = (
    _BEGIN
    + """
    context = transfer.Context()
    pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
    pull.bind(endpoint("busy"))
    ending = False

    def sends():
        push.connect(pull.last_endpoint)
        while not ending:
            push.send(b"x" * 1000)

    def connects(number):
        while not ending:
            exchange(f"again{number}")

    def receives():
        while pull.recv() != b"end":
            pass

    calls = [(sends,), (receives,), (connects, 1), (connects, 2)]
    threads = [threading.Thread(target=call, args=args) for call, *args in calls]
    for thread in threads:
        thread.start()
    first = []
    while len(first) < min(count, 5):  # while these threads have their first connection
        first.append(child())
        time.sleep(0.004)
    answered = sum(ended(pid, 15) == 0 for pid in first)
    print(answered + sum(ended(child(), 15) == 0 for _ in range(count - len(first))))
    ending = True
    for thread in threads:
        if thread is threads[1]:
            continue
        thread.join(60)
    push.send(b"end")
    threads[1].join(60)
    push.close()
    pull.close()
    context.term()
    """
)


#: what is loaded where no fork waits for it, after the first context was made
_LOADS = (
    _BEGIN
    + """
    from importlib.abc import MetaPathFinder
    from transfer.transports import forking

    class Recorder(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if threading.get_ident() not in forking._inside:
                print(f"{name} by {threading.current_thread().name}")

    transfer.Context().term()
    sys.meta_path.insert(0, Recorder())
    for _ in range(count):
        exchange("loads")
    with transfer.Context() as context, context.socket(transfer.PAIR) as one:
        two = context.socket(transfer.PAIR)
        one.bind(endpoint("more"))
        two.connect(one.last_endpoint.replace("127.0.0.1", "localhost"))
        two.send_tensor(memoryview(bytes(100_000)))
        two.send(bytes(100_000))
        one.recv_tensor()
        one.set_callback(print)
        two.close()
    """
)


def children(source, kind, count, folder, seconds, **environment):
    environment = {"TRANSFER_LOCAL": "on" if kind == "local" else "off", **environment}
    with Program(source, kind, count, folder, core="native", **environment) as program:
        code, out, errors = program.finish(seconds)
    assert code == 0, errors[-3000:]
    return int(out)


@pytest.mark.parametrize("kind", ["tcp", "ipc", "inproc"])
def test_a_child_forked_during_the_first_connects_has_a_context_that_works(kind, tmp_path):
    assert children(_FIRST_CONNECT, kind, 4, tmp_path, 100) == 4


@pytest.mark.parametrize("kind", ["local", "ipc", "inproc"])
def test_a_child_forked_while_others_send_and_connect_has_a_context_that_works(kind, tmp_path):
    assert children(_BUSY, kind, 5, tmp_path, 100) == 5


def test_the_twin_forks_as_well(tmp_path):
    with Program(_BUSY, "tcp", 3, tmp_path, core="pure") as program:
        code, out, errors = program.finish(100)
    assert (code, out.strip()) == (0, "3"), errors[-3000:]


@pytest.mark.parametrize("core", ["native", "pure"])
@pytest.mark.parametrize("kind", ["tcp", "local", "ipc", "inproc"])
def test_what_sockets_load_is_loaded_where_a_fork_waits(kind, core, tmp_path):
    """A module that another thread is loading is locked in a child for ever."""
    with Program(
        _LOADS, kind, 1, tmp_path, core=core, TRANSFER_LOCAL="on" if kind == "local" else "off"
    ) as one:
        code, out, errors = one.finish(60)
    assert code == 0, errors[-3000:]
    assert [line for line in out.splitlines() if " by " in line] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["tcp", "local", "ipc", "inproc"])
def test_a_thousand_children_are_all_answered(kind, tmp_path):
    protocol = {"MC_RPC_PROTOCOL": "tcp"} if kind == "tcp" else {}
    assert children(_BUSY, kind, 900, tmp_path, 800, **protocol) == 900
    assert children(_FIRST_CONNECT, kind, 100, tmp_path, 800, **protocol) == 100


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not available(), reason="there is no UCX here")
def test_children_are_answered_where_the_parent_uses_ucx(tmp_path):
    environment = {"MC_RPC_PROTOCOL": "ucx", "UCX_TLS": "tcp,self"}
    assert children(_BUSY, "ucx", 30, tmp_path, 500, **environment) == 30
