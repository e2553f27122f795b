"""Tensors on a GPU that a peer on this host maps, on a driver without a GPU. None of this ran on a GPU.

Each program is a sender and a receiver, two processes. Copies of the driver are late, so that one who does
not wait reads or leaves wrong bytes.
"""

from __future__ import annotations

import pytest

from tests.cuda import null_driver

HEAD = """
import os, signal, sys, time
import numpy
import transfer
from transfer.transports.errors import *
from tests.cuda.ends import *
from tests.cuda.null_driver import BYTES, CONTEXTS, MAPS
"""
TAIL = """
if __name__ == "__main__":
    both(send, receive)
"""
SLOW = {"NULL_CUDA_DELAY_US": "2000"}


def test_in_the_order_of_streams(run):
    """The kernel that writes it is late, the sender overwrites it at once, the receiver reads at once."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(500, 1000)
    for number in range(1, 21):
        end.fill(array, number, delay=0.01)
        end.socket.send_tensor(array)
    end.fill(array, 99)
    end.hear()
    assert end.null.count(BYTES) == 20 * array.nbytes, "one copy each, none through the host"
    array.close()

def receive(end):
    end.want()
    kept = []
    for number in range(1, 21):
        tensor = end.socket.recv_tensor(device="cuda:0")
        assert (tensor.shape, tensor.device) == ((500, 1000), "cuda:0")
        kept.append(tensor)
        if number % 4 == 0:
            assert [end.bytes_of(one) for one in kept] == [{number - 3}, {number - 2}, {number - 1}, {number}]
            kept.clear()
    print(1 < end.null.count(MAPS) <= 21)
    end.tell()
"""
    assert run(HEAD + program + TAIL, **SLOW) == "True\n"


@pytest.mark.slow
def test_the_receivers_work_comes_before_the_next_payload(run):
    """A block is used again when the work that the receiver's stream had by the deletion is done."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(1000, 1000)
    for number in range(1, 11):
        end.fill(array, number)
        end.socket.send_tensor(array)
        end.hear()
        time.sleep(0.02)  # the receiver has deleted it, and its stream is not there yet
    end.tell()
    array.close()

def receive(end):
    end.want()
    targets = []
    for number in range(1, 11):
        tensor = end.socket.recv_tensor(device="cuda:0")
        targets.append(end.array(1000, 1000))
        end.fill(targets[-1], 0, delay=0.05)
        source = tensor.__cuda_array_interface__["data"][0]
        end.context.copy(targets[-1].pointer, source, tensor.nbytes, 0)
        del tensor
        end.tell()
    end.hear()
    assert [end.bytes_of(one) for one in targets] == [{number} for number in range(1, 11)]
    print(1 < end.null.count(MAPS) <= 10)
    for one in targets:
        one.close()
"""
    assert run(HEAD + program + TAIL, **SLOW) == "True\n"


def test_its_own_memory_with_copy_false(run):
    program = """
def send(end):
    end.until_wanted()
    array = end.array(2048, 1024)
    end.fill(array, 7, delay=0.05)
    tracker = end.socket.send_tensor(array, copy=False)
    end.hear()
    assert not tracker.done
    assert end.bytes_of(array) == {9}, "the receiver wrote there"
    end.tell()
    tracker.wait(PATIENCE)
    assert end.null.count(BYTES) == array.nbytes, "of `bytes_of`: nothing was copied"
    array.close()  # the driver ends the process if the receiver still maps it

def receive(end):
    end.want()
    tensor = end.socket.recv_tensor(device="cuda:0")
    assert end.bytes_of(tensor) == {7}
    end.null.fill(tensor.__cuda_array_interface__["data"][0], 9, tensor.nbytes)
    end.context.synchronize(0)
    end.tell()
    end.hear()
    del tensor
"""
    run(HEAD + program + TAIL)


def test_a_part_of_an_allocation(run):
    program = """
class Part:
    def __init__(self, whole, offset, count):
        self.whole = whole
        self.__cuda_array_interface__ = whole.__cuda_array_interface__ | {
            "shape": (count,), "data": (whole.pointer + offset, False)}

def send(end):
    end.until_wanted()
    whole = end.array(1 << 20)
    end.null.fill(whole.pointer, 1, whole.nbytes)
    end.null.fill(whole.pointer + 400, 2, 80000 * 4)
    end.socket.send_tensor(Part(whole, 400, 80000), copy=False).wait(PATIENCE)
    end.socket.send_tensor(Part(whole, 400, 80000))
    end.hear()
    whole.close()

def receive(end):
    end.want()
    for _ in range(2):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {2}
    end.tell()
"""
    run(HEAD + program + TAIL)


