"""Memory of a GPU that is freed, or used for something else, as soon as `send_tensor` has returned."""

from __future__ import annotations

import pytest

from tests.cuda.test_mapped import HEAD, TAIL

WAYS = (
    "local",
    "tcp",
    pytest.param("card", marks=pytest.mark.slow),
    pytest.param("ucx", marks=pytest.mark.slow),
)


@pytest.fixture(params=WAYS)
def by(request):
    """`run`, by each transport, with copies that are late."""
    fixture = {"card": "run_by_card", "ucx": "run_by_ucx"}.get(request.param, "run")
    run = request.getfixturevalue(fixture)
    late = {"NULL_CUDA_DELAY_US": "2000"}
    if request.param == "tcp":
        late |= {"TRANSFER_LOCAL": "off", "MC_RPC_PROTOCOL": "tcp"}
    return lambda program: run(program, **late)


def test_what_is_freed_after_a_send_was_sent(by):
    program = """
def send(end):
    for byte in range(1, 7):
        arrays = {name: end.array(300, 1000) for name in "abc"}
        for array in arrays.values():
            end.fill(array, byte, delay=0.005)
        end.socket.send_tensor(arrays["a"])
        end.socket.send_tensors(arrays)
        for array in arrays.values():
            array.close()
        others = [end.array(300, 1000) for _ in range(4)]
        for array in others:
            end.fill(array, 99)
            array.close()
    end.hear()

def receive(end):
    end.want()
    for byte in range(1, 7):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
        found, _ = end.socket.recv_tensors(device="cuda:0")
        assert [end.bytes_of(one) for one in found.values()] == [{byte}] * 3
    end.tell()
"""
    by(HEAD + program + TAIL)
