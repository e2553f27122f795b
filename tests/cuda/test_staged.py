"""Tensors on a GPU over TCP, through pinned memory: copies run while the connection writes and reads. On a
driver without a GPU; none of this ran on a GPU."""

from __future__ import annotations

import pytest

HEAD = """
import logging, os, signal, sys, threading, time
import numpy
import transfer
from transfer.tensors.pinned import POOL
from transfer.transports.errors import *
from tests.cuda.ends import *
from tests.cuda.null_driver import BYTES, COPIES
"""
TAIL = """
if __name__ == "__main__":
    both(send, receive)
"""
SLOW = {"NULL_CUDA_DELAY_US": "1000", "TRANSFER_LOCAL": "off"}


@pytest.mark.parametrize("checksum", [False, True])
def test_in_the_order_of_streams(run, checksum):
    """The kernel that writes it is late, the sender overwrites it as soon as it may, the receiver's stream
    is busy."""
    program = """
def send(end):
    end.socket.checksum = CHECKSUM
    array = end.array(24 << 20, typestr="|u1")
    for number in range(1, 6):
        end.fill(array, number, delay=0.02)
        end.socket.send_tensor(array, copy=number % 2 == 0)
        end.fill(array, 99)
    end.hear()
    assert end.null.count(COPIES) >= 5 * 6, "piece by piece"
    array.close()

def receive(end):
    out = end.array(24 << 20, typestr="|u1")
    for number in range(1, 6):
        end.fill(out, 0, delay=0.02)
        if number % 2:
            assert end.socket.recv_tensor(out=out) is out
            assert end.bytes_of(out) == {number}
        else:
            assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {number}
    end.tell()
    out.close()
"""
    program = program.replace("CHECKSUM", str(checksum))
    run(HEAD + program + TAIL, **SLOW)


def test_it_is_on_the_wire_before_the_last_copy(run):
    """The receiver has the beginning while the copy of the end still waits for a kernel."""
    program = """
def send(end):
    from transfer.tensors.driver_device import DriverDevice

    array, scratch = end.array(16 << 20, typestr="|u1"), end.array(1)
    end.fill(array, 5)
    copy_out = DriverDevice.copy_out

    def copy_out_late(self, flat, start, *rest):
        if start == 12 << 20:
            end.null.fill(scratch.pointer, 1, 1, self.current()[1], 1.0)
        return copy_out(self, flat, start, *rest)

    DriverDevice.copy_out = copy_out_late
    began = time.monotonic()
    end.socket.send_tensor(array)
    assert time.monotonic() - began > 0.9
    first, whole = end.hear()
    assert first and whole == {5}

def receive(end):
    sizes = []
    from transfer.tensors.device import Landing
    landed = Landing.landed

    def watched(self, nbytes):
        sizes.append((nbytes, time.monotonic()))
        landed(self, nbytes)

    Landing.landed = watched
    whole = end.bytes_of(end.socket.recv_tensor(device="cuda:0"))
    gap = max(after[1] - before[1] for before, after in zip(sizes, sizes[1:]))
    end.tell((sizes[0][0] < (12 << 20) and gap > 0.5, whole))
"""
    run(HEAD + program + TAIL, TRANSFER_LOCAL="off")


def test_a_dict(run):
    program = """
def send(end):
    arrays = {f"t{number}": end.array(512, 1024 + number) for number in range(12)}
    for copy in (None, False):
        for number, array in enumerate(arrays.values()):
            end.fill(array, number + 1, delay=0.005)
        tracker = end.socket.send_tensors(arrays, copy=copy)
        assert (tracker is None) == (copy is None)
        for array in arrays.values():
            end.fill(array, 99)
    mixed = {"gpu": arrays["t0"], "host": numpy.full((700, 700), 3, "u1"), "small": numpy.ones(3, "u1")}
    end.socket.send_tensors(mixed)
    mixed["host"][...] = 4
    end.hear()

def receive(end):
    tensors, _ = end.socket.recv_tensors(device="cuda:0")
    assert [end.bytes_of(one) for one in tensors.values()] == [{number + 1} for number in range(12)]
    out = {name: end.array(*one.shape) for name, one in tensors.items()}
    for one in out.values():
        end.fill(one, 0, delay=0.005)
    end.socket.recv_tensors(out=out)
    assert [end.bytes_of(one) for one in out.values()] == [{number + 1} for number in range(12)]
    mixed, _ = end.socket.recv_tensors(device="cuda:0")
    assert [end.bytes_of(mixed[name]) for name in ("gpu", "host", "small")] == [{99}, {3}, {1}]
    end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


@pytest.mark.slow
def test_a_receiver_that_takes_it_later(run):
    """The message was read before the call, and after a call that ended in the middle of it."""
    program = """