def test_into_memory_of_the_receiver(run):
    """On the GPU, of the host, as an array of numpy: without `device=`, once the GPU was asked for."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(300, 400)
    for number in range(1, 5):
        end.fill(array, number, delay=0.01)
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    out = end.array(300, 400)
    end.want()
    end.fill(out, 77, delay=0.05)
    assert end.socket.recv_tensor(out=out) is out and end.bytes_of(out) == {1}
    host = numpy.zeros((300, 400), "f4")
    assert end.socket.recv_tensor(out=host) is host and end.bytes_of_host(host) == {2}
    assert end.bytes_of_host(end.socket.recv_tensor()) == {3}
    assert set(end.socket.recv()) == {4}
    end.tell()
    out.close()
"""
    run(HEAD + program + TAIL, **SLOW)


def test_what_does_not_fit_out_stays(run):
    program = """
def send(end):
    end.until_wanted()
    array = end.array(300, 400)
    end.fill(array, 5)
    end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    out, other = end.array(300, 400, typestr="<i4"), end.array(400, 300)
    end.want()
    for wrong in (out, other):
        try:
            end.socket.recv_tensor(out=wrong)
        except TensorMismatch as error:
            print(error)
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {5}
    end.tell()
    out.close(), other.close()
"""
    assert run(HEAD + program + TAIL).splitlines() == [
        "out= is int32 [300, 400], the tensor float32 [300, 400]",
        "out= is float32 [400, 300], the tensor float32 [300, 400]",
    ]


def test_a_peer_that_never_asked_gets_it_by_the_host(run):
    program = """
def send(end):
    array = end.array(300, 400)
    for number in (1, 2):
        end.fill(array, number, delay=0.01)
        end.socket.send_tensor(array, copy=False if number == 2 else None)
    end.hear()
    array.close()

def receive(end):
    for number in (1, 2):
        tensor = end.socket.recv_tensor()
        assert type(tensor) is numpy.ndarray and end.bytes_of_host(tensor) == {number}
    print(end.null.count(CONTEXTS))
    end.tell()
"""
    assert run(HEAD + program + TAIL).splitlines() == ["0"], "it has no context of a GPU"


@pytest.mark.parametrize("typestr", ["<f2", "<i8", "|b1", "<c8", "|u1"])
def test_kinds_and_shapes(run, typestr):
    """Large ones stay on the GPU, small ones and empty ones go by the host."""
    program = f"""
SHAPES = [(70000,), (3, 5, 70000), (), (0, 4), (7,), (1, 1, 100000)]

def send(end):
    end.until_wanted()
    for shape in SHAPES:
        array = end.array(*shape, typestr={typestr!r})
        end.fill(array, 1)
        end.socket.send_tensor(array)
        end.hear()
        array.close()

def receive(end):
    end.want()
    for shape in SHAPES:
        tensor = end.socket.recv_tensor(device="cuda:0")
        assert tensor.shape == shape and tensor.__cuda_array_interface__["typestr"] == {typestr!r}
        assert not tensor.nbytes or end.bytes_of(tensor) == {{1}}
        end.tell()
"""
    run(HEAD + program + TAIL)


STATE = """
def state(end):
    return {
        "wide": end.array(300, 400), "small": end.array(7), "host": numpy.full((200, 100), 3, "i8"),
        "tall": end.array(100_000, typestr="<f2"), "empty": end.array(0, 5), "again": end.array(300, 400),
    }

def fill(end, tensors, byte, delay=0.0):
    for name, tensor in tensors.items():
        if name != "host":
            end.fill(tensor, byte, delay)
"""


@pytest.mark.parametrize("copy", ["None", "False"])
def test_a_dict_of_tensors(run, copy):
    program = f"""
def send(end):
    end.until_wanted()
    tensors = state(end)
    for byte in (1, 2):
        fill(end, tensors, byte, delay=0.02)
        tracker = end.socket.send_tensors(tensors, meta={{"step": byte}}, copy={copy})
        if tracker:
            tracker.wait(PATIENCE)
    end.hear()
    [tensor.close() for name, tensor in tensors.items() if name != "host"]

def receive(end):
    out = state(end)
    end.want()
    tensors, meta = end.socket.recv_tensors(device="cuda:0")
    assert meta == {{"step": 1}} and list(tensors) == list(out)
    for name, tensor in tensors.items():
        assert tensor.shape == out[name].shape and tensor.device == "cuda:0"
        if tensor.nbytes and name != "host":
            assert end.bytes_of(tensor) == {{1}}, name
    assert (end.read(tensors["host"]) == 3).all()
    del tensors, tensor
    fill(end, out, 9, delay=0.05)
    tensors, meta = end.socket.recv_tensors(out=out)
    assert meta == {{"step": 2}}
    for name, tensor in tensors.items():
        assert tensor is out[name]
        if tensor.nbytes and name != "host":
            assert end.bytes_of(tensor) == {{2}}, name
    assert (out["host"] == 3).all()
    print(end.null.count(MAPS) >= 3)
    [tensor.close() for name, tensor in out.items() if name != "host"]
    end.tell()
"""
    assert run(HEAD + STATE + program + TAIL, **SLOW) == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("versioned", [False, True])
