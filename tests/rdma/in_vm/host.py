"""One of two hosts, see `tests/rdma/two_hosts.py`: `python -m tests.rdma.in_vm.host serve|visit`."""

from __future__ import annotations

import socket
import sys
import time

import numpy as np

import transfer

ADDRESS = "10.78.0.1"
PULLS, REPLIES = 5555, 5556
SHAPES = [(3,), (100, 100), (500, 501), (1000, 1001)]
ROUNDS = 3
PATIENCE = 120.0


def tensor(number: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(number).random(shape)


def serve(context: transfer.Context) -> None:
    with context.socket(transfer.PULL) as pull, context.socket(transfer.REP) as rep:
        pull.rcvtimeo = rep.rcvtimeo = rep.sndtimeo = int(PATIENCE * 1000)
        rep.bind(f"tcp://{ADDRESS}:{REPLIES}")
        pull.bind(f"tcp://{ADDRESS}:{PULLS}")
        for number in range(ROUNDS):
            for shape in SHAPES:
                arrived = pull.recv_tensor()
                assert np.array_equal(arrived, tensor(number, shape))
        told("PULL", pull, ROUNDS * len(SHAPES))
        for _ in range(ROUNDS * len(SHAPES)):
            rep.send_tensor(rep.recv_tensor() * 2)
        told("REP", rep, ROUNDS * len(SHAPES))
        assert rep.recv() == b"over"
        rep.send(b"over")
        rep.close(10_000)


def visit(context: transfer.Context) -> None:
    await_host()
    with context.socket(transfer.PUSH) as push, context.socket(transfer.REQ) as req:
        push.sndtimeo = req.sndtimeo = req.rcvtimeo = int(PATIENCE * 1000)
        push.connect(f"tcp://{ADDRESS}:{PULLS}")
        req.connect(f"tcp://{ADDRESS}:{REPLIES}")
        for number in range(ROUNDS):
            for shape in SHAPES:
                push.send_tensor(tensor(number, shape))
        told("PUSH", push, ROUNDS * len(SHAPES))
        for number in range(ROUNDS):
            for shape in SHAPES:
                req.send_tensor(tensor(number, shape))
                assert np.array_equal(req.recv_tensor(), tensor(number, shape) * 2)
        told("REQ", req, ROUNDS * len(SHAPES))
        req.send(b"over")
        assert req.recv() == b"over"


def await_host() -> None:
    """The other machine boots in its own time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((ADDRESS, PULLS), timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, "the other host never came"
            time.sleep(0.5)
        else:
            return


def told(kind: str, one: transfer.Socket, count: int) -> None:
    (peer,) = one.peers()
    assert peer.transport == "rdma", peer.reason
    assert peer.authenticated, "by its certificate and the token"
    print(f"{kind}: {count} tensors over {peer.transport}, by {peer.device}", flush=True)


if __name__ == "__main__":
    with transfer.Context(protocol="rdma", policy="require") as own:
        {"serve": serve, "visit": visit}[sys.argv[1]](own)
