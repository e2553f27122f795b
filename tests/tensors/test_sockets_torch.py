"""torch tensors over real sockets; `test_sockets.py` runs also where importing torch takes minutes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import transfer
from tests.tensors.test_sockets import X, ctx, joined

torch = pytest.importorskip("torch", reason="pip install torch")

__all__ = ["ctx"]


def test_torch_to_numpy_and_back(ctx: Any) -> None:
    sender, receiver = joined(ctx, transfer.PUSH, transfer.PULL)
    tensor = torch.ones(9, 9)
    sender.send_tensor(tensor)
    assert np.array_equal(receiver.recv_tensor(), tensor.numpy())
    out = np.empty_like(tensor.numpy())
    sender.send_tensor(tensor)
    assert receiver.recv_tensor(out=out) is out
    assert np.array_equal(out, tensor.numpy())
    sender.send_tensor(X)
    assert np.array_equal(receiver.recv_tensor(like=torch).numpy(), X)