def test_libraries_that_only_have_dlpack(run, versioned):
    program = f"""
from tests.cuda.null_driver import Capsules
from transfer.transports.core.native import cuda as cuda_of, dlpack

def send(end):
    end.until_wanted()
    array = end.array(300, 400, typestr="<i8")
    for number, copy in enumerate((None, False), 1):
        end.fill(array, number, delay=0.02)
        given = Capsules(array, 0, 64, {versioned})
        tracker = end.socket.send_tensor(given, copy=copy)
        assert set(given.asked) == {{1}}
        if tracker:
            tracker.wait(PATIENCE)
    end.hear()
    for wrong in (Capsules(array, 3, 64), Capsules(array, 0, 48)):
        try:
            end.socket.send_tensor(wrong)
        except NotATensor as error:
            print(error)
    array.close()

def receive(end):
    end.want()
    for number in (1, 2):
        tensor = end.socket.recv_tensor(device="cuda:0")
        assert tensor.__dlpack_device__() == (2, 0)
        stream = cuda_of.GpuStream(end.context)
        end.fill(Pointer(tensor), 9, delay=0.05)  # work of the default stream, which the other one has to see
        version = (1, 0) if {versioned} else None
        capsule = tensor.__dlpack__(stream=stream.number, max_version=version)
        pointer, *rest = dlpack.read(capsule)
        assert rest == [2, 0, 0, 64, (300, 400), (400, 1)]
        copy = end.array(300, 400, typestr="<i8")
        end.context.copy(copy.pointer, pointer, copy.nbytes, stream.number)
        end.context.synchronize(stream.number)
        assert end.null.peek(copy.pointer, 8) == bytes([9]) * 8
        copy.close()
        for wrong in ({{"copy": True}}, {{"dl_device": (1, 0)}}):
            try:
                tensor.__dlpack__(**wrong)
                print("given")
            except BufferError:
                pass
        del tensor, capsule
    end.tell()

class Pointer:
    def __init__(self, tensor):
        self.pointer, self.nbytes = tensor.__cuda_array_interface__["data"][0], tensor.nbytes
"""
    assert run(HEAD + program + TAIL).splitlines() == [
        "Capsules has elements of kind 3 with 64 bits",
        "Capsules has elements of kind 0 with 48 bits",
    ]


def test_gpus_with_other_numbers(run):
    """The receiver sees the second GPU alone, as its first."""
    program = """
def send(end):
    end.until_wanted()
    for index, byte in ((0, 3), (1, 4)):
        context = end.driver.context(index)
        array = Array(context, (300, 400))
        end.null.fill(array.pointer, byte, array.nbytes)
        before = end.null.count(BYTES)
        end.socket.send_tensor(array)
        end.hear()
        array.close()

def receive(end):
    end.want()
    for byte in (3, 4):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
        print(end.null.count(MAPS))
        end.tell()

if __name__ == "__main__":
    both(send, receive, NULL_CUDA_FIRST="1")
"""
    assert run(HEAD + program, NULL_CUDA_DEVICES="2").splitlines() == ["1", "2"], "one to try it"


def test_no_room_on_the_gpu(run):
    """What no block is left for goes by the host, with a warning."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(1000, 1000)
    for number in range(1, 6):
        end.fill(array, number)
        end.socket.send_tensor(array)
    [stream] = end.socket._streams()
    assert stream.carrier.refused["gpu"] > 0
    end.hear()
    array.close()

def receive(end):
    end.want()
    kept = [end.socket.recv_tensor() for number in range(5)]
    print([end.bytes_of_host(one) for one in kept], flush=True)
    end.tell()

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    both(send, receive)
"""
    said = run(HEAD + program, NULL_CUDA_MEMORY=str(13 << 20))
    assert "[{1}, {2}, {3}, {4}, {5}]" in said
    assert "copied through the host after all" in said and "CUDA_ERROR_OUT_OF_MEMORY" in said


