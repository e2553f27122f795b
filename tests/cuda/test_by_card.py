"""Tensors between GPUs of two processes by a network card that reads and writes their memory. On a driver
without a GPU and a provider without a card; none of this ran on either."""

from __future__ import annotations

import pytest

from tests.cuda import null_driver

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


def test_from_gpu_to_gpu(run_by_card):
    program = """
def send(end):
    array = end.array(12 << 20, typestr="|u1")
    for number in range(1, 9):
        end.fill(array, number, delay=0.02)
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    assert end.null.count(COPIES) == 0
    [peer] = end.socket.peers()
    assert peer.transport == "rdma" and peer.gpu.startswith("dmabuf"), peer
    array.close()
    end.hear()

def receive(end):
    out = end.array(12 << 20, typestr="|u1")
    for number in range(1, 9):
        if number % 2:
            end.fill(out, 0, delay=0.02)
            assert end.socket.recv_tensor(out=out) is out
            assert end.bytes_of(out) == {number}
        else:
            tensor = end.socket.recv_tensor(device="cuda:0")
            assert end.bytes_of(tensor) == {number}
    [peer] = end.socket.peers()
    assert peer.gpu_received.startswith("dmabuf"), peer
    end.tell()
"""
    run_by_card(HEAD + program + TAIL)


def test_a_dict(run_by_card):
    program = """
def send(end):
    arrays = {f"t{number}": end.array(512, 512 + number) for number in range(40)}
    arrays["small"] = end.array(3)
    for name in ("first", "second"):
        for number, array in enumerate(arrays.values()):
            end.fill(array, number + 1)
        before = end.null.count(COPIES)
        end.socket.send_tensors(arrays, copy=False).wait(PATIENCE)
        assert end.null.count(COPIES) - before == 1, "the small one only"
    [peer] = end.socket.peers()
    assert peer.gpu.startswith("dmabuf"), peer
    end.socket.send_tensors(arrays)
    assert "copy=False" in end.socket.peers()[0].gpu
    end.hear()

def receive(end):
    tensors, _ = end.socket.recv_tensors(device="cuda:0")
    assert [end.bytes_of(one) for one in tensors.values()] == [{number + 1} for number in range(41)]
    out = {name: end.array(*one.shape) for name, one in tensors.items()}
    for one in out.values():
        end.fill(one, 0, delay=0.005)
    end.socket.recv_tensors(out=out)
    assert [end.bytes_of(one) for one in out.values()] == [{number + 1} for number in range(41)]
    assert end.socket.peers()[0].gpu_received.startswith("dmabuf")
    end.socket.recv_tensors(out=out)
    end.tell()
"""
    run_by_card(HEAD + program + TAIL)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["card", "ucx"])
def test_memory_is_not_written_while_a_kernel_reads_it(request, way):
    """A payload is deleted while a kernel still reads it: its block waits for that work."""
    program = """
def send(end):
    array = end.array(4 << 20, typestr="|u1")
    for number in range(1, 31):
        end.fill(array, number)
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    copies = []
    for number in range(1, 31):
        tensor = end.socket.recv_tensor(device="cuda:0")
        copy = end.array(4 << 20, typestr="|u1")
        end.null.fill(copy.pointer, 0, 1, 0, 0.03)
        end.context.copy(copy.pointer, tensor.__cuda_array_interface__["data"][0], copy.nbytes, 0)
        copies.append(copy)
        del tensor
    for number, copy in enumerate(copies, 1):
        assert end.bytes_of(copy) == {number}, number
    end.tell()
"""
    run = request.getfixturevalue(f"run_by_{way}")
    run(HEAD + program + TAIL)


