"""Tensors between GPUs of two processes by UCX's own library with its CUDA modules, on a driver without a
GPU. None of this ran on a GPU."""

from __future__ import annotations

import pytest

HEAD = """
import gc, logging, os, signal, sys, threading, time
import numpy
import transfer
from transfer.transports.errors import *
from tests.cuda.ends import *
from tests.cuda.null_driver import BYTES, COPIES, FLUSHES
"""
TAIL = """
if __name__ == "__main__":
    both(send, receive)
"""


def test_from_gpu_to_gpu(run_by_ucx):
    """In threads that never touched CUDA: the receiver's, and the reactors'."""
    program = """
def send(end):
    array = end.array(12 << 20, typestr="|u1")
    for number in range(1, 9):
        end.fill(array, number, delay=0.02)
        sender = threading.Thread(target=lambda: end.socket.send_tensor(array, copy=False).wait(PATIENCE))
        sender.start()
        sender.join()
    [peer] = end.socket.peers()
    assert peer.transport == "ucx" and peer.gpu.startswith("pointer"), peer
    end.hear()
    array.close()

def receive(end):
    out = end.array(12 << 20, typestr="|u1")
    found = []
    for number in range(1, 9):
        if number % 2:
            end.fill(out, 0, delay=0.02)
            assert end.socket.recv_tensor(out=out) is out
            assert end.bytes_of(out) == {number}
        else:
            receiver = threading.Thread(target=lambda: found.append(end.socket.recv_tensor(device="cuda:0")))
            receiver.start()
            receiver.join()
            assert end.bytes_of(found.pop()) == {number}
    [peer] = end.socket.peers()
    assert peer.gpu_received.startswith("pointer"), peer
    end.tell()
"""
    run_by_ucx(HEAD + program + TAIL)


@pytest.mark.slow
def test_the_gpu_is_used_after_connecting(run_by_ucx):
    """UCX has no context when it connects, and takes memory of GPUs all the same."""
    program = """
def send(end):
    array = end.array(1 << 20, typestr="|u1")
    for number in range(1, 4):
        end.fill(array, number)
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    for number in range(1, 4):
        assert end.bytes_of_host(end.socket.recv_tensor()) == {number}, "on the host"
    end.tell()
"""
    run_by_ucx(HEAD + program + TAIL)


@pytest.mark.slow
def test_a_dict_and_mixed_messages(run_by_ucx):
    program = """
def send(end):
    arrays = {f"t{number}": end.array(256, 256 + number) for number in range(12)}
    arrays["small"] = end.array(3)
    arrays["host"] = numpy.full((700, 700), 3, "u1")
    for number, array in enumerate(list(arrays.values())[:-1]):
        end.fill(array, number + 1)
    before = end.null.count(COPIES)
    end.socket.send_tensors(arrays, copy=False).wait(PATIENCE)
    assert end.null.count(BYTES) < 20 << 20
    [peer] = end.socket.peers()
    assert peer.gpu.startswith("pointer"), peer
    end.socket.send_tensors(arrays)
    end.socket.send(b"plain")
    end.hear()

def receive(end):
    tensors, _ = end.socket.recv_tensors(device="cuda:0")
    assert [end.bytes_of(one) for one in tensors.values()] == [{number + 1} for number in range(13)] + [{3}]
    del tensors["host"]
    out = {name: end.array(*one.shape) for name, one in tensors.items()}
    out["host"] = numpy.zeros((700, 700), "u1")
    end.socket.recv_tensors(out=out)
    found = [end.bytes_of(one) for name, one in out.items() if name != "host"]
    assert found == [{number + 1} for number in range(13)] and end.bytes_of_host(out["host"]) == {3}
    assert end.socket.recv() == b"plain"
    end.tell()
"""
    run_by_ucx(HEAD + program + TAIL)


@pytest.mark.slow
def test_a_call_that_ends_in_the_middle_loses_nothing(run_by_ucx):
    program = """
def send(end):
    array = end.array(64 << 20, typestr="|u1")
    for number in range(1, 11):
        end.fill(array, number)
        end.socket.send_tensor(array, copy=False)
    end.hear()

def receive(end):
    out = end.array(64 << 20, typestr="|u1")
    number = calls = 0
    while number < 10:
        calls += 1
        try:
            end.socket.recv_tensor(transfer.DONTWAIT, out=out)
        except Again:
            continue
        number += 1
        assert end.bytes_of(out) <= set(range(1, 11))
    assert calls > 10
    end.tell()
"""
    run_by_ucx(HEAD + program + TAIL)