def test_a_receiver_that_cannot_map(run):
    """In another container, for instance: it is tried before the first payload, and all go by the host."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(300, 400)
    for byte in range(1, 5):
        end.fill(array, byte)
        end.socket.send_tensor(array, copy=False if byte == 4 else None)
        end.context.synchronize(0)
    assert not end.socket._tensor_capabilities(0).maps_gpus
    end.hear()
    array.close()

def receive(end):
    end.want()
    for byte in range(1, 5):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
    assert len(end.socket.peers()) == 1 and end.null.count(MAPS) == 0
    end.tell()

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    both(send, receive, NULL_CUDA_IPC="0")
"""
    said = run(HEAD + program)
    assert said.count("\n") == 1 and "go through the host: a peer on this host cannot map" in said


def test_switched_off(run):
    program = """
def send(end):
    array = end.array(300, 400)
    for byte in range(1, 4):
        end.fill(array, byte)
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    end.want()
    for byte in range(1, 4):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
    print(end.null.count(MAPS))
    end.tell()
"""
    assert run(HEAD + program + TAIL, TRANSFER_CUDA_IPC="off") == "0\n"


def test_the_first_payloads_are_tried_without_a_word(run):
    program = """
def send(end):
    until(lambda: end.socket._tensor_capabilities(0).maps_gpus)
    array = end.array(300, 400)
    for byte in range(1, 101):
        end.fill(array, byte)
        end.socket.send_tensor(array)
        end.hear()
    array.close()

def receive(end):
    end.want()
    for byte in range(1, 101):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
        end.tell()
    print(end.null.count(MAPS))

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    both(send, receive)
"""
    assert 2 <= int(run(HEAD + program)) <= 30, "the try, and a few blocks that are used again"


def test_a_receiver_that_is_killed(run):
    """Its mappings go with it: the tracker ends, and the memory is the sender's again."""
    program = """
from contextlib import suppress

def send(end):
    end.until_wanted()
    array = end.array(1000, 1000)
    copied = end.array(1000, 1000)
    end.socket.send_tensor(copied)
    tracker = end.socket.send_tensor(array, copy=False)
    end.hear()
    os.kill(end.receiver, signal.SIGKILL)
    with suppress(Broken):  # unless its receipt was confirmed
        tracker.wait(PATIENCE)
    until(lambda: not end.socket.peers())
    array.close(), copied.close()
    print("free again", flush=True)

def receive(end):
    end.want()
    kept = [end.socket.recv_tensor(device="cuda:0") for _ in range(2)]
    end.tell()
    time.sleep(PATIENCE)

if __name__ == "__main__":
    both(send, receive, status=-signal.SIGKILL)
"""
    assert run(HEAD + program) == "free again\n", "the driver ends a process that frees what is mapped"


def test_a_sender_that_is_killed(run, null_name):
    """The receiver is not stuck, and what waits for the sender's GPU goes on."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(1000, 1000)
    end.socket.send_tensor(array)
    end.fill(array, 1, delay=5)
    end.socket.send_tensor(array)  # is not there yet when the sender ends
    end.hear()
    time.sleep(PATIENCE)

def receive(end):
    end.want()
    kept = [end.socket.recv_tensor(device="cuda:0") for _ in range(2)]
    os.kill(os.getppid(), signal.SIGKILL)
    until(lambda: not end.socket.peers())
    end.read(kept[1])
    kept.clear()
    end.socket.context.destroy()
    print("done", flush=True)
"""
    assert run(HEAD + program + TAIL, status=-9) == "done\n"
    null_driver.remove(null_name)


def test_threads_send_at_once(run):
    program = """
import threading

def send(end):
    end.until_wanted()
    arrays = [end.array(200, 200) for _ in range(4)]

    def work(array, first):
        for byte in range(first, first + 50):
            stream = cuda_of.GpuStream(end.context)
            array.stream = stream.number
            end.fill(array, byte, delay=0.001, stream=stream.number)
            end.socket.send_tensor(array)
            end.context.synchronize(stream.number)

    threads = [threading.Thread(target=work, args=(array, 50 * at)) for at, array in enumerate(arrays)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    end.hear()
    [array.close() for array in arrays]

def receive(end):
    end.want()
    seen = []
    for _ in range(200):
        [byte] = end.bytes_of(end.socket.recv_tensor(device="cuda:0"))
        seen.append(byte)
    assert sorted(seen) == list(range(200))
    for first in (0, 50, 100, 150):
        ours = [byte for byte in seen if first <= byte < first + 50]
        assert ours == sorted(ours)
    end.tell()
"""
    head = HEAD + "from transfer.transports.core.native import cuda as cuda_of\n"
    run(head + program + TAIL)


