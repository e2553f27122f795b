"""Tensors on a GPU between sockets of one process, on a driver without a GPU. None of this ran on a GPU."""

from __future__ import annotations

HEAD = """
import gc, os, sys, time
import numpy
import transfer
from tests.cuda.ends import *
from tests.cuda.null_driver import BYTES, MAPS, Array, Capsules
from transfer.transports.core.native.cuda import GpuStream
from transfer.transports.errors import *

context = transfer.Context()
push, pull = context.socket(transfer.PUSH), context.socket(transfer.PULL)
push.sndtimeo = pull.rcvtimeo = int(PATIENCE * 1000)
pull.bind("inproc://gpu")
push.connect("inproc://gpu")
push.wait_for_peers(1, timeout=PATIENCE)
end, far = End(push, None), End(pull, None)

def pointer_of(tensor):
    return tensor.__cuda_array_interface__["data"][0]
"""
SLOW = {"NULL_CUDA_DELAY_US": "2000"}


def test_the_tensor_itself(run):
    """Lent until the receiver has deleted it and its work is done; nothing is copied."""
    program = """
array = end.array(500, 1000)
end.fill(array, 7, delay=0.05)
tracker = push.send_tensor(array, copy=False)
tensor = pull.recv_tensor(device="cuda:0")
assert pointer_of(tensor) == array.pointer
assert end.null.count(BYTES) == 0
assert far.bytes_of(tensor) == {7}
end.null.fill(array.pointer, 8, array.nbytes, 0, 0.1)  # the receiver's work
del tensor
assert not tracker.done
tracker.wait(PATIENCE)
assert set(end.null.peek(array.pointer, array.nbytes)) == {8}, "its work was not waited for"
array.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_a_copy_in_the_order_of_streams(run):
    """The kernel that writes it is late, the sender overwrites it at once, the receiver reads at once."""
    program = """
side = GpuStream(end.context)
array = end.array(500, 1000, stream=side.number)
kept = []
for number in range(1, 11):
    end.fill(array, number, delay=0.01, stream=side.number)
    push.send_tensor(array)
    kept.append(pull.recv_tensor(device="cuda:0"))
end.fill(array, 99, stream=side.number)
assert end.null.count(BYTES) == 10 * array.nbytes
assert [far.bytes_of(one) for one in reversed(kept)] == [{number} for number in range(10, 0, -1)]
assert len({pointer_of(one) for one in kept}) == 10
kept.clear()
array.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_what_the_receiver_still_reads_is_not_freed(run):
    program = """
array, target = end.array(500, 1000), end.array(500, 1000)
end.fill(array, 5)
push.send_tensor(array)
tensor = pull.recv_tensor(device="cuda:0")
end.fill(target, 0, delay=0.1)
far.context.copy(target.pointer, pointer_of(tensor), tensor.nbytes, 0)
del tensor
others = [end.array(500, 1000) for _ in range(4)]  # would get its memory
for other in others:
    end.fill(other, 6, stream=2)
assert far.bytes_of(target) == {5}
for one in (array, target, *others):
    one.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_to_the_host_and_into_memory_of_the_caller(run):
    program = """
array, target = end.array(500, 1000), end.array(500, 1000)
end.fill(array, 3, delay=0.05)
tracker = push.send_tensor(array, copy=False)
kept = pull.recv_tensor()
tracker.wait(PATIENCE)  # although the copy lives
assert far.bytes_of_host(kept) == {3}
for copy in (True, False):
    push.send_tensor(array, copy=copy)
    out = numpy.zeros((500, 1000), "f4")
    assert pull.recv_tensor(out=out) is out and far.bytes_of_host(out) == {3}
    push.send_tensor(array, copy=copy)
    end.fill(target, 0)
    assert pull.recv_tensor(out=target) is target and far.bytes_of(target) == {3}
    push.send_tensor(array, copy=copy)
    assert pull.recv() == bytes([3]) * array.nbytes
push.send_tensor(array)
try:
    pull.recv_tensor(out=numpy.zeros(3))
except TensorMismatch:
    pass
assert pull.recv_tensor(device="cuda:0").shape == (500, 1000), "it was kept"
array.close()
target.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_a_dict(run):
    program = """
arrays = {name: end.array(200, 1000) for name in "abc"}
for number, array in enumerate(arrays.values()):
    end.fill(array, number, delay=0.02)
tracker = push.send_tensors({**arrays, "host": numpy.ones(9, "f4")}, meta={"step": 1}, copy=False)
tensors, metadata = pull.recv_tensors(device="cuda:0")
assert metadata == {"step": 1}
assert [pointer_of(tensors[name]) for name in "abc"] == [array.pointer for array in arrays.values()]
assert far.bytes_of(tensors["host"]) == {0, 63, 128}
del tensors["a"], tensors["host"]
time.sleep(0.05)
assert not tracker.done, "two tensors are still lent"
tensors.clear()
tracker.wait(PATIENCE)
for array in arrays.values():
    array.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_any_library(run):
    program = """