def send(end):
    array = end.array(32 << 20, typestr="|u1")
    for number in (1, 2):
        end.fill(array, number, delay=0.3)
        end.socket.send_tensor(array)
    end.hear()

def receive(end):
    out = end.array(32 << 20, typestr="|u1")
    end.socket.rcvtimeo = 50
    for number in (1, 2):
        again = 0
        while True:
            try:
                end.socket.recv_tensor(out=out)
                break
            except Again:
                again += 1
        assert end.bytes_of(out) == {number}
    end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


def test_a_gpu_that_fails_in_the_middle(run):
    """The caller gets the driver's error, the receiver nothing, and the next message comes."""
    program = """
def send(end):
    from transfer.tensors.driver_device import DriverDevice
    from transfer.transports.errors import DeviceError

    array = end.array(32 << 20, typestr="|u1")
    end.fill(array, 1)
    record, calls = DriverDevice.record, []

    class Failing:
        done = True
        def synchronize(self):
            raise DeviceError("cuda", "a copy: CUDA_ERROR_ILLEGAL_ADDRESS")

    def failing(self):
        calls.append(self)
        return Failing() if len(calls) == 4 else record(self)

    DriverDevice.record = failing
    try:
        end.socket.send_tensor(array)
    except DeviceError as error:
        assert "ILLEGAL_ADDRESS" in str(error)
    else:
        raise AssertionError("no error")
    DriverDevice.record = record
    end.socket.wait_for_peers(1, timeout=PATIENCE)
    end.socket.send_tensor(array)
    end.hear()

def receive(end):
    tensor = end.socket.recv_tensor(device="cuda:0")
    assert end.bytes_of(tensor) == {1}
    end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


@pytest.mark.slow
def test_an_interrupted_send_is_sent(run):
    """The signal's exception reaches the caller; the message that has begun is whole."""
    program = """
class Stop(Exception):
    pass

def stop(*_):
    raise Stop

def send(end):
    signal.signal(signal.SIGALRM, stop)
    array = end.array(32 << 20, typestr="|u1")
    for number in range(1, 6):
        end.fill(array, number, delay=0.2)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            end.socket.send_tensor(array)
        except Stop:
            pass
        else:
            raise AssertionError("not interrupted")
        end.hear()

def receive(end):
    for number in range(1, 6):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {number}
        end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


@pytest.mark.slow
def test_no_room_and_memory_that_comes_back(run):
    program = """
def send(end):
    array = end.array(8 << 20, typestr="|u1")
    for number in range(40):
        end.socket.send_tensor(array)
    end.hear()
    assert 0 < POOL.total <= 1 << 30
    end.socket.sndtimeo, end.socket.sndhwm = 0, 1
    refused = 0
    for _ in range(50):
        try:
            end.socket.send_tensor(array)
        except Again:
            refused += 1
    assert refused
    before = POOL.total
    for _ in range(20):
        try:
            end.socket.send_tensor(array)
        except Again:
            pass
    assert POOL.total == before
    end.tell()

def receive(end):
    for _ in range(40):
        end.socket.recv_tensor(device="cuda:0")
    end.tell()
    end.hear()
"""
    run(HEAD + program + TAIL, **SLOW)


@pytest.mark.slow
def test_nothing_can_be_pinned(run):
    """It goes through memory that is not, after one line of the log."""
    program = """
def send(end):
    array = end.array(40 << 20, typestr="|u1")
    for number in (1, 2):
        end.fill(array, number, delay=0.02)
        end.socket.send_tensor(array)
        end.fill(array, 99)
    end.hear()