def test_a_sender_that_ends_first(run):
    """What was received stays readable as long as the sender's process lives."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(1000, 1000)
    end.fill(array, 6)
    end.socket.send_tensor(array)
    end.context.synchronize(0)
    array.close()

def receive(end):
    end.want()
    tensor = end.socket.recv_tensor(device="cuda:0")
    until(lambda: not end.socket.peers())
    assert end.bytes_of(tensor) == {6}
"""
    run(HEAD + program + TAIL)


@pytest.mark.slow
def test_a_context_that_ends_waits_for_those_who_take(run):
    program = """
def send(end):
    end.until_wanted()
    arrays = [end.array(300, 400) for _ in range(6)]
    for byte, array in enumerate(arrays, 1):
        end.fill(array, byte)
        end.socket.send_tensor(array, copy=False if byte % 2 else None)
    shm_stream.PATIENCE = PATIENCE
    end.socket.context.destroy()
    assert gpu_shares._left == [], "all were taken and let go by then"
    [array.close() for array in arrays]

def receive(end):
    end.want()
    time.sleep(1)
    for byte in range(1, 7):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
"""
    head = HEAD + "from transfer.transports.shm import gpu_shares, shm_stream\n"
    run(head + program + TAIL)


@pytest.mark.parametrize("contexts", [1, 2])
def test_in_one_process(run, contexts):
    """No handle is needed, nor works: the receiver has the sender's memory itself."""
    program = f"""
with transfer.Context() as one, transfer.Context() as two:
    push, pull = one.socket(transfer.PUSH), (one, two)[{contexts} - 1].socket(transfer.PULL)
    pull.rcvtimeo = 10_000
    pull.bind("tcp://127.0.0.1:0")
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, timeout=PATIENCE)
    end, other = End(push, None), End(pull, None)
    other.want()
    end.until_wanted()
    array = end.array(300, 400)
    for byte in range(1, 11):
        end.fill(array, byte, delay=0.01)
        tracker = push.send_tensor(array, copy=False if byte % 2 else None)
        tensor = pull.recv_tensor(device="cuda:0")
        assert end.bytes_of(tensor) == {{byte}}
        same = tensor.__cuda_array_interface__["data"] == array.__cuda_array_interface__["data"]
        assert same == bool(byte % 2)
        del tensor
        if tracker:
            tracker.wait(PATIENCE)
    print(end.null.count(MAPS))
    array.close()
"""
    assert run(HEAD + program) == "0\n"


@pytest.mark.slow
def test_a_map_that_fails_later(run):
    """The caller gets the error, and the message when it works again."""
    program = """
import ctypes

def send(end):
    end.until_wanted()
    array = end.array(300, 400)
    for byte in (1, 2):
        end.fill(array, byte)
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    end.want()
    first = end.socket.recv_tensor(device="cuda:0")  # so that the next one has another block
    assert end.bytes_of(first) == {1}
    setenv = ctypes.CDLL(None).setenv
    setenv(b"NULL_CUDA_IPC", b"0", 1)
    for call in (lambda: end.socket.recv_tensor(device="cuda:0"), end.socket.recv):
        try:
            call()
        except DeviceError as error:
            print(error)
    setenv(b"NULL_CUDA_IPC", b"1", 1)
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {2}
    end.tell()
"""
    assert run(HEAD + program + TAIL) == "mapping memory of another process: CUDA_ERROR_MAP_FAILED\n" * 2


@pytest.mark.slow
def test_the_numbers_of_payloads_begin_again(run):
    program = """
def send(end):
    end.until_wanted()
    array = end.array(200, 200)
    [stream] = end.socket._streams()
    stream.carrier._gpu_shares._share = (1 << 24) - 3
    for byte in range(1, 9):
        end.fill(array, byte)
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    end.want()
    kept = [end.socket.recv_tensor(device="cuda:0") for _ in range(8)]
    assert [end.bytes_of(one) for one in kept] == [{byte} for byte in range(1, 9)]
    end.tell()
"""
    run(HEAD + program + TAIL)


def test_a_tensor_in_a_cycle(run):
    program = """
import gc

def send(end):
    end.until_wanted()
    array = end.array(500, 1000)
    tracker = end.socket.send_tensor(array, copy=False)
    end.hear()
    tracker.wait(PATIENCE)
    array.close()

def receive(end):
    end.want()
    class Node: pass
    tensor = end.socket.recv_tensor(device="cuda:0")
    node = Node()  # younger than the tensor, so that the collector clears the tensor first
    node.me, node.tensor = node, tensor
    del node, tensor
    gc.collect()
    end.tell()
    until(lambda: not end.socket.peers())
"""
    run(HEAD + program + TAIL)