array = end.array(500, 1000)
end.fill(array, 4, delay=0.05)
push.send_tensor(Capsules(array, 2, 32), copy=False)
tensor = pull.recv_tensor(device="cuda:0")
assert pointer_of(tensor) == array.pointer and far.bytes_of(tensor) == {4}, far.bytes_of(tensor)
push.send_tensor(tensor)  # what came from here
again = pull.recv_tensor(device="cuda:0")
assert far.bytes_of(again) == {4}
del tensor, again
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_a_peer_that_closes_before_it_takes(run):
    """The messages go to the next one, over TCP by the host."""
    program = """
array = end.array(500, 1000)
end.fill(array, 2, delay=0.05)
tracker = push.send_tensor(array, copy=False)
push.send_tensor(array)
pull.close()
tracker.wait(PATIENCE)
end.fill(array, 9)
other = context.socket(transfer.PULL)
other.rcvtimeo = int(PATIENCE * 1000)
other.bind("tcp://127.0.0.1:*")
push.connect(other.last_endpoint)
for _ in range(2):
    assert far.bytes_of_host(other.recv_tensor()) == {2}
push.send_tensor(array)
assert far.bytes_of_host(other.recv_tensor()) == {9}
array.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, **SLOW)


def test_what_is_never_taken_is_given_back(run):
    """To their owners, and to the GPU, which has room for ten."""
    program = """
array = end.array(1024, 1024)
for _ in range(30):
    tracker = push.send_tensor(array, copy=False)
    pull.recv_tensor(device="cuda:0")
    tracker.wait(PATIENCE)
    push.send_tensor(array)
    pull.recv_tensor(device="cuda:0")
for _ in range(3):
    tracker = push.send_tensor(array, copy=False)
    push.send_tensor(array)
context.destroy(linger=0)
until(lambda: tracker.done)

def has_room():
    try:
        end.context.free(end.context.allocate(36 << 20))
    except DeviceError:
        return False
    return True

until(has_room)
"""
    run(HEAD + program, NULL_CUDA_MEMORY=str(40 << 20))


def test_no_memory_for_a_copy_goes_through_the_host(run):
    program = """
array = end.array(1024, 1024)
end.fill(array, 2)
push.send_tensor(array)
assert far.bytes_of_host(pull.recv_tensor()) == {2}
tracker = push.send_tensor(array, copy=False)
assert pointer_of(pull.recv_tensor(device="cuda:0")) == array.pointer
push.close()
pull.close()
context.term()
"""
    run(HEAD + program, NULL_CUDA_MEMORY=str(6 << 20))


def test_a_forked_child_frees_nothing(run):
    program = """
array = end.array(500, 1000)
end.fill(array, 1)
tracker = push.send_tensor(array, copy=False)
tensor = pull.recv_tensor(device="cuda:0")
child = os.fork()
if not child:
    del tensor
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
time.sleep(0.05)
assert not tracker.done
assert far.bytes_of(tensor) == {1}
del tensor
tracker.wait(PATIENCE)
push.close()
pull.close()
context.term()
"""
    run(HEAD + program)


def test_each_dtype_of_numpy(run):
    """Also those whose number is not their size: dates, texts."""
    program = """
from tests.cuda.null_driver import Array
from transfer.transports.core import address_of

for dtype in ("<M8[ns]", "<m8[s]", "<U3", "|S5", "<c16", "|b1", ">i4", "<f2"):
    data = numpy.arange(80_000).astype(dtype) if dtype[1] not in "Mm" else numpy.arange(80_000).view(dtype)
    array = Array(end.context, data.shape, "|u1")
    end.context.free(array.pointer)
    array.typestr, array.nbytes = data.dtype.str, data.nbytes
    array.pointer = end.context.allocate(data.nbytes)
    end.context.copy(array.pointer, address_of(data.view("u1")), data.nbytes, 0)
    for copy in (None, False):
        push.send_tensor(array, copy=copy)
        assert numpy.array_equal(pull.recv_tensor(), data), dtype
        push.send_tensors({"x": array, "y": array}, copy=copy)
        tensors, _ = pull.recv_tensors()
        assert numpy.array_equal(tensors["y"], data), dtype
    array.close()
push.close()
pull.close()
context.term()
"""
    run(HEAD + program)


def test_without_a_peer_it_waits_for_one(run):
    """A socket that must not stage knows no way yet."""
    program = """
array = end.array(500, 1000)
other, late = context.socket(transfer.PUSH, gpu_staging=False, sndtimeo=100), context.socket(transfer.PULL)
other.connect("inproc://late")
try:
    other.send_tensor(array)
except Again:
    pass
else:
    raise AssertionError("no peer is there")
other.sndtimeo = late.rcvtimeo = int(PATIENCE * 1000)
late.bind("inproc://late")
other.send_tensor(array, copy=False)
assert pointer_of(late.recv_tensor(device="cuda:0")) == array.pointer
for one in (other, late, push, pull):
    one.close()
context.term()
"""
    run(HEAD + program)
