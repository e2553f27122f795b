"""Processes that die, sleep or answer nothing: what is left of them, and of what they held."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import transfer
from tests.shm.conftest import eventually, mappings
from tests.shm.programs import RECEIVER, SENDER
from tests.sockets.helpers import TCP
from tests.sockets.processes import Program

#: how often each of the 9 phases is killed
TIMES = int(os.environ.get("TRANSFER_TEST_KILLS", "5"))
pytestmark = pytest.mark.timeout(60 + 10 * TIMES)
SENDS = ("plain", "lent", "small", "mixed", "handshake")
RECEIVES = ("takes", "keeps", "asleep", "handshake")


@pytest.fixture(autouse=True)
def no_file_is_left(tmp_path, monkeypatch):
    """Where shared memory and sockets could persist; others use /tmp at the same time."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(Path("/dev/shm").glob("*transfer*"))
    yield
    assert not set(Path("/dev/shm").glob("*transfer*")) - before
    assert not list(tmp_path.iterdir())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("phase", SENDS)
def test_a_killed_sender_leaves_nothing(phase):
    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=20_000) as pull:
        pull.bind(TCP)
        _still_good(context, pull)
        before = None
        for turn in range(TIMES):
            with Program(SENDER, pull.last_endpoint, phase, core="native", TRANSFER_LOCAL="on") as program:
                assert program.line() == "ready"
                held = None
                if phase != "handshake":
                    while not _told(program):
                        pull.recv_multipart(copy=False)
                    held = [pull.recv_multipart(copy=False)]
                    assert pull.peers()[0].transport == "local"
                time.sleep(turn * 0.002)  # now here, now there
                program.kill()
            if held is not None:
                assert all(len(bytes(part)) == len(part) for message in held for part in message)
            del held
            _drain(pull)
            assert eventually(lambda: not pull.peers())
            gc.collect()
            assert eventually(lambda: not mappings() and not _living(context))
            if turn == 1:
                before = descriptors()
        assert eventually(lambda: descriptors() <= before)
        _still_good(context, pull)


def _told(program):
    """Whether the program has said that it is going, without waiting for it."""
    return bool(select.select([program.process.stdout], [], [], 0)[0]) and program.line() == "going"


def _drain(pull):
    pull.rcvtimeo = 100
    try:
        while True:
            pull.recv_multipart(copy=False)
    except transfer.Again:
        pull.rcvtimeo = 20_000


def _living(context):
    return context.shared["local.carriers"]._living if "local.carriers" in context.shared else set()


def _still_good(context, pull):
    """Another peer is served as if nothing had been."""
    with context.socket(transfer.PUSH) as push:
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        push.send_tensor(np.full(100_000, 7))
        assert (pull.recv_tensor() == 7).all() and push.peers()[0].transport == "local"


@pytest.mark.parametrize("phase", RECEIVES)
def test_a_killed_receiver_leaves_nothing_and_its_loans_end(phase):
    with transfer.Context() as context, context.socket(transfer.PUSH, sndtimeo=20_000) as push:
        push.bind(TCP)
        with context.socket(transfer.PULL, rcvtimeo=20_000) as pull:
            _served(push, pull)
        before = None
        for turn in range(TIMES):
            with Program(RECEIVER, push.last_endpoint, phase, core="native", TRANSFER_LOCAL="on") as program:
                assert program.line() == "ready"
                trackers = []
                if phase != "handshake":
                    push.wait_for_peers(1, 20)
                    shared = context.empty(150_000, "float32")
                    trackers = [push.send_tensor(shared)]
                    for _ in range(4 if phase == "takes" else 20):
                        trackers.append(push.send_tensor(np.ones(100_000), track=True))
                    assert push.peers()[0].transport == "local"
                    assert program.line() == "going"
                    assert phase == "takes" or not trackers[0].done
                    del shared
                else:
                    time.sleep(turn * 0.002)
                program.kill()
            assert eventually(lambda: not push.peers())
            push._links.orphans.messages.clear()  # what was not sent waits for another peer
            gc.collect()
            assert not trackers or eventually(lambda lent=trackers[0]: lent.done)
            trackers.clear()
            assert eventually(lambda: not _living(context))
            if turn == 1:
                before = descriptors()
        assert eventually(lambda: gc.collect() < 0 or descriptors() <= before)
        with context.socket(transfer.PULL, rcvtimeo=20_000) as pull:
            _served(push, pull)
    gc.collect()