@pytest.mark.slow
def test_a_stream_of_tensors_needs_no_more_memory(run_by_card):
    """Those behind the first are read ahead; blocks are used again."""
    program = """
def send(end):
    arrays = [end.array(1 << 20, typestr="|u1") for _ in range(8)]
    trackers = []
    for number in range(200):
        array = arrays[number % 8]
        if len(trackers) == 8:
            trackers.pop(0).wait(PATIENCE)
        end.fill(array, number % 250 + 1)
        trackers.append(end.socket.send_tensor(array, copy=False))
    for tracker in trackers:
        tracker.wait(PATIENCE)
    end.hear()

def receive(end):
    out = end.array(1 << 20, typestr="|u1")
    for number in range(200):
        if number % 3:
            end.socket.recv_tensor(out=out)
            assert end.bytes_of(out) == {number % 250 + 1}
        elif number % 2:
            assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {number % 250 + 1}
        else:  # read by the host, although it was read ahead for the GPU
            assert end.bytes_of_host(end.socket.recv_tensor()) == {number % 250 + 1}
    [found] = end.socket.context.shared["rdma.domains"].get().received_on_gpu._gpus.values()
    assert found.blocks.registered <= 64 << 20, found.blocks.registered
    end.tell()
"""
    run_by_card(HEAD + program + TAIL)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"NULL_CUDA_DMABUF": "0"}, "no dma-buf"),
        ({"NULL_CUDA_MEMORY": str(7 << 20)}, "OUT_OF_MEMORY"),
        ({"NULL_VERBS_FAULT": "register=1,2,1"}, "memory"),
    ],
)
def test_what_it_cannot_read_into_goes_through_the_host(run_by_card, variables, reason):
    program = """
def send(end):
    array = end.array(4 << 20, typestr="|u1")
    for number in range(1, 4):
        end.fill(array, number)
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    out = end.array(4 << 20, typestr="|u1")
    for number in range(1, 4):
        assert end.socket.recv_tensor(out=out) is out
        assert end.bytes_of(out) == {number}
    [peer] = end.socket.peers()
    assert peer.gpu_received.startswith("staging") and REASON in peer.gpu_received, peer
    end.tell()
"""
    tail = TAIL.replace("both(send, receive)", f"both(send, receive, **{variables!r})")
    run_by_card(HEAD + program.replace("REASON", repr(reason)) + tail)


@pytest.mark.slow
@pytest.mark.parametrize(("ordering", "flushes"), [(100, 0), (0, 3)])
def test_what_the_card_wrote_is_flushed(run_by_card, ordering, flushes):
    program = """
def send(end):
    array = end.array(1 << 20, typestr="|u1")
    for number in range(3):
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    for number in range(3):
        end.socket.recv_tensor(device="cuda:0")
    assert end.null.count(FLUSHES) == WANTED
    end.tell()
"""
    run_by_card(HEAD + program.replace("WANTED", str(flushes)) + TAIL, NULL_CUDA_ORDERING=str(ordering))


@pytest.mark.slow
def test_tensors_outlive_their_context(run_by_card):
    program = """
def send(end):
    array = end.array(1 << 20, typestr="|u1")
    end.fill(array, 7)
    end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    tensor = end.socket.recv_tensor(device="cuda:0")
    end.tell()
    end.socket.context.term()
    assert end.bytes_of(tensor) == {7}
    del tensor
    gc.collect()
    end.context.free(end.context.allocate(1))
"""
    run_by_card(HEAD + program + TAIL)


def test_a_killed_receiver(run_by_card, null_name):
    """It ends while it reads: the sender's tracker says so, and the memory is the sender's again."""
    program = """
def send(end):
    array = end.array(1 << 20, typestr="|u1")
    tracker = end.socket.send_tensor(array, copy=False)
    end.hear()
    second = end.socket.send_tensor(array, copy=False)
    os.kill(end.receiver, signal.SIGKILL)
    try:
        second.wait(PATIENCE)
    except Broken as error:
        print(type(error).__name__)
    array.close()

def receive(end):
    end.socket.recv_tensor(device="cuda:0")
    end.tell()
    time.sleep(60)
"""
    tail = TAIL.replace("both(send, receive)", "both(send, receive, status=-9)")
    assert run_by_card(HEAD + program + tail) == "Broken\n"
    null_driver.remove(null_name)


@pytest.mark.slow
def test_unused_memory_is_given_back(run_by_card):
    program = """
def send(end):
    array = end.array(8 << 20, typestr="|u1")
    for _ in range(3):
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    import transfer.transports.gpu_receiving as receiving
    receiving.REST = 0.2
    end.want()
    tensors = [end.socket.recv_tensor(device="cuda:0") for _ in range(2)]
    [found] = end.socket.context.shared["rdma.domains"].get().received_on_gpu._gpus.values()
    held = found.blocks.registered
    assert held >= 16 << 20
    tensors.pop()
    until(lambda: found.blocks.registered < held)
    assert end.bytes_of(tensors[0]) == {0}
    tensors.clear()
    until(lambda: found.blocks.registered == 0)
    end.socket.recv_tensor(device="cuda:0")
    end.tell()
"""
    run_by_card(HEAD + program + TAIL)