@pytest.mark.slow
def test_a_handler_that_raises_while_it_is_fetched(run):
    """At every line of it: the next call receives the same message."""
    program = """
import linecache

class Raised(Exception): pass

def send(end):
    end.until_wanted()
    array = end.array(500, 1000)
    for byte in range(1, 31):
        end.fill(array, byte)
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    end.want()
    lines = []

    def trace(frame, event, argument):
        if frame.f_code.co_name != "fetch" or "gpu_mappings" not in frame.f_code.co_filename:
            return None

        def local(frame, event, argument):
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            # No handler runs between the end of a call and `return`.
            if event == "line" and frame.f_lineno not in lines and "return" not in text:
                lines.append(frame.f_lineno)
                raise Raised
            return local
        return local

    seen = []
    while len(seen) < 30:
        sys.settrace(trace)
        try:
            tensor = end.socket.recv_tensor(device="cuda:0")
        except Raised:
            continue
        finally:
            sys.settrace(None)
        seen.append(*end.bytes_of(tensor))
    assert seen == list(range(1, 31))
    print(len(lines) >= 8)
    end.tell()
"""
    assert run(HEAD + program + TAIL) == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("copy", ["None", "False"])
def test_what_a_killed_receiver_never_saw_goes_to_the_next_one(run, copy):
    program = f"""
import multiprocessing

def receiver(endpoint, pipe, first):
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.rcvtimeo, pull.rcvhwm = 3000, 2
        builder = gpu_builder("cuda:0", None)
        pull._want_gpu(builder.uuid, builder.index)
        pull.bind(endpoint)
        pipe.send(pull.last_endpoint)
        if first:
            pipe.recv()
            pull.recv_tensor(device="cuda:0")
            pipe.send(1)
            time.sleep(PATIENCE)
        count = 0
        try:
            while True:
                try:
                    pull.recv_tensor(device="cuda:0")
                    count += 1
                except TensorMismatch:
                    pull.recv()
        except Again:
            pipe.send(count)

if __name__ == "__main__":
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=receiver, args=("tcp://127.0.0.1:0", theirs, True))
        process.start()
        endpoint = ours.recv()
        push.sndhwm, push.sndtimeo = 50, 500
        push.connect(endpoint)
        push.wait_for_peers(1, timeout=PATIENCE)
        end = End(push, None)
        end.until_wanted()
        sent = 0
        try:
            for _ in range(30):
                push.send_tensor(end.array(500, 1000), copy={copy})
                sent += 1
                for _ in range(3):
                    push.send(bytes(60000))  # so that they wait in the queue
        except Again:
            pass
        ours.send(0)
        ours.recv()
        process.kill()
        process.join()
        process = spawn.Process(target=receiver, args=(endpoint, theirs, False))
        process.start()
        ours.recv()
        received = ours.recv()
        process.join()
        print(sent - received <= 4 < sent, flush=True)
"""
    assert run(HEAD + program) == "True\n", "all but what the killed one may have had"


def test_a_receiver_that_closes_frees_what_it_never_took(run):
    program = """
def send(end):
    end.until_wanted()
    arrays = [end.array(500, 1000) for _ in range(3)]
    trackers = [end.socket.send_tensor(array, copy=False) for array in arrays]
    end.tell()
    end.hear()
    until(lambda: [tracker.done for tracker in trackers] == [False, True, True])
    end.tell()
    until(lambda: trackers[0].done)
    end.tell()
    [array.close() for array in arrays]

def receive(end):
    end.want()
    end.hear()
    tensor = end.socket.recv_tensor(device="cuda:0")
    end.socket.close()
    end.tell()
    end.hear()
    del tensor
    end.hear()
"""
    run(HEAD + program + TAIL)


@pytest.mark.slow
def test_each_context_gives_its_blocks_back(run, null_name):
    program = """
def send(end):
    endpoint = end.hear()
    array = end.array(500, 1000)
    for _ in range(6):
        with transfer.Context() as context, context.socket(transfer.PUSH) as push:
            push.connect(endpoint)
            push.wait_for_peers(1, timeout=PATIENCE)
            End(push, None).until_wanted()
            push.send_tensor(array)
            end.hear()
        print(len(null_driver.left(NAME)), flush=True)
    end.tell()
    array.close()

def receive(end):
    end.want()
    end.tell(end.socket.last_endpoint)
    for _ in range(6):
        end.socket.recv_tensor(device="cuda:0")
        end.tell()
    end.hear()
"""
    head = HEAD + f"from tests.cuda import null_driver\nNAME = {null_name!r}\n"
    assert run(head + program + TAIL).splitlines() == ["1"] * 6


