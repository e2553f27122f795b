"""A peer that is killed or stopped in the middle, seen from the process that lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import transfer

pytestmark = pytest.mark.keeps("UCX's own descriptors")

PEER = """
import sys, time, transfer
kind, endpoint, sizes = sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3].split(",")]
context = transfer.Context()
socket = context.socket(getattr(transfer, kind))
socket.connect(endpoint)
socket.wait_for_peers(1)
assert socket.peers()[0].transport == "ucx"
print("ready", flush=True)
if kind == "PUSH":
    socket.hwm = 0
    socket.sndhwm_bytes = 0
    while True:
        for size in sizes:
            socket.send(bytes(size))
elif kind == "PULL":
    for _ in sizes:
        socket.recv()
    print("received", flush=True)
    time.sleep(60)
"""


def start(kind: str, endpoint: str, sizes: str) -> subprocess.Popen:
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, kind, endpoint, sizes],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert peer.stdout.readline() == "ready\n"
    return peer


def end(peer: subprocess.Popen) -> None:
    peer.kill()
    peer.stdout.close()
    peer.wait(20)


@pytest.mark.parametrize(("sizes", "after"), [("100", 5), ("8388608", 0), ("100,1048576,65536", 4)])
def test_a_killed_sender(sizes, after):
    """Whatever arrives before the end is whole, and the end is noticed."""
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.rcvtimeo = 20_000
        pull.bind("ucx://127.0.0.1:0")
        endpoint = pull.last_endpoint
        wanted = {int(size) for size in sizes.split(",")}
        peer = start("PUSH", endpoint, sizes)
        try:
            for _ in range(after):
                assert len(pull.recv()) in wanted
            peer.send_signal(signal.SIGKILL)
            peer.wait(20)
            deadline = time.monotonic() + 20
            while pull.peers():
                assert time.monotonic() < deadline, "the end is not noticed"
                if pull.poll(10):
                    assert len(pull.recv(transfer.DONTWAIT)) in wanted
        finally:
            end(peer)
        while pull.poll(100):
            pull.recv()


@pytest.mark.parametrize("size", [100, 8 << 20])
def test_a_killed_receiver(size):
    """Trackers fail, nothing hangs, and what did not leave goes to the next peer."""
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        push.sndtimeo = 20_000
        push.linger = 0
        push.bind("ucx://127.0.0.1:0")
        endpoint = push.last_endpoint
        peer = start("PULL", endpoint, "1")
        try:
            push.wait_for_peers(1)
            push.send(b"taken")
            assert peer.stdout.readline() == "received\n"
            trackers = [push.send(bytes(size), copy=False, track=True) for _ in range(4)]
            peer.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 20
            while push.peers():
                assert time.monotonic() < deadline, "the end is not noticed"
                time.sleep(0.01)
        finally:
            end(peer)
        second = start("PULL", endpoint, "1")
        try:
            push.wait_for_peers(1)
            push.send(b"goes on")
            assert second.stdout.readline() == "received\n"
        finally:
            end(second)
        assert trackers


def test_a_stopped_peer_does_not_keep_us_from_closing():
    with transfer.Context() as context:
        push = context.socket(transfer.PUSH)
        push.linger = 300
        push.bind("ucx://127.0.0.1:0")
        peer = start("PULL", push.last_endpoint, "1,1")
        try:
            push.wait_for_peers(1)
            push.send(bytes(1 << 20))
            os.kill(peer.pid, signal.SIGSTOP)
            for _ in range(8):
                push.send(bytes(4 << 20))
            begin = time.monotonic()
            assert push.close() > 0
            assert time.monotonic() - begin < 10
        finally:
            end(peer)


def test_killed_many_times_nothing_is_left_behind():
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.rcvtimeo = 20_000
        pull.bind("ucx://127.0.0.1:0")
        counts = []
        for number in range(5):
            peer = start("PUSH", pull.last_endpoint, "1000,4194304")
            try:
                for _ in range(number):
                    pull.recv()
            finally:
                end(peer)
            deadline = time.monotonic() + 20
            while pull.peers():
                assert time.monotonic() < deadline
                if pull.poll(10):
                    pull.recv(transfer.DONTWAIT)
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[-1] <= counts[1] + 2, counts
    shared = [name for name in os.listdir("/dev/shm") if str(peer.pid) in name]
    assert not shared


def test_the_process_ends_cleanly_with_a_rendezvous_open():
    code = (
        "import transfer; c = transfer.Context(); a, b = c.socket(transfer.PUSH), c.socket(transfer.PULL);"
        "b.bind('ucx://127.0.0.1:0'); a.connect(b.last_endpoint); a.wait_for_peers(1);"
        "[a.send(bytes(4 << 20), copy=False) for _ in range(4)]; print(a.peers()[0].transport)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "ucx\n", done.stderr