def receive(end):
    out = end.array(40 << 20, typestr="|u1")
    for number in (1, 2):
        assert end.bytes_of(end.socket.recv_tensor(out=out)) == {number}
    end.tell()

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    both(send, receive)
"""
    printed = run(HEAD + program, NULL_CUDA_PINNED="0", **SLOW)
    assert printed.count("large tensors on a GPU are copied in pieces") == 1 and "OUT_OF_MEMORY" in printed


def test_no_memory_on_the_receivers_gpu(run):
    """The message stays: it can be received on the host, or later; the next ones come."""
    program = """
def send(end):
    array = end.array(8 << 20, typestr="|u1")
    for number in range(1, 5):
        end.fill(array, number)
        end.socket.send_tensor(array)
    end.socket.send_tensors({"a": array, "b": array})
    end.hear()

def receive(end):
    def refused(receive):
        try:
            receive(device="cuda:0")
        except DeviceError as error:
            assert "OUT_OF_MEMORY" in str(error)
        else:
            raise AssertionError("there was room")

    for number in (1, 2):
        refused(end.socket.recv_tensor)
        assert end.bytes_of_host(end.socket.recv_tensor()) == {number}
    refused(end.socket.recv_tensor)
    os.environ["NULL_CUDA_MEMORY"] = str(12 << 20)
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {3}
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {4}
    refused(end.socket.recv_tensors)
    os.environ["NULL_CUDA_MEMORY"] = str(40 << 20)
    tensors, _ = end.socket.recv_tensors(device="cuda:0")
    assert [end.bytes_of(one) for one in tensors.values()] == [{4}, {4}]
    end.tell()

if __name__ == "__main__":
    both(send, receive, NULL_CUDA_MEMORY=str(4 << 20))
"""
    run(HEAD + program, **SLOW)


@pytest.mark.slow
def test_out_that_does_not_fit(run):
    """Nothing is written there, and the message stays."""
    program = """
def send(end):
    array = end.array(4, 1 << 20)
    end.fill(array, 7)
    end.socket.send_tensor(array)
    end.hear()

def receive(end):
    wrong = [end.array(4 << 20), end.array(4, 1 << 20, typestr="<i4"), end.array(2, 1 << 20)]
    for one in wrong:
        end.fill(one, 1)
        try:
            end.socket.recv_tensor(out=one)
        except TensorMismatch:
            pass
        else:
            raise AssertionError(one.shape)
        assert end.bytes_of(one) == {1}
    out = end.array(4, 1 << 20)
    assert end.bytes_of(end.socket.recv_tensor(out=out)) == {7}
    end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


def test_a_forked_child_says_nothing(run):
    program = """
def send(end):
    end.socket.send_tensor(end.array(500, 1000))
    end.hear()

def receive(end):
    tensor = end.socket.recv_tensor(device="cuda:0")
    child = os.fork()
    if not child:
        del tensor
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


def test_a_copy_that_fails_to_begin_keeps_its_memory(run):
    """Pieces that have begun still write there."""
    program = """
from tests.cuda.null_driver import NullDriver
from transfer.tensors import device
from transfer.tensors.driver_device import DriverDevice
from transfer.tensors.gpu_array import export_array
from transfer.transports import cuda

context, null = cuda.load().context(0), NullDriver()
from tests.cuda.null_driver import Array

array = Array(context, (16 << 20,), "|u1")
null.fill(array.pointer, 1, array.nbytes, 1, 0.3)
flat = export_array(array)[2]
copy_out = DriverDevice.copy_out

def failing(self, flat, start, *rest):
    if start == 8 << 20:
        raise KeyboardInterrupt
    return copy_out(self, flat, start, *rest)

DriverDevice.copy_out = failing
try:
    device.begin_to_host(flat.device, flat)
except KeyboardInterrupt:
    pass
DriverDevice.copy_out = copy_out
lent = POOL.take(16 << 20, lambda memory: (lambda: None))
before = bytes(memoryview(lent)[: 8 << 20])
context.synchronize(1)
assert bytes(memoryview(lent)[: 8 << 20]) == before, "it was lent while the GPU wrote there"
"""
    run(HEAD + program, **SLOW)