def _served(push, pull):
    pull.connect(push.last_endpoint)
    push.wait_for_peers(1, 10)
    push.send_tensor(np.full(100_000, 7))
    assert (pull.recv_tensor() == 7).all()


def test_a_sleeping_sender_hears_of_all_that_was_given_back():
    """Stopped, it reads nothing; what the receiver gives back meanwhile is said when it wakes."""
    source = """
        import sys, transfer
        context = transfer.Context()
        push = context.socket(transfer.PUSH, sndtimeo=20000)
        push.connect(sys.argv[1])
        push.wait_for_peers(1, 20)
        block = context.empty((900, 65536), "uint8")
        trackers = []
        for number, part in enumerate(block):
            part[:] = number % 256
            trackers.append(push.send_tensor(part))
        print("sent", flush=True)
        for tracker in trackers:
            tracker.wait(20)
        print("done", push.peers()[0].transport, flush=True)
        sys.stdin.readline()
        push.close(0)
        context.destroy(0)
    """
    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=20_000) as pull:
        pull.bind(TCP)
        with Program(source, pull.last_endpoint, core="native", TRANSFER_LOCAL="on") as program:
            kept = [pull.recv_tensor() for _ in range(900)]
            assert program.line() == "sent"
            os.kill(program.process.pid, signal.SIGSTOP)
            assert [int(part[-1]) for part in kept] == [number % 256 for number in range(900)]
            kept.clear()
            gc.collect()
            (carrier,) = _living(context)
            assert carrier._control.waiting  # its socket was full
            os.kill(program.process.pid, signal.SIGCONT)
            assert program.line() == "done local"
            program.tell()
            assert program.finish()[0] == 0


def test_two_processes_share_memory_and_the_sender_may_write_when_told():
    source = """
        import sys, transfer
        context = transfer.Context()
        pull = context.socket(transfer.PULL, rcvtimeo=20000)
        pull.connect(sys.argv[1])
        tensor = pull.recv_tensor()
        print(float(tensor.sum()), tensor.flags.writeable, flush=True)
        tensor[0] = -1
        print("written", flush=True)
        sys.stdin.readline()
        del tensor
        sys.stdin.readline()
        pull.close(0)
        context.destroy(0)
    """
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        push.bind(TCP)
        with Program(source, push.last_endpoint, core="pure", TRANSFER_LOCAL="on") as program:
            push.wait_for_peers(1, 20)
            tensor = context.empty(1_000_000, "float64")
            tensor[:] = 1
            tracker = push.send_tensor(tensor)
            assert program.line() == "1000000.0 True" and program.line() == "written"
            assert tensor[0] == -1 and not tracker.done
            program.tell()
            tracker.wait(10)
            program.tell()
            assert program.finish()[0] == 0
        del tensor


def test_programs_that_are_started_inherit_nothing():
    before = _inherited()
    with transfer.Context() as context:
        pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
        pull.bind(TCP)
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 10)
        tensor = context.empty(100_000)
        push.send_tensor(tensor)
        push.send_tensor(np.ones(100_000))
        kept = pull.recv_tensor(), pull.recv_tensor()
        assert _inherited() == before
        del kept, tensor
        push.close(0)
        pull.close(0)


def _inherited():
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(fd)):
                found.add(fd)
        except OSError:
            continue  # the directory itself
    return found