@pytest.mark.slow
def test_the_last_tensors_in_several_threads(run):
    program = """
import threading

def send(end):
    end.until_wanted()
    array = end.array(500, 1000)
    for _ in range(40):
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    end.want()
    tensors = [end.socket.recv_tensor(device="cuda:0") for _ in range(40)]
    end.socket.close()
    end.socket.context.destroy()
    parts = [tensors[at::4] for at in range(4)]
    del tensors
    threads = [threading.Thread(target=part.clear) for part in parts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    end.tell()
"""
    run(HEAD + program + TAIL)


@pytest.mark.parametrize("end", ["exit", "fork"])
def test_tensors_that_outlive_the_context(run, end):
    """At the interpreter's end, and in a child of a fork, they end without a word."""
    program = f"""
def send(end):
    end.until_wanted()
    array = end.array(500, 1000)
    end.fill(array, 3)
    for _ in range(3):
        end.socket.send_tensor(array)
    end.hear()
    array.close()

def receive(end):
    global kept
    end.want()
    kept = [end.socket.recv_tensor(device="cuda:0") for _ in range(3)]
    end.socket.context.destroy()
    if {end!r} == "fork":
        if not os.fork():
            kept.clear()
            os._exit(0)
        os.wait()
        assert [end.bytes_of(one) for one in kept] == [{{3}}] * 3
        kept.clear()
    end.tell()
"""
    assert run(HEAD + program + TAIL) == ""


@pytest.mark.slow
def test_no_room_for_the_trial(run):
    program = """
import ctypes

def send(end):
    until(lambda: end.socket._tensor_capabilities(0).maps_gpus)
    array = end.array(500, 1000)
    ctypes.CDLL(None).setenv(b"NULL_CUDA_MEMORY", b"2000000", 1)
    end.fill(array, 4)
    end.socket.send_tensor(array)
    end.socket.send_tensors({"a": array})
    end.hear()
    array.close()

def receive(end):
    end.want()
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {4}
    tensors, _ = end.socket.recv_tensors(device="cuda:0")
    assert end.bytes_of(tensors["a"]) == {4}
    end.tell()
"""
    run(HEAD + program + TAIL)


def test_wrong_descriptions_and_devices(run):
    program = """
class Described:
    def __init__(self, interface):
        self.__cuda_array_interface__ = interface

def send(end):
    array = end.array(500, 1000)
    right = array.__cuda_array_interface__
    wrong = [{}, 5, right | {"data": None}, right | {"shape": None}, right | {"typestr": "bogus"},
             right | {"stream": "x"}, right | {"shape": (-1, 500)}, right | {"shape": (500.0, 1000)},
             right | {"strides": (4,)}, right | {"shape": (500, 2000)}, right | {"data": (12345, False)},
             right | {"strides": (8000, 4)}]
    for one in wrong:
        for call in (end.socket.send_tensor, lambda tensor: end.socket.send_tensors({"a": tensor})):
            try:
                call(Described(one))
                print("taken", one)
            except NotATensor:
                pass
    end.tell()
    array.close()

def receive(end):
    array = end.array(500, 1000)
    right = array.__cuda_array_interface__
    devices = ["cuda:99999999999999999999", "cuda:2147483648", 10**30, "", ":0", "cuda0", "cuda:", True, -1]
    for device in devices:
        try:
            end.socket.recv_tensor(device=device)
            print("taken", device)
        except ArgumentError:
            pass
    try:
        end.socket.recv_tensor(device="cuda:5")
    except ArgumentError:
        pass
    for one in ({}, right | {"data": (array.pointer + 10000, False)}, right | {"typestr": "x"}):
        try:
            end.socket.recv_tensor(out=Described(one))
            print("taken", one)
        except (NotATensor, TensorMismatch):
            pass
    end.hear()
    array.close()
"""
    assert run(HEAD + program + TAIL) == ""


@pytest.mark.slow
def test_nothing_grows(run):
    program = """
def send(end):
    end.until_wanted()
    array = end.array(500, 500)
    for number in range(300):
        tracker = end.socket.send_tensor(array, copy=False if number % 3 == 0 else None)
        if tracker:
            tracker.wait(PATIENCE)
        if number == 100:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= before
    end.hear()
    array.close()

def receive(end):
    end.want()
    for number in range(300):
        end.socket.recv_tensor(device="cuda:0")
        if number == 100:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= before
    end.tell()
"""
    run(HEAD + program + TAIL, NULL_CUDA_MEMORY=str(64 << 20))


