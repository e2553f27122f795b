"""Several processes answer with one model, whose weights are in the memory of the process that loaded it.

    python -m examples.shared_model --workers 2

On a GPU all workers map the weights (CUDA IPC); on the CPU the first one shares their memory, and the others
have copies. Only tensors below 64 KiB are copied to all. When the owner changes a weight in place, those that
share it answer with it at once. The memory is the owner's alone again when they have deleted their models.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

import torch

import transfer

FEATURES = 256


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 1024, bias=False), torch.nn.Linear(1024, FEATURES, bias=False)
    )


def answer(model: torch.nn.Module, device: str) -> float:
    with torch.no_grad():
        return float(model(torch.ones(1, FEATURES, device=device)).sum())


def work(device: str, pipe: Any) -> None:
    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=60_000) as pull:
        pull.bind("tcp://127.0.0.1:0")
        pipe.send(pull.last_endpoint)
        weights, _ = pull.recv_tensors(device=device, like="torch")
        with torch.device("meta"):  # a model without memory of its own
            model = network()
        model.load_state_dict(weights, assign=True)
        pipe.send(answer(model, device))
        pipe.recv()
        pipe.send(answer(model, device))
        del model, weights


def shareable(context: transfer.Context, model: torch.nn.Module, device: str) -> None:
    """Moves the weights to memory that other processes can map."""
    if device == "cpu":
        moved = {}
        for name, weight in model.state_dict().items():
            moved[name] = torch.from_numpy(context.empty(tuple(weight.shape), "float32")).copy_(weight)
        model.load_state_dict(moved, assign=True)
    else:
        model.to(device)


def lend(push: transfer.Socket, model: torch.nn.Module) -> Any:
    """Sends the weights themselves; the tracker is done when the worker has deleted them. Waits until it has
    asked for memory of this GPU: a copy through the host would share nothing."""
    push.gpu_staging = False
    limit = time.monotonic() + 60
    while True:
        try:
            return push.send_tensors(model.state_dict(), copy=False)
        except transfer.RegistrationError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)


def share(device: str, pipes: list[Any]) -> None:
    torch.manual_seed(0)
    model = network()
    with transfer.Context() as context:
        shareable(context, model, device)
        sockets = [context.socket(transfer.PUSH) for _ in pipes]
        for push, pipe in zip(sockets, pipes, strict=True):
            push.connect(pipe.recv())
            push.wait_for_peers(1)  # a message that waits for its peer has a copy of the weights
        trackers = [lend(push, model) for push in sockets]
        before = [pipe.recv() for pipe in pipes]
        with torch.no_grad():
            model.get_parameter("0.weight").mul_(2)
        if device != "cpu":
            torch.cuda.synchronize()
        for pipe in pipes:
            pipe.send("changed")
        for number, (pipe, first) in enumerate(zip(pipes, before, strict=True), 1):
            print(f"worker {number}: {first:.3f}, then {pipe.recv():.3f} after the owner doubled a weight")
        for tracker in trackers:
            tracker.wait(60)
        print("the weights are this process's alone again")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")  # CUDA survives no fork
    workers, pipes = [], []
    for _ in range(chosen.workers):
        ours, theirs = spawn.Pipe()
        workers.append(spawn.Process(target=work, args=(chosen.device, theirs), daemon=True))
        pipes.append(ours)
        workers[-1].start()
    try:
        share(chosen.device, pipes)
        for worker in workers:
            worker.join(30)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


if __name__ == "__main__":
    main()
