"""Fork: the child is refused with a clear error, and the parent notices nothing."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import pytest

from tests.core.conftest import BOTH, Kit
from tests.core.raw_frames import Raw, eventually, plain, read_frame
from transfer.transports.core import pure
from transfer.transports.errors import ForkedError, TransferError

carried = BOTH


def in_child(work, seconds: float = 10.0) -> str:
    """Forks, runs `work()` in the child and returns the text it returned, or its exception's."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            text = work()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            text = f"{type(error).__name__}: {error}"
        os.write(write_end, text.encode()[:4000])
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        timer.start()
        text = pipe.read().decode()
        _, status = os.waitpid(pid, 0)
        timer.cancel()
        timer.join()
    assert status == 0, "the child hung or died"
    return text


def refusals(calls) -> str:
    for name, call in calls.items():
        try:
            call()
        except ForkedError:
            continue
        except BaseException as error:  # noqa: BLE001 - told to the parent
            return f"{name} raised {error!r}"
        return f"{name} was not refused"
    return "all refused"


def test_the_child_is_refused_and_the_parent_goes_on(core, kit):
    near, far = kit.raw("tcp")
    incoming, source = kit.raw("tcp")
    pusher, puller = kit.pusher(near), kit.puller(incoming)
    for number in range(20):  # some of it waits for the flusher when the fork happens
        pusher.send(b"%d" % number)
    source.sendall(Raw(b"one").encode() + Raw(b"two").encode())
    assert puller.recv() == b"one"
    calls = {
        "send": lambda: pusher.send(b"child"),
        "_send_frames": lambda: pusher._send_frames([plain(b"child")], 0),
        "recv": lambda: puller.recv(1),
        "_recv_message": lambda: puller._recv_message(0),
        "Stream.send": lambda: near.send([plain(b"child")]),
        "Stream.receive": lambda: incoming.receive(),
        "Stream": lambda: core.Stream(-1, 4, kit.flusher, kit.pool),
    }
    assert in_child(lambda: refusals(calls)) == "all refused"
    assert [read_frame(far).data for _ in range(20)] == [b"%d" % number for number in range(20)]
    assert puller.recv() == b"two"
    pusher.send(b"still")
    assert read_frame(far).data == b"still"


def test_locks_that_threads_of_the_parent_hold_are_not_waited_for():
    """In the child nobody will ever give them back."""
    kit = Kit(pure)
    try:
        (near, _), (incoming, _) = kit.raw(), kit.raw()
        pusher, puller = kit.pusher(near), kit.puller(incoming)
        calls = {
            "send": lambda: pusher.send(b"child"),
            "recv": lambda: puller.recv(1),
            "_attach": lambda: pusher._attach(incoming, True, False),
            "Stream.send": lambda: near.send([plain(b"child")]),
            "Stream.receive": lambda: incoming.receive(),
        }
        with near._lock, incoming._reading, pusher._lock, puller._receiving, kit.flusher._lock:
            assert in_child(lambda: refusals(calls)) == "all refused"
    finally:
        kit.close()


def test_closing_in_the_child_does_not_hurt_the_parent(kit):
    near, far = kit.raw("tcp", buffer=4096)
    incoming, source = kit.raw("tcp")
    pusher, puller = kit.pusher(near), kit.puller(incoming)
    puller.fileno()
    data = b"x" * 1_000_000
    pusher.send(data)  # the flusher has to drain it
    assert near.queued == 1

    def close_all() -> str:
        kit.close()
        gc.collect()
        return "closed"

    assert in_child(close_all) == "closed"
    assert read_frame(far).data == data
    source.sendall(Raw(b"after").encode())
    assert puller.recv() == b"after"
    pusher.send(b"last")
    assert read_frame(far).data == b"last"
    eventually(lambda: near.queued == 0)


def test_a_child_may_make_its_own(core, kit):
    kit.raw()

    def own() -> str:
        from tests.core.conftest import Kit

        mine = Kit(core)
        near, far = mine.pair()
        pusher, puller = mine.pusher(near), mine.puller(far)
        for number in range(100):
            pusher.send(b"%d" % number)
        got = [puller.recv() for _ in range(100)]
        mine.close()
        return "fine" if got[-1] == b"99" else repr(got)

    assert in_child(own) == "fine"


def test_fork_while_threads_wait(kit):
    incoming, source = kit.raw()
    puller = kit.puller(incoming)
    got = []
    receiver = threading.Thread(target=lambda: got.append(puller.recv()))
    receiver.start()
    time.sleep(0.05)
    assert in_child(lambda: refusals({"recv": lambda: puller.recv(1)})) == "all refused"
    source.sendall(Raw(b"x").encode())
    receiver.join(10)
    assert got == [b"x"]


def test_the_error_is_ours(core, kit):
    stream, _ = kit.raw()
    puller = kit.puller(stream)

    def caught() -> str:
        try:
            puller.recv(1)
        except TransferError as error:
            return f"{type(error).__name__}: {error.hint}"
        return "nothing"

    name, _, hint = in_child(caught).partition(": ")
    assert name == ForkedError.__name__
    assert "fork" in hint


@pytest.mark.parametrize("name", ["pure", "native"])
def test_import_registers_nothing(name):
    import subprocess
    import sys

    code = f"""
import os
registered = []
os.register_at_fork = lambda **hooks: registered.extend(
    hook for hook in hooks.values() if str(getattr(hook, "__module__", "")).startswith("transfer.transports")
)
import threading
before = threading.active_count(), len(os.listdir("/proc/self/fd"))
try:
    import transfer.transports.core.{name}
except ImportError:
    raise SystemExit(3)
assert not registered and (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    if done.returncode == 3:
        pytest.skip(f"the {name} core is not built")
    assert done.returncode == 0