def test_a_socket_that_must_not_stage(run):
    """It says why, until the receiver asks; then its first tensor is mapped, without one through the host."""
    program = """
def send(end):
    socket = end.socket
    socket.gpu_staging = False
    array, other = end.array(500, 1000), end.array(500, 1000)
    for byte, one in ((1, array), (2, other)):
        end.fill(one, byte, delay=0.02)
    for send in (
        lambda: socket.send_tensor(array, transfer.DONTWAIT),
        lambda: socket.send_tensor(array, transfer.DONTWAIT, copy=False),
        lambda: socket.send_tensors({"a": array, "b": other}, flags=transfer.DONTWAIT),
    ):
        try:
            send()
        except RegistrationError as error:
            assert error.reason == "staging" and "not every peer has asked" in str(error), error
        else:
            raise AssertionError("it was staged")
    assert end.null.count(BYTES) == 0
    socket.send_tensor(end.array(10))
    socket.send_tensors({"small": end.array(10), "host": numpy.ones(100_000)})
    assert socket.peers()[0].gpu == ""
    end.tell()  # the receiver asks in a moment
    moved = end.null.count(BYTES)
    socket.send_tensors({"a": array, "b": other}, copy=False)
    socket.send_tensor(array)
    assert end.null.count(BYTES) - moved == array.nbytes, "of the second one, on the GPU"
    assert socket.peers()[0].gpu == "mapped: every peer maps memory of this GPU"
    socket.gpu_staging = True
    socket.send_tensor(array, flags=transfer.SNDMORE)
    socket.send(b"end")
    assert socket.peers()[0].gpu== "staging: a message of several parts is copied through the host"
    counts = dict(socket_counts(socket))
    found = {key[1][1]: count for key, count in counts.items() if key[0] == "transfer_gpu_sends_total"}
    assert found == {"mapped": 2, "staging": 1}, found
    end.hear()

def receive(end):
    assert end.socket.recv_tensor().shape == (10,)
    end.socket.recv_tensors()
    end.hear()
    tensors, _ = end.socket.recv_tensors(device="cuda:0")
    assert [end.bytes_of(one) for one in tensors.values()] == [{1}, {2}]
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {1}
    end.socket.recv_multipart()
    end.tell()
"""
    run(HEAD + "from transfer.metrics.counters import socket_counts\n" + program + TAIL)


@pytest.mark.slow
def test_a_peer_that_cannot_map_where_nothing_may_be_staged(run):
    program = """
def send(end):
    end.socket.gpu_staging = False
    array = end.array(500, 1000)
    until(lambda: end.socket._tensor_capabilities(0).maps_gpus)
    for send in (lambda: end.socket.send_tensor(array), lambda: end.socket.send_tensors({"a": array})):
        try:
            send()
        except RegistrationError as error:
            assert error.reason == "staging", error
        else:
            raise AssertionError("it was staged")
    end.tell()

def receive(end):
    end.want()
    end.hear()

if __name__ == "__main__":
    both(send, receive, NULL_CUDA_IPC="0")
"""
    run(HEAD + program)


def test_a_context_that_ends_while_a_peer_keeps_a_lent_tensor(run):
    """Its tracker is never done, and says why: to free the memory would break the peer."""
    program = """
def send(end):
    end.until_wanted()
    array = end.array(500, 1000)
    tracker = end.socket.send_tensor(array, copy=False)
    tracker.wait_confirmed(PATIENCE)
    end.socket.close()
    end.socket.context.destroy()
    assert not tracker.done
    try:
        tracker.wait(PATIENCE)
    except Broken as error:
        assert "a peer still uses this memory" in str(error), error
    else:
        raise AssertionError("it may be freed?")
    end.tell()

def receive(end):
    end.want()
    tensor = end.socket.recv_tensor(device="cuda:0")
    end.hear()
    assert end.bytes_of(tensor) == {0}
"""
    run(HEAD + program + TAIL)


def test_arguments_of_a_gpu(run):
    program = """
from transfer.tensors.gpu_builders import gpu_builder

with transfer.Context() as context, context.socket(transfer.PULL) as pull:
    for arguments, text in (
        ({"device": "cuda:7"}, "which has 1"),
        ({"device": "cuda:0", "out": numpy.zeros(3)}, "out= says where"),
    ):
        try:
            pull.recv_tensor(**arguments)
        except ArgumentError as error:
            assert text in str(error), error
        else:
            raise AssertionError(arguments)
    import torch
    try:
        pull.recv_tensor(device="cuda:0", like="torch")
    except NotSupported as error:
        assert "has no CUDA" in str(error)
"""
    run(HEAD + program)