@pytest.mark.parametrize("way", ["card", "ucx"])
def test_free_blocks_make_room(request, way):
    """24 MiB were received and deleted; 48 of 64 MiB are asked for next."""
    program = """
def send(end):
    for size in (24, 48):
        array = end.array(size << 20, typestr="|u1")
        end.fill(array, size)
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
        end.hear()
        array.close()

def receive(end):
    for size in (24, 48):
        tensor = end.socket.recv_tensor(device="cuda:0")
        assert end.bytes_of(tensor) == {size}
        assert not end.socket.peers()[0].gpu_received.startswith("staging")
        del tensor
        end.tell()
"""
    run = request.getfixturevalue(f"run_by_{way}")
    run(HEAD + program + TAIL, NULL_CUDA_MEMORY=str(64 << 20))


@pytest.mark.slow
def test_a_handler_that_raises_while_tensors_are_deleted(run_by_card):
    """No block is lost, and no exception."""
    program = """
def send(end):
    array = end.array(256 << 10, typestr="|u1")
    for _ in range(400):
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    import random

    class Rung(Exception):
        pass

    def ring(*_):
        rung.append(1)
        raise Rung

    rung, raised = [], 0
    signal.signal(signal.SIGALRM, ring)
    for _ in range(400):
        tensor = end.socket.recv_tensor(device="cuda:0")
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * 3e-5)
            del tensor
            limit = time.monotonic() + PATIENCE
            while time.monotonic() < limit:
                pass
        except Rung:
            raised += 1
    assert raised == len(rung) == 400
    [found] = end.socket.context.shared["rdma.domains"].get().received_on_gpu._gpus.values()
    assert found.blocks.registered <= 8 << 20
    end.tell()
"""
    run_by_card(HEAD + program + TAIL)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["card", "ucx"])
def test_what_is_deleted_after_the_context_is_freed(request, way):
    program = """
def send(end):
    array = end.array(8 << 20, typestr="|u1")
    for _ in range(5):
        end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    from pathlib import Path

    def held():
        return len(list(Path("/dev/shm").glob(f"{os.environ['NULL_CUDA_NAME']}-{os.getpid()}-*")))

    tensors = [end.socket.recv_tensor(device="cuda:0") for _ in range(5)]
    end.tell()
    end.socket.context.term()
    before = held()
    while len(tensors) > 1:
        tensors.pop()
    assert before - held() == 4
    tensors.clear()
    assert before - held() == 5
    tensors.append(end.array(1))
"""
    run = request.getfixturevalue(f"run_by_{way}")
    run(HEAD + program + TAIL)


def test_a_tensor_that_is_held_at_the_end_of_the_interpreter(run_by_card):
    program = """
def send(end):
    array = end.array(1 << 20, typestr="|u1")
    end.socket.send_tensor(array, copy=False).wait(PATIENCE)
    end.hear()

def receive(end):
    import builtins

    builtins.kept = end.socket.recv_tensor(device="cuda:0")
    end.tell()
"""
    assert run_by_card(HEAD + program + TAIL) == ""


def test_what_goes_to_one_of_a_routers_peers_is_refused_too(run):
    """Where nothing may be staged; and a receiver that asks a moment later is waited for."""
    program = """
import time
import transfer
from tests.cuda.null_driver import Array
from transfer.transports import cuda
from transfer.transports.errors import RegistrationError

context = cuda.load().context(0)
array = Array(context, (1 << 20,), "|u1")
with transfer.Context() as made:
    router, dealer = made.socket(transfer.ROUTER), made.socket(transfer.DEALER)
    router.gpu_staging = False
    dealer.routing_id = b"one"
    router.bind("tcp://127.0.0.1:0")
    dealer.connect(router.last_endpoint)
    router.wait_for_peers(1, timeout=10)
    try:
        router.send_tensors_to(b"one", {"a": array})
    except RegistrationError as error:
        print(error)
    router.gpu_staging = True
    dealer.rcvtimeo = 10_000
    router.send_tensors_to(b"one", {"a": array})
    assert dealer.recv_tensors()[0]["a"].nbytes == 1 << 20
    assert "send_tensors_to" in router.peers()[0].gpu
"""
    assert "send_tensors_to() copies" in run(program)
