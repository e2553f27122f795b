"""The core's calls of the CUDA driver, on a driver without a GPU (null_driver). None of this ran on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "transports/core/native"
HEAD = """
import multiprocessing, os, sys
from tests.cuda.null_driver import CONTEXTS, NullDriver
from transfer.transports.core.native import cuda, libcuda
from transfer.transports.errors import *
null = NullDriver()
"""


def test_what_a_gpu_is(run):
    program = (
        HEAD
        + """
print(libcuda.version(), libcuda.device_count(), libcuda.device_uuid(1)[:10], null.count(CONTEXTS))
print(libcuda.device_attribute(0, 124), libcuda.device_attribute(0, 7))
try:
    cuda.GpuContext(2)
except DeviceError as error:
    print(error.reason, error)
context = cuda.GpuContext(1)
pointer = context.allocate(5000)
print([libcuda.pointer_attribute(pointer + 3, number) for number in (2, 9, 10, 12, 17)])
print(libcuda.pointer_attribute(pointer, 11) == pointer, libcuda.pointer_attribute(1, 2))
context.free(pointer)
"""
    )
    assert run(program, NULL_CUDA_DEVICES="2").splitlines() == [
        "12090 2 b'null-gpu-1' 0",
        "1 None",
        "cuda GPU 2: CUDA_ERROR_INVALID_DEVICE",
        "[2, 1, 1, 8192, 0]",
        "True None",
    ]


def test_order(run):
    program = (
        HEAD
        + """
context = cuda.GpuContext(0)
one, other = context.allocate(4096), context.allocate(4096)
work, copies = cuda.GpuStream(context), cuda.GpuStream(context)
event = cuda.GpuEvent(context)
assert event.done
null.fill(one, 7, 4096, work.number, delay=0.2)
event.record(work.number)
assert not event.done and null.peek(one, 1) == bytes(1)
event.wait_in(copies.number)
context.copy(other, one, 4096, copies.number)
assert null.peek(other, 1) == bytes(1)
context.synchronize(copies.number)
assert event.done and null.peek(other, 4096) == bytes([7]) * 4096
null.fill(one, 8, 4096, work.number, delay=0.1)
null.fill(other, 9, 4096, copies.number, delay=0.1)
every = cuda.GpuEvent(context)
every.record_all()
assert not every.done
every.synchronize()
assert every.done and null.peek(one, 1) + null.peek(other, 1) == bytes([8, 9])
context.free(one), context.free(other)
"""
    )
    run(program)


CHILD = (
    HEAD
    + """
def child(handle, event, done):
    context = cuda.GpuContext(0)
    theirs, ready = context.map(handle), cuda.GpuEvent(context, handle=event)
    assert context.map(handle) == theirs
    context.unmap(theirs)
    ours, stream = context.allocate(4096), cuda.GpuStream(context)
    ready.wait_in(stream.number)
    context.copy(ours, theirs, 4096, stream.number)
    context.synchronize(stream.number)
    print(null.peek(ours, 2), flush=True)
    context.unmap(theirs)
    context.free(ours)
    done.set()

if __name__ == "__main__":
    context = cuda.GpuContext(0)
    pointer, ready = context.allocate(4096), cuda.GpuEvent(context, shared=True)
    null.fill(pointer, 5, 4096, 0, delay=0.3)
    ready.record(0)
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Event()
    process = spawn.Process(target=child, args=(context.export(pointer), ready.handle, done))
    process.start()
    assert done.wait(30)
    try:
        context.map(context.export(pointer))
    except DeviceError as error:
        print(error)
    try:
        context.map(b"short")
    except DeviceError as error:
        print(error)
    process.join()
    context.free(pointer)
"""
)


def test_another_process(run):
    assert run(CHILD).splitlines() == [
        r"b'\x05\x05'",
        "mapping memory of another process: CUDA_ERROR_INVALID_CONTEXT",
        "a handle of 5 bytes, it has 64",
    ]


def test_memory_is_used_up(run):
    program = (
        HEAD
        + """
context = cuda.GpuContext(0)
try:
    context.allocate(1 << 20)
except DeviceError as error:
    print(error.reason, "empty_cache" in error.hint, error)
context.free(context.allocate(4096))
"""
    )
    said = run(program, NULL_CUDA_MEMORY="8192")
    assert said.startswith("cuda True 1048576 bytes of GPU 0: CUDA_ERROR_OUT_OF_MEMORY")


def test_a_forked_child_has_no_gpu(run):
    program = (
        HEAD
        + """
context = cuda.GpuContext(0)
pointer, event = context.allocate(4096), cuda.GpuEvent(context)
if not os.fork():
    for call in (lambda: context.free(pointer), lambda: event.done, lambda: cuda.GpuContext(0)):
        try:
            call()
        except ForkedError as error:
            print(error, flush=True)
    del event, context  # frees nothing
    os._exit(0)
print(os.wait()[1])
context.free(pointer)
"""
    )
    assert run(program).splitlines() == [
        *["CUDA began before the process forked", "  hint: start the child with spawn or forkserver"] * 3,
        "0",
    ]


def test_a_child_that_begins_itself_has_one(run):
    program = (
        HEAD
        + """
if not os.fork():
    context = cuda.GpuContext(0)
    context.free(context.allocate(4096))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    )
    assert run(program).strip() == "7"


def test_what_the_doctor_says(run):
    program = """
from transfer.doctor.transports import devices
[found] = [check for check in devices() if check.name == "cuda"]
print(found.status, found.detail, found.hint)
"""
    assert run(program, NULL_CUDA_DEVICES="2") == "ok 2 GPUs, driver of CUDA 12.9 \n"
    said = run(program, NULL_CUDA_DEVICES="0")
    assert said.startswith("off no NVIDIA driver") or "but the CUDA driver finds no GPU" in said


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"TRANSFER_LIBCUDA": "libabsent.so.1"}, "no_cuda the CUDA driver cannot be loaded"),
        ({"TRANSFER_LIBCUDA": "libc.so.6"}, "version this CUDA driver has no cuInit"),
        ({"NULL_CUDA_DEVICES": "0"}, "no_cuda the CUDA driver finds no GPU to use: CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_no_driver(run, variables, reason):
    program = """
from transfer.transports import cuda
from transfer.transports.core.native import libcuda
from transfer.transports.errors import DeviceError
try:
    libcuda.device_count()
except DeviceError as error:
    print(error.reason, error)
print(cuda.load())
"""
    said = run(program, **variables)
    assert said.startswith(reason) and said.endswith("None\n")


def test_the_numbers_are_the_drivers():
    """Against NVIDIA's own enumerations: a wheel, and no GPU."""
    driver = pytest.importorskip("cuda.bindings.driver")
    enumerations = [
        driver.CUevent_flags,
        driver.CUstream_flags,
        driver.CUipcMem_flags,
        driver.CUmemRangeHandleType,
        driver.CUflushGPUDirectRDMAWritesTarget,
        driver.CUflushGPUDirectRDMAWritesScope,
        driver.CUmemAllocationHandleType,
        driver.CUmemLocationType,
        driver.CUmemAccess_flags,
        driver.CUresult,
    ]
    declared = dict(re.findall(r"^    (CU\w+) = (\d+)$", (NATIVE / "libcuda.pxd").read_text(), re.MULTILINE))
    assert len(declared) == 14
    for name, number in declared.items():
        [found] = {one.__members__[name].value for one in enumerations if name in one.__members__}
        assert found == int(number), name
